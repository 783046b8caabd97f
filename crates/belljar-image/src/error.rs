//! Errors of template definitions and of builds.

use std::path::PathBuf;

use belljar_engine::{EngineError, GuestError};

/// An error in the text of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {field}: {reason}")]
pub struct DefinitionError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key concerned, such as `step.2.pip`; `template` is the text as a whole.
    pub field: String,
    /// The error, and what is allowed.
    pub reason: String,
}

/// The reason why a template was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The definition is invalid.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// An input besides the definition is invalid or missing.
    #[error("{field}: {reason}")]
    Input {
        /// The input or key concerned.
        field: String,
        /// The error, and how to fix it.
        reason: String,
    },
    /// A step failed; the message names it.
    #[error("step {number} of {total} ({kind}): {command}: {how}{}", tail(.last_lines))]
    Step {
        /// The number of the step, from 1; 0 is the base.
        number: usize,
        /// The number of steps.
        total: usize,
        /// The kind of the step, such as `pip`.
        kind: &'static str,
        /// A summary of the command.
        command: String,
        /// Description of the command's end.
        how: String,
        /// Exit code, unless a signal ended the command.
        code: Option<i32>,
        /// The last lines of its output.
        last_lines: Vec<String>,
    },
    /// A sandbox of the build failed.
    #[error("the sandbox of the build failed")]
    Engine(#[from] EngineError),
    /// The guest in a sandbox of the build failed.
    #[error("the sandbox of the build failed while {doing}")]
    Guest {
        /// The operation in progress.
        doing: &'static str,
        /// The cause.
        #[source]
        source: GuestError,
    },
    /// An operation on a file of the host failed.
    #[error("cannot {action} {path}")]
    File {
        /// The operation, such as `open`.
        action: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The disk of the host has no room for the files of the build.
    #[error("not enough disk for the build: {free_mib} MiB are free, and {room_mib} MiB must stay free")]
    Full {
        /// Free space, in MiB.
        free_mib: u64,
        /// Space that must stay free, in MiB.
        room_mib: u64,
    },
    /// A received file is not a valid template bundle.
    #[error("bundle: {reason}")]
    Bundle {
        /// The error.
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

    /// Attributes to a step what it has caused itself: its sandbox has ended, or lacks what the step or finishing the tree needs.
    pub(crate) fn in_step(self, number: usize, total: usize, kind: &'static str, command: String) -> Self {
        let how = match self {
            Self::Guest { doing, source }
                if matches!(source, GuestError::Refused { .. } | GuestError::NotRegular { .. }) =>
            {
                format!("{doing} failed: {source}")
            }
            Self::Engine(EngineError::Ended { how }) => format!("its sandbox ended: {how}"),
            other => return other,
        };
        Self::Step { number, total, kind, command, how, code: None, last_lines: Vec::new() }
    }
}
