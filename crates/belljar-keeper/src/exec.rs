//! Commands in a sandbox.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::{
    Collector, Execution, Judgement, OpenSpill, ProcessEvent, STOP_GRACE, Sandbox, StoredOutput, Usage,
    judge, judge_lost, v1,
};
use belljar_model::{HintReader, Outcome, OutputSize, Role, SandboxSpec, StreamOutput, Timeout};
use belljar_store::ServiceWall;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use crate::action::{self, EXEC_START};
use crate::audit::{CODE_DIGEST, OUTPUT_DIGEST};
use crate::caller::Caller;
use crate::entry::{EXITED, Entry};
use crate::error::KeeperError;
use crate::idempotency::{EXEC, Once};
use crate::info::ExecResult;
use crate::keeper::{Entered, Keeper, Result};
use crate::request::{Command, ExecRequest};
use crate::steps::step;

/// The most bytes of input that come with a request: what the guest takes with a start, and no more.
pub const MAX_STDIN_BYTES: usize = 1 << 20;

/// The most bytes of each stream that a result holds; head and tail are kept of what is longer. The rest is for who takes it as it comes.
pub const MAX_KEPT_BYTES: u64 = 16 << 20;

/// The most bytes of an answer that is kept for a request that comes again: of more output than that, head and tail are.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// How much longer than a command's time the keeper waits for the guest to say that it is over.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much of standard error is looked at for a hint, in bytes.
const HINT_BYTES: usize = 8 * 1024;

/// What happens while a command runs.
#[derive(Debug, Clone)]
pub enum ExecEvent {
    /// It runs.
    Started {
        /// Its number in the sandbox; it is never used again.
        process: u64,
        /// Its pid inside.
        pid: u32,
    },
    /// It has written something.
    Output {
        /// Which stream.
        stream: v1::Stream,
        /// Where in the stream.
        offset: u64,
        /// What.
        data: Bytes,
    },
}

/// A command that runs in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Its number in the sandbox; it is never used again.
    pub process: u64,
    /// Its pid inside.
    pub pid: u32,
}

/// How long a guest may take to tell what commands in the background wrote last.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_millis(500);

/// How many of them are asked for.
const LAST_WORDS_PROCESSES: usize = 16;

/// What is asked of each stream of the last of them, in bytes.
const LAST_WORDS_BYTES: u64 = 2048;

impl Entered {
    /// Notes in the sandbox's log that a process was started.
    pub(crate) fn note_started(&self, process: u64) {
        self.entry.note("exec", Some(process), "");
    }

    /// Notes in the sandbox's log what a process that is watched does.
    pub(crate) fn note(&self, process: &Execution, event: &ProcessEvent) {
        match event {
            // What is only attached to is read by who has started it, or at the sandbox's end.
            ProcessEvent::Output { data, .. } if process.pid != 0 => self.entry.wrote(data),
            ProcessEvent::Started { .. } | ProcessEvent::Output { .. } => {}
            ProcessEvent::Exited(exited) => self.entry.note_exit(process.id, exited),
        }
    }
}

impl Keeper {
    /// Runs a command and waits for its end. What happens meanwhile goes to `events`; a slow taker slows the command down.
    /// Dropping the future ends the command.
    ///
    /// # Errors
    /// Only what is not the command's own doing; how it ended is in the result.
    pub async fn exec(
        &self,
        caller: &Caller,
        id: &str,
        request: ExecRequest,
        events: Option<mpsc::Sender<ExecEvent>>,
    ) -> Result<ExecResult> {
        if let Some(asked) = request.keep_bytes.filter(|asked| *asked > MAX_KEPT_BYTES) {
            let reason =
                format!("{asked} bytes are too many; a result keeps at most {MAX_KEPT_BYTES} of each stream");
            return Err(KeeperError::field("output", reason));
        }
        self.check_reserve("run a command").await?;
        let entered = self.find_for(caller, id, action::EXEC).await?;
        let once = match &request.idempotency {
            None => None,
            Some(idempotency) => {
                let what = format!("{EXEC}{}", entered.id());
                match self.claim(&caller.tenant, &what, idempotency).await? {
                    Once::First(claim) => Some(claim),
                    Once::Before(answer) => return read_answer(&answer),
                }
            }
        };
        self.check(caller, action::EXEC)?;
        let digest = command_digest(&request);
        let running = self.run(caller, &entered, &request, events);
        let outcome = running.instrument(step!("keeper.exec", sandbox = %entered.id())).await;
        let result = outcome.as_ref().ok();
        let mut details = vec![(CODE_DIGEST, digest)];
        if let Some((result, output)) = result {
            details.push(("outcome", outcome_name(&result.outcome).to_owned()));
            details.push((OUTPUT_DIGEST, output.clone()));
            details.push(("process", result.process.to_string()));
            self.inner.metrics.executed(outcome_name(&result.outcome), result.wall);
            let code = result.exit_code.map_or_else(|| "none".to_owned(), |code| code.to_string());
            entered.entry.note(EXITED, Some(result.process), format!("exit code {code}"));
        }
        self.audit(caller, action::EXEC, Some(entered.id()), &outcome, details).await?;
        let (result, _) = outcome?;
        if let Some(claim) = once {
            claim.finish(&answer(&result, self.has_disk())).await?;
        }
        Ok(result)
    }

    async fn run(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: &ExecRequest,
        events: Option<mpsc::Sender<ExecEvent>>,
    ) -> Result<(ExecResult, String)> {
        let keep = kept_bytes(entered, request).min(MAX_KEPT_BYTES);
        let timeout = timeout(entered, request);
        let begin = Instant::now();
        let before = entered.sandbox().usage().await;
        let mut running = Running::start(entered, request, timeout, false).await?;
        entered.entry.note("exec", Some(running.id), "");
        if let Some(events) = &events {
            let _ = events.send(ExecEvent::Started { process: running.id, pid: running.execution.pid }).await;
        }
        let mut collected = Collected::new(keep, || self.output_file(caller));
        let watch = running.watch(&entered.entry, &mut collected, events).instrument(step!("guest.wait"));
        let ended = match timeout {
            Some(timeout) => tokio::time::timeout(timeout + STOP_GRACE + PATIENCE, watch).await,
            None => Ok(watch.await),
        };
        let wall = begin.elapsed();
        let after = entered.sandbox().usage().await;
        self.inner.spent.took(&entered.entry, after.cpu.unwrap_or_default());
        let (judgement, exited) = match ended {
            Ok(Ok(Some(exited))) => (judge(&exited, &before, &after), Some(exited)),
            Ok(Ok(None)) => (self.lost(entered, &before).await, None),
            Ok(Err(error)) => match entered.explain(error).await {
                KeeperError::Gone { .. } | KeeperError::Guest { .. } => {
                    (self.lost(entered, &before).await, None)
                }
                error => return Err(error),
            },
            Err(_) => (Judgement { outcome: Outcome::TimedOut, exit_code: None, signal: None }, None),
        };
        running.is_over = exited.is_some();
        let digest = collected.digest();
        let hint_text = collected.stderr.last(HINT_BYTES);
        let (stdout, stderr) = self.kept(collected.stdout, collected.stderr).await;
        let result = ExecResult {
            process: running.id,
            sandbox: entered.id().clone(),
            exit_code: judgement.exit_code,
            signal: judgement.signal,
            hint: belljar_model::hint(
                &judgement.outcome,
                &hint_text,
                &held(entered.spec(), timeout),
                HintReader::Program,
            ),
            outcome: judgement.outcome,
            stdout,
            stderr,
            wall,
            cpu: exited.as_ref().map(|end| Duration::from_micros(end.user_us.saturating_add(end.system_us))),
            peak_memory_bytes: exited.as_ref().map(|end| end.max_rss),
            left_behind: exited.as_ref().map_or(0, |end| end.left_behind),
            session_kept: exited.as_ref().and_then(|end| match end.session_state.as_known() {
                Some(v1::SessionState::SESSION_STATE_PRESERVED) => Some(true),
                Some(v1::SessionState::SESSION_STATE_LOST) => Some(false),
                _ => None,
            }),
        };
        Ok((result, digest))
    }

    /// The sandbox ended with the command in it.
    async fn lost(&self, entered: &Entered, before: &Usage) -> Judgement {
        let (mut outcome, _) = judge_lost(entered.sandbox(), before, PATIENCE).await;
        if let Outcome::Infrastructure { cause } = &mut outcome
            && let Some(reason) = &entered.entry.live().row.reason
        {
            cause.clone_from(reason);
        }
        Judgement { outcome, exit_code: None, signal: None }
    }

    /// Starts a command in the background. Its output is kept by the sandbox, and can be read by offset.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(&self, caller: &Caller, id: &str, request: ExecRequest) -> Result<Started> {
        if let Some(asked) = request.keep_bytes.filter(|asked| *asked > OutputSize::MAX.bytes()) {
            let reason = format!(
                "{asked} bytes are too many; at most {} are kept of each stream",
                OutputSize::MAX.bytes()
            );
            return Err(KeeperError::field("output", reason));
        }
        self.check_reserve("run a command").await?;
        let entered = self.enter_for(caller, id, EXEC_START).await?;
        let details = vec![(CODE_DIGEST, command_digest(&request))];
        let timeout = request.timeout.filter(|timeout| !timeout.is_zero());
        let started = Running::start(&entered, &request, timeout, true).await;
        self.audit(caller, EXEC_START, Some(entered.id()), &started, details).await?;
        let mut running = started?;
        running.is_over = true;
        entered.entry.note("exec", Some(running.id), "in the background");
        entered.entry.live().has_background = true;
        Ok(Started { process: running.id, pid: running.execution.pid })
    }

    /// Reads what commands in the background wrote last, and notes how they ended, before their sandbox ends.
    pub(crate) async fn last_words(&self, entry: &Arc<Entry>, sandbox: &Sandbox) {
        let reading = async {
            let processes = sandbox.guest().list_processes().await?;
            let mut last = None;
            // What the guest says may be made up.
            for process in processes.into_iter().rev().take(LAST_WORDS_PROCESSES).rev() {
                if let Some(exited) = process.exited.as_option() {
                    entry.note_exit(process.id, exited);
                } else {
                    entry.note("running", Some(process.id), "when the sandbox ended");
                }
                if process.stdout_bytes.max(process.stderr_bytes) > 0 {
                    last = Some(process);
                }
            }
            let Some(last) = last else { return Ok(()) };
            let from = |bytes: u64| bytes.saturating_sub(LAST_WORDS_BYTES);
            let (stdout, stderr) = (from(last.stdout_bytes), from(last.stderr_bytes));
            let mut left = last.stdout_bytes - stdout + last.stderr_bytes - stderr;
            let mut execution = sandbox.guest().attach(last.id, [stdout, stderr, 0]).await?;
            while left > 0
                && let Some(event) = execution.next().await?
            {
                match event {
                    ProcessEvent::Output { data, .. } => {
                        left = left.saturating_sub(data.len() as u64);
                        entry.wrote(&data);
                    }
                    ProcessEvent::Started { .. } => {}
                    ProcessEvent::Exited(_) => break,
                }
            }
            Ok::<_, belljar_engine::GuestError>(())
        };
        // A guest that does not answer delays no end.
        let _ = tokio::time::timeout(LAST_WORDS_TIMEOUT, reading).await;
    }

    /// Judges the end of a process that nobody has waited for: without knowing what the sandbox had used before it.
    #[must_use]
    pub fn judge(&self, exited: &v1::Exited) -> Judgement {
        judge(exited, &Usage::default(), &Usage::default())
    }
}

/// The spec with the time that held for this execution.
fn held(spec: &SandboxSpec, timeout: Option<Duration>) -> SandboxSpec {
    let mut held = spec.clone();
    held.limits.timeout =
        timeout.and_then(|timeout| Timeout::new(timeout).ok()).unwrap_or(spec.limits.timeout);
    held
}

/// How long the command may take; nothing is without end.
fn timeout(entered: &Entered, request: &ExecRequest) -> Option<Duration> {
    match request.timeout {
        Some(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
        None => Some(entered.spec().limits.timeout.duration()),
    }
}

/// A command that runs. It is ended when this is dropped before it is over.
struct Running {
    execution: Execution,
    id: u64,
    guest: belljar_engine::GuestClient,
    feeding: Option<tokio::task::JoinHandle<()>>,
    is_over: bool,
}

/// Why a command did not start: the guest says no, or it was never asked.
enum Refused {
    Guest(belljar_engine::GuestError),
    Here(Box<KeeperError>),
}

impl From<KeeperError> for Refused {
    fn from(error: KeeperError) -> Self {
        Self::Here(Box::new(error))
    }
}

impl Running {
    async fn start(
        entered: &Entered,
        request: &ExecRequest,
        timeout: Option<Duration>,
        detach: bool,
    ) -> Result<Self> {
        let guest = entered.guest().clone();
        let starting = async {
            match request.session {
                None => guest
                    .start(start_request(entered, request, timeout, detach)?)
                    .await
                    .map_err(Refused::Guest),
                Some(session) => {
                    let run = session_request(session, entered, request, timeout)?;
                    guest.run_in_session(run).await.map_err(Refused::Guest)
                }
            }
        };
        let started = starting.instrument(step!("guest.start")).await;
        let execution = match started {
            Ok(execution) => execution,
            Err(Refused::Guest(error)) => return Err(entered.explain(error).await),
            Err(Refused::Here(error)) => return Err(*error),
        };
        let id = execution.id;
        // What is too much for the start is fed after it.
        let rest = request.stdin.slice(request.stdin.len().min(INLINE_STDIN_BYTES)..);
        let close = !request.stdin_open;
        let feeding = (!rest.is_empty()).then(|| {
            let guest = guest.clone();
            tokio::spawn(async move {
                // A program that reads no input is no failure.
                let _ = guest.feed(id, std::io::Cursor::new(rest), close).await;
            })
        });
        Ok(Self { execution, id, guest, feeding, is_over: false })
    }

    async fn watch(
        &mut self,
        entry: &Entry,
        collected: &mut Collected,
        events: Option<mpsc::Sender<ExecEvent>>,
    ) -> std::result::Result<Option<v1::Exited>, belljar_engine::GuestError> {
        while let Some(event) = self.execution.next().await? {
            match event {
                ProcessEvent::Started { .. } => {}
                ProcessEvent::Output { stream, offset, data } => {
                    collected.push(stream, &data);
                    entry.wrote(&data);
                    if let Some(events) = &events {
                        let _ = events.send(ExecEvent::Output { stream, offset, data }).await;
                    }
                }
                ProcessEvent::Exited(exited) => return Ok(Some(exited)),
            }
        }
        Ok(None)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(feeding) = self.feeding.take_if(|_| !self.is_over) {
            feeding.abort();
        }
        if self.is_over {
            return;
        }
        let (guest, id) = (self.guest.clone(), self.id);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            const SIGKILL: i32 = 9;
            let _ = guest.signal(id, SIGKILL, true).await;
        });
    }
}

/// How much of each stream the guest is to keep.
fn kept_bytes(entered: &Entered, request: &ExecRequest) -> u64 {
    request.keep_bytes.unwrap_or_else(|| entered.spec().limits.output.bytes())
}

/// Bytes of input that travel with the start itself: the most that the guest takes there.
const INLINE_STDIN_BYTES: usize = 64 * 1024;

fn start_request(
    entered: &Entered,
    request: &ExecRequest,
    timeout: Option<Duration>,
    detach: bool,
) -> Result<v1::StartRequest> {
    if request.stdin.len() > MAX_STDIN_BYTES {
        let reason = format!(
            "it has {} bytes; at most {MAX_STDIN_BYTES} may come with the request",
            request.stdin.len()
        );
        return Err(KeeperError::field("stdin", reason));
    }
    let mut start = v1::StartRequest {
        cwd: request.cwd.clone().unwrap_or_default(),
        stdin: request.stdin.slice(..request.stdin.len().min(INLINE_STDIN_BYTES)),
        stdin_open: request.stdin_open || request.stdin.len() > INLINE_STDIN_BYTES,
        timeout_ms: timeout
            .map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)),
        grace_ms: u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX),
        keep_bytes: kept_bytes(entered, request),
        detach,
        ..Default::default()
    };
    match &request.command {
        Command::Shell(line) if line.is_empty() => return Err(KeeperError::field("command", "it is empty")),
        Command::Argv(argv) if argv.is_empty() => return Err(KeeperError::field("argv", "it is empty")),
        Command::Shell(line) => start.shell = line.clone(),
        Command::Argv(argv) => start.argv = argv.clone(),
    }
    if let Some((rows, columns)) = request.terminal {
        start.terminal =
            v1::Terminal { rows: rows.into(), columns: columns.into(), ..Default::default() }.into();
    }
    let own = entered.spec().env.iter().map(|variable| (variable.name(), variable.value()));
    let asked = request.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in own.chain(asked) {
        let checked = belljar_model::EnvVar::new(name.to_owned(), value.to_owned())?;
        start.env.push(v1::EnvVar {
            name: Bytes::copy_from_slice(checked.name().as_bytes()),
            value: Bytes::copy_from_slice(checked.value().as_bytes()),
            ..Default::default()
        });
    }
    Ok(start)
}

/// A command for a shell that remembers: what a shell has of its own cannot be given with it.
fn session_request(
    id: u64,
    entered: &Entered,
    request: &ExecRequest,
    timeout: Option<Duration>,
) -> Result<v1::SessionRun> {
    let Command::Shell(line) = &request.command else {
        return Err(KeeperError::field("argv", "a session runs a line of its shell; give command instead"));
    };
    let given = [
        ("cwd", request.cwd.is_some()),
        ("env", !request.env.is_empty()),
        ("stdin", !request.stdin.is_empty() || request.stdin_open),
        ("terminal", request.terminal.is_some()),
    ];
    if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(KeeperError::field(field, "it is the session's own; leave it out"));
    }
    Ok(v1::SessionRun {
        id,
        command: line.clone(),
        timeout_ms: timeout
            .map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)),
        grace_ms: u64::try_from(STOP_GRACE.as_millis()).unwrap_or(u64::MAX),
        keep_bytes: kept_bytes(entered, request),
        ..Default::default()
    })
}

/// What a command has written, within bounds, and the digest of all of it.
struct Collected {
    stdout: Collector,
    stderr: Collector,
    hash: Sha256,
}

impl Collected {
    fn new(keep: u64, file: impl Fn() -> OpenSpill) -> Self {
        if ServiceWall::OutputFiles.is_down() {
            let new = || Collector::new(keep, None);
            return Self { stdout: new(), stderr: new(), hash: Sha256::new() };
        }
        Self {
            stdout: Collector::spilling(keep, file()),
            stderr: Collector::spilling(keep, file()),
            hash: Sha256::new(),
        }
    }

    fn push(&mut self, stream: v1::Stream, data: &Bytes) {
        match stream {
            v1::Stream::STREAM_STDERR => self.stderr.push(data),
            _ => self.stdout.push(data),
        }
        self.hash.update(data);
    }

    /// SHA-256 of the output in the order in which it came, in hexadecimal.
    fn digest(&self) -> String {
        hex::encode(self.hash.clone().finalize())
    }
}

/// SHA-256 of what was to be run, in hexadecimal: the trail tells that it was the same, not what it was.
fn command_digest(request: &ExecRequest) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    match &request.command {
        Command::Shell(line) => {
            part(b"shell");
            part(line);
        }
        Command::Argv(argv) => {
            part(b"argv");
            argv.iter().for_each(|argument| part(argument));
        }
    }
    part(&request.stdin);
    hex::encode(hash.finalize())
}

/// The outcome's name, as in its JSON.
pub(crate) fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Exited { .. } => "exited",
        Outcome::Signalled { .. } => "signalled",
        Outcome::TimedOut => "timed_out",
        Outcome::OutOfMemory => "out_of_memory",
        Outcome::Limit { .. } => "limit",
        Outcome::Denied { .. } => "denied",
        Outcome::Infrastructure { .. } => "infrastructure",
    }
}

/// A result as it is kept for a request that comes again. Of a long output little is, and none where the disk is nearly full.
fn answer(result: &ExecResult, has_disk: bool) -> Vec<u8> {
    if ServiceWall::AnswerBound.is_down() {
        return serde_json::to_vec(&result.clone().cut(u64::MAX)).unwrap_or_default();
    }
    let sizes: &[u64] = if has_disk { &[48 << 10, 4 << 10, 0] } else { &[0] };
    // Numbers and text only: that cannot fail.
    let mut written =
        sizes.iter().map(|most| serde_json::to_vec(&result.clone().cut(*most)).unwrap_or_default());
    let fitting = written.find(|answer| answer.len() <= MAX_ANSWER_BYTES);
    fitting.unwrap_or_default()
}

fn read_answer(kept: &[u8]) -> Result<ExecResult> {
    let read = serde_json::from_slice::<ExecResult<StreamOutput>>(kept);
    read.map(|result| result.with(StoredOutput::InMemory)).map_err(|source| KeeperError::Record {
        what: "result of an execution",
        id: String::new(),
        source,
    })
}

impl Caller {
    /// Whether it may use sandboxes at all.
    pub(crate) fn may_use(&self) -> bool {
        self.role >= Role::User
    }
}
