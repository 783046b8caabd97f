//! Stored tools, by their names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::CodeEvent;
use belljar_keeper::{KeeperError, RunEvent, ToolCall, ToolInfo, ToolResult, WrittenFile};
use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::code::{CodeOutput, report, to_reply};
use super::files::picture;
use crate::extract::parse_json;
use crate::mcp::call::{Call, Place, Reply, to_error, to_result};
use crate::problem::Problem;
use crate::rest::types::{EncodedBytes, ToolCallBody};
use crate::stream::Pieces;
use crate::tool_schema::input_schema;

/// Result of a stored tool.
#[derive(Serialize, JsonSchema)]
struct StoredOutput {
    /// The tool's version.
    version: i64,
    /// SHA-256 of its definition.
    digest: String,
    /// Whether the code has ended without an error.
    success: bool,
    #[serde(flatten)]
    code: CodeOutput,
    /// Files that it has written.
    files: Vec<StoredFile>,
    /// Whether it has written more files.
    more_files: bool,
}

/// A file that a call has written. Pictures are in the content of the answer.
#[derive(Serialize, JsonSchema)]
struct StoredFile {
    /// Path below the home directory.
    path: String,
    /// Its length in bytes.
    size: u64,
    /// Encoding of the content: `utf-8` or `base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<String>,
    /// The content, unless it is a picture or too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// Returns the description of a tool for clients.
pub(in crate::mcp) fn info(info: &ToolInfo) -> Tool {
    let annotations = ToolAnnotations::new()
        .read_only(false)
        .destructive(info.tool.session)
        .idempotent(false)
        .open_world(info.reaches_network());
    Tool::new(info.tool.name.clone(), info.tool.description.clone(), input_schema(&info.tool))
        .with_raw_output_schema(schema_for_output::<StoredOutput>())
        .with_annotations(annotations)
}

/// Runs a tool. When the future is dropped, its code is killed.
pub(in crate::mcp) async fn run(call: &Call, named: &str, arguments: JsonObject) -> CallToolResult {
    let body: Result<ToolCallBody, Problem> = parse_json(Value::Object(arguments).to_string().as_bytes());
    let arguments = match body.and_then(ToolCallBody::into_call) {
        Ok(arguments) => arguments,
        Err(problem) => return to_error(&problem),
    };
    match call_tool(call, named, arguments).await {
        Ok(result) => to_result(convert(result)),
        Err(error) => to_error(&error.into()),
    }
}

async fn call_tool(call: &Call, named: &str, arguments: ToolCall) -> Result<ToolResult, KeeperError> {
    let keeper = &call.shared.keeper;
    if !call.has_reader() {
        return keeper.call_tool(&call.caller, named, arguments).await;
    }
    let mut run = keeper.stream_tool(&call.caller, named, arguments);
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

fn convert(result: ToolResult) -> Reply<StoredOutput> {
    let ToolResult { version, digest, sandbox, execution, files, more_files, .. } = result;
    let place = Place { id: sandbox, created: false, is_default: false };
    let Reply { output, mut content, is_error } = to_reply(&place, execution);
    let mut listed = Vec::new();
    for WrittenFile { path, size, content: bytes } in files {
        content.push(ContentBlock::text(format!("[wrote {path}, {size} bytes]")));
        let (mut encoding, mut text) = (None, None);
        if let Some(bytes) = bytes {
            match picture(&bytes) {
                Some(mime) => content.push(ContentBlock::image(STANDARD.encode(&bytes), mime)),
                None => {
                    let encoded = EncodedBytes::new(&bytes);
                    (encoding, text) = (Some(encoded.encoding.to_owned()), Some(encoded.data));
                }
            }
        }
        listed.push(StoredFile { path, size, encoding, content: text });
    }
    let output =
        StoredOutput { version, digest, success: !is_error, code: output, files: listed, more_files };
    Reply { output, content, is_error }
}
