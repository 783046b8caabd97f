//! Processes.

use belljar_engine::{Judgement, v1};
use belljar_model::{Outcome, Scalar, milliseconds, signal_name};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

use crate::problem::Problem;

/// Highest signal number on Linux.
const MAX_SIGNAL: i32 = 64;

/// A process that was started in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProcessInfo)]
pub(crate) struct ProcessInfoBody {
    /// Its number in the sandbox, which is never reused.
    process: u64,
    /// Its pid in the sandbox.
    pid: u32,
    /// The program and its arguments.
    argv: Vec<String>,
    /// Whether it is still running.
    running: bool,
    /// Its own exit code, if it ended by itself.
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<String>,
    /// Outcome: how it ended.
    #[schema(value_type = Option<Object>)]
    outcome: Option<Outcome>,
    /// Bytes that it wrote to standard output.
    stdout_bytes: u64,
    /// Bytes that it wrote to standard error.
    stderr_bytes: u64,
    /// Bytes that it wrote to its terminal.
    terminal_bytes: u64,
}

impl ProcessInfoBody {
    /// Converts the guest's report, with the judgement of its end.
    pub(crate) fn new(info: v1::ProcessInfo, judgement: Option<Judgement>) -> Self {
        let exited = judgement.map(Exit::from);
        let argv = info.argv.iter().map(|part| String::from_utf8_lossy(part).into_owned());
        Self {
            process: info.id,
            pid: info.pid,
            argv: argv.collect(),
            running: info.running,
            exit_code: exited.as_ref().and_then(|exit| exit.exit_code),
            signal: exited.as_ref().and_then(|exit| exit.signal.clone()),
            outcome: exited.map(|exit| exit.outcome),
            stdout_bytes: info.stdout_bytes,
            stderr_bytes: info.stderr_bytes,
            terminal_bytes: info.terminal_bytes,
        }
    }
}

struct Exit {
    exit_code: Option<i32>,
    signal: Option<String>,
    outcome: Outcome,
}

impl From<Judgement> for Exit {
    fn from(judgement: Judgement) -> Self {
        Self {
            exit_code: judgement.exit_code,
            signal: judgement.signal.map(signal_text),
            outcome: judgement.outcome,
        }
    }
}

/// Returns the name of a signal, such as `SIGKILL`.
pub(crate) fn signal_text(signal: i32) -> String {
    match Outcome::signalled(signal) {
        Outcome::Signalled { name, .. } => name,
        _ => signal.to_string(),
    }
}

/// The end of a process.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Exited)]
pub(crate) struct ExitedBody {
    /// Its own exit code, if it ended by itself.
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<String>,
    /// Outcome: how it ended.
    #[schema(value_type = Object)]
    outcome: Outcome,
    /// Time from start to end, in milliseconds.
    wall_ms: f64,
    /// Processor time, in milliseconds.
    cpu_ms: f64,
    /// Bytes that it wrote to standard output.
    stdout_bytes: u64,
    /// Bytes that it wrote to standard error.
    stderr_bytes: u64,
    /// Bytes that it wrote to its terminal.
    terminal_bytes: u64,
}

impl ExitedBody {
    pub(crate) fn new(exited: &v1::Exited, judgement: Judgement) -> Self {
        let exit = Exit::from(judgement);
        Self {
            exit_code: exit.exit_code,
            signal: exit.signal,
            outcome: exit.outcome,
            wall_ms: milliseconds(Duration::from_micros(exited.wall_us)),
            cpu_ms: milliseconds(Duration::from_micros(exited.user_us.saturating_add(exited.system_us))),
            stdout_bytes: exited.stdout_bytes,
            stderr_bytes: exited.stderr_bytes,
            terminal_bytes: exited.terminal_bytes,
        }
    }
}

/// A signal to send.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Signal, example = json!({"signal": "SIGTERM", "tree": true}))]
pub(crate) struct SignalBody {
    /// Its name, such as `SIGTERM`, or its number.
    #[serde(deserialize_with = "read_signal")]
    #[schema(value_type = belljar_model::Scalar)]
    pub(crate) signal: i32,
    /// Whether all descendants of the process get it too. `false` if not given.
    #[serde(default)]
    pub(crate) tree: Option<bool>,
}

/// Parses a signal's name or number.
pub(crate) fn signal_number(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return Some(number).filter(|number| (1..=MAX_SIGNAL).contains(number));
    }
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    (1..=MAX_SIGNAL).find(|number| signal_name(*number) == Some(name.as_str()))
}

pub(super) fn read_signal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let Scalar(text) = Scalar::deserialize(deserializer)?;
    let wanted = "a name such as SIGTERM, or a number from 1 to 64";
    signal_number(&text)
        .ok_or_else(|| D::Error::custom(format_args!("{text:?} is not allowed; give {wanted}")))
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TerminalSize, example = json!({"rows": 24, "columns": 80}))]
pub(crate) struct TerminalBody {
    /// Rows, from 1 on.
    #[schema(minimum = 1)]
    pub(crate) rows: u16,
    /// Columns, from 1 on.
    #[schema(minimum = 1)]
    pub(crate) columns: u16,
}

/// The size of a terminal.
pub(crate) type ResizeBody = TerminalBody;

impl TerminalBody {
    /// Returns rows and columns, none of them 0. `prefix` precedes field names in errors.
    pub(crate) fn validate(self, prefix: &str) -> Result<(u16, u16), Problem> {
        for (name, value) in [("rows", self.rows), ("columns", self.columns)] {
            if value == 0 {
                return Err(Problem::field(format!("{prefix}{name}"), "0 is not allowed; give 1 to 65535"));
            }
        }
        Ok((self.rows, self.columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed() {
        let cases = [
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("9", Some(9)),
            ("64", Some(64)),
            ("0", None),
            ("65", None),
            ("-1", None),
            ("SIGNONE", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(signal_number(text), expected, "{text:?}");
        }
        let body: SignalBody = serde_json::from_str(r#"{"signal":15}"#).unwrap();
        assert_eq!((body.signal, body.tree), (15, None));
        assert_eq!(signal_text(35), "SIGRTMIN+1");
    }
}
