//! The clone behind [`crate::spawn()`].

#![expect(unsafe_code, reason = "a raw clone; the block says why it is sound")]

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Runs `child` in a new process that shares this memory until it execs.
pub(crate) fn vfork(child: impl FnMut() -> Errno) -> io::Result<(i32, Option<OwnedFd>)> {
    // SAFETY: the only caller is `spawn`, whose closure is written to be fork-safe, does not unwind, and frees nothing
    // of the parent's (it forgets what it opens).
    unsafe { crate::kernel::spawn_vfork(child) }
}
