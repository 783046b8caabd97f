//! Going through a tree of any depth and width, while programs may be at work there. It holds a bounded number of
//! descriptors: far down, the way back up is `..`, and must lead to the directory that it came from. No symbolic link is
//! followed. Of a directory only the names of those in it are remembered.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, StatxFlags};
use rustix::io::Errno;

use crate::dir::{ITSELF, identity, kind, open_dir};

/// Levels whose directories stay open. Also the way out when a directory far down was moved away meanwhile.
const HELD_LEVELS: usize = 48;

/// How many names are looked at in one step.
const LOOK_AT_ONCE: usize = 256;

/// The longest path that is gone into, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 1 << 20;

/// A walk below one directory.
pub struct Walk {
    /// The path of what was found last, relative to the start.
    path: Vec<u8>,
    levels: Vec<Level>,
    listing: Option<Dir>,
    entering: Option<OwnedFd>,
    /// The file system that is not left.
    device: Option<(u32, u32)>,
    /// What could not be gone into, or was lost.
    pub missed: u64,
}

struct Level {
    /// Open for the last level and the first few.
    dir: Option<OwnedFd>,
    identity: (u32, u32, u64),
    /// Names of directories that are still to be gone into, each with a NUL behind it.
    pending: Vec<u8>,
    /// Where names of this level begin in the path.
    prefix: usize,
}

/// What a step has found.
pub enum Found {
    /// Something that is no directory.
    Other(CString),
    /// A directory. It is gone into by [`Walk::enter`], before the next step.
    Directory,
    /// One that may not be read.
    Closed(CString),
    /// Nothing yet; other work may have its turn.
    Nothing,
    /// There is no more.
    End,
}

impl Walk {
    /// Begins in an open directory, whose path is shown as `prefix`: empty, or with a slash at its end.
    ///
    /// # Errors
    /// It cannot be read.
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

    /// The path of what was found last.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The directory that holds what was found last.
    #[must_use]
    pub fn dir(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last()?.dir.as_ref().map(AsFd::as_fd)
    }

    /// The directory that was found last, as long as it has not been gone into.
    #[must_use]
    pub fn found_dir(&self) -> Option<BorrowedFd<'_>> {
        self.entering.as_ref().map(AsFd::as_fd)
    }

    /// Goes into the directory that was found last.
    pub fn enter(&mut self) {
        let Some(dir) = self.entering.take() else { return };
        if self.path.len() >= MAX_PATH_BYTES {
            self.missed += 1;
            return;
        }
        let entered = identity(dir.as_fd()).and_then(|identity| {
            if self.device.is_some_and(|device| device != (identity.0, identity.1)) {
                return Ok(());
            }
            self.path.push(b'/');
            self.go_down(dir, identity)
        });
        if entered.is_err() {
            self.missed += 1;
        }
    }

    fn go_down(&mut self, dir: OwnedFd, identity: (u32, u32, u64)) -> Result<(), Errno> {
        let listing = Dir::read_from(&dir)?;
        if self.levels.len() > HELD_LEVELS
            && let Some(last) = self.levels.last_mut()
        {
            last.dir = None;
        }
        self.levels.push(Level { dir: Some(dir), identity, pending: Vec::new(), prefix: self.path.len() });
        self.listing = Some(listing);
        Ok(())
    }

    /// Takes a step of bounded length.
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
            Ok(found) => {
                self.entering = Some(found);
                Found::Directory
            }
            Err(Errno::ACCESS | Errno::PERM) => Found::Closed(name),
            // It is gone, or something else by now.
            Err(_) => {
                self.missed += 1;
                Found::Nothing
            }
        }
    }

    /// Reads on in the directory: others are handed out, directories come after them.
    fn list(&mut self) -> Found {
        let (Some(listing), Some(level)) = (&mut self.listing, self.levels.last_mut()) else {
            return Found::Nothing;
        };
        for _ in 0..LOOK_AT_ONCE {
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

    /// Leaves a directory; also those above it to which there is no way back.
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

fn is_dir(level: &Level, name: &CStr, told: FileType) -> bool {
    match (told, &level.dir) {
        (FileType::Unknown, Some(dir)) => {
            let stat = rustix::fs::statx(dir, name, ITSELF, StatxFlags::TYPE);
            stat.is_ok_and(|stat| kind(&stat) == FileType::Directory)
        }
        (told, _) => told == FileType::Directory,
    }
}

/// The last of the names, which goes from the list.
fn take_last(names: &mut Vec<u8>) -> Option<CString> {
    names.pop()?;
    let begin = names.iter().rposition(|byte| *byte == 0).map_or(0, |end| end + 1);
    let name = names.split_off(begin);
    // A large list must not stay in memory when it is used up.
    if names.is_empty() {
        *names = Vec::new();
    }
    CString::new(name).ok()
}
