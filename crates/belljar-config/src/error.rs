//! Errors in a configuration.

use std::fmt;
use std::path::PathBuf;

use crate::origin::Origin;

/// A mistake in a configuration, with its origin and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is too long.
    #[error("{}: the file has {bytes} bytes; at most {max} are allowed", .path.display())]
    TooLong {
        /// The file's path.
        path: PathBuf,
        /// Length of the file, in bytes.
        bytes: usize,
        /// Maximum length, in bytes.
        max: usize,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {reason}")]
    Syntax {
        /// The position in the file.
        origin: Origin,
        /// The parser's message.
        reason: String,
    },
    /// An unknown key.
    #[error("{origin}: {}: unknown key{}; allowed here: {allowed}", quote(.key), did_you_mean(.nearest.as_deref()))]
    UnknownKey {
        /// The origin of the key.
        origin: Origin,
        /// The full path of the key.
        key: String,
        /// The most similar known key.
        nearest: Option<String>,
        /// The known keys of its section.
        allowed: String,
    },
    /// An unknown variable of the service.
    #[error("{}: unknown variable{}", quote(.name), did_you_mean(.nearest.as_deref()))]
    UnknownVariable {
        /// The variable's name.
        name: String,
        /// The most similar known variable.
        nearest: Option<String>,
    },
    /// A variable whose value is not UTF-8.
    #[error("{name}: the value is not UTF-8; give text in UTF-8")]
    NotUtf8 {
        /// The variable's name.
        name: String,
    },
    /// A value of another kind than the setting has.
    #[error("{origin}: {key}: {found} is not allowed; give {expected}")]
    WrongKind {
        /// The origin of the value.
        origin: Origin,
        /// The key.
        key: String,
        /// The kind of the value.
        found: &'static str,
        /// The expected kind.
        expected: &'static str,
    },
    /// A value that is not allowed.
    #[error("{origin}: {key}: {value} is not allowed; give {allowed}")]
    NotAllowed {
        /// The origin of the value.
        origin: Origin,
        /// The key.
        key: String,
        /// The value, quoted; secrets are not shown.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// Settings that conflict with each other.
    #[error("{origin}: {key}: {reason}")]
    Conflict {
        /// The origin of one of them.
        origin: Origin,
        /// Its key.
        key: String,
        /// The conflict and the fix.
        reason: String,
    },
}

/// All errors in a configuration; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Combines errors into one; `Ok` if `errors` is empty. Errors in a file are sorted by position.
    ///
    /// # Errors
    /// Fails if `errors` is not empty.
    pub fn check(mut errors: Vec<ConfigError>) -> Result<(), Self> {
        errors.sort_by_key(ConfigError::position);
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }

    /// Returns all errors.
    #[must_use]
    pub fn errors(&self) -> &[ConfigError] {
        &self.0
    }
}

impl ConfigError {
    /// Returns line and column, if the origin is a file.
    fn position(&self) -> Option<(usize, usize)> {
        match self {
            Self::Syntax { origin, .. }
            | Self::UnknownKey { origin, .. }
            | Self::WrongKind { origin, .. }
            | Self::NotAllowed { origin, .. }
            | Self::Conflict { origin, .. } => match origin {
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
    /// Writes one line for each error.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(formatter, "{end}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Maximum number of characters of a value in a message.
const MAX_SHOWN_CHARS: usize = 100;

/// Quotes a value, escapes control characters, and truncates a long one.
pub(crate) fn quote(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN_CHARS) {
        None => format!("{value:?}"),
        Some((cut, _)) => format!("{:?}… ({} bytes)", &value[..cut], value.len()),
    }
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!(", did you mean {nearest}?")).unwrap_or_default()
}
