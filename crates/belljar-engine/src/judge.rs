//! How a process ended: what the guest tells, checked against what the kernel can tell and against what control groups
//! have seen. The guest is not believed an end that cannot be.

use std::time::Duration;

use belljar_model::{LimitKind, Outcome};
use belljar_proto::v1;

use crate::engine::{Sandbox, Usage};

const SIGKILL: i32 = 9;

/// The greatest number of a signal on Linux.
const MAX_SIGNAL: i32 = 64;

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// How.
    pub outcome: Outcome,
    /// Its own exit code, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// What ended a sandbox with a command in it, and what the sandbox had used by then. `patience` is how long its end is waited for.
pub async fn judge_lost(sandbox: &Sandbox, before: &Usage, patience: Duration) -> (Outcome, Usage) {
    let how = tokio::time::timeout(patience, sandbox.ended()).await;
    // What its end has killed is known then.
    let usage = sandbox.usage().await;
    let outcome = if usage.oom_kills > before.oom_kills {
        Outcome::OutOfMemory
    } else {
        Outcome::Infrastructure { cause: how.unwrap_or_else(|_| "the guest stopped answering".to_owned()) }
    };
    (outcome, usage)
}

/// Judges an end, from what the sandbox had used before it and after.
#[must_use]
pub fn judge(exited: &v1::Exited, before: &Usage, after: &Usage) -> Judgement {
    let is_possible = match exited.signal {
        0 => (0..=255).contains(&exited.code),
        signal => (1..=MAX_SIGNAL).contains(&signal),
    };
    if !is_possible {
        // The kernel tells no such end: the guest made it up, and nothing else that it says of it counts.
        let cause = "the guest reported an impossible exit status".to_owned();
        return Judgement { outcome: Outcome::Infrastructure { cause }, exit_code: None, signal: None };
    }
    let signal = (exited.signal > 0).then_some(exited.signal);
    let exit_code = signal.is_none().then_some(exited.code);
    let failed = exit_code != Some(0);
    let was_killed = exited.signal == SIGKILL || exited.code == 128 + SIGKILL;
    let outcome = match exited.cause.as_known().unwrap_or_default() {
        v1::Cause::CAUSE_TIMED_OUT | v1::Cause::CAUSE_STOPPED => Outcome::TimedOut,
        v1::Cause::CAUSE_MEMORY => Outcome::OutOfMemory,
        v1::Cause::CAUSE_PIDS => Outcome::Limit { limit: LimitKind::Pids },
        v1::Cause::CAUSE_UNSPECIFIED if was_killed && after.oom_kills > before.oom_kills => {
            Outcome::OutOfMemory
        }
        v1::Cause::CAUSE_UNSPECIFIED if failed && after.pids_denied > before.pids_denied => {
            Outcome::Limit { limit: LimitKind::Pids }
        }
        v1::Cause::CAUSE_UNSPECIFIED => match signal {
            Some(signal) => Outcome::signalled(signal),
            None => Outcome::Exited { code: exited.code },
        },
    };
    Judgement { outcome, exit_code, signal }
}
