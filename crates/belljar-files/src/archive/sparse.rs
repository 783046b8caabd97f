//! Where a file has data and where it has holes.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A part of a file that holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The most parts that a file may have. Each takes a block of the disk or more, so that it has 4 GiB by then.
pub(super) const MAX_SEGMENTS: usize = 1 << 20;

/// How many are looked for before other work gets its turn.
const LOOK_AT_ONCE: usize = 256;

/// Why a file's holes are not known.
pub(super) enum Unknown {
    /// The file system does not tell.
    NotTold,
    /// There are too many.
    TooMany,
}

/// The parts of a file of `size` bytes that hold data. It ends with an empty one where the file ends in a hole.
pub(super) async fn segments(file: impl AsFd, size: u64) -> Result<Vec<Segment>, Unknown> {
    let mut found: Vec<Segment> = Vec::new();
    let mut at = 0;
    while at < size {
        let (begin, end) = match next_data(file.as_fd(), at) {
            Ok((begin, _)) if begin >= size => break,
            Ok((begin, end)) => (begin.max(at), end.min(size)),
            // No data any more.
            Err(Errno::NXIO) => break,
            Err(_) => return Err(Unknown::NotTold),
        };
        if end <= begin {
            // It is being changed under our eyes: then it is taken as it comes.
            return Err(Unknown::NotTold);
        }
        if found.len() == MAX_SEGMENTS {
            return Err(Unknown::TooMany);
        }
        found.push(Segment { offset: begin, length: end - begin });
        at = end;
        if found.len().is_multiple_of(LOOK_AT_ONCE) {
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
