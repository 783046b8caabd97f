//! Descriptors by number, for the steps right before an exec.

#![expect(unsafe_code, reason = "numbers become borrowed descriptors; each block says why it is sound")]

use std::os::fd::{BorrowedFd, RawFd};

/// Calls `act` with the descriptor that has this number. Fork-safe.
pub(crate) fn with_number<T>(number: RawFd, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
    // SAFETY: the callers have just put an open descriptor under this number, and nothing closes it during the call.
    act(unsafe { BorrowedFd::borrow_raw(number) })
}
