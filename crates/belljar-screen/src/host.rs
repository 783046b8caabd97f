//! The side of the host: starts a process for each screening.

use std::io::{self, Read, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::report::Report;
use crate::rules::{RuleError, RuleSet};
use crate::screen::{MAX_CODE_BYTES, Request, unread_report};
use crate::start::{ARGUMENT, Head};

/// Timeout of the process, which ends itself long before on a machine that is not overloaded.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Largest answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Error from a screening.
#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    /// The code is too large.
    #[error("code: {}", too_large(bytes))]
    TooLarge {
        /// Its size, in bytes.
        bytes: usize,
    },
    /// A list of modules is invalid.
    #[error("{field}: {reason}")]
    Modules {
        /// `modules.allow` or `modules.deny`.
        field: &'static str,
        /// Reason, and what is allowed.
        reason: String,
    },
    /// The process cannot be started or reached.
    #[error("cannot {step} the process that reads the code")]
    Process {
        /// The step that failed.
        step: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The process cannot be jailed on this machine.
    #[error("the process that reads the code cannot be jailed: {reason}")]
    Jail {
        /// Reason, from the process.
        reason: String,
    },
    /// The rules are invalid.
    #[error(transparent)]
    Rules(#[from] RuleError),
}

fn too_large(bytes: &usize) -> String {
    format!("too large: {bytes} bytes > limit {MAX_CODE_BYTES}")
}

impl ScreenError {
    /// Returns the reason without the field.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::TooLarge { bytes } => too_large(bytes),
            Self::Modules { reason, .. } | Self::Jail { reason } => reason.clone(),
            Self::Process { .. } | Self::Rules(_) => self.to_string(),
        }
    }
}

/// Screens code in a jailed process of this program, whose `main` calls [`crate::enter_screener`]. Blocks for a few milliseconds.
///
/// A process that does not answer is a finding of the report, as the code may be made for that.
///
/// # Errors
/// Fails for code that is too large and for invalid lists, and if the process cannot be started or jailed.
pub fn screen_in_jail(request: &Request) -> Result<Report, ScreenError> {
    request.check()?;
    Screener::start()?.screen(request)
}

/// Screens code as [`screen_in_jail`] does, each in a process of its own that has been started before.
#[derive(Default)]
pub struct Screeners {
    next: Mutex<Option<Screener>>,
}

impl std::fmt::Debug for Screeners {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Screeners").finish_non_exhaustive()
    }
}

impl Screeners {
    /// Screens code in the process that waits, if there is one.
    ///
    /// # Errors
    /// As [`screen_in_jail`].
    pub fn screen(&self, request: &Request) -> Result<Report, ScreenError> {
        request.check()?;
        let waiting = self.next.lock().take().and_then(Screener::if_waiting);
        waiting.map_or_else(Screener::start, Ok)?.screen(request)
    }

    /// Starts the process of the next screening, unless it waits already. A failure is left to that screening, which tries again.
    pub fn prepare(&self) {
        let mut next = self.next.lock();
        if next.is_none() {
            *next = Screener::start().ok();
        }
    }
}

/// A process that reads one piece of code, and its socket.
struct Screener {
    child: Reaped,
    socket: UnixStream,
}

impl Screener {
    fn start() -> Result<Self, ScreenError> {
        let at = |step| move |source| ScreenError::Process { step, source };
        let (socket, theirs) = UnixStream::pair().map_err(at("connect to"))?;
        let theirs = OwnedFd::from(theirs);
        // The running executable, even if its file has been replaced.
        let child = Command::new("/proc/self/exe")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs.try_clone().map_err(at("connect to"))?))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .spawn()
            .map_err(at("start"))?;
        Ok(Self { child: Reaped(child), socket })
    }

    /// Returns it if it still waits for its request, which it does unless something else has ended it.
    fn if_waiting(mut self) -> Option<Self> {
        matches!(self.child.0.try_wait(), Ok(None)).then_some(self)
    }

    fn screen(mut self, request: &Request) -> Result<Report, ScreenError> {
        let deadline = Instant::now() + TIMEOUT;
        let answer = exchange(&mut self.socket, request, deadline);
        self.child.end();
        let answer = match answer {
            Ok(answer) => serde_json::from_slice::<Result<Report, String>>(&answer).ok(),
            Err(_) => None,
        };
        match answer {
            Some(Ok(report)) => Ok(report),
            Some(Err(reason)) => Err(ScreenError::Jail { reason }),
            None => {
                let id = if Instant::now() >= deadline { "not-read-in-time" } else { "reader-failed" };
                Ok(unread_report(&RuleSet::builtin()?, request.language, id))
            }
        }
    }
}

/// Sends the request and reads the answer.
fn exchange(socket: &mut UnixStream, request: &Request, deadline: Instant) -> io::Result<Vec<u8>> {
    let head = Head { language: request.language, modules: request.modules.clone() };
    let mut head = serde_json::to_vec(&head)?;
    head.push(b'\n');
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.write_all(&head)?;
    socket.write_all(request.code.as_bytes())?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    let mut rest = Read::take(&*socket, MAX_ANSWER_BYTES);
    let mut piece = [0; 16 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left))?;
        match rest.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(length) => answer.extend_from_slice(piece.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A child that does not outlive this value.
struct Reaped(Child);

impl Reaped {
    fn end(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        self.end();
    }
}
