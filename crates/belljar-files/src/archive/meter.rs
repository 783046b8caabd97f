//! Limits on the content of an archive. Exceeding one ends the unpacking with an error that names it.

use rustix::io::Errno;

use super::unpack::UnpackOptions;
use crate::error::{ErrorKind, FileError, failure};

/// Content up to this size is accepted at any compression ratio: a small file of zeros is not an archive bomb.
const RATIO_EXEMPT_BYTES: u64 = 16 << 20;

/// Counts entries and bytes of an archive against its limits.
pub(super) struct Meter {
    max_bytes: u64,
    max_entries: u64,
    max_ratio: u64,
    has_room: Option<fn(u64) -> bool>,
    /// Bytes of content and of records for long names.
    taken: u64,
    /// File content, in bytes.
    pub(super) bytes: u64,
    /// Number of unpacked entries.
    pub(super) entries: u64,
    /// Number of entries that a sandbox's files cannot hold.
    pub(super) skipped: u64,
    /// Number of all entries, unpacked or not.
    seen: u64,
}

impl Meter {
    pub(super) fn new(options: &UnpackOptions) -> Self {
        Self {
            max_bytes: options.max_bytes,
            max_entries: options.max_entries,
            max_ratio: options.max_ratio.max(1).into(),
            has_room: options.has_room,
            taken: 0,
            bytes: 0,
            entries: 0,
            skipped: 0,
            seen: 0,
        }
    }

    /// Returns the limit on content, in bytes.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Counts an entry.
    pub(super) fn count_entry(&mut self) -> Result<(), FileError> {
        self.seen += 1;
        if self.seen > self.max_entries {
            return Err(limit_exceeded("max_entries", format!("more than {} entries", self.max_entries)));
        }
        Ok(())
    }

    /// Counts bytes, before they are written.
    pub(super) fn count_bytes(&mut self, bytes: u64) -> Result<(), FileError> {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken > self.max_bytes {
            return Err(limit_exceeded("max_bytes", format!("more than {} bytes", self.max_bytes)));
        }
        self.check_room(bytes)
    }

    /// Checks that there is memory for this many bytes more.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), FileError> {
        match self.has_room {
            Some(has_room) if !has_room(bytes) => Err(failure("unpack", b"the archive", Errno::NOMEM)),
            _ => Ok(()),
        }
    }

    /// Creates the error for an archive that is itself larger than the limit on its content.
    pub(super) fn archive_too_large(&self) -> FileError {
        limit_exceeded("max_bytes", format!("more than {} bytes", self.max_bytes))
    }

    /// Checks the ratio of decompressed to compressed bytes.
    pub(super) fn check_ratio(&self, compressed: u64, content: u64) -> Result<(), FileError> {
        if content > RATIO_EXEMPT_BYTES && content / self.max_ratio > compressed {
            return Err(limit_exceeded(
                "max_ratio",
                format!("more than {} times its own size", self.max_ratio),
            ));
        }
        Ok(())
    }
}

fn limit_exceeded(limit: &str, what: String) -> FileError {
    FileError::new(
        ErrorKind::Exhausted,
        format!("limits.{limit}: the archive contains {what}; the unpacked part has been removed"),
    )
}
