//! Requests to the REST interface, for administration and for files rather than messages. They share the connection of the
//! calls.

use std::time::Duration;

use belljar_proto::{ClientBody, ClientTransport as _, ConnectError, ErrorCode};
use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::ClientError;
use crate::retry::{RetryWhen, retry};

/// Maximum length of a response that is read as one value, in bytes.
const MAX_VALUE_BYTES: usize = 64 << 20;

/// Maximum length of a refusal that is read, in bytes.
const MAX_PROBLEM_BYTES: usize = 1 << 20;

type Result<T> = std::result::Result<T, ClientError>;

/// Body of a request.
pub enum RestBody {
    /// Nothing.
    Empty,
    /// A JSON document.
    Json(Bytes),
    /// A stream of bytes, which is sent only once.
    Stream(std::pin::Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send + Sync>>),
}

/// A response, read piece by piece.
pub struct RestResponse {
    body: Incoming,
    target: std::sync::Arc<str>,
}

impl RestResponse {
    /// Returns the next bytes, or `None` at the end.
    ///
    /// # Errors
    /// Returns [`ClientError::Broken`] if the connection breaks.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| {
                let source = ConnectError::unavailable_from_transport(
                    "the connection was lost during the response",
                    error,
                );
                ClientError::new(&self.target, source)
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the whole response, of at most `max` bytes.
    async fn read_all(mut self, max: usize) -> Result<Vec<u8>> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await? {
            if whole.len() + piece.len() > max {
                let what = format!("the response is longer than {max} bytes");
                return Err(ClientError::Protocol { target: self.target.to_string(), what });
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }
}

/// A response of server-sent events.
pub struct RestEvents {
    response: RestResponse,
    unread: Vec<u8>,
    /// Number of bytes of `unread` in which no event ends.
    searched: usize,
}

impl RestEvents {
    /// Returns the name and the data of the next event, or `None` at the end.
    ///
    /// # Errors
    /// Returns the server's refusal in an event `error`, or [`ClientError::Broken`] if the connection breaks.
    pub async fn next(&mut self) -> Result<Option<(String, Vec<u8>)>> {
        loop {
            while let Some(event) = self.take_event() {
                let mut lines = event.split(|byte| *byte == b'\n');
                let mut field =
                    |name: &[u8]| lines.find_map(|line| line.strip_prefix(name)).map(<[u8]>::to_vec);
                // Other blocks are comments, which keep the connection alive.
                if let (Some(name), Some(data)) = (field(b"event: "), field(b"data: ")) {
                    // An error of code has the same name, and no code of a problem.
                    let problem = serde_json::from_slice::<Problem>(&data).ok().filter(|_| name == b"error");
                    if problem.is_some_and(|problem| !problem.code.is_empty()) {
                        return Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, None, &data));
                    }
                    return Ok(Some((String::from_utf8_lossy(&name).into_owned(), data)));
                }
            }
            if self.unread.len() > MAX_VALUE_BYTES {
                let what = format!("an event is longer than {MAX_VALUE_BYTES} bytes");
                return Err(ClientError::Protocol { target: self.response.target.to_string(), what });
            }
            match self.response.next().await? {
                Some(data) => self.unread.extend_from_slice(&data),
                None => return Ok(None),
            }
        }
    }

    /// Takes the first complete event out of what was read: it ends with an empty line.
    fn take_event(&mut self) -> Option<Vec<u8>> {
        const END: &[u8] = b"\n\n";
        let from = self.searched.saturating_sub(1);
        let found = self.unread.get(from..)?.windows(END.len()).position(|two| two == END);
        let Some(at) = found else {
            self.searched = self.unread.len();
            return None;
        };
        let rest = self.unread.split_off(from + at + END.len());
        self.searched = 0;
        Some(std::mem::replace(&mut self.unread, rest))
    }
}

impl Client {
    /// Sends a value, and returns the response as events.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send_for_events(
        &self,
        method: Method,
        path: &str,
        value: &impl Serialize,
    ) -> Result<RestEvents> {
        let json = serde_json::to_vec(value).map_err(|_| ClientError::Unsendable { field: "body" })?;
        let response = self.rest(method, path, "text/event-stream", RestBody::Json(json.into())).await?;
        Ok(RestEvents { response, unread: Vec::new(), searched: 0 })
    }

    /// Gets a value. `path` begins with `/`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn fetch<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.value(Method::GET, path, RestBody::Empty).await
    }

    /// Sends a value, and returns the value in the response: `()` for a response without one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        value: &impl Serialize,
    ) -> Result<T> {
        let json = serde_json::to_vec(value).map_err(|_| ClientError::Unsendable { field: "body" })?;
        self.value(method, path, RestBody::Json(json.into())).await
    }

    /// Sends a request, and returns the value in the response: `()` for a response without one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn value<T: DeserializeOwned>(&self, method: Method, path: &str, body: RestBody) -> Result<T> {
        let answer =
            self.rest(method, path, "application/json", body).await?.read_all(MAX_VALUE_BYTES).await?;
        let answer: &[u8] = if answer.is_empty() { b"null" } else { &answer };
        serde_json::from_slice(answer).map_err(|error| ClientError::Protocol {
            target: self.target.to_string(),
            what: format!("cannot parse the response to {path}: {error}"),
        })
    }

    /// Sends one request, and returns its response for reading piece by piece. `path` begins with `/`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn rest(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: RestBody,
    ) -> Result<RestResponse> {
        // A repeated removal, for example, would fail: the object no longer exists.
        let when = if method == Method::GET { RetryWhen::Always } else { RetryWhen::NotStarted };
        let once = |body: ClientBody, kind: Option<&'static str>| {
            let request = self.request(method.clone(), path, accept, kind, body);
            async {
                let sent = self.connection.send(request?).await;
                let answer = sent.map_err(|error| ClientError::new(&self.target, error))?;
                let (head, body) = answer.into_parts();
                let answer = RestResponse { body, target: self.target.clone() };
                if head.status.is_success() {
                    Ok(answer)
                } else {
                    Err(to_refusal(head.status, &head.headers, answer).await)
                }
            }
        };
        let json = match body {
            RestBody::Empty => None,
            RestBody::Json(json) => Some(json),
            RestBody::Stream(stream) => {
                let stream = stream.map_ok(Frame::data).map_err(|error| {
                    ConnectError::new(ErrorCode::Canceled, "cannot read the data to send").with_source(error)
                });
                return once(StreamBody::new(stream).boxed(), Some("application/octet-stream")).await;
            }
        };
        retry(self.attempts, when, || {
            let kind = json.as_ref().map(|_| "application/json");
            let body = Full::new(json.clone().unwrap_or_default()).map_err(|never| match never {});
            once(body.boxed(), kind)
        })
        .await
    }

    /// Posts a JSON message with headers of its own, and returns the response for reading piece by piece, whatever its status is.
    /// `path` begins with `/`.
    ///
    /// # Errors
    /// Fails if the server cannot be reached, or the connection breaks.
    pub async fn post(
        &self,
        path: &str,
        accept: &'static str,
        headers: HeaderMap,
        json: Bytes,
    ) -> Result<(StatusCode, HeaderMap, RestResponse)> {
        let answer = retry(self.attempts, RetryWhen::NotStarted, || {
            let body = Full::new(json.clone()).map_err(|never| match never {});
            let request = self.request(Method::POST, path, accept, Some("application/json"), body.boxed());
            async {
                let mut request = request?;
                request.headers_mut().extend(headers.clone());
                let sent = self.connection.send(request).await;
                sent.map_err(|error| ClientError::new(&self.target, error))
            }
        });
        let (head, body) = answer.await?.into_parts();
        Ok((head.status, head.headers, RestResponse { body, target: self.target.clone() }))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        kind: Option<&'static str>,
        body: ClientBody,
    ) -> Result<Request<ClientBody>> {
        let uri = format!("{}{path}", self.authority.to_string().trim_end_matches('/'));
        let mut request = Request::builder().method(method).uri(uri).header(ACCEPT, accept);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        if let Some(kind) = kind {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        request.body(body).map_err(|_| ClientError::Unsendable { field: "path" })
    }
}

/// The server's explanation of a refused request.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Problem {
    code: String,
    detail: String,
    field: Option<String>,
    request_id: String,
}

async fn to_refusal(status: StatusCode, headers: &HeaderMap, answer: RestResponse) -> ClientError {
    let text = match answer.read_all(MAX_PROBLEM_BYTES).await {
        Ok(text) => text,
        Err(error) => return error,
    };
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    refusal(status, seconds.map(Duration::from_secs), &text)
}

/// Returns the error of a request that was refused with this problem.
fn refusal(status: StatusCode, retry_after: Option<Duration>, problem: &[u8]) -> ClientError {
    let problem: Problem = serde_json::from_slice(problem).unwrap_or_default();
    ClientError::Refused {
        code: Some(problem.code)
            .filter(|code| !code.is_empty())
            .unwrap_or_else(|| status.as_str().to_owned()),
        rpc: match status {
            StatusCode::TOO_MANY_REQUESTS => ErrorCode::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE => ErrorCode::Unavailable,
            StatusCode::CONFLICT => ErrorCode::Aborted,
            status if status.is_server_error() => ErrorCode::Internal,
            _ => ErrorCode::Unknown,
        },
        message: Some(problem.detail)
            .filter(|detail| !detail.is_empty())
            .unwrap_or_else(|| format!("the server answered {status}")),
        field: problem.field,
        request_id: problem.request_id,
        retry_after,
    }
}
