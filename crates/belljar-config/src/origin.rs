//! Origins of values.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    Default,
    /// A file.
    File {
        /// The file's path.
        path: Arc<PathBuf>,
        /// The line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
    },
    /// An environment variable of this name.
    Variable(String),
    /// A flag, as it was written, such as `--listen`.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line, column } => write!(formatter, "{}:{line}:{column}", path.display()),
            Self::Variable(name) => formatter.write_str(name),
            Self::Flag(name) => formatter.write_str(name),
        }
    }
}
