//! Stored tools, their calls and their results.

use belljar_keeper::{ToolCall, ToolInfo, ToolResult, WrittenFile};
use belljar_model::{
    Approval, CodeStatus, LimitsFile, ModelError, NetworkFile, Timeout, ToolFile, milliseconds,
};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::bytes::{EncodedBytes, decode_base64};
use super::code::{CodeErrorBody, ResultBody};
use super::exec::StreamOutputBody;
use super::network::NetworkBody;
use super::object::{TextOr, text_or};
use super::{Span, UniqueMap, object, time};
use crate::problem::{Code, Problem};

/// A tool to store, or a new version of it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ToolDefinition, example = json!({
    "name": "analyse", "description": "Analyses data with Python.", "languages": ["python"], "timeout": "30s",
    "network": {"presets": ["pip"]},
}))]
pub(crate) struct ToolBody {
    /// Its name, unique in the tenant and none of a built-in tool. Needed for a new tool; a new version keeps the name.
    #[serde(default)]
    #[schema(pattern = "^[a-z][a-z0-9_-]{0,63}$")]
    name: Option<String>,
    /// What it does, for the model: 1 to 1024 bytes.
    description: String,
    /// Languages of its code, 1 to 16. The first is used if a call names none.
    languages: Vec<String>,
    /// Template of its sandboxes; the server's default if not given.
    #[serde(default)]
    template: Option<String>,
    /// Longest time of a call; 60 s if not given.
    #[serde(default)]
    timeout: Option<Span>,
    /// Whether calls of a key share a sandbox, which is kept for half an hour after the last one. `false` if not given: each call has
    /// one of its own.
    #[serde(default)]
    session: Option<bool>,
    /// Which of its calls wait until another person approves them: `never`, which it is if not given; `on-risk` or `on-medium-risk`,
    /// those in which screening finds a high, or at least a medium risk; `always`.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(never|on-risk|on-medium-risk|always)$")]
    approval: Option<Approval>,
    /// Limits of its sandboxes; the template's where not given.
    #[serde(default, deserialize_with = "object")]
    limits: Option<LimitsFile>,
    /// Network policy of its sandboxes, without secrets and headers; the template's if not given.
    #[serde(default)]
    network: Option<NetworkBody>,
}

impl ToolBody {
    /// Converts the body to a definition. `name` is that of an existing tool, which the body need not have.
    pub(crate) fn into_file(self, name: Option<&str>) -> Result<ToolFile, Problem> {
        let name = self.name.or_else(|| name.map(str::to_owned));
        let name = name.ok_or_else(|| Problem::field("name", "it is missing"))?;
        // A limit of a sandbox has the same name.
        let wrong =
            |error: ModelError| Problem::new(Code::InvalidField, error.to_string()).with_field("timeout");
        let timeout = self.timeout.map(|timeout| Timeout::new(timeout.0)).transpose().map_err(wrong)?;
        Ok(ToolFile {
            name,
            description: self.description,
            languages: self.languages,
            template: self.template,
            timeout: timeout.unwrap_or_default(),
            session: self.session.unwrap_or(false),
            approval: self.approval.unwrap_or_default(),
            limits: self.limits.unwrap_or_default(),
            network: self.network.map(NetworkBody::into_file),
        })
    }
}

/// A stored tool.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tool)]
pub(crate) struct ToolInfoBody {
    /// Its name.
    name: String,
    /// Its version, 1 for the first.
    version: i64,
    /// Whether it is the current version, which calls without one get.
    current: bool,
    /// SHA-256 of its definition, in hexadecimal.
    digest: String,
    /// What it does.
    description: String,
    /// Languages of its code.
    languages: Vec<String>,
    /// Template of its sandboxes; none for the server's default.
    template: Option<String>,
    /// Longest time of a call, in seconds.
    timeout_s: f64,
    /// Whether calls of a key share a sandbox.
    session: bool,
    /// Which of its calls wait until another person approves them: `never`, `on-risk`, `on-medium-risk` or `always`.
    #[schema(value_type = String, example = "never")]
    approval: Approval,
    /// Limits of its sandboxes, where they are not the template's.
    limits: LimitsFile,
    /// Network policy of its sandboxes, as a mode or in full.
    #[schema(value_type = Option<NetworkBody>)]
    network: Option<NetworkFile>,
    /// Id of the key that stored it.
    key: String,
    /// Time of its creation.
    #[schema(format = DateTime)]
    created_at: String,
}

impl From<ToolInfo> for ToolInfoBody {
    fn from(info: ToolInfo) -> Self {
        let ToolInfo { tool, version, current, digest, key, created_at } = info;
        Self {
            name: tool.name,
            version,
            current,
            digest,
            description: tool.description,
            languages: tool.languages,
            template: tool.template,
            timeout_s: tool.timeout.duration().as_secs_f64(),
            session: tool.session,
            approval: tool.approval,
            limits: tool.limits,
            network: tool.network,
            key,
            created_at: time(created_at),
        }
    }
}

/// Arguments of a call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ToolCall, example = json!({"code": "print(2**64)", "timeout": 10, "files": {"in.csv": "1,2\n"}}))]
pub(crate) struct ToolCallBody {
    /// The code, without NUL.
    code: String,
    /// One of the tool's languages; the first if not given.
    #[serde(default)]
    language: Option<String>,
    /// At most the tool's timeout, which it is if not given.
    #[serde(default)]
    timeout: Option<Span>,
    /// Files to write before the code runs, by their paths below the home directory: at most 64, of 1 MiB in all.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, ToolFileBody>>)]
    files: Option<UniqueMap<ToolFileBody>>,
}

/// Content of a file: a text, or an object with bytes in base64.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[schema(as = ToolFileContent)]
pub(crate) enum ToolFileBody {
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(ToolFileBytesBody),
}

impl<'de> Deserialize<'de> for ToolFileBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match text_or(deserializer, "a text or an object")? {
            TextOr::Text(text) => Self::Text(text),
            TextOr::Object(bytes) => Self::Bytes(bytes),
        })
    }
}

/// Bytes of a file.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ToolFileBytes)]
pub(crate) struct ToolFileBytesBody {
    /// The bytes, in base64.
    base64: String,
}

impl ToolCallBody {
    /// Converts the body to the keeper's arguments.
    pub(crate) fn into_call(self) -> Result<ToolCall, Problem> {
        let content = |(path, file): (String, ToolFileBody)| {
            let content = match file {
                ToolFileBody::Text(text) => Bytes::from(text),
                ToolFileBody::Bytes(bytes) => decode_base64(&format!("files.{path}.base64"), &bytes.base64)?,
            };
            Ok((path, content))
        };
        Ok(ToolCall {
            code: self.code.into(),
            language: self.language,
            timeout: self.timeout.map(|timeout| timeout.0),
            files: self
                .files
                .unwrap_or_default()
                .0
                .into_iter()
                .map(content)
                .collect::<Result<_, Problem>>()?,
        })
    }
}

/// Result of a call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ToolResult)]
pub(crate) struct ToolResultBody {
    /// The tool's name.
    tool: String,
    /// Its version.
    version: i64,
    /// SHA-256 of its definition.
    digest: String,
    /// Id of the sandbox.
    sandbox: String,
    /// Whether the sandbox is kept for further calls.
    session: bool,
    /// Whether the code has ended without an error.
    success: bool,
    /// `ok`; `error`: the code raised one; `interrupted`; `timed_out`; `died`: the interpreter ended before the code did.
    #[schema(example = "ok")]
    outcome: &'static str,
    /// Exit status of a program that ran the code: 0, or 1 after an error; 124 timed out, 137 out of memory.
    exit_code: u8,
    /// Standard output.
    stdout: StreamOutputBody,
    /// Standard error.
    stderr: StreamOutputBody,
    /// What it has shown, in order.
    results: Vec<ResultBody>,
    /// The error that it raised.
    error: Option<CodeErrorBody>,
    /// Files that it has written below the home directory, at most 16; hidden ones are not among them.
    files: Vec<WrittenFileBody>,
    /// Whether it has written more files.
    more_files: bool,
    /// Suggested remedy.
    hint: Option<String>,
    /// Wall-clock time in milliseconds.
    wall_ms: f64,
}

/// A file that a call has written.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WrittenFile)]
pub(crate) struct WrittenFileBody {
    /// Path below the home directory.
    path: String,
    /// Its length.
    bytes: u64,
    /// Its content, `{"encoding", "data"}`; missing if all contents together would exceed 1 MiB.
    content: Option<EncodedBytes>,
}

impl From<WrittenFile> for WrittenFileBody {
    fn from(file: WrittenFile) -> Self {
        let content = file.content.map(|content| EncodedBytes::new(&content));
        Self { path: file.path, bytes: file.size, content }
    }
}

impl From<ToolResult> for ToolResultBody {
    fn from(result: ToolResult) -> Self {
        let ToolResult { tool, version, digest, sandbox, session, execution, files, more_files } = result;
        Self {
            tool,
            version,
            digest,
            sandbox,
            session,
            success: execution.status == CodeStatus::Ok,
            outcome: execution.status.as_str(),
            exit_code: execution.exit_status(),
            stdout: execution.stdout.into(),
            stderr: execution.stderr.into(),
            results: execution.results.into_iter().map(ResultBody::from).collect(),
            error: execution.error.map(CodeErrorBody::from),
            files: files.into_iter().map(WrittenFileBody::from).collect(),
            more_files,
            hint: execution.hint,
            wall_ms: milliseconds(execution.wall),
        }
    }
}
