//! What came of an execution, as one JSON object. `docs/schema/result.schema.json` describes it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::files::FileChange;
use crate::id::SandboxId;
use crate::isolation::Isolation;
use crate::outcome::Outcome;
use crate::stream::StreamOutput;

/// The version of the result's form. It grows when a key goes or changes its meaning, not when one is added.
pub const RESULT_SCHEMA: u32 = 1;

/// What came of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The version of this form, [`RESULT_SCHEMA`].
    pub schema: u32,
    /// The sandbox that it ran in.
    pub id: SandboxId,
    /// The language's name.
    pub language: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The code's own exit code, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The name of the signal that ended it, if one did.
    pub signal: Option<String>,
    /// The exit status of `belljar run`; see [`Outcome::exit_status_with`].
    pub exit_status: u8,
    /// Its standard output.
    pub stdout: StreamOutput,
    /// Its standard error.
    pub stderr: StreamOutput,
    /// What came of the compiler, in a language that has one.
    pub compile: Option<PhaseResult>,
    /// Time from start to end of the code, in milliseconds.
    pub wall_ms: f64,
    /// Processor time of all its processes, in milliseconds, where it was measured.
    pub cpu_ms: Option<f64>,
    /// The most memory that was in use at once, in bytes, where it was measured.
    pub peak_memory_bytes: Option<u64>,
    /// Files that it made, changed or removed.
    pub files: Vec<FileChange>,
    /// Whether there were more such files than are listed.
    pub files_truncated: bool,
    /// Which walls were in force.
    pub isolation: Isolation,
    /// What to do about it, in plain words.
    pub hint: Option<String>,
    /// Where the time went, in milliseconds by step, when that was asked for.
    pub timings: Option<BTreeMap<String, f64>>,
}

/// What came of one phase of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Which phase.
    pub phase: Phase,
    /// How it ended.
    pub outcome: Outcome,
    /// Time from its start to its end, in milliseconds.
    pub wall_ms: f64,
    /// Processor time of all its processes, in milliseconds, where it was measured.
    pub cpu_ms: Option<f64>,
    /// Its standard output.
    pub stdout: StreamOutput,
    /// Its standard error.
    pub stderr: StreamOutput,
}

/// A phase of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The compiler runs.
    Compile,
    /// The code runs.
    Run,
}

/// A duration in milliseconds, to the microsecond, as results have it.
pub fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000_000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_to_the_microsecond() {
        let cases = [
            (Duration::ZERO, 0.0),
            (Duration::from_nanos(1_234_567), 1.235),
            (Duration::from_micros(12_345), 12.345),
            (Duration::from_secs(86_400), 86_400_000.0),
        ];
        for (duration, expected) in cases {
            assert!((milliseconds(duration) - expected).abs() < 1e-9, "{duration:?}");
        }
    }
}
