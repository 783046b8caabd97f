//! Code in contexts of interpreters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::code::{CodeCollector, CodeEnd};
use belljar_engine::{CodeEvent, EngineError, ErrorCode, GuestError, StoredOutput, Usage, v1};
use belljar_model::{CodeExecution, CodeStatus, Outcome, SandboxState, Survival};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, mpsc, oneshot};
use tracing::Instrument as _;

use crate::action::CODE;
use crate::audit::{CODE_DIGEST, OUTPUT_DIGEST};
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::exec::{MAX_ANSWER_BYTES, outcome_name};
use crate::idempotency::{EXEC, Once};
use crate::keeper::{Entered, Keeper, Result};
use crate::program::{SHELL, may_have_kernel, to_program};
use crate::request::Idempotency;
use crate::steps::{run_detached, step};

/// The longest code, in bytes: what one message to a guest takes, with room for what comes with it.
pub const MAX_CODE_BYTES: usize = (4 << 20) - MAX_BESIDE_CODE_BYTES;

/// The most bytes of environment and names that come with code.
const MAX_BESIDE_CODE_BYTES: usize = 128 << 10;

/// Between the interrupt of code that takes too long and the end of its interpreter.
const CODE_GRACE: Duration = Duration::from_secs(5);

/// The most bytes of each stream that a result holds; head and tail are kept of what is longer.
const MAX_KEPT_BYTES: u64 = 1 << 20;

/// How much longer than code may take the keeper waits for the guest to say that it is over.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most results that are named in an answer without them.
const MAX_NAMED: usize = 16;

/// How often the keeper looks whether its patience is at its end.
const TICK: Duration = Duration::from_secs(1);

/// How long the sandbox's own end is waited for when its guest is lost.
const END_WAIT: Duration = Duration::from_secs(2);

/// Code to run in a context.
#[derive(Debug, Clone, Default)]
pub struct CodeRequest {
    /// UTF-8 without NUL, at most [`MAX_CODE_BYTES`]. It may be empty.
    pub code: Bytes,
    /// The context; the default one of the language if not given.
    pub context: Option<String>,
    /// The language, where no context is named; Python if neither is. One without contexts is a program each time.
    pub language: Option<String>,
    /// Where it runs, for this execution alone.
    pub cwd: Option<Bytes>,
    /// Environment, for this execution alone.
    pub env: BTreeMap<String, String>,
    /// How long it may take; the sandbox's own time of one execution if not given, zero is without end.
    pub timeout: Option<Duration>,
    /// Between the interrupt and the interpreter's end when that time is over; 5 seconds if not given.
    pub grace: Option<Duration>,
    /// Whether somebody answers questions.
    pub allow_input: bool,
    /// What happens when the caller goes away before the end.
    pub on_disconnect: OnDisconnect,
    /// Bytes that are kept of each stream.
    pub keep_bytes: Option<u64>,
    /// The same key and the same request run once.
    pub idempotency: Option<Idempotency>,
    /// Told when the sandbox has taken the code, which may have to wait for its turn.
    pub queued: Option<Arc<Notify>>,
}

/// What happens to code whose caller goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDisconnect {
    /// It runs to its end.
    #[default]
    Continue,
    /// It is interrupted, and its interpreter ended if that does not help.
    Kill,
}

/// How the watch over code ended.
enum Watched {
    /// The guest has told the end.
    Ended(Box<v1::CodeEnded>),
    /// The caller went away, and wants it killed.
    Abandoned,
    /// The guest has not told the end in time.
    Late,
    /// The guest was lost in the middle.
    Lost(GuestError),
}

impl Keeper {
    /// Runs code in a context and waits for its end. What happens meanwhile goes to `events`; a slow taker slows the code down.
    /// When the future is dropped, the code goes on or is ended as the request says; either is written to the audit trail.
    ///
    /// # Errors
    /// Only what is not the code's own doing; how it ended is in what is handed back.
    pub async fn run_code(
        &self,
        caller: &Caller,
        id: &str,
        request: CodeRequest,
        events: Option<mpsc::Sender<CodeEvent>>,
    ) -> Result<CodeExecution> {
        // Dropped with this future: that is how the rest gets to know that nobody waits any more.
        let (_waiting, gone) = oneshot::channel();
        let (keeper, caller, id) = self.owned(caller, id);
        run_detached(&self.inner.tasks, async move {
            keeper.run_code_inner(&caller, &id, request, events, gone).await
        })
        .await
    }

    async fn run_code_inner(
        &self,
        caller: &Caller,
        id: &str,
        request: CodeRequest,
        events: Option<mpsc::Sender<CodeEvent>>,
        gone: oneshot::Receiver<()>,
    ) -> Result<CodeExecution> {
        check_code(&request)?;
        self.check_reserve("run code").await?;
        let entered = self.find_for(caller, id, CODE).await?;
        let once = match &request.idempotency {
            None => None,
            Some(idempotency) => {
                let what = format!("{EXEC}{}", entered.id());
                match self.claim(&caller.tenant, &what, idempotency).await? {
                    Once::First(claim) => Some(claim),
                    Once::Before(answer) => return read(&answer),
                }
            }
        };
        let asked = execute_requests(&entered, &request)?;
        self.check(caller, CODE)?;
        let running = self.run_asked(&entered, &request, asked, events, gone);
        let outcome = running.instrument(step!("keeper.code", sandbox = %entered.id())).await;
        let mut details = vec![(CODE_DIGEST, code_digest(&request.code))];
        match &outcome {
            Ok(done) => {
                details.extend([
                    ("context", done.execution.context.clone()),
                    ("language", done.execution.language.clone()),
                    ("execution", done.execution.execution.to_string()),
                    ("outcome", done.told().to_owned()),
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
            if outcome.as_ref().is_ok_and(|done| !done.is_counted) {
                self.count_usage(&entered).await;
            }
        };
        let audit = self.audit(caller, CODE, Some(entered.id()), &outcome, details);
        let (recorded, ()) = futures::join!(audit, counting);
        recorded?;
        let done = outcome?;
        if let Some(claim) = once {
            claim.finish(&answer(&done.execution, self.has_disk())).await?;
        }
        Ok(done.execution)
    }

    async fn run_asked(
        &self,
        entered: &Entered,
        request: &CodeRequest,
        (asked, program): (v1::ExecuteCodeRequest, Option<v1::ExecuteCodeRequest>),
        events: Option<mpsc::Sender<CodeEvent>>,
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
            events,
            gone,
            kill: request.on_disconnect == OnDisconnect::Kill,
            limit: timeout(entered, request)
                .map(|limit| limit + request.grace.unwrap_or(CODE_GRACE) + PATIENCE),
            begun: None,
        };
        if request.context.is_none() {
            let _ = self.warm_for(entered, request.language.as_deref(), true).await;
        }
        let guest = entered.guest();
        let (before, stream) = futures::join!(
            entered.sandbox().usage(),
            guest.execute_code(asked).instrument(step!("guest.execute"))
        );
        if let (Ok(_), Some(queued)) = (&stream, &request.queued) {
            queued.notify_one();
        }
        let mut watched = watch.all(entered, stream).await;
        if let (Watched::Lost(error), Some(program), None) = (&watched, program, watch.begun)
            && error.is(ErrorCode::InvalidArgument)
        {
            // It keeps no state here, so it is a program each time.
            watched = watch.all(entered, guest.execute_code(program).await).await;
        }
        let wall = watch.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        let mut abandoned = false;
        let unreported = |status, state, reason: &str| CodeEnd::unreported(status, state, reason, wall);
        // Only of an end that is none of its own is asked why, and what the others took is counted while they are recorded.
        let preserved = v1::Survival::SURVIVAL_PRESERVED;
        let is_counted =
            !matches!(&watched, Watched::Ended(ended) if ended.state.as_known() == Some(preserved));
        let after = if is_counted { self.count_usage(entered).await } else { Usage::default() };
        let end = match watched {
            Watched::Ended(ended) => CodeEnd::judge(&ended, &before, &after),
            Watched::Abandoned => {
                abandoned = true;
                let reason = "its caller went away, and it was to be ended then";
                unreported(CodeStatus::Interrupted, Survival::Unknown, reason)
            }
            Watched::Late => {
                let reason = "the guest did not tell the end of the code in time";
                unreported(CodeStatus::TimedOut, Survival::Unknown, reason)
            }
            // Nothing has begun: the request itself was refused, or the sandbox is gone.
            Watched::Lost(error) if watch.begun.is_none() => {
                return Err(explained(entered, error, request.context.as_deref()).await);
            }
            Watched::Lost(error) => self.lost_code(entered, error, &before, wall).await,
        };
        let execution = watch.collector.finish(end);
        self.warm_after(entered, &execution.context, execution.state).await;
        self.inner.metrics.executed(metric(&execution), execution.wall);
        let detail = format!("{} in context {}", execution.status.as_str(), execution.context);
        entered.entry.note("code_ended", None, detail);
        Ok(Done { execution, digest: hex::encode(watch.hash.finalize()), abandoned, is_counted })
    }

    /// What the sandbox has used up to now, which counts for its key.
    async fn count_usage(&self, entered: &Entered) -> Usage {
        let usage = entered.sandbox().usage().await;
        self.inner.spent.took(&entered.entry, usage.cpu.unwrap_or_default());
        usage
    }

    /// The guest was lost while code ran: with the sandbox, or nobody knows how.
    async fn lost_code(
        &self,
        entered: &Entered,
        error: GuestError,
        before: &Usage,
        wall: Duration,
    ) -> CodeEnd {
        let ended = tokio::time::timeout(END_WAIT, entered.sandbox().wait_ended()).await.ok();
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
        // What its end has killed is known now.
        if entered.sandbox().usage().await.oom_kills > before.oom_kills {
            end.cause = Some("out_of_memory".to_owned());
        }
        end
    }
}

/// What came of code, and what of it goes to the audit trail.
struct Done {
    execution: CodeExecution,
    digest: String,
    abandoned: bool,
    /// Whether what it took counts already.
    is_counted: bool,
}

impl Done {
    /// The outcome for the audit trail.
    fn told(&self) -> &'static str {
        if self.abandoned { "abandoned" } else { self.execution.status.as_str() }
    }
}

/// Code that runs, as the keeper sees it.
struct Watch {
    collector: CodeCollector,
    hash: Sha256,
    events: Option<mpsc::Sender<CodeEvent>>,
    gone: oneshot::Receiver<()>,
    kill: bool,
    /// How long the guest may take to tell the end, from the beginning.
    limit: Option<Duration>,
    begun: Option<Instant>,
}

impl Watch {
    async fn all(
        &mut self,
        entered: &Entered,
        stream: std::result::Result<belljar_engine::CodeExecution, GuestError>,
    ) -> Watched {
        match stream {
            Ok(mut stream) => self.over(entered, &mut stream).instrument(step!("guest.wait")).await,
            Err(error) => Watched::Lost(error),
        }
    }

    async fn over(&mut self, entered: &Entered, stream: &mut belljar_engine::CodeExecution) -> Watched {
        let mut left = self.limit;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.reset();
        loop {
            let next = tokio::select! {
                biased;
                next = stream.next() => next,
                _ = &mut self.gone, if self.kill => return Watched::Abandoned,
                _ = ticks.tick() => {
                    // Code that stands still, or waits for its turn, takes no time.
                    let is_running = self.begun.is_some() && entered.entry.state() == SandboxState::Running;
                    if let Some(rest) = left.as_mut().filter(|_| is_running) {
                        *rest = rest.saturating_sub(TICK);
                        if rest.is_zero() {
                            return Watched::Late;
                        }
                    }
                    continue;
                }
            };
            let event = match next {
                Ok(Some(event)) => event,
                Ok(None) => {
                    return Watched::Lost(GuestError::Protocol { what: "an execution did not tell its end" });
                }
                Err(error) => return Watched::Lost(error),
            };
            match &event {
                CodeEvent::Started(started) => {
                    self.begun = Some(Instant::now());
                    let context = started.context.as_option().map_or("", |context| context.id.as_str());
                    entered.entry.note(
                        "code",
                        None,
                        format!("execution {} in context {context}", started.execution),
                    );
                }
                CodeEvent::Output { data, .. } => self.hash.update(data),
                CodeEvent::Result(result) => {
                    for form in &result.data {
                        self.hash.update(form.mime.as_bytes());
                        self.hash.update([0]);
                        self.hash.update(&form.data);
                    }
                }
                CodeEvent::Ended(ended) => return Watched::Ended(Box::new(ended.clone())),
                CodeEvent::Error(_) | CodeEvent::InputRequested(_) => {}
            }
            self.collector.push(&event);
            if let Some(events) = &self.events {
                // Nobody may be there to take it.
                let _ = events.send(event).await;
            }
        }
    }
}

/// Checks what can be told without the sandbox.
fn check_code(request: &CodeRequest) -> Result<()> {
    if let Some(asked) = request.keep_bytes.filter(|asked| *asked > MAX_KEPT_BYTES) {
        let reason =
            format!("{asked} bytes are too many; a result keeps at most {MAX_KEPT_BYTES} of each stream");
        return Err(KeeperError::field("output", reason));
    }
    let code = &request.code;
    if code.len() > MAX_CODE_BYTES {
        let reason = format!("it has {} bytes; at most {MAX_CODE_BYTES} are allowed", code.len());
        return Err(KeeperError::field("code", reason));
    }
    if let Err(error) = std::str::from_utf8(code) {
        let reason = format!("it is not UTF-8, from byte {} on", error.valid_up_to());
        return Err(KeeperError::field("code", reason));
    }
    if let Some(at) = code.iter().position(|byte| *byte == 0) {
        return Err(KeeperError::field("code", format!("a NUL byte, at {at}, is not allowed")));
    }
    if request.context.is_some() && request.language.is_some() {
        return Err(KeeperError::field("language", "context and language are both given; give one of them"));
    }
    if let Some(context) =
        request.context.as_deref().filter(|context| check_name("context", Some(context)).is_err())
    {
        return match context.is_empty() {
            true => check_name("context", Some(context)),
            false => Err(no_context(context)),
        };
    }
    check_name("language", request.language.as_deref())
}

/// Checks a name that only the guest knows.
pub(crate) fn check_name(field: &'static str, name: Option<&str>) -> Result<()> {
    const MAX_NAME_BYTES: usize = 64;
    match name {
        Some("") => Err(KeeperError::field(field, "it is empty; give a name or leave it out")),
        Some(name) if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) => {
            Err(KeeperError::field(
                field,
                format!("it can be no name; names have at most {MAX_NAME_BYTES} bytes"),
            ))
        }
        _ => Ok(()),
    }
}

/// The sandbox's own environment, which its guest may not know if it was made ahead, and what was asked for, which wins.
pub(crate) fn environment(entered: &Entered, asked: &BTreeMap<String, String>) -> Result<Vec<v1::EnvVar>> {
    let own = entered.spec().env.iter().map(|variable| (variable.name(), variable.value()));
    variables(own.chain(asked.iter().map(|(name, value)| (name.as_str(), value.as_str()))))
}

/// Whether a context of this id was made by a call, which has given it the sandbox's own environment.
fn is_made(context: &str) -> bool {
    let number = context.strip_prefix('c').filter(|number| !number.is_empty());
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn variables<'a>(wanted: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Vec<v1::EnvVar>> {
    let mut env = Vec::new();
    let mut bytes = 0;
    for (name, value) in wanted {
        let checked = belljar_model::EnvVar::new(name.to_owned(), value.to_owned())?;
        bytes += name.len() + value.len() + 16;
        env.push(v1::EnvVar {
            name: Bytes::copy_from_slice(checked.name().as_bytes()),
            value: Bytes::copy_from_slice(checked.value().as_bytes()),
            ..Default::default()
        });
    }
    if bytes > MAX_BESIDE_CODE_BYTES - (16 << 10) {
        let reason = format!(
            "the variables have {bytes} bytes; at most {} are allowed here",
            MAX_BESIDE_CODE_BYTES - (16 << 10)
        );
        return Err(KeeperError::field("env", reason));
    }
    Ok(env)
}

/// How long the code may take; nothing is without end.
fn timeout(entered: &Entered, request: &CodeRequest) -> Option<Duration> {
    match request.timeout {
        Some(timeout) => Some(timeout).filter(|timeout| !timeout.is_zero()),
        None => Some(entered.spec().limits.timeout.duration()),
    }
}

/// What the guest is asked for; and what else, if it does not know the language.
fn execute_requests(
    entered: &Entered,
    request: &CodeRequest,
) -> Result<(v1::ExecuteCodeRequest, Option<v1::ExecuteCodeRequest>)> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let program = request.language.as_deref().and_then(|language| {
        let code = std::str::from_utf8(&request.code).ok()?;
        to_program(language, code, &entered.sandbox().home, entered.spec().limits.memory)
    });
    let asked = v1::ExecuteCodeRequest {
        context: request.context.clone().unwrap_or_default(),
        language: request.language.clone().unwrap_or_default(),
        code: request.code.clone(),
        env: match request.context.as_deref().is_some_and(is_made) {
            true => variables(request.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?,
            false => environment(entered, &request.env)?,
        },
        cwd: request.cwd.clone().unwrap_or_default(),
        timeout_ms: timeout(entered, request).map_or(0, ms),
        grace_ms: ms(request.grace.unwrap_or(CODE_GRACE)),
        allow_input: request.allow_input,
        on_disconnect: match request.on_disconnect {
            OnDisconnect::Continue => v1::OnDisconnect::ON_DISCONNECT_CONTINUE,
            OnDisconnect::Kill => v1::OnDisconnect::ON_DISCONNECT_KILL,
        }
        .into(),
        ..Default::default()
    };
    let Some(program) = program else { return Ok((asked, None)) };
    let program =
        v1::ExecuteCodeRequest { language: SHELL.to_owned(), code: program.into(), ..asked.clone() };
    Ok(if may_have_kernel(&asked.language) { (asked, Some(program)) } else { (program, None) })
}

fn no_context(context: &str) -> KeeperError {
    KeeperError::NotFound { what: "context", id: context.chars().take(64).collect() }
}

/// What a guest's refusal means where it is about contexts.
pub(crate) async fn explained(entered: &Entered, error: GuestError, context: Option<&str>) -> KeeperError {
    match entered.explain(error).await {
        KeeperError::Guest { about, source: GuestError::Refused { code, message } } => {
            match (code, context) {
                (ErrorCode::NotFound, Some(context)) => no_context(context),
                (ErrorCode::FailedPrecondition, _) => KeeperError::Kernel { reason: message },
                (ErrorCode::ResourceExhausted, _) => KeeperError::Contexts { reason: message },
                (ErrorCode::InvalidArgument, None) if message.contains("language") => {
                    let reason = message.strip_prefix("language: ").unwrap_or(&message).to_owned();
                    KeeperError::field("language", reason)
                }
                _ => KeeperError::Guest { about, source: GuestError::Refused { code, message } },
            }
        }
        KeeperError::Engine(EngineError::Guest(error)) => error.into(),
        error => error,
    }
}

/// SHA-256 of code, in hexadecimal.
fn code_digest(code: &[u8]) -> String {
    hex::encode(Sha256::digest(code))
}

/// The label of an execution, of those that commands have.
fn metric(execution: &CodeExecution) -> &'static str {
    let outcome = match execution.status {
        CodeStatus::Ok | CodeStatus::Error => Outcome::Exited { code: 0 },
        CodeStatus::Interrupted => Outcome::signalled(2),
        CodeStatus::TimedOut => Outcome::TimedOut,
        CodeStatus::Died if execution.cause.as_deref() == Some("out_of_memory") => Outcome::OutOfMemory,
        CodeStatus::Died if execution.state == Survival::Unknown => {
            Outcome::Infrastructure { cause: String::new() }
        }
        CodeStatus::Died => Outcome::signalled(9),
    };
    outcome_name(&outcome)
}

/// An execution as it is kept for a request that comes again. Of much output little is, and what was shown is named only; so it is where
/// the disk is nearly full.
fn answer(execution: &CodeExecution, has_disk: bool) -> Vec<u8> {
    // Numbers and text only: that cannot fail.
    let write = |execution: &CodeExecution| serde_json::to_vec(execution).unwrap_or_default();
    let whole = write(execution);
    if has_disk && whole.len() <= MAX_ANSWER_BYTES {
        return whole;
    }
    let mut little = execution.clone();
    for stream in [&mut little.stdout, &mut little.stderr] {
        let kept = StoredOutput::InMemory(std::mem::take(stream));
        *stream = kept.cut(if has_disk { 4 << 10 } else { 0 }).unwrap_or_default();
    }
    little.results.truncate(MAX_NAMED);
    for result in &mut little.results {
        let forms = std::mem::take(&mut result.data);
        result.metadata = None;
        result.cut.extend(
            forms.keys().map(|mime| format!("{mime}: it is not kept for a request that comes again")),
        );
    }
    if let Some(error) = &mut little.error {
        error.traceback.clear();
        error.value = error.value.chars().take(1000).collect();
    }
    write(&little)
}

fn read(kept: &[u8]) -> Result<CodeExecution> {
    serde_json::from_slice(kept).map_err(|source| KeeperError::Record {
        what: "result of an execution",
        id: String::new(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_code_is_refused_by_name() {
        let request =
            |code: &[u8]| CodeRequest { code: Bytes::copy_from_slice(code), ..CodeRequest::default() };
        let long = vec![b' '; MAX_CODE_BYTES + 1];
        let both = CodeRequest {
            context: Some("c1".to_owned()),
            language: Some("python".to_owned()),
            ..CodeRequest::default()
        };
        let empty = CodeRequest { context: Some(String::new()), ..CodeRequest::default() };
        let control = CodeRequest { language: Some("py\n".to_owned()), ..CodeRequest::default() };
        let cases = [
            (request(&long), "code: it has 4063233 bytes; at most 4063232 are allowed"),
            (request(b"a\xff"), "code: it is not UTF-8, from byte 1 on"),
            (request(b"ab\0"), "code: a NUL byte, at 2, is not allowed"),
            (both, "language: context and language are both given; give one of them"),
            (empty, "context: it is empty; give a name or leave it out"),
            (control, "language: it can be no name; names have at most 64 bytes"),
        ];
        for (request, said) in cases {
            assert_eq!(check_code(&request).unwrap_err().to_string(), said);
        }
        assert!(check_code(&request(b"")).is_ok() && check_code(&request(&long[1..])).is_ok());
    }
}
