//! Entries: the attributes of files for the protocol.

use std::os::fd::BorrowedFd;

use belljar_files::{NO_FOLLOW, kind};
use belljar_proto::v1;
use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Handling of a symbolic link in the last component of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Follow,
    NoFollow,
}

/// Returns the entry of `path` below `dir`, with `shown` as its path.
pub(super) fn entry_at(
    dir: BorrowedFd<'_>,
    path: impl Arg + Copy,
    shown: &[u8],
    link: Link,
) -> Result<v1::Entry, Errno> {
    let flags = if link == Link::Follow { AtFlags::empty() } else { NO_FOLLOW };
    let stat = rustix::fs::statx(dir, path, flags, StatxFlags::BASIC_STATS)?;
    let mut entry = entry(&stat, shown);
    if kind(&stat) == FileType::Symlink {
        // If it was replaced meanwhile, it has no target.
        let target = rustix::fs::readlinkat(dir, path, Vec::new()).unwrap_or_default();
        entry.symlink_target = Bytes::from(target.into_bytes());
    }
    Ok(entry)
}

/// Converts attributes to an entry, without a link's target.
pub(super) fn entry(stat: &Statx, shown: &[u8]) -> v1::Entry {
    let kind = match kind(stat) {
        FileType::RegularFile => v1::FileKind::FILE_KIND_FILE,
        FileType::Directory => v1::FileKind::FILE_KIND_DIRECTORY,
        FileType::Symlink => v1::FileKind::FILE_KIND_SYMLINK,
        FileType::Fifo => v1::FileKind::FILE_KIND_FIFO,
        FileType::Socket => v1::FileKind::FILE_KIND_SOCKET,
        FileType::CharacterDevice | FileType::BlockDevice => v1::FileKind::FILE_KIND_DEVICE,
        _ => v1::FileKind::FILE_KIND_UNSPECIFIED,
    };
    v1::Entry {
        path: Bytes::copy_from_slice(shown),
        kind: kind.into(),
        size: stat.stx_size,
        mode: u32::from(stat.stx_mode) & 0o7777,
        modified_ns: nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        changed_ns: nanoseconds(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        accessed_ns: nanoseconds(stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec),
        inode: stat.stx_ino,
        links: stat.stx_nlink,
        ..Default::default()
    }
}

/// Converts a time to nanoseconds, saturating: user code can set any time.
fn nanoseconds(seconds: i64, part: u32) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(part.into())
}
