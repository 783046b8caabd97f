//! User namespaces made only for their id map, and probes of what namespaces the caller may make.

#![expect(unsafe_code, reason = "a raw clone; the blocks say why they are sound")]

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::kernel::{self, CLONE_NEWTIME, Cloned};
use crate::network::GatewayPlan;
use crate::network_unsafe::loopback_up;

/// The bit of the user namespace (`CLONE_NEWUSER`).
pub const USER_NAMESPACE: u64 = libc::CLONE_NEWUSER as u64;

/// The bit of the control group namespace (`CLONE_NEWCGROUP`).
pub const CGROUP_NAMESPACE: u64 = libc::CLONE_NEWCGROUP as u64;

/// The bit of the pid namespace (`CLONE_NEWPID`).
pub const PID_NAMESPACE: u64 = libc::CLONE_NEWPID as u64;

/// All the namespaces of a sandbox, as `CLONE_NEW*` bits.
pub const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64
    | CLONE_NEWTIME;

/// Probes whether all the namespaces of a sandbox can be made, and drops them again.
///
/// # Errors
/// `EPERM` if the machine forbids it, `ENOSPC` if `user.max_user_namespaces` is used up, `EINVAL` if the kernel lacks a
/// type of namespace.
pub fn try_user_namespace() -> Result<(), Errno> {
    // SAFETY: the child only exits.
    match unsafe { kernel::clone3(NAMESPACES, None) }? {
        Cloned::Child => kernel::exit_now(0),
        Cloned::Parent { pidfd, .. } => reap(&pidfd).map(drop),
    }
}

/// Probes whether a network namespace can be made and redirected to a gateway, and drops it again.
///
/// # Errors
/// As [`try_user_namespace`], and the kernel's reason if it lacks `nf_tables` or `nft_tproxy`.
pub fn try_network() -> Result<(), Errno> {
    let (control, _other) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let plan = GatewayPlan::new(control);
    // SAFETY: the child makes fork-safe calls and exits.
    let pidfd = match unsafe { kernel::clone3((libc::CLONE_NEWUSER | libc::CLONE_NEWNET) as u64, None) }? {
        Cloned::Child => {
            let made = loopback_up().and_then(|()| plan.redirect());
            kernel::exit_now(made.map_or_else(Errno::raw_os_error, |_| 0))
        }
        Cloned::Parent { pidfd, .. } => pidfd,
    };
    match reap(&pidfd)? {
        Some(0) => Ok(()),
        Some(errno) => Err(Errno::from_raw_os_error(errno)),
        None => Err(Errno::INTR),
    }
}

/// Makes a user namespace for an idmapped mount, which maps `count` ids from `inside` on to those from `outside` on, for users and for
/// groups. Needs CAP_SETUID and CAP_SETGID.
///
/// # Errors
/// The kernel's reason.
pub fn user_namespace_with_map(
    inside: (u32, u32),
    outside: (u32, u32),
    count: u32,
) -> Result<OwnedFd, Errno> {
    let parent = rustix::process::getpid();
    // SAFETY: the child only waits to be killed; all its calls are fork-safe.
    let (pid, pidfd) = match unsafe { kernel::clone3(libc::CLONE_NEWUSER as u64, None) }? {
        Cloned::Child => wait_for_kill(parent),
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    let write = |name: &str, text: String| {
        let path = format!("/proc/{pid}/{name}");
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes()).map(drop)
    };
    let made = write("uid_map", format!("{} {} {count}", inside.0, outside.0))
        .and_then(|()| write("gid_map", format!("{} {} {count}", inside.1, outside.1)))
        .and_then(|()| {
            rustix::fs::open(format!("/proc/{pid}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        });
    let _ = kernel::pidfd_kill(pidfd.as_fd(), libc::SIGKILL);
    reap(&pidfd)?;
    made
}

/// Waits until the parent kills this child, or is killed itself, which nothing else would notice. Fork-safe.
fn wait_for_kill(parent: rustix::process::Pid) -> ! {
    if kernel::die_with_parent(libc::SIGKILL).is_ok() {
        // If the parent died before that, this child has another parent already.
        while rustix::process::getppid() == Some(parent) {
            let _ = rustix::event::poll(&mut [], None);
        }
    }
    kernel::exit_now(0)
}

/// Reaps a child. Returns its exit status, or `None` if a signal ended it.
fn reap(pidfd: &OwnedFd) -> Result<Option<i32>, Errno> {
    use rustix::process::{WaitId, WaitIdOptions};
    loop {
        match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Err(Errno::INTR) => {}
            other => return other.map(|status| status?.exit_status()),
        }
    }
}
