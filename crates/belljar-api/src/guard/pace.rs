//! Cut-off of request bodies that arrive too slowly: those that stall, and those that trickle forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// Maximum wait for the next bytes of a body.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Total waiting time of a body before the minimum rate applies.
const GRACE: Duration = Duration::from_secs(60);

/// Minimum rate beyond the grace period, in bytes per second. Time in which the body is not read does not count.
const MIN_BYTES_PER_SECOND: u64 = 512;

/// Wraps a body so that its pace is enforced.
pub(super) fn limit_pace(body: Body) -> Body {
    if body.is_end_stream() || belljar_keeper::ServiceWall::SlowBodies.is_down() {
        return body;
    }
    Body::new(PacedBody { body, waiting: None, waited: Duration::ZERO, bytes: 0 })
}

struct PacedBody {
    body: Body,
    /// Start and deadline of the current wait.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Total waiting time so far.
    waited: Duration,
    bytes: u64,
}

impl PacedBody {
    /// Returns how long the next bytes may take.
    fn remaining(&self) -> Duration {
        let allowed = GRACE + Duration::from_secs(self.bytes / MIN_BYTES_PER_SECOND);
        allowed.saturating_sub(self.waited).min(STALL_TIMEOUT)
    }
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            if let Some((since, _)) = self.waiting.take() {
                self.waited += since.elapsed();
            }
            if let Some(Ok(frame)) = &frame {
                let length = frame.data_ref().map_or(0, Bytes::len);
                self.bytes += u64::try_from(length).unwrap_or(u64::MAX);
            }
            return Poll::Ready(frame);
        }
        let remaining = self.remaining();
        let (_, end) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(remaining))));
        std::task::ready!(end.as_mut().poll(context));
        let late = io::Error::new(io::ErrorKind::TimedOut, "the body arrives too slowly");
        Poll::Ready(Some(Err(axum::Error::new(late))))
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

    use super::*;
    use crate::extract::{BodyFailure, failure_of};

    /// Reads a body of one byte every `pause`; returns how many arrived, and the failure and time of the cut-off.
    async fn trickle(pause: Duration, bytes: usize) -> (usize, Option<BodyFailure>, Duration) {
        let began = Instant::now();
        let pieces = futures::stream::iter(0..bytes).then(move |_| async move {
            sleep(pause).await;
            Ok::<_, io::Error>(Bytes::from_static(b"x"))
        });
        let mut stream = limit_pace(Body::from_stream(pieces)).into_data_stream();
        let mut count = 0;
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(_) => count += 1,
                Err(error) => return (count, Some(failure_of(&error)), began.elapsed()),
            }
        }
        (count, None, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_are_cut_off() {
        assert_eq!(trickle(Duration::from_millis(1), 10_000).await.1, None);
        let (count, failure, after) = trickle(Duration::from_secs(31), 10).await;
        assert_eq!((count, failure), (0, Some(BodyFailure::Slow)));
        assert!(after < Duration::from_secs(32), "{after:?}");
        // A byte every ten seconds never stalls for long, and is still cut off.
        let (_, failure, after) = trickle(Duration::from_secs(10), 1000).await;
        assert_eq!(failure, Some(BodyFailure::Slow));
        assert!(after < Duration::from_secs(75), "{after:?}");
    }
}
