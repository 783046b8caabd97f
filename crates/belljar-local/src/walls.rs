//! A launched sandbox from outside: its supervisor, what that reports, and its end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use belljar_engine::{EngineError, Usage, Walls};
use belljar_linux::{CLEAN, CgroupLayout, KILL, LaunchPhase, REPORT_LEN, Report, Supervisor};
use belljar_model::{Memory, SandboxId};
use futures::future::BoxFuture;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::failure::Failures;

/// How long a supervisor may take to remove everything. It gives up itself before that.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a supervisor may take to exit after its last word.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The walls of one sandbox.
pub(crate) struct LocalWalls {
    id: SandboxId,
    control: OwnedFd,
    supervisor: Option<Supervisor>,
    /// Whether there are control groups to ask.
    cgroups: Option<CgroupLayout>,
    /// The scratch directory: what it is in, and its name.
    scratch: Option<(OwnedFd, CString)>,
    progress: watch::Receiver<Progress>,
    failures: Failures,
    /// When the launch began, by CLOCK_MONOTONIC in nanoseconds, and how long its planning took before.
    launched: (u64, Duration),
    /// When the guest was first heard of, by the same clock.
    answered_ns: OnceLock<u64>,
}

/// What the supervisor has reported so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    pub(crate) failed: Option<(belljar_linux::Step, u32, i32)>,
    pub(crate) ended: Option<i32>,
    pub(crate) cleaned: Option<(u32, i32)>,
    /// When each phase of the launch was over, by CLOCK_MONOTONIC in nanoseconds.
    pub(crate) phases: Vec<(&'static str, u64)>,
    /// The supervisor is gone.
    pub(crate) closed: bool,
}

impl Progress {
    fn note(&mut self, report: Report) {
        match report {
            // What fails after the first failure fails because of it.
            Report::Failed { step, item, errno } => {
                self.failed.get_or_insert((step, item, errno));
            }
            Report::Ended { status } => self.ended = Some(status),
            Report::Cleaned { left, errno } => self.cleaned = Some((left, errno)),
            Report::Reached { phase, at_ns } => {
                let name = LaunchPhase::ALL.iter().find(|(known, _)| *known == phase).map(|(_, name)| *name);
                self.phases.extend(name.map(|name| (name, at_ns)));
            }
            Report::Started { .. } => {}
        }
    }
}

impl LocalWalls {
    pub(crate) fn new(
        id: SandboxId,
        control: OwnedFd,
        supervisor: Supervisor,
        cgroups: Option<CgroupLayout>,
        scratch: Option<(OwnedFd, CString)>,
        failures: Failures,
        launched: (u64, Duration),
    ) -> io::Result<Self> {
        let (sender, progress) = watch::channel(Progress::default());
        let reader = control.try_clone()?;
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK)?;
        let reader = async_fd(reader)?;
        tokio::spawn(follow(reader, sender));
        let answered_ns = OnceLock::new();
        let supervisor = Some(supervisor);
        Ok(Self { id, control, supervisor, cgroups, scratch, progress, failures, launched, answered_ns })
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
                self.failures.explain(step, item, io::Error::from_raw_os_error(errno))
            }
            None => EngineError::Ended { how: how_ended(&last) },
        }
    }
}

/// CLOCK_MONOTONIC, as the launch's processes report it.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Watches a descriptor with tokio.
#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}

fn how_ended(progress: &Progress) -> String {
    match progress.ended {
        Some(status) if status < 0 => {
            let signal = belljar_model::signal_name(-status)
                .map_or_else(|| format!("signal {}", -status), str::to_owned);
            format!("its first process was ended by {signal}")
        }
        Some(crate::GUEST_WITHOUT_LANDLOCK) => {
            "its first process could not make the Landlock domain of user code; \
             use a kernel with Landlock, and \"landlock\" in its lsm= list"
                .to_owned()
        }
        Some(crate::GUEST_WITHOUT_SETUP) => {
            "its first process could not build a wall of its own, such as being closed to inspection"
                .to_owned()
        }
        Some(status) => format!("its first process exited with status {status}"),
        None => "its supervisor is gone".to_owned(),
    }
}

async fn follow(reader: AsyncFd<OwnedFd>, sender: watch::Sender<Progress>) {
    let mut records = [0u8; 16 * REPORT_LEN];
    loop {
        let Ok(mut ready) = reader.readable().await else { break };
        // Records are written whole, and the kernel keeps their borders (SOCK_SEQPACKET).
        match rustix::net::recv(&reader, &mut records, RecvFlags::DONTWAIT) {
            Ok((length @ 1.., _)) => sender.send_modify(|progress| {
                let (reports, _) = records[..length].as_chunks::<REPORT_LEN>();
                reports.iter().filter_map(Report::decode).for_each(|report| progress.note(report));
            }),
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    sender.send_modify(|progress| progress.closed = true);
}

impl Walls for LocalWalls {
    fn usage(&self) -> Usage {
        let Some(layout) = &self.cgroups else { return Usage::default() };
        let usage = layout.usage(self.id.as_str());
        Usage {
            peak_memory_bytes: usage.peak_memory,
            cpu: usage.cpu_us.map(Duration::from_micros),
            oom_kills: usage.oom_kills.unwrap_or(0),
            pids_denied: usage.pids_denied.unwrap_or(0),
        }
    }

    fn set_memory(&self, memory: Memory) -> Result<(), EngineError> {
        // Without control groups the guest watches, by the limit that it was started with.
        let Some(layout) = &self.cgroups else { return Ok(()) };
        layout.set_memory(self.id.as_str(), memory.bytes()).map_err(|source| EngineError::Launch {
            step: format!("set the sandbox's memory limit to {memory}"),
            source,
        })
    }

    fn answered(&self) {
        self.answered_ns.get_or_init(monotonic_ns);
    }

    fn phases(&self) -> Vec<(&'static str, Duration)> {
        let (mut last, planned) = self.launched;
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

    fn gone(&self) -> BoxFuture<'_, Option<EngineError>> {
        Box::pin(async { tokio::time::timeout(END_TIMEOUT, self.failure()).await.ok() })
    }

    fn kill(&self) {
        // A supervisor that is gone has taken everything with it.
        let _ = rustix::net::send(&self.control, &[KILL], SendFlags::NOSIGNAL);
    }

    fn stop(self: Box<Self>) -> BoxFuture<'static, Result<(), EngineError>> {
        Box::pin(self.end())
    }

    fn ended(&self) -> BoxFuture<'_, String> {
        let mut progress = self.progress.clone();
        Box::pin(async move {
            // A closed channel means that its task has ended, after it had said all there was.
            let _ = progress.wait_for(|progress| progress.ended.is_some() || progress.closed).await;
            let last = progress.borrow().clone();
            how_ended(&last)
        })
    }
}

impl LocalWalls {
    async fn end(mut self: Box<Self>) -> Result<(), EngineError> {
        // A supervisor that is gone already has cleaned up before it went.
        let _ = rustix::net::send(&self.control, &[CLEAN], SendFlags::NOSIGNAL);
        let mut progress = self.progress.clone();
        let cleaned = progress.wait_for(|progress| progress.cleaned.is_some() || progress.closed);
        let _ = tokio::time::timeout(CLEAN_TIMEOUT, cleaned).await.is_ok();
        let last = self.progress.borrow().clone();
        if let Some(supervisor) = self.supervisor.take() {
            // It exits right after its last record. One that hangs all the same must not hold us up.
            if has_ended(&supervisor, END_TIMEOUT) {
                drop(supervisor);
            } else {
                ORPHANS.adopt(supervisor);
            }
        }
        match last.cleaned {
            Some((0, _)) => Ok(()),
            Some((count, errno)) => Err(EngineError::Left {
                id: self.id.clone(),
                count,
                source: io::Error::from_raw_os_error(errno),
            }),
            None => self.clean_up_after_supervisor(),
        }
    }
}

impl LocalWalls {
    /// Somebody has killed the supervisor: its first process dies with it, the rest is ours to remove.
    fn clean_up_after_supervisor(&self) -> Result<(), EngineError> {
        let left = self.cgroups.as_ref().map_or(0, |layout| layout.remove(self.id.as_str()));
        let scratch = self.scratch.as_ref().map_or(Ok(()), |(parent, name)| {
            belljar_linux::remove_tree(parent.as_fd(), name).map_err(io::Error::from)
        });
        match (left, scratch) {
            (0, Ok(())) => Ok(()),
            (left, scratch) => Err(EngineError::Left {
                id: self.id.clone(),
                count: left + u32::from(scratch.is_err()),
                source: scratch.err().unwrap_or_else(|| io::Error::from(io::ErrorKind::ResourceBusy)),
            }),
        }
    }
}

impl Drop for LocalWalls {
    fn drop(&mut self) {
        let Some(supervisor) = self.supervisor.take() else { return };
        // Nobody asked for a proper end: the supervisor is told all the same, and somebody must take note of its end.
        let _ = rustix::net::send(&self.control, &[CLEAN], SendFlags::NOSIGNAL);
        ORPHANS.adopt(supervisor);
    }
}

/// Supervisors whose sandboxes were dropped; each is reaped when the next one comes, or at the end of the process.
static ORPHANS: Orphans = Orphans { list: Mutex::new(Vec::new()) };

struct Orphans {
    list: Mutex<Vec<Supervisor>>,
}

impl Orphans {
    fn adopt(&self, supervisor: Supervisor) {
        let mut list = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        list.retain(|old| !has_ended(old, Duration::ZERO));
        list.push(supervisor);
    }
}

/// Waits for a supervisor's end, and takes note of it.
fn has_ended(supervisor: &Supervisor, patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let pidfd = supervisor.pidfd();
    let mut polls = [PollFd::new(&pidfd, PollFlags::IN)];
    let patience = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    if matches!(rustix::event::poll(&mut polls, Some(&patience)), Ok(1)) {
        supervisor.reap();
        return true;
    }
    false
}

/// A pair of sockets that keep the borders of records, closed by an exec.
pub(crate) fn control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (host, sandbox) = pair(rustix::net::SocketType::SEQPACKET)?;
    // Out of the way of the low numbers, which the sandbox's first process rearranges.
    let sandbox = rustix::io::fcntl_dupfd_cloexec(sandbox.as_fd(), 64)?;
    debug_assert!(sandbox.as_raw_fd() >= 64, "asked for above");
    Ok((host, sandbox))
}

/// A connected pair of sockets, closed by an exec.
pub(crate) fn pair(kind: rustix::net::SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    Ok(rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None)?)
}
