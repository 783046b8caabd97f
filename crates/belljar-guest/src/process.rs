//! Processes that the guest started, and the process table.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use belljar_linux::Reaped;
use belljar_proto::v1;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::output::OutputLog;

/// Maximum number of ended processes whose output is kept for late readers.
const MAX_ENDED: usize = 64;

/// Maximum total output of ended processes that is kept, in bytes: it is the sandbox's memory. The last one is always
/// kept in full.
const MAX_ENDED_BYTES: u64 = 32 << 20;

/// The streams of a process, in display order.
pub(crate) const STREAMS: [v1::Stream; 3] =
    [v1::Stream::STREAM_STDOUT, v1::Stream::STREAM_STDERR, v1::Stream::STREAM_TERMINAL];

/// A process.
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) pid: i32,
    /// Its pidfd, if the kernel has any.
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) started: Instant,
    pub(crate) kill_rest: bool,
    /// The master side of the terminal, if it runs on one.
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) stdin: tokio::sync::Mutex<Stdin>,
    /// Set for a command run by a session's shell, which is not a process of its own; `pid` is then that of the shell.
    pub(crate) command: Option<Command>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

/// A command of a session.
pub(crate) struct Command {
    /// Processes that the shell had started before, as pid and start time.
    pub(crate) spared: HashSet<(i32, u64)>,
}

/// Destination of the standard input.
pub(crate) enum Stdin {
    /// None, or closed.
    Closed,
    /// A pipe.
    Pipe(tokio::net::unix::pipe::Sender),
    /// The terminal.
    Terminal(tokio::io::unix::AsyncFd<OwnedFd>),
}

/// Mutable state of a process.
pub(crate) struct State {
    pub(crate) logs: [OutputLog; 3],
    /// Set when the process was reaped; readers see it once its streams are drained.
    pub(crate) ended: Option<v1::Exited>,
    /// True once the process has ended and its streams are drained.
    pub(crate) finished: bool,
    pub(crate) cause: v1::Cause,
    pub(crate) left_behind: u32,
    /// Set while its tree is being stopped: its end is not reported before.
    pub(crate) stopping: bool,
    next_reader: u64,
}

/// Parameters of a new entry in the process table.
pub(crate) struct NewProcess {
    pub(crate) pid: i32,
    pub(crate) pidfd: Option<OwnedFd>,
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
                stopping: false,
                next_reader: 0,
            }),
            changed: watch::Sender::new(0),
        }
    }

    /// Locks the state. The caller must not block while holding it.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // The guest has one thread; a poisoned lock cannot hide a partial change that matters here.
        self.state.lock()
    }

    /// Changes the state and notifies all watchers.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|version| *version = version.wrapping_add(1));
        result
    }

    /// Returns a receiver that sees every change made after this call.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Records the exit of the process, once.
    pub(crate) fn set_reaped(&self, reaped: &Reaped) {
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

    /// Records the exit of a command, once all its output is in the logs.
    pub(crate) fn set_command_ended(&self, code: i32, signal: i32, session_state: v1::SessionState) {
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

    /// Reports whether the process still runs.
    pub(crate) fn is_running(&self) -> bool {
        self.state().ended.is_none()
    }

    /// Returns the exit status with the final counts, once the process is finished.
    pub(crate) fn exit_status(&self) -> Option<v1::Exited> {
        let state = self.state();
        if !state.finished {
            return None;
        }
        let mut exit_status = state.ended.clone()?;
        exit_status.cause = state.cause.into();
        exit_status.left_behind = state.left_behind;
        exit_status.stdout_bytes = state.logs[0].total();
        exit_status.stderr_bytes = state.logs[1].total();
        exit_status.terminal_bytes = state.logs[2].total();
        Some(exit_status)
    }

    /// Sets the cause of the termination; the first one wins.
    pub(crate) fn set_cause(&self, cause: v1::Cause) {
        let mut state = self.state();
        if state.cause == v1::Cause::CAUSE_UNSPECIFIED && state.ended.is_none() {
            state.cause = cause;
        }
    }

    /// Sends a signal to the process itself.
    pub(crate) fn signal(&self, signal: i32) -> Result<(), rustix::io::Errno> {
        match &self.pidfd {
            _ if !self.is_running() => Err(rustix::io::Errno::SRCH),
            Some(pidfd) => belljar_linux::pidfd_kill(pidfd.as_fd(), signal),
            // Not reaped yet, which only this thread does: the pid is still its own.
            None => belljar_linux::kill(self.pid, signal),
        }
    }
}

impl State {
    pub(crate) fn add_reader(&mut self, offsets: [u64; 3]) -> u64 {
        self.next_reader += 1;
        for (log, offset) in self.logs.iter_mut().zip(offsets) {
            log.set_reader(self.next_reader, offset);
        }
        self.next_reader
    }

    pub(crate) fn remove_reader(&mut self, reader: u64) {
        for log in &mut self.logs {
            log.remove_reader(reader);
        }
    }

    fn held_bytes(&self) -> u64 {
        self.logs.iter().map(OutputLog::held_bytes).sum()
    }
}

/// Reason why no process has an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoProcess {
    /// The id was never assigned.
    Never,
    /// The process has ended and was evicted by later ones.
    Evicted,
}

/// All processes that the guest has started and not yet evicted.
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
    /// By pid; without commands of sessions.
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

    /// Records the end of a session's command.
    pub(crate) fn end_command(&self, id: u64) {
        self.inner().keep_ended(id);
    }

    pub(crate) fn get(&self, id: u64) -> Result<Arc<Process>, NoProcess> {
        let inner = self.inner();
        match inner.by_id.get(&id) {
            Some(process) => Ok(Arc::clone(process)),
            None if (1..=inner.last_id).contains(&id) => Err(NoProcess::Evicted),
            None => Err(NoProcess::Never),
        }
    }

    /// Records the exit of a child. Unknown children are orphans that the guest inherited.
    pub(crate) fn record_reaped(&self, reaped: &Reaped) {
        let mut inner = self.inner();
        let Some(process) = inner.running.remove(&reaped.pid) else { return };
        inner.keep_ended(process.id);
        drop(inner);
        process.set_reaped(reaped);
    }

    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        self.inner().running.values().cloned().collect()
    }

    /// Returns all processes in the order of their start.
    pub(crate) fn all(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.inner().by_id.values().cloned().collect();
        all.sort_by_key(|process| process.id);
        all
    }
}

impl Inner {
    /// Keeps an ended process for late readers, and evicts the oldest beyond the limits.
    fn keep_ended(&mut self, id: u64) {
        let mut room = MAX_ENDED_BYTES;
        let held = self.ended.iter().rev().take(MAX_ENDED - 1);
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
            pidfd: pidfd.ok(),
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
        table.record_reaped(&reaped);
    }

    #[test]
    fn last_ended_processes_are_kept_and_older_ones_evicted() {
        let table = Table::default();
        let running = insert(&table, 1);
        for pid in 2..=100 {
            insert(&table, pid);
            end(&table, pid);
        }
        assert!(table.get(running.id).is_ok(), "running processes are never evicted");
        assert_eq!(table.get(2).err(), Some(NoProcess::Evicted));
        assert!(table.get(100).is_ok() && table.get(37).is_ok());
        assert_eq!(table.get(36).err(), Some(NoProcess::Evicted));
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
        assert!((16 << 20..=MAX_ENDED_BYTES + (8 << 20)).contains(&held), "{held}");
        assert!(table.get(40).is_ok() && table.get(39).is_ok());
        assert_eq!(table.get(30).err(), Some(NoProcess::Evicted));
    }
}
