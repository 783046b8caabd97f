//! A process that starts supervisors for a larger one, and does nothing else, so that it stays small: what a clone costs, and what each
//! supervisor keeps of its creator, grows with the memory and the descriptors of the process that is cloned.
//!
//! ```text
//! launcher ──plan, descriptors──► fork server ──clone──► supervisor
//!    ▲ └────── opens its pidfd ◄──pid──┘
//!    └──────────────── records, over the socket that came with the plan ────────┘
//! ```
//!
//! It has one thread, and one request at a time. A supervisor that has ended stays a zombie until the caller asks for it to be reaped, so a
//! process id that the fork server has answered is still that of its supervisor when the caller opens it. Waiting for any child would
//! look at all of them.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};

use crate::launch_unsafe::Supervisor;
use crate::memory;
use crate::passing::{MAX_DESCRIPTORS, Received, receive_with, send_with};
use crate::plan::LaunchPlan;

/// Maximum number of bytes of a plan in one message, after the byte that tells its kind.
const PIECE_BYTES: usize = 64 << 10;

/// Maximum time until the other end receives a message, and until it answers: a clone takes less than a millisecond.
const TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Maximum time until one that has answered before answers [`PING`]: it does nothing that takes longer than a clone.
/// Source: docs/spec.md; held by `crash::hung_fork_server_is_replaced` of the launcher's tests.
const PING_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A piece of a plan, which more pieces follow.
const MORE: u8 = b'm';
/// The last piece of a plan.
const LAST: u8 = b'l';
/// A process id to reap, or [`ALL`].
const REAP: u8 = b'r';
/// Every supervisor that has ended.
const ALL: i32 = 0;
/// Nothing but a question whether it answers.
const PING: u8 = b'p';
/// The answer to [`PING`], which is no process id.
const PONG: i32 = 0;

/// A fork server, as the process that uses it sees it. It ends when this is dropped.
#[derive(Debug)]
pub struct ForkServer {
    socket: OwnedFd,
    /// True if it could not be asked to reap one, until the next start.
    has_missed: AtomicBool,
}

/// Why no supervisor was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkError {
    /// The kernel refused the clone.
    Refused(Errno),
    /// The fork server does not answer, and cannot be used any more. With `EPIPE` it has got nothing; else a supervisor may have been started,
    /// which ends with its control socket.
    Lost(Errno),
}

impl ForkServer {
    /// Returns a pair of sockets: one for [`Self::new`], one for [`serve_forks`] in the process that becomes the fork server.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
    }

    /// Uses the fork server at the other end of `socket`.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, has_missed: AtomicBool::new(false) }
    }

    /// Checks that it answers. One that `is_new` may have to begin first.
    ///
    /// # Errors
    /// The reason why it cannot be used any more. It has got nothing.
    pub fn check(&self, is_new: bool) -> Result<(), Errno> {
        let timeout = if is_new { &TIMEOUT } else { &PING_TIMEOUT };
        wait(self.socket.as_fd(), PollFlags::OUT, timeout)?;
        send_with(self.socket.as_fd(), &[PING], &[])?;
        let mut answer = [0; 4];
        wait(self.socket.as_fd(), PollFlags::IN, timeout)?;
        let received = receive_with(self.socket.as_fd(), &mut answer)?;
        let is_pong = received.length == answer.len() && i32::from_ne_bytes(answer) == PONG;
        if is_pong { Ok(()) } else { Err(Errno::PIPE) }
    }

    /// Does what [`start`](crate::start) does, in the fork server. Blocks until it has cloned, and must not be called twice at the same time.
    ///
    /// # Errors
    /// See [`ForkError`].
    pub fn start(self: &Arc<Self>, plan: &LaunchPlan, control: &OwnedFd) -> Result<Supervisor, ForkError> {
        let mut encoded = plan.encode();
        encoded.descriptors.insert(0, control.as_fd());
        self.send(&encoded.bytes, &encoded.descriptors).map_err(ForkError::Lost)?;
        // The supervisor starts now, and everything waits for it.
        let mut answer = [0; 4];
        wait(self.socket.as_fd(), PollFlags::IN, &TIMEOUT).map_err(ForkError::Lost)?;
        let received = receive_with(self.socket.as_fd(), &mut answer).map_err(ForkError::Lost)?;
        let number = i32::from_ne_bytes(answer);
        match (received.length, Pid::from_raw(number)) {
            (4, Some(pid)) if number > 0 => {
                let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(ForkError::Lost)?;
                // Its own pidfd is open, and no other one is being started.
                if self.has_missed.swap(false, Ordering::Relaxed) {
                    self.ask_to_reap(ALL);
                }
                Ok(Supervisor::of_fork_server(pidfd, Arc::clone(self), pid))
            }
            (4, _) => Err(ForkError::Refused(Errno::from_raw_os_error(-number))),
            // It has got the plan; `EPIPE` would say that it has not.
            _ => Err(ForkError::Lost(Errno::CONNABORTED)),
        }
    }

    /// Sends a plan in pieces, the descriptors with the first ones.
    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let (mut pieces, mut parcels) = (bytes.chunks(PIECE_BYTES), descriptors.chunks(MAX_DESCRIPTORS));
        let (mut piece, mut parcel) = (pieces.next(), parcels.next());
        loop {
            let next = (pieces.next(), parcels.next());
            let kind = if matches!(next, (None, None)) { LAST } else { MORE };
            let message = [&[kind], piece.unwrap_or_default()].concat();
            wait(self.socket.as_fd(), PollFlags::OUT, &TIMEOUT)?;
            send_with(self.socket.as_fd(), &message, parcel.unwrap_or_default())?;
            if kind == LAST {
                return Ok(());
            }
            (piece, parcel) = next;
        }
    }

    /// Has a supervisor reaped that has ended.
    pub(crate) fn reap(&self, pid: Pid) {
        self.ask_to_reap(pid.as_raw_nonzero().get());
    }

    fn ask_to_reap(&self, pid: i32) {
        let [first, second, third, fourth] = pid.to_ne_bytes();
        if send_with(self.socket.as_fd(), &[REAP, first, second, third, fourth], &[]).is_err() {
            // Its queue is full.
            self.has_missed.store(true, Ordering::Relaxed);
        }
    }
}

/// Waits until a socket is ready.
fn wait(socket: BorrowedFd<'_>, flags: PollFlags, timeout: &Timespec) -> Result<(), Errno> {
    let mut polls = [PollFd::new(&socket, flags)];
    loop {
        match rustix::event::poll(&mut polls, Some(timeout)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Serves as a fork server until the other end of `socket` is closed. The process must have one thread.
///
/// # Errors
/// The kernel's reason for refusing to receive or to answer, or `EBADMSG` for something that is no plan.
pub fn serve_forks(socket: &OwnedFd) -> Result<(), Errno> {
    // Each supervisor keeps what the next plan overwrites, so that a plan overwrites as little as possible.
    let mut buffer = memory::UnsharedMemory::new(PIECE_BYTES + 1)?;
    let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let mut polls = [PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut polls, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let Received { length, descriptors: more, cut } = receive_with(socket.as_fd(), buffer.as_mut())?;
        let (kind, piece) = match buffer.as_mut().get(..length).and_then(<[u8]>::split_first) {
            None => return Ok(()),
            Some((&REAP, pid)) => {
                reap(i32::from_ne_bytes(pid.try_into().map_err(|_| Errno::BADMSG)?));
                continue;
            }
            Some((&PING, _)) => {
                send_with(socket.as_fd(), &PONG.to_ne_bytes(), &[])?;
                continue;
            }
            Some((kind, piece)) => (*kind, piece),
        };
        descriptors.extend(more);
        if cut {
            return Err(Errno::BADMSG);
        }
        if kind != LAST || !bytes.is_empty() {
            bytes.extend_from_slice(piece);
        }
        if kind == LAST {
            let whole = if bytes.is_empty() { piece } else { &bytes };
            let answer = start(whole, std::mem::take(&mut descriptors))?;
            send_with(socket.as_fd(), &answer.to_ne_bytes(), &[])?;
            bytes = Vec::new();
            memory::give_back_memory();
        }
    }
}

/// Reaps a supervisor that has ended.
fn reap(pid: i32) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    match Pid::from_raw(pid) {
        Some(pid) => drop(rustix::process::waitid(WaitId::Pid(pid), options)),
        None => while matches!(rustix::process::waitid(WaitId::All, options), Ok(Some(_))) {},
    }
}

/// Starts a supervisor, and returns its process id, or the negative number of the error.
fn start(bytes: &[u8], mut descriptors: Vec<OwnedFd>) -> Result<i32, Errno> {
    if descriptors.is_empty() {
        return Err(Errno::BADMSG);
    }
    let control = descriptors.remove(0);
    let plan = LaunchPlan::decode(bytes, descriptors)?;
    Ok(match crate::launch_unsafe::start_process(&plan, &control) {
        // Dropping its pidfd does not end it.
        Ok((pid, _)) => pid,
        Err(errno) => -errno.raw_os_error(),
    })
}
