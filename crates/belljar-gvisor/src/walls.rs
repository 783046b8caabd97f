//! Host side of a sandbox: the process that runs it, and its end.
//!
//! ```text
//!  running ── its guest ends, the deadline, kill ──► ended ── stop ──► removed
//!     └──────────────────── stop ─────────────────────────────────────►
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use belljar_engine::{EngineError, GuestClient, NetworkLog, Records, Usage, Walls, reconnect};
use belljar_linux::CgroupLayout;
use belljar_model::{LimitsChange, NetworkPolicy, SandboxId};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::{Reach, Record, launch, remove};
use crate::runsc::GVISOR;

/// Time after the deadline at which the guest ends by itself, if no host has ended it.
const GUEST_SLACK: Duration = Duration::from_secs(5);

/// Maximum time for the kernel to freeze or thaw a sandbox.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

/// Polling interval while waiting for the kernel.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum time for the end of a sandbox to be known after its connection broke.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The process that runs a sandbox: `runsc run`, with which the sentry and the gofer end.
pub(crate) struct Runner {
    pidfd: OwnedFd,
    /// A descriptor of the same, which becomes readable at its end.
    watched: AsyncFd<OwnedFd>,
    /// If this process has started it.
    child: Option<Child>,
}

impl Runner {
    /// Watches a process that this one has started.
    pub(crate) fn child(child: Child) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok(Self { child: Some(child), ..Self::other(pid)? })
    }

    /// Watches a process that another one has started.
    pub(crate) fn other(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let watched = async_fd(pidfd.try_clone()?)?;
        Ok(Self { pidfd, watched, child: None })
    }

    /// Waits for its end; returns its status, if that is known.
    async fn wait(watched: AsyncFd<OwnedFd>, child: Option<Child>) -> Option<ExitStatus> {
        let _ = watched.readable().await;
        child?.wait().ok()
    }
}

#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}

/// What is known of a sandbox from its launch.
pub(crate) struct Launched {
    pub(crate) id: SandboxId,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// The lock on it, by which other programs see that it is in use.
    pub(crate) _lock: Option<OwnedFd>,
    pub(crate) layout: CgroupLayout,
    pub(crate) reach: Reach,
    pub(crate) secret: String,
    /// Where a server records it. Without it the sandbox ends with this handle.
    pub(crate) records: Option<Records<Record>>,
    pub(crate) phases: Vec<(&'static str, Duration)>,
}

/// State of a sandbox.
struct Held {
    facts: Launched,
    pidfd: OwnedFd,
    guest: GuestClient,
    runtime: Handle,
    /// How it ended.
    ended: watch::Sender<Option<String>>,
    deadline: watch::Sender<Option<Instant>>,
    /// Set by the deadline, and by a kill, as the reason of the end.
    cause: OnceLock<&'static str>,
    last_usage: Mutex<Usage>,
    /// Whether everything is removed.
    removed: tokio::sync::Mutex<bool>,
    is_removing: AtomicBool,
}

/// Handle of one sandbox.
pub(crate) struct GvisorWalls(Arc<Held>);

impl GvisorWalls {
    /// Follows a sandbox whose guest runs, and ends it after this time; `None` is never.
    pub(crate) fn new(
        facts: Launched,
        Runner { pidfd, watched, child }: Runner,
        guest: GuestClient,
        deadline: Option<Duration>,
    ) -> Self {
        let held = Arc::new(Held {
            facts,
            pidfd,
            guest,
            runtime: Handle::current(),
            ended: watch::Sender::new(None),
            deadline: watch::Sender::new(None),
            cause: OnceLock::new(),
            last_usage: Mutex::default(),
            removed: tokio::sync::Mutex::new(false),
            is_removing: AtomicBool::new(false),
        });
        held.keep_deadline(deadline);
        tokio::spawn(Arc::clone(&held).follow(watched, child));
        tokio::spawn(Arc::clone(&held).enforce_deadline());
        Self(held)
    }
}

/// Returns the guest's own deadline for one that its host enforces, in milliseconds; 0 is none.
pub(crate) fn guest_deadline_ms(after: Option<Duration>) -> u64 {
    let millis =
        |after: Duration| u64::try_from(after.saturating_add(GUEST_SLACK).as_millis()).unwrap_or(u64::MAX);
    after.map_or(0, millis)
}

impl Drop for GvisorWalls {
    fn drop(&mut self) {
        let held = Arc::clone(&self.0);
        if held.facts.records.is_none() && !held.is_removing.load(Ordering::Acquire) {
            // If the runtime ends before, the guest does so as well, as its connection breaks.
            self.0.runtime.spawn(async move { held.remove().await });
        }
    }
}

impl Held {
    /// Waits for the end of the process that runs the sandbox.
    async fn follow(self: Arc<Self>, watched: AsyncFd<OwnedFd>, child: Option<Child>) {
        let status = Runner::wait(watched, child).await;
        let oom_kills = self.measure().oom_kills;
        let how = match (self.cause.get(), status.and_then(|status| status.code())) {
            (Some(cause), _) => (*cause).to_owned(),
            (None, _) if oom_kills > 0 => "it used more memory than its control group allows".to_owned(),
            (None, Some(0)) => "its guest has ended".to_owned(),
            (None, Some(code)) => format!("runsc ended with the status {code}"),
            (None, None) => "runsc was killed, or ended while no server was running".to_owned(),
        };
        self.ended.send_replace(Some(how));
        if self.facts.records.is_none() {
            // A failure is reported by whoever stops the sandbox.
            let _ = self.remove().await;
        }
    }

    /// Kills the sandbox at its deadline, which may change meanwhile. Ends with the sandbox.
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
        self.kill_for("its deadline has passed");
    }

    fn keep_deadline(&self, after: Option<Duration>) {
        // A deadline too far away to be represented never comes.
        self.deadline.send_replace(after.and_then(|after| Instant::now().checked_add(after)));
    }

    /// Kills the process that runs the sandbox, for this reason.
    fn kill_for(&self, cause: &'static str) {
        let _ = self.cause.set(cause);
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        if let Some(freezer) = self.facts.layout.freezer_of(self.facts.id.as_str()) {
            // On v1, frozen processes do not die.
            let _ = freezer.set(false);
        }
    }

    async fn wait(&self) -> String {
        let mut ended = self.ended.subscribe();
        let how = ended.wait_for(Option::is_some).await;
        how.ok().and_then(|how| how.clone()).unwrap_or_default()
    }

    /// Kills all processes and removes what the sandbox held. Does nothing if that is done.
    async fn remove(&self) -> Result<(), EngineError> {
        self.is_removing.store(true, Ordering::Release);
        let mut removed = self.removed.lock().await;
        if *removed {
            return Ok(());
        }
        self.measure();
        let _ = self.cause.set("it was stopped");
        let Launched { id, dir, layout, records, .. } = &self.facts;
        remove(layout, id, dir, records.as_ref()).await?;
        *removed = true;
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert_with(|| "it was stopped".to_owned());
            is_first
        });
        Ok(())
    }

    /// Reads the usage from the control groups, and keeps it for when they are gone.
    fn measure(&self) -> Usage {
        let now = self.facts.layout.usage(self.facts.id.as_str());
        if now.memory.is_none() {
            return *self.last_usage.lock();
        }
        let usage = Usage {
            memory_bytes: now.memory,
            gateway_memory_bytes: None,
            peak_memory_bytes: now.peak_memory,
            // Those of the sentry are not those inside.
            pids: None,
            cpu: now.cpu_us.map(Duration::from_micros),
            oom_kills: now.oom_kills.unwrap_or(0),
            pids_denied: 0,
        };
        *self.last_usage.lock() = usage;
        usage
    }

    async fn set_frozen(&self, frozen: bool) -> Result<(), EngineError> {
        let what = if frozen { "freeze" } else { "thaw" };
        let id = &self.facts.id;
        let freezer = self.facts.layout.freezer_of(id.as_str()).ok_or_else(|| EngineError::Unsupported {
            what: what.into(),
            engine: GVISOR,
            reason: "no control group hierarchy on this machine can freeze".into(),
        })?;
        let deadline = Instant::now() + FREEZE_TIMEOUT;
        let done = async {
            freezer.set(frozen)?;
            let mut round = 0;
            while freezer.is_frozen()? != frozen {
                if Instant::now() > deadline {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
                if frozen {
                    freezer.retry(round)?;
                    round += 1;
                }
            }
            Ok(())
        };
        match done.await {
            Ok(()) => Ok(()),
            // The group is gone, as its sandbox has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(EngineError::Ended { how: self.wait().await })
            }
            Err(source) => {
                if frozen {
                    let _ = freezer.set(false);
                }
                Err(EngineError::Launch { step: format!("{what} the sandbox {id}"), source })
            }
        }
    }

    fn record_deadline(&self, after: Option<Duration>) -> Result<(), EngineError> {
        let Some(records) = &self.facts.records else { return Ok(()) };
        let Some(record) = records.get(&self.facts.id) else { return Ok(()) };
        let deadline = after.and_then(|after| SystemTime::now().checked_add(after));
        records
            .put(&self.facts.id, &Record { deadline, ..record })
            .map_err(launch("record the deadline of the sandbox"))
    }
}

impl Walls for GvisorWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(async { self.0.measure() })
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async {
            match change.is_empty() {
                true => Ok(()),
                false => Err(EngineError::Unsupported {
                    what: "limits".into(),
                    engine: GVISOR,
                    reason: "those of a running sandbox do not change".into(),
                }),
            }
        })
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
            // The guest's own holds if no host is left. A frozen guest hears of it when it is thawed.
            let (guest, own) = (self.0.guest.clone(), after.map(|after| after.saturating_add(GUEST_SLACK)));
            self.0.runtime.spawn(async move { guest.set_deadline(own).await });
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
        self.0.kill_for("it was killed");
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.0.remove())
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        Box::pin(self.0.wait())
    }
}
