//! The task of one session: it carries commands to the shell, and output and ends from it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::v1;
use bytes::{Buf as _, Bytes};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Order, Session};
use crate::guest::Guest;
use crate::output::OutputLog;
use crate::process::Process;
use crate::start::{DRAIN_BYTES, is_empty, read_some};
use crate::tree::{SIGINT, SIGKILL, SIGTERM};

/// Time between SIGINT and SIGTERM, after the time-out.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// Time for the shell to see that what it waited for has been killed.
const SETTLE: Duration = Duration::from_millis(500);

/// What is kept of each stream while no command runs: its last bytes.
const BETWEEN_BYTES: u64 = 256 * 1024;

/// The longest line on the control descriptor that is listened to, in bytes.
const CONTROL_BYTES: usize = 64;

/// The guest's ends of a shell's pipes.
pub(super) struct Ends {
    pub(super) stdin: pipe::Sender,
    pub(super) streams: [AsyncFd<OwnedFd>; 2],
    pub(super) control: AsyncFd<OwnedFd>,
}

/// What a session's task holds.
pub(super) struct Runner {
    guest: Arc<Guest>,
    session: Arc<Session>,
    stdin: pipe::Sender,
    streams: [AsyncFd<OwnedFd>; 2],
    control: AsyncFd<OwnedFd>,
    /// Whether the streams are still open at the shell's side.
    open: [bool; 2],
    /// Whether the control descriptor is still open there.
    hears: bool,
    /// What the shell has not taken yet.
    input: Bytes,
    /// The beginning of a line on the control descriptor.
    line: Vec<u8>,
    /// What is written while no command runs: the next one's output begins with it.
    between: [OutputLog; 2],
    current: Option<Current>,
    commands: u64,
    last_code: i32,
}

/// The command that runs.
struct Current {
    process: Arc<Process>,
    grace: Duration,
    stage: Stage,
    /// When the next stage is reached.
    until: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Interrupted,
    Terminated,
    Killed,
}

/// What has happened.
enum Event {
    Output(usize, Option<Bytes>),
    Control(Option<Bytes>),
    Order(Order),
    Time,
    Taken(usize),
    Shell,
    /// Something that is looked at again.
    Nothing,
}

impl Runner {
    pub(super) fn new(guest: Arc<Guest>, session: Arc<Session>, ends: Ends, is_bash: bool) -> Self {
        let input = if is_bash { "shopt -s expand_aliases\n" } else { "" };
        Self {
            guest,
            session,
            stdin: ends.stdin,
            streams: ends.streams,
            control: ends.control,
            open: [true; 2],
            hears: true,
            input: Bytes::from_static(input.as_bytes()),
            line: Vec::new(),
            between: [(); 2].map(|()| OutputLog::last(BETWEEN_BYTES)),
            current: None,
            commands: 0,
            last_code: 0,
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut shell_changed = self.session.shell.watch();
        let mut buffers = [(); 3].map(|()| Vec::with_capacity(0));
        while self.session.shell.is_running() {
            match self.next(&mut buffers, &mut orders, &mut shell_changed).await {
                Event::Output(index, Some(data)) => self.append(index, data),
                Event::Output(index, None) => self.open[index] = false,
                Event::Control(Some(data)) => self.take_control(&data),
                // Another program stands in the shell's place (`exec`), and its end is the end.
                Event::Control(None) => self.hears = false,
                Event::Order(order) => self.begin(order),
                Event::Time => self.time_out(),
                Event::Taken(length) => self.input.advance(length),
                Event::Shell | Event::Nothing => {}
            }
            // A command that writes without end must not keep the guest from its other work.
            tokio::task::yield_now().await;
        }
        self.end(orders);
    }

    /// Waits for one thing. What it takes it hands back, so that nothing is lost when others were waited for too.
    async fn next(
        &self,
        buffers: &mut [Vec<u8>; 3],
        orders: &mut mpsc::Receiver<Order>,
        shell_changed: &mut tokio::sync::watch::Receiver<u64>,
    ) -> Event {
        let [first, second, third] = buffers;
        let changed = self.current.as_ref().map(|current| current.process.watch());
        let waits = [0, 1].map(|index| self.must_wait(index));
        let until = self.current.as_ref().and_then(|current| current.until);
        tokio::select! {
            data = read(&self.streams[0], first), if self.open[0] && !waits[0] => Event::Output(0, data),
            data = read(&self.streams[1], second), if self.open[1] && !waits[1] => Event::Output(1, data),
            data = read(&self.control, third), if self.hears => Event::Control(data),
            Some(order) = orders.recv(), if self.current.is_none() => Event::Order(order),
            () = reader_moves(changed), if waits.contains(&true) => Event::Nothing,
            () = sleep_until(until), if until.is_some() => Event::Time,
            taken = write(&self.stdin, &self.input), if !self.input.is_empty() => taken,
            _ = shell_changed.changed() => Event::Shell,
        }
    }

    fn must_wait(&self, index: usize) -> bool {
        self.current.as_ref().is_some_and(|current| current.process.state().logs[index].must_wait())
    }

    fn append(&mut self, index: usize, data: Bytes) {
        match &self.current {
            Some(current) => current.process.change(|state| state.logs[index].append(data)),
            None => self.between[index].append(data),
        }
    }

    fn begin(&mut self, order: Order) {
        self.commands += 1;
        let text = wrapped(&order.text, self.commands, self.last_code);
        self.input = [self.input.as_ref(), &text].concat().into();
        order.process.change(|state| {
            for (log, between) in state.logs.iter_mut().zip(&mut self.between) {
                // Readers that came since the start are registered with the log that they know.
                log.begin_with(std::mem::replace(between, OutputLog::last(BETWEEN_BYTES)));
                log.set_keep(order.keep_bytes);
            }
        });
        let until = order.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.current =
            Some(Current { process: order.process, grace: order.grace, stage: Stage::Running, until });
    }

    /// Goes on to the next stage of ending a command.
    fn time_out(&mut self) {
        let Some(current) = &mut self.current else { return };
        current.process.set_cause(v1::Cause::CAUSE_TIMED_OUT);
        let (stage, signal, wait) = match current.stage {
            Stage::Running => (Stage::Interrupted, SIGINT, INTERRUPT_GRACE),
            Stage::Interrupted => (Stage::Terminated, SIGTERM, current.grace),
            Stage::Terminated => (Stage::Killed, SIGKILL, SETTLE),
            // It is the shell itself that does not come to an end.
            Stage::Killed => return self.end_shell(),
        };
        current.stage = stage;
        current.until = Instant::now().checked_add(wait);
        if let Some(command) = &current.process.command {
            self.guest.proc.signal_below(current.process.pid, &command.spared, signal);
        }
    }

    fn end_shell(&mut self) {
        if let Some(current) = &mut self.current {
            current.until = None;
        }
        let _ = self.session.shell.signal(SIGKILL);
    }

    /// Takes what the shell, or something that forges it, says on the control descriptor.
    fn take_control(&mut self, data: &[u8]) {
        for byte in data {
            if *byte != b'\n' {
                // A line that is too long is none.
                if self.line.len() <= CONTROL_BYTES {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some((number, code)) = ended(&line)
                && number == self.commands
            {
                self.command_ended(code);
            }
        }
    }

    fn command_ended(&mut self, code: i32) {
        if self.current.is_none() {
            return;
        }
        // What the command has written is in the pipes by now.
        for index in [0, 1] {
            let there = rustix::io::ioctl_fionread(&self.streams[index]).unwrap_or(0);
            self.drain(index, usize::try_from(there).unwrap_or(0));
        }
        self.last_code = code;
        self.finish(code, 0, v1::SessionState::SESSION_STATE_PRESERVED);
    }

    fn drain(&mut self, index: usize, most: usize) {
        let mut left = most;
        let mut buffer = Vec::new();
        while left > 0 && self.open[index] {
            match read_some(self.streams[index].get_ref(), &mut buffer) {
                Ok(Some(data)) => {
                    left = left.saturating_sub(data.len());
                    self.append(index, data);
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn finish(&mut self, code: i32, signal: i32, state: v1::SessionState) {
        let Some(current) = self.current.take() else { return };
        // First the table, so that whoever sees the end finds the session idle.
        self.guest.table.command_ended(current.process.id);
        self.session.command_ended();
        current.process.command_ended(code, signal, state);
    }

    /// The shell has ended.
    fn end(mut self, mut orders: mpsc::Receiver<Order>) {
        self.guest.table.sessions.forget(self.session.id);
        orders.close();
        if let (None, Ok(order)) = (&self.current, orders.try_recv()) {
            self.begin(order);
        }
        for index in [0, 1] {
            self.drain(index, DRAIN_BYTES);
        }
        let (ended, cause) = {
            let state = self.session.shell.state();
            (state.ended.clone().unwrap_or_default(), state.cause)
        };
        if let Some(current) = &self.current
            && cause != v1::Cause::CAUSE_UNSPECIFIED
        {
            current.process.set_cause(cause);
        }
        self.finish(ended.code, ended.signal, v1::SessionState::SESSION_STATE_LOST);
    }
}

/// What the shell is given for a command: the last exit code restored, the command, and the word of its end. Each is one
/// plain command: after an unmatched quote in an `eval`, bash does not know reserved words for a while.
fn wrapped(command: &[u8], number: u64, last_code: i32) -> Bytes {
    let mut text = Vec::with_capacity(command.len() + 160);
    if last_code != 0 {
        // A subshell may exit as it likes; under `set -e` it may not, and there the last code was 0 anyhow.
        let restored = format!("command eval 'case $- in *e*) :;; *) (exit {last_code});; esac'\n");
        text.extend_from_slice(restored.as_bytes());
    }
    text.extend_from_slice(b"command eval '");
    for byte in command {
        match byte {
            b'\'' => text.extend_from_slice(b"'\\''"),
            byte => text.push(*byte),
        }
    }
    let control = belljar_linux::CONTROL_FD;
    let end = format!("' </dev/null {control}>&-\ncommand printf '%s %s\\n' {number} \"$?\" >&{control}\n");
    text.extend_from_slice(end.as_bytes());
    text.into()
}

/// The number of a command and its exit code.
fn ended(line: &[u8]) -> Option<(u64, i32)> {
    let (number, code) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let code = code.parse().ok().filter(|code| (0..=255).contains(code))?;
    Some((number.parse().ok()?, code))
}

/// The next bytes of a pipe; `None` at its end. Nothing is read before it is handed back.
async fn read(pipe: &AsyncFd<OwnedFd>, buffer: &mut Vec<u8>) -> Option<Bytes> {
    loop {
        match read_some(pipe.get_ref(), buffer) {
            Ok(data) => return data,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut ready = pipe.readable().await.ok()?;
                if is_empty(pipe.get_ref()) {
                    ready.clear_ready();
                }
            }
            Err(_) => return None,
        }
    }
}

async fn write(stdin: &pipe::Sender, input: &[u8]) -> Event {
    match stdin.writable().await.and_then(|()| stdin.try_write(input)) {
        Ok(length) => Event::Taken(length),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Event::Nothing,
        // A shell that reads no more is at its end.
        Err(_) => Event::Taken(input.len()),
    }
}

async fn reader_moves(changed: Option<tokio::sync::watch::Receiver<u64>>) {
    match changed {
        Some(mut changed) => drop(changed.changed().await),
        None => std::future::pending().await,
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_quoted_whatever_it_holds() {
        let text = wrapped(b"echo 'a\\'\n\xff", 7, 3);
        let expected = b"command eval 'case $- in *e*) :;; *) (exit 3);; esac'\n\
            command eval 'echo '\\''a\\'\\''\n\xff' </dev/null 9>&-\n\
            command printf '%s %s\\n' 7 \"$?\" >&9\n";
        assert_eq!(text, expected.as_slice());
        assert!(wrapped(b"x", 1, 0).starts_with(b"command eval 'x'"));
    }

    #[test]
    fn only_the_word_of_an_end_is_taken() {
        assert_eq!(ended(b"7 0"), Some((7, 0)));
        assert_eq!(ended(b"7 255"), Some((7, 255)));
        for forged in [b"".as_slice(), b"7", b"7 256", b"7 -1", b"x 0", b"7 0 0", b"\xff 0"] {
            assert_eq!(ended(forged), None, "{}", forged.escape_ascii());
        }
    }
}
