//! Calls that wait for approval longer than their request.
//!
//! ```text
//!  call waits ─┬─► client knows tasks         ─► task: asked about with tasks/get, ended with tasks/cancel
//!              ├─► client asks its user       ─► input_required: the client repeats the call, which goes on waiting
//!              └─► else, or too many of a key ─► the request stays open
//! ```
//!
//! The call itself goes on, as in an open request. When its client is gone, it is cancelled: a task about which nobody asks, or a
//! call that is not repeated until the decision is due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_keeper::Waiting;
use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, DetailedTask, ErrorData, InputRequests, InputRequiredResult, Task,
    TaskPayload,
};
use rmcp::task_manager::{TaskExit, TaskManager, TaskOptions};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

/// Maximum number of calls of a key that are kept beyond their request, without those that an approver has let run and whose results were
/// fetched. Source: docs/mcp.md; held by `mcp_tasks::waiting_calls_are_bounded`.
const MAX_PARKED: usize = 16;

/// Maximum number of calls of a key that are kept after that, so that their results can be fetched again.
/// Source: docs/mcp.md; held by `tests::newest_fetched_results_are_kept`.
const MAX_FETCHED: usize = 64;

/// Time without a question about a task after which it is cancelled. Source: docs/mcp.md.
const ABANDONED: Duration = Duration::from_secs(60);

/// Interval at which clients are to ask about a task, in milliseconds.
const POLL_INTERVAL_MS: u64 = 1000;

/// Time for which a call may run, and its result is kept, after the decision was due. Source: docs/mcp.md.
const KEPT: Duration = Duration::from_secs(3600);

/// Key of the question to the client's user.
const QUESTION: &str = "approval";

/// A running call. Dropping it ends it.
pub(super) type Running = BoxFuture<'static, Result<CallToolResult, ErrorData>>;

/// The calls of an endpoint that wait longer than their request.
#[derive(Default)]
pub(super) struct Parked {
    calls: Mutex<HashMap<String, ParkedCall>>,
}

struct ParkedCall {
    /// Id of the key that made it.
    key: String,
    /// Time after which it is forgotten.
    until: Instant,
    /// When its client has first got the result of a call that an approver has let run.
    fetched_at: Option<Instant>,
    kind: Kind,
}

enum Kind {
    Task(ParkedTask),
    /// A call that its client repeats: its digest, how it ends, and what is told that it was repeated.
    Round {
        digest: [u8; 32],
        ended: AbortOnDropHandle<Result<CallToolResult, ErrorData>>,
        repeated: oneshot::Sender<()>,
    },
}

#[derive(Clone)]
struct ParkedTask {
    /// Has this task alone, so that its result is dropped with it.
    manager: TaskManager,
    /// Id of the approval that it waits for.
    approval: String,
    /// When its client has last asked about it.
    seen: Arc<Mutex<Instant>>,
}

impl Parked {
    /// Makes a waiting call a task; returns it if too many of the key are kept.
    pub(super) fn to_task(&self, key: &str, waiting: &Waiting, running: Running) -> Result<Task, Running> {
        let mut calls = self.calls.lock();
        let kept = time_left(waiting) + KEPT;
        if !has_room(&mut calls, key) {
            return Err(running);
        }
        let seen = Arc::new(Mutex::new(Instant::now()));
        let options = TaskOptions::new()
            .with_ttl_ms(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX))
            .with_poll_interval_ms(POLL_INTERVAL_MS)
            .with_status_message(message(waiting));
        let last_seen = Arc::clone(&seen);
        let manager = TaskManager::new();
        let task = manager.spawn(options, |context| {
            Box::pin(async move {
                tokio::select! {
                    biased;
                    result = running => Ok(result?),
                    () = context.cancelled() => Err(TaskExit::Cancelled),
                    () = abandoned(&last_seen) => {
                        Err(ErrorData::internal_error("cancelled, as nobody has asked about the task", None).into())
                    }
                }
            })
        });
        let kind = Kind::Task(ParkedTask { manager, approval: waiting.approval.clone(), seen });
        let (key, until) = (key.to_owned(), Instant::now() + kept * 2);
        let call = ParkedCall { key, until, fetched_at: None, kind };
        calls.insert(task.task_id.clone(), call);
        Ok(task)
    }

    /// Returns the state of a task; and the approval that its call has waited for, if this has its result for the first time.
    pub(super) fn task(&self, key: &str, id: &str) -> Result<(DetailedTask, Option<String>), ErrorData> {
        let task = self.find_task(key, id)?;
        let found = task.manager.get_task(id)?;
        let is_new = self.calls.lock().get(id).is_some_and(|call| call.fetched_at.is_none());
        let is_fetched = is_new && matches!(found.payload, TaskPayload::Completed { .. });
        Ok((found, is_fetched.then_some(task.approval)))
    }

    /// Notes that the result of a call was fetched that an approver has let run: it takes no place of its key any more. As such calls need
    /// another person, they do not pile up fast, and the newest are kept.
    pub(super) fn note_fetched(&self, key: &str, id: &str) {
        let mut calls = self.calls.lock();
        if let Some(call) = calls.get_mut(id) {
            call.fetched_at.get_or_insert_with(Instant::now);
        }
        let of_key = calls.iter().filter(|(_, call)| call.key == key);
        let mut fetched: Vec<_> =
            of_key.filter_map(|(id, call)| Some((call.fetched_at?, id.clone()))).collect();
        fetched.sort_unstable();
        for (_, id) in fetched.iter().rev().skip(MAX_FETCHED) {
            calls.remove(id);
        }
    }

    /// Cancels a task.
    pub(super) fn cancel_task(&self, key: &str, id: &str) -> Result<(), ErrorData> {
        self.find_task(key, id)?.manager.cancel_task(id)
    }

    /// Checks that a task is one of the key, and notes that its client asks.
    pub(super) fn check_task(&self, key: &str, id: &str) -> Result<(), ErrorData> {
        self.find_task(key, id).map(drop)
    }

    /// Returns a task of the key, and notes that its client asks.
    fn find_task(&self, key: &str, id: &str) -> Result<ParkedTask, ErrorData> {
        match self.calls.lock().get(id) {
            Some(ParkedCall { key: owner, kind: Kind::Task(task), .. }) if owner == key => {
                *task.seen.lock() = Instant::now();
                Ok(task.clone())
            }
            _ => Err(ErrorData::invalid_params("no such task", Some(json!({"taskId": shorten(id)})))),
        }
    }

    /// Keeps a waiting call until its client repeats it, and returns what the client is answered; returns the call if too many of the
    /// key are kept.
    pub(super) fn to_round(
        &self,
        key: &str,
        request: &CallToolRequestParams,
        waiting: &Waiting,
        running: Running,
    ) -> Result<InputRequiredResult, Running> {
        let mut calls = self.calls.lock();
        if !has_room(&mut calls, key) {
            return Err(running);
        }
        let left = time_left(waiting);
        let (repeated, is_repeated) = oneshot::channel();
        let ended = tokio::spawn(async move {
            let gone = async {
                tokio::select! {
                    _ = is_repeated => std::future::pending().await,
                    () = tokio::time::sleep(left) => {}
                }
            };
            tokio::select! {
                biased;
                result = running => result,
                () = gone => Err(ErrorData::invalid_params("cancelled, as the call was not repeated in time", None)),
            }
        });
        let kind = Kind::Round { digest: digest(request), ended: AbortOnDropHandle::new(ended), repeated };
        let until = Instant::now() + left;
        calls.insert(
            waiting.approval.clone(),
            ParkedCall { key: key.to_owned(), until, fetched_at: None, kind },
        );
        let question = json!({QUESTION: {"method": "elicitation/create", "params": {
            "mode": "form",
            "message": format!("This call is {}. Keep waiting?", message(waiting)),
            "requestedSchema": {"type": "object", "properties": {}},
        }}});
        // Cannot fail: its form is that of the protocol.
        let question: Option<InputRequests> = serde_json::from_value(question).ok();
        Ok(InputRequiredResult::new(question, Some(waiting.approval.clone())))
    }

    /// Returns how a call ends that is repeated with this state; none if its client does not want to wait. One that has begun meanwhile has a
    /// result, whatever its client wants.
    pub(super) fn resume(
        &self,
        key: &str,
        request: &CallToolRequestParams,
        state: &str,
        has_begun: bool,
    ) -> Result<Option<AbortOnDropHandle<Result<CallToolResult, ErrorData>>>, ErrorData> {
        let mut calls = self.calls.lock();
        let is_it = |call: &ParkedCall| {
            call.key == key
                && matches!(&call.kind, Kind::Round { digest: known, .. } if *known == digest(request))
        };
        let found = calls.get(state).is_some_and(is_it).then(|| calls.remove(state)).flatten();
        let Some(ParkedCall { kind: Kind::Round { ended, repeated, .. }, .. }) = found else {
            let reason = "no such call waits; make it without requestState";
            return Err(ErrorData::invalid_params(reason, Some(json!({"requestState": shorten(state)}))));
        };
        let answer = request.input_responses.as_ref().and_then(|responses| responses.get(QUESTION));
        if answer.is_some_and(|answer| answer["action"] != "accept") && !has_begun {
            return Ok(None);
        }
        // Fails if it has ended already.
        let _ = repeated.send(());
        Ok(Some(ended))
    }
}

/// Forgets calls whose time is over, and reports whether another one of the key can be kept.
fn has_room(calls: &mut HashMap<String, ParkedCall>, key: &str) -> bool {
    let now = Instant::now();
    calls.retain(|_, call| call.until > now);
    calls.values().filter(|call| call.key == key && call.fetched_at.is_none()).count() < MAX_PARKED
}

/// Waits until nobody has asked for a while.
async fn abandoned(seen: &Mutex<Instant>) {
    loop {
        let until = *seen.lock() + ABANDONED;
        if Instant::now() >= until {
            return;
        }
        tokio::time::sleep_until(until.into()).await;
    }
}

/// Returns the time until the decision is due.
fn time_left(waiting: &Waiting) -> Duration {
    Duration::try_from(waiting.expires_at.duration_since(Timestamp::now())).unwrap_or_default()
}

pub(super) fn message(waiting: &Waiting) -> String {
    let Waiting { approval, expires_at } = waiting;
    format!("waiting until another person approves {approval}, at most until {expires_at:.0}")
}

/// Returns the SHA-256 of a call, which its repetition must have.
fn digest(request: &CallToolRequestParams) -> [u8; 32] {
    Sha256::digest(json!([request.name, request.arguments]).to_string()).into()
}

fn shorten(text: &str) -> String {
    text.chars().take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn newest_fetched_results_are_kept() {
        let (parked, mut ids) = (Parked::default(), Vec::new());
        for number in 0..MAX_FETCHED + 3 {
            let approval = format!("apr_{number}");
            let expires_at = Timestamp::now() + Duration::from_secs(60);
            let waiting = Waiting { approval: approval.clone(), expires_at };
            let running: Running = Box::pin(async { Ok(CallToolResult::success(Vec::new())) });
            let Ok(task) = parked.to_task("key", &waiting, running) else { panic!("{number} is refused") };
            let fetched = async || parked.task("key", &task.task_id).unwrap().1;
            belljar_testing::wait::until("it ends", async || fetched().await.is_some()).await;
            assert_eq!(fetched().await, Some(approval));
            parked.note_fetched("key", &task.task_id);
            assert_eq!(fetched().await, None);
            ids.push(task.task_id);
        }
        let kept = ids.iter().filter(|id| parked.task("key", id).is_ok()).collect::<Vec<_>>();
        assert_eq!(kept, ids[3..].iter().collect::<Vec<_>>());
    }
}
