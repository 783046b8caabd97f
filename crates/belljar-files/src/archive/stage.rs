//! The place where an archive is unpacked: a directory of its own inside the target, into which no link can lead. What
//! is whole and good is moved to its place at the end; anything else is removed.
//!
//! ```text
//! open ──► files, directories, hard links ──► finish: symbolic links ──► merge ──► modes and times of directories
//!   │                  │                            │                      │
//!   └──────────────────┴──── an error, or dropped ──┴──────────────────────┴──► all of it is removed
//! ```
//!
//! Symbolic links are made last. Until then there is none in the directory, so no entry can be written through one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, Timespec, Timestamps};
use rustix::io::{Errno, retry_on_intr};

use super::{bad, names};
use crate::dir::{ITSELF, kind, open_dir};
use crate::error::{ErrorKind, FileError, failure};
use crate::path::{show, split};
use crate::remove::remove_tree;
use crate::temporary::Temporary;

/// What symbolic links, and modes of directories, may take in memory until they are made, in bytes.
const REMEMBERED_BYTES: usize = 32 << 20;

/// The longest path that the kernel resolves at once, in bytes.
const KERNEL_PATH_BYTES: usize = 4095;

/// How many links or modes are made before other work gets its turn.
const MAKE_AT_ONCE: usize = 256;

/// Permission bits of directories that the archive does not speak of.
const DEFAULT_DIR_MODE: u32 = 0o755;

/// How many random names are tried.
const NAME_ATTEMPTS: usize = 16;

/// What an entry's attributes become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    /// Permission bits, as the archive has them.
    pub(super) mode: u32,
    /// Seconds since 1970 and the part of a second.
    pub(super) modified: Option<(i64, u32)>,
}

/// How entries are taken over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) strip: usize,
    pub(super) mode_mask: u32,
    pub(super) overwrite: bool,
    pub(super) links_may_lead_out: bool,
    pub(super) is_hosts: bool,
    /// The longest file, holes included, in bytes.
    pub(super) max_file_bytes: u64,
}

/// An archive on its way to its place.
pub(super) struct Stage {
    rules: Rules,
    target: OwnedFd,
    /// Directories above the target that were not there before.
    made: CreatedDirs,
    root: OwnedFd,
    /// In the target. Empty when it has been removed.
    name: Vec<u8>,
    /// The directory that was used last, and its path.
    last: Option<(Vec<u8>, OwnedFd)>,
    links: BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>,
    dirs: BTreeMap<Vec<u8>, Attributes>,
    remembered: usize,
}

/// A file that is being unpacked.
pub(super) struct File {
    file: OwnedFd,
    mode: u32,
    modified: Option<(i64, u32)>,
    shown: Vec<u8>,
}

impl Stage {
    /// Makes the place in an open directory.
    pub(super) fn open(target: OwnedFd, made: CreatedDirs, rules: Rules) -> Result<Self, Errno> {
        for _ in 0..NAME_ATTEMPTS {
            let name = Temporary::New.name()?;
            match rustix::fs::mkdirat(&target, name.as_slice(), Mode::RWXU) {
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
                Ok(()) => {
                    let root = open_dir(target.as_fd(), name.as_slice(), false)?;
                    return Ok(Self {
                        rules,
                        target,
                        made,
                        root,
                        name,
                        last: None,
                        links: BTreeMap::new(),
                        dirs: BTreeMap::new(),
                        remembered: 0,
                    });
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// The name of an entry below the target; `None` when nothing is left of it.
    pub(super) fn entry_name(&self, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        Ok(Some(names::entry_name(name, self.rules.strip)?).filter(|name| !name.is_empty()))
    }

    /// A file without a name in the target, for what must be read twice.
    pub(super) fn scratch_file(&self) -> Result<OwnedFd, FileError> {
        let fail = |errno| failure("unpack", b"the archive", errno);
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.root, c".", flags, mode) {
            // Not every file system has files without names.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&self.root, c".archive", flags, mode).map_err(fail)?;
                rustix::fs::unlinkat(&self.root, c".archive", AtFlags::empty()).map_err(fail)?;
                Ok(file)
            }
            other => other.map_err(fail),
        }
    }

    /// Makes a directory.
    pub(super) fn directory(&mut self, path: &[u8], attributes: Attributes) -> Result<(), FileError> {
        self.go_to(path, true)?;
        if path.len() > KERNEL_PATH_BYTES || self.remembered + path.len() > REMEMBERED_BYTES {
            let mode = self.masked(attributes.mode) | 0o700;
            return self.chmod_last(mode).map_err(|errno| failure("unpack", path, errno));
        }
        if self.dirs.insert(path.to_vec(), attributes).is_none() {
            self.remembered += path.len();
        }
        Ok(())
    }

    /// Begins a file; the last of several with one name counts.
    pub(super) fn file(&mut self, path: &[u8], attributes: Attributes) -> Result<File, FileError> {
        let (dir, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR);
        let file = replacing(dir, name, create).map_err(|errno| taken(path, errno))?;
        let (mode, modified) = (self.masked(attributes.mode), attributes.modified);
        self.forget_link(path);
        Ok(File { file, mode, modified, shown: path.to_vec() })
    }

    /// Gives a file of this archive another name.
    pub(super) fn hard_link(&mut self, path: &[u8], of: &[u8]) -> Result<(), FileError> {
        if path == of {
            return Ok(());
        }
        let missing = || {
            let (link, of) = (show(path), show(of));
            bad(format!("the hard link {link} is to {of}, which is no file that came before it"))
        };
        if let Some((target, attributes)) = self.links.get(of).cloned() {
            return self.symbolic_link(path, target, attributes);
        }
        let (parent, name) = split(of).ok_or_else(missing)?;
        let is_at_root = !of.contains(&b'/');
        self.go_to(if is_at_root { b"" } else { parent }, false).map_err(|_| missing())?;
        let source = self.last_dir().try_clone_to_owned().map_err(|_| missing())?;
        let stat = rustix::fs::statx(&source, name, ITSELF, StatxFlags::TYPE).map_err(|_| missing())?;
        if kind(&stat) != FileType::RegularFile {
            return Err(missing());
        }
        let (dir, new) = self.place(path)?;
        let link = || rustix::fs::linkat(&source, name, dir, new, AtFlags::empty());
        replacing(dir, new, link).map_err(|errno| taken(path, errno))?;
        self.forget_link(path);
        Ok(())
    }

    /// Remembers a symbolic link, to be made at the end.
    pub(super) fn symbolic_link(
        &mut self,
        path: &[u8],
        target: Vec<u8>,
        attributes: Attributes,
    ) -> Result<(), FileError> {
        names::check_target(path, &target, self.rules.links_may_lead_out)?;
        let bytes = path.len() + target.len();
        if self.remembered + bytes > REMEMBERED_BYTES {
            return Err(FileError::new(
                ErrorKind::Exhausted,
                format!(
                    "the archive's links and directories have more than {REMEMBERED_BYTES} bytes of names"
                ),
            ));
        }
        self.forget_link(path);
        self.remembered += bytes;
        self.links.insert(path.to_vec(), (target, attributes));
        Ok(())
    }

    /// Makes the links, moves everything to its place and sets what could not be set before.
    pub(super) async fn finish(mut self) -> Result<(), FileError> {
        let finished = self.move_in().await;
        if finished.is_ok() {
            self.made.0.clear();
        }
        self.discard().await;
        finished
    }

    async fn move_in(&mut self) -> Result<(), FileError> {
        for (number, (path, (target, attributes))) in std::mem::take(&mut self.links).into_iter().enumerate()
        {
            if number.is_multiple_of(MAKE_AT_ONCE) {
                tokio::task::yield_now().await;
            }
            let (dir, name) = self.place(&path)?;
            let link = || rustix::fs::symlinkat(target.as_slice(), dir, name);
            replacing(dir, name, link).map_err(|errno| taken(&path, errno))?;
            if let Some(times) = times(attributes.modified) {
                // A nicety that some file systems do not have.
                let _ = rustix::fs::utimensat(dir, name, &times, ITSELF);
            }
        }
        self.last = None;
        if self.rules.is_hosts {
            let target = &self.target;
            self.dirs.retain(|path, _| matches!(open_below(target.as_fd(), path), Err(Errno::NOENT)));
        }
        super::merge::merge(self.root.as_fd(), self.target.as_fd(), self.rules.overwrite).await?;
        // Those below come first: a directory may close itself to its owner.
        for (number, (path, attributes)) in self.dirs.iter().rev().enumerate() {
            if number.is_multiple_of(MAKE_AT_ONCE) {
                tokio::task::yield_now().await;
            }
            let fail = |errno| failure("set the mode of", path, errno);
            let dir = match self.rules.is_hosts {
                true => open_below(self.target.as_fd(), path),
                false => open_dir(self.target.as_fd(), path.as_slice(), false),
            };
            let dir = dir.map_err(fail)?;
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(self.masked(attributes.mode))).map_err(fail)?;
            if let Some(times) = times(attributes.modified) {
                rustix::fs::futimens(&dir, &times).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// Removes what has not been moved to its place.
    pub(super) async fn discard(mut self) {
        remove(self.target.as_fd(), &self.name).await;
        self.name.clear();
    }

    /// The longest file, holes included, in bytes.
    pub(super) fn max_file_bytes(&self) -> u64 {
        self.rules.max_file_bytes
    }

    fn masked(&self, mode: u32) -> u32 {
        mode & self.rules.mode_mask & 0o777
    }

    fn forget_link(&mut self, path: &[u8]) {
        if let Some((target, _)) = self.links.remove(path) {
            self.remembered -= path.len() + target.len();
        }
    }

    /// The directory and the name of an entry. Directories above it are made.
    fn place<'a>(&mut self, path: &'a [u8]) -> Result<(BorrowedFd<'_>, &'a [u8]), FileError> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (b"".as_slice(), path),
        };
        self.go_to(parent, true)?;
        Ok((self.last_dir(), name))
    }

    fn last_dir(&self) -> BorrowedFd<'_> {
        self.last.as_ref().map_or(self.root.as_fd(), |(_, dir)| dir.as_fd())
    }

    /// Makes a directory the last one, name by name, from the last one if that is above it.
    fn go_to(&mut self, path: &[u8], make: bool) -> Result<(), FileError> {
        let near = self.last.take().filter(|(last, _)| {
            path == last.as_slice()
                || path.strip_prefix(last.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
        });
        let (begin, mut dir) = match near {
            Some((last, dir)) => (last.len(), Some(dir)),
            None => (0, None),
        };
        for part in path[begin..].split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let from = dir.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let next = step(from, part, make).map_err(|errno| match errno {
                Errno::NOTDIR | Errno::LOOP => {
                    bad(format!("{} has entries below it, and is no directory", show(part)))
                }
                errno => failure("unpack", path, errno),
            })?;
            dir = Some(next);
        }
        self.last = dir.map(|dir| (path.to_vec(), dir));
        Ok(())
    }

    fn chmod_last(&self, mode: u32) -> Result<(), Errno> {
        let dir = open_dir(self.last_dir(), c".", false)?;
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.name.is_empty() {
            return;
        }
        // The call was broken off. Without a runtime the guest itself is at its end, and the sandbox with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if let Ok(target) = self.target.try_clone() {
            let (name, made) = (std::mem::take(&mut self.name), std::mem::take(&mut self.made));
            runtime.spawn(async move {
                remove(target.as_fd(), &name).await;
                drop(made);
            });
        }
    }
}

async fn remove(target: BorrowedFd<'_>, name: &[u8]) {
    // Nobody is left to tell; user code may have removed it, or put something else there.
    let _ = remove_tree(target, name).await;
}

/// Directories that were made for an archive. They are removed when this is dropped.
#[derive(Debug, Default)]
pub struct CreatedDirs(Vec<Vec<u8>>);

/// Makes the directories that are missing on the way to `path`, and that one.
///
/// # Errors
/// Those of `mkdir(2)`.
pub fn create_dirs(path: &Path) -> Result<CreatedDirs, Errno> {
    let path = path.as_os_str().as_bytes();
    let mut created = CreatedDirs::default();
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
    for end in ends.chain([path.len()]) {
        let dir = &path[..end];
        match rustix::fs::mkdir(dir, Mode::from_raw_mode(DEFAULT_DIR_MODE)) {
            Ok(()) => created.0.push(dir.to_vec()),
            // Where it is no directory, opening it says so. A system's own directories may say anything.
            Err(Errno::EXIST | Errno::ISDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(created)
}

impl Drop for CreatedDirs {
    fn drop(&mut self) {
        while let Some(dir) = self.0.pop() {
            // It stays if user code has put something there.
            let _ = rustix::fs::unlinkat(CWD, dir.as_slice(), AtFlags::REMOVEDIR);
        }
    }
}

impl File {
    /// Writes all of `data`, at `offset`.
    pub(super) fn write(&self, mut data: &[u8], mut offset: u64) -> Result<(), FileError> {
        while !data.is_empty() {
            let written = retry_on_intr(|| rustix::io::pwrite(&self.file, data, offset));
            let written = written.map_err(|errno| self.failure(errno))?;
            if written == 0 {
                return Err(self.failure(Errno::IO));
            }
            data = &data[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Ends the file. One with holes has this size, whatever was written last.
    pub(super) fn finish(self, size: Option<u64>) -> Result<(), FileError> {
        let set = || {
            if let Some(size) = size {
                rustix::fs::ftruncate(&self.file, size)?;
            }
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(self.mode))?;
            match times(self.modified) {
                Some(times) => rustix::fs::futimens(&self.file, &times),
                None => Ok(()),
            }
        };
        set().map_err(|errno| self.failure(errno))
    }

    fn failure(&self, errno: Errno) -> FileError {
        failure("unpack", &self.shown, errno)
    }
}

/// Opens, or makes, one directory in another.
fn step(dir: BorrowedFd<'_>, name: &[u8], make: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) if make => {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(DEFAULT_DIR_MODE))?;
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        other => other,
    }
}

/// Opens a directory below another one by way of directories alone, name by name.
fn open_below(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut last: Option<OwnedFd> = None;
    for part in path.split(|byte| *byte == b'/') {
        let next = step(last.as_ref().map_or(dir, AsFd::as_fd), part, false)?;
        last = Some(next);
    }
    open_dir(last.as_ref().map_or(dir, AsFd::as_fd), c".", false)
}

/// Makes a name that an earlier entry of the archive may have taken.
fn replacing<T>(dir: BorrowedFd<'_>, name: &[u8], make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            make()
        }
        other => other,
    }
}

fn taken(path: &[u8], errno: Errno) -> FileError {
    match errno {
        Errno::ISDIR | Errno::PERM => {
            bad(format!("{} is there as a directory and as something else", show(path)))
        }
        errno => failure("unpack", path, errno),
    }
}

fn times(modified: Option<(i64, u32)>) -> Option<Timestamps> {
    let (tv_sec, tv_nsec) = modified?;
    let time = Timespec { tv_sec, tv_nsec: tv_nsec.into() };
    Some(Timestamps { last_access: time, last_modification: time })
}
