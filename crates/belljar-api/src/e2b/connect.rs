//! The Connect protocol with JSON, as E2B's clients use it: one message, or frames of a flag, a length and a message.

use std::io;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use belljar_engine::ErrorCode;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::error::Refusal;
use crate::extract::{RawBody, parse_json};
use crate::guard::count_messages;

const STREAM_TYPE: &str = "application/connect+json";

/// Maximum length of a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Length of the header before each message of a stream.
const FRAME_HEADER_BYTES: usize = 5;

/// Flag of a compressed message.
const COMPRESSED: u8 = 1;

/// Flag of the last frame.
const END: u8 = 2;

/// Reports whether a path is that of a procedure.
pub(super) fn is_procedure(path: &str) -> bool {
    path.starts_with("/process.Process/") || path.starts_with("/filesystem.Filesystem/")
}

/// Reports whether a call uses frames.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(STREAM_TYPE)
}

/// Reads the only message of a unary call.
pub(super) async fn message<T: DeserializeOwned>(request: Request) -> Result<T, Refusal> {
    let is_stream = is_stream(request.headers());
    let body = body(request).await?;
    if is_stream {
        let mut frames = Box::pin(frames(body));
        return match frames.next().await {
            Some(frame) => parse(&frame.map_err(body_error)?),
            None => Err(Refusal::invalid("the stream has no message")),
        };
    }
    parse(&body.read(MAX_MESSAGE_BYTES).await?)
}

/// Reads the messages of a streaming call.
pub(super) async fn messages<T: DeserializeOwned + Send + 'static>(
    request: Request,
) -> Result<impl Stream<Item = Result<T, Refusal>> + Send, Refusal> {
    Ok(frames(body(request).await?).map(|frame| parse(&frame.map_err(body_error)?)))
}

async fn body(request: Request) -> Result<RawBody, Refusal> {
    use axum::extract::FromRequest as _;
    // One that is no stream of messages counts as it is read.
    let request = if is_stream(request.headers()) { count_messages(request) } else { request };
    Ok(RawBody::from_request(request, &()).await?)
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    Ok(parse_json(if bytes.is_empty() { b"{}" } else { bytes })?)
}

fn body_error(error: io::Error) -> Refusal {
    Refusal::invalid(error.to_string())
}

/// Returns the messages in the frames of a body.
pub(super) fn frames(body: RawBody) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let mut pieces = body.stream().boxed();
    async_stream::stream! {
        let mut held = BytesMut::new();
        loop {
            match take_frame(&mut held) {
                Ok(Some((flags, _))) if flags & END != 0 => return,
                Ok(Some((_, message))) => {
                    yield Ok(message);
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    yield Err(error);
                    return;
                }
            }
            match pieces.next().await {
                Some(Ok(piece)) => held.extend_from_slice(&piece),
                Some(Err(error)) => {
                    yield Err(error);
                    return;
                }
                None => {
                    if !held.is_empty() {
                        yield Err(io::Error::other("the stream ends within a frame"));
                    }
                    return;
                }
            }
        }
    }
}

/// Takes one complete frame out of the received bytes.
fn take_frame(held: &mut BytesMut) -> io::Result<Option<(u8, Bytes)>> {
    let Some((&[flags, a, b, c, d], _)) = held.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::other(format!(
            "a frame of {length} bytes is too large; at most {MAX_MESSAGE_BYTES}"
        )));
    }
    if flags & COMPRESSED != 0 {
        return Err(io::Error::other("compressed frames are not supported; send them uncompressed"));
    }
    if held.len() < FRAME_HEADER_BYTES + length {
        return Ok(None);
    }
    held.advance(FRAME_HEADER_BYTES);
    Ok(Some((flags, held.split_to(length).freeze())))
}

/// Encodes a message as a frame.
pub(super) fn frame(message: &impl Serialize) -> Bytes {
    enclose(0, message)
}

/// Encodes the last frame of a stream.
pub(super) fn end(refusal: Option<&Refusal>) -> Bytes {
    match refusal.map(Refusal::parts) {
        None => enclose(END, &json!({})),
        Some((code, message)) => enclose(END, &json!({"error": {"code": code.as_str(), "message": message}})),
    }
}

fn enclose(flags: u8, message: &impl Serialize) -> Bytes {
    // Only types of this crate are serialized here, and none of them can fail.
    let message = serde_json::to_vec(message).unwrap_or_default();
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + message.len());
    frame.put_u8(flags);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(&message);
    frame.freeze()
}

/// Returns the response of a unary call.
pub(super) fn unary(message: &impl Serialize, is_stream: bool) -> Response {
    if is_stream {
        let body = [frame(message), end(None)].concat();
        return with_type(StatusCode::OK, STREAM_TYPE, Body::from(body));
    }
    super::error::json_answer(StatusCode::OK, message)
}

/// Returns the response of a streaming call: the frames, including the last one.
pub(super) fn streaming(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    with_type(StatusCode::OK, STREAM_TYPE, Body::from_stream(frames.map(Ok::<_, io::Error>)))
}

/// Returns the error response of a unary call.
pub(super) fn refusal(code: ErrorCode, message: &str) -> Response {
    let status =
        StatusCode::from_u16(code.http_status().as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    super::error::json_answer(status, &json!({"code": code.as_str(), "message": message}))
}

/// Returns the error response of a streaming call.
pub(super) fn stream_refusal(code: ErrorCode, message: &str) -> Response {
    with_type(StatusCode::OK, STREAM_TYPE, Body::from(end(Some(&Refusal::new(code, message)))))
}

fn with_type(status: StatusCode, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_frames_are_taken() {
        let whole = frame(&json!({"a": 1}));
        for cut in 0..whole.len() {
            let mut held = BytesMut::from(&whole[..cut]);
            assert_eq!(take_frame(&mut held).unwrap(), None);
            held.extend_from_slice(&whole[cut..]);
            held.extend_from_slice(&end(None));
            assert_eq!(take_frame(&mut held).unwrap(), Some((0, Bytes::from_static(b"{\"a\":1}"))));
            assert_eq!(take_frame(&mut held).unwrap(), Some((END, Bytes::from_static(b"{}"))));
            assert!(held.is_empty());
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_frames_or_refused(bytes: Vec<u8>) {
            let mut held = BytesMut::from(&bytes[..]);
            while let Ok(Some((_, message))) = take_frame(&mut held) {
                proptest::prop_assert!(held.len() + FRAME_HEADER_BYTES + message.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn oversized_and_compressed_frames_are_refused() {
        for head in [[0, 255, 255, 255, 255], [0, 0, 128, 0, 1], [1, 0, 0, 0, 0]] {
            assert!(take_frame(&mut BytesMut::from(&head[..])).is_err(), "{head:?}");
        }
    }
}
