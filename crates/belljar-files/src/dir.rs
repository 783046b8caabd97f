//! Directories and file attributes by descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Flag of `statx(2)` and the like: a symbolic link in the last component of a path is not followed.
pub const NO_FOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

/// Returns the attributes of an open file.
///
/// # Errors
/// Fails with the error of `statx(2)`.
pub fn stat_open(file: impl AsFd) -> Result<Statx, Errno> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Returns the file type in the attributes.
#[must_use]
pub fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// Opens a directory for reading its names.
///
/// # Errors
/// Fails with the error of `open(2)`: `ELOOP` or `ENOTDIR` for a symbolic link if not `follow`.
pub fn open_dir(dir: BorrowedFd<'_>, path: impl Arg, follow: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, !follow);
    rustix::fs::openat(dir, path, flags, Mode::empty())
}

/// Returns device and inode of an open directory.
pub(crate) fn identity(dir: BorrowedFd<'_>) -> Result<(u32, u32, u64), Errno> {
    let stat = stat_open(dir)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}
