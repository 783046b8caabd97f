//! Why a sandbox could not be made, used or removed.

use std::borrow::Cow;
use std::path::PathBuf;

use belljar_model::{EngineName, MountRefusal, SandboxId};

use crate::client::GuestError;

/// Why a sandbox could not be made, used or removed. None of these is the fault of the code that was to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The specification asks for another engine.
    #[error("engine: {asked} was asked for, and this is {this}")]
    WrongEngine {
        /// What the specification says.
        asked: EngineName,
        /// What this engine is.
        this: EngineName,
    },
    /// A wall cannot be built here. There is no sandbox then, and none without it unless asked for by name.
    #[error("cannot enforce {layer}: {reason}\n  to fix it: {fix}")]
    Layer {
        /// The wall.
        layer: Cow<'static, str>,
        /// What is in the way.
        reason: String,
        /// What to do about it.
        fix: String,
    },
    /// A step of the launch failed.
    #[error("cannot {step}")]
    Launch {
        /// What was tried, on what.
        step: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A mount is not allowed.
    #[error(transparent)]
    Mount(#[from] MountRefusal),
    /// A mount's source cannot be used.
    #[error("mounts: cannot use {path}")]
    MountSource {
        /// The source as asked for.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The guest refused or failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The sandbox ended before its time.
    #[error("the sandbox ended unexpectedly: {how}")]
    Ended {
        /// How, as far as it is known.
        how: String,
    },
    /// Something of the sandbox could not be removed.
    #[error("{count} parts of sandbox {id} could not be removed")]
    Left {
        /// Which sandbox.
        id: SandboxId,
        /// How many parts.
        count: u32,
        /// The reason for the first.
        #[source]
        source: std::io::Error,
    },
    /// A file of the host cannot be read or written.
    #[error("cannot {action} {path}")]
    HostFile {
        /// `read`, `write`.
        action: Cow<'static, str>,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// This engine, or this set-up of it, cannot do what was asked.
    #[error("{what}: the engine {engine} cannot do that here: {reason}")]
    Unsupported {
        /// What was asked.
        what: Cow<'static, str>,
        /// The engine.
        engine: EngineName,
        /// What is in the way.
        reason: Cow<'static, str>,
    },
    /// The sandbox has no gateway, without which nothing leads out of it.
    #[error(
        "network: the sandbox was made without one; make one whose network is whitelist, which may allow nothing at first"
    )]
    NoNetwork,
    /// A limit cannot become less than what is in use.
    #[error(
        "{field}: {value} is less than the {in_use} in use; give more, or end something in the sandbox first"
    )]
    LimitInUse {
        /// The limit: `memory` or `pids`.
        field: Cow<'static, str>,
        /// What it was to become.
        value: String,
        /// What is in use.
        in_use: String,
    },
    /// A limit of a running sandbox could not be changed. All limits are as they were before.
    #[error("cannot set {field} of the running sandbox to {value}")]
    SetLimit {
        /// The limit: `memory`, `cpus` or `pids`.
        field: Cow<'static, str>,
        /// What it was to become.
        value: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// Another sandbox has the id that one was to be launched with.
    #[error("the sandbox {id} already exists; launch with another id, or end that one first")]
    IdInUse {
        /// The id.
        id: SandboxId,
    },
    /// There is no sandbox with this id.
    #[error("there is no sandbox {id}")]
    NoSandbox {
        /// The id.
        id: SandboxId,
    },
    /// The process that holds the sandboxes could not be started or reached.
    #[error("cannot {step}; what it says is in {log}", log = .log.display())]
    Unreachable {
        /// What was tried.
        step: String,
        /// The log of that process.
        log: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
