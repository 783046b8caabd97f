//! Execution of code in interpreter contexts.

use std::pin::Pin;
use std::time::{Duration, Instant};

use belljar_engine::code::{CodeCollector, CodeEnd};
use belljar_engine::{CodeEvent, EngineError, ErrorCode, GuestError, StoredOutput, Usage, v1};
use belljar_model::{CodeExecution, CodeStatus, Languages, SandboxState, Survival};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::action::CODE;
use crate::audit::{CODE_DIGEST, OUTPUT_DIGEST};
use crate::caller::Caller;
use crate::code_request::{
    CODE_GRACE, CodeRequest, MAX_KEPT_BYTES, OnDisconnect, check_code, execute_requests, no_context, timeout,
};
use crate::error::KeeperError;
use crate::exec::{MAX_ANSWER_BYTES, with_timeout};
use crate::idempotency::{ClaimOutcome, EXEC};
use crate::keeper::{Entered, Keeper, Result};
use crate::keys::ended_while_waiting;
use crate::program::not_installed;
use crate::run::{Reporter, Run};
use crate::steps::step;
use crate::tools::CallsFromCode;

/// Time after the timeout of code within which the guest must report its end.
const END_REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of results that are named in an answer without their data.
const MAX_NAMED: usize = 16;

/// Interval of checks of that timeout.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time to wait for the sandbox's own end when its guest is lost.
const SANDBOX_END_TIMEOUT: Duration = Duration::from_secs(2);

/// Outcome of watching an execution.
enum WatchOutcome {
    /// The guest reported the end.
    Ended(Box<v1::CodeEnded>),
    /// The caller disconnected, and the code is to be killed then.
    Abandoned,
    /// The guest did not report the end in time.
    Late,
    /// The guest was lost during the execution.
    Lost(GuestError),
    /// The caller's key ended before it was the code's turn.
    KeyEnded,
}

impl Keeper {
    /// Runs code in a context and waits for its end. When the future is dropped, the code continues or is killed as the request says;
    /// either is recorded in the audit log.
    ///
    /// # Errors
    /// Fails for other reasons than the code itself, whose outcome is in the result.
    pub async fn run_code(&self, caller: &Caller, id: &str, request: CodeRequest) -> Result<CodeExecution> {
        self.run_code_to(caller, id, request, Reporter::none()).await
    }

    /// Runs code in a context, as [`Self::run_code`] does. A slow reader of the events slows the code down.
    pub fn stream_code(
        &self,
        caller: &Caller,
        id: &str,
        request: CodeRequest,
    ) -> Run<CodeEvent, CodeExecution> {
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        Run::new(|report| async move { keeper.run_code_to(&caller, &id, request, report).await })
    }

    async fn run_code_to(
        &self,
        caller: &Caller,
        id: &str,
        request: CodeRequest,
        report: Reporter<CodeEvent>,
    ) -> Result<CodeExecution> {
        self.run_call(caller, id, move |keeper, caller, id, gone| async move {
            keeper.run_code_until_gone(&caller, &id, request, report, gone).await
        })
        .await
    }

    pub(crate) async fn run_code_until_gone(
        &self,
        caller: &Caller,
        id: &str,
        request: CodeRequest,
        report: Reporter<CodeEvent>,
        mut gone: oneshot::Receiver<()>,
    ) -> Result<CodeExecution> {
        check_code(&request)?;
        self.check_reserve("run code").await?;
        let entered = self.find_for(caller, id, CODE).await?;
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
        let offered = self.offer_tools(caller, &entered, &request.tools).await?;
        let asked = execute_requests(&entered, &request, &offered)?;
        self.check(caller, CODE)?;
        let waiting = |waiting| report.waiting(waiting);
        let clearance = self.approve_code(caller, &entered, (&request, &offered), waiting, &mut gone).await?;
        let calls = CallsFromCode::new(self, caller, &entered, report.clone(), (&request, &offered))?;
        let running = self.run_requests(caller, (&entered, &request), asked, report, calls, gone);
        let outcome = running.instrument(step!("keeper.code", sandbox = %entered.id())).await;
        let mut details = vec![(CODE_DIGEST, code_digest(&request.code))];
        details.extend(request.tools.details(&offered));
        details.extend(clearance.details());
        let finished = clearance.finish(&outcome, |done| done.audit_outcome().to_owned()).await;
        if let (Some(claim), Ok(_)) = (&mut claim, &outcome) {
            claim.has_begun = true;
        }
        match &outcome {
            Ok(done) => {
                details.extend([
                    ("context", done.execution.context.clone()),
                    ("language", done.execution.language.clone()),
                    ("execution", done.execution.execution.to_string()),
                    ("outcome", done.audit_outcome().to_owned()),
                    ("state", done.execution.state.as_str().to_owned()),
                    (OUTPUT_DIGEST, done.digest.clone()),
                ]);
            }
            Err(_) => {
                details.extend(request.context.clone().map(|context| ("context", context)));
                details.extend(request.language.clone().map(|language| ("language", language)));
            }
        }
        let counting = async {
            match outcome.as_ref().map(|done| done.after) {
                Ok(None) => self.count_usage(&entered).await,
                Ok(Some(after)) => after,
                Err(_) => Usage::default(),
            }
        };
        let audit = self.audit(caller, CODE, Some(entered.id()), &outcome, details);
        let (recorded, after) = futures::join!(audit, counting);
        if let Err(error) = recorded.and(finished) {
            return Err(match claim {
                Some(claim) => claim.fail(outcome.err().unwrap_or(error)).await,
                None => error,
            });
        }
        let (mut done, claim) = match (outcome, claim) {
            (Err(error), Some(claim)) => return Err(claim.fail(error).await),
            (outcome, claim) => (outcome?, claim),
        };
        let spec = with_timeout(entered.spec(), timeout(&entered, &request));
        let limits = after.limit_events_since(&done.before);
        done.execution.hint =
            belljar_engine::code::hint(&done.execution, limits, &spec, &request.hint_reader);
        let awaits_functions = !request.tools.functions.is_empty() && !request.tools.steps;
        if let (CodeStatus::TimedOut, true, Some(hint)) =
            (done.execution.status, awaits_functions, &mut done.execution.hint)
        {
            hint.push_str(" The time that its functions take to answer counts.");
        }
        if let Some(claim) = claim {
            claim.finish(&stored_answer(&done.execution, self.has_disk())).await?;
        }
        Ok(done.execution)
    }

    async fn run_requests<'a>(
        &'a self,
        caller: &'a Caller,
        (entered, request): (&Entered, &CodeRequest),
        (asked, program): (v1::ExecuteCodeRequest, Option<v1::ExecuteCodeRequest>),
        report: Reporter<CodeEvent>,
        calls: CallsFromCode<'a>,
        gone: oneshot::Receiver<()>,
    ) -> Result<Done> {
        let mut watch = Watch {
            collector: CodeCollector::new(
                request
                    .keep_bytes
                    .unwrap_or_else(|| entered.spec().limits.output.bytes())
                    .min(MAX_KEPT_BYTES),
            ),
            hash: Sha256::new(),
            report,
            calls,
            gone,
            kill: request.on_disconnect == OnDisconnect::Kill,
            limit: timeout(entered, request)
                .map(|limit| limit + request.grace.unwrap_or(CODE_GRACE) + END_REPORT_TIMEOUT),
            started_at: None,
            missing: request.language.as_deref().and_then(not_installed),
            is_missing: false,
            key_end: Box::pin(async { self.wait_for_key_end(&caller.standing()).await }),
        };
        if request.context.is_none() {
            let _ = self.ensure_warm(entered, request.language.as_deref(), true).await;
        }
        let guest = entered.guest();
        let (before, stream) = futures::join!(
            entered.sandbox().counters(),
            guest.execute_code(asked).instrument(step!("guest.execute"))
        );
        if stream.is_ok() {
            watch.report.queued();
        }
        let mut watched = watch.run(entered, stream).await;
        if let (WatchOutcome::Lost(error), Some(program), None) = (&watched, program, watch.started_at)
            && error.is(ErrorCode::InvalidArgument)
        {
            // The sandbox has no kernel for the language, so each execution is a program.
            watched = watch.run(entered, guest.execute_code(program).await).await;
        }
        let calls_end = match &watched {
            WatchOutcome::Ended(_) | WatchOutcome::Late => "the code that made it has ended",
            WatchOutcome::Abandoned => "the caller of the code that made it disconnected",
            WatchOutcome::KeyEnded => "the key of the code that made it has ended",
            WatchOutcome::Lost(_) => "the sandbox of the code that made it has ended, or was lost",
        };
        if let Err(error) = watch.calls.end(calls_end).await {
            tracing::warn!(sandbox = %entered.id(), error = %crate::error::chain(&error), "cannot resume a sandbox that was frozen for a call");
        }
        let wall = watch.started_at.map_or(Duration::ZERO, |started_at| started_at.elapsed());
        let mut abandoned = false;
        let unreported = |status, state, reason: &str| CodeEnd::unreported(status, state, reason, wall);
        // The usage is needed now only to explain an end that was not the code's own; else it is counted while the record is written.
        let preserved = v1::Survival::SURVIVAL_PRESERVED;
        let is_counted =
            !matches!(&watched, WatchOutcome::Ended(ended) if ended.state.as_known() == Some(preserved));
        let after = if is_counted { Some(self.count_usage(entered).await) } else { None };
        let end = match watched {
            WatchOutcome::Ended(ended) => CodeEnd::judge(&ended, &before, &after.unwrap_or_default()),
            WatchOutcome::Abandoned => {
                abandoned = true;
                let reason = "its caller disconnected, and it was to be killed then";
                unreported(CodeStatus::Interrupted, Survival::Unknown, reason)
            }
            WatchOutcome::Late => {
                let reason = "the guest did not report the end of the code in time";
                unreported(CodeStatus::TimedOut, Survival::Unknown, reason)
            }
            WatchOutcome::KeyEnded => return Err(ended_while_waiting()),
            // Nothing was started: the request itself was refused, or the sandbox is gone.
            WatchOutcome::Lost(error) if watch.started_at.is_none() => {
                return Err(explain_context_error(entered, error, request.context.as_deref()).await);
            }
            WatchOutcome::Lost(error) => self.judge_lost_code(entered, error, &before, wall).await,
        };
        let generation = watch.collector.generation();
        let execution = watch.collector.finish(end);
        if let (Survival::Lost, Some(reason)) = (execution.state, &execution.reason) {
            entered.entry.set_lost(&execution.context, Some((generation, reason.clone())));
        }
        self.record_warm_state(entered, &execution.context, execution.state).await;
        self.inner.metrics.record_execution(execution.outcome().as_str(), execution.wall);
        let detail = format!("{} in context {}", execution.status.as_str(), execution.context);
        entered.entry.note("code_ended", None, detail);
        Ok(Done { execution, digest: hex::encode(watch.hash.finalize()), abandoned, before, after })
    }

    /// Returns the sandbox's counters of usage, and charges its processor time to its key.
    pub(crate) async fn count_usage(&self, entered: &Entered) -> Usage {
        let usage = entered.sandbox().counters().await;
        self.inner.ledger.record_cpu(&entered.entry, usage.cpu.unwrap_or_default());
        usage
    }

    /// Judges code whose guest was lost: because the sandbox ended, or for an unknown reason.
    async fn judge_lost_code(
        &self,
        entered: &Entered,
        error: GuestError,
        before: &Usage,
        wall: Duration,
    ) -> CodeEnd {
        let ended = tokio::time::timeout(SANDBOX_END_TIMEOUT, entered.sandbox().wait_ended()).await.ok();
        let Some(how) = ended else {
            let reason = format!(
                "the guest was lost in the middle of the execution: {}",
                entered.explain(error).await
            );
            return CodeEnd::unreported(CodeStatus::Died, Survival::Unknown, reason, wall);
        };
        let how = entered.entry.live().row.reason.clone().unwrap_or(how);
        let mut end = CodeEnd::unreported(
            CodeStatus::Died,
            Survival::Lost,
            format!("the sandbox has ended: {how}"),
            wall,
        );
        // Processes killed at its end are counted now.
        if entered.sandbox().counters().await.limit_events_since(before).oom_kills > 0 {
            end.cause = Some("out_of_memory".to_owned());
        }
        end
    }
}

/// A finished execution, with details for the audit log.
struct Done {
    execution: CodeExecution,
    digest: String,
    abandoned: bool,
    /// The sandbox's usage before.
    before: Usage,
    /// The sandbox's usage afterwards, if it has been counted already.
    after: Option<Usage>,
}

impl Done {
    /// Returns the outcome for the audit log.
    fn audit_outcome(&self) -> &'static str {
        if self.abandoned { "abandoned" } else { self.execution.status.as_str() }
    }
}

/// Watches running code.
struct Watch<'a> {
    collector: CodeCollector,
    hash: Sha256,
    report: Reporter<CodeEvent>,
    calls: CallsFromCode<'a>,
    gone: oneshot::Receiver<()>,
    kill: bool,
    /// Time from the start within which the guest must report the end.
    limit: Option<Duration>,
    started_at: Option<Instant>,
    /// What a program of a language that is not installed prints, if the language is known.
    missing: Option<String>,
    /// Whether it has printed that.
    is_missing: bool,
    /// Waits for the end of the caller's key, which withdraws code that waits for its turn.
    key_end: Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
}

impl Watch<'_> {
    async fn run(
        &mut self,
        entered: &Entered,
        stream: std::result::Result<belljar_engine::CodeExecution, GuestError>,
    ) -> WatchOutcome {
        match stream {
            Ok(mut stream) => self.follow(entered, &mut stream).instrument(step!("guest.wait")).await,
            Err(error) => WatchOutcome::Lost(error),
        }
    }

    async fn follow(
        &mut self,
        entered: &Entered,
        stream: &mut belljar_engine::CodeExecution,
    ) -> WatchOutcome {
        let mut left = self.limit;
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            let next = tokio::select! {
                biased;
                () = self.calls.next() => continue,
                next = stream.next() => next,
                _ = &mut self.gone, if self.kill => return WatchOutcome::Abandoned,
                () = &mut self.key_end, if self.started_at.is_none() => return WatchOutcome::KeyEnded,
                _ = ticks.tick() => {
                    // Time does not count while the sandbox is paused or the code waits for its turn.
                    let is_running = self.started_at.is_some() && entered.entry.state() == SandboxState::Running;
                    if let Some(rest) = left.as_mut().filter(|_| is_running) {
                        *rest = rest.saturating_sub(CHECK_INTERVAL);
                        if rest.is_zero() {
                            return WatchOutcome::Late;
                        }
                    }
                    continue;
                }
            };
            let mut event = match next {
                Ok(Some(event)) => event,
                Ok(None) => {
                    return WatchOutcome::Lost(GuestError::Protocol {
                        what: "an execution did not report its end",
                    });
                }
                Err(error) => return WatchOutcome::Lost(error),
            };
            match &mut event {
                CodeEvent::Started(started) => {
                    self.started_at = Some(Instant::now());
                    repeat_reason(entered, started);
                    let context = started.context.as_option().map_or("", |context| context.id.as_str());
                    self.calls.set_place(started);
                    entered.entry.note(
                        "code",
                        None,
                        format!("execution {} in context {context}", started.execution),
                    );
                }
                CodeEvent::Output { data, .. } => {
                    self.is_missing |=
                        self.missing.as_ref().is_some_and(|missing| data.starts_with(missing.as_bytes()));
                    self.hash.update(data);
                }
                CodeEvent::Result(result) => {
                    for form in &result.data {
                        self.hash.update(form.mime.as_bytes());
                        self.hash.update([0]);
                        self.hash.update(&form.data);
                    }
                }
                CodeEvent::Ended(ended) => return WatchOutcome::Ended(Box::new(ended.clone())),
                CodeEvent::Error(error) if self.is_missing => {
                    "LanguageNotInstalled".clone_into(&mut error.name);
                    error.value = self.missing.clone().unwrap_or_default();
                }
                CodeEvent::ToolCalled(called) => {
                    if !self.calls.begin(called) {
                        continue;
                    }
                }
                CodeEvent::Error(_) | CodeEvent::InputRequested(_) => {}
            }
            self.collector.push(&event);
            self.report.send(event).await;
        }
    }
}

/// Replaces the guest's reason for the loss of the previous interpreter by the one that its execution ended with: the guest does not
/// know what the kernel has counted.
fn repeat_reason(entered: &Entered, started: &mut v1::CodeStarted) {
    let Some(context) = started.context.as_option() else { return };
    let lost = entered.entry.live().lost.remove(&context.id);
    if let Some((generation, reason)) = lost
        && !started.rebuilt.is_empty()
        && generation.checked_add(1) == Some(context.generation)
    {
        started.rebuilt = reason;
    }
}

/// Maps a guest's error about contexts.
pub(crate) async fn explain_context_error(
    entered: &Entered,
    error: GuestError,
    context: Option<&str>,
) -> KeeperError {
    match entered.explain(error).await {
        KeeperError::Guest { resource, source: GuestError::Refused { code, message, problem } } => {
            match (code, context) {
                (ErrorCode::NotFound, Some(context)) => no_context(context),
                (ErrorCode::FailedPrecondition, _) => KeeperError::Kernel { reason: message },
                (ErrorCode::ResourceExhausted, _) => KeeperError::Contexts { reason: message },
                (ErrorCode::InvalidArgument, _) if message.starts_with("tools: ") => {
                    KeeperError::field("tools", message.trim_start_matches("tools: "))
                }
                (ErrorCode::InvalidArgument, None) if message.contains("language") => {
                    // The guest knows only languages with contexts.
                    let name = message.split('"').nth(1).filter(|name| !name.starts_with("jupyter:"));
                    let unknown = name.and_then(|name| Languages::builtin().by_name(name).err());
                    let reason = unknown.map_or(message, |error| error.to_string());
                    KeeperError::field("language", reason.strip_prefix("language: ").unwrap_or(&reason))
                }
                _ => KeeperError::Guest { resource, source: GuestError::Refused { code, message, problem } },
            }
        }
        KeeperError::Engine(EngineError::Guest(error)) => error.into(),
        error => error,
    }
}

/// Returns the SHA-256 of code, in hexadecimal.
fn code_digest(code: &[u8]) -> String {
    hex::encode(Sha256::digest(code))
}

/// Returns an execution as stored for a repeated request. If it is large or the disk is nearly full, output is cut and results are
/// only named.
fn stored_answer(execution: &CodeExecution, has_disk: bool) -> Vec<u8> {
    // Cannot fail: numbers and text only.
    let write = |execution: &CodeExecution| serde_json::to_vec(execution).unwrap_or_default();
    let whole = write(execution);
    if has_disk && whole.len() <= MAX_ANSWER_BYTES {
        return whole;
    }
    let mut short = execution.clone();
    for stream in [&mut short.stdout, &mut short.stderr] {
        let kept = StoredOutput::InMemory(std::mem::take(stream));
        *stream = kept.truncate(if has_disk { 4 << 10 } else { 0 }).unwrap_or_default();
    }
    short.results.truncate(MAX_NAMED);
    for result in &mut short.results {
        let forms = std::mem::take(&mut result.data);
        result.metadata = None;
        result.cut.extend(forms.keys().map(|mime| format!("{mime}: not stored for repeated requests")));
    }
    if let Some(error) = &mut short.error {
        error.traceback.clear();
        error.value = error.value.chars().take(1000).collect();
    }
    write(&short)
}

fn parse_answer(kept: &[u8]) -> Result<CodeExecution> {
    serde_json::from_slice(kept)
        .map_err(|source| KeeperError::Record { what: "answer to an execution".to_owned(), source })
}
