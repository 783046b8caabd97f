//! The server of a home, for a command that names none: the running one, or one that is started in the background.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::serve::{CLIENTS_FILE, HELD, HomeError, LOG_FILE, READY, SOCKET_FILE, connect, holder, prepare};

/// Timeout for a server to answer, from the first attempt to connect.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between attempts to connect.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time to wait for a server that another command starts, before the next attempt to start one.
const START_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum length of the error that is read from a server that cannot start, in bytes.
const MAX_REASON_BYTES: u64 = 16 * 1024;

/// Name of the store in the home, unless the configuration names another.
const STORE_FILE: &str = "belljar.db";

/// Variables that a server in the background inherits from the command's environment, besides those of its configuration. It
/// outlives the command, and so must not get the rest.
const INHERITED_VARIABLES: [&str; 8] =
    ["HOME", "PATH", "TMPDIR", "TZ", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Prefixes of inherited variables: the configuration, and the connections to a PostgreSQL server and a Docker daemon.
const INHERITED_PREFIXES: [&str; 3] = ["BELLJAR_", "PG", "DOCKER_"];

/// Variables of the client, which are not inherited; one of them is a secret.
const CLIENT_VARIABLES: [&str; 2] = ["BELLJAR_API_KEY", "BELLJAR_API_URL"];

/// Error from reaching a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The home cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The commands' lock cannot be taken.
    #[error("cannot lock {path:?}")]
    Lease { path: PathBuf, source: io::Error },
    /// The server's socket exists and refuses the connection.
    #[error("cannot connect to the server at {path:?}")]
    Connect { path: PathBuf, source: io::Error },
    /// The server belongs to another user.
    #[error(
        "the server in {path:?} runs as user {user}, in a directory of {}, and is not trusted; to use it all the same, name it \
         with --server unix:PATH, and give a key", owner.map_or("nobody".to_owned(), |owner| format!("user {owner}"))
    )]
    Foreign { path: PathBuf, user: u32, owner: Option<u32> },
    /// No server is running, and none can be started.
    #[error("no server is running here, and none can be started in the background")]
    Spawn(#[source] io::Error),
    /// No server is running, and the one that was started failed.
    #[error("no server is running here, and none can be started in the background: {reason}{}", log_hint(.log))]
    Refused { reason: String, log: Option<PathBuf> },
    /// The server that holds the home listens on no Unix socket.
    #[error(
        "the server of this home (process {pid}) has no Unix socket; name it with --server{}, and give a key with \
         BELLJAR_API_KEY", url.as_ref().map(|url| format!(" {url}")).unwrap_or_default()
    )]
    NoSocket { pid: u32, url: Option<String> },
    /// No server answers in time.
    #[error("no server answers at {path:?} after {seconds} s; see {log:?}")]
    Late { path: PathBuf, log: PathBuf, seconds: u64 },
}

/// A server that answers.
#[derive(Debug)]
pub(crate) struct Reached {
    /// Its socket.
    pub(crate) socket: PathBuf,
    /// Keeps a server in the background from ending, as long as this is held.
    pub(crate) lease: Option<File>,
    /// Whether it was started for this command and is the first in this home.
    pub(crate) is_first: bool,
}

/// Finds the server of this home, an absolute path, or starts one in the background.
pub(crate) fn reach(home: &Path) -> Result<Reached, StartError> {
    let begin = Instant::now();
    let lease = lease(home, begin)?;
    let mut socket = home.join(SOCKET_FILE);
    let is_new = !home.join(STORE_FILE).exists();
    let mut is_first = false;
    let mut retry_at: Option<Instant> = None;
    loop {
        match connect(&socket) {
            Ok(stream) => {
                let peer = rustix::net::sockopt::socket_peercred(&stream);
                let peer =
                    peer.map_err(|errno| StartError::Connect { path: socket.clone(), source: errno.into() })?;
                let user = peer.uid.as_raw();
                let owner = owner(home);
                if !is_trusted(user, owner, rustix::process::geteuid().as_raw()) {
                    return Err(StartError::Foreign { path: home.to_owned(), user, owner });
                }
                return Ok(Reached { socket, lease, is_first });
            }
            Err(error) if is_not_listening(&error) => {}
            Err(source) => return Err(StartError::Connect { path: socket, source }),
        }
        if begin.elapsed() > START_TIMEOUT {
            let (log, seconds) = (home.join(LOG_FILE), START_TIMEOUT.as_secs());
            return Err(StartError::Late { path: socket, log, seconds });
        }
        if retry_at.is_none_or(|until| Instant::now() > until) {
            if lease.is_none() {
                // Returns the reason why no server can use the directory.
                prepare(home)?;
            }
            is_first = start(home)? && is_new;
            retry_at = Some(Instant::now() + START_RETRY_INTERVAL);
            socket = published_socket(home)?.unwrap_or(socket);
        } else {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Returns the owner of a directory.
fn owner(path: &Path) -> Option<u32> {
    path.metadata().ok().map(|metadata| metadata.uid())
}

/// Reports whether a server of `peer` in a directory of `owner` is trusted: this user's own, or root's. Root also trusts the
/// server of the directory's owner.
fn is_trusted(peer: u32, owner: Option<u32>, this: u32) -> bool {
    let is_safe = |user: u32| user == this || user == 0;
    if this == 0 {
        return is_safe(peer) || owner == Some(peer);
    }
    is_safe(peer) && owner.is_some_and(is_safe)
}

/// Takes the commands' lock, so that no server in the background ends now. Returns `None` in another user's home, where no
/// server could be started.
fn lease(home: &Path, begin: Instant) -> Result<Option<File>, StartError> {
    if owner(home).is_some_and(|owner| owner != rustix::process::geteuid().as_raw()) {
        return Ok(None);
    }
    prepare(home)?;
    let path = home.join(CLIENTS_FILE);
    let failed = |source| StartError::Lease { path: path.clone(), source };
    let mut open = OpenOptions::new();
    let file = open.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(failed)?;
    loop {
        match file.try_lock_shared() {
            Ok(()) => return Ok(Some(file)),
            // A server is just ending.
            Err(TryLockError::WouldBlock) if begin.elapsed() < START_TIMEOUT => {
                std::thread::sleep(POLL_INTERVAL)
            }
            Err(TryLockError::WouldBlock) => return Err(failed(io::ErrorKind::TimedOut.into())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

/// Reports whether the error means that no server listens there.
fn is_not_listening(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Returns the socket of the server that holds the home, if published.
///
/// # Errors
///
/// Fails if that server has no socket.
fn published_socket(home: &Path) -> Result<Option<PathBuf>, StartError> {
    let Some(holder) = holder(home).filter(|holder| holder.serves) else { return Ok(None) };
    match holder.socket {
        Some(socket) => Ok(Some(PathBuf::from(socket))),
        None => Err(StartError::NoSocket { pid: holder.pid, url: holder.url }),
    }
}

/// Starts a server. Returns false if another one holds the home, or is about to.
fn start(home: &Path) -> Result<bool, StartError> {
    let mut server = spawn(home).map_err(StartError::Spawn)?;
    match read_report(&mut server).map_err(StartError::Spawn)?.trim() {
        READY => Ok(true),
        HELD => {
            let _ = server.wait();
            Ok(false)
        }
        reason => {
            let reason = if reason.is_empty() { "it exited without giving a reason" } else { reason };
            // The log does not exist before the server has read its configuration.
            let log = Some(home.join(LOG_FILE)).filter(|log| log.exists());
            Err(StartError::Refused { reason: reason.to_owned(), log })
        }
    }
}

fn log_hint(log: &Option<PathBuf>) -> String {
    log.as_ref().map(|log| format!("; see {log:?}")).unwrap_or_default()
}

fn spawn(home: &Path) -> io::Result<Child> {
    // Descriptors inherited from the caller must not stay open as long as the server lives.
    let _ = belljar_local::cloexec_from(3);
    let kept = std::env::vars_os().filter(|(name, _)| {
        let Some(name) = name.to_str() else { return false };
        let is_kept = INHERITED_VARIABLES.contains(&name)
            || INHERITED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        is_kept && !CLIENT_VARIABLES.contains(&name)
    });
    let mut command = Command::new("/proc/self/exe");
    command.arg0("belljar").arg("serve").arg("--background").arg("--home").arg(home).env_clear().envs(kept);
    if let Some(config) = std::env::var_os("BELLJAR_CONFIG").filter(|path| !path.is_empty()) {
        command.env("BELLJAR_CONFIG", std::path::absolute(config)?);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// Reads the server's standard output until it is closed.
fn read_report(server: &mut Child) -> io::Result<String> {
    let mut output = server.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let begin = Instant::now();
    let mut report = Vec::new();
    loop {
        let left = START_TIMEOUT.saturating_sub(begin.elapsed());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        if rustix::event::poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for it to be ready"));
        }
        let mut piece = [0; 1024];
        match output.read(&mut piece)? {
            length @ 1.. if (report.len() as u64) < MAX_REASON_BYTES => {
                report.extend_from_slice(&piece[..length])
            }
            _ => return Ok(String::from_utf8_lossy(&report).into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_of_this_user_or_an_administrator_are_trusted() {
        for (peer, owner, this, is_good) in [
            (1000, Some(1000), 1000, true),
            (0, Some(0), 1000, true),
            (0, Some(1000), 1000, true),
            (1001, Some(1001), 1000, false),
            (1001, Some(1000), 1000, false),
            (1000, Some(1001), 1000, false),
            (1000, None, 1000, false),
            (0, Some(0), 0, true),
            (1000, Some(1000), 0, true),
            (1001, Some(1000), 0, false),
            (1001, Some(0), 0, false),
        ] {
            assert_eq!(is_trusted(peer, owner, this), is_good, "{peer} {owner:?} {this}");
        }
    }
}
