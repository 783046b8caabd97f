//! Enforces the rule that nothing is allocated or freed between a clone and an exec. Only builds for tests have it
//! (feature `mutation`): there every process of a launch runs under it; docs/fork-safety.md describes what it detects.

#![expect(unsafe_code, reason = "an allocator; each block says why it is sound")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Exit status of a process that broke the rule.
pub const ALLOCATED: i32 = 86;

thread_local! {
    /// True while this thread is between a clone and an exec. A child of a plain clone has its own copy; a child that shares
    /// memory uses the copy of its parent, which is suspended in the meantime.
    static FORKED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, except that it ends a process that uses it between a clone and an exec. For
/// `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForkGuard;

/// Forbids allocation from here on; the child's first act. Fork-safe.
pub(crate) fn enter() {
    FORKED.set(true);
}

/// Allows allocation again, in a parent after a child that shared its memory. Fork-safe.
pub(crate) fn leave() {
    FORKED.set(false);
}

/// Allocates, for the tests that show that this is detected.
pub(crate) fn allocate() {
    drop(std::hint::black_box(Box::new(0u8)));
}

fn check() {
    // The variable is gone in a thread that is ending; such a thread is not a child of a clone.
    if FORKED.try_with(Cell::get).unwrap_or(false) {
        const TEXT: &[u8] = b"belljar: the memory allocator was used between a clone and an exec\n";
        // SAFETY: the pointer and the length are those of `TEXT`. If the descriptor is closed nothing happens.
        unsafe { libc::write(2, TEXT.as_ptr().cast(), TEXT.len()) };
        crate::kernel::exit_now(ALLOCATED);
    }
}

// SAFETY: `System` does all the work, under the contract that the caller keeps.
unsafe impl GlobalAlloc for ForkGuard {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        check();
        // SAFETY: as the caller promises; the memory is `System`'s.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check();
        // SAFETY: as the caller promises; the memory is `System`'s.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
