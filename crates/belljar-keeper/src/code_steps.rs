//! Runs of code between two of their steps, each a [`Run`] that nobody reads, by the id of which those of its calls consist.

use std::collections::{BTreeMap, HashMap, VecDeque};

use belljar_engine::CodeEvent;
use belljar_model::{CodeExecution, SandboxId};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::code_step::{
    Answers, CALL_PREFIX, CallAnswer, CodeCall, CodeStep, EndedStep, RUN_BYTES, START_BYTES, run_of,
};
use crate::error::KeeperError;
use crate::run::Run;

type Result<T> = std::result::Result<T, KeeperError>;

/// Maximum length of an answer, and of the message of an error instead, in bytes.
const MAX_RESULT_BYTES: usize = 1 << 20;
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Maximum number of answers: calls of an execution that wait at a time.
pub(crate) const MAX_ANSWERS: usize = 16;

/// Maximum number of runs of which it is remembered why their calls do not wait any more.
const MAX_REMEMBERED: usize = 1024;

/// Reason for calls that waited when the server ended.
pub(crate) const SERVER_ENDED: &str = "the server ended while it waited";

/// Reason for calls whose time was over.
pub(crate) const TIME_OVER: &str = "its time was over";

/// Reason for calls whose key, or its session, is not valid any more.
pub(crate) const KEY_ENDED: &str = "its key was revoked or changed, or has expired, or its session has ended";

/// Runs whose calls wait.
#[derive(Debug)]
pub(crate) struct Steps {
    /// Begin of the ids that this server gives, which differ from those before a restart.
    start: String,
    runs: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    by_id: HashMap<String, Known>,
    /// Ids of all, the oldest first.
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Known {
    key: String,
    sandbox: SandboxId,
    state: State,
}

enum State {
    Waiting(Box<Waiting>),
    /// No call waits, for this reason.
    Closed(&'static str),
}

struct Waiting {
    run: Run<CodeEvent, CodeExecution>,
    /// The calls' numbers in the execution, by their ids.
    calls: BTreeMap<String, u64>,
    answers: oneshot::Sender<std::result::Result<Answers, &'static str>>,
    _expiry: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waiting(waiting) => formatter.debug_tuple("Waiting").field(&waiting.calls).finish(),
            Self::Closed(reason) => formatter.debug_tuple("Closed").field(reason).finish(),
        }
    }
}

/// Checks answers as far as possible without the run, and returns the run.
fn check_answers(answers: &[CallAnswer]) -> Result<&str> {
    const FIELD: &str = "tool_results";
    let refuse = |reason: String| Err(KeeperError::field(FIELD, reason));
    let Some(first) = answers.first() else {
        return refuse("it is empty; give an answer to each call that waits".to_owned());
    };
    if answers.len() > MAX_ANSWERS {
        return refuse(format!(
            "{} answers are too many; at most {MAX_ANSWERS} calls wait at a time",
            answers.len()
        ));
    }
    let run = run_of(&first.call).ok_or_else(|| unknown(&first.call))?;
    for (index, CallAnswer { call, answer }) in answers.iter().enumerate() {
        match run_of(call) {
            None => return Err(unknown(call)),
            Some(other) if other != run => {
                return refuse(format!(
                    "{} and {call} are calls of two runs; answer each run by itself",
                    first.call
                ));
            }
            Some(_) => {}
        }
        if answers[..index].iter().any(|earlier| earlier.call == *call) {
            return refuse(format!("{call} is answered twice"));
        }
        let (what, bytes, most) = match answer {
            Ok(result) => ("result", result.len(), MAX_RESULT_BYTES),
            Err(error) if error.is_empty() => return refuse(format!("the error for {call} is empty")),
            Err(error) => ("error", error.len(), MAX_ERROR_BYTES),
        };
        if bytes > most {
            return refuse(format!("the {what} for {call} has {bytes} bytes; at most {most} are allowed"));
        }
        if let Ok(result) = answer
            && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(result)
        {
            return refuse(format!("the result for {call} is not JSON: {error}"));
        }
    }
    Ok(run)
}

fn unknown(call: &str) -> KeeperError {
    KeeperError::NotFound { what: "call", id: call.chars().take(64).collect() }
}

fn closed(call: &str, reason: &'static str) -> KeeperError {
    KeeperError::CallClosed { id: call.to_owned(), reason }
}

impl Steps {
    /// Returns an empty list, for a server whose start has this random number.
    pub(crate) fn new(start: [u8; START_BYTES]) -> Self {
        Self { start: format!("{CALL_PREFIX}{}", hex::encode(start)), runs: Mutex::default() }
    }

    /// Returns the id of the run with this random number.
    pub(crate) fn run_id(&self, run: [u8; RUN_BYTES]) -> String {
        format!("{}{}", self.start, hex::encode(run))
    }

    /// Keeps a run until its calls are answered, or `expiry` has closed them.
    pub(crate) fn keep_run(
        &self,
        run: Run<CodeEvent, CodeExecution>,
        ended: EndedStep,
        expiry: AbortOnDropHandle<()>,
    ) -> CodeStep {
        let EndedStep { run: id, standing, step, answers } = ended;
        let key = standing.key;
        let number = |call: &CodeCall| Some((call.id.clone(), call.id.rsplit_once('_')?.1.parse().ok()?));
        let calls = step.calls.iter().filter_map(number).collect();
        let state = State::Waiting(Box::new(Waiting { run, calls, answers, _expiry: expiry }));
        self.keep(id, Known { key, sandbox: step.sandbox.clone(), state });
        step
    }

    fn keep(&self, id: String, known: Known) {
        let mut runs = self.runs.lock();
        let mut forgotten = None;
        if runs.by_id.insert(id.clone(), known).is_none() {
            runs.order.push_back(id);
        }
        // Those that wait are as few as the sandboxes that are frozen for them.
        let is_closed = |runs: &Runs, id: &String| {
            !matches!(runs.by_id.get(id), Some(Known { state: State::Waiting(_), .. }))
        };
        if runs.order.len() > MAX_REMEMBERED
            && let Some(at) = runs.order.iter().position(|id| is_closed(&runs, id))
        {
            forgotten = runs.order.remove(at).and_then(|id| runs.by_id.remove(&id));
        }
        drop(runs);
        drop(forgotten);
    }

    /// Ends the wait of a run's calls, if they wait.
    pub(crate) fn close(&self, id: &str, reason: &'static str) {
        let closed = {
            let mut runs = self.runs.lock();
            let waiting = runs.by_id.get_mut(id).filter(|known| matches!(known.state, State::Waiting(_)));
            waiting.map(|known| std::mem::replace(&mut known.state, State::Closed(reason)))
        };
        if let Some(State::Waiting(waiting)) = closed {
            let Waiting { run, answers, .. } = *waiting;
            // Fails if the run has ended.
            let _ = answers.send(Err(reason));
            // Tells the run that its caller is gone.
            drop(run);
        }
    }

    /// Ends the wait of all calls of a key.
    pub(crate) fn close_key(&self, key: &str, reason: &'static str) {
        let is_of_key = |(id, known): (&String, &Known)| (known.key == key).then(|| id.clone());
        let all: Vec<String> = self.runs.lock().by_id.iter().filter_map(is_of_key).collect();
        for id in all {
            self.close(&id, reason);
        }
    }

    /// Ends the wait of all calls.
    pub(crate) fn close_all(&self, reason: &'static str) {
        let all: Vec<String> = self.runs.lock().by_id.keys().cloned().collect();
        for id in all {
            self.close(&id, reason);
        }
    }

    /// Answers the calls of a run, and returns it. Nothing has changed if this fails.
    pub(crate) fn answer(
        &self,
        key: &str,
        sandbox: Option<&SandboxId>,
        answers: Vec<CallAnswer>,
    ) -> Result<(SandboxId, Run<CodeEvent, CodeExecution>)> {
        let id = check_answers(&answers)?.to_owned();
        let first = answers[0].call.clone();
        if !id.starts_with(&self.start) {
            let reason = "this server has not given it, or was restarted since: then the code went on, with an error instead of the answer";
            return Err(closed(&first, reason));
        }
        let mut runs = self.runs.lock();
        let known = runs
            .by_id
            .get_mut(&id)
            .filter(|known| known.key == key && sandbox.is_none_or(|sandbox| known.sandbox == *sandbox));
        let Some(known) = known else { return Err(unknown(&first)) };
        let waiting = match &known.state {
            State::Closed(reason) => return Err(closed(&first, reason)),
            State::Waiting(waiting) => waiting,
        };
        if let Some(other) = answers.iter().find(|answer| !waiting.calls.contains_key(&answer.call)) {
            return Err(closed(&other.call, "it is none of those that wait; it was answered before"));
        }
        let is_answered = |call: &String| answers.iter().any(|answer| answer.call == *call);
        if let Some(missing) = waiting.calls.keys().find(|call| !is_answered(call)) {
            let reason = format!("{missing} waits, too; answer all calls of a step together");
            return Err(KeeperError::field("tool_results", reason));
        }
        let answered = State::Closed("it was answered before");
        let State::Waiting(waiting) = std::mem::replace(&mut known.state, answered) else {
            return Err(unknown(&first));
        };
        let sandbox = known.sandbox.clone();
        drop(runs);
        let Waiting { run, calls, answers: sender, .. } = *waiting;
        let by_number =
            answers.into_iter().filter_map(|one| Some((*calls.get(&one.call)?, one.answer))).collect();
        // Fails if the run has ended, and then says itself how.
        let _ = sender.send(Ok(by_number));
        Ok((sandbox, run))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::code_step::call_id;

    fn answer(call: &str, result: &str) -> CallAnswer {
        CallAnswer { call: call.to_owned(), answer: Ok(Bytes::copy_from_slice(result.as_bytes())) }
    }

    fn run_id(steps: &Steps) -> String {
        let mut run = [0; RUN_BYTES];
        rustix::rand::getrandom(&mut run, rustix::rand::GetRandomFlags::empty()).unwrap();
        steps.run_id(run)
    }

    fn refusal<T: std::fmt::Debug>(refused: Result<T>) -> (&'static str, String) {
        let error = refused.unwrap_err();
        (error.code(), error.to_string())
    }

    #[test]
    fn ids_name_their_run() {
        let steps = Steps::new([0; START_BYTES]);
        let run = run_id(&steps);
        let id = call_id(&run, 1000);
        assert_eq!(run_of(&id), Some(run.as_str()));
        assert!(
            id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'),
            "{id}"
        );
        assert_ne!(run_id(&steps), run);
        let long = format!("{run}0_1");
        for wrong in [
            "",
            "_",
            "call_",
            "call__1",
            &run,
            &long,
            &call_id(&run, 10_000),
            &format!("{run}_"),
            &id.to_uppercase(),
        ] {
            assert_eq!(run_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn answers_of_a_wrong_shape_are_refused() {
        let steps = Steps::new([0; START_BYTES]);
        let (run, other) = (run_id(&steps), run_id(&steps));
        let (one, two) = (call_id(&run, 1), call_id(&run, 2));
        let error = |text: &str| CallAnswer { call: one.clone(), answer: Err(text.to_owned()) };
        assert_eq!(check_answers(&[answer(&one, "null"), answer(&two, "[1]")]).unwrap(), run);
        for (answers, said) in [
            (vec![], "tool_results: it is empty"),
            (vec![answer(&one, "1"), answer(&call_id(&other, 1), "1")], "are calls of two runs"),
            (vec![answer(&one, "1"), answer(&two, "1"), answer(&one, "1")], "is answered twice"),
            (vec![answer(&one, "{")], "is not JSON"),
            (vec![answer(&one, "")], "is not JSON"),
            (
                vec![answer(&one, &format!("\"{}\"", "x".repeat(MAX_RESULT_BYTES)))],
                "at most 1048576 are allowed",
            ),
            (vec![answer(&one, "1"); 17], "17 answers are too many"),
            (vec![error("")], "is empty"),
            (vec![error(&"x".repeat(MAX_ERROR_BYTES + 1))], "at most 65536 are allowed"),
        ] {
            let (code, text) = refusal(check_answers(&answers));
            assert!(code == "invalid_field" && text.contains(said), "{text}");
        }
        assert_eq!(refusal(check_answers(&[answer("call_1", "1")])).0, "call_not_found");
        assert_eq!(refusal(check_answers(&[answer(&one, "1"), answer("x", "1")])).0, "call_not_found");
    }

    #[tokio::test]
    async fn calls_are_answered_once_by_their_key() {
        let steps = Steps::new([0; START_BYTES]);
        let id = run_id(&steps);
        let call = call_id(&id, 7);
        let sandbox = SandboxId::from_entropy([1; 20]);
        let other = SandboxId::from_entropy([2; 20]);
        let wait = || {
            let (answers, answered) = oneshot::channel();
            let waiting = Waiting {
                run: Run::new(|_| std::future::pending()),
                calls: BTreeMap::from([(call.clone(), 7)]),
                answers,
                _expiry: AbortOnDropHandle::new(tokio::spawn(std::future::pending())),
            };
            let state = State::Waiting(Box::new(waiting));
            steps.keep(id.clone(), Known { key: "key".to_owned(), sandbox: sandbox.clone(), state });
            answered
        };
        let answered = wait();
        let attempt = |key: &str, sandbox: &SandboxId, call: &str| {
            steps.answer(key, Some(sandbox), vec![answer(call, "5")]).map(drop)
        };
        assert_eq!(refusal(attempt("other", &sandbox, &call)).0, "call_not_found");
        assert_eq!(refusal(attempt("key", &other, &call)).0, "call_not_found");
        assert_eq!(refusal(attempt("key", &sandbox, &call_id(&run_id(&steps), 7))).0, "call_not_found");
        assert_eq!(refusal(attempt("key", &sandbox, &call_id(&id, 6))).0, "call_closed");
        attempt("key", &sandbox, &call).unwrap();
        assert_eq!(answered.await.unwrap().unwrap()[&7], Ok(Bytes::from_static(b"5")));
        let (code, said) = refusal(attempt("key", &sandbox, &call));
        assert!(code == "call_closed" && said.contains("answered before"), "{said}");
        assert_eq!(refusal(attempt("other", &sandbox, &call)).0, "call_not_found");
        // One whose time is over.
        let answered = wait();
        steps.close_key("other", KEY_ENDED);
        steps.close(&id, TIME_OVER);
        assert_eq!(answered.await.unwrap(), Err(TIME_OVER));
        assert!(refusal(attempt("key", &sandbox, &call)).1.contains(TIME_OVER));
        // One whose key has ended.
        let answered = wait();
        steps.close_key("key", KEY_ENDED);
        assert_eq!(answered.await.unwrap(), Err(KEY_ENDED));
        assert!(refusal(attempt("key", &sandbox, &call)).1.contains(KEY_ENDED));
        // One of an earlier server.
        let (code, said) = refusal(attempt(
            "key",
            &sandbox,
            &call_id(&Steps::new([1; START_BYTES]).run_id([1; RUN_BYTES]), 1),
        ));
        assert!(code == "call_closed" && said.contains("was restarted"), "{said}");
        // Closed ones are forgotten before those that wait.
        let answered = wait();
        for _ in 0..=MAX_REMEMBERED {
            let known =
                Known { key: "key".to_owned(), sandbox: sandbox.clone(), state: State::Closed("over") };
            steps.keep(run_id(&steps), known);
        }
        assert!(steps.runs.lock().by_id.len() <= MAX_REMEMBERED + 1);
        attempt("key", &sandbox, &call).unwrap();
        assert!(answered.await.is_ok());
    }
}
