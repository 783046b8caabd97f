//! What an engine is: it builds walls with a guest inside, and hands back a connection to it.

use std::path::PathBuf;
use std::time::Duration;

use belljar_model::{EngineKind, Isolation, Memory, MountRefusal, SandboxId, SandboxSpec};
use futures::future::BoxFuture;

use crate::client::{GuestClient, GuestError};

/// Builds walls. Everything that a sandbox can do beyond that is the guest's, and so the same in each engine.
pub trait Engine: Send + Sync {
    /// Which engine this is.
    fn kind(&self) -> EngineKind;

    /// Makes a sandbox. When this returns an error, nothing of it is left.
    fn create<'a>(&'a self, spec: &'a SandboxSpec) -> BoxFuture<'a, Result<Sandbox, EngineError>>;

    /// Makes a sandbox without waiting for its guest: what is asked of it waits in the connection, so that the guest
    /// finds it there when it comes up. A launch that fails after this shows as a guest that is gone, and
    /// [`Sandbox::explain`] says why. [`crate::run`] sees to that itself.
    fn begin<'a>(&'a self, spec: &'a SandboxSpec) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        self.create(spec)
    }
}

/// A running sandbox. Dropping it ends it as well, but only [`Sandbox::stop`] tells whether that worked.
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// The isolation that is really in force.
    pub isolation: Isolation,
    /// The home directory inside, where files go and programs start.
    pub home: PathBuf,
    guest: GuestClient,
    walls: Box<dyn Walls>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Sandbox")
            .field("id", &self.id)
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

/// What holds a sandbox from outside.
pub trait Walls: Send + Sync {
    /// What the sandbox has used so far, as far as its engine can tell.
    fn usage(&self) -> Usage;

    /// Changes the memory limit, where it is enforced from outside: a compiler may need more than its program.
    ///
    /// # Errors
    /// The kernel's reason; a limit below what is in use is refused.
    fn set_memory(&self, memory: Memory) -> Result<(), EngineError>;

    /// Notes that the guest has answered for the first time.
    fn answered(&self) {}

    /// How long each phase of the launch took so far, in order.
    fn phases(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
    }

    /// Why there is no guest, when there is none because the launch failed or the sandbox has ended. Waits a moment for
    /// the reason, which may come after the connection has broken.
    fn gone(&self) -> BoxFuture<'_, Option<EngineError>>;

    /// Ends everything in the sandbox and does not wait for that. What was used can still be asked.
    fn kill(&self);

    /// Ends everything in the sandbox and removes all that it held. Returns when that is done.
    fn stop(self: Box<Self>) -> BoxFuture<'static, Result<(), EngineError>>;

    /// Waits until the engine sees the sandbox end by itself, and says how.
    fn ended(&self) -> BoxFuture<'_, String>;
}

/// What a sandbox has used. `None` is not known in this engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most memory in use at once, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Processor time.
    pub cpu: Option<Duration>,
    /// Processes that were killed because memory ran out.
    pub oom_kills: u64,
    /// Forks that the process limit refused.
    pub pids_denied: u64,
}

impl Sandbox {
    /// Puts together what an engine has built.
    #[must_use]
    pub fn new(
        id: SandboxId,
        isolation: Isolation,
        home: PathBuf,
        guest: GuestClient,
        walls: Box<dyn Walls>,
    ) -> Self {
        Self { id, isolation, home, guest, walls }
    }

    /// The guest: processes, files, ports.
    #[must_use]
    pub fn guest(&self) -> &GuestClient {
        &self.guest
    }

    /// What it has used so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.walls.usage()
    }

    /// Changes the memory limit.
    ///
    /// # Errors
    /// The kernel's reason; a limit below what is in use is refused.
    pub fn set_memory(&self, memory: Memory) -> Result<(), EngineError> {
        self.walls.set_memory(memory)
    }

    /// How long each phase of the start took, in order; `guest` is the time until its first answer.
    #[must_use]
    pub fn timings(&self) -> Vec<(&'static str, Duration)> {
        self.walls.phases()
    }

    /// The guest has answered.
    pub(crate) fn answered(&self) {
        self.walls.answered();
    }

    /// Ends everything inside and does not wait for that; nothing can be asked of the guest any more.
    pub(crate) fn kill(&self) {
        self.walls.kill();
    }

    /// The better reason for an error, where a sandbox that could not start or has ended is behind it.
    pub async fn explain(&self, error: EngineError) -> EngineError {
        match error {
            EngineError::Guest(GuestError::Gone(_) | GuestError::Protocol { .. }) => {
                self.walls.gone().await.unwrap_or(error)
            }
            error => error,
        }
    }

    /// Waits until it ends by itself, and says how.
    pub async fn ended(&self) -> String {
        self.walls.ended().await
    }

    /// Ends it and removes all that it held.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn stop(self) -> Result<(), EngineError> {
        let Self { guest, walls, .. } = self;
        drop(guest);
        walls.stop().await
    }
}

/// Why a sandbox could not be made, used or removed. None of these is the fault of the code that was to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The specification asks for another engine.
    #[error("engine: {asked} was asked for, and this is {this}")]
    WrongEngine {
        /// What the specification says.
        asked: EngineKind,
        /// What this engine is.
        this: EngineKind,
    },
    /// A wall cannot be built here. There is no sandbox then, and none without it unless asked for by name.
    #[error("cannot enforce {layer}: {reason}\n  to fix it: {fix}")]
    Layer {
        /// The wall.
        layer: &'static str,
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
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
