//! Commands and their results.

use belljar_keeper::{Command, ExecRequest, ExecResult, Idempotency};
use belljar_model::{ByteSize, Encoding, Outcome, RESULT_SCHEMA, Scalar, StreamOutput, milliseconds};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::deferred::DeferredOutput;
use super::bytes::decode_base64;
use super::process::signal_text;
use super::{Span, TerminalBody, UniqueMap, object, parse_env};
use crate::problem::Problem;

/// Maximum length of the standard input in a request, in bytes.
const MAX_STDIN_BYTES: usize = 1 << 20;

/// A command to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExecRequest, min_properties = 1, example = json!({"command": "echo hello", "timeout": 30}))]
pub(crate) struct ExecBody {
    /// A line for the shell. Either this or `argv`.
    command: Option<String>,
    /// A program and its arguments.
    argv: Option<Vec<String>>,
    /// Working directory: absolute, or below the home directory.
    cwd: Option<String>,
    /// User as whom it runs, such as `root`, in a machine. The sandbox's own user, `user`, if not given.
    #[schema(max_length = 256)]
    user: Option<String>,
    /// Added to the sandbox's environment.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    env: Option<UniqueMap<String>>,
    /// Its standard input, as text, at most 1 MiB. Either this or `stdin_base64`.
    stdin: Option<String>,
    /// Its standard input, in base64.
    stdin_base64: Option<String>,
    /// Timeout: the sandbox's own `limits.timeout` if not given, none if 0.
    timeout: Option<Span>,
    /// The session to run in.
    session: Option<u64>,
    /// Bytes that are kept of each stream: a number, or a text such as `1m`.
    #[schema(value_type = Option<Scalar>)]
    output: Option<ByteSize>,
}

/// A command to start in the background.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StartRequest, min_properties = 1, example = json!({"argv": ["python3", "-m", "http.server", "8000"]}))]
pub(crate) struct StartBody {
    /// A line for the shell. Either this or `argv`.
    command: Option<String>,
    /// A program and its arguments.
    argv: Option<Vec<String>>,
    /// Working directory: absolute, or below the home directory.
    cwd: Option<String>,
    /// User as whom it runs, such as `root`, in a machine. The sandbox's own user, `user`, if not given.
    #[schema(max_length = 256)]
    user: Option<String>,
    /// Added to the sandbox's environment.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    env: Option<UniqueMap<String>>,
    /// Its initial standard input, as text, at most 1 MiB. Either this or `stdin_base64`.
    stdin: Option<String>,
    /// Its initial standard input, in base64.
    stdin_base64: Option<String>,
    /// Timeout. None, if not given.
    timeout: Option<Span>,
    /// The session to run in.
    session: Option<u64>,
    /// Bytes that are kept of each stream: a number, or a text such as `1m`.
    #[schema(value_type = Option<Scalar>)]
    output: Option<ByteSize>,
    /// Whether standard input stays open for more input. `false` if not given.
    stdin_open: Option<bool>,
    /// Size of its terminal, to run on one.
    #[serde(default, deserialize_with = "object")]
    terminal: Option<TerminalBody>,
}

impl StartBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_request(self) -> Result<ExecRequest, Problem> {
        let stdin_open = self.stdin_open.unwrap_or(false);
        let terminal = self.terminal.map(|size| size.validate("terminal.")).transpose()?;
        let body = ExecBody {
            command: self.command,
            argv: self.argv,
            cwd: self.cwd,
            user: self.user,
            env: self.env,
            stdin: self.stdin,
            stdin_base64: self.stdin_base64,
            timeout: self.timeout,
            session: self.session,
            output: self.output,
        };
        Ok(ExecRequest { stdin_open, terminal, ..body.into_request(None)? })
    }
}

impl ExecBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_request(self, idempotency: Option<Idempotency>) -> Result<ExecRequest, Problem> {
        Ok(ExecRequest {
            command: parse_command(self.command, self.argv)?,
            cwd: self.cwd.map(parse_cwd).transpose()?,
            user: self.user,
            env: parse_env(self.env)?,
            stdin: parse_stdin(self.stdin, self.stdin_base64)?,
            timeout: self.timeout.map(|timeout| timeout.0),
            keep_bytes: self.output.map(ByteSize::bytes),
            session: self.session,
            idempotency,
            ..ExecRequest::default()
        })
    }
}

fn parse_command(line: Option<String>, argv: Option<Vec<String>>) -> Result<Command, Problem> {
    match (line, argv) {
        (Some(_), Some(_)) => Err(Problem::field("argv", "give either command or argv")),
        (None, None) => Err(Problem::field("command", "it is missing; give command or argv")),
        (Some(line), None) if line.is_empty() => Err(Problem::field("command", "it is empty")),
        (Some(line), None) if line.contains('\0') => {
            Err(Problem::field("command", "a NUL byte is not allowed"))
        }
        (Some(line), None) => Ok(Command::Shell(line.into())),
        (None, Some(argv)) => {
            if argv.first().is_none_or(String::is_empty) {
                return Err(Problem::field("argv", "it is empty; give a program and its arguments"));
            }
            if let Some(index) = argv.iter().position(|part| part.contains('\0')) {
                return Err(Problem::field(format!("argv[{index}]"), "a NUL byte is not allowed"));
            }
            Ok(Command::Argv(argv.into_iter().map(Bytes::from).collect()))
        }
    }
}

fn parse_cwd(cwd: String) -> Result<Bytes, Problem> {
    super::bytes::check_path("cwd", cwd.as_bytes())?;
    Ok(cwd.into())
}

fn parse_stdin(text: Option<String>, base64: Option<String>) -> Result<Bytes, Problem> {
    let (field, stdin) = match (text, base64) {
        (Some(_), Some(_)) => {
            return Err(Problem::field("stdin_base64", "give either stdin or stdin_base64"));
        }
        (Some(text), None) => ("stdin", text.into()),
        (None, Some(text)) => ("stdin_base64", decode_base64("stdin_base64", &text)?),
        (None, None) => return Ok(Bytes::new()),
    };
    if stdin.len() > MAX_STDIN_BYTES {
        let reason = format!("{} bytes are too many; at most {MAX_STDIN_BYTES} are allowed", stdin.len());
        return Err(Problem::field(field, reason));
    }
    Ok(stdin)
}

/// Result of a command.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExecResult)]
pub(crate) struct ExecResultBody {
    /// Version of this format.
    schema: u32,
    /// The process's number in the sandbox.
    process: u64,
    /// The sandbox.
    sandbox: String,
    /// Outcome: `kind` is `exited` (with `code`), `signalled`, `timed_out`, `out_of_memory`, `limit`, `denied` or
    /// `infrastructure`.
    #[schema(value_type = Object, example = json!({"kind": "exited", "code": 0}))]
    outcome: Outcome,
    /// Its own exit code, if it ended by itself.
    exit_code: Option<i32>,
    /// The name of the signal that ended it.
    signal: Option<String>,
    /// Its standard output.
    stdout: StreamOutputBody,
    /// Its standard error.
    stderr: StreamOutputBody,
    /// Time from start to end, in milliseconds.
    wall_ms: f64,
    /// Processor time, in milliseconds.
    cpu_ms: Option<f64>,
    /// Peak memory usage, in bytes.
    peak_memory_bytes: Option<u64>,
    /// Processes that were still running when it ended, and were terminated with it.
    left_behind: u32,
    /// Suggested fix.
    hint: Option<String>,
    /// State of the session that it ran in: `preserved` or `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_state: Option<&'static str>,
}

/// Captured output of a stream: all of it, or its head and its tail, joined.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StreamOutput)]
pub(super) struct StreamOutputBody {
    /// Encoding of `data`: `utf-8` or `base64`.
    #[schema(example = "utf-8")]
    encoding: &'static str,
    /// The captured bytes.
    #[schema(example = "hello\n")]
    data: String,
    /// Bytes that were written to the stream.
    bytes: u64,
    /// Whether bytes between head and tail were dropped.
    truncated: bool,
    /// Number of dropped bytes.
    omitted_bytes: u64,
    /// Bytes of `data`, once decoded, that precede the dropped ones.
    head_bytes: u64,
    /// Path of the file with the complete stream.
    log: Option<String>,
}

impl From<StreamOutput> for StreamOutputBody {
    fn from(output: StreamOutput) -> Self {
        let omitted_bytes = output.omitted_bytes();
        let encoding = match output.encoding() {
            Encoding::Utf8 => "utf-8",
            Encoding::Base64 => "base64",
        };
        Self {
            encoding,
            bytes: output.total_bytes,
            truncated: output.truncated,
            omitted_bytes,
            head_bytes: output.kept_head_bytes,
            data: output.base64.or(output.text).unwrap_or_default(),
            log: output.log,
        }
    }
}

impl ExecResultBody {
    /// Converts a result. Output that is in files is added to `deferred`.
    pub(crate) fn new(result: ExecResult, deferred: &mut DeferredOutput) -> Self {
        Self {
            schema: RESULT_SCHEMA,
            process: result.process,
            sandbox: result.sandbox.to_string(),
            outcome: result.outcome,
            exit_code: result.exit_code,
            signal: result.signal.map(signal_text),
            stdout: deferred.add(result.stdout).into(),
            stderr: deferred.add(result.stderr).into(),
            wall_ms: milliseconds(result.wall),
            cpu_ms: result.cpu.map(milliseconds),
            peak_memory_bytes: result.peak_memory_bytes,
            left_behind: result.left_behind,
            hint: result.hint,
            session_state: result.session_kept.map(|kept| if kept { "preserved" } else { "lost" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::parse_json;

    #[test]
    fn refusals_name_the_field() {
        let cases = [
            (r#"{}"#, "command"),
            (r#"{"command":"a","argv":["b"]}"#, "argv"),
            (r#"{"command":""}"#, "command"),
            (r#"{"command":"a\u0000b"}"#, "command"),
            (r#"{"argv":[]}"#, "argv"),
            (r#"{"argv":["a","\u0000"]}"#, "argv[1]"),
            (r#"{"command":"a","cwd":""}"#, "cwd"),
            (r#"{"command":"a","env":{"A=B":"x"}}"#, "env"),
            (r#"{"command":"a","stdin":"a","stdin_base64":"YQ=="}"#, "stdin_base64"),
            (r#"{"command":"a","stdin_base64":"*"}"#, "stdin_base64"),
            (r#"{"command":"a","timeout":-1}"#, "timeout"),
            (r#"{"command":"a","timeout":"soon"}"#, "timeout"),
            (r#"{"command":"a","output":"many"}"#, "output"),
            (r#"{"command":"a","session":-1}"#, "session"),
            (r#"{"command":"a","stdin_open":true}"#, "stdin_open"),
        ];
        for (json, field) in cases {
            let refused = parse_json::<ExecBody>(json.as_bytes()).and_then(|body| body.into_request(None));
            let problem = refused.unwrap_err().body("r");
            assert_eq!(problem.field.as_deref(), Some(field), "{json}: {problem:?}");
        }
        let long = ExecBody {
            command: Some("a".to_owned()),
            stdin: Some("x".repeat(MAX_STDIN_BYTES + 1)),
            ..ExecBody::default()
        };
        assert_eq!(long.into_request(None).unwrap_err().body("r").field.as_deref(), Some("stdin"));
    }

    #[test]
    fn requests_are_parsed() {
        let body = parse_json::<StartBody>(
            br#"{"argv":["a","b"],"terminal":{"rows":2,"columns":3},"stdin_open":true}"#,
        );
        let request = body.unwrap().into_request().unwrap();
        assert_eq!((request.terminal, request.stdin_open), (Some((2, 3)), true));
        let body = parse_json::<StartBody>(br#"{"command":"a","terminal":{"rows":0,"columns":3}}"#);
        let problem = body.unwrap().into_request().unwrap_err();
        assert_eq!(problem.body("r").field.as_deref(), Some("terminal.rows"));
    }
}
