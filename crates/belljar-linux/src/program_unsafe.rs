//! Starting another program of the engine's own in the control groups of a sandbox.

#![expect(unsafe_code, reason = "a hook between fork and exec; the block says why it is sound")]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Has the program, when it is started, lead a session of its own and join these groups first: the lists of their
/// processes, open for writing.
pub(crate) fn join_groups(command: &mut Command, groups: Vec<OwnedFd>) {
    let join = move || {
        rustix::process::setsid()?;
        for group in &groups {
            rustix::io::write(group, b"0")?;
        }
        Ok(())
    };
    // SAFETY: the hook makes system calls only, and neither allocates nor takes a lock: its errors are numbers.
    unsafe {
        command.pre_exec(join);
    }
}
