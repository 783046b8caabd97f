//! Host side of a launched sandbox: its supervisor, its control groups, and its end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use belljar_engine::backend::{deadline_after, deadline_passed};
use belljar_engine::{EngineError, GuestClient, NetworkLog, Usage, Walls};
use belljar_guest_config::guest_threads;
use belljar_linux::{
    CLEAN, CgroupChange, CgroupChangeError, CgroupLayout, CgroupUsage, KILL, LaunchPhase, MEMORY_FILES,
    Supervisor,
};
use belljar_model::{ByteSize, LimitsChange, NetworkPolicy, SandboxId};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::SocketType;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::LocalKind;
use crate::control::{Control, EndReason};
use crate::failure::Failures;
use crate::freeze::set_frozen;
use crate::gateway::{Gateways, START_GATEWAY};
use crate::orphans::{ORPHANS, wait_for_exit};
use crate::progress::{Progress, async_fd, describe_end, follow};
use crate::sockets::{pair, stream};
use crate::unaccepted::{Counted, UNACCEPTED};

/// Maximum time for a supervisor to remove everything. The supervisor itself gives up before that.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for a supervisor to exit after its last report.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time for a guest to accept another connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Polling interval while waiting for the guest.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Resources of a sandbox besides its supervisor.
pub(crate) struct Resources {
    pub(crate) id: SandboxId,
    pub(crate) kind: LocalKind,
    /// Limit of memory in bytes.
    pub(crate) memory: Arc<AtomicU64>,
    /// Whether connections that are not accepted are counted.
    pub(crate) counts_unaccepted: bool,
    /// Control groups, if there are any.
    pub(crate) cgroups: Option<CgroupLayout>,
    /// Scratch directory: its parent, and its name.
    pub(crate) scratch: Option<(OwnedFd, CString)>,
    /// Set if the guest starts its only program by itself: the user and the group that own the program's pipes, if not this process's.
    pub(crate) direct: Option<Option<(u32, u32)>>,
    /// Socket over which the guest receives connections, if it accepts more than its first.
    pub(crate) guest_control: Option<Arc<OwnedFd>>,
    /// Gateway to the network, if it has one.
    pub(crate) gateway: Option<Arc<Gateways>>,
    pub(crate) failures: Failures,
    /// Start of the launch, by CLOCK_MONOTONIC in nanoseconds, and the duration of its planning.
    pub(crate) launched: (u64, Duration),
    /// Data for moving a process from outside into the sandbox, if that is possible.
    pub(crate) entry: Option<crate::warm::Entry>,
    /// The template's layer, mounted as long as this exists.
    pub(crate) _images: Vec<Arc<belljar_linux::ImageMount>>,
}

/// Handle of one sandbox.
pub(crate) struct LocalWalls {
    resources: Resources,
    control: Arc<Control>,
    supervisor: Mutex<Option<Supervisor>>,
    progress: watch::Receiver<Progress>,
    /// Time of the guest's first answer, by CLOCK_MONOTONIC in nanoseconds.
    answered_ns: OnceLock<u64>,
    /// Sends new deadlines to the task that enforces them, once there was one.
    deadline: OnceLock<watch::Sender<Option<Instant>>>,
    /// Whether the gateway has started, or the reason why it could not; `Some(Ok)` without a gateway.
    gateway_start: watch::Receiver<Option<Result<(), String>>>,
}

impl LocalWalls {
    pub(crate) fn new(resources: Resources, socket: OwnedFd, supervisor: Supervisor) -> io::Result<Self> {
        let (sender, progress) = watch::channel(Progress::default());
        let reader = socket.try_clone()?;
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK)?;
        let reader = async_fd(reader)?;
        tokio::spawn(follow(reader, sender));
        let control = Arc::new(Control::new(socket));
        let (sender, gateway_start) = watch::channel(resources.gateway.is_none().then_some(Ok(())));
        if let Some(gateway) = &resources.gateway {
            let started = gateway.started()?;
            tokio::spawn(keep_gateway(Arc::clone(gateway), started, sender, Arc::clone(&control)));
        }
        if resources.counts_unaccepted {
            let memory = Arc::clone(&resources.memory);
            let (progress, control) = (progress.clone(), Arc::downgrade(&control));
            crate::unaccepted::count(Connections { progress, control, memory });
        }
        Ok(Self {
            resources,
            control,
            supervisor: Mutex::new(Some(supervisor)),
            progress,
            answered_ns: OnceLock::new(),
            deadline: OnceLock::new(),
            gateway_start,
        })
    }

    /// Waits until the gateway has started, if the sandbox has one.
    pub(crate) async fn gateway_started(&self) -> Result<(), EngineError> {
        let mut start = self.gateway_start.clone();
        let _ = start.wait_for(Option::is_some).await;
        let reason = self.gateway_failure().await.map(io::Error::other);
        reason.map_or(Ok(()), |reason| Err(EngineError::launch(START_GATEWAY)(reason)))
    }

    /// Returns why the gateway could not start. That ends the sandbox, whose end may be reported a moment earlier.
    async fn gateway_failure(&self) -> Option<String> {
        let mut start = self.gateway_start.clone();
        let _ = tokio::time::timeout(END_TIMEOUT, start.wait_for(Option::is_some)).await.is_ok();
        start.borrow().as_ref()?.as_ref().err().cloned()
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.resources.id
    }

    pub(crate) fn entry(&self) -> Option<&crate::warm::Entry> {
        self.resources.entry.as_ref()
    }

    /// Returns the process id of the first process, once it has been cloned.
    pub(crate) fn first_process(&self) -> Option<i32> {
        self.progress.borrow().first
    }

    /// Returns the socket over which the guest receives descriptors from outside.
    pub(crate) fn guest_control(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.resources.guest_control.as_ref().map(|control| control.as_fd())
    }

    /// Reports whether the first process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.progress.borrow().is_over()
    }

    /// Waits until the first process has been cloned, or never will be.
    pub(crate) async fn wait_until_started(&self) {
        let mut progress = self.progress.clone();
        let _ = progress.wait_for(|now| !now.phases.is_empty() || now.failed.is_some() || now.closed).await;
    }

    /// Waits for the report that the first process has dropped its privileges, or that there is none.
    pub(crate) async fn wait_until_confined(&self) {
        let mut progress = self.progress.clone();
        let last = LaunchPhase::ALL.last().map(|(_, name)| *name);
        // The supervisor's own reports may be later.
        let is_confined = |now: &Progress| now.phases.iter().any(|(name, _)| Some(*name) == last);
        let _ = progress.wait_for(|now| is_confined(now) || now.failed.is_some() || now.is_over()).await;
    }

    /// Resolves with the reason when the launch fails, and never if it succeeds.
    pub(crate) async fn failure(&self) -> EngineError {
        let mut progress = self.progress.clone();
        let over = |now: &Progress| now.failed.is_some() || now.closed || now.ended.is_some();
        // A closed channel means that its task has ended, after the last report.
        let _ = progress.wait_for(over).await;
        let last = progress.borrow().clone();
        if let Some(reason) = self.gateway_failure().await {
            return EngineError::launch(START_GATEWAY)(io::Error::other(reason));
        }
        match last.failed {
            Some((step, item, errno)) => {
                self.resources.failures.explain(step, item, io::Error::from_raw_os_error(errno))
            }
            None => EngineError::Ended { how: self.end_reason(&last) },
        }
    }

    fn end_reason(&self, progress: &Progress) -> String {
        match self.control.reason.get() {
            Some(EndReason::Deadline) => "its deadline has passed".to_owned(),
            Some(EndReason::Unaccepted) => UNACCEPTED.to_owned(),
            None => describe_end(progress),
        }
    }

    /// Ends the sandbox after this time, even without a server; `None` is never.
    pub(crate) fn keep_deadline(&self, after: Option<Duration>) {
        let sender = self.deadline.get_or_init(|| {
            let (sender, receiver) = watch::channel(None);
            let control = Arc::clone(&self.control);
            tokio::spawn(async move {
                if deadline_passed(receiver).await {
                    control.end_because(EndReason::Deadline);
                }
            });
            sender
        });
        sender.send_replace(deadline_after(after));
    }

    /// Returns the time until the deadline.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let deadline = (*self.deadline.get()?.borrow())?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Opens another connection to the guest, and returns the host's end.
    pub(crate) async fn connection(&self) -> Result<OwnedFd, EngineError> {
        let Some(control) = &self.resources.guest_control else {
            return Err(
                self.unsupported("another connection", "its guest has only one connection and ends with it")
            );
        };
        match open_connection(control).await {
            Ok(host) => Ok(host),
            Err(source) => {
                let has_ended = matches!(
                    Errno::from_io_error(&source),
                    Some(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
                );
                let ended = if has_ended { self.explain_end().await } else { None };
                let step = "open another connection to the guest".to_owned();
                Err(ended.unwrap_or(EngineError::Launch { step, source }))
            }
        }
    }

    /// Creates a client of the guest, whose first connection is `first`.
    pub(crate) fn guest_client(&self, first: tokio::net::UnixStream) -> GuestClient {
        if let Some(owner) = self.resources.direct {
            return GuestClient::direct(first, owner);
        }
        let Some(control) = &self.resources.guest_control else { return GuestClient::new(first) };
        // The guest ends when this is closed, also if the client still exists.
        let control = Arc::downgrade(control);
        GuestClient::with_dialer(first, move || {
            let control = control.upgrade();
            async move {
                let control = control.ok_or(io::ErrorKind::NotConnected)?;
                stream(open_connection(&control).await?)
            }
        })
    }

    fn gateway(&self) -> Result<&Gateways, EngineError> {
        self.resources.gateway.as_deref().ok_or(EngineError::NoNetwork)
    }

    /// See [`Gateways::forget_policy`].
    pub(crate) fn forget_policy(&self) {
        self.resources.gateway.as_ref().inspect(|gateway| gateway.forget_policy());
    }

    /// Opens a connection to the gateway, and returns the host's end.
    pub(crate) async fn gateway_connection(&self) -> Result<OwnedFd, EngineError> {
        match self.gateway()?.connection().await {
            Ok(connection) => Ok(connection),
            Err(_) if self.has_ended() => Err(EngineError::Ended { how: self.wait_ended().await }),
            Err(error) => Err(EngineError::launch("reach the sandbox's gateway")(error)),
        }
    }

    /// Sends the guest the files from which it sees how much memory is left, if there are any. Without them, as with a guest that
    /// has ended, it writes what it is asked to write.
    pub(crate) fn send_memory_files(&self) {
        let (Some(control), Some(layout)) = (&self.resources.guest_control, &self.resources.cgroups) else {
            return;
        };
        if let Some(files) = layout.memory_files(self.resources.id.as_str()) {
            let _ = belljar_linux::send_with(control.as_fd(), &[MEMORY_FILES], &files.descriptors());
        }
    }

    fn unsupported(&self, what: &'static str, reason: &'static str) -> EngineError {
        EngineError::Unsupported {
            what: what.into(),
            engine: self.resources.kind.name(),
            reason: reason.into(),
        }
    }

    fn layout(&self, what: &'static str) -> Result<&CgroupLayout, EngineError> {
        self.resources
            .cgroups
            .as_ref()
            .ok_or_else(|| self.unsupported(what, "the sandbox has no control groups"))
    }

    async fn set_frozen(&self, frozen: bool) -> Result<(), EngineError> {
        let what = if frozen { "freeze" } else { "thaw" };
        let (layout, id) = (self.layout(what)?, &self.resources.id);
        if set_frozen(layout, id, self.resources.kind.name(), frozen).await? {
            return Ok(());
        }
        let step = format!("{what} the sandbox {id}");
        let gone = || EngineError::Launch { step, source: Errno::NOENT.into() };
        Err(self.explain_end().await.unwrap_or_else(gone))
    }

    /// Reports whether the sandbox is frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        let freezer =
            self.resources.cgroups.as_ref().and_then(|layout| layout.freezer_of(self.resources.id.as_str()));
        freezer.is_some_and(|freezer| freezer.is_frozen().unwrap_or(false))
    }

    fn apply_limits(&self, change: &LimitsChange) -> Result<(), EngineError> {
        let layout = self.layout("other limits")?;
        let requested = CgroupChange {
            memory_bytes: change.memory.map(belljar_model::Memory::bytes),
            cpu_millis: change.cpus.map(belljar_model::Cpus::millis),
            // The guest's own processes do not count against the code's limit.
            pids: change.pids.map(|pids| pids.get().saturating_add(self.guest_threads())),
            shared_by: change.shared_by.map(std::num::NonZeroU16::get),
        };
        let value = |field: &str| match field {
            "memory" => change.memory.map(|memory| memory.to_string()),
            "cpus" => change.cpus.map(|cpus| cpus.to_string()),
            _ => change.pids.map(|pids| pids.to_string()),
        };
        let changed = layout.change(self.resources.id.as_str(), &requested).map_err(|error| match error {
            CgroupChangeError::InUse { field, in_use } => EngineError::LimitInUse {
                field: field.into(),
                value: value(field).unwrap_or_default(),
                in_use: match field {
                    "memory" => ByteSize::new(in_use).to_string(),
                    _ => in_use.saturating_sub(self.guest_threads().into()).to_string(),
                },
            },
            CgroupChangeError::Write { field, source } => {
                EngineError::SetLimit { field: field.into(), value: value(field).unwrap_or_default(), source }
            }
        });
        if let (Ok(()), Some(memory)) = (&changed, requested.memory_bytes) {
            self.resources.memory.store(memory, Ordering::Relaxed);
        }
        changed
    }
}

/// Opens a connection to the guest that receives it over `control`, and returns the host's end.
async fn open_connection(control: &OwnedFd) -> io::Result<OwnedFd> {
    let (host, guest) = pair(SocketType::STREAM)?;
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match belljar_linux::send_with(control.as_fd(), b"c", &[guest.as_fd()]) {
            Ok(_) => return Ok(host),
            Err(Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS) if Instant::now() < deadline => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Connections of a sandbox that no program has accepted.
struct Connections {
    progress: watch::Receiver<Progress>,
    control: Weak<Control>,
    memory: Arc<AtomicU64>,
}

impl Counted for Connections {
    fn is_over(&self) -> bool {
        self.control.strong_count() == 0 || self.progress.borrow().is_over()
    }

    fn process(&self) -> Option<i32> {
        self.progress.borrow().first
    }

    fn memory_bytes(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.control.upgrade().inspect(|control| control.end_because(EndReason::Unaccepted));
    }
}

/// Ends the sandbox if its first gateway cannot start; until then, its code can connect to nothing. Later starts another one
/// whenever one ends.
async fn keep_gateway(
    gateway: Arc<Gateways>,
    started: impl Future<Output = io::Result<()>>,
    result: watch::Sender<Option<Result<(), String>>>,
    control: Arc<Control>,
) {
    let started = started.await.map_err(|error| error.to_string());
    let has_failed = started.is_err();
    result.send_replace(Some(started));
    if has_failed {
        control.send(CLEAN);
    } else {
        gateway.keep_running().await;
    }
}

/// Returns CLOCK_MONOTONIC in nanoseconds, as the launch's processes report it.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Walls for LocalWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(async { self.usage_now() })
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async { self.apply_limits(change) })
    }

    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async {
            self.gateway()?.set_policy(policy).await;
            Ok(())
        })
    }

    fn network_log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        Box::pin(async move { crate::gateway::log(self.gateway_connection().await?, after, follow).await })
    }

    fn set_deadline(&self, after: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        self.keep_deadline(after);
        Box::pin(async { Ok(()) })
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.set_frozen(true))
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.set_frozen(false))
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        Box::pin(async {
            let socket = self.connection().await?;
            let stream = stream(socket).map_err(EngineError::launch("open the guest's connection"))?;
            Ok(GuestClient::new(stream))
        })
    }

    fn record_first_answer(&self) {
        self.answered_ns.get_or_init(monotonic_ns);
    }

    fn phases(&self) -> Vec<(&'static str, Duration)> {
        let (mut last, planned) = self.resources.launched;
        let mut phases = vec![("plan", planned)];
        let reached = self.progress.borrow().phases.clone();
        let answered = self.answered_ns.get().map(|at_ns| ("guest", *at_ns));
        phases.extend(reached.into_iter().chain(answered).map(|(name, at_ns)| {
            let took = Duration::from_nanos(at_ns.saturating_sub(last));
            last = at_ns;
            (name, took)
        }));
        phases
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        Box::pin(async { tokio::time::timeout(END_TIMEOUT, self.failure()).await.ok() })
    }

    fn kill(&self) {
        self.control.send(KILL);
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.stop_and_clean_up())
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        let mut progress = self.progress.clone();
        Box::pin(async move {
            // A closed channel means that its task has ended, after the last report.
            let _ = progress.wait_for(Progress::is_over).await;
            let last = progress.borrow().clone();
            match self.gateway_failure().await {
                Some(reason) => format!("cannot {START_GATEWAY}: {reason}"),
                None => self.end_reason(&last),
            }
        })
    }
}

/// Returns the usage of a sandbox by its control groups. `Err` contains what could be read if the number of kills for lack of
/// memory is unknown: the groups are gone, or are not visible from here.
pub(crate) fn group_usage(group: &CgroupUsage, guest_threads: u32) -> Result<Usage, Usage> {
    let own = u64::from(guest_threads);
    let usage = Usage {
        memory_bytes: group.memory,
        gateway_memory_bytes: group.gateway_memory,
        peak_memory_bytes: group.peak_memory,
        pids: group.pids.map(|pids| u32::try_from(pids.saturating_sub(own)).unwrap_or(u32::MAX)),
        cpu: group.cpu_us.map(Duration::from_micros),
        oom_kills: group.oom_kills.unwrap_or(0),
        pids_denied: group.pids_denied.unwrap_or(0),
    };
    if group.oom_kills.is_some() { Ok(usage) } else { Err(usage) }
}

impl LocalWalls {
    /// Returns the number of the guest's own processes in the control group.
    fn guest_threads(&self) -> u32 {
        guest_threads(self.resources.kind == LocalKind::Local, self.resources.direct.is_some())
    }

    pub(crate) fn usage_now(&self) -> Usage {
        let mut usage = self.resources.cgroups.as_ref().map_or_else(Usage::default, |layout| {
            let usage = group_usage(&layout.usage(self.resources.id.as_str()), self.guest_threads());
            usage.unwrap_or_else(|usage| {
                // The groups are removed soon after the first process ends.
                Usage { oom_kills: self.progress.borrow().oom_kills.into(), ..usage }
            })
        });
        // The kernel counts only its own.
        usage.oom_kills += u64::from(self.control.reason.get() == Some(&EndReason::Unaccepted));
        usage
    }

    /// Returns the control groups.
    pub(crate) fn cgroups(&self) -> Option<&CgroupLayout> {
        self.resources.cgroups.as_ref()
    }

    async fn stop_and_clean_up(&self) -> Result<(), EngineError> {
        // A supervisor that is gone already has cleaned up before.
        self.control.send(CLEAN);
        // Both end at the same time.
        self.resources.gateway.as_ref().inspect(|gateway| gateway.shut_down());
        let mut progress = self.progress.clone();
        let cleaned = progress.wait_for(|progress| progress.cleaned.is_some() || progress.closed);
        let _ = tokio::time::timeout(CLEAN_TIMEOUT, cleaned).await.is_ok();
        let last = self.progress.borrow().clone();
        let supervisor = self.supervisor.lock().take();
        if let Some(supervisor) = supervisor {
            // It exits right after its last record. One that hangs must not block us.
            if wait_for_exit(&supervisor, END_TIMEOUT) {
                drop(supervisor);
            } else {
                ORPHANS.adopt(supervisor);
            }
        }
        if let Some(gateway) = &self.resources.gateway {
            gateway.end().await;
        }
        match last.cleaned {
            Some((0, _)) => Ok(()),
            Some((count, errno)) => Err(EngineError::Leftovers {
                id: self.resources.id.clone(),
                count,
                source: io::Error::from_raw_os_error(errno),
            }),
            None => self.clean_up_after_supervisor(),
        }
    }

    /// Removes what a killed supervisor left behind: its first process died with it.
    fn clean_up_after_supervisor(&self) -> Result<(), EngineError> {
        let left =
            self.resources.cgroups.as_ref().map_or(0, |layout| layout.remove(self.resources.id.as_str()));
        let scratch = self.resources.scratch.as_ref().map_or(Ok(()), |(parent, name)| {
            belljar_linux::remove_tree(parent.as_fd(), name).map_err(io::Error::from)
        });
        match (left, scratch) {
            (0, Ok(())) => Ok(()),
            (left, scratch) => Err(EngineError::Leftovers {
                id: self.resources.id.clone(),
                count: left + u32::from(scratch.is_err()),
                source: scratch.err().unwrap_or_else(|| io::Error::from(io::ErrorKind::ResourceBusy)),
            }),
        }
    }
}

impl Drop for LocalWalls {
    fn drop(&mut self) {
        self.resources.gateway.as_ref().inspect(|gateway| gateway.shut_down());
        let supervisor = self.supervisor.get_mut().take();
        let Some(supervisor) = supervisor else { return };
        // Dropped without a proper end: the supervisor still cleans up, and must be reaped.
        self.control.send(CLEAN);
        ORPHANS.adopt(supervisor);
    }
}
