//! The service's directory: its owner's alone, and of one server at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Held by the server that uses the directory; its process id is in it.
const LOCK_FILE: &str = "serve.lock";

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HomeError {
    /// It cannot be made, looked at or opened.
    #[error("cannot {action} {path:?}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// Something else has its name.
    #[error("{path:?} is no directory; name another one with BELLJAR_HOME or --home")]
    NotADirectory { path: PathBuf },
    /// Others could put files into it.
    #[error(
        "{path:?} may be written by others (mode {mode:04o}); chmod go-w it, or name another directory with --home"
    )]
    Writable { path: PathBuf, mode: u32 },
    /// It is another user's.
    #[error(
        "{path:?} belongs to user {owner}, and this server runs as user {user}; name another directory with --home"
    )]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    /// Another server is there.
    #[error("another server ({}) uses {path:?}; stop it, or name another directory with --home", whom(.pid))]
    Taken { path: PathBuf, pid: Option<u32> },
}

/// The service's directory. It is this server's until it is dropped.
#[derive(Debug)]
pub(crate) struct Home {
    _lock: File,
}

impl Home {
    /// Makes the directory if it is missing, checks it, and takes it.
    pub(crate) fn take(path: &Path) -> Result<Self, HomeError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| HomeError::File { action, path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| match path.is_dir() {
            false if path.exists() => HomeError::NotADirectory { path: path.to_owned() },
            _ => failed("make", path)(source),
        })?;
        check(path)?;
        let name = path.join(LOCK_FILE);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&name)
            .map_err(failed("open", &name))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(HomeError::Taken { path: path.to_owned(), pid: read_pid(&mut lock) });
            }
            Err(std::fs::TryLockError::Error(source)) => return Err(failed("lock", &name)(source)),
        }
        write_pid(&mut lock).map_err(failed("write", &name))?;
        Ok(Self { _lock: lock })
    }
}

/// Nobody else may put anything into the directory.
fn check(path: &Path) -> Result<(), HomeError> {
    let metadata = std::fs::metadata(path).map_err(|source| HomeError::File {
        action: "look at",
        path: path.to_owned(),
        source,
    })?;
    let user = rustix::process::geteuid().as_raw();
    let path = path.to_owned();
    if metadata.uid() != user {
        return Err(HomeError::Foreign { path, owner: metadata.uid(), user });
    }
    match metadata.mode() & 0o7777 {
        mode if mode & 0o022 != 0 => Err(HomeError::Writable { path, mode }),
        _ => Ok(()),
    }
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

fn whom(pid: &Option<u32>) -> String {
    pid.map_or_else(|| "its process id is not known".to_owned(), |pid| format!("process {pid}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_home_is_made_for_its_owner_and_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let home = Home::take(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let refused = Home::take(&path).unwrap_err();
        assert!(
            matches!(refused, HomeError::Taken { pid: Some(pid), .. } if pid == std::process::id()),
            "{refused}"
        );
        drop(home);
        Home::take(&path).unwrap();
    }

    #[test]
    fn what_others_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, good) in [(0o700, true), (0o755, true), (0o770, false), (0o702, false), (0o1777, false)] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Home::take(dir.path()).is_ok(), good, "{mode:o}");
        }
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(Home::take(&file).unwrap_err(), HomeError::NotADirectory { .. }));
    }
}
