//! One process that the guest started, and the table of all of them.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use belljar_linux::Reaped;
use belljar_proto::v1;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::output::OutputLog;

/// Ended processes whose output is kept for late readers.
const ENDED_KEPT: usize = 64;

/// What they may hold of output in all, in bytes: it is the sandbox's memory. The last one is kept whole in any case.
const ENDED_BYTES: u64 = 32 << 20;

/// The streams of a process, in the order in which they are shown.
pub(crate) const STREAMS: [v1::Stream; 3] =
    [v1::Stream::STREAM_STDOUT, v1::Stream::STREAM_STDERR, v1::Stream::STREAM_TERMINAL];

/// A process.
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) started: Instant,
    pub(crate) kill_rest: bool,
    /// The terminal's other side, where it runs on one.
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) stdin: tokio::sync::Mutex<Stdin>,
    /// Set where it is no process of its own but a command that a session's shell runs; `pid` is the shell's then.
    pub(crate) command: Option<Command>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

/// A command of a session.
pub(crate) struct Command {
    /// What the shell had started before.
    pub(crate) spared: HashSet<(i32, u64)>,
}

/// Where its input goes.
pub(crate) enum Stdin {
    /// Nowhere (any more).
    Closed,
    /// To a pipe.
    Pipe(tokio::net::unix::pipe::Sender),
    /// To its terminal.
    Terminal(tokio::io::unix::AsyncFd<OwnedFd>),
}

/// What changes while it runs.
pub(crate) struct State {
    pub(crate) logs: [OutputLog; 3],
    /// Set when it has been reaped; readers are told once its streams are drained.
    pub(crate) ended: Option<v1::Exited>,
    /// The whole end: ended, drained, and nothing more to come.
    pub(crate) finished: bool,
    pub(crate) cause: v1::Cause,
    pub(crate) left_behind: u32,
    next_reader: u64,
}

/// What a process needs to be put on the table.
pub(crate) struct NewProcess {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) started: Instant,
    pub(crate) kill_rest: bool,
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) stdin: Stdin,
    pub(crate) keep_bytes: u64,
    pub(crate) command: Option<Command>,
}

impl Process {
    fn new(id: u64, new: NewProcess) -> Self {
        let on_terminal = new.terminal.is_some();
        let mut logs = STREAMS.map(|_| OutputLog::new(new.keep_bytes));
        for (stream, log) in STREAMS.iter().zip(&mut logs) {
            if (*stream == v1::Stream::STREAM_TERMINAL) != on_terminal {
                log.close();
            }
        }
        Self {
            id,
            pid: new.pid,
            pidfd: new.pidfd,
            argv: new.argv,
            started: new.started,
            kill_rest: new.kill_rest,
            terminal: new.terminal,
            stdin: tokio::sync::Mutex::new(new.stdin),
            command: new.command,
            state: Mutex::new(State {
                logs,
                ended: None,
                finished: false,
                cause: v1::Cause::CAUSE_UNSPECIFIED,
                left_behind: 0,
                next_reader: 0,
            }),
            changed: watch::Sender::new(0),
        }
    }

    /// The state, for a look or a change that waits for nothing.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // The guest has one thread; a poisoned lock cannot hide a half-made change that matters here.
        self.state.lock()
    }

    /// Changes the state and wakes everybody who waits for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|version| *version = version.wrapping_add(1));
        result
    }

    /// Sees every change made after this call.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Takes note of its end, once.
    pub(crate) fn reaped(&self, reaped: &Reaped) {
        let wall_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.change(|state| {
            state.ended.get_or_insert(v1::Exited {
                code: reaped.code.unwrap_or(0),
                signal: reaped.signal.unwrap_or(0),
                user_us: reaped.user_us,
                system_us: reaped.system_us,
                max_rss: reaped.max_rss,
                wall_us,
                ..v1::Exited::default()
            });
        });
    }

    /// Takes note of a command's end, when all that it wrote is in the logs.
    pub(crate) fn command_ended(&self, code: i32, signal: i32, session_state: v1::SessionState) {
        let wall_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.change(|state| {
            state.logs.iter_mut().for_each(OutputLog::close);
            state.ended.get_or_insert(v1::Exited {
                code,
                signal,
                wall_us,
                session_state: session_state.into(),
                ..v1::Exited::default()
            });
            state.finished = true;
        });
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&self) -> bool {
        self.state().ended.is_none()
    }

    /// How it ended, with what is known only at the very end.
    pub(crate) fn exited(&self) -> Option<v1::Exited> {
        let state = self.state();
        if !state.finished {
            return None;
        }
        let mut exited = state.ended.clone()?;
        exited.cause = state.cause.into();
        exited.left_behind = state.left_behind;
        exited.stdout_bytes = state.logs[0].total();
        exited.stderr_bytes = state.logs[1].total();
        exited.terminal_bytes = state.logs[2].total();
        Some(exited)
    }

    /// Says why it is being ended; the first reason counts.
    pub(crate) fn set_cause(&self, cause: v1::Cause) {
        let mut state = self.state();
        if state.cause == v1::Cause::CAUSE_UNSPECIFIED && state.ended.is_none() {
            state.cause = cause;
        }
    }

    /// Sends a signal to the process itself.
    pub(crate) fn signal(&self, signal: i32) -> Result<(), rustix::io::Errno> {
        if self.is_running() {
            belljar_linux::pidfd_kill(self.pidfd.as_fd(), signal)
        } else {
            Err(rustix::io::Errno::SRCH)
        }
    }
}

impl State {
    pub(crate) fn new_reader(&mut self, offsets: [u64; 3]) -> u64 {
        self.next_reader += 1;
        for (log, offset) in self.logs.iter_mut().zip(offsets) {
            log.reader_at(self.next_reader, offset);
        }
        self.next_reader
    }

    pub(crate) fn reader_gone(&mut self, reader: u64) {
        for log in &mut self.logs {
            log.reader_gone(reader);
        }
    }

    fn held_bytes(&self) -> u64 {
        self.logs.iter().map(OutputLog::held_bytes).sum()
    }
}

/// Why there is no process with a number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoProcess {
    /// The number was never given.
    Never,
    /// It has ended, and later ones have taken its place.
    Dropped,
}

/// All processes that the guest has started and not forgotten yet.
#[derive(Default)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
    pub(crate) sessions: crate::session::Sessions,
    pub(crate) contexts: crate::interpreter::Contexts,
}

#[derive(Default)]
struct Inner {
    last_id: u64,
    by_id: HashMap<u64, Arc<Process>>,
    /// By pid, so without commands of sessions.
    running: HashMap<i32, Arc<Process>>,
    ended: std::collections::VecDeque<u64>,
}

impl Table {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn insert(&self, new: NewProcess) -> Arc<Process> {
        let mut inner = self.inner();
        inner.last_id += 1;
        let process = Arc::new(Process::new(inner.last_id, new));
        inner.by_id.insert(process.id, Arc::clone(&process));
        if process.command.is_none() {
            inner.running.insert(process.pid, Arc::clone(&process));
        }
        process
    }

    /// Takes note of the end of a command of a session.
    pub(crate) fn command_ended(&self, id: u64) {
        self.inner().keep_ended(id);
    }

    pub(crate) fn get(&self, id: u64) -> Result<Arc<Process>, NoProcess> {
        let inner = self.inner();
        match inner.by_id.get(&id) {
            Some(process) => Ok(Arc::clone(process)),
            None if (1..=inner.last_id).contains(&id) => Err(NoProcess::Dropped),
            None => Err(NoProcess::Never),
        }
    }

    /// Takes note of a child's end. Children that nobody asked for are orphans that became ours.
    pub(crate) fn reaped(&self, reaped: &Reaped) {
        let mut inner = self.inner();
        let Some(process) = inner.running.remove(&reaped.pid) else { return };
        inner.keep_ended(process.id);
        drop(inner);
        process.reaped(reaped);
    }

    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        self.inner().running.values().cloned().collect()
    }

    /// In the order in which they were started.
    pub(crate) fn all(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.inner().by_id.values().cloned().collect();
        all.sort_by_key(|process| process.id);
        all
    }
}

impl Inner {
    /// Keeps what has ended for late readers, and forgets the oldest that are too many or hold too much.
    fn keep_ended(&mut self, id: u64) {
        let mut room = ENDED_BYTES;
        let held = self.ended.iter().rev().take(ENDED_KEPT - 1);
        let fitting = held.take_while(|id| {
            let bytes = self.by_id.get(id).map_or(0, |process| process.state().held_bytes());
            let fits = bytes <= room;
            room = room.saturating_sub(bytes);
            fits
        });
        let kept = fitting.count();
        for oldest in self.ended.drain(..self.ended.len() - kept) {
            self.by_id.remove(&oldest);
        }
        self.ended.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn insert(table: &Table, pid: i32) -> Arc<Process> {
        let pidfd =
            rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
        table.insert(NewProcess {
            pid,
            pidfd: pidfd.unwrap(),
            argv: Vec::new(),
            started: Instant::now(),
            kill_rest: false,
            terminal: None,
            stdin: Stdin::Closed,
            keep_bytes: 0,
            command: None,
        })
    }

    fn end(table: &Table, pid: i32) {
        let reaped = Reaped { pid, code: Some(0), signal: None, user_us: 0, system_us: 0, max_rss: 0 };
        table.reaped(&reaped);
    }

    #[test]
    fn the_last_that_ended_are_kept_and_others_are_told_apart() {
        let table = Table::default();
        let running = insert(&table, 1);
        for pid in 2..=100 {
            insert(&table, pid);
            end(&table, pid);
        }
        assert!(table.get(running.id).is_ok(), "what runs is never forgotten");
        assert_eq!(table.get(2).err(), Some(NoProcess::Dropped));
        assert!(table.get(100).is_ok() && table.get(37).is_ok());
        assert_eq!(table.get(36).err(), Some(NoProcess::Dropped));
        assert_eq!(table.get(101).err(), Some(NoProcess::Never));
        assert_eq!(table.get(0).err(), Some(NoProcess::Never));
        assert_eq!(table.all().len(), 65);
    }

    #[test]
    fn ended_processes_hold_bounded_memory() {
        let table = Table::default();
        for pid in 1..=40 {
            let process = insert(&table, pid);
            process.change(|state| {
                for _ in 0..8 {
                    state.logs[0].append(Bytes::from(vec![0; 1 << 20]));
                }
            });
            end(&table, pid);
        }
        let held: u64 = table.all().iter().map(|process| process.state().held_bytes()).sum();
        assert!((16 << 20..=ENDED_BYTES + (8 << 20)).contains(&held), "{held}");
        assert!(table.get(40).is_ok() && table.get(39).is_ok());
        assert_eq!(table.get(30).err(), Some(NoProcess::Dropped));
    }
}
