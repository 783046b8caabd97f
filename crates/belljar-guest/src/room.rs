//! The memory that is left in the sandbox. What the guest itself writes counts against it as well, and the kernel would kill a process
//! of the sandbox, in the end the guest, where a file is an error.

use std::sync::OnceLock;

use belljar_linux::MemoryFiles;
use rustix::io::Errno;

/// The files of the control group, once the host has sent them: as the group is, there is one for each process.
static MEMORY: OnceLock<MemoryFiles> = OnceLock::new();

/// Sets the files of the control group. Only the first call has an effect.
pub(crate) fn set_memory_files(files: MemoryFiles) {
    let _ = MEMORY.set(files);
}

/// Reports whether files of this many bytes more leave the processes enough memory.
pub(crate) fn has_room(bytes: u64) -> bool {
    MEMORY.get().is_none_or(|files| files.has_room(bytes))
}

/// Checks [`has_room`].
///
/// # Errors
/// `ENOMEM` if there is none.
pub(crate) fn check(bytes: usize) -> Result<(), Errno> {
    if has_room(bytes as u64) { Ok(()) } else { Err(Errno::NOMEM) }
}
