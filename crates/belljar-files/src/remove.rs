//! Removal of directory trees.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, StatxFlags};
use rustix::io::Errno;

use crate::dir::{NO_FOLLOW, identity, kind, open_dir};

/// Maximum number of names removed before the task yields.
const REMOVE_BATCH: usize = 256;

/// Removes a directory with everything in it, while other programs may be changing it. Holds one descriptor, whatever
/// the depth: the way back up is `..`, which must lead to the directory that the walk came from.
///
/// # Errors
/// Fails with the kernel's error, or with `ESTALE` if a directory was moved meanwhile.
pub async fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let mut current = open_own(parent, name)?;
    let mut above = Vec::new();
    loop {
        match remove_some(current.as_fd())? {
            Step::More => {}
            Step::Into(child) => {
                above.push(identity(current.as_fd())?);
                current = child;
            }
            Step::Empty => {
                let Some(expected) = above.pop() else { break };
                // The emptied directory is removed when its parent is read again.
                current = open_dir(current.as_fd(), c"..", false)?;
                if identity(current.as_fd())? != expected {
                    return Err(Errno::STALE);
                }
            }
        }
        tokio::task::yield_now().await;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

enum Step {
    Empty,
    More,
    Into(OwnedFd),
}

/// Removes the names in one directory until it meets a subdirectory that is not empty.
fn remove_some(dir: BorrowedFd<'_>) -> Result<Step, Errno> {
    let mut removed = 0;
    let mut made_writable = false;
    // Reads from the start each time, because removing names shifts the position of the rest.
    let mut names = Dir::read_from(dir)?;
    while let Some(entry) = names.read() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if removed == REMOVE_BATCH {
            return Ok(Step::More);
        }
        let is_dir = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statx(dir, name, NO_FOLLOW, StatxFlags::TYPE);
                stat.is_ok_and(|stat| kind(&stat) == FileType::Directory)
            }
            kind => kind == FileType::Directory,
        };
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(dir, name, flags) {
            Ok(()) | Err(Errno::NOENT) => removed += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) => {
                match open_own(dir, name.to_bytes()) {
                    // Another program has removed it meanwhile.
                    Err(Errno::NOENT) => removed += 1,
                    opened => return opened.map(Step::Into),
                }
            }
            Err(Errno::ACCESS) if !made_writable => {
                // The owner may have revoked its own write permission on this directory.
                rustix::fs::fchmod(dir, Mode::RWXU)?;
                made_writable = true;
                names.rewind();
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(Step::Empty)
}

/// Opens a directory whose owner may have revoked its own permissions.
fn open_own(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    match open_dir(dir, name, false) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            open_dir(dir, name, false)
        }
        other => other,
    }
}
