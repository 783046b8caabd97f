//! Copying files out of a sandbox. Its content is hostile: only regular files of a bounded size are copied, and no file of
//! the host is replaced before the new one is complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use belljar_engine::{ErrorCode, GuestClient, GuestError, v1};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use tokio::time::Instant;

use crate::files::{checked_path, is_content, split_pair};
use crate::input::{A_DIRECTORY, kind_of};
use crate::message::Quit;

/// Timeout for the next [`PIECE_BYTES`] of a file, or for its shorter rest.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes that must arrive within [`PIECE_TIMEOUT`]. A guest that sends single bytes gets no more time than another.
const PIECE_BYTES: u64 = 1 << 20;

/// Files to copy to the host, with their checked destinations.
#[derive(Debug, Default)]
pub(crate) struct Outputs(Vec<Output>);

/// A file or directory to copy to the host.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) source: PathBuf,
    pub(crate) target: Place,
    /// Whether only the content of the source, a directory, is meant.
    is_content: bool,
}

/// Destination of a file. Its directory is opened before anything starts: if the sandbox may write to the directory above,
/// the same path could lead to another directory after the run.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) dir: OwnedFd,
    /// Its name there; empty if the directory itself is meant.
    pub(crate) name: OsString,
    /// Whether a directory exists there.
    is_dir: bool,
}

/// Error from copying a file to the host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    /// The output does not exist.
    #[error("output file {path:?} was not created")]
    Missing { path: PathBuf },
    /// The output is neither a regular file nor a directory.
    #[error("out: {path:?} is {kind} in the sandbox; only regular files and directories come out")]
    NotAFile { path: PathBuf, kind: &'static str },
    /// A directory could not be copied, or only in part.
    #[error("out: cannot bring out {path:?}")]
    Tree { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    /// The destination exists and has another type than the source.
    #[error("out: {path:?} is {kind}; name another place")]
    Occupied { path: PathBuf, kind: &'static str },
    /// The file is larger than the sandbox's disk.
    #[error("out: {path:?} has {bytes} bytes; at most {most} come out, the size of the sandbox's disk")]
    TooLong { path: PathBuf, bytes: u64, most: u64 },
    /// The guest failed to read the file.
    #[error("out: cannot read {path:?} in the sandbox")]
    Guest { path: PathBuf, source: GuestError },
    /// The guest stalls.
    #[error("out: timed out copying {path:?} out of the sandbox")]
    Stalled { path: PathBuf },
    /// The file cannot be written on the host.
    #[error("out: cannot write {path:?}")]
    Host { path: PathBuf, source: std::io::Error },
}

impl CopyError {
    /// Reports whether a failed program may be the cause.
    pub(crate) fn may_follow_failure(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Stalled { .. })
            || matches!(self, Self::Guest { source, .. }
                if !matches!(source, GuestError::Refused { .. } | GuestError::NotRegular { .. }))
    }
}

impl Outputs {
    /// Resolves and checks the destinations of `pairs`.
    pub(crate) fn find(pairs: &[OsString]) -> Result<Self, Quit> {
        let mut outputs: Vec<Output> = Vec::new();
        for pair in pairs {
            let (source, target) = split_pair(pair);
            if source.as_os_str().is_empty() {
                return Err(anyhow::anyhow!("out: {pair:?} names no file; give SRC[:DEST]").into());
            }
            let target = target.unwrap_or_else(|| PathBuf::from("."));
            let is_content = is_content(source.as_os_str());
            let (source, target) = if is_content {
                let dir = source.components().filter(|part| *part != Component::CurDir).collect::<PathBuf>();
                // The home directory may be meant as well.
                let dir = if dir == Path::new("") { PathBuf::from(".") } else { checked_path(&dir)? };
                (dir, place(&target, None)?)
            } else {
                let source = checked_path(&source)?;
                let target = place(&target, source.file_name())?;
                (source, target)
            };
            if let Some(first) = outputs.iter().find(|output| output.target.path == target.path) {
                let (first, target) = (&first.source, &target.path);
                return Err(anyhow::anyhow!(
                    "out: {first:?} and {source:?} would both go to {target:?}; give each a place of its own"
                )
                .into());
            }
            outputs.push(Output { source, target, is_content });
        }
        Ok(Self(outputs))
    }

    /// Reports whether there are no outputs.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The outputs, in the order of the command line.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Output> {
        self.0.iter()
    }

    /// Copies files of at most `most` bytes each to the host, and returns the errors of those that failed.
    pub(crate) async fn copy_all(&self, guest: &GuestClient, most: u64) -> Vec<CopyError> {
        let mut errors = Vec::new();
        for output in &self.0 {
            errors.extend(output.copy(guest, most).await.err());
        }
        errors
    }
}

/// Resolves a destination: `target` with `name` appended if it is a directory, else `target` itself. Without a name, the
/// directory itself is meant, or one that is to be created.
fn place(target: &Path, name: Option<&OsStr>) -> Result<Place, Quit> {
    let cannot_use = |path: &Path, errno: Errno| {
        anyhow::Error::new(std::io::Error::from(errno)).context(format!("out: cannot use {path:?}"))
    };
    let open = |path: &Path| {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    let (path, dir) = match (open(target), name) {
        (Ok(dir), Some(name)) if target == Path::new(".") => (PathBuf::from(name), dir),
        (Ok(dir), Some(name)) => (target.join(name), dir),
        (Ok(dir), None) => {
            return Ok(Place { path: target.to_owned(), dir, name: OsString::new(), is_dir: true });
        }
        (Err(_), Some(_)) if target.as_os_str().as_bytes().ends_with(b"/") => {
            return Err(anyhow::anyhow!("out: {target:?} is not a directory").into());
        }
        (Err(_), _) => {
            let parent = match target.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            match open(parent) {
                Ok(dir) => (target.to_owned(), dir),
                Err(Errno::NOTDIR) => {
                    return Err(anyhow::anyhow!("out: {parent:?} is not a directory").into());
                }
                Err(errno) => return Err(cannot_use(parent, errno).into()),
            }
        }
    };
    let name = path.file_name().unwrap_or_default().to_owned();
    match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match kind_of(FileType::from_raw_mode(stat.st_mode)) {
            Some(kind) if kind != A_DIRECTORY => {
                Err(anyhow::anyhow!("out: {path:?} is {kind}; give a place that is free or a regular file")
                    .into())
            }
            kind => Ok(Place { path, dir, name, is_dir: kind.is_some() }),
        },
        Err(Errno::NOENT) => Ok(Place { path, dir, name, is_dir: false }),
        Err(errno) => Err(cannot_use(&path, errno).into()),
    }
}

impl Output {
    /// Returns the metadata of the source.
    pub(crate) async fn stat(&self, guest: &GuestClient) -> Result<v1::Entry, CopyError> {
        with_timeout(&self.source, guest.stat(&self.source, false)).await
    }

    /// Copies a file of at most `most` bytes to the host.
    pub(crate) async fn copy(&self, guest: &GuestClient, most: u64) -> Result<(), CopyError> {
        let path = || self.source.clone();
        let entry = self.stat(guest).await?;
        self.check(&entry, most)?;
        let mut download = with_timeout(&self.source, guest.read(&self.source, 0, 0, true)).await?;
        // The path may lead to another file by now.
        self.check(&download.entry, most)?;
        if self.target.is_dir {
            return Err(CopyError::Occupied { path: self.target.path.clone(), kind: A_DIRECTORY });
        }
        let host = |source| CopyError::Host { path: self.target.path.clone(), source };
        let mut file = Replacement::begin(&self.target).map_err(host)?;
        let mut bytes = 0;
        let mut deadline = Instant::now() + PIECE_TIMEOUT;
        while let Some(piece) = with_deadline(deadline, &self.source, download.next()).await? {
            let before = bytes / PIECE_BYTES;
            bytes += piece.len() as u64;
            if bytes / PIECE_BYTES > before {
                deadline = Instant::now() + PIECE_TIMEOUT;
            }
            if bytes > most {
                return Err(CopyError::TooLong { path: path(), bytes, most });
            }
            file.add(&piece).map_err(host)?;
        }
        file.finish().map_err(host)
    }

    fn check(&self, entry: &v1::Entry, most: u64) -> Result<(), CopyError> {
        let path = self.source.clone();
        let kind = match entry.kind.as_known().unwrap_or_default() {
            v1::FileKind::FILE_KIND_FILE if entry.size > most => {
                return Err(CopyError::TooLong { path, bytes: entry.size, most });
            }
            v1::FileKind::FILE_KIND_FILE if self.is_content => "not a directory",
            v1::FileKind::FILE_KIND_FILE => return Ok(()),
            v1::FileKind::FILE_KIND_DIRECTORY => A_DIRECTORY,
            v1::FileKind::FILE_KIND_SYMLINK => "a symbolic link",
            v1::FileKind::FILE_KIND_FIFO => "a FIFO",
            v1::FileKind::FILE_KIND_SOCKET => "a socket",
            v1::FileKind::FILE_KIND_DEVICE => "a device",
            v1::FileKind::FILE_KIND_UNSPECIFIED => "of an unknown kind",
        };
        Err(CopyError::NotAFile { path, kind })
    }
}

async fn with_timeout<T>(
    path: &Path,
    call: impl Future<Output = Result<T, GuestError>>,
) -> Result<T, CopyError> {
    with_deadline(Instant::now() + PIECE_TIMEOUT, path, call).await
}

async fn with_deadline<T>(
    deadline: Instant,
    path: &Path,
    call: impl Future<Output = Result<T, GuestError>>,
) -> Result<T, CopyError> {
    match tokio::time::timeout_at(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if error.is(ErrorCode::NotFound) => Err(CopyError::Missing { path: path.to_owned() }),
        Ok(Err(source)) => Err(CopyError::Guest { path: path.to_owned(), source }),
        Err(_) => Err(CopyError::Stalled { path: path.to_owned() }),
    }
}

/// A new file that replaces its target only when complete.
struct Replacement<'a> {
    file: File,
    temporary: OsString,
    target: &'a Place,
    length: u64,
    is_finished: bool,
}

/// Size of the zero-filled blocks that become holes, in bytes: the block size of most file systems.
const HOLE: usize = 4096;

impl<'a> Replacement<'a> {
    /// Creates a new file next to `target`.
    fn begin(target: &'a Place) -> std::io::Result<Self> {
        let mut number = 0u32;
        loop {
            let mut temporary = OsString::from(".");
            temporary
                .push(target.name.as_bytes().get(..200).map_or(target.name.as_os_str(), OsStr::from_bytes));
            temporary.push(format!(".{}-{number}", std::process::id()));
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match rustix::fs::openat(&target.dir, &temporary, flags, Mode::from_raw_mode(0o666)) {
                Ok(file) => {
                    // A private file stays private. Only these bits are copied: the file belongs to the user, its content does
                    // not.
                    if let Ok(old) = rustix::fs::statat(&target.dir, &target.name, AtFlags::SYMLINK_NOFOLLOW)
                    {
                        rustix::fs::fchmod(&file, Mode::from_raw_mode(old.st_mode & 0o777))?;
                    }
                    return Ok(Self { file: file.into(), temporary, target, length: 0, is_finished: false });
                }
                Err(Errno::EXIST) if number < 100 => number += 1,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Adds bytes. Blocks of zeros become holes: a file that is mostly holes in the sandbox must not fill the host's disk.
    fn add(&mut self, piece: &[u8]) -> std::io::Result<()> {
        for block in piece.chunks(HOLE) {
            if block.len() == HOLE && block.iter().all(|byte| *byte == 0) {
                self.file.seek(SeekFrom::Current(4096))?;
            } else {
                self.file.write_all(block)?;
            }
        }
        self.length += piece.len() as u64;
        Ok(())
    }

    /// Replaces the target. A link that was created there in the meantime is replaced, not followed.
    fn finish(mut self) -> std::io::Result<()> {
        self.file.set_len(self.length)?;
        rustix::fs::renameat(&self.target.dir, &self.temporary, &self.target.dir, &self.target.name)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = rustix::fs::unlinkat(&self.target.dir, &self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_only_when_complete() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("x");
        std::fs::write(&target, "old").unwrap();
        let to = place(&target, Some(OsStr::new("x"))).ok().unwrap();
        let mut file = Replacement::begin(&to).unwrap();
        file.add(b"half").unwrap();
        drop(file);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        let mut file = Replacement::begin(&to).unwrap();
        file.add(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn holes_and_file_modes_are_preserved() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("sparse");
        std::fs::write(&target, "old").unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o4600)).unwrap();
        let to = place(&target, Some(OsStr::new("sparse"))).ok().unwrap();
        let mut file = Replacement::begin(&to).unwrap();
        for _ in 0..64 {
            file.add(&[0; 256 * 1024]).unwrap();
        }
        file.add(b"end").unwrap();
        file.add(&[0; 5000]).unwrap();
        file.finish().unwrap();
        let metadata = std::fs::metadata(&target).unwrap();
        assert_eq!(metadata.len(), 64 * 256 * 1024 + 3 + 5000);
        assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
        assert_eq!(metadata.mode() & 0o7777, 0o600);
        let content = std::fs::read(&target).unwrap();
        assert_eq!(&content[64 * 256 * 1024..][..3], b"end");
        assert!(content[64 * 256 * 1024 + 3..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn directory_replaced_by_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (sub, moved, other) =
            (dir.path().join("sub"), dir.path().join("moved"), dir.path().join("other"));
        std::fs::create_dir(&sub).unwrap();
        std::fs::create_dir(&other).unwrap();
        let to = place(&sub, Some(OsStr::new("x"))).ok().unwrap();
        std::fs::rename(&sub, &moved).unwrap();
        std::os::unix::fs::symlink(&other, &sub).unwrap();
        let mut file = Replacement::begin(&to).unwrap();
        file.add(b"bytes").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read(moved.join("x")).unwrap(), b"bytes");
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    }
}
