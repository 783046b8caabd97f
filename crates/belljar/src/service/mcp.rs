//! `belljar mcp`: passes messages of the Model Context Protocol from standard input on to the endpoint of a server, and its answers to
//! standard output. All else is done there, so both transports have one implementation.

use std::collections::HashMap;
use std::io::{BufRead, Read as _, Write as _};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_client::{Client, ClientError, HeaderMap, HeaderName, HeaderValue, StatusCode};
use belljar_model::ToolFile;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::link::Link;
use super::tool::find;
use super::tool_args::{McpArgs, McpTools};
use crate::message::{Quit, chain};

/// What the server may answer with.
const ACCEPT: &str = "application/json, text/event-stream";

/// Number of messages that are read ahead.
const MAX_WAITING_MESSAGES: usize = 16;

/// Field of a request's metadata with the revision, in those that have no handshake.
const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// Error codes of JSON-RPC 2.0.
const PARSE_ERROR: i32 = -32700;
const INTERNAL_ERROR: i32 = -32603;

/// Maximum length of a line of the client, in bytes. The server refuses shorter messages that are too large; its refusal has their id, which
/// that of a line that is not kept cannot have.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Maximum length of a message of the server, in bytes: results are smaller, a stream is read message by message.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Passes messages on until standard input ends and all requests are answered.
pub(super) async fn run(link: &Link, args: &McpArgs) -> Result<u8, Quit> {
    let profile =
        if args.conformance_fixtures { Some("conformance") } else { args.tools.map(McpTools::as_str) };
    let mut path = "/mcp?".to_owned();
    if let Some(profile) = profile {
        path.push_str(&format!("tools={profile}&"));
    }
    for named in &args.stored {
        let name = named.split('@').next().unwrap_or_default();
        let is_version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
        if !ToolFile::is_name(name) || !named.split('@').skip(1).all(is_version) {
            return Err(Quit::Usage(format!("--tool: {named:?} is not allowed; give NAME or NAME@VERSION")));
        }
        // Else each message would be refused, which few clients show.
        find::<Value>(link, named).await?;
        path.push_str(&format!("tool={named}&"));
    }
    if let Some(label) = &args.sandbox {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if label.is_empty() || !label.bytes().all(is_word) {
            return Err(Quit::Usage(format!(
                "--sandbox: {label:?} is not allowed; give letters, digits and -"
            )));
        }
        path.push_str(&format!("sandbox={label}&"));
    }
    if let Some(url) = &link.url {
        path.push_str(&format!("base_url={url}"));
    }
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        link.remark("waiting for messages of an MCP client on standard input; one is set up with, for example: claude mcp add belljar -- belljar mcp");
    }
    let bridge = Bridge { client: link.client.clone(), path: path.into(), shared: Arc::default() };
    let mut lines = read_lines();
    let mut running = JoinSet::new();
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            Some(ended) = running.join_next() => {
                finished(ended)?;
                continue;
            }
        };
        let Some(line) = line else { break };
        let line = line.map_err(|error| anyhow::Error::new(error).context("cannot read standard input"))?;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        if line.len() > MAX_LINE_BYTES {
            let message = format!(
                "the message is larger than {MAX_LINE_BYTES} bytes; write large content to a file in parts"
            );
            write(
                &json!({"jsonrpc": "2.0", "id": null, "error": {"code": PARSE_ERROR, "message": message}}),
            )?;
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(message) => bridge.pass(&mut running, message, line),
            Err(error) => {
                let message = format!("the line is not JSON: {error}");
                write(
                    &json!({"jsonrpc": "2.0", "id": null, "error": {"code": PARSE_ERROR, "message": message}}),
                )?;
            }
        }
    }
    while let Some(ended) = running.join_next().await {
        finished(ended)?;
    }
    Ok(0)
}

/// Returns the result of a message that has been passed on; one that was cancelled has none.
fn finished(ended: Result<Result<(), Quit>, tokio::task::JoinError>) -> Result<(), Quit> {
    match ended {
        Ok(done) => done,
        Err(error) if error.is_cancelled() => Ok(()),
        Err(error) => Err(anyhow::Error::new(error).into()),
    }
}

/// Reads lines of standard input in a thread of its own: a read cannot be cancelled.
fn read_lines() -> mpsc::Receiver<std::io::Result<Vec<u8>>> {
    let (sender, lines) = mpsc::channel(MAX_WAITING_MESSAGES);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        while let Some(line) = read_line(&mut input).transpose() {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Reads a line; of one that is too long as much as shows that it is. None at the end.
fn read_line(input: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let most = MAX_LINE_BYTES as u64 + 1;
    if input.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > MAX_LINE_BYTES {
        input.skip_until(b'\n')?;
    }
    Ok(Some(line))
}

/// Writes a message as one line.
fn write(message: &Value) -> Result<(), Quit> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(format!("{message}\n").as_bytes()).and_then(|()| stdout.flush());
    written.map_err(crate::output::write_failed)
}

#[derive(Default)]
struct State {
    /// Revision of the handshake, in those that have one.
    version: Option<HeaderValue>,
    /// Requests that are not answered yet, by their ids.
    running: HashMap<String, AbortHandle>,
}

#[derive(Clone)]
struct Bridge {
    client: Client,
    path: Arc<str>,
    shared: Arc<Mutex<State>>,
}

impl Bridge {
    /// Begins to pass a message on.
    fn pass(&self, running: &mut JoinSet<Result<(), Quit>>, message: Value, line: Vec<u8>) {
        if message["method"] == "notifications/cancelled" {
            let id = message["params"]["requestId"].to_string();
            // Closing the response is what cancels a request for the server.
            if let Some(request) = self.shared.lock().running.remove(&id) {
                request.abort();
            }
            return;
        }
        let bridge = self.clone();
        let id = Some(message["id"].clone()).filter(|id| !id.is_null());
        let key = id.as_ref().map(Value::to_string);
        let mut state = self.shared.lock();
        let task = running.spawn({
            let key = key.clone();
            async move {
                let done = bridge.send(&message, id.as_ref(), line).await;
                if let Some(key) = key {
                    bridge.shared.lock().running.remove(&key);
                }
                done
            }
        });
        if let Some(key) = key {
            state.running.insert(key, task);
        }
    }

    async fn send(&self, message: &Value, id: Option<&Value>, line: Vec<u8>) -> Result<(), Quit> {
        match self.exchange(message, id, line).await {
            Err(Quit::Error(error)) if error.downcast_ref::<ClientError>().is_some() => {
                // Notifications have no answer.
                let Some(id) = id else { return Ok(()) };
                let error = json!({"code": INTERNAL_ERROR, "message": chain(error.as_ref())});
                write(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
            }
            done => done,
        }
    }

    async fn exchange(&self, message: &Value, id: Option<&Value>, line: Vec<u8>) -> Result<(), Quit> {
        let headers = self.headers(message);
        let (status, headers, mut answer) =
            self.client.post(&self.path, ACCEPT, headers, line.into()).await?;
        let kind = headers.get("content-type").map(HeaderValue::as_bytes).unwrap_or_default();
        if kind.starts_with(b"text/event-stream") {
            let mut events = Events::default();
            while let Some(piece) = answer.next().await? {
                for data in events.push(&piece) {
                    self.receive(message, id, &data, status)?;
                }
            }
            return Ok(());
        }
        let mut whole = Vec::new();
        while let Some(piece) = answer.next().await? {
            whole.extend_from_slice(&piece);
            if whole.len() > MAX_ANSWER_BYTES {
                return Err(
                    anyhow::anyhow!("the server's answer is longer than {MAX_ANSWER_BYTES} bytes").into()
                );
            }
        }
        if whole.is_empty() { Ok(()) } else { self.receive(message, id, &whole, status) }
    }

    /// Writes a message of the server.
    fn receive(
        &self,
        message: &Value,
        id: Option<&Value>,
        data: &[u8],
        status: StatusCode,
    ) -> Result<(), Quit> {
        let mut received: Value = serde_json::from_slice(data).unwrap_or_else(|_| {
            let message = format!("the server answered {status} without a message");
            json!({"jsonrpc": "2.0", "error": {"code": INTERNAL_ERROR, "message": message}})
        });
        if message["method"] == "initialize"
            && let Some(version) = received["result"]["protocolVersion"].as_str()
        {
            self.shared.lock().version = HeaderValue::from_str(version).ok();
        }
        // A refusal before the message was read has no id.
        if received["error"].is_object() && received["id"].is_null() {
            let Some(id) = id else { return Ok(()) };
            received["id"] = id.clone();
        }
        write(&received)
    }

    /// Returns the headers that the protocol has beside a message.
    fn headers(&self, message: &Value) -> HeaderMap {
        let params = &message["params"];
        let mut headers = HeaderMap::new();
        let mut add = |name: &'static str, value: Option<HeaderValue>| {
            if let Some(value) = value {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        match params["_meta"][PROTOCOL_VERSION].as_str() {
            Some(version) => {
                add("mcp-protocol-version", HeaderValue::from_str(version).ok());
                add("mcp-method", message["method"].as_str().and_then(header_value));
                let name = ["name", "uri", "taskId"].into_iter().find_map(|key| params[key].as_str());
                add("mcp-name", name.and_then(header_value));
            }
            None if message["method"] != "initialize" => {
                add("mcp-protocol-version", self.shared.lock().version.clone());
            }
            None => {}
        }
        headers
    }
}

/// Returns a name as the value of a header: in base64, as the protocol has it, if it is not visible ASCII.
fn header_value(name: &str) -> Option<HeaderValue> {
    let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    match is_plain && !name.starts_with("=?") {
        true => HeaderValue::from_str(name).ok(),
        false => HeaderValue::from_str(&format!("=?base64?{}?=", STANDARD.encode(name))).ok(),
    }
}

/// Server-sent events, of which only the data is of interest.
#[derive(Default)]
struct Events {
    rest: Vec<u8>,
    /// Number of bytes of `rest` that are known to have no end of a line.
    searched: usize,
    data: Vec<u8>,
}

impl Events {
    /// Takes the next bytes of the stream, and returns the data of all events that are complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.rest.extend_from_slice(bytes);
        let mut complete = Vec::new();
        let mut begin = 0;
        while let Some(length) = self.rest[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + length;
            let line = &self.rest[begin..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                let data = std::mem::take(&mut self.data);
                complete.extend(Some(data).filter(|data| !data.is_empty()));
            } else if let Some(data) = line.strip_prefix(b"data:") {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
            begin = end + 1;
            self.searched = begin;
        }
        self.rest.drain(..begin);
        self.searched = self.rest.len();
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_split() {
        let mut events = Events::default();
        let mut all = Vec::new();
        let stream = ": ping\n\nid: 1\nretry: 3\ndata:\n\ndata: {\"a\":\r\ndata: 1}\r\n\r\nevent: message\ndata:{}\n\ndata: x";
        for byte in stream.as_bytes().chunks(3) {
            all.extend(events.push(byte));
        }
        let all: Vec<_> = all.iter().map(|data| std::str::from_utf8(data).unwrap()).collect();
        assert_eq!(all, ["{\"a\":\n1}", "{}"]);
    }

    #[test]
    fn names_are_header_values() {
        let value = |name: &str| header_value(name).unwrap().to_str().unwrap().to_owned();
        assert_eq!(value("run_code"), "run_code");
        assert_eq!(value("größe"), "=?base64?Z3LDtsOfZQ==?=");
        assert_eq!(value("a b"), "=?base64?YSBi?=");
    }
}
