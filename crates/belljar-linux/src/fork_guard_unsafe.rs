//! A watch over the rule that nothing is allocated or freed between a clone and an exec. Only builds for tests have it
//! (feature `mutation`): there every process of a launch runs under it, and docs/fork-safety.md says what it sees.

#![expect(unsafe_code, reason = "an allocator; each block says why it is sound")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The status with which a process ends that has broken the rule.
pub const ALLOCATED: i32 = 86;

thread_local! {
    /// Whether this thread is between a clone and an exec. A child of a plain clone has its own copy; a child that shares
    /// memory runs on its parent's, which is suspended meanwhile.
    static FORKED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which ends a process that uses it between a clone and an exec. For `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForkGuard;

/// The child's first act: from here on nothing may be allocated. Fork-safe.
pub(crate) fn enter() {
    FORKED.set(true);
}

/// The parent goes on, after a child that shared its memory. Fork-safe.
pub(crate) fn leave() {
    FORKED.set(false);
}

/// Breaks the rule, for the tests that show it being noticed. Where no [`ForkGuard`] is installed it does nothing else.
pub(crate) fn break_it() {
    drop(std::hint::black_box(Box::new(0u8)));
}

fn check() {
    // A thread that is ending has no such variable any more; it is nobody's child.
    if FORKED.try_with(Cell::get).unwrap_or(false) {
        const TEXT: &[u8] = b"belljar: the memory allocator was used between a clone and an exec\n";
        // SAFETY: the pointer and the length are those of `TEXT`. Where the descriptor is closed nothing happens.
        unsafe { libc::write(2, TEXT.as_ptr().cast(), TEXT.len()) };
        crate::kernel::exit_now(ALLOCATED);
    }
}

// SAFETY: everything is done by `System`, under the contract that the caller keeps.
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
