//! Host side of a sandbox: its container, and its end.
//!
//! ```text
//!  running ── its guest ends, the deadline, kill ──► ended ── stop ──► removed
//!     └──────────────────── stop ─────────────────────────────────────►
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use belljar_engine::{EngineError, GuestClient, NetworkLog, Usage, Walls, reconnect};
use belljar_linux::{CgroupUsage, ContainerGroups};
use belljar_model::{ByteSize, LimitsChange, NetworkPolicy, SandboxId};
use bollard::errors::Error;
use bollard::models::ContainerUpdateBody;
use bollard::query_parameters::{
    KillContainerOptionsBuilder, RemoveContainerOptionsBuilder, StatsOptionsBuilder,
    WaitContainerOptionsBuilder,
};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::container::own_pids_now;
use crate::daemon::{Daemon, failed, status};
use crate::reach::Reach;
use crate::record::{Record, Records};

/// Time after the deadline at which the guest ends by itself, if no host has ended it.
const GUEST_SLACK: Duration = Duration::from_secs(5);

/// Maximum time for the daemon to remove a container.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval at which the daemon is asked again while it removes a container.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which a daemon that cannot be reached is asked again.
const DAEMON_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum time for the end of a sandbox to be known after its connection broke.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Statuses of the daemon's answers.
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// Default and minimum of a container's share of the processors.
const CPU_SHARES: (u16, u16) = (1024, 2);

/// What is known of a sandbox from its launch.
pub(crate) struct Launched {
    pub(crate) id: SandboxId,
    /// Id of the container.
    pub(crate) container: String,
    pub(crate) reach: Reach,
    pub(crate) secret: String,
    /// Its control groups, if it is on this machine.
    pub(crate) groups: Option<ContainerGroups>,
    pub(crate) own_pids: u32,
    /// Where a server records it. Without it the sandbox ends with this handle.
    pub(crate) records: Option<Records>,
    pub(crate) phases: Vec<(&'static str, Duration)>,
}

/// State of a sandbox.
pub(crate) struct Held {
    pub(crate) facts: Launched,
    daemon: Daemon,
    runtime: Handle,
    /// How it ended.
    ended: watch::Sender<Option<String>>,
    deadline: watch::Sender<Option<Instant>>,
    /// Set by the deadline, and by a kill, as the reason of the end.
    cause: OnceLock<&'static str>,
    last_usage: Mutex<Usage>,
    /// The client to which the guest's own deadline is told.
    guest: OnceLock<GuestClient>,
    /// Whether everything is removed.
    removed: tokio::sync::Mutex<bool>,
    is_removing: AtomicBool,
}

/// Handle of one sandbox.
pub(crate) struct DockerWalls(Arc<Held>);

impl DockerWalls {
    /// Follows a container that has been started.
    pub(crate) fn new(daemon: Daemon, facts: Launched) -> Self {
        let held = Arc::new(Held {
            facts,
            daemon,
            runtime: Handle::current(),
            ended: watch::Sender::new(None),
            deadline: watch::Sender::new(None),
            cause: OnceLock::new(),
            last_usage: Mutex::default(),
            guest: OnceLock::new(),
            removed: tokio::sync::Mutex::new(false),
            is_removing: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&held).follow());
        tokio::spawn(Arc::clone(&held).enforce_deadline());
        Self(held)
    }

    /// Sets the client to which the guest's own deadline is told.
    pub(crate) fn set_guest(&self, guest: GuestClient) {
        let _ = self.0.guest.set(guest);
    }

    /// Ends the sandbox after this time; `None` is never. The guest is not told.
    pub(crate) fn keep_deadline(&self, after: Option<Duration>) {
        self.0.keep_deadline(after);
    }
}

/// Returns the guest's own deadline for one that its host enforces, in milliseconds; 0 is none.
pub(crate) fn guest_deadline_ms(after: Option<Duration>) -> u64 {
    let millis =
        |after: Duration| u64::try_from(after.saturating_add(GUEST_SLACK).as_millis()).unwrap_or(u64::MAX);
    after.map_or(0, millis)
}

impl Drop for DockerWalls {
    fn drop(&mut self) {
        let held = Arc::clone(&self.0);
        if held.facts.records.is_none() && !held.is_removing.load(Ordering::Acquire) {
            // If the runtime ends before, the guest does so as well, as its connection breaks.
            self.0.runtime.spawn(async move { held.remove().await });
        }
    }
}

impl Held {
    /// Waits for the end of the container.
    async fn follow(self: Arc<Self>) {
        let code = loop {
            let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
            let waited = self.daemon.client.wait_container(&self.facts.container, Some(options)).next().await;
            match waited {
                Some(Ok(ended)) => break Some(ended.status_code),
                Some(Err(Error::DockerContainerWaitError { code, .. })) => break Some(code),
                Some(Err(error)) if status(&error) == Some(NOT_FOUND) => break None,
                // The daemon is being restarted, and the container may go on.
                Some(Err(_)) | None => tokio::time::sleep(DAEMON_INTERVAL).await,
            }
        };
        let how = match (self.cause.get(), code) {
            (Some(cause), _) => (*cause).to_owned(),
            (None, Some(0)) => "its guest has ended".to_owned(),
            (None, Some(137)) => "its first process was killed".to_owned(),
            (None, Some(code)) => format!("its guest ended with the status {code}"),
            (None, None) => "its container is gone".to_owned(),
        };
        self.ended.send_replace(Some(how));
        if self.facts.records.is_none() {
            // A failure is reported by whoever stops the sandbox.
            let _ = self.remove().await;
        }
    }

    /// Kills the container at its deadline, which may change meanwhile. Ends with the container.
    async fn enforce_deadline(self: Arc<Self>) {
        let (mut deadlines, mut ended) = (self.deadline.subscribe(), self.ended.subscribe());
        loop {
            let deadline = *deadlines.borrow_and_update();
            let passed = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => break,
                changed = deadlines.changed() => if changed.is_err() { return },
                _ = ended.wait_for(Option::is_some) => return,
            }
        }
        self.kill_for("its deadline has passed").await;
    }

    fn keep_deadline(&self, after: Option<Duration>) {
        // A deadline too far away to be represented never comes.
        self.deadline.send_replace(after.and_then(|after| Instant::now().checked_add(after)));
    }

    /// Tells the guest its own deadline, which holds if no host is left. A frozen guest hears of it when it is thawed.
    fn tell_deadline(&self, after: Option<Duration>) {
        if let Some(guest) = self.guest.get().cloned() {
            let after = after.map(|after| after.saturating_add(GUEST_SLACK));
            self.runtime.spawn(async move { guest.set_deadline(after).await });
        }
    }

    /// Kills everything in the container, for this reason.
    async fn kill_for(&self, cause: &'static str) {
        let _ = self.cause.set(cause);
        let options = KillContainerOptionsBuilder::new().signal("KILL").build();
        loop {
            let killed =
                self.daemon.client.kill_container(&self.facts.container, Some(options.clone())).await;
            match killed {
                Err(error)
                    if !matches!(status(&error), Some(NOT_FOUND | CONFLICT))
                        && self.ended.borrow().is_none() =>
                {
                    tokio::time::sleep(DAEMON_INTERVAL).await;
                }
                _ => return,
            }
        }
    }

    async fn wait(&self) -> String {
        let mut ended = self.ended.subscribe();
        let how = ended.wait_for(Option::is_some).await;
        how.ok().and_then(|how| how.clone()).unwrap_or_default()
    }

    /// Removes the container and what is recorded of it. Does nothing if that is done.
    async fn remove(&self) -> Result<(), EngineError> {
        self.is_removing.store(true, Ordering::Release);
        let mut removed = self.removed.lock().await;
        if *removed {
            return Ok(());
        }
        self.measure();
        let _ = self.cause.set("it was stopped");
        remove_container(&self.daemon, &self.facts.container).await?;
        if let Some(records) = &self.facts.records {
            records.remove(&self.facts.id).map_err(|source| EngineError::Launch {
                step: "remove the record of the sandbox".to_owned(),
                source,
            })?;
        }
        *removed = true;
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert_with(|| "it was stopped".to_owned());
            is_first
        });
        Ok(())
    }

    /// Reads the usage from the control groups, if they are on this machine, and keeps it.
    fn measure(&self) -> Option<Usage> {
        let now = self.facts.groups.as_ref()?.usage();
        // Afterwards there are no groups any more.
        now.memory?;
        let usage = self.usage_of(&now);
        *self.last_usage.lock() = usage;
        Some(usage)
    }

    fn usage_of(&self, now: &CgroupUsage) -> Usage {
        Usage {
            memory_bytes: now.memory,
            gateway_memory_bytes: None,
            peak_memory_bytes: now.peak_memory,
            pids: now.pids.map(|pids| self.pids_of_code(pids)),
            cpu: now.cpu_us.map(Duration::from_micros),
            oom_kills: now.oom_kills.unwrap_or(0),
            pids_denied: now.pids_denied.unwrap_or(0),
        }
    }

    /// Returns the number of processes and threads without those of the engine.
    fn pids_of_code(&self, pids: u64) -> u32 {
        let own = own_pids_now(self.facts.reach.open_bridges());
        u32::try_from(pids).unwrap_or(u32::MAX).saturating_sub(own)
    }

    /// Asks the daemon for the usage, and keeps it.
    async fn ask_usage(&self) -> Option<Usage> {
        let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
        let stats = self.daemon.client.stats(&self.facts.container, Some(options)).next().await?.ok()?;
        let memory = stats.memory_stats.unwrap_or_default();
        let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage);
        let before = *self.last_usage.lock();
        let state = self.daemon.client.inspect_container(&self.facts.container, None).await.ok()?.state;
        let was_killed = state.and_then(|state| state.oom_killed) == Some(true);
        let usage = Usage {
            memory_bytes: Some(memory.usage?),
            gateway_memory_bytes: None,
            peak_memory_bytes: memory.max_usage.or(before.peak_memory_bytes.max(memory.usage)),
            pids: stats.pids_stats.and_then(|pids| pids.current).map(|pids| self.pids_of_code(pids)),
            cpu: cpu.map(Duration::from_nanos),
            oom_kills: before.oom_kills.max(was_killed.into()),
            pids_denied: 0,
        };
        *self.last_usage.lock() = usage;
        Some(usage)
    }

    async fn usage(&self) -> Usage {
        if let Some(usage) = self.measure() {
            return usage;
        }
        let asked = if self.facts.groups.is_none() { self.ask_usage().await } else { None };
        asked.unwrap_or_else(|| *self.last_usage.lock())
    }

    async fn change_limits(&self, change: &LimitsChange) -> Result<(), EngineError> {
        if change.is_empty() {
            return Ok(());
        }
        let now = self.usage().await;
        let in_use = |field: &'static str, value: String, in_use: String| EngineError::LimitInUse {
            field: field.into(),
            value,
            in_use,
        };
        if let (Some(limit), Some(pids)) = (change.pids, now.pids)
            && pids > limit.get()
        {
            return Err(in_use("pids", limit.to_string(), pids.to_string()));
        }
        // With v2 the kernel accepts any limit, and kills processes until their memory is below it.
        let held = self.facts.groups.as_ref().and_then(ContainerGroups::held_memory).or(now.memory_bytes);
        if let (Some(limit), Some(bytes)) = (change.memory, held)
            && bytes > limit.bytes()
        {
            return Err(in_use("memory", limit.to_string(), ByteSize::new(bytes).to_string()));
        }
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let memory = change.memory.map(|memory| number(memory.bytes()));
        let (whole, min) = CPU_SHARES;
        let body = ContainerUpdateBody {
            memory,
            memory_swap: memory,
            nano_cpus: change.cpus.map(|cpus| number(u64::from(cpus.millis()) * 1_000_000)),
            pids_limit: change.pids.map(|pids| i64::from(pids.get().saturating_add(self.facts.own_pids))),
            cpu_shares: change.shared_by.map(|sharers| (whole / sharers.get()).max(min).into()),
            ..ContainerUpdateBody::default()
        };
        let updated = self.daemon.client.update_container(&self.facts.container, body).await;
        updated.map_err(|error| match self.ended.borrow().clone() {
            Some(how) => EngineError::Ended { how },
            None => EngineError::SetLimit {
                field: "limits".into(),
                value: "those requested".to_owned(),
                source: io::Error::other(error),
            },
        })
    }

    async fn set_frozen(&self, frozen: bool) -> Result<(), EngineError> {
        let (client, container) = (&self.daemon.client, &self.facts.container);
        let (step, done) = match frozen {
            true => ("freeze", client.pause_container(container).await),
            false => ("thaw", client.unpause_container(container).await),
        };
        let Err(error) = done else { return Ok(()) };
        // Both are errors for the daemon if it is done already.
        let state = client.inspect_container(container, None).await.ok().and_then(|found| found.state);
        match state {
            Some(state) if state.running == Some(true) && state.paused == Some(frozen) => Ok(()),
            Some(state) if state.running == Some(true) => {
                Err(failed(format!("{step} the sandbox {}", self.facts.id))(error))
            }
            _ => Err(EngineError::Ended { how: self.wait().await }),
        }
    }

    fn record_deadline(&self, after: Option<Duration>) -> Result<(), EngineError> {
        let Some(records) = &self.facts.records else { return Ok(()) };
        let Some(record) = records.get(&self.facts.id) else { return Ok(()) };
        let deadline = after.and_then(|after| SystemTime::now().checked_add(after));
        let written = records.put(&self.facts.id, &Record { deadline, ..record });
        written.map_err(|source| EngineError::Launch {
            step: "record the deadline of the sandbox".to_owned(),
            source,
        })
    }
}

/// Removes a container with its volumes, and returns when it is gone.
pub(crate) async fn remove_container(daemon: &Daemon, container: &str) -> Result<(), EngineError> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    let deadline = Instant::now() + REMOVE_TIMEOUT;
    loop {
        match daemon.client.remove_container(container, Some(options.clone())).await {
            Ok(()) => return Ok(()),
            Err(error) => match status(&error) {
                Some(NOT_FOUND) => return Ok(()),
                // The daemon is removing it already.
                Some(CONFLICT) if Instant::now() < deadline => tokio::time::sleep(RETRY_INTERVAL).await,
                _ => return Err(failed(format!("remove the container {container}"))(error)),
            },
        }
    }
}

impl Walls for DockerWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(self.0.usage())
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(self.0.change_limits(change))
    }

    fn set_network<'a>(&'a self, _: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async { Err(EngineError::NoNetwork) })
    }

    fn network_log(&self, _: u64, _: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        Box::pin(async { Err(EngineError::NoNetwork) })
    }

    fn set_deadline(&self, after: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async move {
            self.0.keep_deadline(after);
            self.0.tell_deadline(after);
            self.0.record_deadline(after)
        })
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.0.set_frozen(true))
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.0.set_frozen(false))
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        Box::pin(async {
            let Held { facts, ended, .. } = &*self.0;
            let guest = reconnect(facts.reach.clone(), facts.secret.clone()).await;
            guest.map_err(|source| match ended.borrow().clone() {
                Some(how) => EngineError::Ended { how },
                None => {
                    EngineError::Launch { step: "open another connection to the guest".to_owned(), source }
                }
            })
        })
    }

    fn phases(&self) -> Vec<(&'static str, Duration)> {
        self.0.facts.phases.clone()
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        Box::pin(async {
            let how = tokio::time::timeout(END_TIMEOUT, self.0.wait()).await.ok()?;
            Some(EngineError::Ended { how })
        })
    }

    fn kill(&self) {
        self.0.measure();
        let held = Arc::clone(&self.0);
        self.0.runtime.spawn(async move { held.kill_for("it was killed").await });
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.0.remove())
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        Box::pin(self.0.wait())
    }
}
