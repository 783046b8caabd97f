//! Staging directory of an archive: a directory of its own inside the target, into which no link can lead. A complete
//! and valid archive is moved to its final place at the end; anything else is removed.
//!
//! ```text
//! open ──► files, directories, hard links ──► finish: symbolic links ──► merge ──► modes and times of directories
//!   │                  │                            │                      │
//!   └──────────────────┴──── an error, or drop ─────┴──────────────────────┴──► everything is removed
//! ```
//!
//! Symbolic links are created last. Until then there is none in the directory, so no entry can be written through one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, Timespec, Timestamps};
use rustix::io::{Errno, retry_on_intr};

use super::{invalid_archive, names};
use crate::dir::{NO_FOLLOW, kind, open_dir};
use crate::error::{ErrorKind, FileError, failure};
use crate::path::{show, split};
use crate::remove::remove_tree;
use crate::temporary::Temporary;

/// Memory for pending symbolic links and directory attributes, in bytes.
const MAX_PENDING_BYTES: usize = 32 << 20;

/// Maximum length of a path in one system call, in bytes.
const MAX_KERNEL_PATH_BYTES: usize = 4095;

/// Number of links or modes set before the task yields.
const FINISH_BATCH: usize = 256;

/// Permission bits of directories that have no entry in the archive.
const DEFAULT_DIR_MODE: u32 = 0o755;

/// Number of random names tried.
const NAME_ATTEMPTS: usize = 16;

/// Attributes of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    /// Permission bits as recorded in the archive.
    pub(super) mode: u32,
    /// Modification time: seconds since 1970 and nanoseconds.
    pub(super) modified: Option<(i64, u32)>,
}

/// Rules for creating entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) strip: usize,
    pub(super) mode_mask: u32,
    pub(super) overwrite: bool,
    pub(super) links_may_lead_out: bool,
    pub(super) is_host_target: bool,
    /// Maximum file size including holes, in bytes.
    pub(super) max_file_bytes: u64,
}

/// The staging directory of one archive.
pub(super) struct Stage {
    rules: Rules,
    target: OwnedFd,
    /// Directories created for the target.
    created: CreatedDirs,
    root: OwnedFd,
    /// Name in the target. Empty once the directory has been removed.
    name: Vec<u8>,
    /// The directory used last, and its path.
    last: Option<(Vec<u8>, OwnedFd)>,
    links: BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>,
    dirs: BTreeMap<Vec<u8>, Attributes>,
    pending_bytes: usize,
}

/// A file that is being unpacked.
pub(super) struct File {
    file: OwnedFd,
    mode: u32,
    modified: Option<(i64, u32)>,
    shown: Vec<u8>,
}

impl Stage {
    /// Creates the staging directory in an open directory.
    pub(super) fn open(target: OwnedFd, created: CreatedDirs, rules: Rules) -> Result<Self, Errno> {
        for _ in 0..NAME_ATTEMPTS {
            let name = Temporary::New.generate_name()?;
            match rustix::fs::mkdirat(&target, name.as_slice(), Mode::RWXU) {
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
                Ok(()) => {
                    let root = open_dir(target.as_fd(), name.as_slice(), false)?;
                    return Ok(Self {
                        rules,
                        target,
                        created,
                        root,
                        name,
                        last: None,
                        links: BTreeMap::new(),
                        dirs: BTreeMap::new(),
                        pending_bytes: 0,
                    });
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Returns the name of an entry below the target; `None` if no component is left.
    pub(super) fn entry_name(&self, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        Ok(Some(names::entry_name(name, self.rules.strip)?).filter(|name| !name.is_empty()))
    }

    /// Creates an unnamed file in the target, for data that must be read twice.
    pub(super) fn scratch_file(&self) -> Result<OwnedFd, FileError> {
        let fail = |errno| failure("unpack", b"the archive", errno);
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.root, c".", flags, mode) {
            // Not every file system supports unnamed files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&self.root, c".archive", flags, mode).map_err(fail)?;
                rustix::fs::unlinkat(&self.root, c".archive", AtFlags::empty()).map_err(fail)?;
                Ok(file)
            }
            other => other.map_err(fail),
        }
    }

    /// Creates a directory.
    pub(super) fn directory(&mut self, path: &[u8], attributes: Attributes) -> Result<(), FileError> {
        self.go_to(path, true)?;
        if path.len() > MAX_KERNEL_PATH_BYTES || self.pending_bytes + path.len() > MAX_PENDING_BYTES {
            let mode = self.masked(attributes.mode) | 0o700;
            return self.chmod_last(mode).map_err(|errno| failure("unpack", path, errno));
        }
        if self.dirs.insert(path.to_vec(), attributes).is_none() {
            self.pending_bytes += path.len();
        }
        Ok(())
    }

    /// Creates a file. If several entries have the same name, the last one wins.
    pub(super) fn file(&mut self, path: &[u8], attributes: Attributes) -> Result<File, FileError> {
        let (dir, name) = self.locate(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR);
        let file = create_or_replace(dir, name, create).map_err(|errno| conflict_error(path, errno))?;
        let (mode, modified) = (self.masked(attributes.mode), attributes.modified);
        self.forget_link(path);
        Ok(File { file, mode, modified, shown: path.to_vec() })
    }

    /// Creates a hard link to a file of this archive.
    pub(super) fn hard_link(&mut self, path: &[u8], of: &[u8]) -> Result<(), FileError> {
        if path == of {
            return Ok(());
        }
        let missing_source = || {
            let (link, of) = (show(path), show(of));
            invalid_archive(format!("the hard link {link} points to {of}, which is not an earlier file"))
        };
        if let Some((target, attributes)) = self.links.get(of).cloned() {
            return self.symbolic_link(path, target, attributes);
        }
        let (parent, name) = split(of).ok_or_else(missing_source)?;
        let is_at_root = !of.contains(&b'/');
        self.go_to(if is_at_root { b"" } else { parent }, false).map_err(|_| missing_source())?;
        let source = self.last_dir().try_clone_to_owned().map_err(|_| missing_source())?;
        let stat =
            rustix::fs::statx(&source, name, NO_FOLLOW, StatxFlags::TYPE).map_err(|_| missing_source())?;
        if kind(&stat) != FileType::RegularFile {
            return Err(missing_source());
        }
        let (dir, new) = self.locate(path)?;
        let link = || rustix::fs::linkat(&source, name, dir, new, AtFlags::empty());
        create_or_replace(dir, new, link).map_err(|errno| conflict_error(path, errno))?;
        self.forget_link(path);
        Ok(())
    }

    /// Records a symbolic link, to be created at the end.
    pub(super) fn symbolic_link(
        &mut self,
        path: &[u8],
        target: Vec<u8>,
        attributes: Attributes,
    ) -> Result<(), FileError> {
        names::check_target(path, &target, self.rules.links_may_lead_out)?;
        let bytes = path.len() + target.len();
        if self.pending_bytes + bytes > MAX_PENDING_BYTES {
            return Err(FileError::new(
                ErrorKind::Exhausted,
                format!(
                    "the names of the archive's links and directories have more than {MAX_PENDING_BYTES} bytes"
                ),
            ));
        }
        self.forget_link(path);
        self.pending_bytes += bytes;
        self.links.insert(path.to_vec(), (target, attributes));
        Ok(())
    }

    /// Creates the links, moves everything to its final place and sets the attributes that had to wait.
    pub(super) async fn finish(mut self) -> Result<(), FileError> {
        let finished = self.publish().await;
        if finished.is_ok() {
            self.created.0.clear();
        }
        self.discard().await;
        finished
    }

    async fn publish(&mut self) -> Result<(), FileError> {
        for (number, (path, (target, attributes))) in std::mem::take(&mut self.links).into_iter().enumerate()
        {
            if number.is_multiple_of(FINISH_BATCH) {
                tokio::task::yield_now().await;
            }
            let (dir, name) = self.locate(&path)?;
            let link = || rustix::fs::symlinkat(target.as_slice(), dir, name);
            create_or_replace(dir, name, link).map_err(|errno| conflict_error(&path, errno))?;
            if let Some(times) = timestamps(attributes.modified) {
                // Best effort: some file systems do not support it.
                let _ = rustix::fs::utimensat(dir, name, &times, NO_FOLLOW);
            }
        }
        self.last = None;
        if self.rules.is_host_target {
            let target = &self.target;
            self.dirs.retain(|path, _| matches!(open_below(target.as_fd(), path), Err(Errno::NOENT)));
        }
        super::merge::merge(self.root.as_fd(), self.target.as_fd(), self.rules.overwrite).await?;
        // Children come first: the mode of a directory may deny access to its owner.
        for (number, (path, attributes)) in self.dirs.iter().rev().enumerate() {
            if number.is_multiple_of(FINISH_BATCH) {
                tokio::task::yield_now().await;
            }
            let fail = |errno| failure("set the mode of", path, errno);
            let dir = match self.rules.is_host_target {
                true => open_below(self.target.as_fd(), path),
                false => open_dir(self.target.as_fd(), path.as_slice(), false),
            };
            let dir = dir.map_err(fail)?;
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(self.masked(attributes.mode))).map_err(fail)?;
            if let Some(times) = timestamps(attributes.modified) {
                rustix::fs::futimens(&dir, &times).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// Removes everything that has not been moved to its final place.
    pub(super) async fn discard(mut self) {
        remove(self.target.as_fd(), &self.name).await;
        self.name.clear();
    }

    /// Returns the maximum file size including holes, in bytes.
    pub(super) fn max_file_bytes(&self) -> u64 {
        self.rules.max_file_bytes
    }

    fn masked(&self, mode: u32) -> u32 {
        mode & self.rules.mode_mask & 0o777
    }

    fn forget_link(&mut self, path: &[u8]) {
        if let Some((target, _)) = self.links.remove(path) {
            self.pending_bytes -= path.len() + target.len();
        }
    }

    /// Returns the directory and the name of an entry. Creates the parent directories.
    fn locate<'a>(&mut self, path: &'a [u8]) -> Result<(BorrowedFd<'_>, &'a [u8]), FileError> {
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

    /// Makes `path` the last directory, component by component, starting from the last one if that is above it.
    fn go_to(&mut self, path: &[u8], create: bool) -> Result<(), FileError> {
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
            let next = open_subdir(from, part, create).map_err(|errno| match errno {
                Errno::NOTDIR | Errno::LOOP => {
                    invalid_archive(format!("{} has entries below it but is not a directory", show(part)))
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
        // The call was cancelled. Without a runtime, the guest itself is exiting, and the sandbox with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if let Ok(target) = self.target.try_clone() {
            let (name, created) = (std::mem::take(&mut self.name), std::mem::take(&mut self.created));
            runtime.spawn(async move {
                remove(target.as_fd(), &name).await;
                drop(created);
            });
        }
    }
}

async fn remove(target: BorrowedFd<'_>, name: &[u8]) {
    // No caller is left to report to; user code may have removed or replaced it.
    let _ = remove_tree(target, name).await;
}

/// Directories created for an archive. Removed on drop.
#[derive(Debug, Default)]
pub struct CreatedDirs(Vec<Vec<u8>>);

/// Creates `path` and its missing parent directories.
///
/// # Errors
/// Fails with the error of `mkdir(2)`.
pub fn create_dirs(path: &Path) -> Result<CreatedDirs, Errno> {
    let path = path.as_os_str().as_bytes();
    let mut created = CreatedDirs::default();
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
    for end in ends.chain([path.len()]) {
        let dir = &path[..end];
        match rustix::fs::mkdir(dir, Mode::from_raw_mode(DEFAULT_DIR_MODE)) {
            Ok(()) => created.0.push(dir.to_vec()),
            // If it is not a directory, opening it fails. For a system's own directories, `mkdir` may fail with any of
            // these.
            Err(Errno::EXIST | Errno::ISDIR | Errno::ROFS | Errno::ACCESS | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(created)
}

impl Drop for CreatedDirs {
    fn drop(&mut self) {
        while let Some(dir) = self.0.pop() {
            // Stays if user code has put something there.
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

    /// Completes the file. A sparse file gets the size `size`, whatever was written last.
    pub(super) fn finish(self, size: Option<u64>) -> Result<(), FileError> {
        let set = || {
            if let Some(size) = size {
                rustix::fs::ftruncate(&self.file, size)?;
            }
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(self.mode))?;
            match timestamps(self.modified) {
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

/// Opens a subdirectory; creates it if missing and `create`.
fn open_subdir(dir: BorrowedFd<'_>, name: &[u8], create: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) if create => {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(DEFAULT_DIR_MODE))?;
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        other => other,
    }
}

/// Opens a directory below another one, component by component, through directories only.
fn open_below(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut last: Option<OwnedFd> = None;
    for part in path.split(|byte| *byte == b'/') {
        let next = open_subdir(last.as_ref().map_or(dir, AsFd::as_fd), part, false)?;
        last = Some(next);
    }
    open_dir(last.as_ref().map_or(dir, AsFd::as_fd), c".", false)
}

/// Creates an entry, replacing one that an earlier entry of the archive may have created.
fn create_or_replace<T>(
    dir: BorrowedFd<'_>,
    name: &[u8],
    create: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match create() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            create()
        }
        other => other,
    }
}

fn conflict_error(path: &[u8], errno: Errno) -> FileError {
    match errno {
        Errno::ISDIR | Errno::PERM => {
            invalid_archive(format!("{} occurs as a directory and as something else", show(path)))
        }
        errno => failure("unpack", path, errno),
    }
}

fn timestamps(modified: Option<(i64, u32)>) -> Option<Timestamps> {
    let (tv_sec, tv_nsec) = modified?;
    let time = Timespec { tv_sec, tv_nsec: tv_nsec.into() };
    Some(Timestamps { last_access: time, last_modification: time })
}
