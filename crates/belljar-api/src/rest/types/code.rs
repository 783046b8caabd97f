//! Code in contexts, and its results.

use belljar_engine::v1;
use belljar_keeper::{
    CallAnswer, CodeCall, CodeRequest, CodeStep, CodeTools, Idempotency, NewContext, OnDisconnect, StepEnd,
};
use belljar_model::{
    ByteSize, CodeContext, CodeError, CodeExecution, CodeResult, Scalar, Written, milliseconds,
};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

use super::bytes::check_path;
use super::exec::StreamOutputBody;
use super::{Object, Span, UniqueMap, parse_env, time};
use crate::problem::Problem;

/// Maximum length of an answer to a question, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Maximum length of the answer to a call of a function, in bytes.
const MAX_TOOL_ANSWER_BYTES: usize = 1 << 20;

/// A context to create.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewContext, example = json!({"language": "python", "cwd": "project"}))]
pub(crate) struct NewContextBody {
    /// Its language: python, javascript, typescript, bash, r, or jupyter:NAME for a Jupyter kernel. Python if not given.
    language: Option<String>,
    /// Working directory: absolute, or below the home directory.
    cwd: Option<String>,
    /// Added to the sandbox's environment, for as long as the context lives.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    env: Option<UniqueMap<String>>,
}

impl NewContextBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_request(self) -> Result<NewContext, Problem> {
        Ok(NewContext { language: self.language, cwd: parse_cwd(self.cwd)?, env: parse_env(self.env)? })
    }
}

/// Code to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CodeRequest, example = json!({"code": "print(2**64)"}))]
pub(crate) struct CodeBody {
    /// The code, without NUL. It may be empty.
    code: String,
    /// The context to run it in. If not given, the language's default context, which is created if missing.
    context: Option<String>,
    /// The language, if no context is given. Python if neither is. A language without contexts runs each execution as a
    /// program.
    language: Option<String>,
    /// Working directory of this execution alone.
    cwd: Option<String>,
    /// Added to the environment, for this execution alone.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    env: Option<UniqueMap<String>>,
    /// Timeout: the sandbox's own `limits.timeout` if not given, none if 0. Then the code is interrupted, and if that
    /// does not help, its interpreter is killed 5 seconds later.
    timeout: Option<Span>,
    /// Whether questions (`input()`) are sent as events, to be answered. `false` if not given: they are errors in the
    /// code.
    allow_input: Option<bool>,
    /// Stored tools that the code may call as `belljar.tools.NAME(…)`, as `NAME` or `NAME@VERSION`: each call is one of this key. At
    /// most 64, with the functions. In Python, JavaScript and TypeScript alone.
    tools: Option<Vec<String>>,
    /// Functions that it may call in the same way, by name, which the client has. With `steps` calls of them end a step, to be answered
    /// together; else a call is the event `tool_called`, and its answer is posted to the context.
    functions: Option<Vec<String>>,
    /// Whether calls of functions end the response, with `tool_calls`, and freeze the sandbox until `continue` gets `tool_results`. `true` if not
    /// given, without `Accept: text/event-stream`.
    steps: Option<bool>,
    /// Time for which calls that end a step wait for their answers: 1 second to 1 hour, 10 minutes if not given.
    call_timeout: Option<Span>,
    /// How often the code may call them together: 1 to 1,000, 100 if not given.
    max_tool_calls: Option<u32>,
    /// Action if the client disconnects before the end: `continue`, the default, lets the code run to its end,
    /// `kill` interrupts it, and kills its interpreter if that does not help.
    on_disconnect: Option<OnDisconnectBody>,
    /// Bytes that are kept of each output stream: a number, or a text such as `1m`.
    #[schema(value_type = Option<Scalar>)]
    output: Option<ByteSize>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnDisconnect)]
enum OnDisconnectBody {
    Continue,
    Kill,
}

impl CodeBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_request(
        self,
        idempotency: Option<Idempotency>,
        has_events: bool,
    ) -> Result<CodeRequest, Problem> {
        let functions = self.functions.unwrap_or_default();
        let steps = self.steps.unwrap_or(!has_events && !functions.is_empty());
        if !steps && !has_events && !functions.is_empty() {
            let reason = "without steps functions are answered while the code runs; ask for its events, with Accept: text/event-stream";
            return Err(Problem::field("steps", reason));
        }
        Ok(CodeRequest {
            code: self.code.into(),
            context: self.context,
            language: self.language,
            cwd: parse_cwd(self.cwd)?,
            env: parse_env(self.env)?,
            timeout: self.timeout.map(|timeout| timeout.0),
            allow_input: self.allow_input.unwrap_or(false),
            tools: CodeTools {
                tools: self.tools.unwrap_or_default(),
                functions,
                max_calls: self.max_tool_calls,
                steps,
                call_timeout: self.call_timeout.map(|timeout| timeout.0),
            },
            on_disconnect: match self.on_disconnect {
                Some(OnDisconnectBody::Kill) => OnDisconnect::Kill,
                Some(OnDisconnectBody::Continue) | None => OnDisconnect::Continue,
            },
            keep_bytes: self.output.map(ByteSize::bytes),
            idempotency,
            ..CodeRequest::default()
        })
    }
}

/// An answer to a question of running code, or to a call of a function.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CodeAnswer, example = json!({"execution": 7, "value": "Ada"}))]
pub(crate) struct AnswerBody {
    /// The execution that asked, as in the event `started`.
    execution: u64,
    /// The call that is answered, as in the event `tool_called`. With either `result` or `error`.
    call: Option<u64>,
    /// The result of the call, any JSON of at most 1 MiB.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Object>)]
    result: Option<Box<RawValue>>,
    /// The message of the error that the code gets instead, at most 64 KiB.
    error: Option<String>,
    /// A line without its end, at most 64 KiB. Either this or `end_of_file`.
    value: Option<String>,
    /// No answer will follow: the code gets an end of file.
    end_of_file: Option<bool>,
}

impl AnswerBody {
    /// Converts the body to the guest's request.
    pub(crate) fn into_request(self, context: String) -> Result<v1::AnswerRequest, Problem> {
        if let Some(call) = self.call {
            return self.into_call_answer(context, call);
        }
        for (field, given) in [("result", self.result.is_some()), ("error", self.error.is_some())] {
            if given {
                return Err(Problem::field(field, "it answers a call; give call"));
            }
        }
        let end_of_file = self.end_of_file.unwrap_or(false);
        let value = match (self.value, end_of_file) {
            (Some(_), true) => return Err(Problem::field("end_of_file", "give either value or end_of_file")),
            (None, false) => return Err(Problem::field("value", "it is missing; give value or end_of_file")),
            (Some(value), false) => value,
            (None, true) => String::new(),
        };
        if value.len() > MAX_ANSWER_BYTES {
            let reason = format!("it has {} bytes; at most {MAX_ANSWER_BYTES} are allowed", value.len());
            return Err(Problem::field("value", reason));
        }
        if value.contains(['\n', '\0']) {
            return Err(Problem::field("value", "give one line, without its end and without NUL"));
        }
        Ok(v1::AnswerRequest {
            context,
            execution: self.execution,
            value: value.into(),
            end_of_file,
            ..Default::default()
        })
    }
}

impl AnswerBody {
    fn into_call_answer(self, context: String, call: u64) -> Result<v1::AnswerRequest, Problem> {
        if call == 0 {
            return Err(Problem::field("call", "calls have numbers from 1 on"));
        }
        for (field, given) in [("value", self.value.is_some()), ("end_of_file", self.end_of_file.is_some())] {
            if given {
                return Err(Problem::field(field, "it answers a question; give result or error for a call"));
            }
        }
        let (value, error) = match (self.result, self.error) {
            (Some(result), None) => (Bytes::from(String::from(Box::<str>::from(result))), String::new()),
            (None, Some(error)) if !error.is_empty() => (Bytes::new(), error),
            (None, _) => return Err(Problem::field("result", "give it, or an error that is not empty")),
            (Some(_), Some(_)) => return Err(Problem::field("error", "give either result or error")),
        };
        for (field, bytes, most) in
            [("result", value.len(), MAX_TOOL_ANSWER_BYTES), ("error", error.len(), MAX_ANSWER_BYTES)]
        {
            if bytes > most {
                return Err(Problem::field(
                    field,
                    format!("it has {bytes} bytes; at most {most} are allowed"),
                ));
            }
        }
        Ok(v1::AnswerRequest { context, execution: self.execution, call, value, error, ..Default::default() })
    }
}

/// Answers to all calls with which a step has ended.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ToolResults, example = json!({"tool_results": [{"call_id": "call_00112233445566778899aabbccddeeff_1", "result": {"city": "London"}}]}))]
pub(crate) struct ToolResultsBody {
    /// One for each call, in any order.
    #[schema(value_type = Vec<CallResultBody>)]
    tool_results: Vec<Object<CallResultBody>>,
}

/// The answer to a call, with either `result` or `error`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CallResult)]
pub(crate) struct CallResultBody {
    /// Id of the call, as in `tool_calls`.
    call_id: String,
    /// Its result.
    #[serde(default, deserialize_with = "present")]
    #[schema(schema_with = any_json)]
    result: Option<Box<RawValue>>,
    /// The message of the error that the code gets instead, at most 64 KiB.
    error: Option<String>,
}

fn any_json() -> Schema {
    let all = [Type::Object, Type::Array, Type::String, Type::Number, Type::Boolean, Type::Null];
    let described = ObjectBuilder::new().description(Some("Its result, any JSON of at most 1 MiB."));
    described.schema_type(SchemaType::from_iter(all)).build().into()
}

impl ToolResultsBody {
    /// Converts the body to the keeper's answers.
    pub(crate) fn into_answers(self) -> Result<Vec<CallAnswer>, Problem> {
        self.tool_results.into_iter().map(|Object(result)| result.into_answer()).collect()
    }
}

impl CallResultBody {
    fn into_answer(self) -> Result<CallAnswer, Problem> {
        let answer = match (self.result, self.error) {
            (Some(result), None) => Ok(Bytes::from(String::from(Box::<str>::from(result)))),
            (None, Some(error)) => Err(error),
            (None, None) | (Some(_), Some(_)) => {
                return Err(Problem::field("tool_results", "give either result or error for each call"));
            }
        };
        Ok(CallAnswer { call: self.call_id, answer })
    }
}

/// Reads a field that may be `null`, which is not the same as missing.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

fn parse_cwd(cwd: Option<String>) -> Result<Option<Bytes>, Problem> {
    let Some(cwd) = cwd else { return Ok(None) };
    check_path("cwd", cwd.as_bytes())?;
    Ok(Some(cwd.into()))
}

/// A context: an interpreter whose variables persist from one execution to the next.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Context)]
pub(crate) struct ContextBody {
    /// Its id: the language's name for the language's default context, else c1, c2, …
    #[schema(example = "python")]
    id: String,
    /// Its language.
    #[schema(example = "python")]
    language: String,
    /// Its working directory.
    #[schema(example = "/home/user")]
    cwd: String,
    /// `idle`, `busy`, or `lost`: its interpreter has ended, and the next execution gets a fresh one.
    #[schema(example = "idle")]
    state: String,
    /// Pid of the interpreter in the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Executions that were started since the interpreter started.
    executions: u64,
    /// Milliseconds since the last execution ended, or the context was created; 0 while one runs.
    idle_ms: u64,
    /// Version of the language, as reported by the interpreter.
    #[schema(example = "3.11.2")]
    version: String,
    /// Start of the interpreter: `plain`, as a new process, or `warm`, from a pre-warmed one.
    #[schema(example = "plain")]
    start: String,
    /// Reason why it is not warm, if a warm one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_note: Option<String>,
    /// Number of times that the interpreter was started, 1 for the first.
    generation: u32,
}

impl From<CodeContext> for ContextBody {
    fn from(context: CodeContext) -> Self {
        Self {
            id: context.id,
            language: context.language,
            cwd: context.cwd,
            state: context.state,
            pid: context.pid,
            executions: context.executions,
            idle_ms: context.idle_ms,
            version: context.version,
            start: context.start,
            start_note: context.start_note,
            generation: context.generation,
        }
    }
}

/// The contexts of a sandbox, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Contexts)]
pub(crate) struct ContextsBody {
    pub(crate) contexts: Vec<ContextBody>,
}

/// Result of an interrupt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Interrupted)]
pub(crate) struct InterruptedBody {
    /// Whether code was running.
    pub(crate) interrupted: bool,
}

/// A displayed result, in one or several formats.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeResult)]
pub(crate) struct ResultBody {
    /// Whether it is the value of the code's last expression; else it was displayed.
    main: bool,
    /// Its formats by MIME type: text as it is, JSON as JSON, everything else in base64.
    #[schema(value_type = BTreeMap<String, Value>, example = json!({"text/plain": "2", "image/png": "iVBORw0KGgo="}))]
    data: Map<String, Value>,
    /// Hints by MIME type, such as an image's width.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    metadata: Option<Map<String, Value>>,
    /// A later result with `update` replaces an earlier one with the same id.
    #[serde(skip_serializing_if = "Option::is_none")]
    display_id: Option<String>,
    /// Whether it replaces the earlier ones. `false` if missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    update: bool,
    /// Notes on formats that are missing or truncated because they were too large, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cut: Vec<String>,
    /// What the code had written before it. Not in events, which are in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<WrittenBody>,
}

/// Number of bytes that code has written to each stream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Written)]
struct WrittenBody {
    /// To standard output.
    stdout: u64,
    /// To standard error.
    stderr: u64,
}

impl From<CodeResult> for ResultBody {
    fn from(result: CodeResult) -> Self {
        let CodeResult { main, data, metadata, display_id, update, cut, after } = result;
        let after = after.map(|Written { stdout, stderr }| WrittenBody { stdout, stderr });
        Self { main, data, metadata, display_id, update, cut, after }
    }
}

/// An error raised by code.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeError)]
pub(crate) struct CodeErrorBody {
    /// Its name.
    #[schema(example = "ValueError")]
    name: String,
    /// Its message.
    value: String,
    /// Traceback as the interpreter prints it, without escape sequences.
    traceback: String,
}

impl From<CodeError> for CodeErrorBody {
    fn from(error: CodeError) -> Self {
        Self { name: error.name, value: error.value, traceback: error.traceback }
    }
}

/// Result of an execution of code.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeExecution)]
pub(crate) struct ExecutionBody {
    /// Its number in the sandbox, which is never reused.
    execution: u64,
    /// The id of the context that it ran in.
    #[schema(example = "python")]
    context: String,
    /// The context's language.
    #[schema(example = "python")]
    language: String,
    /// The execution number of the interpreter: 1 for the first.
    count: u64,
    /// Reason for the loss of the previous interpreter, if this execution got a fresh one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rebuilt: Option<String>,
    /// Standard output.
    stdout: StreamOutputBody,
    /// Standard error.
    stderr: StreamOutputBody,
    /// Displayed results, in order.
    results: Vec<ResultBody>,
    /// The error that the code raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CodeErrorBody>,
    #[serde(flatten)]
    end: EndBody,
}

/// What a request that runs code, or goes on with it, gets: the end of the code, or of a step of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = CodeOutcome)]
pub(crate) enum OutcomeBody {
    /// The code has ended.
    Ended(Box<ExecutionBody>),
    /// It waits for answers to its calls.
    Calls(StepBody),
}

impl From<StepEnd> for OutcomeBody {
    fn from(end: StepEnd) -> Self {
        match end {
            StepEnd::Ended(done) => Self::Ended(Box::new((*done).into())),
            StepEnd::Calls(step) => Self::Calls(step.into()),
        }
    }
}

/// End of a step of code. The sandbox is frozen until the calls are answered, all together, or their time is over.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeStep)]
pub(crate) struct StepBody {
    /// `tool_calls`.
    #[schema(example = "tool_calls")]
    status: &'static str,
    /// Number of the execution in the sandbox.
    execution: u64,
    /// The id of its context.
    #[schema(example = "python")]
    context: String,
    /// The calls that wait for their answers, the oldest first.
    tool_calls: Vec<CallBody>,
    /// Time after which the code gets an error for each, and goes on as if its client had disconnected.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// A call of a function.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FunctionCall)]
pub(crate) struct CallBody {
    /// Its id, of at most 64 letters, digits and `_`.
    #[schema(example = "call_00112233445566778899aabbccddeeff_1")]
    id: String,
    /// The function.
    name: String,
    /// Its arguments, an object.
    #[schema(value_type = Object)]
    arguments: Value,
}

impl From<CodeStep> for StepBody {
    fn from(step: CodeStep) -> Self {
        Self {
            status: "tool_calls",
            execution: step.execution,
            context: step.context,
            tool_calls: step.calls.into_iter().map(CallBody::from).collect(),
            expires_at: time(step.expires_at),
        }
    }
}

impl From<CodeCall> for CallBody {
    fn from(CodeCall { id, name, arguments }: CodeCall) -> Self {
        // The guest has checked that it is an object.
        Self { id, name, arguments: serde_json::from_slice(&arguments).unwrap_or_default() }
    }
}

/// End of an execution of code.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CodeEnd)]
pub(crate) struct EndBody {
    /// `ok`; `error`: the code raised one; `interrupted`; `timed_out`; `died`: the interpreter ended before the code did.
    #[schema(example = "ok")]
    status: &'static str,
    /// State of the context's variables: `preserved`, `lost`, or `unknown`.
    #[schema(example = "preserved")]
    state: &'static str,
    /// Reason why the variables are not preserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Reason for the interpreter's end: `timed_out`, `out_of_memory`, `pids` or `stopped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// The interpreter's exit code, if it ended by itself; of code in bash also if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The name of the signal that ended the interpreter.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Time from start to end, in milliseconds.
    wall_ms: f64,
    /// Processor time, in milliseconds.
    cpu_ms: f64,
}

impl From<&CodeExecution> for EndBody {
    fn from(done: &CodeExecution) -> Self {
        Self {
            status: done.status.as_str(),
            state: done.state.as_str(),
            reason: done.reason.clone(),
            cause: done.cause.clone(),
            exit_code: done.exit_code,
            signal: done.signal.clone(),
            hint: done.hint.clone(),
            wall_ms: milliseconds(done.wall),
            cpu_ms: milliseconds(done.cpu),
        }
    }
}

impl From<CodeExecution> for ExecutionBody {
    fn from(done: CodeExecution) -> Self {
        let end = EndBody::from(&done);
        Self {
            execution: done.execution,
            context: done.context,
            language: done.language,
            count: done.count,
            rebuilt: done.rebuilt,
            stdout: done.stdout.into(),
            stderr: done.stderr.into(),
            results: done.results.into_iter().map(ResultBody::from).collect(),
            error: done.error.map(CodeErrorBody::from),
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use belljar_model::{CodeStatus, StreamOutput, Survival};

    use super::*;
    use crate::extract::parse_json;

    #[test]
    fn refusals_name_the_field() {
        let cases = [
            (r#"{}"#, "code"),
            (r#"{"code":1}"#, "code"),
            (r#"{"code":"","cwd":""}"#, "cwd"),
            (r#"{"code":"","env":{"A=B":"x"}}"#, "env"),
            (r#"{"code":"","timeout":-1}"#, "timeout"),
            (r#"{"code":"","allow_input":"yes"}"#, "allow_input"),
            (r#"{"code":"","on_disconnect":"die"}"#, "on_disconnect"),
            (r#"{"code":"","output":"many"}"#, "output"),
            (r#"{"code":"","kernel":"x"}"#, "kernel"),
            (r#"{"code":"","functions":["f"],"steps":false}"#, "steps"),
            (r#"{"code":"","call_timeout":"soon"}"#, "call_timeout"),
        ];
        for (json, field) in cases {
            let refused =
                parse_json::<CodeBody>(json.as_bytes()).and_then(|body| body.into_request(None, false));
            assert_eq!(refused.unwrap_err().body("r").field.as_deref(), Some(field), "{json}");
        }
        let long = format!(r#"{{"execution":1,"value":"{}"}}"#, "x".repeat(MAX_ANSWER_BYTES + 1));
        let cases = [
            (r#"{"value":"x"}"#, "execution"),
            (r#"{"execution":1}"#, "value"),
            (r#"{"execution":1,"value":"a","end_of_file":true}"#, "end_of_file"),
            (r#"{"execution":1,"value":"a\nb"}"#, "value"),
            (&*long, "value"),
        ];
        for (json, field) in cases {
            let body = parse_json::<AnswerBody>(json.as_bytes());
            let problem = body.and_then(|body| body.into_request("python".to_owned())).unwrap_err();
            assert_eq!(problem.body("r").field.as_deref(), Some(field), "{json}");
        }
        for json in [
            r#"{"tool_results":[{"call_id":"a"}]}"#,
            r#"{"tool_results":[{"call_id":"a","result":null,"error":"x"}]}"#,
        ] {
            let refused =
                parse_json::<ToolResultsBody>(json.as_bytes()).and_then(ToolResultsBody::into_answers);
            assert_eq!(refused.unwrap_err().body("r").field.as_deref(), Some("tool_results"), "{json}");
        }
        let nothing =
            parse_json::<ToolResultsBody>(br#"{"tool_results":[{"call_id":"a","result":null}]}"#).unwrap();
        assert_eq!(nothing.into_answers().unwrap()[0].answer, Ok(Bytes::from_static(b"null")));
        let body = parse_json::<AnswerBody>(br#"{"execution":1,"end_of_file":true}"#).unwrap();
        assert!(body.into_request("python".to_owned()).unwrap().end_of_file);
    }

    /// The command line serializes the model's own type, which must match this one.
    #[test]
    fn json_matches_the_model() {
        let mut result = CodeResult { main: true, ..CodeResult::default() };
        result.add("application/json", b"[1]");
        result.add("no", b"");
        let done = CodeExecution {
            execution: 1,
            context: "c1".to_owned(),
            language: "python".to_owned(),
            count: 2,
            rebuilt: Some("why".to_owned()),
            stdout: StreamOutput::new(b"a", b"", 1),
            stderr: StreamOutput::new(b"\xff", b"", 1),
            results: vec![result],
            error: Some(CodeError { name: "E".to_owned(), ..CodeError::default() }),
            status: CodeStatus::Died,
            state: Survival::Lost,
            reason: Some("r".to_owned()),
            cause: Some("stopped".to_owned()),
            exit_code: Some(3),
            signal: Some("SIGKILL".to_owned()),
            hint: Some("h".to_owned()),
            wall: Duration::from_micros(12),
            cpu: Duration::from_micros(7),
        };
        let of_model = serde_json::to_value(&done).unwrap();
        assert_eq!(serde_json::to_value(ExecutionBody::from(done)).unwrap(), of_model);
    }
}
