//! Directory for the logs of streams that exceed the kept output.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

const OPEN_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory for logs, created with the first log. Its path is resolved once, before any user code runs: later, if
/// the sandbox may write to a parent directory, a component could have been replaced by another directory or a link.
#[derive(Debug, Clone)]
pub struct LogDir(Arc<Location>);

#[derive(Debug)]
struct Location {
    path: PathBuf,
    /// The parent directory.
    parent: OwnedFd,
    dir: OnceLock<OwnedFd>,
}

impl LogDir {
    /// Resolves `path`. Creates its parent directories if missing.
    ///
    /// # Errors
    /// Fails if the parent directory cannot be created or opened.
    pub fn find(path: &Path) -> io::Result<Self> {
        let parent_path =
            path.parent().filter(|parent_path| !parent_path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent_path)?;
        let parent = rustix::fs::openat(CWD, parent_path, OPEN_FLAGS, Mode::empty())?;
        let dir = OnceLock::new();
        if let Ok(existing) = rustix::fs::openat(CWD, path, OPEN_FLAGS, Mode::empty()) {
            let _ = dir.set(existing);
        }
        Ok(Self(Arc::new(Location { path: path.to_owned(), parent, dir })))
    }

    /// Returns the path of a log, for display.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path.join(name)
    }

    /// Creates a log. An existing file or link is replaced, never written to.
    ///
    /// # Errors
    /// Fails if it cannot be created.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let dir = self.dir()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o666));
        let file = match create() {
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
                create()?
            }
            other => other?,
        };
        Ok(file.into())
    }

    fn dir(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(dir) = self.0.dir.get() {
            return Ok(dir.as_fd());
        }
        let name = self.0.path.file_name().unwrap_or_default();
        match rustix::fs::mkdirat(&self.0.parent, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let created = rustix::fs::openat(&self.0.parent, name, OPEN_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(self.0.dir.get_or_init(|| created).as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_created_later_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("other")).unwrap();
        std::fs::write(at("victim"), "unchanged").unwrap();
        let logs = LogDir::find(&at("logs")).unwrap();
        assert!(!at("logs").exists(), "it is created with the first log");
        symlink(at("other"), at("logs")).unwrap();
        assert!(logs.create("run.stdout").is_err(), "a link is not a directory");
        std::fs::remove_file(at("logs")).unwrap();
        logs.create("run.stdout").unwrap();
        std::fs::rename(at("logs"), at("moved")).unwrap();
        std::fs::create_dir(at("logs")).unwrap();
        for place in ["logs", "moved"] {
            symlink(at("victim"), at(place).join("run.stderr")).unwrap();
        }
        logs.create("run.stderr").unwrap();
        assert!(at("moved/run.stderr").metadata().unwrap().is_file());
        assert_eq!(std::fs::read(at("victim")).unwrap(), b"unchanged");
        assert_eq!(std::fs::read_dir(at("other")).unwrap().count(), 0);
    }
}
