//! Extended attributes of regular files and directories in the `user` namespace.

use std::os::fd::{AsFd, BorrowedFd};

use belljar_proto::v1;
use bytes::Bytes;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::entry::Link;

/// Prefix of attribute names in the `user` namespace. Source: xattr(7).
const NAMESPACE: &str = "user.";

/// Maximum total size of all names, and maximum size of one value, in bytes. Source: `XATTR_LIST_MAX` and
/// `XATTR_SIZE_MAX` of linux/limits.h.
const MAX_BYTES: usize = 64 * 1024;

/// Maximum total size of names and values returned for one file, in bytes.
const MAX_RETURNED_BYTES: usize = 64 * 1024;

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

/// Sets attributes of the file or directory at a path.
pub(super) fn set_at<'a>(
    path: impl Arg + Copy,
    link: Link,
    attributes: impl Iterator<Item = (&'a String, &'a Bytes)>,
) -> Result<(), Errno> {
    for (name, value) in attributes {
        let name = format!("{NAMESPACE}{name}");
        match link {
            Link::Follow => rustix::fs::setxattr(path, name, value, XattrFlags::empty())?,
            Link::NoFollow => rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())?,
        }
    }
    Ok(())
}

/// Adds the attributes whose names start with `prefix` to the entry. Adds none if the file is unreadable or the file
/// system has no attributes.
///
/// # Errors
/// Fails with `Errno::TOOBIG` if the attributes exceed the limit.
pub(super) fn add_to_entry(
    dir: BorrowedFd<'_>,
    path: impl Arg,
    link: Link,
    prefix: &str,
    entry: &mut v1::Entry,
) -> Result<(), Errno> {
    let has_some = matches!(
        entry.kind.as_known(),
        Some(v1::FileKind::FILE_KIND_FILE | v1::FileKind::FILE_KIND_DIRECTORY)
    );
    if prefix.is_empty() || !has_some {
        return Ok(());
    }
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, link == Link::NoFollow);
    let Ok(file) = rustix::fs::openat(dir, path, flags, Mode::empty()) else { return Ok(()) };
    let mut names = vec![0; MAX_BYTES];
    let Ok(length) = rustix::fs::flistxattr(&file, names.as_mut_slice()) else { return Ok(()) };
    names.truncate(length);
    let mut total = 0;
    for name in names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        let Some(short) = name.strip_prefix(NAMESPACE).filter(|short| short.starts_with(prefix)) else {
            continue;
        };
        let mut value = vec![0; MAX_BYTES];
        // It may have been removed meanwhile.
        let Ok(length) = rustix::fs::fgetxattr(&file, name, value.as_mut_slice()) else { continue };
        value.truncate(length);
        total += name.len() + value.len();
        if total > MAX_RETURNED_BYTES {
            return Err(Errno::TOOBIG);
        }
        entry.attributes.insert(short.to_owned(), value.into());
    }
    Ok(())
}
