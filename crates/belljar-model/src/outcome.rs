//! Outcomes of executions.

use serde::{Deserialize, Serialize};

/// Shell status of a timeout, as of `timeout(1)`.
const STATUS_TIMED_OUT: u8 = 124;
/// Shell status when Belljar itself failed.
const STATUS_INFRASTRUCTURE: u8 = 125;
/// Shell status of a denial by policy: found, but not run.
const STATUS_DENIED: u8 = 126;
/// Shell status of a killed process: 128 plus `SIGKILL`.
const STATUS_KILLED: u8 = 137;

/// Names of signals by number, from 1. The numbers are those of x86-64 and AArch64.
const SIGNALS: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// Outcome of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// The code exited.
    Exited {
        /// Exit code, from 0 to 255.
        code: i32,
    },
    /// The code was ended by a signal that no limit sent.
    Signalled {
        /// Number of the signal.
        signal: i32,
        /// Name of the signal, such as `SIGSEGV`; see [`Outcome::signalled`].
        name: String,
    },
    /// The code was stopped at its timeout.
    TimedOut,
    /// The code was killed because it ran out of memory.
    OutOfMemory,
    /// The code failed or was stopped because it reached another limit.
    Limit {
        /// Limit that was reached.
        limit: LimitKind,
    },
    /// The code was not run, because a rule of the policy denies it.
    Denied {
        /// Rule that denies it.
        rule: String,
    },
    /// Belljar failed. This implies nothing about the code.
    Infrastructure {
        /// Cause.
        cause: String,
    },
}

/// Limit that an execution can reach, besides time and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Processes and threads at once.
    Pids,
    /// Size of the writable disk.
    Disk,
    /// Size of `/tmp`.
    Tmp,
    /// Number of files and directories.
    Inodes,
    /// Size of the output.
    Output,
    /// Descriptors of one process.
    OpenFiles,
    /// Processor time.
    Cpu,
}

impl LimitKind {
    /// Returns the limit's name, as in a result and, except for `cpu`, as the key in a specification.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pids => "pids",
            Self::Disk => "disk",
            Self::Tmp => "tmp",
            Self::Inodes => "inodes",
            Self::Output => "output",
            Self::OpenFiles => "open_files",
            Self::Cpu => "cpu",
        }
    }
}

impl Outcome {
    /// Returns the name of its kind in JSON, such as `timed_out`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Exited { .. } => "exited",
            Self::Signalled { .. } => "signalled",
            Self::TimedOut => "timed_out",
            Self::OutOfMemory => "out_of_memory",
            Self::Limit { .. } => "limit",
            Self::Denied { .. } => "denied",
            Self::Infrastructure { .. } => "infrastructure",
        }
    }

    /// Creates the outcome of a signal, with its name; a real-time signal is `SIGRTMIN+3` or the like.
    pub fn signalled(signal: i32) -> Self {
        let name = match (signal_name(signal), signal) {
            (Some(name), _) => name.to_owned(),
            (None, 34) => "SIGRTMIN".to_owned(),
            (None, 35..=64) => format!("SIGRTMIN+{}", signal - 34),
            (None, _) => format!("signal {signal}"),
        };
        Self::Signalled { signal, name }
    }

    /// Reports whether the code ran to its end and reported success.
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Exited { code: 0 })
    }

    /// Returns the exit status that a shell user expects: the code's own, 128 plus the signal, 124 timed out, 137 out of memory
    /// or at a limit, 126 denied, 125 when Belljar failed.
    pub fn exit_status(&self) -> u8 {
        self.exit_status_with(None)
    }

    /// Returns the status of [`exit_status`](Self::exit_status), but at a limit the code's own exit code if it has one.
    pub fn exit_status_with(&self, exit_code: Option<i32>) -> u8 {
        match self {
            Self::Exited { code } => low_byte(*code),
            Self::Signalled { signal, .. } => low_byte(signal.saturating_add(128)),
            Self::TimedOut => STATUS_TIMED_OUT,
            Self::OutOfMemory => STATUS_KILLED,
            Self::Limit { .. } => exit_code.map_or(STATUS_KILLED, low_byte),
            Self::Denied { .. } => STATUS_DENIED,
            Self::Infrastructure { .. } => STATUS_INFRASTRUCTURE,
        }
    }
}

/// Returns the name of a signal, such as `SIGKILL` for 9. Real-time signals have none.
pub fn signal_name(signal: i32) -> Option<&'static str> {
    let index = usize::try_from(signal).ok()?.checked_sub(1)?;
    SIGNALS.get(index).copied()
}

/// Returns the part of an exit code that the kernel passes on.
fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<(Outcome, u8, &'static str)> {
        vec![
            (Outcome::Exited { code: 0 }, 0, r#"{"kind":"exited","code":0}"#),
            (Outcome::Exited { code: 255 }, 255, r#"{"kind":"exited","code":255}"#),
            (Outcome::signalled(11), 139, r#"{"kind":"signalled","signal":11,"name":"SIGSEGV"}"#),
            (Outcome::signalled(37), 165, r#"{"kind":"signalled","signal":37,"name":"SIGRTMIN+3"}"#),
            (Outcome::TimedOut, 124, r#"{"kind":"timed_out"}"#),
            (Outcome::OutOfMemory, 137, r#"{"kind":"out_of_memory"}"#),
            (Outcome::Limit { limit: LimitKind::OpenFiles }, 137, r#"{"kind":"limit","limit":"open_files"}"#),
            (Outcome::Denied { rule: "r".into() }, 126, r#"{"kind":"denied","rule":"r"}"#),
            (Outcome::Infrastructure { cause: "c".into() }, 125, r#"{"kind":"infrastructure","cause":"c"}"#),
        ]
    }

    #[test]
    fn exit_status_and_json_form() {
        for (outcome, status, json) in samples() {
            assert_eq!(outcome.exit_status(), status, "{outcome:?}");
            assert_eq!(serde_json::to_string(&outcome).unwrap(), json);
            assert_eq!(serde_json::from_str::<Outcome>(json).unwrap(), outcome);
        }
    }

    #[test]
    fn limit_keeps_exit_code_of_code() {
        let limit = Outcome::Limit { limit: LimitKind::Pids };
        assert_eq!(limit.exit_status_with(Some(1)), 1);
        assert_eq!(limit.exit_status_with(None), 137);
        assert_eq!(Outcome::TimedOut.exit_status_with(Some(0)), 124);
    }

    #[test]
    fn signal_names() {
        let cases = [
            (1, Some("SIGHUP")),
            (9, Some("SIGKILL")),
            (15, Some("SIGTERM")),
            (31, Some("SIGSYS")),
            (0, None),
            (-1, None),
            (32, None),
            (i32::MIN, None),
        ];
        for (signal, expected) in cases {
            assert_eq!(signal_name(signal), expected, "{signal}");
        }
        assert_eq!(Outcome::signalled(99), Outcome::Signalled { signal: 99, name: "signal 99".into() });
    }

    #[test]
    fn limit_names_match_json() {
        use LimitKind::{Cpu, Disk, Inodes, OpenFiles, Output, Pids, Tmp};
        for limit in [Pids, Disk, Tmp, Inodes, Output, OpenFiles, Cpu] {
            assert_eq!(serde_json::to_value(limit).unwrap(), limit.as_str());
        }
    }
}
