//! A connection's bytes, with an eye on the clock.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long the head of a request may take, from its first byte; that of the first one from the connection on.
const MAX_HEAD: Duration = Duration::from_secs(10);

/// How long a client may take none of what it asked for.
pub(super) const MAX_STALL: Duration = Duration::from_secs(60);

/// What a connection does now.
#[derive(Debug)]
pub(super) struct Activity {
    /// Requests whose answers are not through.
    under_way: AtomicUsize,
    /// Requests so far, and how many there may be.
    requests: AtomicU64,
    most: u64,
    /// Fires when there were as many as there may be.
    full: tokio::sync::Notify,
    /// Fires when the first one has come.
    first: tokio::sync::Notify,
    /// Since when nothing is under way.
    idle_since: Mutex<Instant>,
    /// Fires when it is to give way to another one.
    evicted: tokio_util::sync::CancellationToken,
    /// Whether it speaks HTTP/2, which says by itself that it is alive.
    is_http2: std::sync::atomic::AtomicBool,
}

impl Activity {
    pub(super) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self {
            under_way: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            most,
            full: tokio::sync::Notify::new(),
            first: tokio::sync::Notify::new(),
            idle_since: Mutex::new(Instant::now()),
            evicted: tokio_util::sync::CancellationToken::new(),
            is_http2: false.into(),
        })
    }

    /// A request has come. It is under way until what this returns is dropped.
    pub(super) fn begin(self: &Arc<Self>, is_http2: bool) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let count = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        if count == 1 {
            self.first.notify_one();
        }
        if count == self.most {
            self.full.notify_one();
        }
        self.is_http2.store(is_http2, Ordering::Release);
        UnderWay(Arc::clone(self))
    }

    /// Waits until there was a request.
    pub(super) async fn begun(&self) {
        if self.requests.load(Ordering::Acquire) == 0 {
            self.first.notified().await;
        }
    }

    /// Waits until there were as many requests as there may be.
    pub(super) async fn full(&self) {
        self.full.notified().await;
    }

    /// Has it give way to another one.
    pub(super) fn evict(&self) {
        self.evicted.cancel();
    }

    /// Whether it is to give way.
    #[cfg(test)]
    pub(super) fn is_evicted(&self) -> bool {
        self.evicted.is_cancelled()
    }

    /// Waits until it is to give way.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// For how long nothing has been under way; nothing while something is.
    pub(super) fn idle(&self) -> Option<Duration> {
        if self.under_way.load(Ordering::Acquire) > 0 {
            return None;
        }
        Some(self.idle_since.lock().elapsed())
    }
}

/// A request that is under way.
pub(super) struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream whose reads and writes may not stand still where they should not.
pub(super) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
    /// When the head that is being read has to be whole.
    head: Option<Pin<Box<Sleep>>>,
    /// When the write that waits has to go on.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        Self { stream, activity, head: Some(Box::pin(sleep(MAX_HEAD))), stall: None }
    }

    /// Looks after the clock of a head. Bytes that come while nothing is under way begin one.
    fn watch_head(&mut self, context: &mut Context<'_>, came: bool) -> io::Result<()> {
        let is_head = self.activity.idle().is_some();
        if !is_head || self.activity.is_http2.load(Ordering::Acquire) {
            self.head = None;
            return Ok(());
        }
        if came && self.head.is_none() {
            self.head = Some(Box::pin(sleep(MAX_HEAD)));
        }
        if belljar_keeper::ServiceWall::SlowHeads.is_down() {
            self.head = None;
        }
        let late = self.head.as_mut().is_some_and(|head| head.as_mut().poll(context).is_ready());
        if late {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the head of a request came too slowly"));
        }
        Ok(())
    }

    fn watch_stall<T>(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stall = None;
            return wrote;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(MAX_STALL)));
        std::task::ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of the answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let came = read.is_ready() && buffer.filled().len() > before;
        if let Err(late) = self.watch_head(context, came) {
            return Poll::Ready(Err(late));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch_stall(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch_stall(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch_stall(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch_stall(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_head_has_to_come_in_time() {
        let (mut client, server) = duplex(64);
        let activity = Activity::new(10);
        let mut watched = Watched::new(server, Arc::clone(&activity));
        let mut buffer = [0; 64];
        // Nothing at all.
        let late = watched.read(&mut buffer).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        // A trickle.
        let (mut trickle, server) = duplex(64);
        let mut watched = Watched::new(server, Arc::clone(&activity));
        let began = Instant::now();
        let feeding = tokio::spawn(async move {
            while trickle.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        while watched.read(&mut buffer).await.is_ok() {}
        assert!(began.elapsed() <= MAX_HEAD + Duration::from_secs(1));
        drop(watched);
        feeding.abort();
        // A request that is under way may stand still, and so may a connection between requests.
        let (mut between, server) = duplex(64);
        let mut watched = Watched::new(server, Arc::clone(&activity));
        between.write_all(b"GET").await.unwrap();
        assert_eq!(watched.read(&mut buffer).await.unwrap(), 3);
        let under_way = activity.begin(false);
        let waited = tokio::time::timeout(MAX_HEAD * 3, watched.read(&mut buffer)).await;
        assert!(waited.is_err(), "{waited:?}");
        drop(under_way);
        let waited = tokio::time::timeout(MAX_HEAD * 3, watched.read(&mut buffer)).await;
        assert!(waited.is_err(), "{waited:?}");
        client.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_left() {
        let (_client, server) = duplex(4);
        let mut watched = Watched::new(server, Activity::new(10));
        let late = watched.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
