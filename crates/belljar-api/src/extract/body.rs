//! A body as a stream of bytes.

use std::io;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use belljar_keeper::Caller;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::header;
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use crate::guard::{ENDED, RequestMemory, StreamSlots};
use crate::problem::{Code, Problem};

/// A body that is streamed as it arrives. Compressed bodies are refused.
pub(crate) struct RawBody {
    body: Body,
    memory: Option<RequestMemory>,
    /// Length of the body, if the caller sent one.
    pub(crate) length: Option<u64>,
}

impl<S: Sync> FromRequest<S> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        refuse_compressed(&request)?;
        let length =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let memory = request.extensions().get::<RequestMemory>().cloned();
        Ok(Self { body: request.into_body(), memory, length })
    }
}

impl RawBody {
    /// Returns the bytes as a reader.
    pub(crate) fn reader(self) -> impl AsyncRead + Send + Unpin + 'static {
        StreamReader::new(self.stream().boxed())
    }

    /// Returns the bytes as a stream.
    pub(crate) fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        self.body.into_data_stream().map_err(io::Error::other)
    }

    /// Makes it break off when the caller may not send it any more. For callers that the guard does not know.
    pub(crate) fn bound(mut self, streams: &StreamSlots, caller: &Caller) -> Self {
        self.body = streams.bind(caller, self.body);
        self
    }

    /// Reads all bytes, at most `limit` of them.
    pub(crate) async fn read(self, limit: usize) -> Result<Bytes, Problem> {
        let too_large =
            || Problem::new(Code::TooLarge, format!("body too large: more than the limit of {limit} bytes"));
        if self.length.is_some_and(|length| usize::try_from(length).is_ok_and(|length| length > limit)) {
            return Err(too_large());
        }
        let mut pieces = self.body.into_data_stream();
        let mut whole = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| failure_of(&error).problem())?;
            if whole.len() + piece.len() > limit {
                return Err(too_large());
            }
            self.memory.as_ref().map_or(Ok(()), |memory| memory.grow(piece.len()))?;
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }
}

/// Refuses a compressed body: a small one may expand to a large one.
fn refuse_compressed(request: &Request) -> Result<(), Problem> {
    let identity = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if request.headers().get_all(header::CONTENT_ENCODING).iter().all(identity) {
        return Ok(());
    }
    let detail = "compressed bodies are not supported; send the body without Content-Encoding";
    Err(Problem::new(Code::UnsupportedMediaType, detail).with_field("Content-Encoding"))
}

/// Reason for an incomplete body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFailure {
    /// The body arrived too slowly.
    Slow,
    /// The body broke off before its end.
    Broken,
    /// Its caller may not send it any more.
    Ended,
}

impl BodyFailure {
    pub(crate) fn problem(self) -> Problem {
        match self {
            Self::Slow => Problem::new(Code::RequestTimeout, "the body arrived too slowly; send it again"),
            Self::Broken => Problem::new(Code::InvalidRequest, "the body broke off; send it again"),
            Self::Ended => Problem::new(Code::Unauthenticated, ENDED),
        }
    }
}

/// Returns the reason for an incomplete body, from the error that its reader got.
pub(crate) fn failure_of(error: &(dyn std::error::Error + 'static)) -> BodyFailure {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => return BodyFailure::Slow,
            Some(io::ErrorKind::PermissionDenied) => return BodyFailure::Ended,
            _ => {}
        }
        cause = error.source();
    }
    BodyFailure::Broken
}
