//! Results of code executed in an interpreter context, and their JSON form.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::outcome::{Outcome, signal_name};
use crate::result::milliseconds;
use crate::stream::StreamOutput;

/// Maximum length of a MIME type, in bytes.
const MAX_MIME_BYTES: usize = 128;

/// Final status of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeStatus {
    /// The code finished.
    Ok,
    /// The code raised an error.
    Error,
    /// The execution was interrupted.
    Interrupted,
    /// The execution exceeded its timeout.
    TimedOut,
    /// The interpreter ended before the code did.
    Died,
}

impl CodeStatus {
    /// Returns the name used in JSON: `ok`, `error`, `interrupted`, `timed_out`, `died`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Interrupted => "interrupted",
            Self::TimedOut => "timed_out",
            Self::Died => "died",
        }
    }
}

/// State of a context's variables after an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Survival {
    /// The variables are intact.
    Preserved,
    /// The variables are lost: the next execution gets a fresh interpreter.
    Lost,
    /// The state is not known.
    Unknown,
}

impl Survival {
    /// Returns the name used in JSON: `preserved`, `lost`, `unknown`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preserved => "preserved",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }
}

/// Context: an interpreter whose variables persist between executions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeContext {
    /// Id: the language's name for the default context of a language, else `c1`, `c2`, …
    pub id: String,
    /// Language.
    pub language: String,
    /// Working directory.
    pub cwd: String,
    /// `idle`, `busy` or `lost`.
    pub state: String,
    /// Process id of the interpreter inside the sandbox; none when it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Number of executions begun since the interpreter started.
    pub executions: u64,
    /// Milliseconds since the last execution ended.
    pub idle_ms: u64,
    /// Version of the language.
    pub version: String,
    /// How the interpreter was started: `plain` or `warm`.
    pub start: String,
    /// Reason why it is not warm although a warm one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_note: Option<String>,
    /// Number of times the interpreter was started, 1 for the first.
    pub generation: u32,
}

/// Error raised by code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeError {
    /// Name, such as `ValueError`.
    pub name: String,
    /// Message.
    pub value: String,
    /// Traceback as the interpreter prints it.
    pub traceback: String,
}

/// Displayed result, in one or several forms.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeResult {
    /// Whether it is the value of the last expression; otherwise it was displayed.
    pub main: bool,
    /// Forms by MIME type: text as text, JSON as JSON, everything else in base64.
    pub data: Map<String, Value>,
    /// Display hints by MIME type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// Id by which a later result with `update` replaces this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_id: Option<String>,
    /// Whether it replaces the earlier results with the same id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update: bool,
    /// Forms that are missing or shortened, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
    /// What the code had written before it; missing in a stream of events, which come in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Written>,
}

/// Number of bytes that code has written to each stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// To standard output.
    pub stdout: u64,
    /// To standard error.
    pub stderr: u64,
}

/// Encoding of a form of a result in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MimeForm {
    /// Text.
    Text,
    /// JSON.
    Json,
    /// Base64.
    Base64,
}

impl MimeForm {
    /// Returns the encoding for this MIME type.
    #[must_use]
    pub fn of(mime: &str) -> Self {
        if mime == "application/json" || mime.ends_with("+json") {
            Self::Json
        } else if mime.starts_with("text/")
            || ["application/javascript", "image/svg+xml", "application/xml"].contains(&mime)
        {
            Self::Text
        } else {
            Self::Base64
        }
    }
}

impl CodeResult {
    /// Adds a form. Invalid data is reported in `cut` instead of an error, as it comes from inside the sandbox.
    pub fn add(&mut self, mime: &str, data: &[u8]) {
        let is_plain = mime.bytes().all(|byte| byte.is_ascii_graphic());
        if mime.is_empty() || mime.len() > MAX_MIME_BYTES || !is_plain || !mime.contains('/') {
            self.cut.push("a form was left out: invalid MIME type".to_owned());
            return;
        }
        let value = match MimeForm::of(mime) {
            MimeForm::Text => Value::String(String::from_utf8_lossy(data).into_owned()),
            MimeForm::Base64 => Value::String(STANDARD.encode(data)),
            MimeForm::Json => match serde_json::from_slice(data) {
                Ok(value) => value,
                Err(error) => {
                    self.cut.push(format!("{mime}: invalid JSON: {error}"));
                    return;
                }
            },
        };
        self.data.insert(mime.to_owned(), value);
    }

    /// Parses the display hints. Anything but a JSON object is ignored.
    pub fn set_metadata(&mut self, json: &[u8]) {
        self.metadata = serde_json::from_slice(json).ok().filter(|hints: &Map<_, _>| !hints.is_empty());
    }

    /// Returns the bytes of a form.
    #[must_use]
    pub fn bytes(&self, mime: &str) -> Option<Vec<u8>> {
        let value = self.data.get(mime)?;
        match (MimeForm::of(mime), value) {
            (MimeForm::Base64, Value::String(text)) => STANDARD.decode(text).ok(),
            (MimeForm::Text, Value::String(text)) => Some(text.clone().into_bytes()),
            (MimeForm::Json, value) => serde_json::to_vec(value).ok(),
            _ => None,
        }
    }

    /// Returns a form as text.
    #[must_use]
    pub fn text(&self, mime: &str) -> Option<&str> {
        self.data.get(mime)?.as_str()
    }
}

/// Result of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CodeExecution {
    /// Number of the execution in the sandbox, never reused; 0 when it was never begun.
    pub execution: u64,
    /// Id of the context that it ran in.
    pub context: String,
    /// Language.
    pub language: String,
    /// Number that the interpreter gave it.
    pub count: u64,
    /// Reason why the interpreter was a fresh one, if the previous one was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<String>,
    /// Standard output.
    pub stdout: StreamOutput,
    /// Standard error.
    pub stderr: StreamOutput,
    /// Displayed results, in order.
    pub results: Vec<CodeResult>,
    /// Error raised by the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CodeError>,
    /// Final status.
    pub status: CodeStatus,
    /// State of the variables afterwards.
    pub state: Survival,
    /// Reason why the variables are lost or their state is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Cause of the interpreter's end: `timed_out`, `out_of_memory`, `pids`, `stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Exit code of the interpreter, if it ended by itself; of code in bash also if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the signal that ended the interpreter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Wall-clock time.
    #[serde(rename = "wall_ms", with = "as_ms")]
    pub wall: Duration,
    /// Processor time.
    #[serde(rename = "cpu_ms", with = "as_ms")]
    pub cpu: Duration,
}

impl CodeExecution {
    /// Returns the outcome of a command that ran this.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        const SIGINT: i32 = 2;
        const SIGKILL: i32 = 9;
        match (self.status, self.cause.as_deref()) {
            (CodeStatus::Ok, _) => Outcome::Exited { code: 0 },
            (CodeStatus::Error, _) => Outcome::Exited { code: self.exit_code.unwrap_or(1) },
            (CodeStatus::Interrupted, _) => Outcome::signalled(SIGINT),
            (CodeStatus::TimedOut, _) => Outcome::TimedOut,
            (CodeStatus::Died, Some("out_of_memory")) => Outcome::OutOfMemory,
            (CodeStatus::Died, _) if self.state == Survival::Unknown => {
                Outcome::Infrastructure { cause: String::new() }
            }
            (CodeStatus::Died, _) => match (self.exit_code, &self.signal) {
                (Some(code), _) => Outcome::Exited { code },
                (_, name) => {
                    Outcome::signalled(name.as_deref().and_then(signal_number).map_or(SIGKILL, i32::from))
                }
            },
        }
    }

    /// Returns the exit status of a command that ran this: 0, or 1 after an error, but bash's own; 124 timed out, 130 interrupted,
    /// 137 out of memory, the interpreter's own exit status if it ended.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        const TIMED_OUT: u8 = 124;
        const INTERRUPTED: u8 = 130;
        const OUT_OF_MEMORY: u8 = 137;
        const FAILED: u8 = 125;
        match self.status {
            CodeStatus::TimedOut => TIMED_OUT,
            CodeStatus::Interrupted => INTERRUPTED,
            _ if self.cause.as_deref() == Some("out_of_memory") => OUT_OF_MEMORY,
            CodeStatus::Ok | CodeStatus::Error | CodeStatus::Died => match (self.exit_code, &self.signal) {
                (Some(code), _) => u8::try_from(code).unwrap_or(FAILED),
                (_, Some(name)) => signal_number(name).map_or(FAILED, |signal| signal + 128),
                _ if self.status == CodeStatus::Ok => 0,
                _ if self.status == CodeStatus::Error => 1,
                _ => FAILED,
            },
        }
    }
}

/// Returns the number of the signal with this name.
#[must_use]
pub fn signal_number(name: &str) -> Option<u8> {
    const MAX_SIGNAL: u8 = 64;
    (1..=MAX_SIGNAL).find(|number| signal_text(i32::from(*number)) == name)
}

/// Returns the name of a signal, or `signal n` if it has none.
#[must_use]
pub fn signal_text(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// Serde of durations as milliseconds.
mod as_ms {
    use super::{Duration, milliseconds};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(milliseconds(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let ms = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(ms / 1000.0).map_err(|_| D::Error::custom("a time cannot be negative"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution() -> CodeExecution {
        CodeExecution {
            execution: 5,
            context: "python".to_owned(),
            language: "python".to_owned(),
            count: 3,
            rebuilt: None,
            stdout: StreamOutput::new(b"hi\n", b"", 3),
            stderr: StreamOutput::default(),
            results: Vec::new(),
            error: None,
            status: CodeStatus::Ok,
            state: Survival::Preserved,
            reason: None,
            cause: None,
            exit_code: None,
            signal: None,
            hint: None,
            wall: Duration::from_micros(1500),
            cpu: Duration::from_millis(1),
        }
    }

    #[test]
    fn forms_are_encoded_by_mime_type() {
        let mut result = CodeResult { main: true, ..CodeResult::default() };
        result.add("text/plain", "2 ü".as_bytes());
        result.add("text/html", b"<b>\xff</b>");
        result.add("image/png", b"\x89PNG");
        result.add("image/svg+xml", b"<svg/>");
        result.add("application/json", b"{\"a\": [1, null]}");
        result.add("application/vnd.belljar.chart.v1+json", b"{\"type\": NaN}");
        result.add("no type", b"x");
        result.add("a\u{1b}/b", b"x");
        assert_eq!(result.text("text/html"), Some("<b>\u{fffd}</b>"));
        assert_eq!(result.data["image/png"], "iVBORw==");
        assert_eq!(result.bytes("image/png").as_deref(), Some(&b"\x89PNG"[..]));
        assert_eq!(result.data["application/json"], serde_json::json!({"a": [1, null]}));
        assert_eq!((result.data.len(), result.cut.len()), (5, 3), "{result:?}");
        assert!(result.cut[0].starts_with("application/vnd.belljar.chart.v1+json: invalid JSON"));
    }

    #[test]
    fn deeply_nested_json_is_left_out() {
        let mut result = CodeResult::default();
        result.add("application/json", &b"[".repeat(1 << 20));
        assert!(result.data.is_empty() && result.cut.len() == 1);
    }

    #[test]
    fn only_json_objects_are_hints() {
        let mut result = CodeResult::default();
        for (json, is_kept) in
            [("{\"image/png\": {\"width\": 3}}", true), ("[1]", false), ("{}", false), ("x", false)]
        {
            result.set_metadata(json.as_bytes());
            assert_eq!(result.metadata.is_some(), is_kept, "{json}");
        }
    }

    #[test]
    fn json_round_trip() {
        let mut written = execution();
        written.error = Some(CodeError { name: "E".to_owned(), ..CodeError::default() });
        let json = serde_json::to_value(&written).unwrap();
        assert_eq!((json["status"].as_str(), json["state"].as_str()), (Some("ok"), Some("preserved")));
        assert_eq!((json["wall_ms"].as_f64(), json.get("reason")), (Some(1.5), None));
        assert_eq!(serde_json::from_value::<CodeExecution>(json).unwrap(), written);
    }

    #[test]
    fn exit_statuses() {
        let with = |change: fn(&mut CodeExecution)| {
            let mut execution = execution();
            change(&mut execution);
            execution.exit_status()
        };
        assert_eq!(with(|_| {}), 0);
        assert_eq!(with(|done| done.status = CodeStatus::Error), 1);
        assert_eq!(with(|done| done.status = CodeStatus::TimedOut), 124);
        assert_eq!(with(|done| done.status = CodeStatus::Interrupted), 130);
        assert_eq!(with(|done| (done.status, done.exit_code) = (CodeStatus::Died, Some(7))), 7);
        assert_eq!(with(|done| (done.status, done.exit_code) = (CodeStatus::Error, Some(0))), 0);
        assert_eq!(with(|done| (done.status, done.exit_code) = (CodeStatus::Error, Some(3))), 3);
        assert_eq!(
            with(|done| (done.status, done.signal) = (CodeStatus::Died, Some("SIGSEGV".to_owned()))),
            139
        );
        assert_eq!(
            with(|done| (done.status, done.cause) = (CodeStatus::Died, Some("out_of_memory".to_owned()))),
            137
        );
        assert_eq!(with(|done| done.status = CodeStatus::Died), 125);
    }
}
