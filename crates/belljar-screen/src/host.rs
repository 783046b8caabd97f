//! The side of the host: has a process for each screening.

use std::io::{self, Read, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use belljar_linux::{Received, receive_with, send_with};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::report::Report;
use crate::rules::{RuleError, RuleSet};
use crate::screen::{MAX_CODE_BYTES, Request, unread_report};
use crate::start::{ARGUMENT, FORKS, Head};

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
    fn at(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Process { step, source }
    }

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

/// Screens code as [`screen_in_jail`] does, each in a process of its own that has been forked before, from one that reads no code.
#[derive(Default)]
pub struct Screeners {
    next: Mutex<Option<Screener>>,
    forks: Mutex<Option<Forks>>,
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
        let waiting = self.next.lock().take().filter(Screener::is_waiting);
        waiting.map_or_else(|| self.start(), Ok)?.screen(request)
    }

    /// Starts the process of the next screening, unless it waits already. A failure is left to that screening, which tries again.
    pub fn prepare(&self) {
        let mut next = self.next.lock();
        if next.is_none() {
            *next = self.start().ok();
        }
    }

    fn start(&self) -> Result<Screener, ScreenError> {
        let mut forks = self.forks.lock();
        if let Some(forked) = forks.as_ref().and_then(Forks::fork) {
            return Ok(forked);
        }
        // There is none yet, or something has ended it, or it cannot fork.
        *forks = None;
        let started = Forks::start()?;
        let screener = started.fork().map_or_else(Screener::start, Ok)?;
        *forks = Some(started);
        Ok(screener)
    }
}

/// A process that forks those of the screenings. It ends with its socket, which is dropped first.
struct Forks {
    socket: OwnedFd,
    _process: Reaped,
}

impl Forks {
    fn start() -> Result<Self, ScreenError> {
        let pair =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, theirs) = pair.map_err(|errno| ScreenError::at("connect to")(errno.into()))?;
        let process = Reaped::start(&[ARGUMENT, FORKS], theirs.into(), Stdio::null())?;
        Ok(Self { socket, _process: process })
    }

    /// Returns a process of its own for a screening, if there is one.
    fn fork(&self) -> Option<Screener> {
        let (socket, theirs) = UnixStream::pair().ok()?;
        send_with(self.socket.as_fd(), &[1], &[theirs.as_fd()]).ok()?;
        drop(theirs);
        is_ready(self.socket.as_fd(), TIMEOUT).then_some(())?;
        let Received { mut descriptors, .. } = receive_with(self.socket.as_fd(), &mut [0; 1]).ok()?;
        Some(Screener { process: Process::Forked(descriptors.pop()?), socket })
    }
}

/// Waits until a descriptor can be read, or nothing comes any more.
fn is_ready(descriptor: BorrowedFd<'_>, timeout: Duration) -> bool {
    let Ok(timeout) = Timespec::try_from(timeout) else { return false };
    let mut polls = [PollFd::new(&descriptor, PollFlags::IN)];
    matches!(rustix::io::retry_on_intr(|| rustix::event::poll(&mut polls, Some(&timeout))), Ok(1..))
}

/// A process that reads one piece of code, and its socket.
struct Screener {
    process: Process,
    socket: UnixStream,
}

enum Process {
    /// Started by this one.
    Own(Reaped),
    /// Forked and reaped by that of [`Forks`].
    Forked(OwnedFd),
}

impl Process {
    fn end(&mut self) {
        const SIGKILL: i32 = 9;
        match self {
            Self::Own(process) => process.end(),
            // Fails if it has ended already.
            Self::Forked(pidfd) => drop(belljar_linux::pidfd_kill(pidfd.as_fd(), SIGKILL)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

impl Screener {
    fn start() -> Result<Self, ScreenError> {
        let (socket, theirs) = UnixStream::pair().map_err(ScreenError::at("connect to"))?;
        let theirs = OwnedFd::from(theirs);
        let input = theirs.try_clone().map_err(ScreenError::at("connect to"))?;
        let process = Reaped::start(&[ARGUMENT], input.into(), theirs.into())?;
        Ok(Self { process: Process::Own(process), socket })
    }

    /// Reports whether it still waits for its request, which it does unless something else has ended it.
    fn is_waiting(&self) -> bool {
        !is_ready(self.socket.as_fd(), Duration::ZERO)
    }

    fn screen(mut self, request: &Request) -> Result<Report, ScreenError> {
        let deadline = Instant::now() + TIMEOUT;
        let answer = exchange(&mut self.socket, request, deadline);
        self.process.end();
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
    /// Starts the running executable, even if its file has been replaced.
    fn start(arguments: &[&str], input: Stdio, output: Stdio) -> Result<Self, ScreenError> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(arguments)
            .env_clear()
            .current_dir("/")
            .stdin(input)
            .stdout(output)
            .stderr(Stdio::null());
        command.spawn().map(Self).map_err(ScreenError::at("start"))
    }

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
