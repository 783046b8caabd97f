//! The service's directory: writable only by its owner, and used by one server at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::handover;

/// Locked by the server that uses the directory. The file contains its process id and a [`Holder`].
const LOCK_FILE: &str = "serve.lock";

/// Name of the operator's socket, unless the configuration names another.
pub(crate) const SOCKET_FILE: &str = "belljar.sock";

/// Lock file, locked shared by each command that uses a server in the background, and exclusively by that server while it
/// ends because it is idle. So it does not end while a command is connecting.
pub(crate) const CLIENTS_FILE: &str = "clients.lock";

/// Maximum length of the lock file that is read, in bytes.
const MAX_HOLDER_BYTES: u64 = 64 * 1024;

/// Timeout for the server in the background to end when another one takes its place. Its requests finish first
/// (`server.drain`).
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout for a server that has just locked the directory to write its [`Holder`].
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between attempts to take the lock.
const HANDOVER_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Error from using the directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HomeError {
    /// The directory or a file in it cannot be created, inspected or opened.
    #[error("cannot {action} {path:?}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// The path exists and is not a directory.
    #[error("{path:?} is not a directory; name another one with BELLJAR_HOME or --home")]
    NotADirectory { path: PathBuf },
    /// Other users could create files in the directory.
    #[error(
        "{path:?} may be written by others (mode {mode:04o}); chmod go-w it, or name another directory with --home"
    )]
    Writable { path: PathBuf, mode: u32 },
    /// The directory belongs to another user.
    #[error(
        "{path:?} belongs to user {owner}, and this server runs as user {user}; name another directory with --home"
    )]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    /// Another server uses the directory.
    #[error("another server ({}) uses {path:?}; stop it, or name another directory with --home", describe_holder(.holder))]
    Taken { path: PathBuf, holder: Option<Holder> },
    /// The server in the background did not end when requested.
    #[error(
        "the server in the background ({}) uses {path:?} and does not end; end that process, and start this one again",
        describe_holder(.holder)
    )]
    Stuck { path: PathBuf, holder: Option<Holder> },
}

/// Description of the server that holds the directory, as written to the lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Holder {
    /// Its process id.
    #[serde(skip)]
    pub(crate) pid: u32,
    /// Whether a command has started it.
    pub(crate) background: bool,
    /// Whether it listens already.
    pub(crate) serves: bool,
    /// Its Unix socket, if it has one.
    pub(crate) socket: Option<String>,
    /// Its first address, if it has one.
    pub(crate) url: Option<String>,
}

/// The service's directory, locked by this server until dropped.
#[derive(Debug)]
pub(crate) struct Home {
    lock: File,
    holder: Holder,
}

impl Home {
    /// Creates the directory if it is missing, checks it, and locks it. `background` is whether a command has started this
    /// server.
    pub(crate) fn take(path: &Path, background: bool) -> Result<Self, HomeError> {
        prepare(path)?;
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| HomeError::File { action, path, source }
        };
        let name = path.join(LOCK_FILE);
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = open.open(&name).map_err(failed("open", &name))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(HomeError::Taken { path: path.to_owned(), holder: read_holder(&mut lock) });
            }
            Err(std::fs::TryLockError::Error(source)) => return Err(failed("lock", &name)(source)),
        }
        let mut home =
            Self { lock, holder: Holder { pid: std::process::id(), background, ..Holder::default() } };
        home.write().map_err(failed("write", &name))?;
        Ok(home)
    }

    /// Takes the directory. A server in the background that holds it is requested to end first; its sandboxes keep running.
    pub(crate) fn take_over(path: &Path) -> Result<Self, HomeError> {
        let begin = Instant::now();
        let mut announced = None;
        loop {
            let (path, holder) = match Self::take(path, false) {
                Err(HomeError::Taken { path, holder }) => (path, holder),
                taken => return taken,
            };
            match &holder {
                Some(Holder { background: true, pid, .. }) => {
                    if announced.replace(*pid) != Some(*pid) {
                        crate::message::say(&format!(
                            "waiting for the server in the background (process {pid}) to end; its sandboxes live on"
                        ));
                    }
                    // It may be starting or ending, and not listening now.
                    let _ = handover::request_end(&path);
                    if begin.elapsed() > HANDOVER_TIMEOUT {
                        return Err(HomeError::Stuck { path, holder });
                    }
                }
                None if begin.elapsed() < ANNOUNCE_TIMEOUT => {}
                _ => return Err(HomeError::Taken { path, holder }),
            }
            std::thread::sleep(HANDOVER_RETRY_INTERVAL);
        }
    }

    /// Publishes where this server listens.
    pub(crate) fn publish(&mut self, socket: Option<&Path>, url: Option<String>) -> io::Result<()> {
        self.holder.serves = true;
        self.holder.socket = socket.and_then(Path::to_str).map(str::to_owned);
        self.holder.url = url;
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        // A single write: a concurrent reader sees all of it or nothing.
        let text = format!("{}\n{}\n", self.holder.pid, serde_json::to_string(&self.holder)?);
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(text.as_bytes())
    }
}

/// Returns the server that holds the directory, or the last one that did: telling them apart would need the lock, which would
/// keep another server from taking it.
pub(crate) fn holder(path: &Path) -> Option<Holder> {
    read_holder(&mut File::open(path.join(LOCK_FILE)).ok()?)
}

/// Creates the directory if it is missing, and checks it.
pub(crate) fn prepare(path: &Path) -> Result<(), HomeError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| match path.is_dir() {
        false if path.exists() => HomeError::NotADirectory { path: path.to_owned() },
        _ => HomeError::File { action: "make", path: path.to_owned(), source },
    })?;
    check(path)
}

/// Checks that no other user can create files in the directory.
fn check(path: &Path) -> Result<(), HomeError> {
    let metadata = std::fs::metadata(path).map_err(|source| HomeError::File {
        action: "open",
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

fn read_holder(lock: &mut File) -> Option<Holder> {
    let mut text = String::new();
    lock.take(MAX_HOLDER_BYTES).read_to_string(&mut text).ok()?;
    let (pid, rest) = text.split_once('\n')?;
    // A server of an earlier version writes only its process id.
    let holder = serde_json::from_str(rest).unwrap_or_default();
    Some(Holder { pid: pid.trim().parse().ok()?, ..holder })
}

fn describe_holder(holder: &Option<Holder>) -> String {
    holder
        .as_ref()
        .map_or_else(|| "its process id is not known".to_owned(), |holder| format!("process {}", holder.pid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn home_is_private_and_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let mut home = Home::take(&path, false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let refused = Home::take(&path, true).unwrap_err();
        let HomeError::Taken { holder: Some(found), .. } = &refused else { panic!("{refused}") };
        assert_eq!((found.pid, found.serves), (std::process::id(), false));
        home.publish(Some(Path::new("/x/y.sock")), None).unwrap();
        let found = holder(&path).unwrap();
        assert_eq!((found.serves, found.socket.as_deref(), found.url), (true, Some("/x/y.sock"), None));
        drop(home);
        Home::take(&path, true).unwrap();
    }

    #[test]
    fn lock_file_of_an_earlier_version_is_parsed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), "4711\n").unwrap();
        let mut file = File::open(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(read_holder(&mut file), Some(Holder { pid: 4711, ..Holder::default() }));
        std::fs::write(dir.path().join(LOCK_FILE), "").unwrap();
        let mut file = File::open(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(read_holder(&mut file), None);
    }

    #[test]
    fn home_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (mode, good) in [(0o700, true), (0o755, true), (0o770, false), (0o702, false), (0o1777, false)] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Home::take(dir.path(), false).is_ok(), good, "{mode:o}");
        }
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(Home::take(&file, false).unwrap_err(), HomeError::NotADirectory { .. }));
    }
}
