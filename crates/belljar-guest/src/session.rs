//! The `Session` service: shells that keep their state from one command to the next.
//!
//! ```text
//! Open ──► idle ──Run──► busy ──the shell reports the end──► idle
//!            │            │──timeout: bash skips the rest; SIGINT, SIGTERM, SIGKILL to what it started──► idle, or
//!            │            └──the shell ends (exit, exec, a kill)──► ended, the command's state is LOST
//!            └──Close, or the shell ends──► ended
//! ```
//!
//! The shell reads commands from its standard input, so that its own parser decides where a command ends. The guest
//! wraps each into an `eval` with empty input, and has the shell report the exit code over a separate descriptor, so
//! that a command's output cannot be mistaken for its end. A command can still forge its own exit code, which harms
//! only itself.

pub(crate) mod run;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_proto::{
    ConnectError, ErrorCode, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream, v1,
};
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use tokio::sync::mpsc;

use crate::guest::Guest;
use crate::process::{Command as ProcessCommand, NewProcess, Process, Stdin};
use crate::service::{Service, event, events};
use crate::start::{Command, non_blocking, output_pipe};
use crate::tree::SIGKILL;

/// Maximum number of sessions.
const MAX_SESSIONS: usize = 32;

/// Maximum length of a command, in bytes.
const MAX_COMMAND_BYTES: usize = 256 * 1024;

/// Maximum length of a command in a process list, in bytes.
const MAX_SHOWN_BYTES: usize = 1024;

/// All sessions of a sandbox.
#[derive(Default)]
pub(crate) struct Sessions {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last_id: u64,
    open: HashMap<u64, Arc<Session>>,
}

/// One session.
pub(crate) struct Session {
    id: u64,
    name: Bytes,
    shell: Arc<Process>,
    commands: mpsc::Sender<PendingCommand>,
    activity: Mutex<Activity>,
    /// Whether it is bash, which can abort a command.
    is_bash: bool,
    /// Whether the running command was aborted.
    is_aborted: AtomicBool,
}

/// Current activity of a session.
struct Activity {
    /// Id of the running command.
    running: Option<u64>,
    command_count: u64,
    idle_since: Instant,
}

/// A command for a session's shell.
pub(crate) struct PendingCommand {
    process: Arc<Process>,
    text: Bytes,
    timeout: Option<Duration>,
    grace: Duration,
    keep_bytes: u64,
}

impl Sessions {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    fn get(&self, id: u64) -> Result<Arc<Session>, ConnectError> {
        let inner = self.inner();
        inner.open.get(&id).cloned().ok_or_else(|| {
            ConnectError::not_found(if (1..=inner.last_id).contains(&id) {
                format!("id: session {id} has ended; open a new one")
            } else {
                format!("id: session {id} does not exist")
            })
        })
    }

    fn forget(&self, id: u64) {
        self.inner().open.remove(&id);
    }
}

impl Session {
    fn state(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn shell(&self) -> &Arc<Process> {
        &self.shell
    }

    /// Has bash skip what is left of the running command. Another shell goes on.
    pub(crate) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        if self.is_bash {
            // It may have ended meanwhile.
            let _ = self.shell.signal(run::ABORT);
        }
    }

    fn set_idle(&self) {
        let mut state = self.state();
        state.running = None;
        state.idle_since = Instant::now();
    }
}

impl v1::Session for Service {
    async fn open(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SessionOpen>,
    ) -> ServiceResult<v1::SessionOpened> {
        let session = open(&self.guest, &request.to_owned_message(), "")?;
        let pid = u32::try_from(session.shell.pid).unwrap_or(0);
        Response::ok(v1::SessionOpened {
            id: session.id,
            pid,
            shell: session.name.clone(),
            ..Default::default()
        })
    }

    async fn run(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SessionRun>,
    ) -> ServiceResult<ServiceStream<v1::ProcessEvent>> {
        let process = start_command(&self.guest, &request.to_owned_message())?;
        let pid = u32::try_from(process.pid).unwrap_or(0);
        let started = event(v1::Started { id: process.id, pid, ..Default::default() });
        let first = futures::stream::iter([Ok(started)]);
        Ok(Response::from(Box::pin(first.chain(events(process, [0; 3]))) as ServiceStream<_>))
    }

    async fn list(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ListSessionsRequest>,
    ) -> ServiceResult<v1::ListSessionsResponse> {
        let mut sessions: Vec<_> =
            self.guest.table.sessions.inner().open.values().map(|session| info(session)).collect();
        sessions.sort_by_key(|session| session.id);
        Response::ok(v1::ListSessionsResponse { sessions, ..Default::default() })
    }

    async fn close(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, v1::SessionClose>,
    ) -> ServiceResult<v1::SessionClosed> {
        let session = self.guest.table.sessions.get(request.view().id)?;
        let shell = &session.shell;
        shell.set_cause(v1::Cause::CAUSE_STOPPED);
        crate::start::stop(&self.guest, shell, self.guest.config.grace()).await;
        let mut changed = shell.watch();
        while shell.exit_status().is_none() && changed.changed().await.is_ok() {}
        self.guest.proc.signal_tree(shell.pid, true, SIGKILL);
        self.guest.table.sessions.forget(session.id);
        Response::ok(v1::SessionClosed::default())
    }
}

fn info(session: &Session) -> v1::SessionInfo {
    let state = session.state();
    let idle = if state.running.is_some() { Duration::ZERO } else { state.idle_since.elapsed() };
    v1::SessionInfo {
        id: session.id,
        pid: u32::try_from(session.shell.pid).unwrap_or(0),
        shell: session.name.clone(),
        command: state.running.unwrap_or(0),
        commands: state.command_count,
        idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
        ..Default::default()
    }
}

/// Starts a shell as a user; as the sandbox's default one, if the name is empty.
pub(crate) fn open(
    guest: &Arc<Guest>,
    request: &v1::SessionOpen,
    user: &str,
) -> Result<Arc<Session>, ConnectError> {
    let sessions = &guest.table.sessions;
    if sessions.inner().open.len() >= MAX_SESSIONS {
        return Err(ConnectError::resource_exhausted(format!(
            "session limit of {MAX_SESSIONS} reached; close one"
        )));
    }
    let fail = |error: &dyn std::fmt::Display| {
        ConnectError::resource_exhausted(format!("cannot open the session's streams: {error}"))
    };
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fail(&errno));
    let (stdin_child, stdin) = pipe()?;
    let (control, control_child) = pipe()?;
    let (stdout, stdout_child) = output_pipe().map_err(|errno| fail(&errno))?;
    let (stderr, stderr_child) = output_pipe().map_err(|errno| fail(&errno))?;
    rustix::fs::fcntl_setfl(&stdin, OFlags::NONBLOCK).map_err(|errno| fail(&errno))?;
    let stdin = tokio::net::unix::pipe::Sender::from_owned_fd(stdin).map_err(|error| fail(&error))?;
    let reader = |fd| non_blocking(fd).map_err(|_| fail(&"the runtime accepts no more descriptors"));
    let ends = run::Ends { stdin, streams: [reader(stdout)?, reader(stderr)?], control: reader(control)? };

    let child = [stdin_child, stdout_child, stderr_child];
    let started = Instant::now();
    let start = |words: &[&[u8]]| {
        let start = v1::StartRequest {
            argv: words.iter().map(|word| Bytes::copy_from_slice(word)).collect(),
            cwd: request.cwd.clone(),
            env: request.env.clone(),
            user: user.to_owned(),
            ..Default::default()
        };
        let command = Command::from_request(guest, &start)?;
        let [stdin, stdout, stderr] = child.each_ref().map(OwnedFd::try_clone);
        let copy = |end: std::io::Result<OwnedFd>| end.map_err(|error| fail(&error));
        let streams = [copy(stdin)?, copy(stdout)?, copy(stderr)?];
        let control = copy(control_child.try_clone())?;
        crate::start::spawn(guest, &command, streams, false, Some(control)).map(|spawned| (spawned, command))
    };
    let bash: [&[u8]; 3] = [b"bash", b"--noprofile", b"--norc"];
    let is_bash =
        request.shell.is_empty() || request.shell.rsplit(|byte| *byte == b'/').next() == Some(b"bash");
    let (spawned, command) = if request.shell.is_empty() {
        match start(&bash) {
            Err(error) if error.code == ErrorCode::NotFound => start(&[b"/bin/sh"]),
            other => other,
        }
    } else if is_bash {
        start(&[&request.shell, bash[1], bash[2]])
    } else {
        start(&[&request.shell])
    }?;
    let is_bash = command.words.len() == bash.len();
    let name = Bytes::copy_from_slice(&command.words[0]);
    let shell = guest.table.insert(NewProcess {
        pid: spawned.pid,
        pidfd: spawned.pidfd,
        argv: command.words,
        started,
        kill_rest: false,
        terminal: None,
        stdin: Stdin::Closed,
        keep_bytes: 0,
        command: None,
    });
    // The output of the shell belongs to its commands.
    shell.change(|state| state.logs.iter_mut().for_each(crate::output::OutputLog::close));
    tokio::spawn(crate::start::finish(Arc::clone(guest), Arc::clone(&shell)));
    let (commands, receiver) = mpsc::channel(1);
    let state = Activity { running: None, command_count: 0, idle_since: started };
    let session = {
        let mut inner = sessions.inner();
        inner.last_id += 1;
        let session = Arc::new(Session {
            id: inner.last_id,
            name,
            shell,
            commands,
            activity: Mutex::new(state),
            is_bash,
            is_aborted: AtomicBool::new(false),
        });
        inner.open.insert(session.id, Arc::clone(&session));
        session
    };
    let runner = run::Runner::new(Arc::clone(guest), Arc::clone(&session), ends, is_bash);
    tokio::spawn(runner.run(receiver));
    Ok(session)
}

/// Sends a command to a session's shell.
pub(crate) fn start_command(guest: &Guest, request: &v1::SessionRun) -> Result<Arc<Process>, ConnectError> {
    let session = guest.table.sessions.get(request.id)?;
    let invalid = |why: String| ConnectError::invalid_argument(format!("command: {why}"));
    if request.command.len() > MAX_COMMAND_BYTES {
        let bytes = request.command.len();
        return Err(invalid(format!("too large: {bytes} bytes > limit {MAX_COMMAND_BYTES}")));
    }
    if request.command.contains(&0) {
        return Err(invalid("a NUL byte is not allowed".to_owned()));
    }
    let pidfd =
        session.shell.pidfd.as_ref().map(OwnedFd::try_clone).transpose().map_err(|error| {
            ConnectError::resource_exhausted(format!("cannot start the command: {error}"))
        })?;
    let mut state = session.state();
    if let Some(running) = state.running {
        return Err(ConnectError::failed_precondition(format!(
            "session {} is running command {running}; wait for it to end or signal it",
            session.id
        )));
    }
    let shown = request.command.slice(..request.command.len().min(MAX_SHOWN_BYTES));
    let process = guest.table.insert(NewProcess {
        pid: session.shell.pid,
        pidfd,
        argv: vec![session.name.to_vec(), b"-c".to_vec(), shown.to_vec()],
        started: Instant::now(),
        kill_rest: false,
        terminal: None,
        stdin: Stdin::Closed,
        keep_bytes: request.keep_bytes,
        command: Some(ProcessCommand { spared: guest.proc.below(session.shell.pid) }),
    });
    let pending = PendingCommand {
        process: Arc::clone(&process),
        text: request.command.clone(),
        timeout: (request.timeout_ms > 0 && !guest.config.is_without("timeout"))
            .then(|| Duration::from_millis(request.timeout_ms)),
        grace: crate::start::grace(guest, request.grace_ms),
        keep_bytes: request.keep_bytes,
    };
    if session.commands.try_send(pending).is_err() {
        process.set_command_ended(0, SIGKILL, v1::SessionState::SESSION_STATE_LOST);
        guest.table.end_command(process.id);
        return Err(ConnectError::not_found(format!("id: session {} has ended; open a new one", session.id)));
    }
    state.running = Some(process.id);
    state.command_count += 1;
    Ok(process)
}
