//! Marking what a process starts as the first to go when memory runs out.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// Higher than that of anything that has not asked for it, so that the guest itself outlives its children.
const OOM_SCORE: &[u8] = b"500";

/// Marks this process, and with it all its later children, as the first to go when memory runs out. `proc` is a `/proc` that it may
/// write to.
///
/// # Errors
/// The kernel's reason.
pub fn mark_for_oom(proc: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, c"self/oom_score_adj", flags, Mode::empty())?;
    rustix::io::write(&file, OOM_SCORE)?;
    Ok(())
}

/// This process's own `oom_score_adj` (proc_pid_oom_score_adj(5)), which a child inherits.
///
/// It is raised while a child is made and put back then: whoever has raised it may lower it again to what the last
/// process with CAP_SYS_RESOURCE set. Written from outside, a child would have to be there still, and open to inspection.
/// A child may undo the mark, and loses nothing by that but its place in the queue.
#[derive(Debug)]
pub struct OomMark {
    file: OwnedFd,
    own: Vec<u8>,
}

impl OomMark {
    /// Opens the score of this process in a `/proc`, as long as the process is open to inspection.
    ///
    /// # Errors
    /// `EACCES` if it is not any more (PR_SET_DUMPABLE), else the kernel's reason.
    pub fn open(proc: BorrowedFd<'_>) -> io::Result<Self> {
        let file =
            rustix::fs::openat(proc, c"self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut own = vec![0; 16];
        let length = rustix::io::read(&file, &mut own)?;
        own.truncate(length);
        Ok(Self { file, own })
    }

    /// Raises the score until the answer is dropped. A failure is no reason to start nothing.
    pub(crate) fn raise(&self) -> Raised<'_> {
        let _ = rustix::io::pwrite(&self.file, OOM_SCORE, 0);
        Raised(self)
    }
}

/// While this lives, the score is that of a child.
pub(crate) struct Raised<'a>(&'a OomMark);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        let _ = rustix::io::pwrite(&self.0.file, &self.0.own, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_child_has_the_mark_and_its_maker_has_not() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open(c"/proc", flags, Mode::empty()).unwrap();
        let mark = OomMark::open(proc.as_fd()).unwrap();
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        let raised = mark.raise();
        let child = std::process::Command::new("cat").arg("/proc/self/oom_score_adj").output().unwrap();
        drop(raised);
        assert_eq!(String::from_utf8_lossy(&child.stdout).trim(), "500");
        assert_eq!(std::fs::read_to_string("/proc/self/oom_score_adj").unwrap(), own);
    }
}
