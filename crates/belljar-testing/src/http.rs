//! A client over plain HTTP/1.1. It distinguishes an incomplete answer from an answer that is an error.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;

use crate::wait::DEADLINE;

/// Error for a missing or incomplete answer. It is unknown whether the server carried out the request.
#[derive(Debug)]
pub struct Cut(pub String);

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// Returns the body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns a header; empty if it is missing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap_or(""))
    }

    /// Returns the stable code of a problem; empty if the answer is not one.
    #[must_use]
    pub fn code(&self) -> String {
        let problem: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Checks status and code.
    #[track_caller]
    pub fn assert(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.code().as_str()), (status, code), "{self:?}");
    }

    /// Returns the code and the field of a problem, and checks its form.
    #[track_caller]
    pub fn problem(&self) -> (String, Option<String>) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16(), "{problem}");
        assert_eq!(problem["request_id"], self.header("x-request-id"), "{problem}");
        let code = problem["code"].as_str().unwrap().to_owned();
        assert_eq!(problem["type"], format!("https://belljar.dev/errors/{code}"));
        assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
        (code, problem["field"].as_str().map(str::to_owned))
    }

    /// Checks status, code and field, and the form of a problem.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str, field: Option<&str>) {
        let found = self.problem();
        let expected = (code.to_owned(), field.map(str::to_owned));
        assert_eq!((self.status.as_u16(), found), (status, expected), "{self:?}");
    }
}

/// A client with or without a key.
#[derive(Debug, Clone)]
pub struct Client {
    /// Address of the server.
    pub address: SocketAddr,
    /// Key that is sent with each request.
    pub key: Option<String>,
    /// The server's Unix socket, if used instead of the address.
    socket: Option<PathBuf>,
    /// The connection that is reused; `None` to open one for each request.
    reused: Option<Arc<Mutex<Option<SendRequest<Body>>>>>,
}

impl Client {
    /// Creates a client that opens a connection for each request.
    #[must_use]
    pub fn new(address: SocketAddr, key: Option<&str>) -> Self {
        Self { address, key: key.map(str::to_owned), socket: None, reused: None }
    }

    /// Returns the same client with one connection, which is reused.
    #[must_use]
    pub fn keep_alive(self) -> Self {
        Self { reused: Some(Arc::default()), ..self }
    }

    /// Returns the same client over the server's Unix socket, which other processes cannot take over.
    #[must_use]
    pub fn by_socket(&self, socket: PathBuf) -> Self {
        Self { socket: Some(socket), ..self.apart() }
    }

    /// Returns a client with another key, on connections of its own.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.apart() }
    }

    /// Returns the same client on connections of its own.
    #[must_use]
    pub fn apart(&self) -> Self {
        let reused = self.reused.as_ref().map(|_| Arc::default());
        Self { reused, ..Self::new(self.address, self.key.as_deref()) }
    }

    /// Starts a request with this client's key and the server's name.
    #[must_use]
    pub fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.address.to_string());
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request
    }

    /// Sends a request on a connection of its own, and returns the answer's head; its body can be read from it.
    pub async fn open(&self, request: Request<Body>) -> http::Response<hyper::body::Incoming> {
        let mut sender = self.connect().await.unwrap();
        let sent = tokio::time::timeout(DEADLINE, sender.send_request(request));
        sent.await.expect("an answer in time").expect("the server answers")
    }

    /// Sends a request and reads its answer. The body of a stream is not read, and is empty.
    pub async fn send_for_head(&self, request: http::request::Builder, body: impl Into<Body>) -> Answer {
        let (parts, body) = self.open(request.body(body.into()).unwrap()).await.into_parts();
        let is_stream = parts.status == 101
            || parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let body = if is_stream { Bytes::new() } else { collect(body).await.expect("the answer is whole") };
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// Sends a request. A closed connection is reopened; one that breaks during the request gives [`Cut`].
    ///
    /// # Errors
    /// Fails if there is no complete answer.
    pub async fn try_send(
        &self,
        request: http::request::Builder,
        body: impl Into<Body>,
    ) -> Result<Answer, Cut> {
        self.try_send_request(request.body(body.into()).unwrap()).await
    }

    /// See [`Client::try_send`].
    ///
    /// # Errors
    /// Fails if there is no complete answer.
    pub async fn try_send_request(&self, request: Request<Body>) -> Result<Answer, Cut> {
        let answered = tokio::time::timeout(DEADLINE, self.exchange(request)).await;
        answered.unwrap_or_else(|_| Err(Cut(format!("no answer within {DEADLINE:?}"))))
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Answer, Cut> {
        let cut = |error: &dyn std::fmt::Display| Cut(error.to_string());
        let mut reused = match &self.reused {
            Some(reused) => Some(reused.lock().await),
            None => None,
        };
        let mut open = reused.as_mut().and_then(|reused| reused.take());
        if let Some(sender) = &mut open
            && sender.ready().await.is_err()
        {
            open = None;
        }
        let mut sender = match open {
            Some(sender) => sender,
            None => self.connect().await.map_err(|error| cut(&error))?,
        };
        let mut sent = sender.try_send_request(request).await;
        // A server may end an idle connection at the very moment at which it is used again (RFC 9112, 9.5).
        if let Err(error) = &mut sent
            && let Some(request) = error.take_message()
        {
            sender = self.connect().await.map_err(|error| cut(&error))?;
            sent = sender.try_send_request(request).await;
        }
        let (parts, body) = sent.map_err(|error| cut(error.error()))?.into_parts();
        let body = collect(body).await.map_err(|error| cut(&error))?;
        if let Some(reused) = &mut reused {
            **reused = Some(sender);
        }
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }

    async fn connect(&self) -> std::io::Result<SendRequest<Body>> {
        if let Some(socket) = &self.socket {
            return handshake(UnixStream::connect(socket).await?).await;
        }
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        handshake(stream).await
    }

    /// Sends a request that must be answered.
    pub async fn send(&self, request: http::request::Builder, body: impl Into<Body>) -> Answer {
        self.try_send(request, body).await.expect("the server answers")
    }

    /// See [`Client::send`].
    pub async fn send_request(&self, request: Request<Body>) -> Answer {
        self.try_send_request(request).await.expect("the server answers")
    }

    /// Sends a request without a body.
    ///
    /// # Errors
    /// Fails if there is no complete answer.
    pub async fn try_call(&self, method: &str, path: &str) -> Result<Answer, Cut> {
        self.try_send(self.request(method, path), Body::empty()).await
    }

    /// Sends JSON.
    ///
    /// # Errors
    /// Fails if there is no complete answer.
    pub async fn try_json(&self, method: &str, path: &str, body: &Value) -> Result<Answer, Cut> {
        let request = self.request(method, path).header("content-type", "application/json");
        self.try_send(request, body.to_string()).await
    }

    /// Sends a request without a body that must be answered.
    pub async fn call(&self, method: &str, path: &str) -> Answer {
        self.try_call(method, path).await.expect("the server answers")
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path).await
    }

    /// Sends JSON that must be answered.
    pub async fn json(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.try_json(method, path, body).await.expect("the server answers")
    }

    /// POST of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.json("POST", path, body).await
    }

    /// PUT.
    pub async fn put(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(self.request("PUT", path), body).await
    }

    /// Sends a request that is answered by server-sent events.
    pub async fn events(&self, request: Request<Body>) -> Events {
        let answer = self.open(request).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Events { pieces: Body::new(answer.into_body()).into_data_stream(), text: String::new() }
    }

    /// Creates a sandbox, and returns its id.
    pub async fn sandbox(&self, body: &Value) -> String {
        let made = self.post("/v1/sandboxes", body).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.json()["id"].as_str().unwrap().to_owned()
    }

    /// Runs a line in a sandbox, and returns the result.
    pub async fn exec(&self, id: &str, line: &str) -> Value {
        let done =
            self.post(&format!("/v1/sandboxes/{id}/exec"), &serde_json::json!({ "command": line })).await;
        assert_eq!(done.status, 200, "{done:?}");
        done.json()
    }

    /// Runs a line in a sandbox, which must succeed, and returns its standard output.
    pub async fn sh(&self, id: &str, line: &str) -> String {
        let done = self.exec(id, line).await;
        assert_eq!(done["exit_code"], 0, "{line}: {done}");
        done["stdout"]["data"].as_str().unwrap_or_default().to_owned()
    }

    /// Creates a key of this role and tenant, and returns its id and the key itself. Needs an administrator's client.
    pub async fn new_key(&self, role: &str, tenant: &str) -> (String, String) {
        let body = serde_json::json!({ "name": "test", "role": role, "tenant": tenant });
        let made = self.post("/v1/keys", &body).await;
        assert_eq!(made.status, 201, "{made:?}");
        let made = made.json();
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        (text("id"), text("key"))
    }
}

async fn handshake<S>(stream: S) -> std::io::Result<SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(async move {
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

async fn collect(body: hyper::body::Incoming) -> Result<Bytes, axum::Error> {
    let mut pieces = Body::new(body).into_data_stream();
    let mut whole = Vec::new();
    while let Some(piece) = pieces.next().await {
        whole.extend_from_slice(&piece?);
    }
    Ok(whole.into())
}

/// Stream of server-sent events.
#[derive(Debug)]
pub struct Events {
    pieces: BodyDataStream,
    text: String,
}

impl Events {
    /// Returns the next event's name and data; `None` after the last.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        tokio::time::timeout(DEADLINE, self.read()).await.expect("an event, or the end, in time")
    }

    async fn read(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) =
                self.text.split_once("\n\n").map(|(event, rest)| (event.to_owned(), rest.to_owned()))
            {
                self.text = rest;
                let field =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let Some(name) = field("event: ") else { continue };
                let data = field("data: ").unwrap_or_default();
                return Some((name, serde_json::from_str(&data).unwrap()));
            }
            let piece = self.pieces.next().await?.unwrap();
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// Reports whether no event arrives within `time`.
    pub async fn is_quiet(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.read()).await.is_err()
    }

    /// Returns all remaining events.
    pub async fn rest(&mut self) -> Vec<(String, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// Percent-encodes every byte.
#[must_use]
pub fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}
