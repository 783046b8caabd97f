//! Execution of commands in a sandbox.

use std::time::{Duration, Instant};

use belljar_engine::{
    Collector, Execution, GuestError, Judgement, OpenSpill, ProcessEvent, STOP_GRACE, StoredOutput, Usage,
    judge, judge_lost, v1,
};
use belljar_model::{Outcome, Role, SandboxSpec, StreamOutput, Timeout};
use belljar_store::ServiceWall;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::action;
use crate::audit::{CODE_DIGEST, OUTPUT_DIGEST};
use crate::caller::Caller;
use crate::entry::{EXITED, Entry};
use crate::error::{GuestResource, KeeperError};
use crate::idempotency::{Claim, ClaimOutcome, EXEC};
use crate::info::ExecResult;
use crate::keeper::{Entered, Keeper, Result};
use crate::outputs::Outputs;
use crate::request::{Command, ExecRequest};
use crate::run::{Reporter, Run};
use crate::steps::step;

/// Maximum size in bytes of the input in a request.
pub const MAX_STDIN_BYTES: usize = 1 << 20;

/// Maximum number of bytes of each stream in a result; of longer output, head and tail are kept. Streaming callers get all of it.
pub const MAX_KEPT_BYTES: u64 = 16 << 20;

/// Maximum size in bytes of an answer stored for a repeated request; of longer output, head and tail are kept.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Time after a command's timeout within which the guest must report its end.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

const SIGKILL: i32 = 9;

/// Number of bytes of standard error that are searched for a hint.
const HINT_BYTES: usize = 8 * 1024;

/// An event of a running command.
#[derive(Debug, Clone)]
pub enum ExecEvent {
    /// It was started.
    Started {
        /// Its number in the sandbox, which is never reused.
        process: u64,
        /// Its process id in the sandbox.
        pid: u32,
    },
    /// It wrote output.
    Output {
        /// The stream.
        stream: v1::Stream,
        /// Offset in the stream.
        offset: u64,
        /// The output.
        data: Bytes,
    },
}

/// A finished execution, with details for the audit log.
struct Done {
    result: ExecResult,
    /// Digest of its output.
    digest: String,
    /// Set if it was killed because its caller had disconnected.
    is_abandoned: bool,
    /// The end of its standard error.
    stderr_tail: Vec<u8>,
    /// The sandbox's usage before.
    before: Usage,
    /// The sandbox's usage afterwards, if it has been counted already.
    after: Option<Usage>,
}

impl Entered {
    /// Logs the start of a process.
    pub(crate) fn note_started(&self, process: u64) {
        self.entry.note("exec", Some(process), "");
    }

    /// Logs an event of a watched process.
    pub(crate) fn note(&self, process: &Execution, event: &ProcessEvent) {
        match event {
            // The output of a process that is only attached to is recorded for the caller that started it, or at the sandbox's end.
            ProcessEvent::Output { data, .. } if process.pid != 0 => self.entry.record_output(data),
            ProcessEvent::Started { .. } | ProcessEvent::Output { .. } => {}
            ProcessEvent::Exited(exited) => self.entry.note_exit(process.id, exited),
        }
    }
}

impl Keeper {
    /// Runs a command and waits for its end. Dropping the future kills the command.
    ///
    /// # Errors
    /// Fails for other reasons than the command itself, whose outcome is in the result.
    pub async fn exec(&self, caller: &Caller, id: &str, request: ExecRequest) -> Result<ExecResult> {
        self.exec_to(caller, id, request, Reporter::none()).await
    }

    /// Runs a command. A slow reader of the events slows the command down, and dropping the run kills it.
    pub fn stream_exec(&self, caller: &Caller, id: &str, request: ExecRequest) -> Run<ExecEvent, ExecResult> {
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        Run::new(|report| async move { keeper.exec_to(&caller, &id, request, report).await })
    }

    async fn exec_to(
        &self,
        caller: &Caller,
        id: &str,
        request: ExecRequest,
        report: Reporter<ExecEvent>,
    ) -> Result<ExecResult> {
        self.run_call(caller, id, move |keeper, caller, id, gone| async move {
            keeper.exec_until_gone(&caller, &id, request, report, gone).await
        })
        .await
    }

    async fn exec_until_gone(
        &self,
        caller: &Caller,
        id: &str,
        request: ExecRequest,
        report: Reporter<ExecEvent>,
        mut gone: oneshot::Receiver<()>,
    ) -> Result<ExecResult> {
        if let Some(asked) = request.keep_bytes.filter(|asked| *asked > MAX_KEPT_BYTES) {
            let reason =
                format!("{asked} bytes are too many; a result keeps at most {MAX_KEPT_BYTES} of each stream");
            return Err(KeeperError::field("output", reason));
        }
        self.check_reserve("run a command").await?;
        let entered = self.find_for(caller, id, action::EXEC).await?;
        let mut claim = match &request.idempotency {
            None => None,
            Some(idempotency) => {
                let what = format!("{EXEC}{}", entered.id());
                match self.claim(caller, &what, idempotency).await? {
                    ClaimOutcome::New(claim) => Some(claim),
                    ClaimOutcome::Answered(answer) => return parse_answer(&answer),
                }
            }
        };
        self.check(caller, action::EXEC)?;
        let waiting = |waiting| report.waiting(waiting);
        let clearance =
            self.approve_command(caller, &entered, action::EXEC, &request, waiting, &mut gone).await?;
        let digest = command_digest(&request);
        let running = self.run(caller, &entered, &request, report, gone, claim.as_mut());
        let outcome = running.instrument(step!("keeper.exec", sandbox = %entered.id())).await;
        let result = outcome.as_ref().ok();
        let mut details = vec![(CODE_DIGEST, digest)];
        details.extend(clearance.details());
        let finished = clearance.finish(&outcome, |done| done.result.outcome.as_str().to_owned()).await;
        if let Some(Done { result, digest, is_abandoned, .. }) = result {
            let outcome = if *is_abandoned { "abandoned" } else { result.outcome.as_str() };
            details.push(("outcome", outcome.to_owned()));
            details.push((OUTPUT_DIGEST, digest.clone()));
            details.push(("process", result.process.to_string()));
            self.inner.metrics.record_execution(result.outcome.as_str(), result.wall);
            let code = result.exit_code.map_or_else(|| "none".to_owned(), |code| code.to_string());
            entered.entry.note(EXITED, Some(result.process), format!("exit code {code}"));
        }
        let counting = async {
            match outcome.as_ref().map(|done| done.after) {
                Ok(None) => self.count_usage(&entered).await,
                Ok(Some(after)) => after,
                Err(_) => Usage::default(),
            }
        };
        let audit = self.audit(caller, action::EXEC, Some(entered.id()), &outcome, details);
        let (recorded, after) = futures::join!(audit, counting);
        if let Err(error) = recorded.and(finished) {
            return Err(match claim {
                Some(claim) => claim.fail(outcome.err().unwrap_or(error)).await,
                None => error,
            });
        }
        let (done, claim) = match (outcome, claim) {
            (Err(error), Some(claim)) => return Err(claim.fail(error).await),
            (outcome, claim) => (outcome?, claim),
        };
        let Done { mut result, stderr_tail, before, .. } = done;
        result.hint = belljar_model::hint(
            &result.outcome,
            after.limit_events_since(&before),
            &stderr_tail,
            &with_timeout(entered.spec(), timeout(&entered, &request)),
            &request.hint_reader,
        );
        if let Some(claim) = claim {
            claim.finish(&stored_answer(&result, self.has_disk())).await?;
        }
        Ok(result)
    }

    async fn run(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: &ExecRequest,
        report: Reporter<ExecEvent>,
        gone: oneshot::Receiver<()>,
        claim: Option<&mut Claim>,
    ) -> Result<Done> {
        let keep = kept_bytes(entered, request).min(MAX_KEPT_BYTES);
        let timeout = timeout(entered, request);
        let begin = Instant::now();
        let before = entered.sandbox().counters().await;
        let mut running = Running::start(entered, request, timeout, false).await?;
        if let Some(claim) = claim {
            claim.has_begun = true;
        }
        entered.entry.note("exec", Some(running.id), "");
        report.send(ExecEvent::Started { process: running.id, pid: running.execution.pid }).await;
        let outputs = self.inner.outputs.clone();
        let mut collected = CollectedOutput::new(keep, outputs, || self.output_file(caller));
        let (guest, process) = (running.guest.clone(), running.id);
        let mut is_abandoned = false;
        let watch = async {
            let watch = running.watch(&entered.entry, &mut collected, report);
            let mut watch = std::pin::pin!(watch);
            tokio::select! {
                biased;
                ended = &mut watch => ended,
                _ = gone => {
                    is_abandoned = true;
                    // Its end is recorded as that of any command. If the guest does not answer, the timeout is left.
                    let _ = guest.signal(process, SIGKILL, true).await;
                    watch.await
                }
            }
        };
        let watch = watch.instrument(step!("guest.wait"));
        let ended = match timeout {
            Some(timeout) => entered.entry.within(timeout + STOP_GRACE + END_REPORT_TIMEOUT, watch).await,
            None => Some(watch.await),
        };
        let wall = begin.elapsed();
        // The usage is needed now only to judge a failure; else it is counted while the record is written.
        let is_counted = !matches!(&ended, Some(Ok(Some(exited))) if (exited.code, exited.signal) == (0, 0));
        let after = if is_counted { Some(self.count_usage(entered).await) } else { None };
        let (judgement, exited) = match ended {
            Some(Ok(Some(exited))) => (judge(&exited, &before, &after.unwrap_or_default()), Some(exited)),
            Some(Ok(None)) => (self.judge_lost(entered, &before).await, None),
            Some(Err(error)) => match entered.explain(error).await {
                KeeperError::Gone { .. } | KeeperError::Guest { .. } => {
                    (self.judge_lost(entered, &before).await, None)
                }
                error => return Err(error),
            },
            None => (Judgement { outcome: Outcome::TimedOut, exit_code: None, signal: None }, None),
        };
        running.is_over = exited.is_some();
        let digest = collected.digest();
        let stderr_tail = collected.stderr.last(HINT_BYTES);
        let (stdout, stderr) = self.finish_outputs(collected.stdout, collected.stderr).await;
        let measured = exited.as_ref().filter(|_| request.session.is_none());
        let result = ExecResult {
            process: running.id,
            sandbox: entered.id().clone(),
            exit_code: judgement.exit_code,
            signal: judgement.signal,
            hint: None,
            outcome: judgement.outcome,
            stdout,
            stderr,
            wall,
            // The kernel counts for processes, and a command of a session is none of its own.
            cpu: measured.map(|end| Duration::from_micros(end.user_us.saturating_add(end.system_us))),
            peak_memory_bytes: measured.map(|end| end.max_rss),
            left_behind: exited.as_ref().map_or(0, |end| end.left_behind),
            session_kept: exited.as_ref().and_then(|end| match end.session_state.as_known() {
                Some(v1::SessionState::SESSION_STATE_PRESERVED) => Some(true),
                Some(v1::SessionState::SESSION_STATE_LOST) => Some(false),
                _ => None,
            }),
        };
        Ok(Done { result, digest, is_abandoned, stderr_tail, before, after })
    }

    /// Judges a command whose sandbox ended.
    async fn judge_lost(&self, entered: &Entered, before: &Usage) -> Judgement {
        let (mut outcome, _) = judge_lost(entered.sandbox(), before, END_REPORT_TIMEOUT).await;
        if let Outcome::Infrastructure { cause } = &mut outcome
            && let Some(reason) = &entered.entry.live().row.reason
        {
            cause.clone_from(reason);
        }
        Judgement { outcome, exit_code: None, signal: None }
    }

    /// Judges the end of a process without knowing the sandbox's usage before it.
    #[must_use]
    pub fn judge(&self, exited: &v1::Exited) -> Judgement {
        judge(exited, &Usage::default(), &Usage::default())
    }
}

/// Returns the specification with the timeout of this execution.
pub(crate) fn with_timeout(spec: &SandboxSpec, timeout: Option<Duration>) -> SandboxSpec {
    let mut held = spec.clone();
    held.limits.timeout =
        timeout.and_then(|timeout| Timeout::new(timeout).ok()).unwrap_or(spec.limits.timeout);
    held
}

/// Returns the timeout of the command, if it has one.
fn timeout(entered: &Entered, request: &ExecRequest) -> Option<Duration> {
    match request.timeout {
        Some(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
        None => Some(entered.spec().limits.timeout.duration()),
    }
}

/// Maximum number of times in a row that a command's output is followed over another connection, as the previous one broke.
const MAX_REATTACHMENTS: u32 = 4;

/// A running command. It is killed if this is dropped before its end.
pub(crate) struct Running {
    pub(crate) execution: Execution,
    pub(crate) id: u64,
    /// Offsets in its stdout, stderr and terminal up to which output has arrived.
    offsets: [u64; 3],
    guest: belljar_engine::GuestClient,
    feeding: Option<tokio::task::JoinHandle<()>>,
    pub(crate) is_over: bool,
}

/// Why a command did not start: the guest refused it, or the keeper did before asking the guest.
enum StartError {
    Guest(GuestError),
    Keeper(Box<KeeperError>),
}

impl From<KeeperError> for StartError {
    fn from(error: KeeperError) -> Self {
        Self::Keeper(Box::new(error))
    }
}

impl Running {
    pub(crate) async fn start(
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
                    .map_err(StartError::Guest),
                Some(session) => {
                    let run = session_request(session, entered, request, timeout)?;
                    guest.run_in_session(run).await.map_err(StartError::Guest)
                }
            }
        };
        let started = starting.instrument(step!("guest.start")).await;
        let execution = match started {
            Ok(execution) => execution,
            Err(StartError::Guest(error)) => {
                let resource = match request.session {
                    Some(_) => GuestResource::Session,
                    None => GuestResource::Program,
                };
                return Err(entered.explain_about(error, resource).await);
            }
            Err(StartError::Keeper(error)) => return Err(*error),
        };
        let id = execution.id;
        // The rest of the input follows the start.
        let rest = request.stdin.slice(request.stdin.len().min(INLINE_STDIN_BYTES)..);
        let close = !request.stdin_open;
        let feeding = (!rest.is_empty()).then(|| {
            let guest = guest.clone();
            tokio::spawn(async move {
                // Not an error: the program may not read its input.
                let _ = guest.feed(id, std::io::Cursor::new(rest), close).await;
            })
        });
        Ok(Self { execution, id, offsets: [0; 3], guest, feeding, is_over: false })
    }

    async fn watch(
        &mut self,
        entry: &Entry,
        collected: &mut CollectedOutput,
        report: Reporter<ExecEvent>,
    ) -> std::result::Result<Option<v1::Exited>, GuestError> {
        let mut reattachments = 0;
        let mut next = self.execution.next().await;
        loop {
            let event = match next {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(None),
                // The command runs on, unless the sandbox has ended: then this fails too. So it does if the next connection
                // breaks as well.
                Err(GuestError::Gone(_)) if reattachments < MAX_REATTACHMENTS => {
                    reattachments += 1;
                    next = match self.guest.attach(self.id, self.offsets).await {
                        Ok(execution) => {
                            self.execution = execution;
                            self.execution.next().await
                        }
                        Err(error) => Err(error),
                    };
                    continue;
                }
                Err(error) => return Err(error),
            };
            reattachments = 0;
            match event {
                ProcessEvent::Started { .. } => {}
                ProcessEvent::Output { stream, offset, data } => {
                    let end = offset.saturating_add(data.len() as u64);
                    match stream {
                        v1::Stream::STREAM_STDERR => self.offsets[1] = end,
                        v1::Stream::STREAM_TERMINAL => self.offsets[2] = end,
                        _ => self.offsets[0] = end,
                    }
                    collected.push(stream, &data).await;
                    entry.record_output(&data);
                    report.send(ExecEvent::Output { stream, offset, data }).await;
                }
                ProcessEvent::Exited(exited) => return Ok(Some(exited)),
            }
            next = self.execution.next().await;
        }
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
            let _ = guest.signal(id, SIGKILL, true).await;
        });
    }
}

/// Returns the number of bytes of each stream that the guest keeps.
fn kept_bytes(entered: &Entered, request: &ExecRequest) -> u64 {
    request.keep_bytes.unwrap_or_else(|| entered.spec().limits.output.bytes())
}

/// Number of bytes of input sent with the start itself: the guest's maximum.
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
        user: request.user.clone().unwrap_or_default(),
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

/// Returns the request for a command in a session. The session's own properties, such as its directory, cannot be given.
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
        ("user", request.user.is_some()),
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

/// Bounded output of a command, and the digest of all of it.
struct CollectedOutput {
    stdout: Collector,
    stderr: Collector,
    hash: Sha256,
    outputs: Outputs,
}

impl CollectedOutput {
    fn new(keep: u64, outputs: Outputs, file: impl Fn() -> OpenSpill) -> Self {
        let new = || match ServiceWall::OutputFiles.is_down() {
            true => Collector::new(keep, None),
            false => Collector::with_spill(keep, file()),
        };
        Self { stdout: new(), stderr: new(), hash: Sha256::new(), outputs }
    }

    async fn push(&mut self, stream: v1::Stream, data: &Bytes) {
        let is_long = self.stdout.has_file() || self.stderr.has_file();
        let _turn = if is_long { self.outputs.turn().await } else { None };
        match stream {
            v1::Stream::STREAM_STDERR => self.stderr.push(data),
            _ => self.stdout.push(data),
        }
        self.hash.update(data);
    }

    /// Returns the SHA-256 of the output in the order of arrival, in hexadecimal.
    fn digest(&self) -> String {
        hex::encode(self.hash.clone().finalize())
    }
}

/// Returns the SHA-256 of the command and its input, in hexadecimal: the audit log identifies commands without revealing them.
pub(crate) fn command_digest(request: &ExecRequest) -> String {
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

/// Returns a result as stored for a repeated request. Long output is cut; if the disk is nearly full, none is stored.
fn stored_answer(result: &ExecResult, has_disk: bool) -> Vec<u8> {
    if ServiceWall::AnswerBound.is_down() {
        return serde_json::to_vec(&result.clone().truncate(u64::MAX)).unwrap_or_default();
    }
    let sizes: &[u64] = if has_disk { &[48 << 10, 4 << 10, 0] } else { &[0] };
    // Cannot fail: numbers and text only.
    let mut written =
        sizes.iter().map(|max| serde_json::to_vec(&result.clone().truncate(*max)).unwrap_or_default());
    let fitting = written.find(|answer| answer.len() <= MAX_ANSWER_BYTES);
    fitting.unwrap_or_default()
}

fn parse_answer(kept: &[u8]) -> Result<ExecResult> {
    let read = serde_json::from_slice::<ExecResult<StreamOutput>>(kept);
    read.map(|result| result.with(StoredOutput::InMemory))
        .map_err(|source| KeeperError::Record { what: "answer to an execution".to_owned(), source })
}

impl Caller {
    /// Reports whether the caller may use sandboxes at all.
    pub(crate) fn may_use(&self) -> bool {
        self.role.includes(Role::User)
    }
}
