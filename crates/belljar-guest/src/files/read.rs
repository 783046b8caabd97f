//! Reads a file as a stream of chunks.

use std::os::fd::OwnedFd;
use std::path::Path;

use belljar_files::{NO_FOLLOW, kind, show, stat_open};
use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use futures::Stream;
use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::{Errno, pread, retry_on_intr};

use super::entry::entry;
use super::path::{failed_precondition, failure, not_regular, resolve};

/// Maximum size of the data in one message, in bytes.
const CHUNK_BYTES: usize = 128 * 1024;

/// Maximum number of bytes read from a file whose size is 0, as of files in `/proc`.
const MAX_UNSIZED_BYTES: u64 = 16 << 20;

/// Opens the file; the first message of the stream contains its entry.
pub(super) fn open(
    home: &Path,
    request: &v1::ReadRequest,
) -> Result<impl Stream<Item = Result<v1::ReadResponse, ConnectError>> + use<>, ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let fail = |errno| failure("read", &request.path, errno);
    // Checked before opening, because opening a device or a FIFO has side effects.
    let at = if request.no_follow { NO_FOLLOW } else { AtFlags::empty() };
    let stat = rustix::fs::statx(rustix::fs::CWD, &path, at, StatxFlags::BASIC_STATS).map_err(fail)?;
    check_regular(&stat, "read", &request.path)?;
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, request.no_follow);
    let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(fail)?;
    // Checked again, because it may have been replaced meanwhile.
    let stat = stat_open(&file).map_err(fail)?;
    check_regular(&stat, "read", &request.path)?;

    // The current size bounds the stream, even if the file keeps growing.
    let available = match stat.stx_size {
        0 => MAX_UNSIZED_BYTES,
        size => size.saturating_sub(request.offset),
    };
    let left = if request.length == 0 { available } else { available.min(request.length) };
    let reading = Reading {
        file,
        path: request.path.clone(),
        entry: Some(entry(&stat, &request.path)),
        offset: request.offset,
        left,
    };
    Ok(futures::stream::try_unfold(reading, next))
}

/// Fails unless the file is regular.
pub(super) fn check_regular(stat: &Statx, action: &str, path: &[u8]) -> Result<(), ConnectError> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(not_regular(format!("cannot {action} {}: is a directory", show(path)))),
        FileType::Symlink => Err(failed_precondition(action, path, "is a symbolic link")),
        _ => Err(not_regular(format!("cannot {action} {}: not a regular file", show(path)))),
    }
}

struct Reading {
    file: OwnedFd,
    path: Bytes,
    /// Taken by the first message.
    entry: Option<v1::Entry>,
    offset: u64,
    left: u64,
}

async fn next(mut reading: Reading) -> Result<Option<(v1::ReadResponse, Reading)>, ConnectError> {
    // Lets other tasks of the guest run while a long file is read.
    tokio::task::yield_now().await;
    let length = usize::try_from(reading.left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
    let data = read_chunk(&reading, length).map_err(|errno| failure("read", &reading.path, errno))?;
    if data.is_empty() {
        // The end, also if the file was truncated.
        reading.left = 0;
        if reading.entry.is_none() {
            return Ok(None);
        }
    }
    let read_bytes = data.len() as u64;
    reading.offset = reading.offset.saturating_add(read_bytes);
    reading.left = reading.left.saturating_sub(read_bytes);
    let response =
        v1::ReadResponse { entry: reading.entry.take().into(), data: data.into(), ..Default::default() };
    Ok(Some((response, reading)))
}

fn read_chunk(reading: &Reading, length: usize) -> Result<Vec<u8>, Errno> {
    let mut data = Vec::with_capacity(length);
    if length > 0 {
        retry_on_intr(|| pread(&reading.file, spare_capacity(&mut data), reading.offset))?;
        data.truncate(length);
    }
    Ok(data)
}
