//! Moving what was unpacked to its place. Directories that are there are added to; nothing is followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, RenameFlags, StatxFlags};
use rustix::io::Errno;

use crate::dir::{ITSELF, kind, open_dir};
use crate::error::{ErrorKind, FileError, failure, unfit};
use crate::path::show;

/// Levels that may be there already.
const MAX_LEVELS: usize = 128;

/// How many names are moved before other work gets its turn.
const MOVE_AT_ONCE: usize = 256;

/// Moves everything in `from` into `to`. What stands in the way is found before anything is moved.
pub(super) async fn merge(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    overwrite: bool,
) -> Result<(), FileError> {
    go_through(from, to, overwrite, false).await?;
    go_through(from, to, overwrite, true).await
}

struct Level {
    from: OwnedFd,
    to: OwnedFd,
    listing: Dir,
    prefix: usize,
}

impl Level {
    fn new(from: OwnedFd, to: OwnedFd, prefix: usize) -> Result<Self, Errno> {
        let listing = Dir::read_from(&from)?;
        Ok(Self { from, to, listing, prefix })
    }
}

async fn go_through(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    overwrite: bool,
    moves: bool,
) -> Result<(), FileError> {
    let mut path: Vec<u8> = Vec::new();
    let begin = || Level::new(open_dir(from, c".", false)?, open_dir(to, c".", false)?, 0);
    let mut levels = vec![begin().map_err(|errno| failure("unpack into", b".", errno))?];
    let mut looked = 0usize;
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.listing.read() else {
            levels.pop();
            continue;
        };
        looked += 1;
        if looked.is_multiple_of(MOVE_AT_ONCE) {
            tokio::task::yield_now().await;
        }
        path.truncate(level.prefix);
        let entry = entry.map_err(|errno| failure("unpack into", &path, errno))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        path.extend_from_slice(name.to_bytes());
        let fail = |errno| failure("unpack", &path, errno);
        let there = match rustix::fs::statx(&level.to, name, ITSELF, StatxFlags::TYPE) {
            Ok(stat) => Some(kind(&stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(fail(errno)),
        };
        let new = rustix::fs::statx(&level.from, name, ITSELF, StatxFlags::TYPE).map_err(fail)?;
        match (kind(&new), there) {
            (FileType::Directory, Some(FileType::Directory)) => {
                let next = || {
                    let from = open_dir(level.from.as_fd(), name, false)?;
                    let to = open_dir(level.to.as_fd(), name, false)?;
                    Level::new(from, to, path.len() + 1)
                };
                let next = next().map_err(fail)?;
                if levels.len() == MAX_LEVELS {
                    return Err(unfit("unpack", &path, "too many levels of directories are there already"));
                }
                path.push(b'/');
                levels.push(next);
            }
            (_, Some(FileType::Directory)) => return Err(unfit("unpack", &path, "a directory is there")),
            (FileType::Directory, Some(_)) => {
                return Err(unfit("unpack", &path, "something is there that is no directory"));
            }
            (_, Some(_)) if !overwrite => {
                return Err(FileError::new(
                    ErrorKind::AlreadyExists,
                    format!("cannot unpack {}: it exists already; ask for `overwrite`", show(&path)),
                ));
            }
            (_, there) if moves => {
                let flags = if there.is_some() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
                rustix::fs::renameat_with(&level.from, name, &level.to, name, flags).map_err(fail)?;
            }
            _ => {}
        }
    }
    Ok(())
}
