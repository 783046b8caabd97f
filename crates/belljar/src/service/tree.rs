//! Copies directories in and out as archives. Archives from a sandbox are hostile and may contain any bytes. They are unpacked
//! through descriptors into a temporary place beside the target, and appear there only when complete and valid.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_client::v1;
use belljar_engine::{Archive, GuestError};
use belljar_files::{
    CreatedDirs, ErrorKind, FileError, Format, PackOptions, PackSummary, Packer, UnpackOptions, Unpacker,
};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use super::copy::{CopyError, RemotePath, is_dir, joined};
use super::long::ByteCounter;
use crate::copy_out::Place;
use crate::descriptor::Inherited;
use crate::files::{is_content, unpack_open};
use crate::message::{Quit, say};
use crate::output::write_failed;
use crate::signals::{self, Signals};

/// Timeout for the next [`PIECE_BYTES`] of an archive, or for its shorter rest.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes that must arrive within [`PIECE_TIMEOUT`]. A guest that sends single bytes gets no more time than another.
const PIECE_BYTES: u64 = 1 << 20;

/// Maximum number of entries of an archive from a sandbox.
const MAX_ENTRIES: u64 = 1_000_000;

/// Maximum size of the names and headers of an archive, besides the content, in bytes.
const MAX_HEADERS_BYTES: u64 = 1 << 30;

/// Exit status of an incomplete copy.
const INCOMPLETE: u8 = 1;

/// Error from copying a directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// The local directory cannot be packed.
    #[error("cannot read {path:?}")]
    Pack { path: PathBuf, source: FileError },
    /// The local target cannot be used.
    #[error("cannot use {path:?}")]
    Target { path: PathBuf, source: io::Error },
    /// The local target exists and is not a directory.
    #[error("{path:?} is not a directory; name another place for {place}")]
    NotADirectory { path: PathBuf, place: String },
    /// The target in the sandbox exists and is not a directory.
    #[error("{place} is not a directory; name another place")]
    NotADirectoryInside { place: String },
    /// The source has no name that the copy could have.
    #[error("{place} has no name; add /. to copy what is in it")]
    NoName { place: String },
    /// A symbolic link leads out of the directory.
    #[error("{place} cannot be copied out{hint}")]
    OutwardLink { place: String, hint: &'static str, source: FileError },
    /// The archive is invalid or cannot be unpacked.
    #[error("{place} cannot be copied out")]
    Unpack { place: String, source: FileError },
    /// The guest stalls.
    #[error("timed out copying {place} out of the sandbox")]
    Stalled { place: String },
}

/// Restrictions on a copy out of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Maximum size of all files together, in bytes.
    pub(crate) most: u64,
    /// Make symbolic links that lead out of the directory.
    pub(crate) outward_links: bool,
    /// Hint in the error for such a link.
    pub(crate) hint: &'static str,
}

/// Copies a directory in.
pub(super) async fn copy_in(dir: &Path, to: &RemotePath<'_>, moved: &ByteCounter) -> Result<u8, Quit> {
    let mode = dir.metadata().map_err(|source| CopyError::Read { path: dir.to_owned(), source })?.mode();
    let existing = to.stat(to.path, true).await?;
    if existing.as_ref().is_some_and(|entry| !is_dir(entry)) {
        return Err(TreeError::NotADirectoryInside { place: to.shown.clone() }.into());
    }
    let target = match (&existing, is_content(dir.as_os_str())) {
        (Some(_), false) if dir.file_name().is_none() => {
            return Err(TreeError::NoName { place: dir.display().to_string() }.into());
        }
        (Some(_), false) => joined(to.path, dir.as_os_str()),
        _ => to.path.to_owned(),
    };
    let is_new = to.stat(&target, true).await?.is_none();
    let packer = Packer::begin(dir, &PackOptions::default());
    let packer = packer.map_err(|source| TreeError::Pack { path: dir.to_owned(), source })?;
    let summary = Arc::new(Mutex::new(PackSummary::default()));
    let pieces = pieces(packer, moved.clone(), Arc::clone(&summary));
    to.guest
        .unpack(unpack_open(&target), StreamReader::new(Box::pin(pieces)))
        .await
        .map_err(|error| to.failed(error))?;
    if is_new {
        let path = Bytes::copy_from_slice(target.as_bytes());
        let request = v1::SetModeRequest { path, mode: Some(mode & 0o777), ..Default::default() };
        to.guest.set_mode(request).await.map_err(|error| to.failed(error))?;
    }
    let summary = *summary.lock();
    Ok(report_incomplete(summary.skipped, summary.changed))
}

/// Reports what is missing from the copy, and returns the exit status.
fn report_incomplete(left_out: u64, changed: u64) -> u8 {
    if left_out > 0 {
        say(&format!("{left_out} left out: FIFOs, sockets, devices, or what cannot be read"));
    }
    if changed > 0 {
        say(&format!("{changed} changed while they were copied"));
    }
    if left_out + changed > 0 { INCOMPLETE } else { 0 }
}

/// Returns the archive as a stream. `summary` is set at its end.
fn pieces(
    packer: Packer,
    moved: ByteCounter,
    summary: Arc<Mutex<PackSummary>>,
) -> impl futures::Stream<Item = io::Result<Bytes>> {
    futures::stream::unfold(packer, move |mut packer| {
        let (moved, summary) = (moved.clone(), Arc::clone(&summary));
        async move {
            let Some(piece) = packer.next().await else {
                *summary.lock() = packer.summary();
                return None;
            };
            moved.add(piece.len());
            Some((Ok(piece), packer))
        }
    })
}

/// Unpacks an archive in the sandbox.
pub(super) async fn unpack(
    to: &RemotePath<'_>,
    source: impl AsyncRead + Send + Unpin + 'static,
) -> Result<(), Quit> {
    to.guest.unpack(unpack_open(to.path), source).await.map_err(|error| to.failed(error))?;
    Ok(())
}

/// Packs a directory to standard output.
pub(super) async fn pack(from: &RemotePath<'_>, moved: &ByteCounter) -> Result<(), Quit> {
    let mut stdout = Inherited::stdout();
    let mut archive = begin(from, u64::MAX).await?;
    while let Some(piece) = archive.next().await.map_err(|error| from.failed(error))? {
        stdout.write_all(&piece).await.map_err(write_failed)?;
        moved.add(piece.len());
    }
    Ok(())
}

async fn begin(from: &RemotePath<'_>, most: u64) -> Result<Archive, CopyError> {
    let request =
        v1::PackRequest { base: Bytes::copy_from_slice(from.path.as_bytes()), ..Default::default() };
    from.guest.pack(request, most).await.map_err(|error| from.failed(error))
}

/// Copies a directory out.
pub(super) async fn copy_out(
    from: &RemotePath<'_>,
    to: &Path,
    entry: &v1::Entry,
    rules: Rules,
    moved: &ByteCounter,
) -> Result<u8, Quit> {
    let name = Path::new(from.path).file_name().filter(|_| !is_content(from.path));
    let target = Target::find(to, name, &from.shown)?;
    copy_to(from, target, entry, rules, moved, &mut Signals::catch()?).await
}

/// Copies a directory out to a target that is already open.
pub(crate) async fn copy_to(
    from: &RemotePath<'_>,
    target: Target,
    entry: &v1::Entry,
    rules: Rules,
    moved: &ByteCounter,
    signals: &mut Signals,
) -> Result<u8, Quit> {
    let mask = 0o777 & !umask();
    let options = UnpackOptions {
        format: Some(Format::Tar),
        mode_mask: mask,
        overwrite: true,
        links_may_lead_out: rules.outward_links,
        is_host_target: true,
        max_bytes: rules.most,
        max_entries: MAX_ENTRIES,
        ..UnpackOptions::default()
    };
    let failed = |source: FileError| match source.kind() == ErrorKind::OutwardLink {
        true => TreeError::OutwardLink { place: from.shown.clone(), hint: rules.hint, source },
        false => TreeError::Unpack { place: from.shown.clone(), source },
    };
    let done = async {
        let dir = target.dir.try_clone().map_err(|source| target.failed(source))?;
        let mut unpacker = Unpacker::begin(dir, CreatedDirs::default(), &options).map_err(failed)?;
        let taken = tokio::select! {
            taken = receive(from, &mut unpacker, rules.most, moved, &failed) => taken,
            signal = signals.next() => Err(Quit::Status(signals::status(signal))),
        };
        match taken {
            Ok(summary) => {
                let unpacked = unpacker.finish().await.map_err(failed)?;
                Ok(report_incomplete(summary.skipped + unpacked.skipped, summary.changed))
            }
            Err(error) => {
                unpacker.discard().await;
                Err(error)
            }
        }
    };
    let done = done.await;
    target.end(done.is_ok().then_some(entry.mode & mask));
    done
}

async fn receive(
    from: &RemotePath<'_>,
    unpacker: &mut Unpacker,
    most: u64,
    moved: &ByteCounter,
    failed: &impl Fn(FileError) -> TreeError,
) -> Result<v1::PackSummary, Quit> {
    let mut archive = with_timeout(from, begin(from, most.saturating_add(MAX_HEADERS_BYTES))).await??;
    let mut bytes = 0;
    let mut deadline = tokio::time::Instant::now() + PIECE_TIMEOUT;
    loop {
        let stalled = |_| TreeError::Stalled { place: from.shown.clone() };
        let next: Result<_, GuestError> =
            tokio::time::timeout_at(deadline, archive.next()).await.map_err(stalled)?;
        let Some(piece) = next.map_err(|error| from.failed(error))? else { break };
        let before = bytes / PIECE_BYTES;
        bytes += piece.len() as u64;
        if bytes / PIECE_BYTES > before {
            deadline = tokio::time::Instant::now() + PIECE_TIMEOUT;
        }
        unpacker.take(&piece).await.map_err(failed)?;
        moved.add(piece.len());
    }
    Ok(archive.summary().cloned().unwrap_or_default())
}

async fn with_timeout<T>(from: &RemotePath<'_>, call: impl Future<Output = T>) -> Result<T, TreeError> {
    let stalled = |_| TreeError::Stalled { place: from.shown.clone() };
    tokio::time::timeout(PIECE_TIMEOUT, call).await.map_err(stalled)
}

/// The local directory that is copied to. If it was created for the copy, it is removed again on failure.
pub(crate) struct Target {
    path: PathBuf,
    dir: OwnedFd,
    /// The parent directory and the name, if it was created.
    made: Option<(OwnedFd, OsString)>,
}

impl Target {
    /// Opens `to/name` if `to` is a directory and there is a name, else `to`, which is created if missing.
    fn find(to: &Path, name: Option<&OsStr>, place: &str) -> Result<Self, TreeError> {
        let path = match name {
            Some(name) if to.is_dir() => to.join(name),
            _ => to.to_owned(),
        };
        let failed = |errno: Errno| TreeError::Target { path: path.clone(), source: errno.into() };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // `.`, `..` and `/` always exist.
        let Some(name) = path.file_name().filter(|_| !is_content(path.as_os_str())) else {
            let dir = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
            return Ok(Self { path, dir, made: None });
        };
        let above = rustix::fs::open(parent, OFlags::PATH | flags, Mode::empty());
        let above =
            above.map_err(|errno| TreeError::Target { path: parent.to_owned(), source: errno.into() })?;
        let name = name.to_owned();
        // The path that the user named may be a symbolic link; a name within it may not.
        let may_follow = path == to;
        Self::within(above, name, path, may_follow, place)
    }

    /// Opens the place itself, whose parent directory is already open.
    pub(crate) fn at(target: &Place, place: &str) -> Result<Self, TreeError> {
        let path = target.path.clone();
        let failed = |source: io::Error| TreeError::Target { path: path.clone(), source };
        if target.name.is_empty() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(&target.dir, ".", flags, Mode::empty());
            return Ok(Self { dir: dir.map_err(|errno| failed(errno.into()))?, path, made: None });
        }
        let above = target.dir.try_clone().map_err(failed)?;
        Self::within(above, target.name.clone(), path, false, place)
    }

    /// Opens the directory `name` of `above`, which is created if missing.
    fn within(
        above: OwnedFd,
        name: OsString,
        path: PathBuf,
        may_follow: bool,
        place: &str,
    ) -> Result<Self, TreeError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |errno: Errno| TreeError::Target { path: path.clone(), source: errno.into() };
        let is_made = match rustix::fs::mkdirat(&above, &name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(failed(errno)),
        };
        let follow = if may_follow && !is_made { OFlags::empty() } else { OFlags::NOFOLLOW };
        let dir = match rustix::fs::openat(&above, &name, flags | follow, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(TreeError::NotADirectory { path: path.clone(), place: place.to_owned() });
            }
            Err(errno) => return Err(failed(errno)),
        };
        let made = is_made.then_some((above, name));
        Ok(Self { path, dir, made })
    }

    fn failed(&self, source: io::Error) -> TreeError {
        TreeError::Target { path: self.path.clone(), source }
    }

    /// Sets the mode of a directory that was created, or removes it if there is no mode.
    fn end(self, mode: Option<u32>) {
        let Some((above, name)) = self.made else { return };
        // Errors are ignored: the directory was created by this program and belongs to this user.
        let _ = match mode {
            Some(mode) => rustix::fs::fchmod(&self.dir, Mode::from_raw_mode(mode & 0o777)),
            None => rustix::fs::unlinkat(&above, &name, AtFlags::REMOVEDIR),
        };
    }
}

/// Returns the umask of this process.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_directory_is_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let (is_there, file) = (dir.path().join("existing"), dir.path().join("file"));
        std::fs::create_dir(&is_there).unwrap();
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&is_there, dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink(dir.path(), is_there.join("trap")).unwrap();
        let find = |to: &Path, name: Option<&str>| Target::find(to, name.map(OsStr::new), "x");
        let target = find(&is_there, Some("tree")).unwrap();
        assert!(target.path == is_there.join("tree") && target.made.is_some());
        target.end(None);
        assert!(!is_there.join("tree").exists());
        find(&dir.path().join("new"), Some("tree")).unwrap().end(Some(0o750));
        assert_eq!(dir.path().join("new").metadata().unwrap().mode() & 0o777, 0o750);
        assert_eq!(find(&dir.path().join("link"), None).unwrap().path, dir.path().join("link"));
        assert!(find(&is_there, None).unwrap().made.is_none());
        assert!(find(&is_there.join("."), None).unwrap().made.is_none());
        assert!(matches!(find(&is_there, Some("trap")), Err(TreeError::NotADirectory { .. })));
        assert!(matches!(find(&file, Some("tree")), Err(TreeError::NotADirectory { .. })));
        assert!(matches!(find(&dir.path().join("no/where"), None), Err(TreeError::Target { .. })));
    }
}
