//! What can be wrong with a template, and what can fail while it is built.

use std::path::PathBuf;

use belljar_engine::{EngineError, GuestError};

/// What is wrong with the text of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {field}: {reason}")]
pub struct DefinitionError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key that it is about, such as `step.2.pip`; `template` is the text as a whole.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

/// Why a template was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Its text is wrong.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// What was given beside it is wrong or missing.
    #[error("{field}: {reason}")]
    Input {
        /// What it is about.
        field: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A step failed. The text names it.
    #[error("step {number} of {total} ({kind}): {command}: {how}{}", tail(.last_lines))]
    Step {
        /// Its number, from 1; 0 is the base.
        number: usize,
        /// How many there are.
        total: usize,
        /// What kind of step it is, such as `pip`.
        kind: &'static str,
        /// What it was to do.
        command: String,
        /// How it ended.
        how: String,
        /// Its exit code, if it has one.
        code: Option<i32>,
        /// The last lines of its output.
        last_lines: Vec<String>,
    },
    /// A sandbox of the build failed.
    #[error("the sandbox of the build failed")]
    Engine(#[from] EngineError),
    /// The guest of a sandbox of the build failed.
    #[error("the sandbox of the build failed while {doing}")]
    Guest {
        /// What was being done.
        doing: &'static str,
        /// Why.
        #[source]
        source: GuestError,
    },
    /// A file of the host cannot be used.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Something that came in as a template's file is none.
    #[error("bundle: {reason}")]
    Bundle {
        /// What is wrong.
        reason: String,
    },
}

fn tail(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

impl BuildError {
    pub(crate) fn input(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Input { field: field.into(), reason: reason.into() }
    }

    pub(crate) fn guest(doing: &'static str) -> impl FnOnce(GuestError) -> Self {
        move |source| Self::Guest { doing, source }
    }
}
