//! Children: supervisors whose sandboxes were dropped, to be reaped, and others whose end is waited for in the background.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Duration;

use belljar_linux::Supervisor;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::progress::async_fd;

/// Supervisors that have not ended in time; each is reaped when it has.
pub(crate) static ORPHANS: Orphans = Orphans { list: Mutex::new(Vec::new()) };

pub(crate) struct Orphans {
    list: Mutex<Vec<Supervisor>>,
}

impl Orphans {
    pub(crate) fn adopt(&self, supervisor: Supervisor) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return self.keep(supervisor) };
        match supervisor.pidfd().try_clone_to_owned().and_then(async_fd) {
            Ok(ended) => drop(runtime.spawn(async move {
                if ended.readable().await.is_ok() {
                    supervisor.reap();
                }
            })),
            Err(_) => self.keep(supervisor),
        }
    }

    /// Reaps it when the next one is added, or at the end of the process.
    fn keep(&self, supervisor: Supervisor) {
        let mut list = self.list.lock();
        list.retain(|old| !wait_for_exit(old, Duration::ZERO));
        list.push(supervisor);
    }
}

/// Waits for a supervisor's exit and reaps it. Returns whether it exited within the timeout.
pub(crate) fn wait_for_exit(supervisor: &Supervisor, timeout: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let pidfd = supervisor.pidfd();
    let mut polls = [PollFd::new(&pidfd, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    if matches!(rustix::event::poll(&mut polls, Some(&timeout)), Ok(1)) {
        supervisor.reap();
        return true;
    }
    false
}

/// Ends a process without its doing: a gateway has nothing to clean up, nor has a fork server.
pub(crate) const SIGKILL: i32 = 9;

/// Waits for the end of a child in the background, so that it does not stay a zombie. Returns its pidfd, and a receiver of its end.
pub(crate) fn watch_child(mut child: Child) -> io::Result<(OwnedFd, watch::Receiver<bool>)> {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
    // The child has not been waited for, so the number is still its own.
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let readable = async_fd(pidfd.try_clone()?)?;
    let (sender, ended) = watch::channel(false);
    tokio::spawn(async move {
        if readable.readable().await.is_ok() {
            let _ = child.wait();
            sender.send_replace(true);
        }
    });
    Ok((pidfd, ended))
}
