//! Definition of a setting: its key, its variable, its line in the example and in the documentation.

/// The kind of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A text.
    Text,
    /// A number, or a text such as `256m`.
    Number,
    /// True or false.
    Flag,
    /// A list of texts. In a variable or flag they are separated by commas.
    List,
    /// Arbitrary names, each with a text. In a variable or flag they are `NAME=VALUE`, separated by commas.
    Table,
}

impl ValueKind {
    /// Returns a description for messages.
    pub(crate) const fn description(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Number => "a number, or a text such as \"256m\"",
            Self::Flag => "true or false",
            Self::List => "a list of texts",
            Self::Table => "a table of names and texts",
        }
    }
}

/// The part of a setting's value that may be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visibility {
    /// The whole value.
    Full,
    /// An address, without password and options.
    Address,
    /// Only the names of a table.
    Names,
    /// Only whether it is set.
    Hidden,
}

/// One setting of the service.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The path of its key, such as `server.listen`.
    pub key: &'static str,
    /// The kind of its value.
    pub kind: ValueKind,
    /// Its default as it would be written in the file.
    pub default: &'static str,
    /// Description, in one or more lines.
    pub text: &'static str,
    /// True if a running server applies a new value on `SIGHUP`.
    pub reload: bool,
    pub(crate) visibility: Visibility,
    /// A flag of its own, besides `--set`, with the name of its value, such as `("on-exit", "WHAT")`.
    pub flag: Option<(&'static str, &'static str)>,
    /// A variable with an older name for the same setting.
    pub(crate) alias: Option<&'static str>,
}

impl Setting {
    pub(crate) const fn new(
        key: &'static str,
        kind: ValueKind,
        default: &'static str,
        text: &'static str,
    ) -> Self {
        Self {
            key,
            kind,
            default,
            text,
            reload: false,
            visibility: Visibility::Full,
            flag: None,
            alias: None,
        }
    }

    /// Marks the setting as one that a running server applies on `SIGHUP`.
    pub(crate) const fn reloadable(self) -> Self {
        Self { reload: true, ..self }
    }

    pub(crate) const fn visibility(self, visibility: Visibility) -> Self {
        Self { visibility, ..self }
    }

    pub(crate) const fn flag(self, name: &'static str, value: &'static str) -> Self {
        Self { flag: Some((name, value)), ..self }
    }

    pub(crate) const fn alias(self, variable: &'static str) -> Self {
        Self { alias: Some(variable), ..self }
    }

    /// Returns the environment variable that sets it, such as `BELLJAR_SERVER_LISTEN`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("BELLJAR_{}", self.key.replace('.', "_").to_ascii_uppercase())
    }

    /// Returns its section of the file, such as `template.limits`.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Returns its name in its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }
}
