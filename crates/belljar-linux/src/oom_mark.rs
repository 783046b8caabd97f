//! Marking a process's children as preferred victims of the OOM killer.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// Score of the guest's children: above the default of 0, so that the guest outlives them.
const OOM_SCORE: &[u8] = b"500";

/// Marks this process, and all its later children, as preferred victims of the OOM killer. `proc` is a `/proc` that it may
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
/// It is raised while a child is made and restored afterwards: a process may lower its score again to the value that the last
/// process with CAP_SYS_RESOURCE set. Writing the score of a child instead would need the child to be still alive and
/// dumpable. A child may undo the mark, which only makes it a less likely victim.
#[derive(Debug)]
pub struct OomMark {
    file: OwnedFd,
    own: Vec<u8>,
}

impl OomMark {
    /// Opens the score of this process in a `/proc`. The process must still be dumpable.
    ///
    /// # Errors
    /// `EACCES` if it is no longer dumpable (PR_SET_DUMPABLE), else the kernel's reason.
    pub fn open(proc: BorrowedFd<'_>) -> io::Result<Self> {
        let file =
            rustix::fs::openat(proc, c"self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut own = vec![0; 16];
        let length = rustix::io::read(&file, &mut own)?;
        own.truncate(length);
        Ok(Self { file, own })
    }

    /// Raises the score until the returned guard is dropped. Errors are ignored: a child without the mark is better than none.
    pub(crate) fn raise(&self) -> Raised<'_> {
        let _ = rustix::io::pwrite(&self.file, OOM_SCORE, 0);
        Raised(self)
    }
}

/// Guard that restores the score when it is dropped.
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
    fn only_the_child_has_the_raised_score() {
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
