//! Error type of this crate.

use std::path::PathBuf;

use crate::nearest::suggestion;
use crate::text::{quote, quote_path};

/// Error for a value that was refused.
///
/// Each message names the field, the value and what is allowed. Values are escaped and truncated, so that printing an error on
/// a terminal is safe for any input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The value is not allowed for its field.
    #[error("{field}: {} is not allowed; give {allowed}", quote(.value))]
    NotAllowed {
        /// Name of the field in a flag or file.
        field: &'static str,
        /// Value as given.
        value: String,
        /// Allowed values, with an example.
        allowed: String,
    },

    /// The value is known, but not supported by this version.
    #[error("{field}: {} is not in this version; give {allowed}", quote(.value))]
    NotInThisVersion {
        /// Name of the field in a flag or file.
        field: &'static str,
        /// Value as given.
        value: String,
        /// Values supported by this version.
        allowed: String,
    },

    /// The value of an environment variable cannot be passed to a program. It is not shown, as it may be a secret.
    #[error("env: the value of {} is not allowed; give {allowed}", quote(.name))]
    EnvValue {
        /// Name of the variable.
        name: String,
        /// Allowed values.
        allowed: &'static str,
    },

    /// The language is unknown.
    #[error("language: {} is not known{}; known are {known}", quote(.name), suggestion(.nearest.as_deref()))]
    UnknownLanguage {
        /// Name as given.
        name: String,
        /// Nearest known name, if one is near.
        nearest: Option<String>,
        /// All known names, separated by commas.
        known: String,
    },

    /// The key is unknown at its place.
    #[error("{}: unknown key{}; allowed here: {allowed}", quote(.key), suggestion(.nearest.as_deref()))]
    UnknownKey {
        /// Key with the path to it, such as `limits.memroy`.
        key: String,
        /// Nearest known key, if one is near.
        nearest: Option<String>,
        /// Keys that are known at that place, separated by commas.
        allowed: String,
    },

    /// The key occurs twice in one table.
    #[error("{}: this key is given twice", quote(.key))]
    DuplicateKey {
        /// Key with the path to it.
        key: String,
    },

    /// A required key is missing.
    #[error("{}: this key is missing; give {expected}", quote(.key))]
    MissingKey {
        /// Key with the path to it.
        key: String,
        /// Expected type.
        expected: &'static str,
    },

    /// The value has the wrong type.
    #[error("{}: {found} is not allowed; give {expected}", quote(.key))]
    WrongType {
        /// Key with the path to it.
        key: String,
        /// Type that was found, such as `a list`.
        found: &'static str,
        /// Expected type.
        expected: &'static str,
    },

    /// The text is too long.
    #[error("the specification has {bytes} bytes; at most {max_bytes} are allowed")]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// Maximum length.
        max_bytes: usize,
    },

    /// The text is not valid JSON.
    #[error("the text is not valid JSON")]
    Json {
        /// Error of the parser, with line and column.
        #[source]
        source: serde_json::Error,
    },

    /// The text is not valid TOML.
    #[error("the text is not valid TOML")]
    Toml {
        /// Error of the parser, with the line.
        #[source]
        source: Box<toml::de::Error>,
    },

    /// Two mounts have the same target.
    #[error(
        "mounts: {} and {} are both mounted on {}; give each a path of its own",
        quote_path(.first), quote_path(.second), quote_path(.target)
    )]
    SameTarget {
        /// Source of the first mount.
        first: PathBuf,
        /// Source of the second mount.
        second: PathBuf,
        /// Target of both in the sandbox.
        target: PathBuf,
    },

    /// A mount would hide an earlier one.
    #[error(
        "mounts: {} would hide {}, which comes before it; list the outer path first",
        quote_path(.outer), quote_path(.inner)
    )]
    HiddenTarget {
        /// Target of the later mount.
        outer: PathBuf,
        /// Target inside of it of the earlier mount.
        inner: PathBuf,
    },

    /// Two languages claim the same name, extension or interpreter.
    #[error("{} is the {what} of two languages, {first} and {second}; give it to one of them", quote(.value))]
    LanguageClash {
        /// Kind of claim: name, extension or interpreter.
        what: &'static str,
        /// Claimed value.
        value: String,
        /// First language.
        first: String,
        /// Second language.
        second: String,
    },

    /// A language file is invalid.
    #[error("language file {} cannot be used", quote(.file))]
    LanguageFile {
        /// Name of the file.
        file: String,
        /// Cause.
        #[source]
        source: Box<ModelError>,
    },
}

impl ModelError {
    pub(crate) fn not_allowed(
        field: &'static str,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self::NotAllowed { field, value: value.into(), allowed: allowed.into() }
    }
}
