//! Moves unpacked entries to their final place. Existing directories are merged into; no link is followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, RenameFlags, StatxFlags};
use rustix::io::Errno;

use crate::dir::{NO_FOLLOW, kind, open_dir};
use crate::error::{ErrorKind, FileError, failed_precondition, failure};
use crate::path::show;

/// Maximum depth of existing directories that are merged into.
const MAX_LEVELS: usize = 128;

/// Number of names moved before the task yields.
const MOVE_BATCH: usize = 256;

/// Moves everything in `from` into `to`. Conflicts are found before anything is moved.
pub(super) async fn merge(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    overwrite: bool,
) -> Result<(), FileError> {
    traverse(from, to, overwrite, false).await?;
    traverse(from, to, overwrite, true).await
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

async fn traverse(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    overwrite: bool,
    moves: bool,
) -> Result<(), FileError> {
    let mut path: Vec<u8> = Vec::new();
    let begin = || Level::new(open_dir(from, c".", false)?, open_dir(to, c".", false)?, 0);
    let mut levels = vec![begin().map_err(|errno| failure("unpack into", b".", errno))?];
    let mut visited = 0usize;
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.listing.read() else {
            levels.pop();
            continue;
        };
        visited += 1;
        if visited.is_multiple_of(MOVE_BATCH) {
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
        let existing = match rustix::fs::statx(&level.to, name, NO_FOLLOW, StatxFlags::TYPE) {
            Ok(stat) => Some(kind(&stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(fail(errno)),
        };
        let new = rustix::fs::statx(&level.from, name, NO_FOLLOW, StatxFlags::TYPE).map_err(fail)?;
        match (kind(&new), existing) {
            (FileType::Directory, Some(FileType::Directory)) => {
                let next = || {
                    let from = open_dir(level.from.as_fd(), name, false)?;
                    let to = open_dir(level.to.as_fd(), name, false)?;
                    Level::new(from, to, path.len() + 1)
                };
                let next = next().map_err(fail)?;
                if levels.len() == MAX_LEVELS {
                    return Err(failed_precondition(
                        "unpack",
                        &path,
                        "too many levels of existing directories",
                    ));
                }
                path.push(b'/');
                levels.push(next);
            }
            (_, Some(FileType::Directory)) => {
                return Err(failed_precondition(
                    "unpack",
                    &path,
                    "a directory with this name already exists",
                ));
            }
            (FileType::Directory, Some(_)) => {
                return Err(failed_precondition("unpack", &path, "it already exists and is not a directory"));
            }
            (_, Some(_)) if !overwrite => {
                return Err(FileError::new(
                    ErrorKind::AlreadyExists,
                    format!("cannot unpack {}: already exists; set `overwrite` to replace it", show(&path)),
                ));
            }
            (_, existing) if moves => {
                let flags = if existing.is_some() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
                rustix::fs::renameat_with(&level.from, name, &level.to, name, flags).map_err(fail)?;
            }
            _ => {}
        }
    }
    Ok(())
}
