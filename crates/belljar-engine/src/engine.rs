//! What an engine is: it builds walls with a guest inside, and hands back a connection to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_model::{
    EngineName, Isolation, LimitsChange, NetworkPolicy, NetworkRecord, SandboxId, SandboxSpec,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::capabilities::Capabilities;
use crate::client::{GuestClient, GuestError};
use crate::engine_error::EngineError;

/// Builds walls. Everything that a sandbox can do beyond that is the guest's, and so the same in each engine.
pub trait Engine: Send + Sync {
    /// The engine's name.
    fn name(&self) -> EngineName;

    /// What it can do here. It may change while the process runs, as the machine does.
    fn capabilities(&self) -> Capabilities;

    /// Makes a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`]. When this returns an error, nothing of the sandbox is left, unless it says
    /// [`EngineError::Unreachable`]: then the answer was lost, and [`Engine::survivors`] tells.
    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>>;

    /// The sandboxes of this engine that live on from earlier or other processes, or have been launched by this one. An
    /// engine whose sandboxes end with their process has none.
    ///
    /// # Errors
    /// Whoever holds them cannot be asked.
    fn survivors(&self) -> BoxFuture<'_, Result<Vec<Survivor>, EngineError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Takes over a survivor, with a fresh connection to its guest. `None` is one that is not there, or not any more.
    ///
    /// # Errors
    /// It is there and cannot be reached.
    fn adopt<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Sandbox>, EngineError>> {
        let _ = id;
        Box::pin(async { Ok(None) })
    }
}

/// A sandbox to be made.
#[derive(Debug, Clone, Copy)]
pub struct CreateRequest<'a> {
    /// What it is to be.
    pub spec: &'a SandboxSpec,
    /// How long it is to live, and for whom.
    pub life: Life<'a>,
}

/// How long a sandbox is to live.
#[derive(Debug, Clone, Copy)]
pub enum Life<'a> {
    /// For one run, under an id that the engine chooses. It has one connection, and ends when it is dropped or with this process.
    Run {
        /// Whether to wait for its guest. If not, what is asked of the guest waits in the connection, so that it finds it there
        /// when it comes up; a launch that fails then shows as a guest that is gone, and [`Sandbox::explain`] says why.
        /// [`crate::run`] sees to that itself.
        wait: bool,
    },
    /// Until somebody ends it, under an id that the caller has chosen, and noted before. Its guest takes any number of
    /// connections ([`Sandbox::connect`]); `limits.timeout` of the spec is only what an execution gets that names no time of its
    /// own. Where the engine has survivors, the sandbox goes on without this process, also when it is dropped; only
    /// [`Sandbox::stop`], [`Sandbox::kill`] and the deadline end it.
    Long {
        /// Its id.
        id: &'a SandboxId,
        /// The time after which whoever holds it ends it.
        deadline: Option<Duration>,
    },
}

impl<'a> CreateRequest<'a> {
    /// A sandbox for one run, whose guest is waited for.
    #[must_use]
    pub const fn run(spec: &'a SandboxSpec) -> Self {
        Self { spec, life: Life::Run { wait: true } }
    }

    /// A long-lived sandbox.
    #[must_use]
    pub const fn long(id: &'a SandboxId, spec: &'a SandboxSpec, deadline: Option<Duration>) -> Self {
        Self { spec, life: Life::Long { id, deadline } }
    }
}

impl<'a> From<&'a SandboxSpec> for CreateRequest<'a> {
    fn from(spec: &'a SandboxSpec) -> Self {
        Self::run(spec)
    }
}

/// A sandbox that its engine holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    /// Its id.
    pub id: SandboxId,
    /// Whether everything in it stands still.
    pub is_frozen: bool,
    /// The time until its deadline, if it has one.
    pub deadline: Option<Duration>,
    /// How it has ended, if it has: it is then told for the last time, and cannot be adopted.
    pub ended: Option<String>,
}

/// A running sandbox. One that was made for one run ([`Life::Run`]) ends when it is dropped as well, but only
/// [`Sandbox::stop`] tells whether that worked.
///
/// It may be shared. Calls to the guest that are under way when somebody ends it fail as [`GuestError::Gone`].
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

/// Records of a sandbox's network, in their order.
pub type NetworkLog = BoxStream<'static, std::io::Result<NetworkRecord>>;

/// What holds a sandbox from outside.
pub trait Walls: Send + Sync {
    /// What the sandbox has used so far, as far as its engine can tell.
    fn usage(&self) -> BoxFuture<'_, Usage>;

    /// Changes limits that are enforced from outside: all of those named, or none.
    ///
    /// # Errors
    /// [`EngineError::LimitInUse`], [`EngineError::SetLimit`]; [`EngineError::Unsupported`] where no control group holds them.
    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Replaces the network policy. Connections that the new one does not allow are cut at once.
    ///
    /// # Errors
    /// [`EngineError::NoNetwork`].
    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>>;

    /// What has been decided about connections, after record `after`, as far as it is kept; with `follow` also what will be.
    ///
    /// # Errors
    /// As [`Walls::set_network`].
    fn network_log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>>;

    /// Moves the time at which whoever holds the walls ends the sandbox, counted from now; `None` takes it away.
    ///
    /// # Errors
    /// Whoever holds them cannot be asked.
    fn set_deadline(&self, after: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Makes everything inside stand still, the guest included, and returns when it does. One that stands still already
    /// stays so.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] without control groups; else the kernel's reason. It goes on then.
    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Lets everything inside go on.
    ///
    /// # Errors
    /// As [`Walls::freeze`].
    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Has an interpreter that is warm move into the sandbox, for the next context of Python in it: a fork of the one that this
    /// tenant (`owner`) has ready, with the modules `imports` loaded. Without one, contexts start as any process does.
    ///
    /// # Errors
    /// Why there is none, as a sentence.
    fn offer_interpreter<'a>(
        &'a self,
        owner: &'a str,
        imports: &'a [String],
    ) -> BoxFuture<'a, Result<(), String>> {
        let _ = (owner, imports);
        Box::pin(async { Err("this engine has no warm interpreters".to_owned()) })
    }

    /// Opens another connection to the guest.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a sandbox whose guest has one connection and ends with it.
    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>>;

    /// Notes that the guest has answered for the first time.
    fn answered(&self) {}

    /// How long each phase of the launch took so far, in order.
    fn phases(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
    }

    /// Why there is no guest, when there is none because the launch failed or the sandbox has ended. Waits a moment for
    /// the reason, which may come after the connection has broken.
    fn gone(&self) -> BoxFuture<'_, Option<EngineError>>;

    /// Ends everything in the sandbox and does not wait for that. What was used can still be asked, until
    /// [`Walls::stop`], which has to follow.
    fn kill(&self);

    /// Ends everything in the sandbox and removes all that it held. Returns when that is done. May be called again, and by
    /// several at once.
    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Waits until the engine sees the sandbox end, and says how.
    fn ended(&self) -> BoxFuture<'_, String>;
}

/// What a sandbox has used. `None` is not known in this engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory in use now, in bytes: files in memory and the cache of files included.
    pub memory_bytes: Option<u64>,
    /// The most memory in use at once, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Processes and threads now, the guest's own not counted.
    pub pids: Option<u32>,
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

    /// See [`Walls::offer_interpreter`].
    ///
    /// # Errors
    /// Why there is none.
    pub async fn offer_interpreter(&self, owner: &str, imports: &[String]) -> Result<(), String> {
        self.walls.offer_interpreter(owner, imports).await
    }

    /// Reads a file of at most `max_bytes`. The path is absolute, or relative to the home directory.
    ///
    /// # Errors
    /// [`EngineError::Guest`]: there is no such file, or it is larger.
    pub async fn read_file(&self, path: impl AsRef<Path>, max_bytes: usize) -> Result<Bytes, EngineError> {
        Ok(self.guest.read_all(path.as_ref(), max_bytes).await?)
    }

    /// Writes a file, with the directories above it. The path is absolute, or relative to the home directory.
    ///
    /// # Errors
    /// [`EngineError::Guest`]: it cannot be written there.
    pub async fn write_file(
        &self,
        path: impl AsRef<Path>,
        content: impl Into<Bytes>,
    ) -> Result<(), EngineError> {
        self.guest.write(path.as_ref(), 0o644, content.into()).await?;
        Ok(())
    }

    /// The guest, in the messages of its protocol ([`crate::v1`]), which are no part of the embedding API and change with it.
    #[doc(hidden)]
    #[must_use]
    pub fn guest(&self) -> &GuestClient {
        &self.guest
    }

    /// What it has used so far.
    pub async fn usage(&self) -> Usage {
        self.walls.usage().await
    }

    /// Changes limits while it runs: all of those named, or none.
    ///
    /// # Errors
    /// A limit below what is in use is refused by name; see [`Walls::set_limits`].
    pub async fn set_limits(&self, change: &LimitsChange) -> Result<(), EngineError> {
        self.walls.set_limits(change).await
    }

    /// Replaces its network policy, which is not checked against anything here.
    ///
    /// # Errors
    /// See [`Walls::set_network`].
    pub async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), EngineError> {
        self.walls.set_network(policy).await
    }

    /// What has been decided about its connections, after record `after`; with `follow` also what will be, until it ends.
    ///
    /// # Errors
    /// See [`Walls::network_log`].
    pub async fn network_log(&self, after: u64, follow: bool) -> Result<NetworkLog, EngineError> {
        self.walls.network_log(after, follow).await
    }

    /// Moves the time at which it is ended from outside, also when this process is gone by then; `None` takes it away.
    ///
    /// # Errors
    /// See [`Walls::set_deadline`].
    pub async fn set_deadline(&self, after: Option<Duration>) -> Result<(), EngineError> {
        self.walls.set_deadline(after).await
    }

    /// Makes everything inside stand still, the guest included: calls to it wait until [`Sandbox::thaw`].
    ///
    /// # Errors
    /// See [`Walls::freeze`].
    pub async fn freeze(&self) -> Result<(), EngineError> {
        self.walls.freeze().await
    }

    /// Lets everything inside go on.
    ///
    /// # Errors
    /// See [`Walls::thaw`].
    pub async fn thaw(&self) -> Result<(), EngineError> {
        self.walls.thaw().await
    }

    /// Opens another connection to the guest. One that breaks leaves the others and the sandbox as they are.
    ///
    /// # Errors
    /// See [`Walls::connect`].
    #[doc(hidden)]
    pub async fn connect(&self) -> Result<GuestClient, EngineError> {
        self.walls.connect().await
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

    /// Ends everything inside and does not wait for that; nothing can be asked of the guest any more, but what was used
    /// still can. [`Sandbox::stop`] has to follow.
    pub fn kill(&self) {
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

    /// Waits until it ends, by itself or because somebody ended it, and says how.
    pub async fn ended(&self) -> String {
        self.walls.ended().await
    }

    /// Ends it and removes all that it held. May be called again, and by several at once.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn stop(&self) -> Result<(), EngineError> {
        self.walls.stop().await
    }
}
