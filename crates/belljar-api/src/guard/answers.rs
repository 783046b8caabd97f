//! Limit on the memory that one key takes: requests until they are answered, answers until they are read, and files while they are changed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::ServiceWall;
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

use crate::problem::{Code, Problem};

/// Maximum number of bytes of one key. A single answer may have more.
/// Source: docs/spec.md; held by `tests::bytes_are_counted_until_they_are_dropped`.
const MAX_KEY_BYTES: usize = 64 << 20;

/// Length from which on answers and parts of streams count: smaller ones are bounded by the number of connections and streams.
const MIN_COUNTED: usize = 256 << 10;

/// Bytes of each request that do not count, and steps in which those after them do.
const MIN_COUNTED_BODY: usize = 64 << 10;

/// Bytes by key.
#[derive(Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<HashMap<String, usize>>>);

/// Bytes of a request that is in memory as a whole, which count until the request has been answered. In the request's extensions.
#[derive(Clone)]
pub(crate) struct RequestMemory {
    answers: Answers,
    key: String,
    held: Arc<Mutex<RequestBytes>>,
}

#[derive(Default)]
struct RequestBytes {
    bytes: usize,
    held: Vec<Held>,
    refused: Option<Problem>,
}

impl RequestMemory {
    /// Counts for `key`.
    pub(crate) fn new(answers: &Answers, key: &str) -> Self {
        Self { answers: answers.clone(), key: key.to_owned(), held: Arc::default() }
    }

    /// Counts bytes that have arrived. The first [`MIN_COUNTED_BODY`] are bounded by the number of connections and streams.
    ///
    /// # Errors
    /// As [`Answers::hold`].
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), Problem> {
        let mut request = self.held.lock();
        request.bytes += bytes;
        let counted: usize = request.held.iter().map(|held| held.bytes).sum();
        let more = request.bytes.saturating_sub(counted);
        if more > MIN_COUNTED_BODY {
            request.held.push(self.answers.hold_for(&self.key, more, "requests")?);
        }
        Ok(())
    }

    /// Returns why the body was refused while it was collected, if it was: who collects it may take that for a fault of the server.
    pub(super) fn refusal(&self) -> Option<Problem> {
        self.held.lock().refused.take()
    }

    /// Counts no bytes any more, as those that have arrived are not kept.
    fn release(&self) {
        *self.held.lock() = RequestBytes::default();
    }

    /// Counts a body that somebody else collects: all of it, or one message at a time.
    fn count(&self, body: Body, messages: Option<Messages>) -> Body {
        Body::new(CollectedBody { body, memory: self.clone(), messages })
    }
}

/// A body that is collected.
struct CollectedBody {
    body: Body,
    memory: RequestMemory,
    messages: Option<Messages>,
}

/// The place in a body of messages, each of which follows a flag and its length (gRPC over HTTP/2, "Length-Prefixed-Message"; Connect,
/// "Enveloped-Message").
#[derive(Debug, Default)]
struct Messages {
    /// What has arrived of the head of the next message.
    head: Vec<u8>,
    /// Bytes of the current message that have not arrived.
    left: usize,
}

/// Length of the flag and the length before a message, in bytes.
const MESSAGE_HEAD_BYTES: usize = 5;

impl Messages {
    /// Counts the bytes of the message that arrives; the last one counts until the next begins.
    fn count(&mut self, mut data: &[u8], memory: &RequestMemory) -> Result<(), Problem> {
        while !data.is_empty() {
            if self.left == 0 {
                if self.head.is_empty() {
                    memory.release();
                }
                let (head, rest) = data.split_at(data.len().min(MESSAGE_HEAD_BYTES - self.head.len()));
                self.head.extend_from_slice(head);
                data = rest;
                if let [_, a, b, c, d] = self.head[..] {
                    self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                    self.head.clear();
                }
            } else {
                let (message, rest) = data.split_at(data.len().min(self.left));
                memory.grow(message.len())?;
                self.left -= message.len();
                data = rest;
            }
        }
        Ok(())
    }
}

impl HttpBody for CollectedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let data = match &frame {
            Some(Ok(frame)) => frame.data_ref().cloned().unwrap_or_default(),
            _ => Bytes::new(),
        };
        let this = &mut *self;
        let counted = match &mut this.messages {
            Some(messages) => messages.count(&data, &this.memory),
            None => this.memory.grow(data.len()),
        };
        if let Err(problem) = counted {
            self.memory.held.lock().refused = Some(problem.clone());
            let error = std::io::Error::other(problem.detail().to_owned());
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts the body of a request that is collected as a whole.
pub(crate) fn count_collected(request: Request) -> Request {
    count(request, None)
}

/// Counts the body of a request whose messages are taken one after the other. A body that is none of messages counts as a whole.
pub(crate) fn count_messages(request: Request) -> Request {
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let has_messages =
        |kind: &[u8]| kind.starts_with(b"application/connect+") || kind.starts_with(b"application/grpc");
    let messages = kind.is_some_and(has_messages).then(Messages::default);
    count(request, messages)
}

fn count(request: Request, messages: Option<Messages>) -> Request {
    match request.extensions().get::<RequestMemory>().cloned() {
        Some(memory) => request.map(|body| memory.count(body, messages)),
        None => request,
    }
}

/// Bytes that count until this is dropped.
pub(crate) struct Held {
    answers: Answers,
    key: String,
    bytes: usize,
}

impl Answers {
    /// Refuses a call before it begins, so that its answer is not refused once it has run.
    ///
    /// # Errors
    /// Fails if answers of the key wait to be read that have more than half of the maximum together.
    pub(crate) fn admit(&self, key: &str) -> Result<(), Problem> {
        match self.0.lock().get(key) {
            Some(held) if *held > MAX_KEY_BYTES / 2 && !ServiceWall::UnreadAnswers.is_down() => {
                Err(full("answers", *held, "no further call begins"))
            }
            _ => Ok(()),
        }
    }

    /// Counts bytes of a key.
    ///
    /// # Errors
    /// Fails if the key has others, and more than the maximum together with these.
    pub(crate) fn hold(&self, key: &str, bytes: usize) -> Result<Held, Problem> {
        self.hold_for(key, bytes, "answers")
    }

    fn hold_for(&self, key: &str, bytes: usize, what: &'static str) -> Result<Held, Problem> {
        let mut all = self.0.lock();
        let held = all.get(key).copied().unwrap_or_default();
        let sum = held.saturating_add(bytes);
        if held > 0 && sum > MAX_KEY_BYTES && !ServiceWall::UnreadAnswers.is_down() {
            return Err(full(what, held, &format!("{bytes} more are over {MAX_KEY_BYTES}")));
        }
        all.insert(key.to_owned(), sum);
        Ok(Held { answers: self.clone(), key: key.to_owned(), bytes })
    }

    /// Counts the body of a response until it is read, or returns the refusal instead of it.
    pub(super) fn count(&self, key: &str, response: Response) -> Response {
        let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
        let whole = match size.filter(|size| *size >= MIN_COUNTED).map(|size| self.hold(key, size)) {
            None => None,
            Some(Ok(held)) => Some(Arc::new(held)),
            Some(Err(problem)) => return problem.into_response(),
        };
        if whole.is_none() && size.is_some() {
            return response;
        }
        let (answers, key) = (self.clone(), key.to_owned());
        response.map(|body| Body::new(Counted { body, answers, key, whole }))
    }
}

fn full(what: &str, held: usize, why: &str) -> Problem {
    let detail = format!(
        "{what}: {held} bytes of this key are in memory, in requests that arrive and answers that are not read, and {why}; \
         send and read them, and try again"
    );
    Problem::new(Code::QuotaExceeded, detail).with_retry_after(Some(Duration::from_secs(1)))
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = self.answers.0.lock();
        if let Some(held) = all.get_mut(&self.key) {
            *held = held.saturating_sub(self.bytes);
            if *held == 0 {
                all.remove(&self.key);
            }
        }
    }
}

/// A body whose bytes count.
struct Counted {
    body: Body,
    answers: Answers,
    key: String,
    /// All bytes, of a body of known length.
    whole: Option<Arc<Held>>,
}

/// Bytes that count until they are dropped.
struct CountedBytes {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        let bytes = match frame.into_data() {
            Ok(bytes) if bytes.len() >= MIN_COUNTED => bytes,
            Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Err(frame) => return Poll::Ready(Some(Ok(frame))),
        };
        let held = match &self.whole {
            Some(whole) => Ok(Arc::clone(whole)),
            None => self.answers.hold(&self.key, bytes.len()).map(Arc::new),
        };
        Poll::Ready(Some(match held {
            Ok(held) => Ok(Frame::data(Bytes::from_owner(CountedBytes { bytes, _held: held }))),
            // The head is sent already: all that is left is to break off.
            Err(problem) => Err(axum::Error::new(std::io::Error::other(problem.detail().to_owned()))),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    fn answer(length: usize) -> Response {
        Response::new(Body::from(vec![b'x'; length]))
    }

    #[tokio::test]
    async fn bytes_are_counted_until_they_are_dropped() {
        let answers = Answers::default();
        let status = |response: &Response| response.status().as_u16();
        // One that is alone may be larger.
        let first = answers.count("a", answer(MAX_KEY_BYTES + 1));
        assert_eq!(status(&first), 200);
        assert_eq!(status(&answers.count("a", answer(MIN_COUNTED))), 429);
        assert_eq!(status(&answers.count("a", answer(MIN_COUNTED - 1))), 200);
        let other = answers.count("b", answer(MAX_KEY_BYTES / 2));
        assert_eq!((status(&other), other.body().size_hint().exact()), (200, Some(MAX_KEY_BYTES as u64 / 2)));
        // Also after the body has handed them over.
        let mut body = first.into_body();
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(bytes.len(), MAX_KEY_BYTES + 1);
        drop(body);
        assert!(answers.hold("a", 1).is_err() && answers.admit("a").is_err() && answers.admit("b").is_ok());
        drop(bytes);
        assert!(answers.admit("a").is_ok());
        assert!(answers.hold("a", MAX_KEY_BYTES).is_ok());
        drop(other);
        assert!(answers.0.lock().is_empty());
    }

    #[tokio::test]
    async fn bodies_count_until_their_requests_are_answered() {
        let answers = Answers::default();
        let body = |memory: &RequestMemory, length| memory.count(Body::from(vec![b'x'; length]), None);
        let read = async |body: Body| body.collect().await.is_ok();
        let small = RequestMemory::new(&answers, "a");
        assert!(read(body(&small, MIN_COUNTED_BODY)).await && answers.0.lock().is_empty());
        let first = RequestMemory::new(&answers, "a");
        assert!(read(body(&first, MAX_KEY_BYTES)).await);
        let second = RequestMemory::new(&answers, "a");
        assert!(!read(body(&second, MIN_COUNTED_BODY + 1)).await);
        assert!(second.grow(1).is_err() && RequestMemory::new(&answers, "b").grow(MAX_KEY_BYTES).is_ok());
        drop(first);
        assert!(read(body(&RequestMemory::new(&answers, "a"), MAX_KEY_BYTES)).await);
        assert!(answers.0.lock().is_empty());
    }

    #[test]
    fn messages_count_one_at_a_time() {
        let answers = Answers::default();
        let memory = RequestMemory::new(&answers, "a");
        let held = || answers.0.lock().get("a").copied().unwrap_or_default();
        let message = |length: usize| {
            let mut bytes = vec![0];
            bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
            bytes.resize(bytes.len() + length, b'x');
            bytes
        };
        let mut messages = Messages::default();
        let all = [message(300_000), message(0), message(200_000)].concat();
        for piece in all[..300_005].chunks(7001) {
            messages.count(piece, &memory).unwrap();
        }
        assert!((300_000 - MIN_COUNTED_BODY..=300_000).contains(&held()), "{}", held());
        // It counts until the next one begins.
        messages.count(&all[300_005..300_006], &memory).unwrap();
        assert_eq!(held(), 0);
        for byte in &all[300_006..] {
            messages.count(&[*byte], &memory).unwrap();
        }
        assert!((200_000 - MIN_COUNTED_BODY..=200_000).contains(&held()), "{}", held());
        // One that is announced and does not come counts as far as it has come.
        let mut messages = Messages::default();
        messages.count(&message(usize::from(u16::MAX) * 1000)[..MAX_KEY_BYTES / 2], &memory).unwrap();
        let other = RequestMemory::new(&answers, "a");
        assert!(
            Messages::default()
                .count(&message(MAX_KEY_BYTES)[..MAX_KEY_BYTES / 2 + MIN_COUNTED_BODY], &other)
                .is_err()
        );
    }

    #[tokio::test]
    async fn streams_break_off_at_the_limit() {
        let answers = Answers::default();
        let piece = || Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; MAX_KEY_BYTES / 2]));
        let stream = futures::stream::iter((0..3).map(move |_| piece()));
        let response = answers.count("a", Response::new(Body::from_stream(stream)));
        let mut read = response.into_body().into_data_stream();
        let mut pieces = Vec::new();
        while let Some(piece) = read.next().await {
            pieces.push(piece.ok());
        }
        let lengths: Vec<_> = pieces.iter().map(|piece| piece.as_ref().map(Bytes::len)).collect();
        assert_eq!(lengths, [Some(MAX_KEY_BYTES / 2), Some(MAX_KEY_BYTES / 2), None]);
    }
}
