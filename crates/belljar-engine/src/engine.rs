//! The engine interface: an engine creates sandboxes with a guest inside, and returns a connection to the guest.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_model::{
    EngineName, ImageReference, Isolation, LimitEvents, LimitsChange, NetworkPolicy, NetworkReport,
    SandboxId, SandboxSpec,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::ErrorCode;
use crate::capabilities::Capabilities;
use crate::client::{GuestClient, GuestError};
use crate::engine_error::EngineError;

/// Creates isolated sandboxes. Everything else is provided by the guest inside, and is therefore the same in each engine.
pub trait Engine: Send + Sync {
    /// Returns the engine's name.
    fn name(&self) -> EngineName;

    /// Returns the engine's capabilities here. They may change while the process runs, as the machine does.
    fn capabilities(&self) -> Capabilities;

    /// Returns the image of sandboxes that ask for none, if it has images of its own and the operator has named one.
    fn default_image(&self) -> Option<ImageReference> {
        None
    }

    /// Creates a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`]. After an error nothing of the sandbox is left, except after [`EngineError::Unreachable`]:
    /// then the response was lost, and [`Engine::survivors`] has the outcome.
    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>>;

    /// Returns the sandboxes of this engine that survive from earlier or other processes, or were launched by this one.
    /// None for an engine whose sandboxes end with their process.
    ///
    /// # Errors
    /// Fails if the process that holds them cannot be reached.
    fn survivors(&self) -> BoxFuture<'_, Result<Vec<Survivor>, EngineError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Ends what holds the survivors of this engine, if something does. Only if there are none, of any engine that may share it.
    ///
    /// # Errors
    /// Fails if it cannot be reached, or does not end.
    fn shut_down(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async { Ok(()) })
    }

    /// Opens the disk of a machine, whose file was at this path when the machine was created, to read all that has been written to it. The
    /// machine has to be frozen.
    ///
    /// # Errors
    /// Fails if nothing uses the disk, or if it cannot be read. An engine without machines refuses.
    fn open_disk(&self, disk: &Path) -> Result<File, EngineError> {
        Err(EngineError::Unsupported {
            what: format!("the disk {}", disk.display()).into(),
            engine: self.name(),
            reason: "it has no machines".into(),
        })
    }

    /// Takes over a survivor, with a new connection to its guest. Returns `None` if it does not exist (any more).
    ///
    /// # Errors
    /// Fails if it exists but cannot be reached.
    fn adopt<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Sandbox>, EngineError>> {
        let _ = id;
        Box::pin(async { Ok(None) })
    }
}

/// Parameters of a new sandbox.
#[derive(Debug, Clone, Copy)]
pub struct CreateRequest<'a> {
    /// Its specification.
    pub spec: &'a SandboxSpec,
    /// Its lifetime and owner.
    pub life: Life<'a>,
}

/// Lifetime of a sandbox.
#[derive(Debug, Clone, Copy)]
pub enum Life<'a> {
    /// For one run, with an id chosen by the engine. It has one connection, and ends when it is dropped or with this
    /// process.
    Run {
        /// Who speaks first.
        first: First,
    },
    /// Until it is ended explicitly, with an id that the caller has chosen and recorded before. Its guest accepts any
    /// number of connections ([`Sandbox::connect`]); `limits.timeout` of the spec is only the default timeout of
    /// executions. If the engine has survivors, the sandbox outlives this process and is not ended by dropping it; only
    /// [`Sandbox::stop`], [`Sandbox::kill`] and the deadline end it.
    Long {
        /// Its id.
        id: &'a SandboxId,
        /// The time after which the process that holds it ends it.
        deadline: Option<Duration>,
    },
}

/// What a sandbox for one run begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// Its guest is waited for.
    Guest,
    /// Calls to the guest are queued in the connection until it is up; a failed launch then appears as a guest that is gone, and
    /// [`Sandbox::explain`] returns the reason. [`crate::run`] does so itself.
    Call,
    /// The same, and the first call is the start of the only program that runs in it, which some engines start faster then.
    Start,
}

impl<'a> CreateRequest<'a> {
    /// Creates a request for a sandbox for one run, whose guest is waited for.
    #[must_use]
    pub const fn run(spec: &'a SandboxSpec) -> Self {
        Self { spec, life: Life::Run { first: First::Guest } }
    }

    /// Creates a request for a long-lived sandbox.
    #[must_use]
    pub const fn long_lived(id: &'a SandboxId, spec: &'a SandboxSpec, deadline: Option<Duration>) -> Self {
        Self { spec, life: Life::Long { id, deadline } }
    }
}

impl<'a> From<&'a SandboxSpec> for CreateRequest<'a> {
    fn from(spec: &'a SandboxSpec) -> Self {
        Self::run(spec)
    }
}

/// A sandbox held by its engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    /// Its id.
    pub id: SandboxId,
    /// True if it is frozen.
    pub is_frozen: bool,
    /// The time until its deadline, if it has one.
    pub deadline: Option<Duration>,
    /// The cause of its end, if it has ended: it is then reported for the last time, and cannot be adopted.
    pub ended: Option<String>,
}

/// A running sandbox. One created for one run ([`Life::Run`]) also ends on drop, but only [`Sandbox::stop`] reports
/// whether that worked.
///
/// Sandboxes can be shared. Calls to the guest that are in flight when it is ended fail with [`GuestError::Gone`].
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// The isolation that is actually enforced.
    pub isolation: Isolation,
    /// The home directory inside, for files and as the working directory of programs.
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

/// Reports of a sandbox's gateway: its records, in order, and its totals.
pub type NetworkLog = BoxStream<'static, std::io::Result<NetworkReport>>;

/// The host's side of a sandbox.
pub trait Walls: Send + Sync {
    /// Returns the resource usage so far, as far as the engine knows it.
    fn usage(&self) -> BoxFuture<'_, Usage>;

    /// Returns the fields of the usage that only grow, which may be cheaper to read; others may be unknown.
    fn counters(&self) -> BoxFuture<'_, Usage> {
        self.usage()
    }

    /// Changes limits that are enforced from outside: all of those named, or none.
    ///
    /// # Errors
    /// [`EngineError::LimitInUse`], [`EngineError::SetLimit`]; [`EngineError::Unsupported`] without cgroups.
    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Replaces the network policy. Connections that the new one does not allow are closed immediately.
    ///
    /// # Errors
    /// [`EngineError::NoNetwork`].
    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>>;

    /// Returns the decisions about connections after record `after`, as far as they are retained; with `follow` also
    /// future ones.
    ///
    /// # Errors
    /// See [`Walls::set_network`].
    fn network_log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>>;

    /// Sets the deadline, counted from now, at which the process that holds the sandbox ends it; `None` removes it.
    ///
    /// # Errors
    /// Fails if the process that holds them cannot be reached.
    fn set_deadline(&self, after: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Freezes everything inside, including the guest, and returns once it is frozen. No effect if it already is.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] without cgroups; otherwise the kernel's error. The sandbox keeps running then.
    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Thaws everything inside.
    ///
    /// # Errors
    /// See [`Walls::freeze`].
    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Moves a pre-warmed interpreter into the sandbox, for its next Python context: a fork of the parent of this
    /// tenant (`owner`), with the modules `imports` loaded. Without one, contexts start as plain processes.
    ///
    /// # Errors
    /// Returns the reason why none was moved.
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
    /// [`EngineError::Unsupported`] for a sandbox whose guest has a single connection and ends with it.
    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>>;

    /// Records the first response of the guest.
    fn record_first_answer(&self) {}

    /// Returns the duration of each phase of the launch so far, in order.
    fn phases(&self) -> Vec<(&'static str, Duration)> {
        Vec::new()
    }

    /// Returns why the guest is gone or does not answer, if the launch failed, the sandbox has ended or somebody else has paused it. Waits a
    /// moment for the reason, which may arrive after the loss of the connection.
    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>>;

    /// Kills everything in the sandbox without waiting. The usage is still available until [`Walls::stop`], which has
    /// to follow.
    fn kill(&self);

    /// Kills everything in the sandbox and removes everything that it held, then returns. May be called repeatedly and
    /// concurrently.
    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>>;

    /// Waits for the end of the sandbox; returns how it ended.
    fn wait_ended(&self) -> BoxFuture<'_, String>;
}

/// Resource usage of a sandbox. `None` means unknown in this engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Current memory usage in bytes, including files in memory and the page cache.
    pub memory_bytes: Option<u64>,
    /// Current memory usage of its gateway in bytes, which does not count toward the sandbox's limit.
    pub gateway_memory_bytes: Option<u64>,
    /// Peak memory usage, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Current number of processes and threads, without the guest's own.
    pub pids: Option<u32>,
    /// Processor time.
    pub cpu: Option<Duration>,
    /// Number of processes killed by the OOM killer.
    pub oom_kills: u64,
    /// Number of forks refused by the process limit.
    pub pids_denied: u64,
}

impl Usage {
    /// Returns the limits hit since `before`.
    #[must_use]
    pub fn limit_events_since(&self, before: &Self) -> LimitEvents {
        LimitEvents {
            oom_kills: self.oom_kills.saturating_sub(before.oom_kills),
            pids_denied: self.pids_denied.saturating_sub(before.pids_denied),
        }
    }
}

impl Sandbox {
    /// Assembles a sandbox from the parts that an engine has built.
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
    /// Returns the reason why none was moved.
    pub async fn offer_interpreter(&self, owner: &str, imports: &[String]) -> Result<(), String> {
        self.walls.offer_interpreter(owner, imports).await
    }

    /// Reads a file of at most `max_bytes`. The path is absolute, or relative to the home directory.
    ///
    /// # Errors
    /// [`EngineError::Guest`] if the file does not exist or is larger.
    pub async fn read_file(&self, path: impl AsRef<Path>, max_bytes: usize) -> Result<Bytes, EngineError> {
        Ok(self.guest.read_all(path.as_ref(), max_bytes).await?)
    }

    /// Writes a file, creating its parent directories. The path is absolute, or relative to the home directory.
    ///
    /// # Errors
    /// [`EngineError::Guest`] if it cannot be written there.
    pub async fn write_file(
        &self,
        path: impl AsRef<Path>,
        content: impl Into<Bytes>,
    ) -> Result<(), EngineError> {
        self.guest.write(path.as_ref(), 0o644, content.into()).await?;
        Ok(())
    }

    /// Returns the client of the guest. Its protocol messages ([`crate::v1`]) are not part of the embedding API and may
    /// change.
    #[doc(hidden)]
    #[must_use]
    pub fn guest(&self) -> &GuestClient {
        &self.guest
    }

    /// Returns the processor time, and the numbers of kills and refused forks, so far; other fields may be unknown.
    pub async fn counters(&self) -> Usage {
        self.walls.counters().await
    }

    /// Returns the resource usage so far.
    pub async fn usage(&self) -> Usage {
        self.walls.usage().await
    }

    /// Changes limits of the running sandbox: all of those named, or none.
    ///
    /// # Errors
    /// Fails if a limit is below the current usage; see [`Walls::set_limits`].
    pub async fn set_limits(&self, change: &LimitsChange) -> Result<(), EngineError> {
        self.walls.set_limits(change).await
    }

    /// Replaces the network policy, without checking it.
    ///
    /// # Errors
    /// See [`Walls::set_network`].
    pub async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), EngineError> {
        self.walls.set_network(policy).await
    }

    /// Returns the decisions about its connections after record `after`; with `follow` also future ones, until the
    /// sandbox ends.
    ///
    /// # Errors
    /// See [`Walls::network_log`].
    pub async fn network_log(&self, after: u64, follow: bool) -> Result<NetworkLog, EngineError> {
        self.walls.network_log(after, follow).await
    }

    /// Sets the deadline at which the sandbox is ended from outside, even if this process is gone by then; `None`
    /// removes it.
    ///
    /// # Errors
    /// See [`Walls::set_deadline`].
    pub async fn set_deadline(&self, after: Option<Duration>) -> Result<(), EngineError> {
        self.walls.set_deadline(after).await
    }

    /// Freezes everything inside, including the guest: calls to it wait until [`Sandbox::thaw`].
    ///
    /// # Errors
    /// See [`Walls::freeze`].
    pub async fn freeze(&self) -> Result<(), EngineError> {
        self.walls.freeze().await
    }

    /// Thaws everything inside.
    ///
    /// # Errors
    /// See [`Walls::thaw`].
    pub async fn thaw(&self) -> Result<(), EngineError> {
        self.walls.thaw().await
    }

    /// Opens another connection to the guest. A failed connection does not affect the others or the sandbox.
    ///
    /// # Errors
    /// See [`Walls::connect`].
    #[doc(hidden)]
    pub async fn connect(&self) -> Result<GuestClient, EngineError> {
        self.walls.connect().await
    }

    /// Returns the duration of each phase of the start, in order; `guest` is the time until its first response.
    #[must_use]
    pub fn timings(&self) -> Vec<(&'static str, Duration)> {
        self.walls.phases()
    }

    /// Records the first response of the guest.
    pub(crate) fn record_first_answer(&self) {
        self.walls.record_first_answer();
    }

    /// Kills everything inside without waiting; the guest is unreachable afterwards, but the usage is still available.
    /// [`Sandbox::stop`] has to follow.
    pub fn kill(&self) {
        self.walls.kill();
    }

    /// Replaces an error by its cause, if that is a sandbox that failed to start, has ended or was stopped by somebody else.
    pub async fn explain(&self, error: EngineError) -> EngineError {
        match error {
            EngineError::Guest(
                GuestError::Gone(_)
                | GuestError::Unreachable(_)
                | GuestError::Protocol { .. }
                | GuestError::Refused { code: ErrorCode::DeadlineExceeded, .. },
            ) => self.walls.explain_end().await.unwrap_or(error),
            error => error,
        }
    }

    /// Waits until the sandbox ends, by itself or on request; returns how it ended.
    pub async fn wait_ended(&self) -> String {
        self.walls.wait_ended().await
    }

    /// Ends the sandbox and removes everything that it held. May be called repeatedly and concurrently.
    ///
    /// # Errors
    /// Fails if something could not be removed.
    pub async fn stop(&self) -> Result<(), EngineError> {
        self.walls.stop().await
    }
}
