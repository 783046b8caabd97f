//! Data segments and holes of sparse files.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A data segment of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Maximum number of data segments in a file. Each takes at least one disk block, so a file with this many has 4 GiB.
pub(super) const MAX_SEGMENTS: usize = 1 << 20;

/// Number of segments found before the task yields.
const SCAN_BATCH: usize = 256;

/// Reason why the holes of a file are unknown.
pub(super) enum Unknown {
    /// The file system does not report them.
    Unavailable,
    /// The file has too many segments.
    TooMany,
}

/// Returns the data segments of a file of `size` bytes. The last one is empty if the file ends in a hole.
pub(super) async fn find_segments(file: impl AsFd, size: u64) -> Result<Vec<Segment>, Unknown> {
    let mut found: Vec<Segment> = Vec::new();
    let mut at = 0;
    while at < size {
        let (begin, end) = match next_data(file.as_fd(), at) {
            Ok((begin, _)) if begin >= size => break,
            Ok((begin, end)) => (begin.max(at), end.min(size)),
            // No more data.
            Err(Errno::NXIO) => break,
            Err(_) => return Err(Unknown::Unavailable),
        };
        if end <= begin {
            // The file is being changed: it is then read without regard to holes.
            return Err(Unknown::Unavailable);
        }
        if found.len() == MAX_SEGMENTS {
            return Err(Unknown::TooMany);
        }
        found.push(Segment { offset: begin, length: end - begin });
        at = end;
        if found.len().is_multiple_of(SCAN_BATCH) {
            tokio::task::yield_now().await;
        }
    }
    if at < size {
        found.push(Segment { offset: size, length: 0 });
    }
    Ok(found)
}

fn next_data(file: BorrowedFd<'_>, at: u64) -> Result<(u64, u64), Errno> {
    let begin = seek(file, SeekFrom::Data(at))?;
    let end = seek(file, SeekFrom::Hole(begin))?;
    Ok((begin, end))
}
