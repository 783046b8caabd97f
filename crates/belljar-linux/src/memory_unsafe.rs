//! Memory of a process that forks others.

#![expect(unsafe_code, reason = "mappings and the allocator's settings; each block says why it is sound")]

use std::ffi::c_void;

use rustix::io::Errno;

use crate::kernel::{check, last_errno};

/// Gives free memory of the allocator back to the kernel (malloc_trim(3)).
pub(crate) fn give_back_memory() {
    // SAFETY: the call changes nothing that is allocated.
    unsafe { libc::malloc_trim(0) };
}

/// Memory that processes cloned from this one do not get (`MADV_DONTFORK`, madvise(2)).
pub(crate) struct UnsharedMemory {
    base: *mut c_void,
    length: usize,
}

impl UnsharedMemory {
    /// Maps `length` bytes, which are zero.
    ///
    /// # Errors
    /// The kernel's reason.
    pub(crate) fn new(length: usize) -> Result<Self, Errno> {
        // SAFETY: a fresh private mapping at an address that the kernel chooses.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let memory = Self { base, length };
        // SAFETY: exactly the mapping just made.
        check(unsafe { libc::madvise(base, length, libc::MADV_DONTFORK) }.into())?;
        Ok(memory)
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this long, initialised, and borrowed through `self` alone. A child that is cloned has no use for it: it
        // never returns to what uses this.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.length) }
    }
}

impl Drop for UnsharedMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made.
        unsafe { libc::munmap(self.base, self.length) };
    }
}
