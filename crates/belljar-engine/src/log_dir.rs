//! Where streams go that are more than is kept.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory for logs, made with the first of them. Its path is looked up once, before any code of the user runs:
/// afterwards a part of it could be another directory, or a link, where the sandbox was given the one above to write to.
#[derive(Debug, Clone)]
pub struct LogDir(Arc<Place>);

#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// The directory above.
    parent: OwnedFd,
    dir: OnceLock<OwnedFd>,
}

impl LogDir {
    /// Looks up where `path` belongs. What is above it is made if it is missing.
    ///
    /// # Errors
    /// What is above cannot be made or opened.
    pub fn find(path: &Path) -> io::Result<Self> {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(above)?;
        let parent = rustix::fs::openat(CWD, above, DIRECTORY, Mode::empty())?;
        let dir = OnceLock::new();
        if let Ok(there) = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty()) {
            let _ = dir.set(there);
        }
        Ok(Self(Arc::new(Place { path: path.to_owned(), parent, dir })))
    }

    /// The path of a log, for people.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path.join(name)
    }

    /// Makes a log. A file or a link in its place is replaced, never written to.
    ///
    /// # Errors
    /// It cannot be made.
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
        let made = rustix::fs::openat(&self.0.parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(self.0.dir.get_or_init(|| made).as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_that_come_meanwhile_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("other")).unwrap();
        std::fs::write(at("victim"), "as it was").unwrap();
        let logs = LogDir::find(&at("logs")).unwrap();
        assert!(!at("logs").exists(), "it is made with the first log");
        symlink(at("other"), at("logs")).unwrap();
        assert!(logs.create("run.stdout").is_err(), "a link is no directory");
        std::fs::remove_file(at("logs")).unwrap();
        logs.create("run.stdout").unwrap();
        std::fs::rename(at("logs"), at("moved")).unwrap();
        std::fs::create_dir(at("logs")).unwrap();
        for place in ["logs", "moved"] {
            symlink(at("victim"), at(place).join("run.stderr")).unwrap();
        }
        logs.create("run.stderr").unwrap();
        assert!(at("moved/run.stderr").metadata().unwrap().is_file());
        assert_eq!(std::fs::read(at("victim")).unwrap(), b"as it was");
        assert_eq!(std::fs::read_dir(at("other")).unwrap().count(), 0);
    }
}
