//! Supervisors whose sandboxes were dropped, to be reaped.

use std::time::Duration;

use belljar_linux::Supervisor;
use parking_lot::Mutex;

/// Supervisors whose sandboxes were dropped; each is reaped when the next one is added, or at the end of the process.
pub(crate) static ORPHANS: Orphans = Orphans { list: Mutex::new(Vec::new()) };

pub(crate) struct Orphans {
    list: Mutex<Vec<Supervisor>>,
}

impl Orphans {
    pub(crate) fn adopt(&self, supervisor: Supervisor) {
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
