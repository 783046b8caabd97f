//! Result of an execution as one JSON object. `docs/schema/result.schema.json` describes it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::files::FileChange;
use crate::id::SandboxId;
use crate::isolation::Isolation;
use crate::outcome::Outcome;
use crate::stream::StreamOutput;

/// Version of the result's form. It is incremented when a key is removed or changes its meaning, not when one is added.
pub const RESULT_SCHEMA: u32 = 1;

/// Result of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Version of this form, [`RESULT_SCHEMA`].
    pub schema: u32,
    /// Sandbox that it ran in.
    pub id: SandboxId,
    /// Name of the language.
    pub language: String,
    /// Outcome.
    pub outcome: Outcome,
    /// Exit code of the code, if it exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it, if any.
    pub signal: Option<String>,
    /// Exit status of `belljar run`; see [`Outcome::exit_status_with`].
    pub exit_status: u8,
    /// Standard output.
    pub stdout: StreamOutput,
    /// Standard error.
    pub stderr: StreamOutput,
    /// Result of the compiler, for a language that has one.
    pub compile: Option<PhaseResult>,
    /// Time from start to end of the code, in milliseconds.
    pub wall_ms: f64,
    /// Processor time of all its processes, in milliseconds, where it was measured.
    pub cpu_ms: Option<f64>,
    /// Peak memory use, in bytes, where it was measured.
    pub peak_memory_bytes: Option<u64>,
    /// Files created, changed or removed.
    pub files: Vec<FileChange>,
    /// Whether there were more such files than listed.
    pub files_truncated: bool,
    /// Isolation that was in force.
    pub isolation: Isolation,
    /// Hint about the outcome, in plain words.
    pub hint: Option<String>,
    /// Durations in milliseconds by step, if requested.
    pub timings: Option<BTreeMap<String, f64>>,
}

/// Result of one phase of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Phase.
    pub phase: Phase,
    /// Outcome.
    pub outcome: Outcome,
    /// Time from its start to its end, in milliseconds.
    pub wall_ms: f64,
    /// Processor time of all its processes, in milliseconds, where it was measured.
    pub cpu_ms: Option<f64>,
    /// Standard output.
    pub stdout: StreamOutput,
    /// Standard error.
    pub stderr: StreamOutput,
}

/// Phase of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Compilation.
    Compile,
    /// Execution of the code.
    Run,
}

/// Returns a duration in milliseconds, rounded to the microsecond, as in results.
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
