//! Forms with files (RFC 7578). The parser buffers the head of a part, so its length is bounded here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use belljar_keeper::ServiceWall;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _, ready};
use multer::{Constraints, Multipart, SizeLimit};

use super::body::failure_of;
use crate::problem::{Code, Problem};

/// Number of polls until the parser has examined all buffered bytes: two, before a form's first boundary.
const MAX_POLLS_WITHOUT_PROGRESS: usize = 2;

/// Maximum number of bytes before a part's content: the bytes between two parts, and the head.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The parts of a form, in order.
pub(crate) struct Form {
    parts: Multipart<'static>,
    pace: Arc<Pace>,
}

/// Progress of the parser with the bytes that it has.
#[derive(Default)]
struct Pace {
    /// Bytes passed to the parser since its last progress.
    held: AtomicUsize,
    /// Number of times that the parser asked for more since then, or since it was last given bytes.
    asked: AtomicUsize,
}

impl Pace {
    /// Resets the counters after the parser returned a part or some of its content.
    fn progress(&self) {
        self.held.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
    }
}

/// A part of a form.
pub(crate) struct Part {
    pub(crate) name: Option<String>,
    pub(crate) file_name: Option<String>,
    /// Content, which has to be read to its end before the next part is available.
    pub(crate) content: BoxStream<'static, io::Result<Bytes>>,
}

impl Form {
    /// Parses the form in a body. Contents may be of any length: they are not buffered here.
    pub(crate) fn new(
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        boundary: String,
    ) -> Self {
        let pace = Arc::new(Pace::default());
        let constraints = Constraints::new().size_limit(SizeLimit::new());
        let parts = Multipart::with_constraints(limit_head(body, Arc::clone(&pace)), boundary, constraints);
        Self { parts, pace }
    }

    /// Returns the next part.
    ///
    /// # Errors
    /// Fails if the form is malformed, a head is too long, or the body breaks off.
    pub(crate) async fn next(&mut self) -> Result<Option<Part>, Problem> {
        let Some(mut field) = self.parts.next_field().await.map_err(|error| to_problem(&error))? else {
            return Ok(None);
        };
        self.pace.progress();
        let (name, file_name) = (field.name().map(str::to_owned), field.file_name().map(str::to_owned));
        let pace = Arc::clone(&self.pace);
        // The field is consumed with its last chunk: the parser returns no other one while it exists.
        let content = async_stream::try_stream! {
            while let Some(piece) = field.chunk().await.map_err(io::Error::other)? {
                pace.progress();
                yield piece;
            }
            drop(field);
        };
        Ok(Some(Part { name, file_name, content: content.boxed() }))
    }
}

impl Part {
    /// Reads and discards the part's content.
    ///
    /// # Errors
    /// Fails if the body breaks off.
    pub(crate) async fn skip(mut self) -> Result<(), Problem> {
        while let Some(piece) = self.content.next().await {
            piece.map_err(|error| failure_of(&error).problem())?;
        }
        Ok(())
    }
}

/// Returns the same bytes, one chunk at a time, and only when the parser makes no progress with what it has: it would
/// otherwise buffer the whole input before parsing any of it.
fn limit_head(
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    pace: Arc<Pace>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let mut body = Box::pin(body);
    futures::stream::poll_fn(move |context| {
        if pace.asked.fetch_add(1, Ordering::Relaxed) < MAX_POLLS_WITHOUT_PROGRESS {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let is_too_long = pace.held.load(Ordering::Relaxed) > MAX_HEAD_BYTES;
        if !ServiceWall::BodyBounds.allows(!is_too_long) {
            return Poll::Ready(Some(Err(io::ErrorKind::FileTooLarge.into())));
        }
        let piece = ready!(body.as_mut().poll_next(context));
        if let Some(Ok(piece)) = &piece {
            pace.held.fetch_add(piece.len(), Ordering::Relaxed);
            pace.asked.store(0, Ordering::Relaxed);
        }
        Poll::Ready(piece)
    })
}

fn to_problem(error: &multer::Error) -> Problem {
    match error {
        multer::Error::StreamReadFailed(cause) => match cause.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let detail = format!("the head of a part is longer than {MAX_HEAD_BYTES} bytes");
                Problem::new(Code::TooLarge, detail)
            }
            _ => failure_of(cause.as_ref()).problem(),
        },
        _ => Problem::new(Code::InvalidRequest, format!("the form is malformed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;
    use futures::stream;

    use super::*;

    fn form(pieces: impl IntoIterator<Item = Vec<u8>, IntoIter: Send + 'static>) -> Form {
        Form::new(stream::iter(pieces).map(|piece| Ok(Bytes::from(piece))), "x".to_owned())
    }

    const HEAD: &[u8] = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";

    #[tokio::test]
    async fn contents_of_any_length_and_chunking_are_read() {
        let content = b"0123456789\r\n--".repeat(10_000);
        let whole = [HEAD, &content, b"\r\n", HEAD, b"\r\n--x--\r\n"].concat();
        for length in [7, 1000, whole.len()] {
            let pieces: Vec<_> = whole.chunks(length).map(<[u8]>::to_vec).collect();
            let mut form = form(pieces);
            for expected in [&content[..], b""] {
                let part = form.next().await.unwrap().unwrap();
                assert_eq!((part.name.as_deref(), part.file_name.as_deref()), (Some("file"), Some("a")));
                let pieces: Vec<Bytes> = part.content.try_collect().await.unwrap();
                assert!(pieces.concat() == expected, "in pieces of {length}");
            }
            assert!(form.next().await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn endless_head_is_refused_before_much_is_buffered() {
        let endless = || stream::repeat(vec![b'a'; 1024]);
        let heads = [&b""[..], b"--x\r\nA: ", &[HEAD, b"\r\n--x\r\nA: "].concat()];
        for head in heads.map(<[u8]>::to_vec) {
            let taken = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&taken);
            let body = stream::iter([head]).chain(endless()).map(move |piece| {
                count.fetch_add(piece.len(), Ordering::Relaxed);
                Ok(Bytes::from(piece))
            });
            let mut form = Form::new(body, "x".to_owned());
            let refused = loop {
                match form.next().await {
                    Ok(part) => part.unwrap().skip().await.unwrap(),
                    Err(problem) => break problem,
                }
            };
            assert_eq!(refused.code(), Code::TooLarge);
            assert!(taken.load(Ordering::Relaxed) <= 2 * MAX_HEAD_BYTES);
        }
    }

    #[tokio::test]
    async fn small_parts_read_no_more_than_they_need() {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let many = [HEAD, b"\r\n"].concat().repeat(100);
        let body = stream::repeat(many.clone()).map(move |piece| {
            count.fetch_add(piece.len(), Ordering::Relaxed);
            Ok(Bytes::from(piece))
        });
        let mut form = Form::new(body, "x".to_owned());
        for _ in 0..1000 {
            form.next().await.unwrap().unwrap().skip().await.unwrap();
        }
        assert!(taken.load(Ordering::Relaxed) <= 12 * many.len());
    }
}
