//! Supervisors that nobody waits for any more, and taking note of their end.

use std::time::Duration;

use belljar_linux::Supervisor;
use parking_lot::Mutex;

/// Supervisors whose sandboxes were dropped; each is reaped when the next one comes, or at the end of the process.
pub(crate) static ORPHANS: Orphans = Orphans { list: Mutex::new(Vec::new()) };

pub(crate) struct Orphans {
    list: Mutex<Vec<Supervisor>>,
}

impl Orphans {
    pub(crate) fn adopt(&self, supervisor: Supervisor) {
        let mut list = self.list.lock();
        list.retain(|old| !has_ended(old, Duration::ZERO));
        list.push(supervisor);
    }
}

/// Waits for a supervisor's end, and takes note of it.
pub(crate) fn has_ended(supervisor: &Supervisor, patience: Duration) -> bool {
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
