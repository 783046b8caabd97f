//! Reading a file as a stream of chunks.

use std::os::fd::OwnedFd;
use std::path::Path;

use belljar_files::{ITSELF, kind, show, stat_open};
use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use futures::Stream;
use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::{Errno, pread, retry_on_intr};

use super::entry::entry;
use super::path::{failure, not_regular, resolve, unfit};

/// Bytes in one message.
const CHUNK_BYTES: usize = 128 * 1024;

/// How much is read of a file that says it is empty, in bytes. The files of `/proc` say so.
const UNSIZED_BYTES: u64 = 16 << 20;

/// Opens the file; the stream's first message holds its entry.
pub(super) fn open(
    home: &Path,
    request: &v1::ReadRequest,
) -> Result<impl Stream<Item = Result<v1::ReadResponse, ConnectError>> + use<>, ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let fail = |errno| failure("read", &request.path, errno);
    // Looked at before it is opened, because opening a device or a FIFO does something to it.
    let at = if request.no_follow { ITSELF } else { AtFlags::empty() };
    let stat = rustix::fs::statx(rustix::fs::CWD, &path, at, StatxFlags::BASIC_STATS).map_err(fail)?;
    check_regular(&stat, "read", &request.path)?;
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, request.no_follow);
    let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(fail)?;
    // And again, because it may be another one by now.
    let stat = stat_open(&file).map_err(fail)?;
    check_regular(&stat, "read", &request.path)?;

    // Its size now is where the stream ends at the latest, however fast something writes to it.
    let there = match stat.stx_size {
        0 => UNSIZED_BYTES,
        size => size.saturating_sub(request.offset),
    };
    let left = if request.length == 0 { there } else { there.min(request.length) };
    let reading = Reading {
        file,
        path: request.path.clone(),
        entry: Some(entry(&stat, &request.path)),
        offset: request.offset,
        left,
    };
    Ok(futures::stream::try_unfold(reading, next))
}

/// Refuses anything but a regular file.
pub(super) fn check_regular(stat: &Statx, action: &str, path: &[u8]) -> Result<(), ConnectError> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(not_regular(format!("cannot {action} {}: it is a directory", show(path)))),
        FileType::Symlink => Err(unfit(action, path, "it is a symbolic link")),
        _ => Err(not_regular(format!("cannot {action} {}: not a regular file", show(path)))),
    }
}

struct Reading {
    file: OwnedFd,
    path: Bytes,
    /// Until the first message is made.
    entry: Option<v1::Entry>,
    offset: u64,
    left: u64,
}

async fn next(mut reading: Reading) -> Result<Option<(v1::ReadResponse, Reading)>, ConnectError> {
    // A long file must not keep the guest from its other work.
    tokio::task::yield_now().await;
    let want = usize::try_from(reading.left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
    let data = read_chunk(&reading, want).map_err(|errno| failure("read", &reading.path, errno))?;
    if data.is_empty() {
        // The end, also where the file has become shorter.
        reading.left = 0;
        if reading.entry.is_none() {
            return Ok(None);
        }
    }
    let length = data.len() as u64;
    reading.offset = reading.offset.saturating_add(length);
    reading.left = reading.left.saturating_sub(length);
    let response =
        v1::ReadResponse { entry: reading.entry.take().into(), data: data.into(), ..Default::default() };
    Ok(Some((response, reading)))
}

fn read_chunk(reading: &Reading, want: usize) -> Result<Vec<u8>, Errno> {
    let mut data = Vec::with_capacity(want);
    if want > 0 {
        retry_on_intr(|| pread(&reading.file, spare_capacity(&mut data), reading.offset))?;
        data.truncate(want);
    }
    Ok(data)
}
