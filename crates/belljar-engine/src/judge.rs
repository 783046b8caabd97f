//! Outcome of a process: the guest's report, checked against what the kernel can report and what cgroups have counted.
//! Impossible reports are rejected.

use std::time::Duration;

use belljar_model::{LimitKind, Outcome};
use belljar_proto::v1;

use crate::engine::{Sandbox, Usage};

const SIGKILL: i32 = 9;

/// Highest signal number on Linux.
const MAX_SIGNAL: i32 = 64;

/// Outcome of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The outcome.
    pub outcome: Outcome,
    /// Its exit code, if it exited by itself.
    pub exit_code: Option<i32>,
    /// The signal that terminated it.
    pub signal: Option<i32>,
}

/// Determines what ended a sandbox during a command, and its usage at that time. Waits at most `timeout` for its end.
pub async fn judge_lost(sandbox: &Sandbox, before: &Usage, timeout: Duration) -> (Outcome, Usage) {
    let how = tokio::time::timeout(timeout, sandbox.wait_ended()).await;
    // OOM kills are counted by then.
    let usage = sandbox.usage().await;
    let outcome = if usage.limit_events_since(before).oom_kills > 0 {
        Outcome::OutOfMemory
    } else {
        Outcome::Infrastructure { cause: how.unwrap_or_else(|_| "the guest stopped answering".to_owned()) }
    };
    (outcome, usage)
}

/// Determines the outcome of a process, from the sandbox's usage before and after it.
#[must_use]
pub fn judge(exited: &v1::Exited, before: &Usage, after: &Usage) -> Judgement {
    let is_possible = match exited.signal {
        0 => (0..=255).contains(&exited.code),
        signal => (1..=MAX_SIGNAL).contains(&signal),
    };
    if !is_possible {
        // The kernel reports no such status: the guest made it up, and the rest of its report is ignored.
        let cause = "the guest reported an impossible exit status".to_owned();
        return Judgement { outcome: Outcome::Infrastructure { cause }, exit_code: None, signal: None };
    }
    let signal = (exited.signal > 0).then_some(exited.signal);
    let exit_code = signal.is_none().then_some(exited.code);
    let failed = exit_code != Some(0);
    let was_killed = exited.signal == SIGKILL || exited.code == 128 + SIGKILL;
    let events = after.limit_events_since(before);
    let outcome = match exited.cause.as_known().unwrap_or_default() {
        v1::Cause::CAUSE_TIMED_OUT | v1::Cause::CAUSE_STOPPED => Outcome::TimedOut,
        v1::Cause::CAUSE_MEMORY => Outcome::OutOfMemory,
        v1::Cause::CAUSE_PIDS => Outcome::Limit { limit: LimitKind::Pids },
        v1::Cause::CAUSE_UNSPECIFIED if was_killed && events.oom_kills > 0 => Outcome::OutOfMemory,
        v1::Cause::CAUSE_UNSPECIFIED if failed && events.pids_denied > 0 => {
            Outcome::Limit { limit: LimitKind::Pids }
        }
        v1::Cause::CAUSE_UNSPECIFIED => match signal {
            Some(signal) => Outcome::signalled(signal),
            None => Outcome::Exited { code: exited.code },
        },
    };
    Judgement { outcome, exit_code, signal }
}
