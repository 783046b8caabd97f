//! What is wrong with a configuration.

use std::fmt;
use std::path::PathBuf;

use crate::origin::Origin;

/// One thing that is wrong, where it stands, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is longer than is read.
    #[error("{}: the file has {bytes} bytes; at most {most} are allowed", .path.display())]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// Its length.
        bytes: usize,
        /// The greatest length that is read.
        most: usize,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {reason}")]
    Syntax {
        /// Where.
        origin: Origin,
        /// What the parser says.
        reason: String,
    },
    /// A key that is not known.
    #[error("{origin}: {}: unknown key{}; allowed here: {allowed}", shown(.key), did_you_mean(.nearest.as_deref()))]
    UnknownKey {
        /// Where.
        origin: Origin,
        /// The whole path of the key.
        key: String,
        /// The known key that is nearest to it.
        nearest: Option<String>,
        /// The keys that are known at its place.
        allowed: String,
    },
    /// A variable of the service that is not known.
    #[error("{}: unknown variable{}", shown(.name), did_you_mean(.nearest.as_deref()))]
    UnknownVariable {
        /// Its name.
        name: String,
        /// The known variable that is nearest to it.
        nearest: Option<String>,
    },
    /// A variable whose value is not text.
    #[error("{name}: the value is not UTF-8; give text in UTF-8")]
    NotUtf8 {
        /// Its name.
        name: String,
    },
    /// A value of another form.
    #[error("{origin}: {key}: {found} is not allowed; give {wanted}")]
    WrongForm {
        /// Where.
        origin: Origin,
        /// The key.
        key: String,
        /// What was found.
        found: &'static str,
        /// What it takes.
        wanted: &'static str,
    },
    /// A value that is not allowed.
    #[error("{origin}: {key}: {value} is not allowed; give {allowed}")]
    NotAllowed {
        /// Where.
        origin: Origin,
        /// The key.
        key: String,
        /// The value, quoted; secrets are not shown.
        value: String,
        /// What it takes.
        allowed: String,
    },
    /// Values that do not go together.
    #[error("{origin}: {key}: {reason}")]
    Together {
        /// Where the one is that decides.
        origin: Origin,
        /// Its key.
        key: String,
        /// Why not, and what to do.
        reason: String,
    },
}

/// All that is wrong with a configuration; at least one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Makes one error of all; none where nothing is wrong. What stands in a file comes in its order.
    ///
    /// # Errors
    /// Something is wrong.
    pub fn check(mut errors: Vec<ConfigError>) -> Result<(), Self> {
        errors.sort_by_key(ConfigError::place);
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }

    /// Each of them.
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.0
    }
}

impl ConfigError {
    /// Line and column, if it stands in a file.
    fn place(&self) -> Option<(usize, usize)> {
        match self {
            Self::Syntax { origin, .. }
            | Self::UnknownKey { origin, .. }
            | Self::WrongForm { origin, .. }
            | Self::NotAllowed { origin, .. }
            | Self::Together { origin, .. } => match origin {
                Origin::File { line, column, .. } => Some((*line, *column)),
                _ => None,
            },
            _ => None,
        }
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for ConfigErrors {
    /// One line for each.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(formatter, "{end}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The most characters of a value that a message shows.
const MAX_SHOWN_CHARS: usize = 100;

/// Quotes a value, escapes what a terminal would act on, and cuts what is too long to read.
pub(crate) fn shown(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN_CHARS) {
        None => format!("{value:?}"),
        Some((cut, _)) => format!("{:?}… ({} bytes)", &value[..cut], value.len()),
    }
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!(", did you mean {nearest}?")).unwrap_or_default()
}
