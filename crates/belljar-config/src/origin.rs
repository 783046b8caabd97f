//! Where a value was said.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// In a file.
    File {
        /// Which file.
        path: Arc<PathBuf>,
        /// Its line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
    },
    /// In an environment variable of this name.
    Variable(String),
    /// In a flag, as it was written, such as `--listen`.
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
