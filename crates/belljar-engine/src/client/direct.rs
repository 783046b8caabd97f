//! The only program of a sandbox, started without HTTP/2: its output comes through pipes, and its end in a message (`direct.rs` of
//! belljar-proto).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::{
    ConnectError, LENGTH_BYTES, MAX_ANSWER_BYTES, Message, direct_message, parse_direct_answer, v1,
};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::fs::{Gid, Uid};
use rustix::io::{Errno, IoSlice};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::PipeFlags;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use v1::__buffa::oneof::process_event::Event;

use super::{GuestError, ProcessEvent, Result};

/// The program's id. A guest that speaks HTTP/2 later counts its own from 1.
const ID: u64 = u64::MAX;

/// Size of a read in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Maximum number of bytes read from a stream after the program has ended: the content of a pipe, and what others write meanwhile.
const DRAIN_BYTES: u64 = 1 << 20;

/// Maximum time until the end of a program that is not followed any more, when the connection is wanted for something else: its time limit
/// has passed then.
const ABANDONED_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection on which a program may be started before HTTP/2 is spoken.
pub(super) struct Direct {
    stream: UnixStream,
    /// The user and group of the sandbox as the host sees them, if that is not the host itself. They may open their own standard streams
    /// by name.
    owner: Option<(u32, u32)>,
    phase: watch::Sender<Phase>,
    /// The begin of a message.
    received: tokio::sync::Mutex<Vec<u8>>,
    /// The program's standard input, until it is fed.
    input: Mutex<Option<pipe::Sender>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was sent.
    Unused,
    /// The program runs.
    Running,
    /// It may still run, and nobody follows it.
    Abandoned,
    /// It has ended, and HTTP/2 may be spoken.
    Ended,
    /// HTTP/2 is spoken.
    Closed,
}

impl Direct {
    pub(super) fn new(stream: UnixStream, owner: Option<(u32, u32)>) -> Self {
        let (phase, received) = (watch::Sender::new(Phase::Unused), tokio::sync::Mutex::default());
        Self { stream, owner, phase, received, input: Mutex::default() }
    }

    /// Returns the connection for HTTP/2, once no program runs. There is no other one.
    pub(super) async fn connection(&self) -> io::Result<UnixStream> {
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| *phase != Phase::Running).await;
        match self.phase.send_replace(Phase::Closed) {
            Phase::Unused | Phase::Ended => {}
            Phase::Abandoned => {
                let ended = tokio::time::timeout(ABANDONED_TIMEOUT, self.until_ended()).await;
                ended.map_err(|_| io::ErrorKind::TimedOut)?.map_err(io::Error::other)?;
            }
            Phase::Running | Phase::Closed => return Err(io::ErrorKind::NotConnected.into()),
        }
        let socket = std::os::unix::net::UnixStream::from(self.stream.as_fd().try_clone_to_owned()?);
        UnixStream::from_std(socket)
    }

    /// Waits until the guest has told the end of the program.
    async fn until_ended(&self) -> Result<()> {
        loop {
            match self.answer().await? {
                Ok(Event::Started(_)) => {}
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }

    async fn answer(&self) -> Result<std::result::Result<Event, ConnectError>> {
        tokio::task::coop::consume_budget().await;
        let answer = answer(&self.stream, &mut *self.received.lock().await).await;
        // Nothing that follows can be understood.
        answer.inspect_err(|_| {
            self.phase.send_replace(Phase::Closed);
        })
    }

    fn broken(&self, what: &'static str) -> GuestError {
        self.phase.send_replace(Phase::Closed);
        GuestError::Protocol { what }
    }

    /// Starts a program. `None` if something was sent before, or if it needs what only other guests have: a guest makes the pipes too, if
    /// this process may not make them for the sandbox's user.
    pub(super) async fn start(self: &Arc<Self>, request: &v1::StartRequest) -> Option<Result<Program>> {
        let is_simple = !request.terminal.is_set()
            && request.kill_rest
            && request.keep_bytes == 0
            && request.stdin.is_empty();
        if !is_simple || *self.phase.borrow() != Phase::Unused {
            return None;
        }
        let pipes = self.pipes(request).ok()?;
        let begin = |phase: &mut Phase| {
            let is_unused = *phase == Phase::Unused;
            if is_unused {
                *phase = Phase::Running;
            }
            is_unused
        };
        if !self.phase.send_if_modified(begin) {
            return None;
        }
        Some(self.begin(request, pipes).await)
    }

    async fn begin(self: &Arc<Self>, request: &v1::StartRequest, pipes: Pipes) -> Result<Program> {
        *self.input.lock() = pipes.input;
        // From now on its end is the end of the phase.
        let mut program = Program {
            direct: Arc::clone(self),
            pid: 0,
            streams: pipes.streams,
            is_turn_of_errors: false,
            exited: None,
        };
        let message = direct_message(&request.encode_to_vec());
        let given = pipes.given;
        let sent = self.send_with(&message, &given.iter().map(AsFd::as_fd).collect::<Vec<_>>()).await;
        // The program's ends: its output ends with it.
        drop(given);
        sent.map_err(gone)?;
        match self.answer().await? {
            Ok(Event::Started(started)) => program.pid = started.pid,
            Ok(_) => return Err(self.broken("the first event of a process was not its start")),
            Err(refused) => {
                self.phase.send_replace(Phase::Ended);
                return Err(refused.into());
            }
        }
        Ok(program)
    }

    /// Makes the program's pipes.
    fn pipes(&self, request: &v1::StartRequest) -> io::Result<Pipes> {
        let mut given = Vec::new();
        let mut input = None;
        if request.stdin_open {
            let (reader, writer) = self.pipe()?;
            input = Some(pipe::Sender::from_owned_fd(writer)?);
            given.push(reader);
        }
        let mut output = |stream| {
            let (reader, writer) = self.pipe()?;
            given.push(writer);
            Ok::<_, io::Error>(Output {
                stream,
                pipe: pipe::Receiver::from_owned_fd(reader)?,
                offset: 0,
                drained: 0,
                is_open: true,
            })
        };
        let streams = [output(v1::Stream::STREAM_STDOUT)?, output(v1::Stream::STREAM_STDERR)?];
        Ok(Pipes { given, streams, input })
    }

    fn pipe(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        if let Some((user, group)) = self.owner {
            // Both ends are one file.
            rustix::fs::fchown(&reader, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
        Ok((reader, writer))
    }

    /// Sends a message, and descriptors with its first byte.
    async fn send_with(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut rest = message;
        let mut descriptors = descriptors;
        while !rest.is_empty() {
            self.stream.writable().await?;
            let sent = self
                .stream
                .try_io(tokio::io::Interest::WRITABLE, || Ok(send(self.stream.as_fd(), rest, descriptors)?));
            match sent {
                Ok(sent) => {
                    rest = rest.get(sent..).unwrap_or_default();
                    descriptors = &[];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the program a signal, and all its descendants. `None` if it is not this guest's only program, or has ended.
    pub(super) async fn signal(&self, request: &v1::SignalRequest) -> Option<Result<()>> {
        let runs = request.id == ID && *self.phase.borrow() == Phase::Running;
        let message = direct_message(&request.encode_to_vec());
        match runs {
            true => Some(self.send_with(&message, &[]).await.map_err(gone)),
            false => None,
        }
    }

    /// Returns the program's standard input, if this is its id.
    pub(super) fn take_input(&self, id: u64) -> Option<pipe::Sender> {
        if id == ID { self.input.lock().take() } else { None }
    }

    /// Copies `source` to a program's standard input, until one of them ends. Returns the number of bytes.
    pub(super) async fn feed(
        &self,
        mut input: pipe::Sender,
        mut source: impl AsyncRead + Unpin,
    ) -> Result<u64> {
        let mut buffer = vec![0; READ_BYTES];
        let mut fed = 0;
        loop {
            let length = match source.read(&mut buffer).await {
                Ok(length) => length,
                Err(error) => {
                    // It stays open, or what is missing would look like its end.
                    *self.input.lock() = Some(input);
                    return Err(GuestError::Source(error));
                }
            };
            let piece = buffer.get(..length).unwrap_or_default();
            // A program that accepts no more is no error.
            if piece.is_empty() || input.write_all(piece).await.is_err() {
                return Ok(fed);
            }
            fed += length as u64;
        }
    }
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> std::result::Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

fn gone(error: io::Error) -> GuestError {
    GuestError::Gone(Box::new(ConnectError::unavailable_from_transport("the guest is gone", error)))
}

/// The pipes of a program.
struct Pipes {
    /// The ends that it gets: of its standard input if there is one, its output and its errors.
    given: Vec<OwnedFd>,
    streams: [Output; 2],
    input: Option<pipe::Sender>,
}

/// One of the program's output streams.
struct Output {
    stream: v1::Stream,
    pipe: pipe::Receiver,
    offset: u64,
    /// Bytes that were read after the program has ended.
    drained: u64,
    is_open: bool,
}

impl Output {
    /// Waits for the next bytes; empty at the end, and never after it. Cancel-safe.
    async fn next(&mut self) -> Bytes {
        if !self.is_open {
            std::future::pending::<()>().await;
        }
        loop {
            if self.pipe.readable().await.is_err() {
                return Bytes::new();
            }
            if let Some(bytes) = self.read() {
                return bytes;
            }
        }
    }

    /// Returns what is there; empty at the end, `None` if there is nothing now.
    fn read(&mut self) -> Option<Bytes> {
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        match self.pipe.try_read_buf(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(_) | Err(_) => Some(shrunk(buffer)),
        }
    }

    /// Returns what is there; empty if there is nothing. Asks the kernel in any case: what has been written since the last wait is there,
    /// though nothing has told so yet.
    fn read_rest(&mut self) -> Bytes {
        let mut buffer = BytesMut::zeroed(READ_BYTES);
        loop {
            match rustix::io::read(&self.pipe, buffer.as_mut()) {
                Err(Errno::INTR) => {}
                length => {
                    buffer.truncate(length.unwrap_or(0));
                    return shrunk(buffer);
                }
            }
        }
    }

    /// Returns the event of these bytes. None are the end of the stream.
    fn event(&mut self, data: Bytes) -> Option<ProcessEvent> {
        self.is_open = !data.is_empty();
        let offset = self.offset;
        self.offset += data.len() as u64;
        self.is_open.then_some(ProcessEvent::Output { stream: self.stream, offset, data })
    }
}

/// A small piece does not keep a large buffer.
fn shrunk(buffer: BytesMut) -> Bytes {
    if buffer.len() < READ_BYTES / 4 { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }
}

/// The running program.
pub(super) struct Program {
    direct: Arc<Direct>,
    pub(super) pid: u32,
    /// Its output and its errors.
    streams: [Output; 2],
    is_turn_of_errors: bool,
    exited: Option<v1::Exited>,
}

impl Program {
    pub(super) const ID: u64 = ID;

    /// Returns the next event; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        loop {
            // A stream that always has something would let nothing else of this task run, such as its time limit.
            tokio::task::coop::consume_budget().await;
            if let Some(event) = self.drain() {
                return Ok(Some(event));
            }
            if let Some(mut exited) = self.exited.take() {
                let [out, error] = &self.streams;
                (exited.stdout_bytes, exited.stderr_bytes) = (out.offset, error.offset);
                self.direct.phase.send_replace(Phase::Ended);
                return Ok(Some(ProcessEvent::Exited(exited)));
            }
            if *self.direct.phase.borrow() != Phase::Running {
                return Ok(None);
            }
            // Of two that have something the output comes first, as most programs would have it, and then they take turns.
            let (first, second) = match &mut self.streams {
                [out, error] if self.is_turn_of_errors => (error, out),
                [out, error] => (out, error),
            };
            let event = tokio::select! {
                biased;
                answer = self.direct.answer() => match answer? {
                    Ok(Event::Exited(exited)) => {
                        self.exited = Some(*exited);
                        None
                    }
                    _ => return Err(self.direct.broken("a program has two starts")),
                },
                data = first.next() => first.event(data),
                data = second.next() => second.event(data),
            };
            if let Some(ProcessEvent::Output { stream, .. }) = &event {
                self.is_turn_of_errors = *stream == v1::Stream::STREAM_STDOUT;
                return Ok(event);
            }
        }
    }

    /// Returns what was written before the end, once the program has ended.
    fn drain(&mut self) -> Option<ProcessEvent> {
        self.exited.as_ref()?;
        let open = self.streams.iter_mut().filter(|output| output.is_open && output.drained < DRAIN_BYTES);
        open.into_iter().find_map(|output| {
            let data = output.read_rest();
            output.drained += data.len() as u64;
            output.event(data)
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.direct.input.lock().take();
        self.direct.phase.send_if_modified(|phase| {
            let still_runs = *phase == Phase::Running;
            if still_runs {
                *phase = Phase::Abandoned;
            }
            still_runs
        });
    }
}

/// Receives a message of the guest. Cancel-safe: what has arrived is in `received`.
async fn answer(
    stream: &UnixStream,
    received: &mut Vec<u8>,
) -> Result<std::result::Result<Event, ConnectError>> {
    loop {
        let wanted = match received.first_chunk::<LENGTH_BYTES>() {
            Some(length) => LENGTH_BYTES + u32::from_be_bytes(*length) as usize,
            None => LENGTH_BYTES,
        };
        if wanted > LENGTH_BYTES + MAX_ANSWER_BYTES {
            return Err(GuestError::Protocol { what: "a message is too long" });
        }
        let missing = wanted.saturating_sub(received.len());
        if missing == 0 && wanted > LENGTH_BYTES {
            let message = std::mem::take(received);
            let parsed = parse_direct_answer(message.get(LENGTH_BYTES..).unwrap_or_default());
            return match parsed {
                Some(Ok(event)) => match event.event {
                    Some(event) => Ok(Ok(event)),
                    None => Err(GuestError::Protocol { what: "an event has no content" }),
                },
                Some(Err(refused)) => Ok(Err(refused)),
                None => Err(GuestError::Protocol { what: "a message cannot be read" }),
            };
        }
        if missing == 0 {
            return Err(GuestError::Protocol { what: "a message is empty" });
        }
        stream.readable().await.map_err(gone)?;
        let begin = received.len();
        received.resize(begin + missing, 0);
        let read = stream.try_read(received.get_mut(begin..).unwrap_or_default());
        received.truncate(begin + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return Err(gone(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(gone(error)),
        }
    }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
