//! Forms with files (RFC 7578). The parser holds what it has read of a part's head, so that is bounded here.

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

/// How often the parser asks until it has looked at all that it has: twice, before a form's first boundary.
const LOOKS: usize = 2;

/// The most bytes before a part's content: what stands between two parts, and the head.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The parts of a form, one after the other.
pub(crate) struct Form {
    parts: Multipart<'static>,
    pace: Arc<Pace>,
}

/// How far the parser gets with what it has.
#[derive(Default)]
struct Pace {
    /// Bytes that it was given since it made something of them.
    held: AtomicUsize,
    /// How often it has asked for more since then, or since it was given some.
    asked: AtomicUsize,
}

impl Pace {
    /// A part, or some of its content, has come out.
    fn progress(&self) {
        self.held.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
    }
}

/// A part of a form.
pub(crate) struct Part {
    pub(crate) name: Option<String>,
    pub(crate) file_name: Option<String>,
    /// Has to be read to its end before the next part comes.
    pub(crate) content: BoxStream<'static, io::Result<Bytes>>,
}

impl Form {
    /// The form in a body. Contents may be of any length: nothing of them is collected here.
    pub(crate) fn new(
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        boundary: String,
    ) -> Self {
        let pace = Arc::new(Pace::default());
        let constraints = Constraints::new().size_limit(SizeLimit::new());
        let parts = Multipart::with_constraints(bounded(body, Arc::clone(&pace)), boundary, constraints);
        Self { parts, pace }
    }

    /// The next part.
    ///
    /// # Errors
    /// What is no form, a head that is too long, or a body that breaks off.
    pub(crate) async fn next(&mut self) -> Result<Option<Part>, Problem> {
        let Some(mut field) = self.parts.next_field().await.map_err(|error| malformed(&error))? else {
            return Ok(None);
        };
        self.pace.progress();
        let (name, file_name) = (field.name().map(str::to_owned), field.file_name().map(str::to_owned));
        let pace = Arc::clone(&self.pace);
        // The field goes with its last piece: the parser gives out no other one beside it.
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
    /// Reads a part whose content is of no use.
    ///
    /// # Errors
    /// A body that breaks off.
    pub(crate) async fn skip(mut self) -> Result<(), Problem> {
        while let Some(piece) = self.content.next().await {
            piece.map_err(|error| failure_of(&error).problem())?;
        }
        Ok(())
    }
}

/// The same bytes, a piece at a time, and only when the parser makes nothing of what it has: it would take all that there is before it looks
/// at any of it.
fn bounded(
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    pace: Arc<Pace>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let mut body = Box::pin(body);
    futures::stream::poll_fn(move |context| {
        if pace.asked.fetch_add(1, Ordering::Relaxed) < LOOKS {
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

fn malformed(error: &multer::Error) -> Problem {
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
    async fn contents_of_any_length_come_out_however_they_are_cut() {
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
    async fn a_head_without_end_is_refused_before_much_of_it_is_held() {
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
    async fn small_parts_take_in_no_more_than_they_need() {
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
