//! A server that a command has started, because it needed one and there was none.
//!
//! ```text
//!  command ──starts──► session of its own, home, log ──► "ready" | "held" | why not ──► the command goes on
//!                            │
//!                            ├── no sandbox and no connection for `server.linger`, and no command on its way: ends
//!                            └── a server was started by hand, and asks for the home: ends; sandboxes live on
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

/// The log's name in the home.
pub(crate) const LOG_FILE: &str = "belljar.log";

/// The log before that one.
pub(crate) const OLD_LOG_FILE: &str = "belljar.log.old";

/// What it says on standard output when it answers requests.
pub(crate) const READY: &str = "ready";

/// What it says when another server has the home.
pub(crate) const HELD: &str = "held";

/// How long the log may be when a server begins, in bytes. A longer one is put aside, in the place of the one before it.
const MAX_LOG_BYTES: u64 = 8 << 20;

/// How often it looks whether there is something to stay for, at least and at most.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// Why it cannot be one in the background.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackgroundError {
    /// Its log cannot be written.
    #[error("cannot write the log {path:?}")]
    Log { path: PathBuf, source: io::Error },
    /// It could not be asked to make room.
    #[error("cannot listen in {path:?}")]
    Handover { path: PathBuf, source: io::Error },
    /// It cannot leave the streams of the command.
    #[error("cannot leave the command's standard output")]
    Leave(#[source] io::Error),
}

/// Why it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// There is nothing to stay for.
    Idle,
    /// Another server wants the home.
    Asked,
}

/// What a server in the background is besides a server.
pub(crate) struct Background {
    home: PathBuf,
    handover: Handover,
    seen: Connections,
    idle_since: Instant,
    /// Held while it ends for want of work: no command comes meanwhile.
    clients: Option<File>,
}

/// Serves in the background. Whoever has started it hears on standard output how that went.
pub(crate) fn serve(args: &ServeArgs) -> Result<u8, Quit> {
    // The terminal of the command is none of its own. It may be the first of a session already.
    let _ = rustix::process::setsid();
    // It was started by way of a link, whose name it would have in lists.
    let _ = rustix::thread::set_name(c"belljar");
    let served = begin(args);
    match &served {
        Err(Quit::Error(error)) => tell(&chain(error.as_ref())),
        Err(Quit::Usage(text)) => tell(text),
        _ => {}
    }
    served
}

fn begin(args: &ServeArgs) -> Result<u8, Quit> {
    let sources = Sources::in_background(&args.service);
    let loaded = sources.load()?;
    let mut home = match Home::take(&loaded.home, true) {
        Err(HomeError::Taken { .. }) => {
            tell(HELD);
            return Ok(0);
        }
        taken => taken?,
    };
    log_to(&loaded.home.join(LOG_FILE))?;
    let path = loaded.home.clone();
    super::run(&sources, loaded, &mut home, move || {
        // Within the runtime, which hears the socket.
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
    /// Tells the command that requests are answered, and lets go of it.
    pub(crate) fn ready(&mut self) -> Result<(), BackgroundError> {
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = null.map_err(|errno| BackgroundError::Leave(errno.into()))?;
        tell(READY);
        self.idle_since = Instant::now();
        rustix::stdio::dup2_stdout(&null).map_err(|errno| BackgroundError::Leave(errno.into()))
    }

    /// Waits until it is to end.
    pub(crate) async fn end(&mut self, keeper: &Keeper, api: &Api, linger: Duration) -> End {
        let [least, most] = LOOK_EVERY;
        loop {
            tokio::select! {
                () = self.handover.asked() => return End::Asked,
                () = tokio::time::sleep((linger / 8).clamp(least, most)) => {}
            }
            let connections = api.connections();
            let is_idle = keeper.is_empty() && connections.open == 0 && connections == self.seen;
            self.seen = connections;
            if !is_idle {
                self.idle_since = Instant::now();
            } else if self.idle_since.elapsed() >= linger && self.close_the_door() {
                return End::Idle;
            }
        }
    }

    /// Keeps commands from coming, unless one is on its way.
    fn close_the_door(&mut self) -> bool {
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false).mode(0o600);
        let Ok(clients) = open.open(self.home.join(CLIENTS_FILE)) else { return false };
        let is_alone = clients.try_lock().is_ok();
        self.clients = is_alone.then_some(clients);
        is_alone
    }
}

/// Says it to whoever has started this server.
fn tell(text: &str) {
    // Whoever does not listen any more needs no word.
    let _ = writeln!(io::stdout(), "{text}");
}

/// What would go to standard error goes to a file in the home.
fn log_to(path: &Path) -> Result<(), BackgroundError> {
    let failed = |source| BackgroundError::Log { path: path.to_owned(), source };
    if path.symlink_metadata().is_ok_and(|metadata| metadata.len() > MAX_LOG_BYTES) {
        std::fs::rename(path, path.with_file_name(OLD_LOG_FILE)).map_err(failed)?;
    }
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    rustix::stdio::dup2_stderr(&log).map_err(|errno| failed(errno.into()))
}
