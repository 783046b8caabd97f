//! Requests to the REST interface, for what is a file rather than a message: each over a connection of its own.

use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::client::Client;
use crate::connector::Dialer;

/// The most bytes of a refusal that are read.
const MAX_PROBLEM_BYTES: usize = 1 << 20;
/// How long it may take to reach a server.
const MAX_DIAL: Duration = Duration::from_secs(10);

/// Why a request to the REST interface has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// The server cannot be reached.
    #[error("cannot reach the server at {target}")]
    Unreachable {
        /// Where it should be.
        target: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the connection to the server broke")]
    Broken(#[from] hyper::Error),
    /// The request can be none.
    #[error("the request cannot be sent")]
    Unsendable(#[from] http::Error),
    /// The server refused.
    #[error("{detail}")]
    Refused {
        /// The problem's code, such as `invalid_field`.
        code: String,
        /// What the server says.
        detail: String,
    },
}

/// What is sent.
pub enum RestBody {
    /// Nothing.
    Empty,
    /// A JSON document.
    Json(Vec<u8>),
    /// A stream of bytes.
    Stream(std::pin::Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>),
}

/// An answer, piece by piece.
pub struct RestAnswer {
    body: Incoming,
}

impl RestAnswer {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// [`RestError::Broken`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, RestError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

impl Client {
    /// Sends one request to the REST interface. `path` begins with `/v1/`.
    ///
    /// # Errors
    /// See [`RestError`].
    pub async fn rest(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        body: RestBody,
    ) -> Result<RestAnswer, RestError> {
        let unreachable =
            |source: std::io::Error| RestError::Unreachable { target: self.target.to_string(), source };
        let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, "the server does not answer");
        let stream = async {
            let dialer = Dialer::new(&self.rest.0).map_err(std::io::Error::other)?;
            tokio::time::timeout(MAX_DIAL, dialer.dial()).await.map_err(|_| late())?
        };
        let stream = stream.await.map_err(unreachable)?;
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let uri = format!("{}{path}", self.rest.0.authority().to_string().trim_end_matches('/'));
        let mut request = Request::builder().method(method).uri(uri).header(ACCEPT, accept);
        if let Some(key) = &self.rest.1 {
            request = request.header(AUTHORIZATION, key.clone());
        }
        let kind = match &body {
            RestBody::Empty => None,
            RestBody::Json(_) => Some("application/json"),
            RestBody::Stream(_) => Some("application/octet-stream"),
        };
        if let Some(kind) = kind {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        let body = match body {
            RestBody::Empty => Either::Left(Full::new(Bytes::new())),
            RestBody::Json(json) => Either::Left(Full::new(json.into())),
            RestBody::Stream(stream) => {
                use futures::TryStreamExt as _;
                Either::Right(StreamBody::new(stream.map_ok(Frame::data)))
            }
        };
        let request =
            request.body(body.map_err(|error| -> Box<dyn std::error::Error + Send + Sync> { error }))?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let mut answer = RestAnswer { body: answer.into_body() };
        if status.is_success() {
            return Ok(answer);
        }
        Err(refused(status, &mut answer).await)
    }
}

async fn refused(status: StatusCode, answer: &mut RestAnswer) -> RestError {
    let mut text = Vec::new();
    while let Ok(Some(piece)) = answer.next().await {
        text.extend_from_slice(&piece);
        if text.len() > MAX_PROBLEM_BYTES {
            break;
        }
    }
    let problem: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let field = |name: &str| problem.get(name).and_then(|value| value.as_str()).map(str::to_owned);
    RestError::Refused {
        code: field("code").unwrap_or_else(|| status.as_str().to_owned()),
        detail: field("detail").unwrap_or_else(|| format!("the server answered {status}")),
    }
}
