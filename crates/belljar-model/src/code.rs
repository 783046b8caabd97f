//! What comes of code that runs in a context of an interpreter, and its form in JSON.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::outcome::signal_name;
use crate::result::milliseconds;
use crate::stream::StreamOutput;

/// The longest MIME type, in bytes.
const MAX_MIME_BYTES: usize = 128;

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeStatus {
    /// It came to its end.
    Ok,
    /// The code raised an error.
    Error,
    /// It was interrupted.
    Interrupted,
    /// It took longer than it may.
    TimedOut,
    /// The interpreter ended before the code did.
    Died,
}

impl CodeStatus {
    /// The status as in JSON: `ok`, `error`, `interrupted`, `timed_out`, `died`.
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

/// What has become of a context's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Survival {
    /// They are there.
    Preserved,
    /// They are gone: the next execution gets a fresh interpreter.
    Lost,
    /// Nobody can tell.
    Unknown,
}

impl Survival {
    /// The state as in JSON: `preserved`, `lost`, `unknown`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preserved => "preserved",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }
}

/// A context: an interpreter whose variables live on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeContext {
    /// Its id: the language's name for the default context of a language, else `c1`, `c2`, …
    pub id: String,
    /// Its language.
    pub language: String,
    /// Its working directory.
    pub cwd: String,
    /// `idle`, `busy` or `lost`.
    pub state: String,
    /// The interpreter's process inside; none when it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Executions that were begun since the interpreter started.
    pub executions: u64,
    /// Milliseconds since the last execution ended.
    pub idle_ms: u64,
    /// Version of the language.
    pub version: String,
    /// How the interpreter came to be: `plain` or `warm`.
    pub start: String,
    /// Why it is not warm, where a warm one was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_note: Option<String>,
    /// How often the interpreter was started, 1 for the first.
    pub generation: u32,
}

/// An error that code raised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeError {
    /// Its name, such as `ValueError`.
    pub name: String,
    /// Its message.
    pub value: String,
    /// As the interpreter prints it.
    pub traceback: String,
}

/// Something shown, in one or several forms.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeResult {
    /// Whether it is the value of the last expression; else it was displayed.
    pub main: bool,
    /// Its forms by MIME type: text as it is, JSON as JSON, everything else in base64.
    pub data: Map<String, Value>,
    /// Hints by MIME type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// A later result with `update` replaces an earlier one with the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_id: Option<String>,
    /// Whether it replaces the earlier ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update: bool,
    /// Forms that are missing or shortened, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
}

/// How a form of a result is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MimeForm {
    /// As text.
    Text,
    /// As JSON.
    Json,
    /// In base64.
    Base64,
}

impl MimeForm {
    /// The form of this MIME type.
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
    /// Adds a form. What cannot be one is named in `cut` instead: it comes from inside.
    pub fn add(&mut self, mime: &str, data: &[u8]) {
        let is_plain = mime.bytes().all(|byte| byte.is_ascii_graphic());
        if mime.is_empty() || mime.len() > MAX_MIME_BYTES || !is_plain || !mime.contains('/') {
            self.cut.push("a form was left out: its MIME type cannot be one".to_owned());
            return;
        }
        let value = match MimeForm::of(mime) {
            MimeForm::Text => Value::String(String::from_utf8_lossy(data).into_owned()),
            MimeForm::Base64 => Value::String(STANDARD.encode(data)),
            MimeForm::Json => match serde_json::from_slice(data) {
                Ok(value) => value,
                Err(error) => {
                    self.cut.push(format!("{mime}: it is not JSON that can be read: {error}"));
                    return;
                }
            },
        };
        self.data.insert(mime.to_owned(), value);
    }

    /// Reads the hints; what is no object of JSON is left out.
    pub fn set_metadata(&mut self, json: &[u8]) {
        self.metadata = serde_json::from_slice(json).ok().filter(|hints: &Map<_, _>| !hints.is_empty());
    }

    /// The bytes of a form.
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

    /// The form as text.
    #[must_use]
    pub fn text(&self, mime: &str) -> Option<&str> {
        self.data.get(mime)?.as_str()
    }
}

/// What came of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CodeExecution {
    /// Its number in the sandbox, which is never used again; none when it was never begun.
    pub execution: u64,
    /// The id of the context that it ran in.
    pub context: String,
    /// Its language.
    pub language: String,
    /// The number that the interpreter gave it.
    pub count: u64,
    /// Why the interpreter was a fresh one, where the one before was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<String>,
    /// What was printed.
    pub stdout: StreamOutput,
    /// What was printed to standard error.
    pub stderr: StreamOutput,
    /// What was shown, in order.
    pub results: Vec<CodeResult>,
    /// The error that the code raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CodeError>,
    /// How it ended.
    pub status: CodeStatus,
    /// What has become of the variables.
    pub state: Survival,
    /// Why they are lost, or nobody can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What ended the interpreter: `timed_out`, `out_of_memory`, `pids`, `stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The interpreter's exit code, if it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The name of the signal that ended the interpreter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// From start to end.
    #[serde(rename = "wall_ms", with = "as_ms")]
    pub wall: Duration,
    /// Processor time.
    #[serde(rename = "cpu_ms", with = "as_ms")]
    pub cpu: Duration,
}

impl CodeExecution {
    /// The status with which a command ends that ran this: 0, or 1 after an error; 124 timed out, 130 interrupted, 137 out of
    /// memory, the interpreter's own where it ended.
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

/// The number of the signal of this name.
#[must_use]
pub fn signal_number(name: &str) -> Option<u8> {
    const MAX_SIGNAL: u8 = 64;
    (1..=MAX_SIGNAL).find(|number| signal_text(i32::from(*number)) == name)
}

/// A signal's name, or `signal n` where it has none.
#[must_use]
pub fn signal_text(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// Times as milliseconds.
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
            wall: Duration::from_micros(1500),
            cpu: Duration::from_millis(1),
        }
    }

    #[test]
    fn forms_are_written_by_their_type() {
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
        assert!(result.cut[0].starts_with("application/vnd.belljar.chart.v1+json: it is not JSON"));
    }

    #[test]
    fn json_that_nests_without_end_is_left_out() {
        let mut result = CodeResult::default();
        result.add("application/json", &b"[".repeat(1 << 20));
        assert!(result.data.is_empty() && result.cut.len() == 1);
    }

    #[test]
    fn hints_are_objects() {
        let mut result = CodeResult::default();
        for (json, is_kept) in
            [("{\"image/png\": {\"width\": 3}}", true), ("[1]", false), ("{}", false), ("x", false)]
        {
            result.set_metadata(json.as_bytes());
            assert_eq!(result.metadata.is_some(), is_kept, "{json}");
        }
    }

    #[test]
    fn the_form_is_read_back() {
        let mut written = execution();
        written.error = Some(CodeError { name: "E".to_owned(), ..CodeError::default() });
        let json = serde_json::to_value(&written).unwrap();
        assert_eq!((json["status"].as_str(), json["state"].as_str()), (Some("ok"), Some("preserved")));
        assert_eq!((json["wall_ms"].as_f64(), json.get("reason")), (Some(1.5), None));
        assert_eq!(serde_json::from_value::<CodeExecution>(json).unwrap(), written);
    }

    #[test]
    fn exit_statuses_are_those_of_a_run() {
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
