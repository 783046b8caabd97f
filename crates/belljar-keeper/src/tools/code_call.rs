//! A call of a stored tool by code: its arguments, and the answer.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_model::{Encoding, StreamOutput, Timeout};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::ToolResult;
use super::check::ToolCall;
use super::files::WrittenFile;
use crate::error::KeeperError;
use crate::keeper::Result;

/// Maximum length of an answer to code, in bytes, and of each stream of output in one that would be longer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const MAX_SHORT_OUTPUT_BYTES: usize = 64 << 10;

/// Arguments as code gives them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    code: String,
    language: Option<String>,
    timeout: Option<Value>,
    #[serde(default)]
    files: BTreeMap<String, Value>,
}

pub(super) fn parse(arguments: &[u8]) -> Result<ToolCall> {
    let given: Arguments = serde_json::from_slice(arguments).map_err(|error| {
        // Code has written no text in which there was a place.
        let text = error.to_string();
        KeeperError::field(
            "arguments",
            text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason),
        )
    })?;
    let content = |(path, content): (String, Value)| {
        let encoded = content
            .get("base64")
            .and_then(Value::as_str)
            .filter(|_| content.as_object().is_some_and(|all| all.len() == 1));
        let bytes = match (&content, encoded) {
            (Value::String(text), _) => Some(text.clone().into_bytes()),
            (_, Some(text)) => Encoding::Base64.decode(text),
            _ => None,
        };
        let invalid = || {
            KeeperError::field("files", format!("{path:?}: give a text, or an object with bytes in base64"))
        };
        Ok((path.clone(), bytes.map(Bytes::from).ok_or_else(invalid)?))
    };
    let timeout = given.timeout.map(|timeout| {
        let text = timeout.as_str().map_or_else(|| timeout.to_string(), str::to_owned);
        let parsed: std::result::Result<Timeout, _> = text.parse();
        parsed.map(|timeout| timeout.duration()).map_err(KeeperError::from)
    });
    Ok(ToolCall {
        code: given.code.into(),
        language: given.language,
        timeout: timeout.transpose()? as Option<Duration>,
        files: given.files.into_iter().map(content).collect::<Result<_>>()?,
    })
}

/// Returns what code gets: the result with all output, results and files, or what fits.
pub(super) fn to_answer(done: &ToolResult) -> Vec<u8> {
    let execution = &done.execution;
    let output = |stream: &StreamOutput, most: usize| {
        let bytes = stream.decode().unwrap_or_default();
        String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned()
    };
    let files = |with_content: bool| {
        let file = |file: &WrittenFile| {
            let content =
                file.content.as_ref().filter(|_| with_content).map(|content| Encoding::encode(content));
            let content = content.map(|(encoding, data)| json!({"encoding": encoding, "data": data}));
            json!({"path": file.path, "bytes": file.size, "content": content})
        };
        done.files.iter().map(file).collect::<Vec<_>>()
    };
    let answer = |most: usize, whole: bool| {
        let results: Vec<_> = execution.results.iter().filter(|_| whole).map(|result| &result.data).collect();
        // Cannot fail: texts and numbers only.
        serde_json::to_vec(&json!({
            "success": execution.status == belljar_model::CodeStatus::Ok,
            "outcome": execution.status.as_str(),
            "stdout": output(&execution.stdout, most),
            "stderr": output(&execution.stderr, most),
            "results": results,
            "error": execution.error.as_ref().filter(|_| whole),
            "files": files(whole),
            "hint": execution.hint,
            "complete": whole && !execution.stdout.truncated && !execution.stderr.truncated && !done.more_files,
        }))
        .unwrap_or_default()
    };
    let whole = answer(usize::MAX, true);
    if whole.len() <= MAX_ANSWER_BYTES { whole } else { answer(MAX_SHORT_OUTPUT_BYTES, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_code_are_parsed() {
        let text = r#"{"code": "1", "language": "python", "timeout": 2.5, "files": {"a": "x", "b": {"base64": "AAE="}}}"#;
        let call = parse(text.as_bytes()).unwrap();
        assert_eq!((&call.code[..], call.timeout), (&b"1"[..], Some(Duration::from_millis(2500))));
        assert_eq!(call.files["b"][..], [0, 1]);
        assert_eq!(
            parse(br#"{"code": "1", "timeout": "500ms"}"#).unwrap().timeout,
            Some(Duration::from_millis(500))
        );
        for (text, said) in [
            ("{}", "arguments: missing field `code`"),
            (
                r#"{"code": "1", "key": "x"}"#,
                "arguments: unknown field `key`, expected one of `code`, `language`, `timeout`, `files`",
            ),
            (r#"{"code": "1", "timeout": true}"#, "timeout"),
            (r#"{"code": "1", "files": {"a": 5}}"#, "files: \"a\": give a text"),
            (r#"{"code": "1", "files": {"a": {"base64": "?"}}}"#, "files: \"a\": give a text"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("line 1"), "{text}: {error}");
        }
    }
}
