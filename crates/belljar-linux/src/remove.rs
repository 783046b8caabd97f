//! Removing a tree that untrusted code has filled: no recursion, no allocation, no path that could be swapped.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Removes the directory `name` of `parent` with everything in it. It works through descriptors only and walks
/// back up by `..`, so that depth costs neither stack nor descriptors, and follows no symbolic link. Nothing may
/// run in the tree any more. Fork-safe.
///
/// # Errors
/// The first reason that no retry can help with. A name that is not there is fine.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let mut current = match open_dir(parent, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let mut depth = 0usize;
    loop {
        if let Some(child) = empty_one_level(current.as_fd())? {
            current = child;
            depth += 1;
        } else if depth > 0 {
            // The emptied directory goes when its parent is read again.
            current = open_dir(current.as_fd(), c"..")?;
            depth -= 1;
        } else {
            return rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        }
    }
}

/// Removes what it can of one directory; hands back the first subdirectory that has something in it.
fn empty_one_level(dir: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    // A second look from the start, because removing entries moves the position of the rest.
    let reader = open_dir(dir, c".")?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&reader, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let flags = match entry.file_type() {
            FileType::Directory => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        match rustix::fs::unlinkat(dir, name, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::ISDIR | Errno::EXIST) => return open_dir(dir, name).map(Some),
            Err(Errno::ACCESS) => {
                // The owner may have taken its own right to change this directory away.
                rustix::fs::fchmod(&reader, Mode::RWXU)?;
                return unlink_again(open_dir(dir, c".")?, name, flags);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

fn unlink_again(dir: OwnedFd, name: &CStr, flags: AtFlags) -> Result<Option<OwnedFd>, Errno> {
    match rustix::fs::unlinkat(&dir, name, flags) {
        Ok(()) => empty_one_level(dir.as_fd()),
        Err(Errno::NOTEMPTY | Errno::ISDIR | Errno::EXIST) => open_dir(dir.as_fd(), name).map(Some),
        Err(errno) => Err(errno),
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // Readable again for its owner, which we are or stand above.
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_wide_and_locked_trees_go_and_links_are_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "x").unwrap();
        let tree = base.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        for index in 0..300 {
            std::fs::write(tree.join(format!("file{index}")), "x").unwrap();
            std::fs::create_dir_all(tree.join(format!("dir{index}/below"))).unwrap();
        }
        let parent =
            rustix::fs::open(base.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        // Deeper than any path may be long.
        let mut dir = open_dir(parent.as_fd(), c"tree").unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&dir, c"d", Mode::RWXU).unwrap();
            dir = open_dir(dir.as_fd(), c"d").unwrap();
        }
        let locked = tree.join("dir0");
        std::fs::write(locked.join("inside"), "x").unwrap();
        rustix::fs::chmod(&locked, Mode::empty()).unwrap();

        remove_tree(parent.as_fd(), c"tree").unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        remove_tree(parent.as_fd(), c"tree").unwrap();
    }
}
