//! Text without allocation, for the processes between a clone and an exec.

// A panic between a clone and an exec would allocate and print: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::ffi::CStr;

use rustix::io::Errno;

/// A string built without allocation.
pub(crate) struct Line<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Line<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    pub(crate) fn text(mut self, text: &[u8]) -> Self {
        for byte in text {
            // The last byte stays zero, so that the buffer is always a C string.
            if let Some([place, _, ..]) = self.bytes.get_mut(self.length..) {
                *place = *byte;
                self.length += 1;
            }
        }
        self
    }

    pub(crate) fn number(self, number: u32) -> Self {
        let mut digits = [0u8; 10];
        let mut rest = number;
        let mut used = 0;
        for place in digits.iter_mut().rev() {
            *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            used += 1;
            if rest == 0 {
                break;
            }
        }
        self.text(digits.get(digits.len() - used..).unwrap_or_default())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub(crate) fn as_cstr(&self) -> Result<&CStr, Errno> {
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::NAMETOOLONG)
    }
}
