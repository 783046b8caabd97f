//! Task of one session: sends commands to the shell and receives output and exit codes from it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belljar_proto::v1;
use bytes::{Buf as _, Bytes};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{PendingCommand, Session};
use crate::clock;
use crate::guest::Guest;
use crate::output::OutputLog;
use crate::process::Process;
use crate::start::{DRAIN_BYTES, read, read_buffer, read_some};
use crate::tree::{SIGINT, SIGKILL, SIGTERM};

/// Time between SIGINT and SIGTERM after a timeout.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// Time for the shell to notice that its child was killed, also on a busy machine.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// Size of each stream's tail that is kept while no command runs, in bytes.
const MAX_IDLE_BYTES: u64 = 256 * 1024;

/// Maximum length of a line on the control descriptor, in bytes; longer ones are ignored.
const MAX_CONTROL_BYTES: usize = 64;

/// Signal that makes bash skip the rest of a command: it is the highest but one, which no program uses (signal(7): 34 to 64 are for any use).
pub(super) const ABORT: i32 = 63;

/// Input of a new bash. Its handler for [`ABORT`] runs between two commands. It has each further one skipped, and loops left
/// (`extdebug` in bash(1)), until the report of the end, the beginning of the next command, or what a context restores after its code.
pub(crate) const BASH_SETUP: &str = r#"shopt -s expand_aliases
command trap 'command shopt -s extdebug; command trap '\''[[ $BASH_COMMAND == @("command printf "*" 1>&9"|__belljar_kept_status=\$\?) ]] && { command trap - DEBUG; command shopt -u extdebug; } || { command break 9999; false; } 2>/dev/null'\'' DEBUG' 63
"#;

/// Exit code of a command that was aborted: 128 and SIGINT, as the shell has it for an interrupted program.
const ABORTED_CODE: i32 = 130;

/// The guest's ends of a shell's pipes.
pub(super) struct Ends {
    pub(super) stdin: pipe::Sender,
    pub(super) streams: [AsyncFd<OwnedFd>; 2],
    pub(super) control: AsyncFd<OwnedFd>,
}

/// State of a session's task.
pub(super) struct Runner {
    guest: Arc<Guest>,
    session: Arc<Session>,
    stdin: pipe::Sender,
    streams: [AsyncFd<OwnedFd>; 2],
    control: AsyncFd<OwnedFd>,
    /// True while the stream is open at the shell's side.
    open: [bool; 2],
    /// True while the control descriptor is open at the shell's side.
    control_open: bool,
    /// Input that the shell has not read yet.
    input: Bytes,
    /// Incomplete line on the control descriptor.
    line: Vec<u8>,
    /// Output while no command runs: the output of the next command begins with it.
    idle_output: [OutputLog; 2],
    current: Option<Current>,
    command_count: u64,
    last_code: i32,
}

/// The running command.
struct Current {
    process: Arc<Process>,
    grace: Duration,
    stage: Stage,
    /// Time of the next stage.
    next_stage_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Interrupted,
    Terminated,
    Killed,
}

/// Event in the session's task.
enum Event {
    Output(usize, Option<Bytes>),
    Control(Option<Bytes>),
    Command(PendingCommand),
    Timeout,
    Written(usize),
    Shell,
    /// Nothing; the state is checked again.
    Nothing,
}

impl Runner {
    pub(super) fn new(guest: Arc<Guest>, session: Arc<Session>, ends: Ends, is_bash: bool) -> Self {
        let input = if is_bash { BASH_SETUP } else { "" };
        Self {
            guest,
            session,
            stdin: ends.stdin,
            streams: ends.streams,
            control: ends.control,
            open: [true; 2],
            control_open: true,
            input: Bytes::from_static(input.as_bytes()),
            line: Vec::new(),
            idle_output: [(); 2].map(|()| OutputLog::keep_last(MAX_IDLE_BYTES)),
            current: None,
            command_count: 0,
            last_code: 0,
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<PendingCommand>) {
        let mut shell_changed = self.session.shell.watch();
        let mut buffers = [(); 3].map(|()| read_buffer());
        while self.session.shell.is_running() {
            let began = Instant::now();
            let next = self.next(&mut buffers, &mut commands, &mut shell_changed).await;
            if let Some(stage_at) = self.current.as_mut().and_then(|current| current.next_stage_at.as_mut()) {
                *stage_at += clock::frozen_since(began);
            }
            match next {
                Event::Output(index, Some(data)) => self.append(index, data),
                Event::Output(index, None) => self.open[index] = false,
                Event::Control(Some(data)) => self.handle_control(&data),
                // The shell was replaced by another program (`exec`), whose exit ends the session.
                Event::Control(None) => self.control_open = false,
                Event::Command(pending) => self.start_command(pending),
                Event::Timeout => self.check_stage(),
                Event::Written(length) => self.input.advance(length),
                Event::Shell | Event::Nothing => {}
            }
            // Lets other tasks of the guest run while a command writes without end.
            tokio::task::yield_now().await;
        }
        self.finish_session(commands);
    }

    /// Waits for one event. Data is consumed only together with the returned event, so nothing is lost when another
    /// event comes first.
    async fn next(
        &self,
        buffers: &mut [Vec<u8>; 3],
        commands: &mut mpsc::Receiver<PendingCommand>,
        shell_changed: &mut tokio::sync::watch::Receiver<u64>,
    ) -> Event {
        let [first, second, third] = buffers;
        let changed = self.current.as_ref().map(|current| current.process.watch());
        let waits = [0, 1].map(|index| self.must_wait(index));
        let until = self.current.as_ref().and_then(|current| current.next_stage_at);
        tokio::select! {
            data = read(&self.streams[0], first), if self.open[0] && !waits[0] => Event::Output(0, data),
            data = read(&self.streams[1], second), if self.open[1] && !waits[1] => Event::Output(1, data),
            data = read(&self.control, third), if self.control_open => Event::Control(data),
            Some(pending) = commands.recv(), if self.current.is_none() => Event::Command(pending),
            () = reader_progress(changed), if waits.contains(&true) => Event::Nothing,
            () = sleep_until(until), if until.is_some() => Event::Timeout,
            written = write(&self.stdin, &self.input), if !self.input.is_empty() => written,
            _ = shell_changed.changed() => Event::Shell,
        }
    }

    fn must_wait(&self, index: usize) -> bool {
        self.current.as_ref().is_some_and(|current| current.process.state().logs[index].must_wait())
    }

    fn append(&mut self, index: usize, data: Bytes) {
        match &self.current {
            Some(current) => current.process.change(|state| state.logs[index].append(data)),
            None => self.idle_output[index].append(data),
        }
    }

    fn start_command(&mut self, pending: PendingCommand) {
        self.command_count += 1;
        self.session.is_aborted.store(false, Ordering::Release);
        let text = wrap_command(&pending.text, self.command_count, self.last_code);
        self.input = [self.input.as_ref(), &text].concat().into();
        pending.process.change(|state| {
            for (log, idle_output) in state.logs.iter_mut().zip(&mut self.idle_output) {
                // Readers that attached since the start are registered with the existing log.
                log.resume_from(std::mem::replace(idle_output, OutputLog::keep_last(MAX_IDLE_BYTES)));
                log.set_keep(pending.keep_bytes);
            }
        });
        let next_stage_at = pending.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.current = Some(Current {
            process: pending.process,
            grace: pending.grace,
            stage: Stage::Running,
            next_stage_at,
        });
    }

    /// Advances to the next stage when it is due.
    fn check_stage(&mut self) {
        let due = self.current.as_ref().and_then(|current| current.next_stage_at);
        if due.is_some_and(|due| due <= Instant::now()) {
            self.advance_stage();
        }
    }

    /// Advances to the next stage of terminating a command.
    fn advance_stage(&mut self) {
        let Some(current) = &mut self.current else { return };
        current.process.set_cause(v1::Cause::CAUSE_TIMED_OUT);
        let (stage, signal, wait) = match current.stage {
            Stage::Running => (Stage::Interrupted, SIGINT, INTERRUPT_GRACE),
            Stage::Interrupted => (Stage::Terminated, SIGTERM, current.grace),
            Stage::Terminated => (Stage::Killed, SIGKILL, KILL_GRACE),
            // The shell itself does not finish the command.
            Stage::Killed => return self.kill_shell(),
        };
        current.stage = stage;
        current.next_stage_at = Instant::now().checked_add(wait);
        if stage == Stage::Interrupted {
            self.session.abort();
        }
        if let Some(command) = &current.process.command {
            self.guest.proc.signal_below(current.process.pid, &command.spared, signal);
        }
    }

    fn kill_shell(&mut self) {
        if let Some(current) = &mut self.current {
            current.next_stage_at = None;
        }
        let _ = self.session.shell.signal(SIGKILL);
    }

    /// Processes data on the control descriptor, from the shell or from a program that forges it.
    fn handle_control(&mut self, data: &[u8]) {
        for byte in data {
            if *byte != b'\n' {
                // Overlong lines are invalid.
                if self.line.len() <= MAX_CONTROL_BYTES {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some((number, code)) = parse_end(&line)
                && number == self.command_count
            {
                self.end_command(code);
            }
        }
    }

    fn end_command(&mut self, code: i32) {
        if self.current.is_none() {
            return;
        }
        // All output of the command is in the pipes by now.
        for index in [0, 1] {
            let available = rustix::io::ioctl_fionread(&self.streams[index]).unwrap_or(0);
            self.drain(index, usize::try_from(available).unwrap_or(0));
        }
        // The commands that were skipped have succeeded.
        let is_aborted = self.session.is_aborted.load(Ordering::Acquire);
        let code = if is_aborted && code == 0 { ABORTED_CODE } else { code };
        self.last_code = code;
        self.finish(code, 0, v1::SessionState::SESSION_STATE_PRESERVED);
    }

    fn drain(&mut self, index: usize, max_bytes: usize) {
        let mut left = max_bytes;
        let mut buffer = read_buffer();
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
        // Updates the table first, so that a reader who sees the end finds the session idle.
        self.guest.table.end_command(current.process.id);
        self.session.set_idle();
        current.process.set_command_ended(code, signal, state);
    }

    /// Ends the session after the shell has exited.
    fn finish_session(mut self, mut commands: mpsc::Receiver<PendingCommand>) {
        self.guest.table.sessions.forget(self.session.id);
        commands.close();
        if let (None, Ok(pending)) = (&self.current, commands.try_recv()) {
            self.start_command(pending);
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

/// Returns the shell input for a command: an empty report, which ends what [`ABORT`] has begun after the last command, restoring the last
/// exit code, the command, and the report of its end. Each is a single simple command: after an unmatched quote in an `eval`, bash
/// ignores reserved words for a while.
fn wrap_command(command: &[u8], number: u64, last_code: i32) -> Bytes {
    let control = belljar_linux::CONTROL_FD;
    let mut text = Vec::with_capacity(command.len() + 192);
    text.extend_from_slice(format!("command printf '' >&{control}\n").as_bytes());
    if last_code != 0 {
        // A subshell may exit with any code, but not under `set -e`, where the last code was 0 anyway.
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
    let end = format!("' </dev/null {control}>&-\ncommand printf '%s %s\\n' {number} \"$?\" >&{control}\n");
    text.extend_from_slice(end.as_bytes());
    text.into()
}

/// Parses the report of a command's end into its number and exit code.
fn parse_end(line: &[u8]) -> Option<(u64, i32)> {
    let (number, code) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let code = code.parse().ok().filter(|code| (0..=255).contains(code))?;
    Some((number.parse().ok()?, code))
}

async fn write(stdin: &pipe::Sender, input: &[u8]) -> Event {
    match stdin.writable().await.and_then(|()| stdin.try_write(input)) {
        Ok(length) => Event::Written(length),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Event::Nothing,
        // A shell that stopped reading is exiting.
        Err(_) => Event::Written(input.len()),
    }
}

async fn reader_progress(changed: Option<tokio::sync::watch::Receiver<u64>>) {
    match changed {
        Some(mut changed) => drop(changed.changed().await),
        None => std::future::pending().await,
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => clock::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_any_bytes_are_quoted() {
        let text = wrap_command(b"echo 'a\\'\n\xff", 7, 3);
        let expected = b"command printf '' >&9\ncommand eval 'case $- in *e*) :;; *) (exit 3);; esac'\n\
            command eval 'echo '\\''a\\'\\''\n\xff' </dev/null 9>&-\n\
            command printf '%s %s\\n' 7 \"$?\" >&9\n";
        assert_eq!(text, expected.as_slice());
        assert!(wrap_command(b"x", 1, 0).starts_with(b"command printf '' >&9\ncommand eval 'x'"));
        assert!(BASH_SETUP.contains(&format!("1>&{}\"", belljar_linux::CONTROL_FD)));
        assert!(BASH_SETUP.ends_with(&format!("DEBUG' {ABORT}\n")));
    }

    #[test]
    fn only_valid_end_reports_are_accepted() {
        assert_eq!(parse_end(b"7 0"), Some((7, 0)));
        assert_eq!(parse_end(b"7 255"), Some((7, 255)));
        for forged in [b"".as_slice(), b"7", b"7 256", b"7 -1", b"x 0", b"7 0 0", b"\xff 0"] {
            assert_eq!(parse_end(forged), None, "{}", forged.escape_ascii());
        }
    }
}
