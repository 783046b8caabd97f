//! Descriptors by number, for the moment before an exec when numbers are what counts.

#![expect(unsafe_code, reason = "numbers become borrowed descriptors; each block says why it is sound")]

use std::os::fd::{BorrowedFd, RawFd};

/// Lends the descriptor with this number to `use_it`. Fork-safe.
pub(crate) fn with_number<T>(number: RawFd, use_it: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
    // SAFETY: the callers have just put an open descriptor under this number, and nothing closes it during the call.
    use_it(unsafe { BorrowedFd::borrow_raw(number) })
}
