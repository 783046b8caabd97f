//! The two clones of a launch.

#![expect(unsafe_code, reason = "raw clones; each block says why it is sound")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::fork_server::ForkServer;
use crate::kernel::{self, Cloned};
use crate::plan::LaunchPlan;

/// A started supervisor.
#[derive(Debug)]
pub struct Supervisor {
    pidfd: OwnedFd,
    /// The process that has started it and has to reap it, if it is not this one, and its id there.
    parent: Option<(Arc<ForkServer>, Pid)>,
}

impl Supervisor {
    pub(crate) fn of_fork_server(pidfd: OwnedFd, parent: Arc<ForkServer>, pid: Pid) -> Self {
        Self { pidfd, parent: Some((parent, pid)) }
    }

    /// Returns the pidfd, which becomes readable when the supervisor has ended; it must then be reaped.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Waits for the supervisor to end and reaps it, so that no zombie remains. Blocks. That of a fork server must have ended.
    pub fn reap(&self) {
        if let Some((parent, pid)) = &self.parent {
            return parent.reap(*pid);
        }
        use rustix::process::{WaitId, WaitIdOptions};
        while let Err(Errno::INTR) =
            rustix::process::waitid(WaitId::PidFd(self.pidfd()), WaitIdOptions::EXITED)
        {}
    }
}

/// Starts the supervisor of one sandbox, which carries out the plan and reports on `control`; closing the other end
/// of `control`, or writing a byte to it, ends the sandbox. May be called from any thread; the process is cloned, so a
/// small process starts sandboxes faster.
///
/// # Errors
/// The kernel's reason for refusing the clone.
pub fn start(plan: &LaunchPlan, control: &OwnedFd) -> Result<Supervisor, Errno> {
    let (_, pidfd) = start_process(plan, control)?;
    // The supervisor starts on this processor, and everything waits for it.
    rustix::thread::sched_yield();
    Ok(Supervisor { pidfd, parent: None })
}

/// Starts the supervisor, and returns its process id and its pidfd.
pub(crate) fn start_process(plan: &LaunchPlan, control: &OwnedFd) -> Result<(i32, OwnedFd), Errno> {
    // The first reading of the clock looks for the vDSO, and allocates if there is no PR_GET_AUXV (before Linux 6.4). The
    // processes of the launch read the clock too, and may not allocate.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The first process reports on it until it is the guest, whose descriptors have the lowest numbers by then.
    let control = rustix::io::fcntl_dupfd_cloexec(control, crate::init::SAFE_FD)?;
    // SAFETY: the child runs `supervise::run` only, which is written to be fork-safe and never returns.
    match unsafe { kernel::clone3(0, None) }? {
        Cloned::Child => crate::supervise::run(plan, control.as_fd()),
        Cloned::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}

/// Clones the sandbox's first process from the supervisor.
pub(crate) fn clone_child(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    // SAFETY: called by the supervisor, whose child runs `init::become_guest` only and then exits; both are written
    // to be fork-safe.
    unsafe { kernel::clone3(namespaces, cgroup) }
}
