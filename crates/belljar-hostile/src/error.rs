//! Errors of a case's files and of the harness itself. A case that is not contained is neither.

use std::io;
use std::path::PathBuf;

/// Why a case cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A file or directory of the case cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// `case.toml` cannot be parsed.
    #[error("cannot parse {path}; tests/hostile/README.md describes the format")]
    Syntax {
        /// The path.
        path: PathBuf,
        /// The position and the reason.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// `case.toml` is inconsistent.
    #[error("{path}: {reason}")]
    Invalid {
        /// The path.
        path: PathBuf,
        /// The mistake, and what is allowed.
        reason: String,
    },
    /// Two cases have the same id.
    #[error("duplicate id {id}: in {first} and {second}")]
    DuplicateId {
        /// The id.
        id: String,
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

/// A failure of the harness, which says nothing about the case.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A step on the host failed.
    #[error("cannot {step}")]
    Step {
        /// The step and its object.
        step: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The neighbour sandbox did not start.
    #[error("the neighbour sandbox does not answer: {said}")]
    Neighbour {
        /// Its output.
        said: String,
    },
    /// The binary could not run the program.
    #[error("nothing ran: {said}")]
    NothingRan {
        /// Its output.
        said: String,
    },
    /// The binary printed no valid result.
    #[error("{program} printed no result: {said}")]
    NoResult {
        /// The binary.
        program: PathBuf,
        /// Its output and exit code.
        said: String,
    },
    /// `expect.py` failed.
    #[error("expect.py failed ({status}): {said}")]
    Expect {
        /// Its exit status.
        status: String,
        /// The end of its output.
        said: String,
    },
    /// The binary for mutations was built without the feature `mutation`.
    #[error("{program} cannot disable walls: build it with --features mutation")]
    NoMutation {
        /// The binary.
        program: PathBuf,
    },
    /// A case of the self-test cannot be read.
    #[error(transparent)]
    Case(#[from] CaseError),
}

impl HarnessError {
    /// Returns a function for `map_err` that names the failed step.
    pub(crate) fn step(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Step { step, source }
    }
}
