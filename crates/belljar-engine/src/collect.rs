//! Collection of one output stream on the host: the first and last bytes for the result, the full stream on disk if it
//! is longer.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use belljar_model::StreamOutput;
use bytes::Bytes;

use crate::log_dir::LogDir;
use crate::stored_output::{Ring, Spill, StoredFile, StoredOutput, read};

/// Maximum length of a stream that is held in memory before it is moved to a file, in bytes.
pub const MAX_IN_MEMORY_BYTES: u64 = 64 * 1024;

/// Opens a file that may grow to the given number of bytes; returns `None` if there is no space.
pub type OpenSpill = Box<dyn FnOnce(u64) -> Option<Spill> + Send>;

/// Collects one stream within bounds.
pub struct Collector {
    storage: Storage,
    head_limit: usize,
    tail_limit: usize,
    total: u64,
    log: Log,
    /// Opens a file once the stream exceeds its memory, and the number of bytes to keep in it.
    spill: Option<(OpenSpill, u64)>,
}

/// Storage of the first and last bytes.
enum Storage {
    Memory {
        head: Vec<u8>,
        /// Bytes, not chunks: many tiny chunks from a guest must not take more memory.
        tail: VecDeque<u8>,
    },
    File {
        file: Spill,
        head: usize,
        /// Number of bytes after the head, of which the last ones are stored.
        after: u64,
        /// True after a write error: only the head counts.
        is_broken: bool,
    },
}

/// Log of the full stream, for a stream longer than what is kept.
#[derive(Debug)]
enum Log {
    /// No log.
    Off,
    /// This file, once needed.
    Pending { log: LogFile, limit: u64 },
    /// This file.
    Open { log: LogFile, file: File, rest: u64 },
    /// A write failed; the part written so far is kept.
    Failed { log: LogFile },
}

/// A file for a full stream.
#[derive(Debug, Clone)]
pub struct LogFile {
    /// The directory.
    pub dir: LogDir,
    /// Its name in the directory.
    pub name: String,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Collector").field("total", &self.total).finish_non_exhaustive()
    }
}

impl Collector {
    /// Creates a collector that keeps `keep` bytes in memory: half from the start, half from the end. `log` is a file
    /// for the full stream, created only if it is longer, and the file's maximum size.
    #[must_use]
    pub fn new(keep: u64, log: Option<(LogFile, u64)>) -> Self {
        let half = usize::try_from(keep / 2).unwrap_or(usize::MAX);
        Self {
            storage: Storage::Memory { head: Vec::new(), tail: VecDeque::new() },
            head_limit: half,
            tail_limit: half,
            total: 0,
            log: match log {
                Some((log, limit)) if limit > 0 => Log::Pending { log, limit },
                _ => Log::Off,
            },
            spill: None,
        }
    }

    /// Creates a collector that keeps `keep` bytes, half from the start and half from the end: in memory up to
    /// [`MAX_IN_MEMORY_BYTES`], in a file beyond that. If no file can be opened, only what fits into memory is kept.
    #[must_use]
    pub fn with_spill(keep: u64, open: OpenSpill) -> Self {
        let mut collector = Self::new(keep, None);
        if keep > MAX_IN_MEMORY_BYTES {
            // Everything is head until the storage is decided.
            collector.head_limit = usize::try_from(MAX_IN_MEMORY_BYTES).unwrap_or(usize::MAX);
            collector.tail_limit = 0;
            collector.spill = Some((open, keep));
        }
        collector
    }

    /// Adds the next bytes.
    pub fn push(&mut self, data: &Bytes) {
        if self.total + data.len() as u64 > (self.head_limit + self.tail_limit) as u64 {
            self.open_log();
            self.open_spill();
        }
        self.total += data.len() as u64;
        self.store(data);
        if let Log::Open { .. } = self.log {
            self.write_log(data);
        }
    }

    fn store(&mut self, data: &[u8]) {
        let (head_limit, tail_limit) = (self.head_limit, self.tail_limit);
        match &mut self.storage {
            Storage::Memory { head, tail } => {
                let (first, rest) = data.split_at(data.len().min(head_limit - head.len()));
                head.extend_from_slice(first);
                let rest = &rest[rest.len().saturating_sub(tail_limit)..];
                let over = (tail.len() + rest.len()).saturating_sub(tail_limit);
                tail.drain(..over);
                tail.extend(rest);
            }
            Storage::File { file, head, after, is_broken } => {
                let (first, rest) = data.split_at(data.len().min(head_limit - *head));
                let skipped = rest.len().saturating_sub(tail_limit);
                let begin = *after + skipped as u64;
                *after += rest.len() as u64;
                if *is_broken {
                    return;
                }
                let ring = Ring { at: head_limit as u64, length: tail_limit as u64, first: 0 };
                let written = file.file.write_all_at(first, *head as u64).and_then(|()| {
                    *head += first.len();
                    let mut rest = &rest[skipped..];
                    for (place, count) in ring.parts(begin, rest.len() as u64) {
                        let (piece, later) = rest.split_at(usize::try_from(count).unwrap_or(rest.len()));
                        file.file.write_all_at(piece, place)?;
                        rest = later;
                    }
                    Ok(())
                });
                *is_broken = written.is_err();
            }
        }
    }

    /// Decides where data beyond the memory limit is stored.
    fn open_spill(&mut self) {
        let Some((open, keep)) = self.spill.take() else { return };
        let Storage::Memory { head, .. } = &mut self.storage else { return };
        let so_far = std::mem::take(head);
        let half = |bytes: u64| usize::try_from(bytes / 2).unwrap_or(usize::MAX);
        match open(keep) {
            Some(file) => {
                (self.head_limit, self.tail_limit) = (half(keep), half(keep));
                self.storage = Storage::File { file, head: 0, after: 0, is_broken: false };
            }
            None => {
                (self.head_limit, self.tail_limit) = (half(MAX_IN_MEMORY_BYTES), half(MAX_IN_MEMORY_BYTES))
            }
        }
        self.store(&so_far);
    }

    /// Starts the log with everything so far, all of which is still in memory.
    fn open_log(&mut self) {
        let Log::Pending { log, limit } = &self.log else { return };
        let (log, limit) = (log.clone(), *limit);
        match log.dir.create(&log.name) {
            Ok(file) => {
                self.log = Log::Open { log, file, rest: limit };
                let earlier = self.memory_content();
                self.write_log(&earlier);
            }
            Err(_) => self.log = Log::Off,
        }
    }

    fn write_log(&mut self, data: &[u8]) {
        let Log::Open { log, file, rest } = &mut self.log else { return };
        let fits = usize::try_from(*rest).unwrap_or(usize::MAX).min(data.len());
        *rest -= fits as u64;
        if file.write_all(&data[..fits]).is_err() {
            self.log = Log::Failed { log: log.clone() };
        }
    }

    /// Returns everything kept in memory, which is the full stream until the first byte is dropped.
    fn memory_content(&self) -> Vec<u8> {
        match &self.storage {
            Storage::Memory { head, tail } => head.iter().chain(tail).copied().collect(),
            // A stream with a log has no spill file.
            Storage::File { .. } => Vec::new(),
        }
    }

    /// Returns the memory allocated for the kept bytes, in bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.storage {
            Storage::Memory { head, tail } => head.capacity() + tail.capacity(),
            Storage::File { .. } => 0,
        }
    }

    /// Reports whether the kept bytes are in a file.
    #[must_use]
    pub fn has_file(&self) -> bool {
        matches!(self.storage, Storage::File { .. })
    }

    /// Returns the number of bytes added, kept or not.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns at most `count` of the last kept bytes, for error messages.
    #[must_use]
    pub fn last(&self, count: usize) -> Vec<u8> {
        let (head, tail) = match &self.storage {
            Storage::Memory { head, tail } => (head, tail),
            Storage::File { file, head, after, is_broken } => {
                let (ring, tail) = Self::tail_ring(self.head_limit, self.tail_limit, *after, *is_broken);
                let lengths = (*head as u64, tail);
                let at = (lengths.0 + lengths.1).saturating_sub(count as u64);
                // Only informational.
                return read(&file.file, lengths, ring, at, count).unwrap_or_default();
            }
        };
        let from_tail = tail.range(tail.len().saturating_sub(count)..);
        let from_head = head.len() - head.len().min(count.saturating_sub(tail.len()));
        head[from_head..].iter().chain(from_tail).copied().collect()
    }

    /// Returns the tail's location in its file, and its length.
    fn tail_ring(head_limit: usize, tail_limit: usize, after: u64, is_broken: bool) -> (Ring, u64) {
        let after = if is_broken { 0 } else { after };
        Ring::after_writing(head_limit as u64, tail_limit as u64, after)
    }

    /// Returns the stream for a result.
    #[must_use]
    pub fn finish(self) -> StreamOutput {
        let log = match &self.log {
            Log::Open { log, .. } | Log::Failed { log } => {
                Some(log.dir.path(&log.name).to_string_lossy().into_owned())
            }
            Log::Off | Log::Pending { .. } => None,
        };
        let (head, tail) = match self.storage {
            Storage::Memory { head, tail } => (head, Vec::from(tail)),
            Storage::File { .. } => (Vec::new(), Vec::new()),
        };
        let mut output = StreamOutput::new(&head, &tail, self.total);
        output.log = log;
        output
    }

    /// Returns the stored stream, for a result that is read piece by piece.
    #[must_use]
    pub fn keep(self) -> StoredOutput {
        let Storage::File { file, head, after, is_broken } = self.storage else {
            return StoredOutput::InMemory(self.finish());
        };
        let (ring, tail) = Self::tail_ring(self.head_limit, self.tail_limit, after, is_broken);
        match StoredFile::new(file, head as u64, tail, ring, self.total) {
            Ok(kept) => StoredOutput::InFile(Arc::new(kept)),
            // Unreadable output counts as left out.
            Err(_) => StoredOutput::InMemory(StreamOutput::new(&[], &[], self.total)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn log(path: &Path, limit: u64) -> Option<(LogFile, u64)> {
        let dir = LogDir::find(path.parent().unwrap()).unwrap();
        Some((LogFile { dir, name: path.file_name().unwrap().to_str().unwrap().to_owned() }, limit))
    }

    fn collect(keep: u64, log: Option<(LogFile, u64)>, pieces: &[&[u8]]) -> Collector {
        let mut collector = Collector::new(keep, log);
        for piece in pieces {
            collector.push(&Bytes::copy_from_slice(piece));
        }
        collector
    }

    #[test]
    fn short_output_is_kept_in_full() {
        let collector = collect(8, None, &[b"ab", b"cdefg", b"h"]);
        assert_eq!(collector.last(3), b"fgh");
        let output = collector.finish();
        assert_eq!(output.decode().unwrap(), b"abcdefgh");
        assert!(!output.truncated);
    }

    #[test]
    fn single_bytes_take_no_more_memory_than_one_long_chunk() {
        let mut collector = Collector::new(64 << 10, None);
        // A slice of a message keeps the whole message alive, so chunks must be copied.
        let message = Bytes::from(vec![b'x'; 1 << 20]);
        for at in 0..200_000 {
            collector.push(&message.slice(at..=at));
        }
        assert!(collector.held_bytes() <= 2 * (64 << 10), "{}", collector.held_bytes());
        assert_eq!((collector.total(), collector.last(100_000).len()), (200_000, 64 << 10));
    }

    #[test]
    fn long_output_keeps_head_and_tail_and_logs_everything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/stdout");
        let collector = collect(8, log(&path, 1000), &[b"abcdef", b"ghijkl", b"mn"]);
        assert_eq!(collector.total(), 14);
        let output = collector.finish();
        assert!(output.truncated);
        assert_eq!(output.decode().unwrap(), b"abcdklmn");
        assert_eq!(std::fs::read(&path).unwrap(), b"abcdefghijklmn");
    }

    /// Collects with a file and in memory, and returns both results.
    fn collect_both(keep: u64, pieces: &[Vec<u8>]) -> (StreamOutput, StreamOutput) {
        let open = |_| Some(Spill { file: tempfile::tempfile().unwrap(), room: Box::new(()) });
        let mut spilling = Collector::with_spill(keep, Box::new(open));
        let mut plain = Collector::new(keep, None);
        for piece in pieces {
            spilling.push(&Bytes::copy_from_slice(piece));
            plain.push(&Bytes::copy_from_slice(piece));
        }
        assert_eq!(spilling.last(1000), plain.last(1000));
        let kept = spilling.keep();
        if let StoredOutput::InFile(file) = &kept {
            let (mut text, mut at) = (String::new(), 0);
            while let Some((piece, next)) = file.piece(at).unwrap() {
                text.push_str(&piece);
                at = next;
            }
            let frame = file.frame();
            let is_text = frame.text.is_some();
            let assembled = StreamOutput {
                text: is_text.then(|| text.clone()),
                base64: (!is_text).then_some(text),
                ..frame
            };
            assert_eq!(assembled, kept.truncate(u64::MAX).unwrap());
        }
        (kept.truncate(u64::MAX).unwrap(), plain.finish())
    }

    #[test]
    fn file_storage_matches_memory_storage() {
        let text = |bytes: usize| "aäü€😀".bytes().cycle().take(bytes).collect::<Vec<_>>();
        let binary = |bytes: usize| (0..=255).cycle().take(bytes).collect::<Vec<u8>>();
        for keep in [70_000, 100_001, 1 << 20] {
            for total in [10, 65_536, 65_537, 99_999, 100_003, 700_001, (1 << 20) + 5] {
                for stream in [text(total), binary(total)] {
                    for piece in [total, 997, 65_536, 70_001] {
                        let pieces: Vec<_> = stream.chunks(piece).map(<[u8]>::to_vec).collect();
                        let (kept, expected) = collect_both(keep, &pieces);
                        assert_eq!(kept, expected, "keep {keep}, total {total}, pieces of {piece}");
                    }
                }
            }
        }
    }

    #[test]
    fn without_a_file_only_the_memory_limit_is_kept() {
        let mut collector = Collector::with_spill(1 << 20, Box::new(|_| None));
        let stream: Vec<u8> = (0..200_000_u32).map(|at| b'a' + u8::try_from(at / 10_000).unwrap()).collect();
        stream.chunks(1000).for_each(|piece| collector.push(&Bytes::copy_from_slice(piece)));
        assert!(collector.held_bytes() <= 4 * 65_536, "{}", collector.held_bytes());
        let kept = collector.keep().truncate(u64::MAX).unwrap();
        assert_eq!((kept.total_bytes, kept.kept_head_bytes, kept.kept_tail_bytes), (200_000, 32_768, 32_768));
        let bytes = kept.decode().unwrap();
        assert!(bytes[..32_768] == stream[..32_768] && bytes[32_768..] == stream[200_000 - 32_768..]);
    }

    #[test]
    fn stored_output_can_be_cut() {
        for total in [1000, 100_000, 3_000_000] {
            let (whole, _) = collect_both(2_000_000, &[vec![b'x'; total]]);
            let open = |_| Some(Spill { file: tempfile::tempfile().unwrap(), room: Box::new(()) });
            let mut collector = Collector::with_spill(2_000_000, Box::new(open));
            collector.push(&Bytes::from(vec![b'x'; total]));
            let kept = collector.keep();
            let cut = kept.truncate(500).unwrap();
            assert_eq!((cut.total_bytes, cut.decode().unwrap().len()), (whole.total_bytes, 500));
            assert_eq!((cut.truncated, cut.kept_head_bytes), (true, 250));
        }
    }

    #[test]
    fn log_stops_at_its_limit_and_is_created_only_if_needed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout");
        let _ = collect(8, log(&path, 10), &[b"abcdefgh"]).finish();
        assert!(!path.exists());
        let _ = collect(8, log(&path, 10), &[b"abcdefghijklmnop"]).finish();
        assert_eq!(std::fs::read(&path).unwrap(), b"abcdefghij");
    }
}
