//! Calls by running code, as `belljar.tools.NAME(…)`.
//!
//! ```text
//!  code ─► its guest: allowed? within the budget? ─┬─► stored tool: a call like any other of the same caller ─────────► answer ─► code
//!                                                  │     └─► waits for approval: the sandbox of the code is frozen ─────┘
//!                                                  └─► function: an event that the caller answers, or the end of a step ─┘
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use belljar_engine::{CodeEvent, v1};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::code_call::{parse, to_answer};
use super::steps::{CALL_TIMEOUT, CALL_TIMEOUTS};
use crate::action::TOOL_CALL;
use crate::approval::CallingCode;
use crate::caller::Caller;
use crate::code_request::CodeRequest;
use crate::code_step::{Answers, CodeCall, CodeStep, EndedStep, RUN_BYTES, call_id};
use crate::code_steps::MAX_ANSWERS;
use crate::create::fill_random;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::keeper::{Entered, Keeper, Result};
use crate::run::{Reporter, RunEvent};
use crate::steps::run_detached;

/// Maximum number of tools and functions of one execution.
const MAX_CODE_TOOLS: usize = 64;

/// Maximum number of calls of one execution.
const MAX_TOOL_CALLS: u32 = 1000;

/// What the code of an execution may call.
#[derive(Debug, Clone, Default)]
pub struct CodeTools {
    /// Stored tools, as `NAME` or `NAME@VERSION`. The code calls them by `NAME`; each call is one of the execution's caller.
    pub tools: Vec<String>,
    /// Functions, by name. Whoever reads the events of the execution answers their calls, with [`Keeper::answer_code`].
    pub functions: Vec<String>,
    /// How often the code may call them together, at most 1,000; 100 if not given.
    pub max_calls: Option<u32>,
    /// Whether calls of functions end a step, with a frozen sandbox, until [`Keeper::continue_code`] answers them.
    pub steps: bool,
    /// Time for which they wait in a step, 1 s to 1 h; 10 min if not given.
    pub call_timeout: Option<Duration>,
}

/// The stored tools of an execution with their versions when it began, by the names by which its code calls them.
#[derive(Debug, Default)]
pub(crate) struct OfferedTools(BTreeMap<String, String>);

impl OfferedTools {
    /// Returns the names by which code calls them.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns the tools, as `NAME@VERSION`.
    pub(crate) fn versions(&self) -> Vec<String> {
        self.0.values().cloned().collect()
    }
}

impl CodeTools {
    /// Checks all but whether there are such tools.
    pub(crate) fn check(&self) -> Result<()> {
        let count = self.tools.len() + self.functions.len();
        if count > MAX_CODE_TOOLS {
            let reason = format!("{count} with the functions; at most {MAX_CODE_TOOLS} are allowed");
            return Err(KeeperError::field("tools", reason));
        }
        let is_name = |name: &str| {
            name.len() <= 64
                && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if let Some(name) = self.functions.iter().find(|name| !is_name(name)) {
            let reason =
                format!("invalid name {name:?}: give up to 64 letters, digits and _, first no digit");
            return Err(KeeperError::field("functions", reason));
        }
        if let Some(most) = self.max_calls.filter(|most| !(1..=MAX_TOOL_CALLS).contains(most)) {
            let reason = format!("{most} is not allowed; give 1 to {MAX_TOOL_CALLS}");
            return Err(KeeperError::field("max_tool_calls", reason));
        }
        if self.steps && self.functions.is_empty() {
            return Err(KeeperError::field("steps", "only calls of functions end a step; give functions"));
        }
        if let Some(time) = self.call_timeout {
            let [least, most] = CALL_TIMEOUTS;
            if !self.steps {
                return Err(KeeperError::field(
                    "call_timeout",
                    "it is the time of calls that end a step; give steps",
                ));
            }
            if !(least..=most).contains(&time) {
                let reason = format!("{time:?} is not allowed; give a time from {least:?} to {most:?}");
                return Err(KeeperError::field("call_timeout", reason));
            }
        }
        if count == 0 && self.max_calls.is_some() {
            return Err(KeeperError::field(
                "max_tool_calls",
                "there is nothing to call; give tools or functions",
            ));
        }
        Ok(())
    }
}

impl CodeTools {
    /// Returns what may be called, for the audit record of the code.
    pub(crate) fn details(&self, offered: &OfferedTools) -> Option<(&'static str, String)> {
        let all: Vec<String> = offered.0.values().cloned().chain(self.functions.iter().cloned()).collect();
        Some(("tools", all.join(" "))).filter(|_| !all.is_empty())
    }
}

impl Keeper {
    /// Finds the tools that code in a sandbox may call.
    ///
    /// # Errors
    /// Needs the role user; fails if there is no such tool, two have the same name, or the sandbox cannot be frozen for steps.
    pub(crate) async fn offer_tools(
        &self,
        caller: &Caller,
        entered: &Entered,
        asked: &CodeTools,
    ) -> Result<OfferedTools> {
        let mut offered = OfferedTools::default();
        if asked.steps {
            self.check_can(entered.spec(), "freezing it between the steps of code", |can| can.pause)?;
        }
        if !asked.tools.is_empty() {
            self.require(caller, TOOL_CALL)?;
        }
        let mut names: Vec<&str> = asked.functions.iter().map(String::as_str).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned());
        if let Some(name) = twice {
            return Err(KeeperError::field("functions", format!("{name:?} is given twice")));
        }
        for named in &asked.tools {
            let info = self.find_tool(caller, named).await?;
            let (name, version) = (info.tool.name, info.version);
            let is_new = names.binary_search(&name.as_str()).is_err() && !offered.0.contains_key(&name);
            if !is_new {
                return Err(KeeperError::field("tools", format!("{name:?} is given twice")));
            }
            let versioned = format!("{name}@{version}");
            offered.0.insert(name, versioned);
        }
        Ok(offered)
    }

    /// Calls a tool for code, and returns the answer as JSON, or the message of an error.
    async fn call_from_code(
        &self,
        code: &RunningCode<'_>,
        named: &str,
        arguments: &[u8],
        calling: CallingCode,
    ) -> Result<Vec<u8>> {
        let call = parse(arguments)?;
        // Each call is one that the caller could make now.
        let caller = self.caller_now(code.caller).await?;
        self.check_not_in_session(code, named).await?;
        let mut run = self.stream_call(&caller, named, (call, Some(calling)));
        let done = loop {
            match run.next().await {
                Some(RunEvent::Waiting(waiting)) => {
                    code.hold(self, &waiting.approval).await?;
                    code.report.waiting(waiting);
                }
                Some(RunEvent::Ended(done)) => break done,
                Some(RunEvent::Queued | RunEvent::Progress(_)) => code.release(self).await?,
                None => return Err(KeeperError::ShuttingDown),
            }
        };
        code.release(self).await?;
        Ok(to_answer(&done?))
    }

    /// Refuses a tool whose session is the sandbox of the code: it would wait until the code has ended, which waits for it.
    async fn check_not_in_session(&self, code: &RunningCode<'_>, named: &str) -> Result<()> {
        let info = self.find_tool(code.caller, named).await?;
        if !info.tool.session {
            return Ok(());
        }
        let name = self.tool_sandbox(code.caller, &info.tool, info.version)?.name;
        let session = name.and_then(|name| self.find_name(&code.caller.tenant, name.as_str()));
        if session.is_some_and(|entry| entry.id == *code.entered.id()) {
            let reason = format!(
                "{} is the session of {named}, and code in it cannot call that; run the code in another sandbox",
                code.entered.id()
            );
            return Err(KeeperError::Policy { field: "sandbox", reason });
        }
        Ok(())
    }
}

/// The execution whose code calls.
#[derive(Clone)]
struct RunningCode<'a> {
    caller: &'a Caller,
    entered: &'a Entered,
    report: Reporter<CodeEvent>,
    held: Arc<Mutex<Option<Held>>>,
    /// One at a time: while the sandbox is frozen for one the answer to another could not reach the code.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl RunningCode<'_> {
    /// Freezes the sandbox for an approval, or for calls.
    async fn hold(&self, keeper: &Keeper, call: &str) -> Result<()> {
        let entry = &self.entered.entry;
        let alone = Some(Arc::clone(&entry.holding).lock_owned().await);
        let (keeper, entry, call) = (keeper.clone(), Arc::clone(entry), call.to_owned());
        let tasks = keeper.inner.tasks.clone();
        let holding = async move {
            keeper.hold(&entry, &call).await?;
            Ok::<_, KeeperError>(Held { keeper, entry, call, alone })
        };
        let held = run_detached(&tasks, holding).await?;
        *self.held.lock() = Some(held);
        Ok(())
    }

    /// Answers a call, with its result or the message of an error.
    async fn answer(&self, answer: v1::AnswerRequest, result: std::result::Result<Bytes, String>) {
        let answer = match result {
            Ok(value) => v1::AnswerRequest { value, ..answer },
            Err(error) => v1::AnswerRequest { error, ..answer },
        };
        // The code may have ended meanwhile.
        let _ = self.entered.guest().answer_code(answer).await;
    }

    /// Resumes the sandbox, if it is frozen for a call.
    async fn release(&self, keeper: &Keeper) -> Result<()> {
        let held = self.held.lock().take();
        match held {
            Some(mut held) => run_detached(&keeper.inner.tasks, held.take()).await,
            None => Ok(()),
        }
    }

    /// Ends a step with calls, and returns their answers, or why there will be none.
    async fn ask(
        &self,
        keeper: &Keeper,
        steps: &CallSteps,
        Place { context, language, execution }: Place,
        calls: &[v1::ToolCalled],
    ) -> Result<std::result::Result<Answers, &'static str>> {
        let ids: Vec<_> = calls.iter().map(|called| call_id(&steps.run, called.call)).collect();
        self.hold(keeper, ids.first().map_or("", String::as_str)).await?;
        let calls = ids.into_iter().zip(calls).map(|(id, called)| CodeCall {
            id,
            name: called.name.clone(),
            arguments: called.arguments.clone(),
        });
        let step = CodeStep {
            sandbox: self.entered.id().clone(),
            context,
            language,
            execution,
            calls: calls.collect(),
            expires_at: Timestamp::now().checked_add(steps.timeout).unwrap_or(Timestamp::MAX),
        };
        let (answers, answered) = oneshot::channel();
        let (run, standing) = (steps.run.clone(), self.caller.standing());
        self.report.step(EndedStep { run, standing, step, answers }).await;
        let answers = answered.await;
        self.release(keeper).await?;
        // Dropped without a reason where nobody has kept the run.
        Ok(answers.unwrap_or(Err("it has disconnected")))
    }
}

/// A sandbox that is frozen for an approval, or for calls of its code. Others of the sandbox that are to freeze it wait. Dropping this resumes it.
struct Held {
    keeper: Keeper,
    entry: Arc<Entry>,
    call: String,
    alone: Option<OwnedMutexGuard<()>>,
}

impl Held {
    /// Returns what resumes the sandbox.
    fn take(&mut self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (keeper, entry, call) =
            (self.keeper.clone(), Arc::clone(&self.entry), std::mem::take(&mut self.call));
        let alone = self.alone.take();
        async move {
            let released = keeper.release_hold(&entry, &call).await;
            drop(alone);
            released
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.alone.is_none() {
            return;
        }
        let releasing = self.take();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = releasing.await {
                tracing::warn!(error = %crate::error::chain(&error), "cannot resume a sandbox that was frozen for a call");
            }
        });
    }
}

/// Where code runs.
#[derive(Debug, Clone, Default)]
struct Place {
    context: String,
    language: String,
    execution: u64,
}

/// How calls of functions end steps.
#[derive(Clone)]
struct CallSteps {
    /// Id of the run.
    run: String,
    timeout: Duration,
    /// Why nobody answers calls any more, once that is so.
    abandoned: Arc<OnceLock<&'static str>>,
}

/// Returns what code gets instead of an answer that its caller has not given.
fn not_answered(why: &str) -> String {
    format!("its caller has not answered calls of this execution, and answers none any more: {why}")
}

/// Time between the last call and the end of its step, so that calls which code makes one after the other without waiting end it together.
const SETTLE: Duration = Duration::from_millis(5);

/// The same after a call that others were made together with, which are on their way. It may be a forged one that none follow.
const MORE_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls of tools by the code of one execution.
pub(crate) struct CallsFromCode<'a> {
    keeper: &'a Keeper,
    code: RunningCode<'a>,
    text: Bytes,
    offered: &'a OfferedTools,
    place: Place,
    /// What is shown of the code with its calls, once it has made one.
    shown: Option<CallingCode>,
    /// Why its calls have ended, once they have.
    ended: Arc<OnceLock<&'static str>>,
    running: FuturesUnordered<BoxFuture<'a, ()>>,
    /// How calls of functions end steps, if they do.
    steps: Option<CallSteps>,
    /// Those that are to end the next one, and when.
    open: Vec<v1::ToolCalled>,
    settled_at: Instant,
    /// The last call was made together with others, which follow.
    more: bool,
}

impl<'a> CallsFromCode<'a> {
    /// # Errors
    /// Fails without random numbers.
    pub(crate) fn new(
        keeper: &'a Keeper,
        caller: &'a Caller,
        entered: &'a Entered,
        report: Reporter<CodeEvent>,
        (request, offered): (&CodeRequest, &'a OfferedTools),
    ) -> Result<Self> {
        let asked = &request.tools;
        let code = RunningCode { caller, entered, report, held: Arc::default(), turn: Arc::default() };
        let steps = if asked.steps {
            let timeout = asked.call_timeout.unwrap_or(CALL_TIMEOUT);
            let mut run = [0; RUN_BYTES];
            fill_random(&mut run)?;
            let run = keeper.inner.steps.run_id(run);
            Some(CallSteps { run, timeout, abandoned: Arc::default() })
        } else {
            None
        };
        Ok(Self {
            keeper,
            code,
            text: request.code.clone(),
            offered,
            place: Place::default(),
            shown: None,
            ended: Arc::default(),
            running: FuturesUnordered::new(),
            steps,
            open: Vec::new(),
            settled_at: Instant::now(),
            more: false,
        })
    }

    /// Records where the code runs.
    pub(crate) fn set_place(&mut self, started: &v1::CodeStarted) {
        let (context, language) = started
            .context
            .as_option()
            .map(|context| (context.id.clone(), context.language.clone()))
            .unwrap_or_default();
        self.place = Place { context, language, execution: started.execution };
    }

    /// Begins a call. One of a function that does not end a step is answered by somebody else. Reports whether it is to be an event.
    pub(crate) fn begin(&mut self, called: &v1::ToolCalled) -> bool {
        let ends_step = self.steps.is_some() && !self.offered.0.contains_key(&called.name);
        if ends_step {
            self.open.push(called.clone());
        } else if let Some(named) = self.offered.0.get(&called.name) {
            self.call_tool(named, called);
        }
        // With as many as can wait, no other comes before they are answered.
        self.more = called.more && self.open.len() < MAX_ANSWERS;
        self.settle();
        !ends_step
    }

    /// Lets calls come that are on their way, before a step ends.
    fn settle(&mut self) {
        self.settled_at = Instant::now() + if self.more { MORE_TIMEOUT } else { SETTLE };
    }

    fn call_tool(&mut self, named: &'a str, called: &v1::ToolCalled) {
        let (keeper, code, answer) = (self.keeper, self.code.clone(), self.answer(called));
        let (arguments, calling) = (called.arguments.clone(), self.shown());
        let answering = async move {
            let _turn = code.turn.lock().await;
            let result = keeper.call_from_code(&code, named, &arguments, calling).await;
            let result = result.map(Bytes::from).map_err(|error| crate::error::chain(&error));
            code.answer(answer, result).await;
        };
        self.running.push(answering.boxed());
    }

    /// Returns what is shown of the code with its calls.
    fn shown(&mut self) -> CallingCode {
        let new = || {
            let Place { context, language, execution } = self.place.clone();
            let (sandbox, end) = (self.code.entered.id().to_string(), Arc::clone(&self.ended));
            CallingCode::new(sandbox, (context, language, execution), &self.text, end)
        };
        self.shown.get_or_insert_with(new).clone()
    }

    /// Ends a step with the calls that are open.
    fn end_step(&mut self, steps: CallSteps) {
        let (keeper, code, calls) = (self.keeper, self.code.clone(), std::mem::take(&mut self.open));
        let (place, answers) = (self.place.clone(), calls.iter().map(|called| self.answer(called)));
        let answers: Vec<_> = answers.collect();
        let answering = async move {
            let _turn = code.turn.lock().await;
            let mut results = match steps.abandoned.get() {
                Some(why) => Err(not_answered(why)),
                None => match code.ask(keeper, &steps, place, &calls).await {
                    Ok(Ok(results)) => Ok(results),
                    Ok(Err(why)) => Err(not_answered(steps.abandoned.get_or_init(|| why))),
                    Err(error) => Err(crate::error::chain(&error)),
                },
            };
            for answer in answers {
                let result = match &mut results {
                    // Each call that waits is answered.
                    Ok(results) => {
                        let missing = || Err(not_answered("the answer is missing"));
                        results.remove(&answer.call).unwrap_or_else(missing)
                    }
                    Err(error) => Err(error.clone()),
                };
                code.answer(answer, result).await;
            }
        };
        self.running.push(answering.boxed());
    }

    /// Returns an answer to a call, without its result.
    fn answer(&self, called: &v1::ToolCalled) -> v1::AnswerRequest {
        let Place { context, execution, .. } = self.place.clone();
        let of_tool = self.offered.0.contains_key(&called.name);
        v1::AnswerRequest { context, execution, call: called.call, of_tool, ..Default::default() }
    }

    /// Goes on with the calls, until one has been answered or begins to wait. Nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) {
        // A step ends when no call of a stored tool goes on, whose answer could not reach the code.
        let ending = self.steps.clone().filter(|_| !self.open.is_empty() && self.running.is_empty());
        if let Some(steps) = ending {
            tokio::time::sleep_until(self.settled_at.into()).await;
            self.end_step(steps);
        } else if self.running.next().await.is_some() {
            self.settle();
        } else {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the calls that go on, for this reason, and resumes the sandbox if it is frozen for one.
    pub(crate) async fn end(&mut self, reason: &'static str) -> Result<()> {
        // The first one, if this is called twice.
        let _ = self.ended.set(reason);
        self.running.clear();
        self.code.release(self.keeper).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_calls_are_bounded() {
        let asked = |steps, seconds: f64| CodeTools {
            functions: vec!["a".to_owned()],
            steps,
            call_timeout: Some(Duration::from_secs_f64(seconds)),
            ..CodeTools::default()
        };
        assert!(asked(true, 1.0).check().is_ok() && asked(true, 3600.0).check().is_ok());
        for (asked, said) in [
            (asked(true, 0.9), "give a time from 1s to 3600s"),
            (asked(true, 3601.0), "give a time from 1s to 3600s"),
            (asked(false, 5.0), "give steps"),
        ] {
            let error = asked.check().unwrap_err().to_string();
            assert!(error.starts_with("call_timeout: ") && error.ends_with(said), "{error}");
        }
    }

    #[test]
    fn names_are_checked() {
        let functions = |names: &[&str]| CodeTools {
            functions: names.iter().map(|name| (*name).to_owned()).collect(),
            ..CodeTools::default()
        };
        assert!(functions(&["lookup", "_a1"]).check().is_ok() && CodeTools::default().check().is_ok());
        for name in ["", "1a", "a-b", "a.b", "ä", "a\n", &"a".repeat(65)] {
            let error = functions(&[name]).check().unwrap_err().to_string();
            assert!(error.starts_with("functions: invalid name"), "{error}");
        }
        let most = |max_calls| CodeTools { max_calls: Some(max_calls), ..functions(&["a"]) };
        assert!(most(1000).check().is_ok() && most(0).check().is_err() && most(1001).check().is_err());
        assert!(CodeTools { max_calls: Some(1), ..CodeTools::default() }.check().is_err());
        assert!(CodeTools { steps: true, ..CodeTools::default() }.check().is_err());
        let many: Vec<String> = (0..65).map(|number| format!("a{number}")).collect();
        assert!(CodeTools { functions: many, ..CodeTools::default() }.check().is_err());
    }
}
