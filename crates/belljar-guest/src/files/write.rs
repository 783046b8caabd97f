//! Writes a file. It is written under a temporary name next to the target and renamed when complete, so readers see the
//! old file or the new one. Only `append` and `offset` write in place.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_files::{NO_FOLLOW, Temporary, split, stat_open};
use belljar_proto::{ConnectError, InboundStream, v1};
use futures::StreamExt;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, RenameFlags, Statx, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::attributes;
use super::change::make_parents;
use super::entry::entry;
use super::path::{failure, mode, resolve, split_named};
use super::read::check_regular;

/// Default permission bits of a new file.
const DEFAULT_MODE: u32 = 0o644;

/// Maximum number of symbolic links followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// Number of random names tried.
const NAME_ATTEMPTS: usize = 16;

/// Writes a file from a stream.
pub(super) async fn write(
    home: &Path,
    mut requests: InboundStream<v1::WriteRequest>,
) -> Result<v1::Entry, ConnectError> {
    let first_missing = || ConnectError::invalid_argument("open: missing in the first message");
    let first = requests.next().await.ok_or_else(first_missing)??.to_owned_message();
    let open = first.open.as_option().ok_or_else(first_missing)?;
    let fail = |errno| failure("write", &open.path, errno);
    let mut target = Target::open(home, open)?;
    target.write(&first.data).map_err(fail)?;
    while let Some(message) = requests.next().await {
        let message = message?.to_owned_message();
        if message.open.is_set() {
            return Err(ConnectError::invalid_argument("open: only allowed in the first message"));
        }
        target.write(&message.data).map_err(fail)?;
        // Lets other tasks of the guest run while a fast sender writes.
        tokio::task::yield_now().await;
    }
    let stat = target.finish().map_err(fail)?;
    Ok(entry(&stat, &open.path))
}

/// A file being written.
struct Target {
    file: OwnedFd,
    /// Offset of the next bytes; `None` if the kernel keeps the position.
    offset: Option<u64>,
    /// `None` if it is written in place.
    temporary: Option<TemporaryFile>,
}

/// A file with a temporary name. Removed on drop.
struct TemporaryFile {
    dir: OwnedFd,
    /// Temporary name; empty once renamed.
    name: Vec<u8>,
    target: Vec<u8>,
    mode: Mode,
    exclusive: bool,
}

impl Target {
    fn open(home: &Path, open: &v1::WriteOpen) -> Result<Self, ConnectError> {
        let path = resolve(home, "open.path", &open.path)?;
        let requested_mode = mode(open.mode, DEFAULT_MODE)?;
        if open.offset.is_some() && (open.append || open.exclusive) {
            return Err(ConnectError::invalid_argument(
                "offset: cannot be combined with append or exclusive",
            ));
        }
        if let Some(offset) = open.offset.filter(|offset| i64::try_from(*offset).is_err()) {
            let message = format!("offset: {offset} is not allowed; at most {} is", i64::MAX);
            return Err(ConnectError::invalid_argument(message));
        }
        let fail = |errno| failure("write", &open.path, errno);
        let (parent, _) = split_named("open.path", &path)?;
        if open.make_parents {
            make_parents(parent).map_err(fail)?;
        }
        let existing = stat_target(&path, open).map_err(fail)?;
        if let Some(stat) = &existing {
            if open.exclusive {
                return Err(fail(Errno::EXIST));
            }
            check_regular(stat, "write", &open.path)?;
        }
        if open.append || open.offset.is_some() {
            if !open.attributes.is_empty() {
                let message = "attributes: cannot be combined with append or offset";
                return Err(ConnectError::invalid_argument(message));
            }
            return Self::in_place(&path, open, requested_mode);
        }
        if existing.is_some() {
            // The rename needs no permission on the file itself, but a removed write permission is respected.
            rustix::fs::accessat(CWD, &path, Access::WRITE_OK, AtFlags::EACCESS).map_err(fail)?;
        }
        let mode = match &existing {
            Some(stat) if open.mode == 0 => Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o1777),
            _ => requested_mode,
        };
        let (dir, target) = resolve_links(&path, open.exclusive).map_err(fail)?;
        let kind = if existing.is_some() { Temporary::Replacement } else { Temporary::New };
        let (file, name) = create_temporary(dir.as_fd(), kind).map_err(fail)?;
        let temporary = TemporaryFile { dir, name, target, mode, exclusive: open.exclusive };
        attributes::set(&file, open.attributes.iter()).map_err(fail)?;
        Ok(Self { file, offset: None, temporary: Some(temporary) })
    }

    fn in_place(path: &Path, open: &v1::WriteOpen, mode: Mode) -> Result<Self, ConnectError> {
        let fail = |errno| failure("write", &open.path, errno);
        let mut flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        flags.set(OFlags::APPEND | OFlags::CREATE, open.append);
        flags.set(OFlags::EXCL, open.exclusive);
        let file = rustix::fs::open(path, flags, mode).map_err(fail)?;
        // It may have been replaced since the check.
        check_regular(&stat_open(&file).map_err(fail)?, "write", &open.path)?;
        if open.mode != 0 {
            rustix::fs::fchmod(&file, mode).map_err(fail)?;
        }
        Ok(Self { file, offset: open.offset, temporary: None })
    }

    fn write(&mut self, mut data: &[u8]) -> Result<(), Errno> {
        crate::room::check(data.len())?;
        while !data.is_empty() {
            let written = match self.offset {
                Some(offset) => retry_on_intr(|| rustix::io::pwrite(&self.file, data, offset))?,
                None => retry_on_intr(|| rustix::io::write(&self.file, data))?,
            };
            if written == 0 {
                return Err(Errno::IO);
            }
            data = data.get(written..).unwrap_or_default();
            self.offset = self.offset.map(|offset| offset.saturating_add(written as u64));
        }
        Ok(())
    }

    /// Renames the file to its final name. Its attributes are then final.
    fn finish(mut self) -> Result<Statx, Errno> {
        if let Some(temporary) = &mut self.temporary {
            rustix::fs::fchmod(&self.file, temporary.mode)?;
            let flags = if temporary.exclusive { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
            let (from, to) = (temporary.name.as_slice(), temporary.target.as_slice());
            rustix::fs::renameat_with(&temporary.dir, from, &temporary.dir, to, flags)?;
            temporary.name.clear();
        }
        stat_open(&self.file)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // No caller is left to report to; the file may have been removed already.
            let _ = rustix::fs::unlinkat(&self.dir, self.name.as_slice(), AtFlags::empty());
        }
    }
}

/// Returns the attributes of the existing file, if any.
fn stat_target(path: &Path, open: &v1::WriteOpen) -> Result<Option<Statx>, Errno> {
    let flags = if open.exclusive { NO_FOLLOW } else { AtFlags::empty() };
    match rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) if open.offset.is_none() => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the directory and the name of the file after following symbolic links, as writing in place would.
fn resolve_links(path: &Path, exclusive: bool) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let mut base: Option<OwnedFd> = None;
    let mut path = path.as_os_str().as_bytes().to_vec();
    for _ in 0..=MAX_LINKS {
        let (parent, name) = split(&path).ok_or(Errno::ISDIR)?;
        let from = base.as_ref().map_or(CWD, AsFd::as_fd);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(from, parent, flags, Mode::empty())?;
        if exclusive {
            return Ok((dir, name.to_vec()));
        }
        match rustix::fs::readlinkat(&dir, name, Vec::new()) {
            Ok(target) => path = target.into_bytes(),
            Err(Errno::INVAL | Errno::NOENT) => return Ok((dir, name.to_vec())),
            Err(errno) => return Err(errno),
        }
        base = Some(dir);
    }
    Err(Errno::LOOP)
}

fn create_temporary(dir: BorrowedFd<'_>, kind: Temporary) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..NAME_ATTEMPTS {
        let name = kind.generate_name()?;
        match rustix::fs::openat(dir, name.as_slice(), flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
            Ok(file) => return Ok((file, name)),
        }
    }
    Err(Errno::EXIST)
}
