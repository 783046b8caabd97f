//! One output stream on the host: the first and last bytes for the result, the whole of it on disk when that is not
//! enough.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;

use belljar_model::StreamOutput;
use bytes::Bytes;

use crate::log_dir::LogDir;

/// Collects one stream within bounds.
#[derive(Debug)]
pub struct Collector {
    head: Vec<u8>,
    /// Bytes and not pieces: a guest that sends them one by one must not cost more than one that does not.
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    total: u64,
    log: Log,
}

/// Where the whole stream goes once it is more than is kept.
#[derive(Debug)]
enum Log {
    /// Nowhere.
    Off,
    /// To this file, when it comes to that.
    Waiting { log: LogFile, limit: u64 },
    /// To this file.
    Open { log: LogFile, file: File, rest: u64 },
    /// It could not be written any more; what is there is kept.
    Stopped { log: LogFile },
}

/// A file for a whole stream.
#[derive(Debug, Clone)]
pub struct LogFile {
    /// The directory.
    pub dir: LogDir,
    /// Its name there.
    pub name: String,
}

impl Collector {
    /// Keeps the first and the last half of `keep` bytes. `log` names a file for the whole stream, made only if more
    /// comes, and how many bytes it may hold.
    #[must_use]
    pub fn new(keep: u64, log: Option<(LogFile, u64)>) -> Self {
        let half = usize::try_from(keep / 2).unwrap_or(usize::MAX);
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_limit: half,
            tail_limit: half,
            total: 0,
            log: match log {
                Some((log, limit)) if limit > 0 => Log::Waiting { log, limit },
                _ => Log::Off,
            },
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, data: &Bytes) {
        if self.total + data.len() as u64 > (self.head_limit + self.tail_limit) as u64 {
            self.open_log();
        }
        self.total += data.len() as u64;
        let mut rest = data.clone();
        if self.head.len() < self.head_limit {
            let fits = rest.split_to(rest.len().min(self.head_limit - self.head.len()));
            self.head.extend_from_slice(&fits);
        }
        let rest = rest.split_off(rest.len().saturating_sub(self.tail_limit));
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..over);
        self.tail.extend(&rest[..]);
        if let Log::Open { .. } = self.log {
            self.write_log(data);
        }
    }

    /// Begins the log with everything that came before, which is all still here.
    fn open_log(&mut self) {
        let Log::Waiting { log, limit } = &self.log else { return };
        let (log, limit) = (log.clone(), *limit);
        match log.dir.create(&log.name) {
            Ok(file) => {
                self.log = Log::Open { log, file, rest: limit };
                let kept = self.kept();
                self.write_log(&kept);
            }
            Err(_) => self.log = Log::Off,
        }
    }

    fn write_log(&mut self, data: &[u8]) {
        let Log::Open { log, file, rest } = &mut self.log else { return };
        let fits = usize::try_from(*rest).unwrap_or(usize::MAX).min(data.len());
        *rest -= fits as u64;
        if file.write_all(&data[..fits]).is_err() {
            self.log = Log::Stopped { log: log.clone() };
        }
    }

    /// Everything that is kept, which is everything that came until the first byte is left out.
    fn kept(&self) -> Vec<u8> {
        self.head.iter().chain(&self.tail).copied().collect()
    }

    /// Memory that is held for what is kept, in bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    #[doc(hidden)]
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.head.capacity() + self.tail.capacity()
    }

    /// All bytes that came, kept or not.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The last bytes that are kept, for a look at what went wrong.
    #[must_use]
    pub fn last(&self, count: usize) -> Vec<u8> {
        let from_tail = self.tail.range(self.tail.len().saturating_sub(count)..);
        let from_head = self.head.len() - self.head.len().min(count.saturating_sub(self.tail.len()));
        self.head[from_head..].iter().chain(from_tail).copied().collect()
    }

    /// The stream as the result shows it.
    #[must_use]
    pub fn finish(self) -> StreamOutput {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let mut output = StreamOutput::new(&self.head, &tail, self.total);
        output.log = match self.log {
            Log::Open { log, .. } | Log::Stopped { log } => {
                Some(log.dir.path(&log.name).to_string_lossy().into_owned())
            }
            Log::Off | Log::Waiting { .. } => None,
        };
        output
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
    fn what_fits_is_kept_whole() {
        let collector = collect(8, None, &[b"ab", b"cdefg", b"h"]);
        assert_eq!(collector.last(3), b"fgh");
        let output = collector.finish();
        assert_eq!(output.decode().unwrap(), b"abcdefgh");
        assert!(!output.truncated);
    }

    #[test]
    fn single_bytes_cost_no_more_than_one_long_piece() {
        let mut collector = Collector::new(64 << 10, None);
        // A slice of a message keeps the whole message, so pieces must not be held as they come.
        let message = Bytes::from(vec![b'x'; 1 << 20]);
        for at in 0..200_000 {
            collector.push(&message.slice(at..=at));
        }
        assert!(collector.held_bytes() <= 2 * (64 << 10), "{}", collector.held_bytes());
        assert_eq!((collector.total(), collector.last(100_000).len()), (200_000, 64 << 10));
    }

    #[test]
    fn a_flood_keeps_head_and_tail_and_logs_everything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/stdout");
        let collector = collect(8, log(&path, 1000), &[b"abcdef", b"ghijkl", b"mn"]);
        assert_eq!(collector.total(), 14);
        let output = collector.finish();
        assert!(output.truncated);
        assert_eq!(output.decode().unwrap(), b"abcdklmn");
        assert_eq!(std::fs::read(&path).unwrap(), b"abcdefghijklmn");
    }

    #[test]
    fn the_log_stops_at_its_limit_and_is_not_made_without_need() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout");
        let _ = collect(8, log(&path, 10), &[b"abcdefgh"]).finish();
        assert!(!path.exists());
        let _ = collect(8, log(&path, 10), &[b"abcdefghijklmnop"]).finish();
        assert_eq!(std::fs::read(&path).unwrap(), b"abcdefghij");
    }
}
