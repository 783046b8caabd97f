//! The one error of this crate.

use std::path::PathBuf;

use crate::nearest::suggestion;
use crate::text::{shown, shown_path};

/// A value that was refused, and why.
///
/// Each text names the field, the value and what is allowed. Values are shown escaped and cut, so that
/// printing an error on a terminal is safe whatever was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A value outside of what its field allows.
    #[error("{field}: {} is not allowed; give {allowed}", shown(.value))]
    NotAllowed {
        /// The field, by its name in a flag or in a file.
        field: &'static str,
        /// The value as it was given.
        value: String,
        /// What the field takes, with an example.
        allowed: String,
    },

    /// A value that is known, but that this version cannot do.
    #[error("{field}: {} is not in this version; give {allowed}", shown(.value))]
    NotInThisVersion {
        /// The field, by its name in a flag or in a file.
        field: &'static str,
        /// The value as it was given.
        value: String,
        /// What this version takes.
        allowed: &'static str,
    },

    /// An environment variable that no program can be given. Its value is not shown: it may be a secret.
    #[error("env: the value of {} is not allowed; give {allowed}", shown(.name))]
    EnvValue {
        /// The variable's name.
        name: String,
        /// What a value may be.
        allowed: &'static str,
    },

    /// A language that is not known.
    #[error("language: {} is not known{}; known are {known}", shown(.name), suggestion(.nearest.as_deref()))]
    UnknownLanguage {
        /// The name as it was given.
        name: String,
        /// The known name that is nearest to it, if one is near.
        nearest: Option<String>,
        /// Every known name, separated by commas.
        known: String,
    },

    /// A key that is not known at its place.
    #[error("{}: unknown key{}; allowed here: {allowed}", shown(.key), suggestion(.nearest.as_deref()))]
    UnknownKey {
        /// The key with the path to it, such as `limits.memroy`.
        key: String,
        /// The known key that is nearest to it, if one is near.
        nearest: Option<String>,
        /// The keys that are known at that place, separated by commas.
        allowed: String,
    },

    /// A key that stands twice in one table.
    #[error("{}: this key is given twice", shown(.key))]
    DuplicateKey {
        /// The key with the path to it.
        key: String,
    },

    /// A key that has to be there.
    #[error("{}: this key is missing; give {wanted}", shown(.key))]
    MissingKey {
        /// The key with the path to it.
        key: String,
        /// What it takes.
        wanted: &'static str,
    },

    /// A value of the wrong type.
    #[error("{}: {found} is not allowed; give {wanted}", shown(.key))]
    WrongType {
        /// The key with the path to it.
        key: String,
        /// What was found, such as `a list`.
        found: &'static str,
        /// What it takes.
        wanted: &'static str,
    },

    /// A text that is longer than is read.
    #[error("the specification has {bytes} bytes; at most {max_bytes} are allowed")]
    TooLong {
        /// The length of the text.
        bytes: usize,
        /// The greatest length that is read.
        max_bytes: usize,
    },

    /// A text that is not JSON.
    #[error("the text is not valid JSON")]
    Json {
        /// What the parser says, with line and column.
        #[source]
        source: serde_json::Error,
    },

    /// A text that is not TOML.
    #[error("the text is not valid TOML")]
    Toml {
        /// What the parser says, with the line.
        #[source]
        source: Box<toml::de::Error>,
    },

    /// Two mounts on one path.
    #[error(
        "mounts: {} and {} are both mounted on {}; give each a path of its own",
        shown_path(.first), shown_path(.second), shown_path(.target)
    )]
    SameTarget {
        /// The source of the mount that comes first.
        first: PathBuf,
        /// The source of the mount that comes second.
        second: PathBuf,
        /// The path inside of the sandbox that both ask for.
        target: PathBuf,
    },

    /// A mount that would hide one that comes before it.
    #[error(
        "mounts: {} would hide {}, which comes before it; list the outer path first",
        shown_path(.outer), shown_path(.inner)
    )]
    HiddenTarget {
        /// The target of the mount that comes second.
        outer: PathBuf,
        /// The target inside of it that comes first.
        inner: PathBuf,
    },

    /// Two languages that claim one name, extension or interpreter.
    #[error("{} is the {what} of two languages, {first} and {second}; give it to one of them", shown(.value))]
    LanguageClash {
        /// What is claimed: name, extension or interpreter.
        what: &'static str,
        /// The value that is claimed.
        value: String,
        /// The language that comes first.
        first: String,
        /// The language that comes second.
        second: String,
    },

    /// A language file that cannot be used.
    #[error("language file {} cannot be used", shown(.file))]
    LanguageFile {
        /// The file's name.
        file: String,
        /// What is wrong in it.
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
