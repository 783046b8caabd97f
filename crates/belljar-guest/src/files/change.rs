//! Creating directories, moving, removing, setting modes.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use belljar_files::{NO_FOLLOW, kind, remove_tree};
use belljar_proto::{ConnectError, v1};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::attributes;
use super::entry::{Link, entry_at};
use super::path::{failed_precondition, failure, mode, resolve, split_named};

/// Default permission bits of a new directory.
const DEFAULT_MODE: u32 = 0o755;

/// Creates a directory.
pub(super) fn make_dir(home: &Path, request: &v1::MakeDirRequest) -> Result<v1::Entry, ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let mode = mode(request.mode, DEFAULT_MODE)?;
    let fail = |errno| failure("create the directory", &request.path, errno);
    if request.parents && is_dir(path.as_os_str().as_bytes()) {
        return entry_at(CWD, &path, &request.path, Link::Follow).map_err(fail);
    }
    let (parent, _) = split_named("path", &path)?;
    if request.parents {
        make_parents(parent).map_err(fail)?;
    }
    match rustix::fs::mkdir(&path, mode) {
        // Sets the exact bits, regardless of the guest's umask. By descriptor: without namespaces, the seccomp filter
        // refuses some bits by path.
        Ok(()) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let created = rustix::fs::open(&path, flags, Mode::empty()).map_err(fail)?;
            rustix::fs::fchmod(&created, mode).map_err(fail)?;
        }
        // Another program has just created it.
        Err(Errno::EXIST) if request.parents && is_dir(path.as_os_str().as_bytes()) => {}
        Err(errno) => return Err(fail(errno)),
    }
    entry_at(CWD, &path, &request.path, Link::Follow).map_err(fail)
}

/// Creates `path` and its missing parent directories.
pub(super) fn make_parents(path: &[u8]) -> Result<(), Errno> {
    if is_dir(path) {
        return Ok(());
    }
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
    for end in ends.chain([path.len()]) {
        match rustix::fs::mkdir(path.get(..end).unwrap_or(path), Mode::from_raw_mode(DEFAULT_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    if is_dir(path) { Ok(()) } else { Err(Errno::NOTDIR) }
}

fn is_dir(path: &[u8]) -> bool {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE);
    stat.is_ok_and(|stat| kind(&stat) == FileType::Directory)
}

/// Moves a file or a directory.
pub(super) fn rename(home: &Path, request: &v1::MoveRequest) -> Result<v1::Entry, ConnectError> {
    let from = resolve(home, "from", &request.from)?;
    let to = resolve(home, "to", &request.to)?;
    let flags = if request.overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    rustix::fs::renameat_with(CWD, &from, CWD, &to, flags).map_err(|errno| match errno {
        Errno::EXIST => failure("move to", &request.to, errno),
        Errno::INVAL => failed_precondition("move", &request.from, "a directory cannot be moved into itself"),
        errno => failure("move", &request.from, errno),
    })?;
    entry_at(CWD, &to, &request.to, Link::NoFollow).map_err(|errno| failure("open", &request.to, errno))
}

/// Sets extended attributes, permission bits and the modification time.
pub(super) fn set_mode(home: &Path, request: &v1::SetModeRequest) -> Result<v1::Entry, ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let fail = |errno| failure("change", &request.path, errno);
    let (link, at) =
        if request.follow { (Link::Follow, AtFlags::empty()) } else { (Link::NoFollow, NO_FOLLOW) };
    attributes::set_at(&path, link, request.attributes.iter()).map_err(fail)?;
    if let Some(bits) = request.mode {
        // Zero is a valid mode here.
        let mode = if bits == 0 { Mode::empty() } else { mode(bits, 0)? };
        let stat = rustix::fs::statx(CWD, &path, at, StatxFlags::TYPE).map_err(fail)?;
        if kind(&stat) == FileType::Symlink {
            return Err(failed_precondition(
                "set the mode of",
                &request.path,
                "it is a symbolic link; set `follow`",
            ));
        }
        chmod(&path, kind(&stat), mode, request.follow).map_err(fail)?;
    }
    if let Some(modified) = request.modified_ns {
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let time = Timespec {
            tv_sec: modified.div_euclid(1_000_000_000),
            tv_nsec: modified.rem_euclid(1_000_000_000),
        };
        let times = Timestamps { last_access: omit, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, at).map_err(fail)?;
    }
    entry_at(CWD, &path, &request.path, link).map_err(fail)
}

/// Changes the mode, by descriptor where possible: without namespaces, the seccomp filter refuses some bits by path.
fn chmod(path: &Path, kind: FileType, mode: Mode, follow: bool) -> Result<(), Errno> {
    if matches!(kind, FileType::RegularFile | FileType::Directory) {
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !follow);
        match rustix::fs::open(path, flags, Mode::empty()) {
            // The owner may lack read permission and still change the mode.
            Err(Errno::ACCESS) => {}
            opened => return rustix::fs::fchmod(opened?, mode),
        }
    }
    rustix::fs::chmodat(CWD, path, mode, AtFlags::empty())
}

/// Removes a file, an empty directory, or on request a whole tree.
pub(super) async fn remove(home: &Path, request: &v1::RemoveRequest) -> Result<(), ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let (parent, name) = split_named("path", &path)?;
    let fail = |errno| match errno {
        Errno::NOTEMPTY | Errno::EXIST if !request.recursive => {
            failed_precondition("remove", &request.path, "the directory is not empty; set `recursive`")
        }
        Errno::STALE => {
            ConnectError::aborted("cannot remove the tree: another program moved a part of it meanwhile")
        }
        errno => failure("remove", &request.path, errno),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty()).map_err(fail)?;
    let stat = rustix::fs::statx(&parent, name, NO_FOLLOW, StatxFlags::TYPE).map_err(fail)?;
    if kind(&stat) != FileType::Directory {
        return rustix::fs::unlinkat(&parent, name, AtFlags::empty()).map_err(fail);
    }
    match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) if request.recursive => {
            remove_tree(parent.as_fd(), name).await.map_err(fail)
        }
        done => done.map_err(fail),
    }
}
