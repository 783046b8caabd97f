//! What can go wrong with a case's files, and with the harness itself. A case that is not contained is neither.

use std::io;
use std::path::PathBuf;

/// A case that cannot be used as it is written.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A file or directory of it cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `case.toml` is not of the form.
    #[error("{path} is not of the form in tests/hostile/README.md")]
    Form {
        /// Which one.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// `case.toml` says something that does not go together.
    #[error("{path}: {reason}")]
    Sense {
        /// Which one.
        path: PathBuf,
        /// What is wrong, and what is allowed.
        reason: String,
    },
    /// Two cases have one id.
    #[error("the id {id} is given to {first} and to {second}; each case has its own")]
    Twice {
        /// The id.
        id: String,
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

/// The harness failed. That says nothing about the case.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A step that the host does for a case.
    #[error("cannot {step}")]
    Step {
        /// What, and on what.
        step: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The neighbour sandbox did not start.
    #[error("the neighbour sandbox does not answer: {said}")]
    Neighbour {
        /// What it said instead.
        said: String,
    },
    /// The binary ran nothing.
    #[error("nothing ran: {said}")]
    NothingRan {
        /// What it said.
        said: String,
    },
    /// What the binary printed is no result.
    #[error("{program} printed no result: {said}")]
    NoResult {
        /// The binary.
        program: PathBuf,
        /// What it printed, and how it ended.
        said: String,
    },
    /// `expect.py` failed by itself.
    #[error("expect.py failed ({status}): {said}")]
    Expect {
        /// How it ended.
        status: String,
        /// The end of what it said.
        said: String,
    },
    /// A binary without the feature `mutation` was given for the mutation check.
    #[error("{program} cannot take walls away: build it with --features mutation")]
    NoMutation {
        /// The binary.
        program: PathBuf,
    },
    /// A case of the self-test cannot be read.
    #[error(transparent)]
    Case(#[from] CaseError),
}

impl HarnessError {
    /// For `map_err`: which step failed.
    pub(crate) fn step(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Step { step, source }
    }
}
