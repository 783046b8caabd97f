//! `run_code`: code in a context.

use std::time::Duration;

use belljar_engine::{CodeEvent, v1};
use belljar_keeper::{
    CallAnswer, CodeCall, CodeRequest, CodeTools, KeeperError, OnDisconnect, Run, RunEvent, StepEnd,
};
use belljar_model::{CodeExecution, CodeResult, CodeStatus, MimeForm, Survival, Written};
use bytes::Bytes;
use rmcp::model::{ContentBlock, ResourceContents};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::mcp::call::{Call, HINT_READER, Hints, MAX_OUTPUT_BYTES, Place, Reply, Tool};
use crate::problem::Problem;
use crate::rest::types::time;
use crate::stream::{KeptOutput, Pieces};

/// MIME types that clients show as pictures.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// MIME types that models read, the best first.
const TEXTS: [&str; 4] = ["text/plain", "text/markdown", "text/latex", "text/html"];

/// Runs code.
pub(crate) struct RunCode;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCodeInput {
    /// The code. The value of its last expression is in the answer, and pictures and charts that it shows. Always given, except with
    /// `tool_results`.
    code: Option<String>,
    /// The language, such as python (the default), javascript, typescript, bash, or any that the template has.
    language: Option<String>,
    /// A context to run in, as named in an earlier answer; the language's default one if not given.
    context: Option<String>,
    /// Seconds after which the code is interrupted; the sandbox's own limit if not given.
    #[schemars(range(min = 1))]
    timeout: Option<u32>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
    /// Names of functions of yours that the code may call as `belljar.tools.NAME(…)`, in Python, JavaScript and TypeScript. If it does, the answer has
    /// `tool_calls`, and the code waits until you call this tool again with `tool_results`.
    functions: Option<Vec<String>>,
    /// Seconds for which `tool_calls` wait for their results, 1 to 3600; 600 if not given. Then the code is interrupted.
    #[schemars(range(min = 1, max = 3600))]
    call_timeout: Option<u32>,
    /// Results of all `tool_calls` of an earlier answer, with which its code goes on. Given alone, or with `sandbox`.
    tool_results: Option<Vec<CallResultInput>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CallResultInput {
    /// Id of the call.
    call_id: String,
    /// What the function has returned, any JSON. Either this or `error`.
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    /// Message of the error that the code gets instead.
    error: Option<String>,
}

/// Reads a field that may be `null`, which is not the same as missing.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Result of code, or of a step of it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunCodeOutput {
    #[serde(flatten)]
    code: CodeOutput,
    /// With the status `tool_calls`: calls of functions that wait for their results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallOutput>,
    /// Time until which they wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

/// A call of a function.
#[derive(Serialize, JsonSchema)]
struct CallOutput {
    /// Its id, for `tool_results`.
    id: String,
    /// The function.
    name: String,
    /// Its arguments.
    arguments: Map<String, Value>,
}

/// Result of code.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CodeOutput {
    /// Id of the sandbox, to use in further calls.
    pub(crate) sandbox: String,
    /// Whether the sandbox was created for this call.
    pub(crate) sandbox_created: bool,
    /// `ok`, `error`, `interrupted`, `timed_out` or `died`; `tool_calls` if it waits for results.
    pub(crate) status: String,
    /// The language.
    pub(crate) language: String,
    /// The context it ran in.
    pub(crate) context: String,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
    /// What it showed, in order.
    pub(crate) results: Vec<ShownResult>,
    /// The error that it raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<RaisedError>,
    /// Exit code of an interpreter that has ended, and of code in bash that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// State of the variables: `preserved`, `lost` or `unknown`.
    pub(crate) state: String,
    /// What to do about a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// Time it took, in milliseconds.
    pub(crate) wall_ms: f64,
}

/// A shown result. Pictures are in the content of the answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownResult {
    /// Whether it is the value of the last expression.
    main: bool,
    /// The result as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Its forms that are JSON, such as charts and tables, by MIME type.
    #[serde(skip_serializing_if = "Map::is_empty")]
    json: Map<String, Value>,
    /// MIME types of all its forms.
    mime_types: Vec<String>,
}

/// An error that code raised.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RaisedError {
    /// Its name, such as `ValueError`.
    name: String,
    /// Its message.
    value: String,
    /// The traceback.
    traceback: String,
}

impl Tool for RunCode {
    const NAME: &'static str = "run_code";
    const TITLE: &'static str = "Run code";
    const DESCRIPTION: &'static str = "Runs code in a sandbox and returns its output, the value of its last expression, and pictures and \
         charts. Variables and imports are kept for the next call in the same sandbox and language.";
    const HINTS: Hints = Hints::RUN;
    type Input = RunCodeInput;
    type Output = RunCodeOutput;

    async fn run(call: &Call, input: RunCodeInput) -> Result<Reply<RunCodeOutput>, Problem> {
        if let Some(results) = input.tool_results {
            let others = [input.code.is_some(), input.language.is_some(), input.context.is_some()];
            let times = [input.timeout.is_some(), input.call_timeout.is_some()];
            if others.contains(&true) || times.contains(&true) || input.functions.is_some() {
                return Err(Problem::field(
                    "tool_results",
                    "the code goes on as it began; give nothing but sandbox with it",
                ));
            }
            return go_on(call, input.sandbox, results).await;
        }
        let Some(code) = input.code else {
            return Err(Problem::field("code", "missing field `code`; give it, or tool_results to go on"));
        };
        let functions = input.functions.unwrap_or_default();
        if functions.is_empty() && input.call_timeout.is_some() {
            let reason = "it is the time for results of functions that the code calls; give functions";
            return Err(Problem::field("call_timeout", reason));
        }
        let place = call.place(input.sandbox).await?;
        let request = CodeRequest {
            code: code.into(),
            context: input.context,
            language: input.language,
            timeout: input.timeout.map(|seconds| Duration::from_secs(seconds.max(1).into())),
            hint_reader: HINT_READER,
            tools: CodeTools {
                steps: !functions.is_empty(),
                functions,
                call_timeout: input.call_timeout.map(|seconds| Duration::from_secs(seconds.into())),
                ..CodeTools::default()
            },
            ..CodeRequest::default()
        };
        Ok(to_step_reply(&place, run_step(call, &place.id, request).await?))
    }
}

/// Answers calls of code, and runs it to the end of its next step.
async fn go_on(
    call: &Call,
    sandbox: Option<String>,
    results: Vec<CallResultInput>,
) -> Result<Reply<RunCodeOutput>, Problem> {
    let answer = |CallResultInput { call_id, result, error }: CallResultInput| match (result, error) {
        (Some(result), None) => Ok(CallAnswer { call: call_id, answer: Ok(result.to_string().into()) }),
        (None, Some(error)) => Ok(CallAnswer { call: call_id, answer: Err(error) }),
        _ => Err(Problem::field("tool_results", "give either result or error for each call")),
    };
    let answers = results.into_iter().map(answer).collect::<Result<_, _>>()?;
    let (id, run) = call.shared.keeper.continue_code(&call.caller, sandbox.as_deref(), answers).await?;
    let place = Place { id: id.to_string(), created: false, is_default: false };
    Ok(to_step_reply(&place, read_step(call, run).await?))
}

/// Runs code, reports its output, and interrupts it if the caller goes.
pub(crate) async fn run_code(
    call: &Call,
    sandbox: &str,
    request: CodeRequest,
) -> Result<CodeExecution, KeeperError> {
    match run_step(call, sandbox, request).await? {
        StepEnd::Ended(done) => Ok(*done),
        StepEnd::Calls(_) => Err(KeeperError::field("functions", "they are answered by run_code alone")),
    }
}

/// Runs code to the end of its first step.
async fn run_step(call: &Call, sandbox: &str, request: CodeRequest) -> Result<StepEnd, KeeperError> {
    let request =
        CodeRequest { on_disconnect: OnDisconnect::Kill, keep_bytes: Some(MAX_OUTPUT_BYTES), ..request };
    if !call.has_reader() && !request.tools.steps {
        let done = call.shared.keeper.run_code(&call.caller, sandbox, request).await?;
        return Ok(StepEnd::Ended(Box::new(done)));
    }
    read_step(call, call.shared.keeper.stream_code(&call.caller, sandbox, request)).await
}

/// Reads a run to the end of its step, and reports its output.
async fn read_step(call: &Call, mut run: Run<CodeEvent, CodeExecution>) -> Result<StepEnd, KeeperError> {
    let mut pieces = Pieces::default();
    while let Some(event) = run.next().await {
        match event {
            RunEvent::Progress(CodeEvent::Output { stream, offset, data }) => {
                report(call, &mut pieces, stream, offset, &data).await;
            }
            RunEvent::Waiting(waiting) => call.report_waiting(waiting).await,
            RunEvent::Queued | RunEvent::Progress(_) => {}
            RunEvent::Ended(done) => return Ok(StepEnd::Ended(Box::new(done?))),
        }
    }
    call.shared.keeper.keep_step(run)?.map(StepEnd::Calls).ok_or(KeeperError::ShuttingDown)
}

fn to_step_reply(place: &Place, end: StepEnd) -> Reply<RunCodeOutput> {
    let step = match end {
        StepEnd::Calls(step) => step,
        StepEnd::Ended(done) => {
            let Reply { output, content, is_error } = to_reply(place, *done);
            let output = RunCodeOutput { code: output, tool_calls: Vec::new(), expires_at: None };
            return Reply { output, content, is_error };
        }
    };
    let expires_at = time(step.expires_at);
    let lines: Vec<_> = step
        .calls
        .iter()
        .map(|call| format!("{}: {}({})", call.id, call.name, String::from_utf8_lossy(&call.arguments)))
        .collect();
    let text = format!(
        "The code waits for the results of these calls, until {expires_at}. Call run_code again with tool_results.\n{}",
        lines.join("\n")
    );
    let tool_calls = step.calls.into_iter().map(|CodeCall { id, name, arguments }| {
        // The guest has checked that it is an object.
        CallOutput { id, name, arguments: serde_json::from_slice(&arguments).unwrap_or_default() }
    });
    let tool_calls = tool_calls.collect();
    let code = CodeOutput {
        sandbox: place.id.clone(),
        sandbox_created: place.created,
        status: "tool_calls".to_owned(),
        language: step.language,
        context: step.context,
        stdout: String::new(),
        stderr: String::new(),
        results: Vec::new(),
        error: None,
        exit_code: None,
        state: Survival::Preserved.as_str().to_owned(),
        hint: None,
        wall_ms: 0.0,
    };
    let output = RunCodeOutput { code, tool_calls, expires_at: Some(expires_at) };
    let mut reply = Reply::text(output, text);
    reply.content.extend(place.note());
    reply
}

/// Reports output as text, whole characters at a time.
pub(super) async fn report(call: &Call, pieces: &mut Pieces, stream: v1::Stream, offset: u64, data: &Bytes) {
    for (_, piece) in pieces.push(stream, offset, data) {
        if piece.bytes.encoding == "utf-8" {
            call.report(&piece.bytes.data).await;
        }
    }
}

/// Converts the result of code.
pub(crate) fn to_reply(place: &Place, done: CodeExecution) -> Reply<CodeOutput> {
    let (stdout, stderr) = (KeptOutput::from(&done.stdout), KeptOutput::from(&done.stderr));
    let is_error = done.exit_status() != 0;
    // In the order of the code: a text for what was written and shown, up to a picture or chart.
    let (mut content, mut text, mut from) = (Vec::new(), String::new(), Written::default());
    for (index, result) in done.results.iter().enumerate() {
        let uri = format!("belljar://{}/executions/{}/results/{index}", place.id, done.execution);
        let (shown, blocks) = to_content(result, &uri);
        let to = result.after.unwrap_or(from);
        let written = [stdout.text(from.stdout..to.stdout), stderr.text(from.stderr..to.stderr)];
        from = to;
        let parts = [text.as_str(), &written[0], &written[1], shown.as_deref().unwrap_or_default()];
        text = join_lines(parts);
        if !blocks.is_empty() {
            content.extend(
                Some(std::mem::take(&mut text)).filter(|text| !text.is_empty()).map(ContentBlock::text),
            );
            content.extend(blocks);
        }
    }
    let error = done.error.map(|error| RaisedError {
        name: error.name,
        value: error.value,
        traceback: error.traceback,
    });
    let ended = match (done.status, done.exit_code) {
        (CodeStatus::Ok, _) => None,
        (CodeStatus::Error | CodeStatus::Died, Some(code)) => Some(format!("[exit code {code}]")),
        (status, _) => Some(format!("[{}]", status.as_str())),
    };
    let parts = [
        Some(text),
        Some(stdout.text(from.stdout..stdout.total)),
        Some(stderr.text(from.stderr..stderr.total)),
        error.as_ref().map(|error| error.traceback.clone()),
        ended.filter(|_| error.as_ref().is_none_or(|error| error.traceback.is_empty())),
        done.reason.clone(),
        done.hint.clone(),
    ];
    let text = join_lines(parts.iter().flatten().map(String::as_str));
    if !text.is_empty() {
        content.push(ContentBlock::text(text));
    } else if content.is_empty() {
        content.push(ContentBlock::text("[no output]"));
    }
    content.extend(place.note());
    let output = CodeOutput {
        sandbox: place.id.clone(),
        sandbox_created: place.created,
        status: done.status.as_str().to_owned(),
        language: done.language,
        context: done.context,
        stdout: stdout.text(0..stdout.total),
        stderr: stderr.text(0..stderr.total),
        results: done.results.into_iter().map(to_shown).collect(),
        error,
        exit_code: done.exit_code,
        state: done.state.as_str().to_owned(),
        hint: done.hint,
        wall_ms: done.wall.as_secs_f64() * 1000.0,
    };
    Reply { output, content, is_error }
}

/// Joins texts, each on lines of its own.
pub(super) fn join_lines<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let parts = parts.into_iter().map(|part| part.strip_suffix('\n').unwrap_or(part));
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

fn to_shown(result: CodeResult) -> ShownResult {
    let text = text_of(&result);
    let mime_types = result.data.keys().cloned().collect();
    let json = result.data.into_iter().filter(|(mime, _)| MimeForm::of(mime) == MimeForm::Json).collect();
    ShownResult { main: result.main, text, json, mime_types }
}

fn text_of(result: &CodeResult) -> Option<String> {
    TEXTS.iter().find_map(|mime| Some(result.data.get(*mime)?.as_str()?.to_owned()))
}

/// Returns the text of a result, and its forms that are content of their own: pictures, and JSON such as charts.
fn to_content(result: &CodeResult, uri: &str) -> (Option<String>, Vec<ContentBlock>) {
    let resource = |mime: &str, text: String| {
        let contents = ResourceContents::TextResourceContents {
            uri: uri.to_owned(),
            mime_type: Some(mime.to_owned()),
            text,
            meta: None,
        };
        ContentBlock::resource(contents)
    };
    let block = |(mime, value): (&String, &Value)| match (MimeForm::of(mime), value.as_str()) {
        (MimeForm::Base64, Some(data)) if PICTURES.contains(&mime.as_str()) => {
            Some(ContentBlock::image(data, mime.as_str()))
        }
        (MimeForm::Text, Some(text)) if mime == "image/svg+xml" => Some(resource(mime, text.to_owned())),
        (MimeForm::Json, _) => Some(resource(mime, value.to_string())),
        _ => None,
    };
    (text_of(result), result.data.iter().filter_map(block).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_are_content() {
        let data = json!({
            "text/plain": "<Figure>", "image/png": "AAAA", "image/svg+xml": "<svg/>",
            "application/vnd.belljar.chart.v1+json": {"type": "line"}, "application/pdf": "AAAA",
        });
        let result =
            CodeResult { main: true, data: data.as_object().unwrap().clone(), ..CodeResult::default() };
        let (text, blocks) = to_content(&result, "belljar://a/executions/1/results/0");
        assert_eq!(text.as_deref(), Some("<Figure>"));
        let blocks = serde_json::to_value(&blocks).unwrap();
        let types: Vec<_> = blocks.as_array().unwrap().iter().map(|block| block["type"].clone()).collect();
        assert_eq!(types, ["resource", "image", "resource"], "{blocks}");
        assert_eq!(blocks[1], json!({"type": "image", "data": "AAAA", "mimeType": "image/png"}));
        assert_eq!(blocks[0]["resource"]["text"], r#"{"type":"line"}"#);
        let shown = serde_json::to_value(to_shown(result)).unwrap();
        assert_eq!(shown["json"], json!({"application/vnd.belljar.chart.v1+json": {"type": "line"}}));
    }

    #[test]
    fn lines_are_joined() {
        assert_eq!(join_lines(["a\n", "", "b", "c\n\n"]), "a\nb\nc\n");
    }
}
