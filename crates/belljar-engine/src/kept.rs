//! What is kept of an output stream once it has ended: in memory where it is little, else in a file without a name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use belljar_model::{Encoding, StreamOutput};

/// Bytes that are read from a file at once.
const PIECE_BYTES: usize = 64 * 1024;

/// What is kept of an output stream. A file goes away with the last clone.
#[derive(Debug, Clone)]
pub enum Kept {
    /// It is little.
    InMemory(StreamOutput),
    /// It is much.
    InFile(Arc<KeptFile>),
}

/// A file that a stream's head and tail are in.
pub struct KeptFile {
    file: Spill,
    /// Bytes of the head, from the file's beginning.
    head: u64,
    /// Bytes of the tail.
    tail: u64,
    ring: Ring,
    total: u64,
    encoding: Encoding,
}

/// A file for what is too much for memory, and what is to be let go with it.
pub struct Spill {
    /// The file, without a name.
    pub file: File,
    /// Whatever counts it.
    pub room: Box<dyn Send + Sync>,
}

/// Where in its file a tail is, which goes round and round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    /// Where the room for the tail begins.
    pub(crate) at: u64,
    /// How long that is.
    pub(crate) length: u64,
    /// Where in it the tail's first byte is.
    pub(crate) first: u64,
}

impl Ring {
    /// Where the last of `after` bytes are that were written one after another, and how many they are.
    pub(crate) fn last(at: u64, length: u64, after: u64) -> (Self, u64) {
        let first = if after > length { after % length } else { 0 };
        (Self { at, length, first }, after.min(length))
    }

    /// The pieces of the file in which `count` bytes from byte `from` of the tail are.
    pub(crate) fn pieces(self, from: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
        let begin = if self.length == 0 { 0 } else { (self.first + from) % self.length };
        let first = count.min(self.length - begin);
        [(self.at + begin, first), (self.at, count - first)].into_iter().filter(|(_, count)| *count > 0)
    }
}

impl std::fmt::Debug for KeptFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { head, tail, total, encoding, .. } = self;
        formatter
            .debug_struct("KeptFile")
            .field("head", head)
            .field("tail", tail)
            .field("total", total)
            .field("encoding", encoding)
            .finish_non_exhaustive()
    }
}

impl KeptFile {
    /// What was written there: `head` and `tail` bytes of a stream of `total`. As with [`StreamOutput::new`], a character that the
    /// cut has split is left out where all else is UTF-8.
    pub(crate) fn new(file: Spill, head: u64, tail: u64, ring: Ring, total: u64) -> io::Result<Self> {
        let mut kept = Self { file, head, tail, ring, total, encoding: Encoding::Base64 };
        if let Some((cut, skip)) = kept.text()? {
            kept.encoding = Encoding::Utf8;
            if kept.is_truncated() {
                kept.head -= cut;
                kept.ring.first += skip;
                kept.tail -= skip;
            }
        }
        Ok(kept)
    }

    /// Whether it is UTF-8 but for the ends at the cut: then how many bytes those have before and after it.
    fn text(&self) -> io::Result<Option<(u64, u64)>> {
        let is_truncated = self.is_truncated();
        // Bytes of a character of which the rest is to come.
        let mut open: Vec<u8> = Vec::new();
        let (mut cut, mut skip, mut at) = (0, 0, 0);
        while at < self.len() {
            let is_in_head = at < self.head;
            let end = if is_truncated && is_in_head { self.head } else { self.len() };
            let most = PIECE_BYTES.min(usize::try_from(end - at).unwrap_or(PIECE_BYTES));
            let piece = self.read(at, most)?;
            if is_truncated && at == self.head {
                // A character has at most three bytes after its first, each of the form 10xxxxxx.
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

    fn read(&self, at: u64, most: usize) -> io::Result<Vec<u8>> {
        read(&self.file.file, (self.head, self.tail), self.ring, at, most)
    }
}

/// At most `most` bytes from byte `at` on of a head and a tail of these lengths.
pub(crate) fn read(
    file: &File,
    (head, tail): (u64, u64),
    ring: Ring,
    at: u64,
    most: usize,
) -> io::Result<Vec<u8>> {
    let size = |count| usize::try_from(count).map_err(io::Error::other);
    let count = (most as u64).min((head + tail).saturating_sub(at));
    let of_head = count.min(head.saturating_sub(at));
    let mut bytes = vec![0; size(count)?];
    let (first, mut rest) = bytes.split_at_mut(size(of_head)?);
    file.read_exact_at(first, at)?;
    for (place, count) in ring.pieces((at + of_head).saturating_sub(head), count - of_head) {
        let (piece, after) = rest.split_at_mut(size(count)?);
        file.read_exact_at(piece, place)?;
        rest = after;
    }
    Ok(bytes)
}

impl Kept {
    /// Bytes that were written to the stream.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::InMemory(output) => output.total_bytes,
            Self::InFile(file) => file.total,
        }
    }

    /// The first and last bytes of what is kept, at most `most` of them: as much as fits into memory. The rest counts as left out.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn cut(&self, most: u64) -> io::Result<StreamOutput> {
        match self {
            Self::InMemory(output) => {
                let kept = output.kept_head_bytes + output.kept_tail_bytes;
                let bytes = output.decode().filter(|_| kept > most);
                let Some(bytes) = bytes else { return Ok(output.clone()) };
                let half = usize::try_from(most / 2).map_err(io::Error::other)?;
                // What is kept of the head may be less than half.
                let head = half.min(usize::try_from(output.kept_head_bytes).map_err(io::Error::other)?);
                Ok(StreamOutput::new(&bytes[..head], &bytes[bytes.len() - half..], output.total_bytes))
            }
            Self::InFile(file) => {
                let (head, tail) = if file.len() <= most {
                    (file.head, file.tail)
                } else {
                    (file.head.min(most / 2), (most / 2).min(file.len() - file.head.min(most / 2)))
                };
                let head = file.read(0, usize::try_from(head).map_err(io::Error::other)?)?;
                let tail = file.read(file.len() - tail, usize::try_from(tail).map_err(io::Error::other)?)?;
                Ok(StreamOutput::new(&head, &tail, file.total))
            }
        }
    }
}

impl KeptFile {
    /// All but the bytes themselves.
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

    /// The next piece of the text that stands for the bytes, UTF-8 or base64, from byte `at` on, and where the one after it begins.
    /// Nothing after the last one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn piece(&self, at: u64) -> io::Result<Option<(String, u64)>> {
        if at >= self.len() {
            return Ok(None);
        }
        // A multiple of three, so that pieces in base64 can be joined.
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
            _ => Err(io::Error::other("the file of an output was changed")),
        }
    }
}
