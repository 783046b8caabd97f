//! A launched sandbox from outside: its supervisor, its control groups, and its end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use belljar_engine::{EngineError, GuestClient, NetworkLog, Usage, Walls};
use belljar_guest_config::guest_threads;
use belljar_linux::{CLEAN, CgroupChange, CgroupChangeError, CgroupLayout, KILL, Supervisor};
use belljar_model::{ByteSize, LimitsChange, NetworkPolicy, SandboxId};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketType};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::LocalKind;
use crate::failure::Failures;
use crate::gateway::Gateway;
use crate::orphans::{ORPHANS, has_ended};
use crate::progress::{Progress, async_fd, follow, how_ended};
use crate::sockets::{pair, stream};

/// How long a supervisor may take to remove everything. It gives up itself before that.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a supervisor may take to exit after its last word.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the kernel may take until everything in a sandbox stands still, or goes on.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a guest may take to make room for another connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two looks at what the kernel does, or the guest.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What belongs to a sandbox besides its supervisor.
pub(crate) struct Held {
    pub(crate) id: SandboxId,
    pub(crate) kind: LocalKind,
    /// Whether there are control groups to ask.
    pub(crate) cgroups: Option<CgroupLayout>,
    /// The scratch directory: what it is in, and its name.
    pub(crate) scratch: Option<(OwnedFd, CString)>,
    /// Where the guest takes connections, if it takes more than its first.
    pub(crate) guest_control: Option<OwnedFd>,
    /// The way to the network, if it has one.
    pub(crate) gateway: Option<Gateway>,
    pub(crate) failures: Failures,
    /// When the launch began, by CLOCK_MONOTONIC in nanoseconds, and how long its planning took before.
    pub(crate) launched: (u64, Duration),
    /// The way in for a process that was made outside, if there is one.
    pub(crate) entry: Option<crate::warm::Entry>,
    /// The template's layer, mounted as long as this.
    pub(crate) _image: Option<Arc<belljar_linux::ImageMount>>,
}

/// The walls of one sandbox.
pub(crate) struct LocalWalls {
    held: Held,
    order: Arc<Order>,
    supervisor: Mutex<Option<Supervisor>>,
    progress: watch::Receiver<Progress>,
    /// When the guest was first heard of, by CLOCK_MONOTONIC in nanoseconds.
    answered_ns: OnceLock<u64>,
    /// Moves the deadline of the task that keeps it, once there was one.
    deadline: OnceLock<watch::Sender<Option<Instant>>>,
}

/// Our end of the control socket, and what the supervisor was told on it. It reads no more than it has to: a byte too many
/// would break the connection before its last record is read.
struct Order {
    control: OwnedFd,
    told: Mutex<Option<u8>>,
    /// Whether it was the deadline that ended the sandbox.
    overdue: AtomicBool,
}

impl Order {
    /// Tells the supervisor to end the sandbox, unless it was told that, or more, before.
    fn tell(&self, byte: u8) {
        let mut told = self.told.lock();
        if told.is_none() || (*told == Some(KILL) && byte == CLEAN) {
            // A supervisor that is gone has taken everything with it.
            let _ = rustix::net::send(&self.control, &[byte], SendFlags::NOSIGNAL);
            *told = Some(byte);
        }
    }
}

impl LocalWalls {
    pub(crate) fn new(held: Held, control: OwnedFd, supervisor: Supervisor) -> io::Result<Self> {
        let (sender, progress) = watch::channel(Progress::default());
        let reader = control.try_clone()?;
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK)?;
        let reader = async_fd(reader)?;
        tokio::spawn(follow(reader, sender));
        Ok(Self {
            held,
            order: Arc::new(Order { control, told: Mutex::new(None), overdue: AtomicBool::new(false) }),
            supervisor: Mutex::new(Some(supervisor)),
            progress,
            answered_ns: OnceLock::new(),
            deadline: OnceLock::new(),
        })
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.held.id
    }

    pub(crate) fn entry(&self) -> Option<&crate::warm::Entry> {
        self.held.entry.as_ref()
    }

    /// The first process's number, once it has been cloned.
    pub(crate) fn first_process(&self) -> Option<i32> {
        self.progress.borrow().first
    }

    /// Where the guest takes what comes from outside.
    pub(crate) fn guest_control(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.held.guest_control.as_ref().map(|control| control.as_fd())
    }

    /// Whether its first process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let progress = self.progress.borrow();
        progress.ended.is_some() || progress.closed
    }

    /// Resolves when the first process has been cloned, or never will be.
    pub(crate) async fn under_way(&self) {
        let mut progress = self.progress.clone();
        let _ = progress.wait_for(|now| !now.phases.is_empty() || now.failed.is_some() || now.closed).await;
    }

    /// Resolves with the reason when the launch fails, and never when it does not.
    pub(crate) async fn failure(&self) -> EngineError {
        let mut progress = self.progress.clone();
        let over = |now: &Progress| now.failed.is_some() || now.closed || now.ended.is_some();
        // A closed channel means that its task has ended, after it had said all there was.
        let _ = progress.wait_for(over).await;
        let last = progress.borrow().clone();
        match last.failed {
            Some((step, item, errno)) => {
                self.held.failures.explain(step, item, io::Error::from_raw_os_error(errno))
            }
            None => EngineError::Ended { how: self.how(&last) },
        }
    }

    fn how(&self, progress: &Progress) -> String {
        if self.order.overdue.load(Ordering::Acquire) {
            return "its deadline has passed".to_owned();
        }
        how_ended(progress)
    }

    /// Ends the sandbox so long from now, whatever becomes of the server; `None` is never.
    pub(crate) fn keep_deadline(&self, after: Option<Duration>) {
        // What is too far away to be counted never comes.
        let until = after.and_then(|after| Instant::now().checked_add(after));
        let sender = self.deadline.get_or_init(|| {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(end_at(receiver, Arc::clone(&self.order)));
            sender
        });
        sender.send_replace(until);
    }

    /// The time until the deadline.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let until = (*self.deadline.get()?.borrow())?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// The host's end of another connection to the guest.
    pub(crate) async fn connection(&self) -> Result<OwnedFd, EngineError> {
        let Some(control) = &self.held.guest_control else {
            return Err(
                self.unsupported("another connection", "its guest has one connection and ends with it")
            );
        };
        let failed =
            |source| EngineError::Launch { step: "open another connection to the guest".to_owned(), source };
        let (host, guest) = pair(SocketType::STREAM).map_err(failed)?;
        let until = Instant::now() + CONNECT_TIMEOUT;
        loop {
            match belljar_linux::send_with(control.as_fd(), b"c", &[guest.as_fd()]) {
                Ok(_) => return Ok(host),
                Err(errno @ (Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) => {
                    return Err(self.explain_end().await.unwrap_or_else(|| failed(errno.into())));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS) if Instant::now() < until => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(errno) => return Err(failed(errno.into())),
            }
        }
    }

    /// The host's end of a connection to the gateway.
    pub(crate) fn gateway_connection(&self) -> Result<OwnedFd, EngineError> {
        let Some(gateway) = &self.held.gateway else {
            return Err(EngineError::NoNetwork);
        };
        gateway
            .connection()
            .map_err(crate::engine::launch("reach the sandbox's gateway, which has ended or is overloaded"))
    }

    fn unsupported(&self, what: &'static str, reason: &'static str) -> EngineError {
        EngineError::Unsupported { what: what.into(), engine: self.held.kind.name(), reason: reason.into() }
    }

    fn layout(&self, what: &'static str) -> Result<&CgroupLayout, EngineError> {
        self.held.cgroups.as_ref().ok_or_else(|| self.unsupported(what, "the sandbox has no control groups"))
    }

    async fn set_frozen(&self, frozen: bool) -> Result<(), EngineError> {
        let what = if frozen { "freeze" } else { "thaw" };
        let step = || format!("{what} the sandbox {}", self.held.id);
        let layout = self.layout(what)?;
        let Some(freezer) = layout.freezer_of(self.held.id.as_str()) else {
            return Err(self.unsupported(what, "there is no control group hierarchy here that can freeze"));
        };
        let failed = |source: io::Error| EngineError::Launch { step: step(), source };
        let until = Instant::now() + FREEZE_TIMEOUT;
        let done = async {
            freezer.set(frozen)?;
            let mut round = 0;
            while freezer.is_frozen()? != frozen {
                if Instant::now() > until {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                if frozen {
                    freezer.retry(round)?;
                    round += 1;
                }
            }
            Ok(())
        };
        match done.await {
            Ok(()) => Ok(()),
            // A group that is not there any more has had its sandbox.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(self.explain_end().await.unwrap_or_else(|| failed(error)))
            }
            Err(error) => {
                if frozen {
                    let _ = freezer.set(false);
                }
                Err(failed(error))
            }
        }
    }

    /// Whether everything inside stands still.
    pub(crate) fn is_frozen(&self) -> bool {
        let freezer = self.held.cgroups.as_ref().and_then(|layout| layout.freezer_of(self.held.id.as_str()));
        freezer.is_some_and(|freezer| freezer.is_frozen().unwrap_or(false))
    }

    fn change(&self, change: &LimitsChange) -> Result<(), EngineError> {
        let layout = self.layout("other limits")?;
        let asked = CgroupChange {
            memory_bytes: change.memory.map(belljar_model::Memory::bytes),
            cpu_millis: change.cpus.map(belljar_model::Cpus::millis),
            // The guest is a process as well, and not the code's affair.
            pids: change.pids.map(|pids| pids.get().saturating_add(self.guest_threads())),
            shared_by: change.shared_by.map(std::num::NonZeroU16::get),
        };
        let value = |field: &str| match field {
            "memory" => change.memory.map(|memory| memory.to_string()),
            "cpus" => change.cpus.map(|cpus| cpus.to_string()),
            _ => change.pids.map(|pids| pids.to_string()),
        };
        layout.change(self.held.id.as_str(), &asked).map_err(|error| match error {
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
        })
    }
}

/// Ends the sandbox at its deadline, which may be moved meanwhile. Ends itself when the walls are dropped.
async fn end_at(mut deadline: watch::Receiver<Option<Instant>>, order: Arc<Order>) {
    loop {
        let until = *deadline.borrow_and_update();
        let passed = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = passed => break,
            moved = deadline.changed() => if moved.is_err() { return },
        }
    }
    order.overdue.store(true, Ordering::Release);
    order.tell(CLEAN);
}

/// CLOCK_MONOTONIC, as the launch's processes report it.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Walls for LocalWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(async { self.usage_now() })
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async { self.change(change) })
    }

    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async { crate::gateway::set_policy(self.gateway_connection()?, policy).await })
    }

    fn network_log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        Box::pin(async move { crate::gateway::log(self.gateway_connection()?, after, follow).await })
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
            let stream = stream(socket).map_err(crate::engine::launch("open the guest's connection"))?;
            Ok(GuestClient::new(stream))
        })
    }

    fn record_first_answer(&self) {
        self.answered_ns.get_or_init(monotonic_ns);
    }

    fn phases(&self) -> Vec<(&'static str, Duration)> {
        let (mut last, planned) = self.held.launched;
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
        self.order.tell(KILL);
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.end())
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        let mut progress = self.progress.clone();
        Box::pin(async move {
            // A closed channel means that its task has ended, after it had said all there was.
            let _ = progress.wait_for(|progress| progress.ended.is_some() || progress.closed).await;
            let last = progress.borrow().clone();
            self.how(&last)
        })
    }
}

/// What a sandbox has used, by its control groups. `Err` has what could be read where its kills by memory are not known: the groups
/// are gone, or cannot be seen from here.
pub(crate) fn group_usage(layout: &CgroupLayout, id: &SandboxId, kind: LocalKind) -> Result<Usage, Usage> {
    let group = layout.usage(id.as_str());
    let own = u64::from(guest_threads(kind == LocalKind::Local));
    let usage = Usage {
        memory_bytes: group.memory,
        peak_memory_bytes: group.peak_memory,
        pids: group.pids.map(|pids| u32::try_from(pids.saturating_sub(own)).unwrap_or(u32::MAX)),
        cpu: group.cpu_us.map(Duration::from_micros),
        oom_kills: group.oom_kills.unwrap_or(0),
        pids_denied: group.pids_denied.unwrap_or(0),
    };
    if group.oom_kills.is_some() { Ok(usage) } else { Err(usage) }
}

impl LocalWalls {
    /// What of the processes in its control group is the guest's own.
    fn guest_threads(&self) -> u32 {
        guest_threads(self.held.kind == LocalKind::Local)
    }

    pub(crate) fn usage_now(&self) -> Usage {
        let Some(layout) = &self.held.cgroups else { return Usage::default() };
        group_usage(layout, &self.held.id, self.held.kind).unwrap_or_else(|usage| {
            // The groups go soon after the first process.
            Usage { oom_kills: self.progress.borrow().oom_kills.into(), ..usage }
        })
    }

    /// Where its control groups are.
    pub(crate) fn cgroups(&self) -> Option<&CgroupLayout> {
        self.held.cgroups.as_ref()
    }

    async fn end(&self) -> Result<(), EngineError> {
        // A supervisor that is gone already has cleaned up before it went.
        self.order.tell(CLEAN);
        let mut progress = self.progress.clone();
        let cleaned = progress.wait_for(|progress| progress.cleaned.is_some() || progress.closed);
        let _ = tokio::time::timeout(CLEAN_TIMEOUT, cleaned).await.is_ok();
        let last = self.progress.borrow().clone();
        let supervisor = self.supervisor.lock().take();
        if let Some(supervisor) = supervisor {
            // It exits right after its last record. One that hangs all the same must not hold us up.
            if has_ended(&supervisor, END_TIMEOUT) {
                drop(supervisor);
            } else {
                ORPHANS.adopt(supervisor);
            }
        }
        if let Some(gateway) = &self.held.gateway {
            gateway.end().await;
        }
        match last.cleaned {
            Some((0, _)) => Ok(()),
            Some((count, errno)) => Err(EngineError::Leftovers {
                id: self.held.id.clone(),
                count,
                source: io::Error::from_raw_os_error(errno),
            }),
            None => self.clean_up_after_supervisor(),
        }
    }

    /// Somebody has killed the supervisor: its first process dies with it, the rest is ours to remove.
    fn clean_up_after_supervisor(&self) -> Result<(), EngineError> {
        let left = self.held.cgroups.as_ref().map_or(0, |layout| layout.remove(self.held.id.as_str()));
        let scratch = self.held.scratch.as_ref().map_or(Ok(()), |(parent, name)| {
            belljar_linux::remove_tree(parent.as_fd(), name).map_err(io::Error::from)
        });
        match (left, scratch) {
            (0, Ok(())) => Ok(()),
            (left, scratch) => Err(EngineError::Leftovers {
                id: self.held.id.clone(),
                count: left + u32::from(scratch.is_err()),
                source: scratch.err().unwrap_or_else(|| io::Error::from(io::ErrorKind::ResourceBusy)),
            }),
        }
    }
}

impl Drop for LocalWalls {
    fn drop(&mut self) {
        let supervisor = self.supervisor.get_mut().take();
        let Some(supervisor) = supervisor else { return };
        // Nobody asked for a proper end: the supervisor is told all the same, and somebody must take note of its end.
        self.order.tell(CLEAN);
        ORPHANS.adopt(supervisor);
    }
}
