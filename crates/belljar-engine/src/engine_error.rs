//! Errors of engines.

use std::borrow::Cow;
use std::path::PathBuf;

use belljar_model::{EngineName, MountRefusal, SandboxId};

use crate::client::GuestError;

/// Placeholder for a command line of Belljar in [`EngineError::Layer::fix`].
pub const THIS_COMMAND: &str = "belljar …";

/// Failure to create, use or remove a sandbox. None of these is caused by the code that was to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The specification requests another engine.
    #[error("engine: {asked} was requested, but this engine is {this}")]
    WrongEngine {
        /// Engine in the specification.
        asked: EngineName,
        /// This engine.
        this: EngineName,
    },
    /// A required isolation layer is not available here. No sandbox is created; one without the layer must be requested by name.
    #[error("cannot enforce {layer}: {reason}\n  to fix it: {fix}")]
    Layer {
        /// The layer.
        layer: Cow<'static, str>,
        /// The obstacle.
        reason: String,
        /// The fix, as a hint.
        fix: String,
    },
    /// A step of the launch failed.
    #[error("cannot {step}")]
    Launch {
        /// The operation and its object.
        step: String,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// A mount is not allowed.
    #[error(transparent)]
    Mount(#[from] MountRefusal),
    /// A mount's source cannot be used.
    #[error("mounts: cannot use {path}")]
    MountSource {
        /// The requested source.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The guest refused or failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The sandbox ended prematurely.
    #[error("the sandbox ended unexpectedly: {how}")]
    Ended {
        /// The cause of the end, as far as known.
        how: String,
    },
    /// Parts of the sandbox could not be removed.
    #[error("{count} parts of sandbox {id} could not be removed")]
    Leftovers {
        /// The sandbox.
        id: SandboxId,
        /// Number of parts.
        count: u32,
        /// The cause for the first one.
        #[source]
        source: std::io::Error,
    },
    /// A file of the host cannot be read or written.
    #[error("cannot {action} {path}")]
    HostFile {
        /// `read` or `write`.
        action: Cow<'static, str>,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// This engine, or its configuration, does not support the request.
    #[error("{what}: refused by the engine {engine}: {reason}")]
    Unsupported {
        /// The request.
        what: Cow<'static, str>,
        /// The engine.
        engine: EngineName,
        /// The obstacle.
        reason: Cow<'static, str>,
    },
    /// The sandbox has no gateway, which every connection out of it needs.
    #[error(
        "network: the sandbox was created without one; create a sandbox with the network whitelist, which may allow nothing at first"
    )]
    NoNetwork,
    /// A limit cannot be lowered below the current usage.
    #[error(
        "{field}: {value} is less than the {in_use} in use; set a higher limit, or stop something in the sandbox first"
    )]
    LimitInUse {
        /// The limit: `memory` or `pids`.
        field: Cow<'static, str>,
        /// The requested value.
        value: String,
        /// The current usage.
        in_use: String,
    },
    /// A limit of a running sandbox could not be changed. All limits are unchanged.
    #[error("cannot set {field} of the running sandbox to {value}")]
    SetLimit {
        /// The limit: `memory`, `cpus` or `pids`.
        field: Cow<'static, str>,
        /// The requested value.
        value: String,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// Another sandbox already has the id.
    #[error("sandbox {id} already exists; launch with another id, or end that sandbox first")]
    IdInUse {
        /// The id.
        id: SandboxId,
    },
    /// No sandbox has this id.
    #[error("sandbox {id} not found")]
    NoSandbox {
        /// The id.
        id: SandboxId,
    },
    /// The process that holds the sandboxes could not be started or reached.
    #[error("cannot {step}; see its log {log}", log = .log.display())]
    Unreachable {
        /// The operation.
        step: String,
        /// The log of that process.
        log: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl EngineError {
    /// Returns what turns the cause of a failed step of the launch into its error.
    pub fn launch(step: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Launch { step: step.to_owned(), source }
    }
}
