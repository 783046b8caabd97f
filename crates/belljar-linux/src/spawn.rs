//! Starting user processes from inside the sandbox, on behalf of the guest.

// A panic between a clone and an exec would allocate and print: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::Mode;
use rustix::io::Errno;

use crate::kernel::{self, CStringArray};
use crate::oom_mark::OomMark;

/// One process to start.
#[derive(Debug)]
pub struct SpawnPlan<'a> {
    /// Paths to try in order, as a search in PATH yields them.
    pub candidates: &'a [CString],
    /// Arguments, the program's name first.
    pub argv: &'a CStringArray,
    /// The whole environment.
    pub envp: &'a CStringArray,
    /// The working directory.
    pub cwd: CString,
    /// The user as whom it runs, if not the thread's own. The thread must be root.
    pub user: Option<&'a User>,
    /// Its standard input, output and error.
    pub streams: [BorrowedFd<'a>; 3],
    /// Its descriptor [`CONTROL_FD`], over which a shell reports that a command has ended.
    pub control: Option<BorrowedFd<'a>>,
    /// True if its standard input is a terminal that becomes its controlling terminal.
    pub terminal: bool,
    /// The Landlock ruleset to enforce on it, unless the thread that starts it is already in that domain.
    pub landlock: Option<BorrowedFd<'a>>,
    /// Marks it as preferred victim of the OOM killer.
    pub oom_mark: Option<&'a OomMark>,
    /// `(resource, value)` limits on top of the guest's own.
    pub rlimits: &'a [(u32, u64)],
    /// Its umask.
    pub umask: u32,
    /// True if it must be killed when the guest ends, where no pid namespace does that.
    pub die_with_guest: bool,
    /// True if descriptors other than its streams are closed; false in tests only.
    pub close_descriptors: bool,
    /// True if the child deliberately allocates, to test that this is detected; never in a release.
    pub allocates: bool,
}

/// A user of the sandbox's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

/// The number of the control descriptor: the highest that every shell can redirect.
pub const CONTROL_FD: i32 = 9;

/// A started process.
#[derive(Debug)]
pub struct Spawned {
    /// Its pid, in the guest's pid namespace.
    pub pid: i32,
    /// Its pidfd, if the kernel has any.
    pub pidfd: Option<OwnedFd>,
}

/// Error from starting a process.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No candidate exists.
    #[error("no such program")]
    NotFound,
    /// The kernel refused; `EACCES` means a file that is not executable, `EAGAIN` the process limit.
    #[error("cannot start the process")]
    Refused(#[source] io::Error),
    /// The working directory cannot be entered.
    #[error("cannot enter the working directory")]
    WorkingDirectory(#[source] io::Error),
}

/// Starts a process in a session of its own.
///
/// # Errors
/// See [`SpawnError`].
pub fn spawn(plan: &SpawnPlan<'_>) -> Result<Spawned, SpawnError> {
    let mut in_cwd = false;
    let result = {
        let _marked = plan.oom_mark.map(OomMark::raise);
        crate::spawn_unsafe::vfork(|| match prepare(plan, &mut in_cwd) {
            Ok(()) => exec(plan),
            Err(errno) => errno,
        })
    };
    match result {
        Ok((pid, pidfd)) => Ok(Spawned { pid, pidfd }),
        Err(error) if in_cwd => Err(SpawnError::WorkingDirectory(error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(SpawnError::NotFound),
        Err(error) => Err(SpawnError::Refused(error)),
    }
}

/// Prepares the child for its exec. Fork-safe.
fn prepare(plan: &SpawnPlan<'_>, in_cwd: &mut bool) -> Result<(), Errno> {
    #[cfg(feature = "mutation")]
    if plan.allocates {
        crate::fork_guard::allocate();
    }
    rustix::process::setsid()?;
    if plan.terminal {
        rustix::process::ioctl_tiocsctty(plan.streams[0])?;
    }
    if let Some(user) = plan.user {
        kernel::become_user(user.uid, user.gid, &user.groups)?;
    }
    rustix::process::umask(Mode::from_raw_mode(plan.umask));
    if plan.die_with_guest {
        kernel::die_with_parent(libc::SIGKILL)?;
    }
    for (resource, value) in plan.rlimits {
        // The current hard limit cannot be raised, and need not be.
        let value = kernel::get_rlimit(*resource)?.1.min(*value);
        kernel::set_rlimit(*resource, value, value)?;
    }
    if let Some(ruleset) = plan.landlock {
        kernel::restrict_landlock(ruleset)?;
    }
    // The streams may have any numbers, even each other's final ones: first move them up, then onto 0 to 2.
    let mut high: [Option<OwnedFd>; 3] = [const { None }; 3];
    for (slot, stream) in high.iter_mut().zip(plan.streams) {
        *slot = Some(rustix::io::fcntl_dupfd_cloexec(stream, 10)?);
    }
    for (number, stream) in (0..).zip(&high) {
        if let Some(stream) = stream {
            kernel::dup_onto(stream.as_fd(), number)?;
        }
    }
    let control = match plan.control {
        Some(control) => Some(rustix::io::fcntl_dupfd_cloexec(control, 10)?),
        None => None,
    };
    if plan.close_descriptors {
        // Now, and not at the exec: the paths of the working directory and of the program must not lead to them (`/proc/self/fd`).
        let kept = control.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        kernel::close_all_but(&mut [0, 1, 2, kept])?;
    }
    // After the others are closed, as this one stays open.
    if let Some(control) = &control {
        kernel::dup_onto(control.as_fd(), CONTROL_FD)?;
    }
    std::mem::forget((high, control));
    *in_cwd = true;
    rustix::process::chdir(plan.cwd.as_c_str())?;
    *in_cwd = false;
    kernel::reset_signals();
    Ok(())
}

/// Tries the candidates as execvp(3) does: a missing one leads to the next, a forbidden one is remembered.
fn exec(plan: &SpawnPlan<'_>) -> Errno {
    let mut reason = Errno::NOENT;
    for candidate in plan.candidates {
        match kernel::exec_path(candidate, plan.argv, plan.envp) {
            Errno::NOENT | Errno::NOTDIR => {}
            Errno::ACCESS => reason = Errno::ACCESS,
            other => return other,
        }
    }
    reason
}
