//! Removing a tree that untrusted code has written: bounded recursion, no allocation, no path that could be swapped.

// A panic between a clone and an exec would allocate and print: docs/fork-safety.md.
#![deny(clippy::indexing_slicing, clippy::panic, clippy::unreachable, clippy::string_slice)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Removes the directory `name` of `parent` with everything in it. It works through descriptors only and follows no
/// symbolic link; below [`MAX_RECURSION`] levels it walks back up by `..`, so that depth costs neither stack nor descriptors.
/// No process of the sandbox may still run in the tree. Another process may remove it at the same time, such as a slow
/// supervisor after the host's timeout. Fork-safe.
///
/// # Errors
/// The first error that a retry cannot fix. A missing name is not an error.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match open_dir(parent, name) {
        Ok(dir) => empty(dir, 0)?,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    remove_dir(parent, name)
}

/// Removes an empty directory, unless another process already has.
fn remove_dir(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Maximum depth of recursion. Each level keeps its position in its directory, so that a directory with many subdirectories
/// is read once and not once for each of them.
const MAX_RECURSION: u32 = 24;

fn empty(dir: OwnedFd, level: u32) -> Result<(), Errno> {
    if level == MAX_RECURSION {
        return empty_deep(dir);
    }
    let mut buffer = [MaybeUninit::<u8>::uninit(); 2048];
    // Removing entries does not disturb the reading of the remaining ones (readdir(3)).
    let Some(reader) = open_if_exists(dir.as_fd(), c".")? else { return Ok(()) };
    let mut entries = RawDir::new(&reader, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // The directory itself has been removed (getdents(2)).
            Err(Errno::NOENT) => return Ok(()),
            entry => entry?,
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if remove_entry(dir.as_fd(), name)? == Removed::Yes {
            continue;
        }
        if let Some(child) = open_if_exists(dir.as_fd(), name)? {
            empty(child, level + 1)?;
            remove_dir(dir.as_fd(), name)?;
        }
    }
    Ok(())
}

/// Empties a directory of any depth.
fn empty_deep(mut current: OwnedFd) -> Result<(), Errno> {
    let mut depth = 0usize;
    loop {
        if let Some(child) = empty_one_level(current.as_fd())? {
            current = child;
            depth += 1;
        } else if depth > 0 {
            // The emptied directory is removed when its parent is read again.
            current = open_dir(current.as_fd(), c"..")?;
            depth -= 1;
        } else {
            return Ok(());
        }
    }
}

/// Removes all it can from one directory. Returns the first subdirectory that is not empty.
fn empty_one_level(dir: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let Some(reader) = open_if_exists(dir, c".")? else { return Ok(None) };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 2048];
    let mut entries = RawDir::new(&reader, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::NOENT) => return Ok(None),
            entry => entry?,
        };
        let name = entry.file_name();
        let is_dir = name != c"." && name != c".." && remove_entry(dir, name)? == Removed::NotEmpty;
        if is_dir && let Some(child) = open_if_exists(dir, name)? {
            return Ok(Some(child));
        }
    }
    Ok(None)
}

#[derive(PartialEq, Eq)]
enum Removed {
    Yes,
    /// The entry is a directory that is not empty.
    NotEmpty,
}

/// Removes one entry of any type, because some file systems do not list the type.
fn remove_entry(dir: BorrowedFd<'_>, name: &CStr) -> Result<Removed, Errno> {
    let mut made_writable = false;
    loop {
        let result = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            // For a directory Linux returns EISDIR, POSIX EPERM (unlink(2)).
            Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
            other => other,
        };
        match result {
            Ok(()) | Err(Errno::NOENT) => return Ok(Removed::Yes),
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Removed::NotEmpty),
            Err(Errno::ACCESS) if !made_writable => {
                // The owner may have removed its own write permission on this directory.
                rustix::fs::chmodat(dir, c".", Mode::RWXU, AtFlags::empty())?;
                made_writable = true;
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Opens a directory. Returns `None` if another process has removed it.
fn open_if_exists(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    match open_dir(dir, name) {
        Err(Errno::NOENT) => Ok(None),
        opened => opened.map(Some),
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // Make it readable for its owner, which is this process's user, unless this is root.
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
    fn deep_wide_and_locked_trees_are_removed_and_links_are_not_followed() {
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
        // Deeper than the maximum length of a path.
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

    /// Regression: the cleanup of a sandbox with 20,000 files failed because a file was missing. The host had begun to remove
    /// the tree while the supervisor was still removing it.
    #[test]
    fn concurrent_removal_is_not_an_error() {
        let base = tempfile::tempdir().unwrap();
        let parent =
            rustix::fs::open(base.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for round in 0..5 {
            let tree = base.path().join("tree");
            for index in 0..40 {
                // Some are deeper than `MAX_RECURSION`.
                let dir = tree.join(format!("dir{index}")).join("d/".repeat(index));
                std::fs::create_dir_all(&dir).unwrap();
                for file in 0..5 {
                    std::fs::write(dir.join(format!("file{file}")), "").unwrap();
                }
            }
            let start = std::sync::Barrier::new(3);
            std::thread::scope(|scope| {
                let removing = || {
                    start.wait();
                    remove_tree(parent.as_fd(), c"tree")
                };
                for remover in [(); 3].map(|()| scope.spawn(removing)) {
                    assert_eq!(remover.join().unwrap(), Ok(()), "round {round}");
                }
            });
            assert!(!tree.exists());
        }
    }
}
