//! Output log of one stream of a process. It keeps the first and the last bytes, readers read by offset, and a process
//! that writes faster than its reader reads is throttled.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

/// Maximum lag of the slowest attached reader before the process is throttled, in bytes.
pub(crate) const READ_AHEAD: u64 = 1 << 20;

/// Minimum size of the tail that is kept, in bytes, so that an attached reader never misses anything.
const MIN_KEPT: u64 = 4 * READ_AHEAD;

/// Bytes of one stream by offset.
#[derive(Debug)]
pub(crate) struct OutputLog {
    head: VecDeque<Chunk>,
    tail: VecDeque<Chunk>,
    head_limit: u64,
    tail_limit: u64,
    tail_bytes: u64,
    total: u64,
    readers: BTreeMap<u64, u64>,
    closed: bool,
}

#[derive(Debug, Clone)]
struct Chunk {
    offset: u64,
    data: Bytes,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

impl OutputLog {
    /// Creates a log that keeps `keep` bytes: half from the start, half from the end.
    pub(crate) fn new(keep: u64) -> Self {
        Self {
            head: VecDeque::new(),
            tail: VecDeque::new(),
            head_limit: keep / 2,
            tail_limit: (keep / 2).max(MIN_KEPT),
            tail_bytes: 0,
            total: 0,
            readers: BTreeMap::new(),
            closed: false,
        }
    }

    /// Creates a log that keeps the last `keep` bytes.
    pub(crate) fn keep_last(keep: u64) -> Self {
        let mut log = Self::new(0);
        log.tail_limit = keep;
        log
    }

    /// Replaces the content with that of an earlier log. Readers stay registered.
    pub(crate) fn resume_from(&mut self, earlier: Self) {
        let readers = std::mem::take(&mut self.readers);
        *self = Self { readers, ..earlier };
    }

    /// From now on keeps `keep` bytes: half from the start, half from the end.
    pub(crate) fn set_keep(&mut self, keep: u64) {
        self.head_limit = keep / 2;
        self.tail_limit = (keep / 2).max(MIN_KEPT);
    }

    pub(crate) fn append(&mut self, data: Bytes) {
        let chunk = Chunk { offset: self.total, data };
        self.total = chunk.end();
        if chunk.end() <= self.head_limit && self.tail.is_empty() {
            self.head.push_back(chunk);
            return;
        }
        self.tail_bytes += chunk.data.len() as u64;
        self.tail.push_back(chunk);
        while let Some(oldest) = self.tail.front()
            && self.tail_bytes - oldest.data.len() as u64 >= self.tail_limit
        {
            self.tail_bytes -= oldest.data.len() as u64;
            self.tail.pop_front();
        }
    }

    /// Returns the next bytes at or after `offset` with their offset; `None` if there are none yet.
    pub(crate) fn read(&self, offset: u64) -> Option<(u64, Bytes)> {
        [&self.head, &self.tail].into_iter().find_map(|chunks| {
            let index = chunks.partition_point(|chunk| chunk.end() <= offset);
            let chunk = chunks.get(index)?;
            let skip = usize::try_from(offset.saturating_sub(chunk.offset)).ok()?;
            Some((chunk.offset + skip as u64, chunk.data.slice(skip..)))
        })
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of bytes held in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.head.back().map_or(0, Chunk::end) + self.tail_bytes
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Registers a reader or updates its offset.
    pub(crate) fn set_reader(&mut self, reader: u64, offset: u64) {
        self.readers.insert(reader, offset);
    }

    pub(crate) fn remove_reader(&mut self, reader: u64) {
        self.readers.remove(&reader);
    }

    /// Reports whether an attached reader lags so far behind that the process must wait.
    pub(crate) fn must_wait(&self) -> bool {
        self.readers.values().any(|offset| offset.saturating_add(READ_AHEAD) < self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(log: &OutputLog, mut offset: u64) -> Vec<(u64, Vec<u8>)> {
        let mut pieces = Vec::new();
        while let Some((start, data)) = log.read(offset) {
            offset = start + data.len() as u64;
            pieces.push((start, data.to_vec()));
        }
        pieces
    }

    #[test]
    fn log_is_read_in_order_from_any_offset() {
        let mut log = OutputLog::new(8);
        for piece in ["ab", "cd", "ef", "gh"] {
            log.append(Bytes::from_static(piece.as_bytes()));
        }
        let text = |offset| collect(&log, offset).into_iter().flat_map(|(_, data)| data).collect::<Vec<u8>>();
        assert_eq!(text(0), b"abcdefgh");
        assert_eq!(text(3), b"defgh");
        assert_eq!(text(8), b"");
        assert_eq!(log.total(), 8);
    }

    #[test]
    fn large_output_keeps_the_first_and_the_last_bytes() {
        let mut log = OutputLog::new(2048);
        for index in 0..20_000u32 {
            log.append(Bytes::from(vec![u8::try_from(index % 251).unwrap(); 1024]));
        }
        let pieces = collect(&log, 0);
        assert_eq!(pieces[0].0, 0);
        let gap = pieces.windows(2).find(|pair| pair[0].0 + pair[0].1.len() as u64 != pair[1].0).unwrap();
        assert_eq!(gap[0].0 + gap[0].1.len() as u64, 1024, "the head ends");
        assert_eq!(log.total() - gap[1].0, MIN_KEPT, "the tail begins");
        let kept: usize = pieces.iter().map(|(_, data)| data.len()).sum();
        assert_eq!(kept as u64, 1024 + MIN_KEPT);
    }

    #[test]
    fn log_resumes_from_the_tail_of_another() {
        let mut earlier = OutputLog::keep_last(4);
        for piece in ["ab", "cd", "ef", "gh"] {
            earlier.append(Bytes::from_static(piece.as_bytes()));
        }
        let mut log = OutputLog::new(0);
        log.set_reader(1, 0);
        log.resume_from(earlier);
        log.set_keep(1 << 20);
        log.append(Bytes::from_static(b"ij"));
        assert_eq!(log.read(0).unwrap().0, 4, "dropped bytes leave a gap");
        assert_eq!(collect(&log, 0).into_iter().flat_map(|(_, data)| data).collect::<Vec<u8>>(), b"efghij");
        assert_eq!((log.total(), log.held_bytes()), (10, 6));
        log.append(Bytes::from(vec![0; usize::try_from(2 * READ_AHEAD).unwrap()]));
        assert!(log.must_wait(), "its reader is still registered");
    }

    #[test]
    fn only_a_lagging_attached_reader_throttles_the_process() {
        let mut log = OutputLog::new(0);
        for _ in 0..3 {
            log.append(Bytes::from(vec![0; usize::try_from(READ_AHEAD).unwrap()]));
        }
        assert!(!log.must_wait());
        log.set_reader(1, 0);
        assert!(log.must_wait());
        log.set_reader(1, 2 * READ_AHEAD);
        assert!(!log.must_wait());
        log.set_reader(2, 0);
        assert!(log.must_wait());
        log.remove_reader(2);
        assert!(!log.must_wait());
    }
}
