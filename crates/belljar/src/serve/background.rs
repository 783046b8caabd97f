//! A server that a command has started in the background, because none was running.
//!
//! ```text
//!  command ──starts──► session of its own, home, log ──► "ready" | "held" | error ──► the command continues
//!                            │
//!                            ├── no sandbox, build and connection for `server.linger`, and no command on its way: ends
//!                            └── a server that was started by hand requests the home: ends; sandboxes keep running
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belljar_api::{Api, Connections};
use belljar_keeper::Keeper;
use rustix::fs::{Mode, OFlags};

use super::handover::Handover;
use super::home::{CLIENTS_FILE, Home, HomeError};
use crate::cli::ServeArgs;
use crate::config::Sources;
use crate::message::{Quit, chain};

/// Name of the log in the home.
pub(crate) const LOG_FILE: &str = "belljar.log";

/// Name of the rotated log.
pub(crate) const OLD_LOG_FILE: &str = "belljar.log.old";

/// Written to standard output when the server answers requests.
pub(crate) const READY: &str = "ready";

/// Written to standard output when another server holds the home.
pub(crate) const HELD: &str = "held";

/// Maximum length of the log when a server starts, in bytes. A longer one is rotated, which replaces the previous one.
const MAX_LOG_BYTES: u64 = 8 << 20;

/// Shortest and longest interval between two checks for idleness.
const IDLE_CHECK_INTERVAL: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// Error from starting in the background.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackgroundError {
    /// The log cannot be written.
    #[error("cannot write the log {path:?}")]
    Log { path: PathBuf, source: io::Error },
    /// The handover socket cannot be created.
    #[error("cannot listen in {path:?}")]
    Handover { path: PathBuf, source: io::Error },
    /// The server cannot detach from the command's standard output.
    #[error("cannot leave the command's standard output")]
    Leave(#[source] io::Error),
}

/// Reason for the server to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The server has been idle for long enough.
    Idle,
    /// Another server requested the home.
    Asked,
}

/// State that only a server in the background has.
pub(crate) struct Background {
    home: PathBuf,
    handover: Handover,
    seen: Connections,
    idle_since: Instant,
    /// Locked while an idle server ends, so that no command connects in the meantime.
    clients: Option<File>,
}

/// Serves in the background. The outcome of the start is reported on standard output.
pub(crate) fn serve(args: &ServeArgs) -> Result<u8, Quit> {
    // Detaches from the command's terminal. Fails if this process leads a session already.
    let _ = rustix::process::setsid();
    // It was started through `/proc/self/exe`, whose name would be shown in process lists.
    let _ = rustix::thread::set_name(c"belljar");
    let served = begin(args);
    match &served {
        Err(Quit::Error(error)) => report(&chain(error.as_ref())),
        Err(Quit::Usage(text)) => report(text),
        _ => {}
    }
    served
}

fn begin(args: &ServeArgs) -> Result<u8, Quit> {
    let sources = Sources::in_background(&args.service);
    let loaded = sources.load()?;
    let mut home = match Home::take(&loaded.home, true) {
        Err(HomeError::Taken { .. }) => {
            report(HELD);
            return Ok(0);
        }
        taken => taken?,
    };
    log_to(&loaded.home.join(LOG_FILE))?;
    let path = loaded.home.clone();
    super::run(&sources, loaded, &mut home, move || {
        // Runs within the runtime, which polls the socket.
        let handover = Handover::listen(&path);
        Ok(Some(Background {
            handover: handover.map_err(|source| BackgroundError::Handover { path: path.clone(), source })?,
            seen: Connections { open: 0, accepted: 0 },
            idle_since: Instant::now(),
            clients: None,
            home: path,
        }))
    })
}

impl Background {
    /// Reports to the command that requests are answered, and detaches from it.
    pub(crate) fn ready(&mut self) -> Result<(), BackgroundError> {
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = null.map_err(|errno| BackgroundError::Leave(errno.into()))?;
        report(READY);
        self.idle_since = Instant::now();
        rustix::stdio::dup2_stdout(&null).map_err(|errno| BackgroundError::Leave(errno.into()))
    }

    /// Waits for a reason to end.
    pub(crate) async fn end(&mut self, keeper: &Keeper, api: &Api, linger: Duration) -> End {
        let [least, most] = IDLE_CHECK_INTERVAL;
        loop {
            tokio::select! {
                () = self.handover.wait_for_request() => return End::Asked,
                () = tokio::time::sleep((linger / 8).clamp(least, most)) => {}
            }
            let connections = api.connections();
            let is_idle = keeper.is_empty()
                && !keeper.is_building()
                && connections.open == 0
                && connections == self.seen;
            self.seen = connections;
            if !is_idle {
                self.idle_since = Instant::now();
            } else if self.idle_since.elapsed() >= linger && self.lock_out_commands() {
                return End::Idle;
            }
        }
    }

    /// Locks out new commands. Returns false if one is already connecting.
    fn lock_out_commands(&mut self) -> bool {
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).mode(0o600);
        let Ok(clients) = open.open(self.home.join(CLIENTS_FILE)) else { return false };
        let is_alone = clients.try_lock().is_ok();
        self.clients = is_alone.then_some(clients);
        is_alone
    }
}

/// Reports to the command that has started this server.
fn report(text: &str) {
    // The command may have gone, which is no failure.
    let _ = writeln!(io::stdout(), "{text}");
}

/// Redirects standard error to a log file in the home.
fn log_to(path: &Path) -> Result<(), BackgroundError> {
    let failed = |source| BackgroundError::Log { path: path.to_owned(), source };
    if path.symlink_metadata().is_ok_and(|metadata| metadata.len() > MAX_LOG_BYTES) {
        std::fs::rename(path, path.with_file_name(OLD_LOG_FILE)).map_err(failed)?;
    }
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    rustix::stdio::dup2_stderr(&log).map_err(|errno| failed(errno.into()))
}
