//! E2B's code interpreter: runs code in contexts, and streams the events as lines of JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest as _, Request};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::{CodeEvent, code, v1};
use belljar_keeper::{
    Caller, CodeRequest, KeeperError, MAX_CODE_BYTES, NewContext, OnDisconnect, Run, RunEvent,
};
use belljar_model::{CodeExecution, CodeResult, CodeStatus, SandboxId, SandboxState, Survival};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::entry::{HOME, absolute};
use super::error::{self, Plain, json_answer};
use super::{E2b, access, envd};
use crate::extract::{RawBody, parse_json};
use crate::guard::{ENDED, StreamSlot};
use crate::problem::{Code, Problem};
use crate::stream::{Piece, Pieces};

/// Interval of keep-alive messages while the code prints nothing.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum length of a request body, in bytes: code whose every byte takes two in JSON, and 1 MiB for the rest.
const MAX_BODY_BYTES: usize = 2 * MAX_CODE_BYTES + (1 << 20);

/// MIME types of results that have a field of their own, with its name; all others are in `extra`.
const FORMS: [(&str, &str); 12] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
    (TABLE, "data"),
    ("application/vnd.belljar.chart.v1+json", "chart"),
];

const TABLE: &str = "application/vnd.belljar.table.v1+json";

/// Contexts that clients expect from the start; each is created on first use.
const DEFAULT_CONTEXTS: [&str; 2] = ["python", "javascript"];

#[derive(Deserialize)]
struct ExecuteBody {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct ContextRequest {
    cwd: Option<String>,
    language: Option<String>,
}

/// Answers a request to the code interpreter.
pub(super) async fn answer(shared: &E2b, id: &SandboxId, request: Request) -> Response {
    if request.uri().path() == "/health" {
        let mut response = envd::health(shared, id);
        if response.status().is_success() {
            *response.status_mut() = StatusCode::OK;
            *response.body_mut() = Body::from("OK");
        }
        return response;
    }
    if shared.keeper.state_of(id).is_none() {
        return error::sandbox_missing(id.as_str());
    }
    route(shared, id.as_str(), request).await.unwrap_or_else(|refused| refused.0)
}

async fn route(shared: &E2b, id: &str, mut request: Request) -> Result<Response, Plain> {
    let sandbox = id.parse().map_err(|_| Problem::new(Code::SandboxNotFound, id))?;
    let caller = access::caller_with_body(shared, &sandbox, &mut request).await?;
    let path = request.uri().path().trim_matches('/').to_owned();
    let parts: Vec<&str> = path.split('/').collect();
    let failed = |error: KeeperError, context: &str| match &error {
        KeeperError::NotFound { what: "context", .. } => {
            text(StatusCode::NOT_FOUND, format!("Context {context} not found"))
        }
        _ => Plain::from_keeper(id, error),
    };
    let contexts = |all: &[v1::ContextInfo]| all.iter().map(context_to_json).collect::<Vec<_>>();
    let done = match (request.method(), parts.as_slice()) {
        (&Method::POST, ["execute"]) => return execute(shared, &caller, id, request).await,
        (&Method::GET, ["contexts"]) => {
            let made = shared.keeper.contexts(&caller, id).await.map_err(|error| failed(error, ""))?;
            let missing = DEFAULT_CONTEXTS.iter().filter(|name| !made.iter().any(|it| it.id == **name));
            let missing = missing.map(|name| json!({"id": name, "language": name, "cwd": HOME}));
            Value::Array(missing.chain(contexts(&made)).collect())
        }
        (&Method::POST, ["contexts"]) => {
            let body: ContextRequest = read_json(request).await?;
            let cwd = body.cwd.map(|cwd| absolute(&cwd).into());
            let new = NewContext { language: body.language, cwd, env: BTreeMap::new() };
            context_to_json(
                &shared.keeper.create_context(&caller, id, new).await.map_err(|error| failed(error, ""))?,
            )
        }
        (&Method::POST, ["contexts", name, "restart"]) => {
            let restarted = shared.keeper.restart_context(&caller, id, name).await;
            match restarted {
                // A context that was never used needs no restart.
                Err(KeeperError::NotFound { .. }) if DEFAULT_CONTEXTS.contains(name) => Value::Null,
                restarted => context_to_json(&restarted.map_err(|error| failed(error, name))?),
            }
        }
        (&Method::DELETE, ["contexts", name]) => {
            match shared.keeper.remove_context(&caller, id, name).await {
                Err(KeeperError::NotFound { .. }) if DEFAULT_CONTEXTS.contains(name) => {}
                removed => removed.map_err(|error| failed(error, name))?,
            }
            Value::Null
        }
        _ => return Err(Problem::new(Code::NotFound, "no such endpoint").into()),
    };
    Ok(json_answer(StatusCode::OK, &done))
}

fn context_to_json(info: &v1::ContextInfo) -> Value {
    let context = code::context(info);
    let cwd = if context.cwd.is_empty() { HOME } else { &context.cwd };
    json!({"id": context.id, "language": context.language, "cwd": cwd})
}

async fn read_json<T: serde::de::DeserializeOwned>(request: Request) -> Result<T, Problem> {
    let body = RawBody::from_request(request, &()).await?.read(MAX_BODY_BYTES).await?;
    parse_json(&body)
}

fn text(status: StatusCode, text: String) -> Plain {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Plain(response)
}

/// Runs code. It is interrupted when the client disconnects.
async fn execute(shared: &E2b, caller: &Caller, id: &str, request: Request) -> Result<Response, Plain> {
    let body: ExecuteBody = read_json(request).await?;
    if body.context_id.is_some() && body.language.is_some() {
        let both = "Only one of context_id or language can be provided";
        return Err(text(StatusCode::BAD_REQUEST, both.to_owned()));
    }
    let named = body.context_id.clone().unwrap_or_default();
    let slot = shared.streams.take(caller)?;
    let request = CodeRequest {
        code: body.code.into(),
        // The first context of E2B's clients has a name of its own.
        context: body.context_id.map(|id| if id == "default" { "python".to_owned() } else { id }),
        language: body.language.map(|language| language.to_lowercase()),
        env: body.env_vars.unwrap_or_default(),
        // The client enforces its own timeout, and disconnects.
        timeout: Some(Duration::ZERO),
        on_disconnect: OnDisconnect::Kill,
        ..CodeRequest::default()
    };
    // Dropped with the response body: this tells the keeper that the client has disconnected.
    let mut run = shared.keeper.stream_code(caller, id, request);
    let (keeper, sandbox) = (shared.keeper.clone(), caller.only.clone());
    let is_running = move || {
        let state = sandbox.as_ref().and_then(|id| keeper.state_of(id));
        matches!(state, Some(SandboxState::Running | SandboxState::Paused))
    };
    // Code that waits for its turn or for its interpreter must not look dead. An earlier error becomes a response of its own.
    match tokio::time::timeout(KEEP_ALIVE_INTERVAL, run.begun()).await {
        Ok(Err(KeeperError::NotFound { what: "context", .. })) => {
            Err(text(StatusCode::NOT_FOUND, format!("Context {named} not found")))
        }
        Ok(Err(error)) => Err(Plain::from_keeper(id, error)),
        Ok(Ok(())) if run.take_stored().is_some() => {
            Err(Problem::new(Code::SandboxFailed, "the code ended before it started").into())
        }
        Ok(Ok(())) | Err(_) => Ok(ndjson(lines(run, slot, is_running))),
    }
}

fn ndjson(lines: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

/// Streams the events of the code, one line each.
fn lines(
    mut run: Run<CodeEvent, CodeExecution>,
    slot: StreamSlot,
    is_running: impl Fn() -> bool + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    async_stream::stream! {
        let mut pieces = Pieces::default();
        let done = loop {
            tokio::select! {
                biased;
                () = slot.wait_for_caller() => {
                    yield Err(io::Error::other(ENDED));
                    return;
                }
                Some(next) = run.next() => match next {
                    // The client waits.
                    RunEvent::Waiting(_) | RunEvent::Queued => {}
                    RunEvent::Progress(event) => for line in to_lines(&mut pieces, event) { yield Ok(line) },
                    RunEvent::Ended(done) => break done,
                },
                _ = slot.wait_for_end() => {
                    yield Err(io::Error::other("the server shuts down, or the key was revoked"));
                    return;
                }
                () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => yield Ok(line(&json!({"type": "keepalive"}))),
            }
        };
        for line in flush(&mut pieces) {
            yield Ok(line);
        }
        match done {
            // The connection is cut, so that clients check whether the sandbox still exists.
            Ok(done) if done.status == CodeStatus::Died && !is_running() => {
                yield Err(io::Error::other("the sandbox has ended"));
            }
            Ok(done) => {
                if let Some(error) = final_error(&done) {
                    yield Ok(line(&error));
                }
                yield Ok(line(&json!({"type": "end_of_execution"})));
            }
            Err(error) => yield Err(io::Error::other(error)),
        }
    }
}

/// Returns the error for an end that the interpreter could not report itself.
fn final_error(done: &CodeExecution) -> Option<Value> {
    if done.error.is_some() {
        return None;
    }
    let (name, value) = match done.status {
        CodeStatus::Died => ("KernelDied", "the interpreter ended before the code did"),
        CodeStatus::Interrupted => ("KeyboardInterrupt", "the code was interrupted"),
        CodeStatus::TimedOut => ("TimeoutError", "the code took longer than it may"),
        CodeStatus::Ok | CodeStatus::Error => return None,
    };
    let mut value = done.reason.as_deref().unwrap_or(value).to_owned();
    if done.state == Survival::Lost {
        value.push_str("; the next code gets a fresh interpreter, without the variables");
    }
    Some(json!({"type": "error", "name": name, "value": value, "traceback": format!("{name}: {value}")}))
}

/// Encodes a line in ASCII only: the JavaScript client decodes each chunk of the response by itself, and a chunk may end
/// within a character.
fn line(value: &Value) -> Bytes {
    let mut text = String::new();
    for character in format!("{value}\n").chars() {
        if character.is_ascii() {
            text.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text.into()
}

fn output_line(name: &str, piece: Piece) -> Bytes {
    let text = match piece.bytes.encoding {
        "base64" => {
            let bytes = STANDARD.decode(&piece.bytes.data).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => piece.bytes.data,
    };
    line(&json!({"type": name, "text": text, "timestamp": Timestamp::now()}))
}

fn flush(pieces: &mut Pieces) -> Vec<Bytes> {
    pieces.finish().into_iter().map(|(name, piece)| output_line(name, piece)).collect()
}

fn to_lines(pieces: &mut Pieces, event: CodeEvent) -> Vec<Bytes> {
    let one = match event {
        CodeEvent::Output { stream, offset, data } => {
            let whole = pieces.push(stream, offset, &data);
            return whole.into_iter().map(|(name, piece)| output_line(name, piece)).collect();
        }
        CodeEvent::Started(started) => {
            json!({"type": "number_of_executions", "execution_count": started.count})
        }
        CodeEvent::Result(result) => result_to_json(code::to_result(&result)),
        CodeEvent::Error(error) => {
            let error = code::to_error(&error);
            json!({"type": "error", "name": error.name, "value": error.value, "traceback": error.traceback})
        }
        // No client can answer: the code gets an error.
        CodeEvent::InputRequested(_) | CodeEvent::ToolCalled(_) | CodeEvent::Ended(_) => return Vec::new(),
    };
    // Earlier output goes first.
    let mut all = flush(pieces);
    all.push(line(&one));
    all
}

/// Converts a result, with its representations under the names that clients use.
fn result_to_json(result: CodeResult) -> Value {
    let mut body = Map::new();
    let mut extra = Map::new();
    for (mime, value) in result.data {
        let form = FORMS.iter().find(|(known, _)| *known == mime);
        match form {
            Some((TABLE, name)) => drop(body.insert((*name).to_owned(), to_columns(&value))),
            Some((_, name)) => drop(body.insert((*name).to_owned(), value)),
            None => drop(extra.insert(mime, value)),
        }
    }
    if let Some(Value::String(text)) = body.get_mut("text") {
        *text = strip_quotes(text).to_owned();
    }
    body.insert("type".to_owned(), json!("result"));
    body.insert("is_main_result".to_owned(), json!(result.main));
    body.insert("extra".to_owned(), Value::Object(extra));
    Value::Object(body)
}

/// Removes the quotes that Python writes around a string.
fn strip_quotes(text: &str) -> &str {
    let within = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    within('\'').or_else(|| within('"')).unwrap_or(text)
}

/// Converts a table to a list for each column.
fn to_columns(table: &Value) -> Value {
    let rows = table["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = table["columns"].as_array().map(Vec::as_slice).unwrap_or_default();
    let column = |(index, column): (usize, &Value)| {
        let name = column["name"].as_str().unwrap_or_default().to_owned();
        (name, rows.iter().map(|row| row[index].clone()).collect::<Value>())
    };
    Value::Object(names.iter().enumerate().map(column).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_use_field_names_of_clients() {
        let data = json!({
            "text/plain": "'abc'", "image/png": "AAAA", "application/x-own": "x",
            (TABLE): {"columns": [{"name": "a"}, {"name": "b"}], "rows": [[1, "x"], [2, "y"]]},
        });
        let data = data.as_object().unwrap().clone();
        let body = result_to_json(CodeResult { main: true, data, ..CodeResult::default() });
        assert_eq!(
            body,
            json!({
                "type": "result", "is_main_result": true, "text": "abc", "png": "AAAA",
                "data": {"a": [1, 2], "b": ["x", "y"]}, "extra": {"application/x-own": "x"},
            })
        );
    }

    #[test]
    fn lines_are_ascii_and_round_trip() {
        let value = json!({"text": "aü\u{1f600}\n\u{2028}"});
        let line = line(&value);
        assert!(line.is_ascii());
        assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), value);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    }

    #[test]
    fn quotes_are_stripped_in_pairs() {
        for (text, expected) in
            [("'a'", "a"), ("\"a'b\"", "a'b"), ("'", "'"), ("a", "a"), ("'a", "'a"), ("''", "")]
        {
            assert_eq!(strip_quotes(text), expected, "{text}");
        }
    }
}
