//! The service's directory: its owner's alone, and of one server at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::handover;

/// Held by the server that uses the directory. What it says of itself is in it: its process id, and a [`Holder`].
const LOCK_FILE: &str = "serve.lock";

/// The socket of a server's operator, unless the configuration names another.
pub(crate) const SOCKET_FILE: &str = "belljar.sock";

/// Held, together with others, by each command that uses a server in the background; by that server alone while it ends
/// because nobody does. So none ends while a command is on its way to it.
pub(crate) const CLIENTS_FILE: &str = "clients.lock";

/// The most that is read of what a holder says, in bytes.
const MAX_HOLDER_BYTES: u64 = 64 * 1024;

/// How long the server in the background may take to end when another one is to take its place. Its requests finish first
/// (`server.drain`).
const MAX_HANDOVER: Duration = Duration::from_secs(60);

/// How long a server that has just taken the directory may take to say what it is.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// How often the lock is looked at meanwhile.
const HANDOVER_STEP: Duration = Duration::from_millis(20);

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
    #[error("another server ({}) uses {path:?}; stop it, or name another directory with --home", whom(.holder))]
    Taken { path: PathBuf, holder: Option<Holder> },
    /// The server in the background was asked to end, and did not.
    #[error(
        "the server in the background ({}) uses {path:?} and does not end; end that process, and start this one again",
        whom(.holder)
    )]
    Stuck { path: PathBuf, holder: Option<Holder> },
}

/// What a server says of itself in the lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Holder {
    /// Its process.
    #[serde(skip)]
    pub(crate) pid: u32,
    /// Whether a command has started it.
    pub(crate) background: bool,
    /// Whether it listens.
    pub(crate) serves: bool,
    /// Its Unix socket, if it has one.
    pub(crate) socket: Option<String>,
    /// Its first address, if it has one.
    pub(crate) url: Option<String>,
}

/// The service's directory. It is this server's until it is dropped.
#[derive(Debug)]
pub(crate) struct Home {
    lock: File,
    holder: Holder,
}

impl Home {
    /// Makes the directory if it is missing, checks it, and takes it. `background` says whether a command has started this
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

    /// Takes the directory. A server in the background that has it is asked to end first; its sandboxes live on.
    pub(crate) fn take_over(path: &Path) -> Result<Self, HomeError> {
        let begin = Instant::now();
        let mut told = None;
        loop {
            let (path, holder) = match Self::take(path, false) {
                Err(HomeError::Taken { path, holder }) => (path, holder),
                taken => return taken,
            };
            match &holder {
                Some(Holder { background: true, pid, .. }) => {
                    if told.replace(*pid) != Some(*pid) {
                        crate::message::say(&format!(
                            "waiting for the server in the background (process {pid}) to end; its sandboxes live on"
                        ));
                    }
                    // It may be on its way up or down, and hear nothing now.
                    let _ = handover::ask(&path);
                    if begin.elapsed() > MAX_HANDOVER {
                        return Err(HomeError::Stuck { path, holder });
                    }
                }
                None if begin.elapsed() < MAX_SILENCE => {}
                _ => return Err(HomeError::Taken { path, holder }),
            }
            std::thread::sleep(HANDOVER_STEP);
        }
    }

    /// Says where this server listens.
    pub(crate) fn tell(&mut self, socket: Option<&Path>, url: Option<String>) -> io::Result<()> {
        self.holder.serves = true;
        self.holder.socket = socket.and_then(Path::to_str).map(str::to_owned);
        self.holder.url = url;
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        // One write: whoever reads meanwhile sees all of it or nothing.
        let text = format!("{}\n{}\n", self.holder.pid, serde_json::to_string(&self.holder)?);
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(text.as_bytes())
    }
}

/// What the server that has the directory says of itself, or what the last one said: to take the lock for a moment, and so know
/// which, would keep another server from it.
pub(crate) fn holder(path: &Path) -> Option<Holder> {
    read_holder(&mut File::open(path.join(LOCK_FILE)).ok()?)
}

/// Makes the directory if it is missing, and checks it.
pub(crate) fn prepare(path: &Path) -> Result<(), HomeError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| match path.is_dir() {
        false if path.exists() => HomeError::NotADirectory { path: path.to_owned() },
        _ => HomeError::File { action: "make", path: path.to_owned(), source },
    })?;
    check(path)
}

/// Nobody else may put anything into the directory.
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
    // A server of an earlier version says its process id only.
    let holder = serde_json::from_str(rest).unwrap_or_default();
    Some(Holder { pid: pid.trim().parse().ok()?, ..holder })
}

fn whom(holder: &Option<Holder>) -> String {
    holder
        .as_ref()
        .map_or_else(|| "its process id is not known".to_owned(), |holder| format!("process {}", holder.pid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_home_is_made_for_its_owner_and_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let mut home = Home::take(&path, false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        let refused = Home::take(&path, true).unwrap_err();
        let HomeError::Taken { holder: Some(told), .. } = &refused else { panic!("{refused}") };
        assert_eq!((told.pid, told.serves), (std::process::id(), false));
        home.tell(Some(Path::new("/x/y.sock")), None).unwrap();
        let told = holder(&path).unwrap();
        assert_eq!((told.serves, told.socket.as_deref(), told.url), (true, Some("/x/y.sock"), None));
        drop(home);
        Home::take(&path, true).unwrap();
    }

    #[test]
    fn a_lock_file_of_an_earlier_version_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), "4711\n").unwrap();
        let mut file = File::open(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(read_holder(&mut file), Some(Holder { pid: 4711, ..Holder::default() }));
        std::fs::write(dir.path().join(LOCK_FILE), "").unwrap();
        let mut file = File::open(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(read_holder(&mut file), None);
    }

    #[test]
    fn what_others_can_write_is_refused() {
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
