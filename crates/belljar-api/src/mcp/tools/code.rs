//! `run_code`: code in a context.

use std::time::Duration;

use belljar_engine::{CodeEvent, v1};
use belljar_keeper::{CodeRequest, KeeperError, OnDisconnect, RunEvent};
use belljar_model::{CodeExecution, CodeResult, CodeStatus, MimeForm};
use bytes::Bytes;
use rmcp::model::{ContentBlock, ResourceContents};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::mcp::call::{Call, HINT_READER, Hints, MAX_OUTPUT_BYTES, Place, Reply, Tool, output_text};
use crate::problem::Problem;
use crate::stream::Pieces;

/// MIME types that clients show as pictures.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// MIME types that models read, the best first.
const TEXTS: [&str; 4] = ["text/plain", "text/markdown", "text/latex", "text/html"];

/// Runs code.
pub(crate) struct RunCode;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCodeInput {
    /// The code. The value of its last expression is in the answer, and pictures and charts that it shows.
    code: String,
    /// The language, such as python (the default), javascript, typescript, bash, or any that the template has.
    language: Option<String>,
    /// A context to run in, as named in an earlier answer; the language's default one if not given.
    context: Option<String>,
    /// Seconds after which the code is interrupted; the sandbox's own limit if not given.
    #[schemars(range(min = 1))]
    timeout: Option<u32>,
    /// Id or name of the sandbox; the default one if not given.
    sandbox: Option<String>,
}

/// Result of code.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CodeOutput {
    /// Id of the sandbox, to use in further calls.
    pub(crate) sandbox: String,
    /// Whether the sandbox was created for this call.
    pub(crate) sandbox_created: bool,
    /// `ok`, `error`, `interrupted`, `timed_out` or `died`.
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
    type Output = CodeOutput;

    async fn run(call: &Call, input: RunCodeInput) -> Result<Reply<CodeOutput>, Problem> {
        let place = call.place(input.sandbox).await?;
        let request = CodeRequest {
            code: input.code.into(),
            context: input.context,
            language: input.language,
            timeout: input.timeout.map(|seconds| Duration::from_secs(seconds.max(1).into())),
            hint_reader: HINT_READER,
            ..CodeRequest::default()
        };
        let done = run_code(call, &place.id, request).await?;
        Ok(to_reply(&place, done))
    }
}

/// Runs code, reports its output, and interrupts it if the caller goes.
pub(crate) async fn run_code(
    call: &Call,
    sandbox: &str,
    request: CodeRequest,
) -> Result<CodeExecution, KeeperError> {
    let request =
        CodeRequest { on_disconnect: OnDisconnect::Kill, keep_bytes: Some(MAX_OUTPUT_BYTES), ..request };
    if !call.has_reader() {
        return call.shared.keeper.run_code(&call.caller, sandbox, request).await;
    }
    let mut run = call.shared.keeper.stream_code(&call.caller, sandbox, request);
    let mut pieces = Pieces::default();
    while let Some(event) = run.next().await {
        match event {
            RunEvent::Progress(CodeEvent::Output { stream, offset, data }) => {
                report(call, &mut pieces, stream, offset, &data).await;
            }
            RunEvent::Waiting(waiting) => call.report_waiting(waiting).await,
            RunEvent::Queued | RunEvent::Progress(_) => {}
            RunEvent::Ended(done) => return done,
        }
    }
    Err(KeeperError::ShuttingDown)
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
    let (stdout, stderr) = (output_text(&done.stdout), output_text(&done.stderr));
    let is_error = done.status != CodeStatus::Ok;
    let mut text = join_lines([stdout.as_str(), stderr.as_str()]);
    let mut media = Vec::new();
    for (index, result) in done.results.iter().enumerate() {
        let uri = format!("belljar://{}/executions/{}/results/{index}", place.id, done.execution);
        let (shown, blocks) = to_content(result, &uri);
        text = join_lines([text.as_str(), shown.as_deref().unwrap_or_default()]);
        media.extend(blocks);
    }
    let error = done.error.map(|error| RaisedError {
        name: error.name,
        value: error.value,
        traceback: error.traceback,
    });
    let ended = is_error.then(|| format!("[{}]", done.status.as_str()));
    let parts = [
        Some(text),
        error.as_ref().map(|error| error.traceback.clone()),
        ended.filter(|_| error.is_none()),
        done.reason.clone(),
        done.hint.clone(),
    ];
    let text = join_lines(parts.iter().flatten().map(String::as_str));
    let mut content = vec![ContentBlock::text(if text.is_empty() { "[no output]".to_owned() } else { text })];
    content.extend(media);
    content.extend(place.note());
    let output = CodeOutput {
        sandbox: place.id.clone(),
        sandbox_created: place.created,
        status: done.status.as_str().to_owned(),
        language: done.language,
        context: done.context,
        stdout,
        stderr,
        results: done.results.into_iter().map(to_shown).collect(),
        error,
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
