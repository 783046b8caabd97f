//! What a setting is: one definition gives its key, its variable, its line in the example and in the documentation.

/// The form of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A number, or a text such as `256m`.
    Number,
    /// True or false.
    Flag,
    /// A list of texts. In a variable or flag they are separated by commas.
    List,
    /// Free names, each with a text. In a variable or flag they are `NAME=VALUE`, separated by commas.
    Table,
}

impl Form {
    /// What to give, for messages.
    pub(crate) const fn wanted(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Number => "a number, or a text such as \"256m\"",
            Self::Flag => "true or false",
            Self::List => "a list of texts",
            Self::Table => "a table of names and texts",
        }
    }
}

/// How much of a setting's value may be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Showing {
    /// All of it.
    Whole,
    /// An address, without password and options.
    Address,
    /// Only the names of a table.
    Names,
}

/// One setting of the service.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The path of its key, such as `server.listen`.
    pub key: &'static str,
    /// The form of its value.
    pub form: Form,
    /// Its default as it would be written in the file.
    pub default: &'static str,
    /// What it is, in one or more lines.
    pub text: &'static str,
    /// Whether a running server takes a new value on `SIGHUP`.
    pub reload: bool,
    pub(crate) showing: Showing,
    /// A variable of an older name that says the same.
    pub(crate) alias: Option<&'static str>,
}

impl Setting {
    pub(crate) const fn new(
        key: &'static str,
        form: Form,
        default: &'static str,
        text: &'static str,
    ) -> Self {
        Self { key, form, default, text, reload: false, showing: Showing::Whole, alias: None }
    }

    /// A running server takes a new value.
    pub(crate) const fn reloaded(self) -> Self {
        Self { reload: true, ..self }
    }

    pub(crate) const fn showing(self, showing: Showing) -> Self {
        Self { showing, ..self }
    }

    pub(crate) const fn alias(self, variable: &'static str) -> Self {
        Self { alias: Some(variable), ..self }
    }

    /// The environment variable that sets it, such as `BELLJAR_SERVER_LISTEN`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("BELLJAR_{}", self.key.replace('.', "_").to_ascii_uppercase())
    }

    /// The section of the file that it stands in, such as `template.limits`.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Its name in its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }
}
