//! Bounded collection of the output and results of code in a context, and their interpretation.

use std::time::Duration;

use belljar_model::{
    CodeContext, CodeError, CodeExecution, CodeResult, CodeStatus, HintReader, LimitEvents, Outcome,
    SandboxSpec, Survival, Written, signal_text,
};
use belljar_proto::v1;

use crate::client::CodeEvent;
use crate::collect::Collector;
use crate::engine::Usage;

/// Highest signal number on Linux.
const MAX_SIGNAL: i32 = 64;
const SIGKILL: i32 = 9;

/// The language of contexts whose code is commands.
const BASH: &str = "bash";

/// Maximum length of a text field other than output and results, in characters.
const MAX_TEXT_CHARS: usize = 4096;
/// Maximum length of an error message, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Maximum length of a traceback, in bytes.
const MAX_TRACEBACK_BYTES: usize = 256 << 10;

/// Collects the output, results and error of one execution.
#[derive(Debug)]
pub struct CodeCollector {
    started: Option<v1::CodeStarted>,
    stdout: Collector,
    stderr: Collector,
    written: Written,
    results: Vec<CodeResult>,
    error: Option<CodeError>,
}

impl CodeCollector {
    /// Creates a collector that keeps `keep` bytes of each stream: half from the start, half from the end.
    #[must_use]
    pub fn new(keep: u64) -> Self {
        Self {
            started: None,
            stdout: Collector::new(keep, None),
            stderr: Collector::new(keep, None),
            written: Written::default(),
            results: Vec::new(),
            error: None,
        }
    }

    /// Adds the next event.
    pub fn push(&mut self, event: &CodeEvent) {
        match event {
            CodeEvent::Started(started) => self.started = Some(started.clone()),
            CodeEvent::Output { stream: v1::Stream::STREAM_STDERR, data, .. } => {
                self.stderr.push(data);
                self.written.stderr += data.len() as u64;
            }
            CodeEvent::Output { data, .. } => {
                self.stdout.push(data);
                self.written.stdout += data.len() as u64;
            }
            CodeEvent::Result(result) => {
                self.results.push(CodeResult { after: Some(self.written), ..to_result(result) });
            }
            CodeEvent::Error(error) => self.error = Some(to_error(error)),
            CodeEvent::InputRequested(_) | CodeEvent::ToolCalled(_) | CodeEvent::Ended(_) => {}
        }
    }

    /// Returns the id of the execution, once it has started.
    #[must_use]
    pub fn execution(&self) -> Option<u64> {
        self.started.as_ref().map(|started| started.execution)
    }

    /// Returns the generation of the interpreter that it runs in, once it has started.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.started
            .as_ref()
            .and_then(|started| started.context.as_option())
            .map_or(0, |context| context.generation)
    }

    /// Returns the collected execution.
    #[must_use]
    pub fn finish(self, end: CodeEnd) -> CodeExecution {
        let started = self.started.unwrap_or_default();
        let context = started.context.as_option().cloned().unwrap_or_default();
        CodeExecution {
            execution: started.execution,
            context: text(&context.id),
            language: text(&context.language),
            count: started.count,
            rebuilt: Some(text(&started.rebuilt)).filter(|reason| !reason.is_empty()),
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
            results: self.results,
            error: self.error,
            status: end.status,
            state: end.state,
            reason: end.reason,
            cause: end.cause,
            exit_code: end.exit_code,
            signal: end.signal,
            hint: None,
            wall: end.wall,
            cpu: end.cpu,
        }
    }
}

/// End of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeEnd {
    /// The status.
    pub status: CodeStatus,
    /// State of the variables.
    pub state: Survival,
    /// Reason why they are lost or in an unknown state.
    pub reason: Option<String>,
    /// Cause of the interpreter's end, by its name in JSON.
    pub cause: Option<String>,
    /// The interpreter's exit code, or that of bash code that failed.
    pub exit_code: Option<i32>,
    /// Name of the signal that terminated the interpreter.
    pub signal: Option<String>,
    /// Elapsed time from start to end.
    pub wall: Duration,
    /// Processor time.
    pub cpu: Duration,
}

impl CodeEnd {
    /// Creates an end that was not reported by the guest.
    #[must_use]
    pub fn unreported(
        status: CodeStatus,
        state: Survival,
        reason: impl Into<String>,
        wall: Duration,
    ) -> Self {
        Self {
            status,
            state,
            reason: Some(reason.into()),
            cause: None,
            exit_code: None,
            signal: None,
            wall,
            cpu: Duration::ZERO,
        }
    }

    /// Interprets the end reported by the guest, with the sandbox's usage before and after it. Rejects impossible reports.
    #[must_use]
    pub fn judge(ended: &v1::CodeEnded, before: &Usage, after: &Usage) -> Self {
        let wall = Duration::from_micros(ended.wall_us);
        let invalid = |what: &str| {
            Self::unreported(CodeStatus::Died, Survival::Unknown, format!("the guest reported {what}"), wall)
        };
        let status = match ended.status.as_known() {
            Some(v1::CodeStatus::CODE_STATUS_OK) => CodeStatus::Ok,
            Some(v1::CodeStatus::CODE_STATUS_ERROR) => CodeStatus::Error,
            Some(v1::CodeStatus::CODE_STATUS_INTERRUPTED) => CodeStatus::Interrupted,
            Some(v1::CodeStatus::CODE_STATUS_TIMED_OUT) => CodeStatus::TimedOut,
            Some(v1::CodeStatus::CODE_STATUS_DIED) => CodeStatus::Died,
            Some(v1::CodeStatus::CODE_STATUS_UNSPECIFIED) | None => {
                return invalid("an unknown status");
            }
        };
        let state = match ended.state.as_known() {
            Some(v1::Survival::SURVIVAL_PRESERVED) => Survival::Preserved,
            Some(v1::Survival::SURVIVAL_LOST) => Survival::Lost,
            _ => Survival::Unknown,
        };
        let is_dead = state == Survival::Lost;
        if status == CodeStatus::Died && state == Survival::Preserved {
            return invalid("an interpreter that ended and kept its state");
        }
        if !(0..=MAX_SIGNAL).contains(&ended.signal) || !(0..=255).contains(&ended.exit_code) {
            return invalid("an impossible exit status");
        }
        let signal = (ended.signal > 0).then_some(ended.signal);
        let cause = match ended.cause.as_known() {
            Some(v1::Cause::CAUSE_TIMED_OUT) => Some("timed_out"),
            Some(v1::Cause::CAUSE_MEMORY) => Some("out_of_memory"),
            Some(v1::Cause::CAUSE_PIDS) => Some("pids"),
            Some(v1::Cause::CAUSE_STOPPED) => Some("stopped"),
            _ if is_dead && signal == Some(SIGKILL) && after.limit_events_since(before).oom_kills > 0 => {
                Some("out_of_memory")
            }
            _ => None,
        };
        let reported = Some(text(&ended.reason)).filter(|reason| !reason.is_empty());
        let reason = match (cause, reported) {
            (Some("out_of_memory"), _) => {
                Some("the interpreter was killed because the sandbox ran out of memory".to_owned())
            }
            (_, Some(reason)) => Some(reason),
            (_, None) => (state != Survival::Preserved).then(|| "the guest reported no reason".to_owned()),
        };
        Self {
            status,
            state,
            reason: reason.filter(|_| state != Survival::Preserved),
            cause: cause.filter(|_| is_dead).map(str::to_owned),
            exit_code: (status != CodeStatus::TimedOut && signal.is_none())
                .then_some(ended.exit_code)
                .filter(|code| is_dead || (status == CodeStatus::Error && *code != 0)),
            signal: signal.filter(|_| is_dead).map(signal_text),
            wall,
            cpu: Duration::from_micros(ended.cpu_us),
        }
    }
}

/// Returns a hint about an execution, with the limits hit meanwhile, if there is one.
#[must_use]
pub fn hint(
    done: &CodeExecution,
    events: LimitEvents,
    spec: &SandboxSpec,
    reader: &HintReader,
) -> Option<String> {
    // An uncaught error is all that a program would have written to standard error about it.
    let error = match &done.error {
        // Bash has no errors of its own: its programs have written why they failed.
        _ if done.language == BASH => done.stderr.text.clone(),
        error => error.as_ref().map(|error| format!("{}: {}", error.name, error.value)),
    };
    let outcome = done.outcome();
    let hint =
        |outcome: &Outcome, said: &str| belljar_model::hint(outcome, events, said.as_bytes(), spec, reader);
    let output =
        [&done.stdout, &done.stderr].map(|stream| stream.text.as_deref().unwrap_or_default()).join("\n");
    if outcome.is_success() && COMMAND_FAILED.iter().any(|failed| output.contains(failed)) {
        return hint(&Outcome::Exited { code: 1 }, &output);
    }
    let error = error.unwrap_or_default();
    // The error may only say that a command has failed, or have the reason in its cause.
    let traceback = done.error.as_ref().map_or("", |error| error.traceback.as_str());
    hint(&outcome, &error).or_else(|| hint(&outcome, &[&output, traceback, &error].join("\n")))
}

/// What a command of a cell writes that has failed for a reason of the sandbox's, whereupon the cell is no error.
const COMMAND_FAILED: [&str; 4] = [
    "ERROR: No matching distribution found for ",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "are you root?",
];

/// Converts a result for JSON.
#[must_use]
pub fn to_result(result: &v1::CodeResult) -> CodeResult {
    let mut converted = CodeResult {
        main: result.main,
        display_id: Some(text(&result.display_id)).filter(|id| !id.is_empty()),
        update: result.update,
        cut: result.cut.iter().map(|cut| text(cut)).collect(),
        ..CodeResult::default()
    };
    for form in &result.data {
        converted.add(&form.mime, &form.data);
    }
    if !result.metadata.is_empty() {
        converted.set_metadata(&result.metadata);
    }
    converted
}

/// Converts an error for JSON.
#[must_use]
pub fn to_error(error: &v1::CodeError) -> CodeError {
    CodeError {
        name: text(&error.name),
        value: truncate(&error.value, MAX_ERROR_BYTES),
        traceback: truncate(&error.traceback, MAX_TRACEBACK_BYTES),
    }
}

/// Converts a context for JSON.
#[must_use]
pub fn context(info: &v1::ContextInfo) -> CodeContext {
    let state = match info.state.as_known() {
        Some(v1::ContextState::CONTEXT_STATE_IDLE) => "idle",
        Some(v1::ContextState::CONTEXT_STATE_BUSY) => "busy",
        _ => "lost",
    };
    let start = match info.start.as_known() {
        Some(v1::KernelStart::KERNEL_START_WARM) => "warm",
        _ => "plain",
    };
    CodeContext {
        id: text(&info.id),
        language: text(&info.language),
        cwd: text(&String::from_utf8_lossy(&info.cwd)),
        state: state.to_owned(),
        pid: Some(info.pid).filter(|pid| *pid != 0),
        executions: info.executions,
        idle_ms: info.idle_ms,
        version: text(&info.version),
        start: start.to_owned(),
        start_note: Some(text(&info.start_note)).filter(|note| !note.is_empty()),
        generation: info.generation,
    }
}

/// Sanitizes text from inside the sandbox: replaces control characters, and truncates it.
#[must_use]
pub fn text(text: &str) -> String {
    let plain =
        |character: char| if character.is_control() { char::REPLACEMENT_CHARACTER } else { character };
    text.chars().take(MAX_TEXT_CHARS).map(plain).collect()
}

fn truncate(text: &str, max_bytes: usize) -> String {
    let mut end = max_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: v1::CodeStatus, state: v1::Survival) -> v1::CodeEnded {
        v1::CodeEnded { status: status.into(), state: state.into(), ..Default::default() }
    }

    fn judge(ended: &v1::CodeEnded, kills: u64) -> CodeEnd {
        let after = Usage { oom_kills: kills, ..Usage::default() };
        CodeEnd::judge(ended, &Usage::default(), &after)
    }

    #[test]
    fn possible_ends_are_accepted() {
        use v1::CodeStatus as Status;
        use v1::Survival as State;
        let end = judge(&ended(Status::CODE_STATUS_OK, State::SURVIVAL_PRESERVED), 0);
        assert_eq!(
            (end.status, end.state, end.reason, end.exit_code),
            (CodeStatus::Ok, Survival::Preserved, None, None)
        );
        let end = judge(&ended(Status::CODE_STATUS_TIMED_OUT, State::SURVIVAL_PRESERVED), 1);
        assert_eq!((end.state, end.cause, end.signal), (Survival::Preserved, None, None));
        let killed = v1::CodeEnded { signal: 9, ..ended(Status::CODE_STATUS_DIED, State::SURVIVAL_LOST) };
        let end = judge(&killed, 1);
        assert_eq!((end.cause.as_deref(), end.signal.as_deref()), (Some("out_of_memory"), Some("SIGKILL")));
        let end = judge(&killed, 0);
        assert_eq!((end.cause, end.reason.as_deref()), (None, Some("the guest reported no reason")));
        let left = v1::CodeEnded { exit_code: 3, ..ended(Status::CODE_STATUS_ERROR, State::SURVIVAL_LOST) };
        assert_eq!((judge(&left, 0).exit_code, judge(&left, 0).status), (Some(3), CodeStatus::Error));
        let failed =
            v1::CodeEnded { exit_code: 3, ..ended(Status::CODE_STATUS_ERROR, State::SURVIVAL_PRESERVED) };
        assert_eq!((judge(&failed, 0).exit_code, judge(&failed, 0).reason), (Some(3), None));
        assert_eq!(judge(&ended(Status::CODE_STATUS_ERROR, State::SURVIVAL_PRESERVED), 0).exit_code, None);
        let left = v1::CodeEnded { exit_code: 0, ..ended(Status::CODE_STATUS_DIED, State::SURVIVAL_LOST) };
        assert_eq!(judge(&left, 0).exit_code, Some(0));
    }

    #[test]
    fn impossible_ends_are_rejected() {
        use v1::CodeStatus as Status;
        use v1::Survival as State;
        let cases = [
            v1::CodeEnded::default(),
            ended(Status::CODE_STATUS_DIED, State::SURVIVAL_PRESERVED),
            v1::CodeEnded { signal: 65, ..ended(Status::CODE_STATUS_DIED, State::SURVIVAL_LOST) },
            v1::CodeEnded { signal: -1, ..ended(Status::CODE_STATUS_OK, State::SURVIVAL_PRESERVED) },
            v1::CodeEnded { exit_code: 256, ..ended(Status::CODE_STATUS_DIED, State::SURVIVAL_LOST) },
        ];
        for case in cases {
            let end = judge(&case, 0);
            assert_eq!((end.status, end.state), (CodeStatus::Died, Survival::Unknown), "{case:?}");
            assert!(end.reason.is_some_and(|reason| reason.starts_with("the guest reported")));
        }
    }

    #[test]
    fn events_are_collected() {
        let mut collector = CodeCollector::new(4);
        let context = v1::ContextInfo { id: "py\u{1b}thon".to_owned(), ..Default::default() };
        let started =
            v1::CodeStarted { execution: 7, count: 2, context: context.into(), ..Default::default() };
        collector.push(&CodeEvent::Started(started));
        let output = |stream, data: &'static [u8]| CodeEvent::Output { stream, offset: 0, data: data.into() };
        collector.push(&output(v1::Stream::STREAM_STDOUT, b"abcdef"));
        collector.push(&output(v1::Stream::STREAM_STDERR, b"no"));
        let form = v1::MimeData { mime: "text/plain".to_owned(), data: "2".into(), ..Default::default() };
        collector.push(&CodeEvent::Result(v1::CodeResult {
            main: true,
            data: vec![form],
            ..Default::default()
        }));
        let long = "ü".repeat(MAX_ERROR_BYTES);
        collector.push(&CodeEvent::Error(v1::CodeError {
            name: "E".to_owned(),
            value: long,
            ..Default::default()
        }));
        assert_eq!(collector.execution(), Some(7));
        let end = CodeEnd::unreported(CodeStatus::Died, Survival::Unknown, "gone", Duration::ZERO);
        let done = collector.finish(end);
        assert_eq!((done.context.as_str(), done.count), ("py\u{fffd}thon", 2));
        assert_eq!((done.stdout.text.as_deref(), done.stdout.total_bytes), (Some("abef"), 6));
        assert_eq!(
            (done.stderr.text.as_deref(), done.results[0].text("text/plain")),
            (Some("no"), Some("2"))
        );
        assert!(done.error.is_some_and(|error| error.value.len() <= MAX_ERROR_BYTES));
    }
}
