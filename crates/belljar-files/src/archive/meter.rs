//! What an archive may take. Each limit ends the unpacking with an error that names it.

use super::unpack::UnpackOptions;
use crate::error::{ErrorKind, FileError};

/// Content up to here is taken at any ratio: a small file of zeros is no bomb.
const FREE_BYTES: u64 = 16 << 20;

/// Counts what an archive brings.
pub(super) struct Meter {
    max_bytes: u64,
    max_entries: u64,
    max_ratio: u64,
    /// Bytes of content, and of names too long for a header.
    taken: u64,
    /// Bytes of files.
    pub(super) bytes: u64,
    /// What was unpacked.
    pub(super) entries: u64,
    /// What has no place in a sandbox's files.
    pub(super) skipped: u64,
    /// All entries, whatever became of them.
    seen: u64,
}

impl Meter {
    pub(super) fn new(options: &UnpackOptions) -> Self {
        Self {
            max_bytes: options.max_bytes,
            max_entries: options.max_entries,
            max_ratio: options.max_ratio.max(1).into(),
            taken: 0,
            bytes: 0,
            entries: 0,
            skipped: 0,
            seen: 0,
        }
    }

    /// Most bytes that a part of the archive may have.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Takes note of an entry.
    pub(super) fn entry(&mut self) -> Result<(), FileError> {
        self.seen += 1;
        if self.seen > self.max_entries {
            return Err(over("max_entries", format!("more than {} entries", self.max_entries)));
        }
        Ok(())
    }

    /// Takes note of bytes, before they are written.
    pub(super) fn bytes(&mut self, bytes: u64) -> Result<(), FileError> {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken > self.max_bytes {
            return Err(over("max_bytes", format!("more than {} bytes", self.max_bytes)));
        }
        Ok(())
    }

    /// The archive itself is longer than what may come out of it.
    pub(super) fn too_long(&self) -> FileError {
        over("max_bytes", format!("more than {} bytes", self.max_bytes))
    }

    /// Compares what came out of the compressed archive with what went in.
    pub(super) fn ratio(&self, compressed: u64, content: u64) -> Result<(), FileError> {
        if content > FREE_BYTES && content / self.max_ratio > compressed {
            return Err(over("max_ratio", format!("more than {} times its own size", self.max_ratio)));
        }
        Ok(())
    }
}

fn over(limit: &str, what: String) -> FileError {
    FileError::new(
        ErrorKind::Exhausted,
        format!("limits.{limit}: the archive holds {what}; what was unpacked of it has been removed"),
    )
}
