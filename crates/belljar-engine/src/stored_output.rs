//! The stored part of a finished output stream: in memory if small, otherwise in an unnamed file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use belljar_model::{Encoding, StreamOutput};

/// Maximum size of one read from a file, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// The stored part of an output stream. A file is removed with the last clone.
#[derive(Debug, Clone)]
pub enum StoredOutput {
    /// Small output.
    InMemory(StreamOutput),
    /// Large output.
    InFile(Arc<StoredFile>),
}

/// A file with the head and the tail of a stream.
pub struct StoredFile {
    file: Spill,
    /// Length of the head in bytes, at the start of the file.
    head: u64,
    /// Length of the tail in bytes.
    tail: u64,
    ring: Ring,
    total: u64,
    encoding: Encoding,
}

/// A file for output too large for memory, with the reservation to release with it.
pub struct Spill {
    /// The unnamed file.
    pub file: File,
    /// Reservation of its space; released on drop.
    pub room: Box<dyn Send + Sync>,
}

/// Location of the tail in its file: a ring buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    /// Offset of the ring in the file.
    pub(crate) at: u64,
    /// Length of the ring.
    pub(crate) length: u64,
    /// Offset in the ring of the tail's first byte.
    pub(crate) first: u64,
}

impl Ring {
    /// Returns the ring after `after` bytes were written to it in sequence, and the number of bytes it contains.
    pub(crate) fn after_writing(at: u64, length: u64, after: u64) -> (Self, u64) {
        let first = if after > length { after % length } else { 0 };
        (Self { at, length, first }, after.min(length))
    }

    /// Returns offset and length of the parts of the file that contain `count` bytes from byte `from` of the tail.
    pub(crate) fn parts(self, from: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
        let begin = if self.length == 0 { 0 } else { (self.first + from) % self.length };
        let first = count.min(self.length - begin);
        [(self.at + begin, first), (self.at, count - first)].into_iter().filter(|(_, count)| *count > 0)
    }
}

impl std::fmt::Debug for StoredFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { head, tail, total, encoding, .. } = self;
        formatter
            .debug_struct("StoredFile")
            .field("head", head)
            .field("tail", tail)
            .field("total", total)
            .field("encoding", encoding)
            .finish_non_exhaustive()
    }
}

impl StoredFile {
    /// Creates the file from `head` and `tail` bytes of a stream of `total`. As with [`StreamOutput::new`], a character
    /// split by the cut is left out if everything else is UTF-8.
    pub(crate) fn new(file: Spill, head: u64, tail: u64, ring: Ring, total: u64) -> io::Result<Self> {
        let mut stored = Self { file, head, tail, ring, total, encoding: Encoding::Base64 };
        if let Some((cut, skip)) = stored.find_text_cut()? {
            stored.encoding = Encoding::Utf8;
            if stored.is_truncated() {
                stored.head -= cut;
                stored.ring.first += skip;
                stored.tail -= skip;
            }
        }
        Ok(stored)
    }

    /// If the content is UTF-8 except at the cut, returns the lengths of the split characters before and after it.
    fn find_text_cut(&self) -> io::Result<Option<(u64, u64)>> {
        let is_truncated = self.is_truncated();
        // Bytes of an incomplete character.
        let mut open: Vec<u8> = Vec::new();
        let (mut cut, mut skip, mut at) = (0, 0, 0);
        while at < self.len() {
            let is_in_head = at < self.head;
            let end = if is_truncated && is_in_head { self.head } else { self.len() };
            let max_bytes = READ_BYTES.min(usize::try_from(end - at).unwrap_or(READ_BYTES));
            let piece = self.read(at, max_bytes)?;
            if is_truncated && at == self.head {
                // A character has at most three continuation bytes, each of the form 10xxxxxx.
                skip = piece.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
                open.extend_from_slice(&piece[skip..]);
            } else {
                open.extend_from_slice(&piece);
            }
            at += piece.len() as u64;
            let whole = match std::str::from_utf8(&open) {
                Ok(text) => text.len(),
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                Err(_) => return Ok(None),
            };
            open.drain(..whole);
            if is_truncated && at == self.head {
                cut = open.len() as u64;
                open.clear();
            }
        }
        Ok(open.is_empty().then_some((cut, skip as u64)))
    }

    fn is_truncated(&self) -> bool {
        self.total > self.len()
    }

    fn len(&self) -> u64 {
        self.head + self.tail
    }

    fn read(&self, at: u64, max_bytes: usize) -> io::Result<Vec<u8>> {
        read(&self.file.file, (self.head, self.tail), self.ring, at, max_bytes)
    }
}

/// Reads at most `max_bytes` bytes from byte `at` on, of a head and a tail of the given lengths.
pub(crate) fn read(
    file: &File,
    (head, tail): (u64, u64),
    ring: Ring,
    at: u64,
    max_bytes: usize,
) -> io::Result<Vec<u8>> {
    let size = |count| usize::try_from(count).map_err(io::Error::other);
    let count = (max_bytes as u64).min((head + tail).saturating_sub(at));
    let of_head = count.min(head.saturating_sub(at));
    let mut bytes = vec![0; size(count)?];
    let (first, mut rest) = bytes.split_at_mut(size(of_head)?);
    file.read_exact_at(first, at)?;
    for (place, count) in ring.parts((at + of_head).saturating_sub(head), count - of_head) {
        let (piece, after) = rest.split_at_mut(size(count)?);
        file.read_exact_at(piece, place)?;
        rest = after;
    }
    Ok(bytes)
}

impl StoredOutput {
    /// Returns the number of bytes written to the stream.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::InMemory(output) => output.total_bytes,
            Self::InFile(file) => file.total,
        }
    }

    /// Returns the first and last bytes of the stored output, at most `max_bytes` of them. The rest counts as left out.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn truncate(&self, max_bytes: u64) -> io::Result<StreamOutput> {
        match self {
            Self::InMemory(output) => {
                let kept = output.kept_head_bytes + output.kept_tail_bytes;
                let bytes = output.decode().filter(|_| kept > max_bytes);
                let Some(bytes) = bytes else { return Ok(output.clone()) };
                let half = usize::try_from(max_bytes / 2).map_err(io::Error::other)?;
                // The stored head may be shorter than half.
                let head = half.min(usize::try_from(output.kept_head_bytes).map_err(io::Error::other)?);
                Ok(StreamOutput::new(&bytes[..head], &bytes[bytes.len() - half..], output.total_bytes))
            }
            Self::InFile(file) => {
                let (head, tail) = if file.len() <= max_bytes {
                    (file.head, file.tail)
                } else {
                    (
                        file.head.min(max_bytes / 2),
                        (max_bytes / 2).min(file.len() - file.head.min(max_bytes / 2)),
                    )
                };
                let head = file.read(0, usize::try_from(head).map_err(io::Error::other)?)?;
                let tail = file.read(file.len() - tail, usize::try_from(tail).map_err(io::Error::other)?)?;
                Ok(StreamOutput::new(&head, &tail, file.total))
            }
        }
    }
}

impl StoredFile {
    /// Returns the output without its content.
    #[must_use]
    pub fn frame(&self) -> StreamOutput {
        StreamOutput {
            text: (self.encoding == Encoding::Utf8).then(String::new),
            base64: (self.encoding == Encoding::Base64).then(String::new),
            total_bytes: self.total,
            truncated: self.is_truncated(),
            kept_head_bytes: if self.is_truncated() { self.head } else { self.total },
            kept_tail_bytes: if self.is_truncated() { self.tail } else { 0 },
            log: None,
        }
    }

    /// Returns the next piece of the content, as UTF-8 or base64, from byte `at` on, and the offset of the next one;
    /// `None` after the last one.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn piece(&self, at: u64) -> io::Result<Option<(String, u64)>> {
        if at >= self.len() {
            return Ok(None);
        }
        // A multiple of three, so that pieces of base64 can be concatenated.
        let mut bytes = self.read(at, 48 * 1024)?;
        if self.encoding == Encoding::Utf8 {
            let whole = match std::str::from_utf8(&bytes) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            bytes.truncate(whole);
        }
        let next = at + bytes.len() as u64;
        let text = self.encoding.text(bytes);
        match text {
            Some(text) if next > at => Ok(Some((text, next))),
            _ => Err(io::Error::other("the output file was changed")),
        }
    }
}
