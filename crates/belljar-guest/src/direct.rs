//! The only program of a sandbox, started and followed by the guest's one thread: no runtime, no HTTP/2, no thread that starts others.
//! The program writes to pipes that the host has made, so that nothing of its output passes through here.
//!
//! The messages are those of `direct.rs` of belljar-proto. When the program has ended, or if the host speaks HTTP/2 from the beginning,
//! the guest goes on as any other.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use belljar_linux::{ChildSignal, Reaped, Spawned};
use belljar_proto::{ConnectError, HTTP2_FIRST, LENGTH_BYTES, MAX_DIRECT_BYTES, Message, direct_answer, v1};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::clock;
use crate::guest::{Guest, GuestError, setup};
use crate::start::{self, Command};
use crate::tree::{SIGKILL, SIGTERM};

/// Interval at which a tree that is being stopped is looked at after its leader has ended.
const TREE_INTERVAL: Duration = Duration::from_millis(20);

/// The id of the program in its messages.
const ID: u64 = 1;

/// Runs the program that the host asks for, until it has ended. Returns whether the host is still there, and may speak HTTP/2 now.
///
/// # Errors
/// Fails if the kernel refuses what following a program takes.
pub(crate) fn run(guest: &Guest, socket: &OwnedFd) -> Result<bool, GuestError> {
    let failed = setup("follow the program");
    match serve(guest, socket) {
        Ok(goes_on) => Ok(goes_on),
        // The connection broke: the host is gone.
        Err(error) if is_broken(&error) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn serve(guest: &Guest, socket: &OwnedFd) -> io::Result<bool> {
    let children = ChildSignal::open()?;
    let mut host = Host { stream: UnixStream::from(socket.try_clone()?) };
    let Some((request, streams)) = host.first()? else { return Ok(true) };
    let started = Instant::now();
    let spawned = match spawn(guest, &request, streams) {
        Ok(spawned) => spawned,
        Err(error) => {
            host.send(&Err(error))?;
            return host.wait_for_http2(&children);
        }
    };
    let event = v1::Started { id: ID, pid: spawned.pid.unsigned_abs(), ..Default::default() };
    host.send(&Ok(v1::ProcessEvent { event: Some(event.into()), ..Default::default() }))?;
    let mut program = Program::new(guest, &request, spawned, started);
    let exited = program.follow(&mut host, &children)?;
    host.send(&Ok(v1::ProcessEvent { event: Some(exited.into()), ..Default::default() }))?;
    host.wait_for_http2(&children)
}

fn spawn(guest: &Guest, request: &v1::StartRequest, streams: Vec<OwnedFd>) -> Result<Spawned, ConnectError> {
    let command = Command::from_request(guest, request)?;
    let script = start::prepare_files(guest, request)?;
    let streams = match <[OwnedFd; 3]>::try_from(streams) {
        Ok(streams) => streams,
        Err(streams) => {
            let no_null =
                |errno: Errno| ConnectError::failed_precondition(format!("cannot open /dev/null: {errno}"));
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let null = rustix::fs::open(c"/dev/null", flags, Mode::empty()).map_err(no_null)?;
            let [out, error] = <[OwnedFd; 2]>::try_from(streams)
                .map_err(|_| ConnectError::invalid_argument("a program has two or three streams"))?;
            [null, out, error]
        }
    };
    start::spawn(guest, &command, streams, false, script)
}

/// The connection to the host.
struct Host {
    stream: UnixStream,
}

impl Host {
    /// Waits for the start request. `None` if the host speaks HTTP/2.
    fn first(&mut self) -> io::Result<Option<(v1::StartRequest, Vec<OwnedFd>)>> {
        wait(&mut [PollFd::new(&self.stream, PollFlags::IN)], None)?;
        let mut first = [0];
        match belljar_linux::peek_with(self.stream.as_fd(), &mut first)?.length {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if first == [HTTP2_FIRST] => return Ok(None),
            _ => {}
        }
        // The descriptors come with the first byte.
        let mut length = [0; LENGTH_BYTES];
        let received = belljar_linux::receive_with(self.stream.as_fd(), &mut length)?;
        let rest = length.get_mut(received.length..).unwrap_or_default();
        self.stream.read_exact(rest)?;
        let request = self.read_message(length)?;
        Ok(Some((request, received.descriptors)))
    }

    /// Reads a message that has begun to arrive.
    fn receive<M: Message>(&mut self) -> io::Result<M> {
        let mut length = [0; LENGTH_BYTES];
        self.stream.read_exact(&mut length)?;
        self.read_message(length)
    }

    fn read_message<M: Message>(&mut self, length: [u8; LENGTH_BYTES]) -> io::Result<M> {
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_DIRECT_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of the host is too long"));
        }
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message)?;
        M::decode_from_slice(&message).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn send(&mut self, answer: &Result<v1::ProcessEvent, ConnectError>) -> io::Result<()> {
        self.stream.write_all(&direct_answer(answer))
    }

    /// Waits until the host speaks HTTP/2. Signals that it has sent before it knew of the end are of no use any more; what has ended
    /// meanwhile is reaped.
    fn wait_for_http2(&mut self, children: &ChildSignal) -> io::Result<bool> {
        loop {
            let mut polls = [PollFd::new(&self.stream, PollFlags::IN), PollFd::new(children, PollFlags::IN)];
            wait(&mut polls, None)?;
            let is_ready = !polls[0].revents().is_empty();
            children.clear();
            while belljar_linux::reap_one().is_some() {}
            if is_ready {
                let mut first = [0];
                match belljar_linux::peek_with(self.stream.as_fd(), &mut first)?.length {
                    0 => return Ok(false),
                    _ if first == [HTTP2_FIRST] => return Ok(true),
                    _ => drop(self.receive::<v1::SignalRequest>()?),
                }
            }
        }
    }
}

/// Waits for one of the descriptors, or until the time is over.
fn wait(polls: &mut [PollFd<'_>], time: Option<Duration>) -> io::Result<()> {
    let time = time.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    match rustix::event::poll(polls, time.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// A point of time that moves on while the sandbox is frozen.
struct Timer(Option<Instant>);

impl Timer {
    fn after(time: Duration) -> Self {
        Self(Some(Instant::now() + time))
    }

    fn has_passed(&self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    fn left(&self) -> Option<Duration> {
        Some(self.0?.saturating_duration_since(Instant::now()))
    }

    fn move_on(&mut self, frozen: Duration) {
        self.0 = self.0.map(|at| at + frozen);
    }
}

/// How far the program has been stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    /// All have got SIGTERM, and time to end.
    Asked,
}

struct Program<'g> {
    guest: &'g Guest,
    pid: i32,
    _pidfd: Option<OwnedFd>,
    started: Instant,
    grace: Duration,
    cause: v1::Cause,
    left_behind: u32,
    ended: Option<(Reaped, Duration)>,
    stop: Stop,
    /// Until it is asked to end, and afterwards until it is killed.
    timer: Timer,
    /// The guest's own deadline.
    deadline: Timer,
}

impl<'g> Program<'g> {
    fn new(guest: &'g Guest, request: &v1::StartRequest, spawned: Spawned, started: Instant) -> Self {
        let has_timeout = request.timeout_ms > 0 && !guest.config.is_without("timeout");
        Self {
            guest,
            pid: spawned.pid,
            _pidfd: spawned.pidfd,
            started,
            grace: start::grace(guest, request.grace_ms),
            cause: v1::Cause::CAUSE_UNSPECIFIED,
            left_behind: 0,
            ended: None,
            stop: Stop::No,
            timer: match has_timeout {
                true => Timer::after(Duration::from_millis(request.timeout_ms)),
                false => Timer(None),
            },
            deadline: Timer(guest.deadline()),
        }
    }

    /// Follows the program to its end, and kills what it has left.
    fn follow(&mut self, host: &mut Host, children: &ChildSignal) -> io::Result<v1::Exited> {
        loop {
            let began = tokio::time::Instant::now();
            let mut polls = [PollFd::new(&host.stream, PollFlags::IN), PollFd::new(children, PollFlags::IN)];
            wait(&mut polls, self.until_next())?;
            let [has_message, has_ended] = polls.map(|poll| !poll.revents().is_empty());
            let frozen = clock::frozen_since(began);
            self.timer.move_on(frozen);
            if has_ended {
                children.clear();
                self.reap();
            }
            if has_message {
                let request = host.receive::<v1::SignalRequest>()?;
                if (1..=64).contains(&request.signal) {
                    self.guest.proc.signal_tree(self.pid, self.ended.is_some(), request.signal);
                }
            }
            if self.step()
                && let Some((reaped, wall)) = self.ended.take()
            {
                return Ok(self.exited(&reaped, wall));
            }
        }
    }

    /// Returns the time until this has to look again; none without a time limit, so that the program is not disturbed.
    fn until_next(&self) -> Option<Duration> {
        if self.stop == Stop::Asked && self.ended.is_some() {
            return Some(TREE_INTERVAL);
        }
        let next = [self.timer.left(), self.deadline.left()].into_iter().flatten().min()?;
        Some(next.min(clock::SLICE))
    }

    fn reap(&mut self) {
        while let Some(reaped) = belljar_linux::reap_one() {
            if reaped.pid == self.pid && self.ended.is_none() {
                self.ended = Some((reaped, self.started.elapsed()));
            }
        }
    }

    /// Does what is due. Reports whether all is over.
    fn step(&mut self) -> bool {
        let has_ended = self.ended.is_some();
        match self.stop {
            Stop::No if has_ended => {
                self.left_behind = start::kill_all_others(self.guest);
                return true;
            }
            Stop::No if self.timer.has_passed() => self.ask(v1::Cause::CAUSE_TIMED_OUT),
            Stop::No if self.deadline.has_passed() => self.ask(v1::Cause::CAUSE_STOPPED),
            Stop::No => {}
            Stop::Asked if has_ended && self.others() == 0 => return true,
            Stop::Asked if self.timer.has_passed() => {
                self.left_behind = self.others();
                self.guest.proc.signal_all(SIGKILL);
                self.timer = Timer(None);
            }
            Stop::Asked => {}
        }
        // After the kill, only the program itself is waited for.
        self.stop == Stop::Asked && self.timer.0.is_none() && self.ended.is_some()
    }

    fn ask(&mut self, cause: v1::Cause) {
        self.cause = cause;
        self.stop = Stop::Asked;
        self.timer = Timer::after(self.grace);
        self.deadline = Timer(None);
        self.guest.proc.signal_all(SIGTERM);
    }

    /// Returns the number of other processes than the program.
    fn others(&self) -> u32 {
        self.guest.proc.count_running().saturating_sub(u32::from(self.ended.is_none()))
    }

    fn exited(&self, reaped: &Reaped, wall: Duration) -> v1::Exited {
        v1::Exited {
            code: reaped.code.unwrap_or(0),
            signal: reaped.signal.unwrap_or(0),
            user_us: reaped.user_us,
            system_us: reaped.system_us,
            max_rss: reaped.max_rss,
            wall_us: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX),
            cause: self.cause.into(),
            left_behind: self.left_behind,
            ..v1::Exited::default()
        }
    }
}
