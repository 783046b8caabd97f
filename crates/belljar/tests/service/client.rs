//! A client over plain HTTP/1.1, with one connection that is used again. What is cut off is told apart from what is answered.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;

/// How long any answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A body that is there already.
pub(crate) struct Whole(Option<Bytes>);

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// No answer came, or not all of it: the server may have done what was asked for, or not.
#[derive(Debug)]
#[expect(dead_code, reason = "shown by what fails")]
pub(crate) struct Cut(pub(crate) String);

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap_or(""))
    }

    /// The problem's stable code; nothing if it is no problem.
    pub(crate) fn code(&self) -> String {
        let problem: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem["code"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub(crate) fn assert(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.code().as_str()), (status, code), "{self:?}");
    }
}

/// Begins HTTP/1.1 on a stream.
async fn handshake<S>(stream: S) -> std::io::Result<SendRequest<Whole>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// A client with a key, or without.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) key: Option<String>,
    /// The server's own socket, if that is used in place of the address.
    socket: Option<PathBuf>,
    connection: Arc<Mutex<Option<SendRequest<Whole>>>>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, key: Option<&str>) -> Self {
        Self { address, key: key.map(str::to_owned), socket: None, connection: Arc::default() }
    }

    /// The same client by the server's own socket, which strangers cannot take from it.
    pub(crate) fn by_socket(&self, socket: PathBuf) -> Self {
        Self { socket: Some(socket), ..self.apart() }
    }

    /// Another client with this key.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self::new(self.address, Some(key))
    }

    /// The same client on a connection of its own.
    pub(crate) fn apart(&self) -> Self {
        Self::new(self.address, self.key.as_deref())
    }

    /// A request with this client's key and the server's name.
    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let method = Method::from_bytes(method.as_bytes()).expect("it is a method");
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.address.to_string());
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request
    }

    /// Sends a request. A connection that had ended before is opened anew; one that ends meanwhile is [`Cut`].
    pub(crate) async fn try_send(
        &self,
        request: http::request::Builder,
        body: impl Into<Bytes>,
    ) -> Result<Answer, Cut> {
        let body = body.into();
        let request =
            request.body(Whole(Some(body).filter(|body| !body.is_empty()))).expect("it is a request");
        let answered = tokio::time::timeout(PATIENCE, self.exchange(request)).await;
        answered.unwrap_or_else(|_| Err(Cut(format!("no answer within {PATIENCE:?}"))))
    }

    async fn exchange(&self, request: Request<Whole>) -> Result<Answer, Cut> {
        let cut = |error: &dyn std::fmt::Display| Cut(error.to_string());
        let mut connection = self.connection.lock().await;
        let mut open = connection.take();
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
        *connection = Some(sender);
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }

    async fn connect(&self) -> std::io::Result<SendRequest<Whole>> {
        if let Some(socket) = &self.socket {
            return handshake(UnixStream::connect(socket).await?).await;
        }
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        handshake(stream).await
    }

    /// Sends a request, and reads the answer until it ends or nothing comes for a moment: it may be a stream.
    pub(crate) async fn send_for_head(
        &self,
        request: http::request::Builder,
        body: impl Into<Bytes>,
    ) -> Answer {
        let body = body.into();
        let request =
            request.body(Whole(Some(body).filter(|body| !body.is_empty()))).expect("it is a request");
        let mut sender = self.connect().await.expect("the server is there");
        let answer =
            tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time");
        let (parts, body) = answer.expect("the server answers").into_parts();
        // What ends comes to its end at once.
        let is_stream = parts.status == 101
            || parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let body = if is_stream { Bytes::new() } else { collect(body).await.expect("the answer is whole") };
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn try_call(&self, method: &str, path: &str) -> Result<Answer, Cut> {
        self.try_send(self.request(method, path), Bytes::new()).await
    }

    pub(crate) async fn try_json(&self, method: &str, path: &str, body: &Value) -> Result<Answer, Cut> {
        let request = self.request(method, path).header("content-type", "application/json");
        self.try_send(request, body.to_string()).await
    }

    pub(crate) async fn send(&self, request: http::request::Builder, body: impl Into<Bytes>) -> Answer {
        self.try_send(request, body).await.expect("the server answers")
    }

    pub(crate) async fn call(&self, method: &str, path: &str) -> Answer {
        self.try_call(method, path).await.expect("the server answers")
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path).await
    }

    pub(crate) async fn json(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.try_json(method, path, body).await.expect("the server answers")
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.json("POST", path, body).await
    }

    /// Makes a sandbox, and hands back its id.
    pub(crate) async fn sandbox(&self, body: &Value) -> String {
        let made = self.post("/v1/sandboxes", body).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.json()["id"].as_str().expect("it has an id").to_owned()
    }

    /// Runs a line in a sandbox, and hands back what it wrote.
    pub(crate) async fn sh(&self, id: &str, line: &str) -> String {
        let done =
            self.post(&format!("/v1/sandboxes/{id}/exec"), &serde_json::json!({ "command": line })).await;
        assert_eq!(done.status, 200, "{done:?}");
        let done = done.json();
        assert_eq!(done["exit_code"], 0, "{line}: {done}");
        done["stdout"]["data"].as_str().unwrap_or_default().to_owned()
    }

    /// Makes a key of this role and tenant: its id and the key itself. Needs an administrator's client.
    pub(crate) async fn new_key(&self, role: &str, tenant: &str) -> (String, String) {
        let body = serde_json::json!({ "name": "test", "role": role, "tenant": tenant });
        let made = self.post("/v1/keys", &body).await;
        assert_eq!(made.status, 201, "{made:?}");
        let made = made.json();
        let text = |name: &str| made[name].as_str().expect("it is told").to_owned();
        (text("id"), text("key"))
    }
}

async fn collect(body: hyper::body::Incoming) -> Result<Bytes, hyper::Error> {
    let mut body = std::pin::pin!(body);
    let mut whole = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        if let Some(data) = frame?.data_ref() {
            whole.extend_from_slice(data);
        }
    }
    Ok(whole.into())
}

/// Percent-encodes every byte.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}
