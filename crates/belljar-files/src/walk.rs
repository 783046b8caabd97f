//! Walks through trees of any depth and width, while other programs may be changing them. A walk holds a bounded number
//! of descriptors: at great depth, the way back up is `..`, which must lead to the directory that the walk came from.
//! No symbolic link is followed. Of a directory, only the names of its subdirectories are kept in memory.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, Statx, StatxFlags};
use rustix::io::Errno;

use crate::dir::{NO_FOLLOW, identity, kind, open_dir, stat_open};

/// Number of upper levels whose directories stay open. They are also the way out when a directory far down was moved
/// meanwhile.
const OPEN_LEVELS: usize = 48;

/// Maximum number of names read in one step.
const READ_BATCH: usize = 256;

/// Maximum path length of directories that are entered, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 1 << 20;

/// A walk through the tree below one directory.
pub struct Walk {
    /// Path of the last entry found, relative to the start.
    path: Vec<u8>,
    levels: Vec<Level>,
    listing: Option<Dir>,
    entering: Option<OwnedFd>,
    /// Device of the only file system that the walk covers.
    device: Option<(u32, u32)>,
    /// Number of directories that could not be entered, or were lost.
    pub missed: u64,
}

struct Level {
    /// Open for the last level and the first few.
    dir: Option<OwnedFd>,
    identity: (u32, u32, u64),
    /// Names of subdirectories still to be entered, each followed by a NUL.
    pending: Vec<u8>,
    /// Offset in the path at which the names of this level begin.
    prefix: usize,
}

/// Result of one step.
pub enum Found {
    /// An entry that is not a directory.
    Other(CString),
    /// A directory. [`Walk::enter`] enters it, if called before the next step.
    Directory,
    /// A directory without read permission.
    Unreadable(CString),
    /// Nothing yet; the caller may yield.
    Nothing,
    /// The walk is complete.
    End,
}

impl Walk {
    /// Begins a walk in an open directory, whose path is shown as `prefix`: empty, or with a slash at its end.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn new(dir: OwnedFd, prefix: &[u8], one_file_system: bool) -> Result<Self, Errno> {
        let identity = identity(dir.as_fd())?;
        let mut walk = Self {
            path: prefix.to_vec(),
            levels: Vec::new(),
            listing: None,
            entering: None,
            device: one_file_system.then_some((identity.0, identity.1)),
            missed: 0,
        };
        walk.go_down(dir, identity)?;
        Ok(walk)
    }

    /// Returns the path of the last entry found.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the directory that contains the last entry found.
    #[must_use]
    pub fn dir(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last()?.dir.as_ref().map(AsFd::as_fd)
    }

    /// Returns the directory found last, unless it was already entered.
    #[must_use]
    pub fn found_dir(&self) -> Option<BorrowedFd<'_>> {
        self.entering.as_ref().map(AsFd::as_fd)
    }

    /// Enters the directory found last.
    pub fn enter(&mut self) {
        let Some(dir) = self.entering.take() else { return };
        if self.path.len() >= MAX_PATH_BYTES {
            self.missed += 1;
            return;
        }
        let entered = identity(dir.as_fd()).and_then(|identity| {
            self.path.push(b'/');
            self.go_down(dir, identity)
        });
        if entered.is_err() {
            self.missed += 1;
        }
    }

    fn go_down(&mut self, dir: OwnedFd, identity: (u32, u32, u64)) -> Result<(), Errno> {
        let listing = Dir::read_from(&dir)?;
        if self.levels.len() > OPEN_LEVELS
            && let Some(last) = self.levels.last_mut()
        {
            last.dir = None;
        }
        self.levels.push(Level { dir: Some(dir), identity, pending: Vec::new(), prefix: self.path.len() });
        self.listing = Some(listing);
        Ok(())
    }

    /// Takes one step of bounded duration.
    pub fn step(&mut self) -> Found {
        self.entering = None;
        if self.listing.is_some() {
            return self.list();
        }
        let Some(level) = self.levels.last_mut() else { return Found::End };
        self.path.truncate(level.prefix);
        let Some(name) = take_last(&mut level.pending) else {
            self.go_up();
            return Found::Nothing;
        };
        self.path.extend_from_slice(name.to_bytes());
        let Some(dir) = &level.dir else { return Found::Nothing };
        match open_dir(dir.as_fd(), name.as_c_str(), false) {
            Ok(found) if is_elsewhere(self.device, stat_open(&found)) => Found::Nothing,
            Ok(found) => {
                self.entering = Some(found);
                Found::Directory
            }
            Err(Errno::ACCESS | Errno::PERM) => {
                let stat = rustix::fs::statx(dir, &name, NO_FOLLOW, StatxFlags::BASIC_STATS);
                if is_elsewhere(self.device, stat) { Found::Nothing } else { Found::Unreadable(name) }
            }
            // It was removed or replaced meanwhile.
            Err(_) => {
                self.missed += 1;
                Found::Nothing
            }
        }
    }

    /// Continues to read the directory: other entries are returned at once, directories after them.
    fn list(&mut self) -> Found {
        let (Some(listing), Some(level)) = (&mut self.listing, self.levels.last_mut()) else {
            return Found::Nothing;
        };
        for _ in 0..READ_BATCH {
            let entry = match listing.read() {
                Some(Ok(entry)) => entry,
                Some(Err(_)) => {
                    self.missed += 1;
                    self.listing = None;
                    return Found::Nothing;
                }
                None => {
                    self.listing = None;
                    return Found::Nothing;
                }
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if is_dir(level, name, entry.file_type()) {
                level.pending.extend_from_slice(name.to_bytes_with_nul());
                continue;
            }
            self.path.truncate(level.prefix);
            self.path.extend_from_slice(name.to_bytes());
            return Found::Other(name.to_owned());
        }
        Found::Nothing
    }

    /// Leaves a directory, and also the ones above it that cannot be reached any more.
    fn go_up(&mut self) {
        let mut from = self.levels.pop().and_then(|level| level.dir);
        while let Some(level) = self.levels.last_mut() {
            if level.dir.is_some() {
                return;
            }
            let above = from.take().and_then(|dir| open_dir(dir.as_fd(), c"..", false).ok());
            match above.filter(|dir| identity(dir.as_fd()).ok() == Some(level.identity)) {
                Some(dir) => {
                    level.dir = Some(dir);
                    return;
                }
                None => {
                    self.missed += 1;
                    self.levels.pop();
                }
            }
        }
    }
}

/// Returns whether a directory is on another file system than the only one that the walk covers.
fn is_elsewhere(device: Option<(u32, u32)>, dir: Result<Statx, Errno>) -> bool {
    device.is_some_and(|device| dir.is_ok_and(|stat| device != (stat.stx_dev_major, stat.stx_dev_minor)))
}

fn is_dir(level: &Level, name: &CStr, listed: FileType) -> bool {
    match (listed, &level.dir) {
        (FileType::Unknown, Some(dir)) => {
            let stat = rustix::fs::statx(dir, name, NO_FOLLOW, StatxFlags::TYPE);
            stat.is_ok_and(|stat| kind(&stat) == FileType::Directory)
        }
        (listed, _) => listed == FileType::Directory,
    }
}

/// Removes the last name from the list and returns it.
fn take_last(names: &mut Vec<u8>) -> Option<CString> {
    names.pop()?;
    let begin = names.iter().rposition(|byte| *byte == 0).map_or(0, |end| end + 1);
    let name = names.split_off(begin);
    // An exhausted large list must not stay in memory.
    if names.is_empty() {
        *names = Vec::new();
    }
    CString::new(name).ok()
}
