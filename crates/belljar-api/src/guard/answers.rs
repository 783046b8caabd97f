//! Limit on the memory that answers of one key take until they are read, and files while they are changed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::ServiceWall;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

use crate::problem::{Code, Problem};

/// Maximum number of bytes of one key. A single answer may have more.
/// Source: docs/spec.md; held by `tests::bytes_are_counted_until_they_are_dropped`.
const MAX_KEY_BYTES: usize = 64 << 20;

/// Length from which on answers and parts of streams count: smaller ones are bounded by the number of connections and streams.
const MIN_COUNTED: usize = 256 << 10;

/// Bytes of answers by key.
#[derive(Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<HashMap<String, usize>>>);

/// Bytes that count until this is dropped.
pub(crate) struct Held {
    answers: Answers,
    key: String,
    bytes: usize,
}

impl Answers {
    /// Counts bytes of a key.
    ///
    /// # Errors
    /// Fails if the key has others, and more than the maximum together with these.
    pub(crate) fn hold(&self, key: &str, bytes: usize) -> Result<Held, Problem> {
        let mut all = self.0.lock();
        let held = all.get(key).copied().unwrap_or_default();
        let sum = held.saturating_add(bytes);
        if held > 0 && sum > MAX_KEY_BYTES && !ServiceWall::UnreadAnswers.is_down() {
            let detail = format!(
                "answers: {held} bytes of this key wait to be read, and {bytes} more are over {MAX_KEY_BYTES}; read the answers, and try \
                 again"
            );
            return Err(
                Problem::new(Code::QuotaExceeded, detail).with_retry_after(Some(Duration::from_secs(1)))
            );
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
        assert!(answers.hold("a", 1).is_err());
        drop(bytes);
        assert!(answers.hold("a", MAX_KEY_BYTES).is_ok());
        drop(other);
        assert!(answers.0.lock().is_empty());
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
