//! Extended attributes of regular files, in the namespace of users.

use std::os::fd::{AsFd, BorrowedFd};

use belljar_proto::v1;
use bytes::Bytes;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::entry::Link;

/// What the names of users' attributes begin with. Source: xattr(7).
const NAMESPACE: &str = "user.";

/// The most bytes of all names, and of one value. Source: `XATTR_LIST_MAX` and `XATTR_SIZE_MAX` of linux/limits.h.
const MAX_BYTES: usize = 64 * 1024;

/// The most bytes of names and values that are told of one file.
const MAX_TOLD_BYTES: usize = 64 * 1024;

/// Sets attributes of an open file.
pub(super) fn set<'a>(
    file: impl AsFd,
    attributes: impl Iterator<Item = (&'a String, &'a Bytes)>,
) -> Result<(), Errno> {
    for (name, value) in attributes {
        rustix::fs::fsetxattr(&file, format!("{NAMESPACE}{name}"), value, XattrFlags::empty())?;
    }
    Ok(())
}

/// Fills in the attributes whose names begin with `prefix`. A file that cannot be read, or a file system that has none, has none.
///
/// # Errors
/// `Errno::TOOBIG` if they are too many to be told.
pub(super) fn tell(
    dir: BorrowedFd<'_>,
    path: impl Arg,
    link: Link,
    prefix: &str,
    entry: &mut v1::Entry,
) -> Result<(), Errno> {
    if prefix.is_empty() || entry.kind.as_known() != Some(v1::FileKind::FILE_KIND_FILE) {
        return Ok(());
    }
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, link == Link::Itself);
    let Ok(file) = rustix::fs::openat(dir, path, flags, Mode::empty()) else { return Ok(()) };
    let mut names = vec![0; MAX_BYTES];
    let Ok(length) = rustix::fs::flistxattr(&file, names.as_mut_slice()) else { return Ok(()) };
    names.truncate(length);
    let mut told = 0;
    for name in names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        let Some(short) = name.strip_prefix(NAMESPACE).filter(|short| short.starts_with(prefix)) else {
            continue;
        };
        let mut value = vec![0; MAX_BYTES];
        // It may have gone since.
        let Ok(length) = rustix::fs::fgetxattr(&file, name, value.as_mut_slice()) else { continue };
        value.truncate(length);
        told += name.len() + value.len();
        if told > MAX_TOLD_BYTES {
            return Err(Errno::TOOBIG);
        }
        entry.attributes.insert(short.to_owned(), value.into());
    }
    Ok(())
}
