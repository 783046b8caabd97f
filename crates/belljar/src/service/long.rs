//! Long-running work, with a progress line on the terminal.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};

use super::link::Link;
use crate::progress::Progress;
use crate::units::bytes;

/// Interval between updates of the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(200);

/// Counter of transferred bytes. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ByteCounter(Arc<AtomicU64>);

impl ByteCounter {
    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl Link {
    /// Runs `work`, with a progress line if it takes long.
    pub(super) async fn with_progress<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        self.with_byte_progress(what, &ByteCounter::default(), work).await
    }

    /// Like [`Link::with_progress`], with the bytes transferred so far.
    pub(super) async fn with_byte_progress<T>(
        &self,
        what: &str,
        moved: &ByteCounter,
        work: impl Future<Output = T>,
    ) -> T {
        let progress = Progress::new(what.to_owned(), self.quiet);
        let updating = async {
            loop {
                tokio::time::sleep(UPDATE_INTERVAL).await;
                match moved.0.load(Ordering::Relaxed) {
                    0 => {}
                    count => progress.message(format!("{what}: {}", bytes(count))),
                }
            }
        };
        let done = tokio::select! {
            done = work => done,
            never = progress.keep_moving() => match never {},
            () = updating => std::future::pending().await,
        };
        progress.clear();
        done
    }
}

/// Reader that counts the bytes read.
pub(super) struct Counted<R> {
    source: R,
    moved: ByteCounter,
}

impl<R> Counted<R> {
    pub(super) fn new(source: R, moved: &ByteCounter) -> Self {
        Self { source, moved: moved.clone() }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.source).poll_read(context, buffer));
        self.moved.add(buffer.filled().len() - before);
        Poll::Ready(read)
    }
}
