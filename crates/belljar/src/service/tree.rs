//! Directories on their way in and out, as archives. What comes out is hostile: the sandbox may send any bytes. It is unpacked
//! by way of descriptors alone, beside its place, and appears when all of it has come and has been found good.

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

use super::copy::{CopyError, Inside, is_dir, joined};
use super::long::Moved;
use crate::copy_out::Place;
use crate::descriptor::Inherited;
use crate::files::{is_content, unpack_open};
use crate::message::{Quit, say};
use crate::output::write_failed;
use crate::signals::{self, Signals};

/// How long the next piece of an archive may take: [`PIECE_BYTES`], or what there is of it.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// A piece in this sense, in bytes. A guest that hands out single bytes gets no more time than one that does not.
const PIECE_BYTES: u64 = 1 << 20;

/// The most entries of an archive that comes out.
const MOST_ENTRIES: u64 = 1_000_000;

/// What the names and headers of an archive may take beside the content, in bytes.
const MOST_HEADERS_BYTES: u64 = 1 << 30;

/// The status of a copy that is not whole.
const INCOMPLETE: u8 = 1;

/// Why a directory was not copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// It cannot be packed here.
    #[error("cannot read {path:?}")]
    Pack { path: PathBuf, source: FileError },
    /// The place for it cannot be used.
    #[error("cannot use {path:?}")]
    Target { path: PathBuf, source: io::Error },
    /// Something else is there.
    #[error("{path:?} is no directory; name another place for {place}")]
    NotADirectory { path: PathBuf, place: String },
    /// Inside something else is there.
    #[error("{place} is no directory; name another place")]
    NotADirectoryInside { place: String },
    /// The source has no name, and so no place of its own.
    #[error("{place} has no name; add /. to copy what is in it")]
    NoName { place: String },
    /// A link leads out.
    #[error("{place} does not come out{hint}")]
    OutwardLink { place: String, hint: &'static str, source: FileError },
    /// It is not what can be unpacked.
    #[error("{place} does not come out")]
    Unpack { place: String, source: FileError },
    /// The guest stalls.
    #[error("{place} does not come out of the sandbox in time")]
    Stalled { place: String },
}

/// What may come out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Most bytes, of all files together.
    pub(crate) most: u64,
    /// Make symbolic links that lead out of the directory.
    pub(crate) outward_links: bool,
    /// What to do about such a link.
    pub(crate) hint: &'static str,
}

/// Copies a directory in.
pub(super) async fn copy_in(dir: &Path, to: &Inside<'_>, moved: &Moved) -> Result<u8, Quit> {
    let mode = dir.metadata().map_err(|source| CopyError::Read { path: dir.to_owned(), source })?.mode();
    let there = to.look(to.path, true).await?;
    if there.as_ref().is_some_and(|entry| !is_dir(entry)) {
        return Err(TreeError::NotADirectoryInside { place: to.shown.clone() }.into());
    }
    let target = match (&there, is_content(dir.as_os_str())) {
        (Some(_), false) if dir.file_name().is_none() => {
            return Err(TreeError::NoName { place: dir.display().to_string() }.into());
        }
        (Some(_), false) => joined(to.path, dir.as_os_str()),
        _ => to.path.to_owned(),
    };
    let is_new = to.look(&target, true).await?.is_none();
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
    Ok(say_incomplete(summary.skipped, summary.changed))
}

/// Says what is missing, and returns the status of the command.
fn say_incomplete(left_out: u64, changed: u64) -> u8 {
    if left_out > 0 {
        say(&format!("{left_out} left out: FIFOs, sockets, devices, or what cannot be read"));
    }
    if changed > 0 {
        say(&format!("{changed} changed while they were copied"));
    }
    if left_out + changed > 0 { INCOMPLETE } else { 0 }
}

/// An archive as a stream. `summary` is what is in it, when it has ended.
fn pieces(
    packer: Packer,
    moved: Moved,
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

/// Unpacks an archive inside.
pub(super) async fn unpack(
    to: &Inside<'_>,
    source: impl AsyncRead + Send + Unpin + 'static,
) -> Result<(), Quit> {
    to.guest.unpack(unpack_open(to.path), source).await.map_err(|error| to.failed(error))?;
    Ok(())
}

/// Packs a directory to standard output.
pub(super) async fn pack(from: &Inside<'_>, moved: &Moved) -> Result<(), Quit> {
    let mut stdout = Inherited::stdout();
    let mut archive = begin(from, u64::MAX).await?;
    while let Some(piece) = archive.next().await.map_err(|error| from.failed(error))? {
        stdout.write_all(&piece).await.map_err(write_failed)?;
        moved.add(piece.len());
    }
    Ok(())
}

async fn begin(from: &Inside<'_>, most: u64) -> Result<Archive, CopyError> {
    let request =
        v1::PackRequest { base: Bytes::copy_from_slice(from.path.as_bytes()), ..Default::default() };
    from.guest.pack(request, most).await.map_err(|error| from.failed(error))
}

/// Copies a directory out.
pub(super) async fn copy_out(
    from: &Inside<'_>,
    to: &Path,
    entry: &v1::Entry,
    rules: Rules,
    moved: &Moved,
) -> Result<u8, Quit> {
    let name = Path::new(from.path).file_name().filter(|_| !is_content(from.path));
    let target = Target::find(to, name, &from.shown)?;
    bring(from, target, entry, rules, moved, &mut Signals::catch()?).await
}

/// The same, to a directory that was found already.
pub(crate) async fn bring(
    from: &Inside<'_>,
    target: Target,
    entry: &v1::Entry,
    rules: Rules,
    moved: &Moved,
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
        max_entries: MOST_ENTRIES,
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
            taken = take(from, &mut unpacker, rules.most, moved, &failed) => taken,
            signal = signals.next() => Err(Quit::Status(signals::status(signal))),
        };
        match taken {
            Ok(summary) => {
                let unpacked = unpacker.finish().await.map_err(failed)?;
                Ok(say_incomplete(summary.skipped + unpacked.skipped, summary.changed))
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

async fn take(
    from: &Inside<'_>,
    unpacker: &mut Unpacker,
    most: u64,
    moved: &Moved,
    failed: &impl Fn(FileError) -> TreeError,
) -> Result<v1::PackSummary, Quit> {
    let mut archive = in_time(from, begin(from, most.saturating_add(MOST_HEADERS_BYTES))).await??;
    let mut bytes = 0;
    let mut due = tokio::time::Instant::now() + PIECE_TIMEOUT;
    loop {
        let stalled = |_| TreeError::Stalled { place: from.shown.clone() };
        let next: Result<_, GuestError> =
            tokio::time::timeout_at(due, archive.next()).await.map_err(stalled)?;
        let Some(piece) = next.map_err(|error| from.failed(error))? else { break };
        let before = bytes / PIECE_BYTES;
        bytes += piece.len() as u64;
        if bytes / PIECE_BYTES > before {
            due = tokio::time::Instant::now() + PIECE_TIMEOUT;
        }
        unpacker.take(&piece).await.map_err(failed)?;
        moved.add(piece.len());
    }
    Ok(archive.summary().cloned().unwrap_or_default())
}

async fn in_time<T>(from: &Inside<'_>, call: impl Future<Output = T>) -> Result<T, TreeError> {
    let stalled = |_| TreeError::Stalled { place: from.shown.clone() };
    tokio::time::timeout(PIECE_TIMEOUT, call).await.map_err(stalled)
}

/// The directory here that is copied to. One that was made for it goes again unless all went well.
pub(crate) struct Target {
    path: PathBuf,
    dir: OwnedFd,
    /// The directory above and the name, if it was made.
    made: Option<(OwnedFd, OsString)>,
}

impl Target {
    /// `to` if it is free or has no name to be put into it, else the name in it.
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
        // `.`, `..` and `/` are there.
        let Some(name) = path.file_name().filter(|_| !is_content(path.as_os_str())) else {
            let dir = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed)?;
            return Ok(Self { path, dir, made: None });
        };
        let above = rustix::fs::open(parent, OFlags::PATH | flags, Mode::empty());
        let above =
            above.map_err(|errno| TreeError::Target { path: parent.to_owned(), source: errno.into() })?;
        let name = name.to_owned();
        // A link of this user's own may lead to the directory that was named, but none within it.
        let may_follow = path == to;
        Self::within(above, name, path, may_follow, place)
    }

    /// The place itself, which was opened before.
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

    /// The directory `name` of `above`, which is made if it is not there.
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

    /// Gives a directory that was made its mode, or removes it.
    fn end(self, mode: Option<u32>) {
        let Some((above, name)) = self.made else { return };
        // What is there stays as it is: it was this program that made it, and it is this user's.
        let _ = match mode {
            Some(mode) => rustix::fs::fchmod(&self.dir, Mode::from_raw_mode(mode & 0o777)),
            None => rustix::fs::unlinkat(&above, &name, AtFlags::REMOVEDIR),
        };
    }
}

/// The permission bits that this user does not give.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_directory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (is_there, file) = (dir.path().join("there"), dir.path().join("file"));
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
