//! Connection I/O with timeouts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use belljar_http_hop::FramingScan;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::frames::ControlFrames;

/// Maximum time for the head of a request, from its first byte; for the first request, from the connection's start.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for which a client may read nothing of a response.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Activity of a connection.
#[derive(Debug)]
pub(super) struct Activity {
    /// Requests in flight.
    in_flight: AtomicUsize,
    /// Number of requests so far, and the maximum.
    requests: AtomicU64,
    max: u64,
    /// Notified when the maximum number of requests has been reached.
    full: tokio::sync::Notify,
    /// Notified when the first request has begun.
    first: tokio::sync::Notify,
    /// Time since which no request has been in flight.
    idle_since: Mutex<Instant>,
    /// Cancelled when the connection is evicted.
    evicted: tokio_util::sync::CancellationToken,
    /// The connection uses HTTP/2, which has its own pings.
    is_http2: AtomicBool,
    /// The connection has changed to another protocol, which has no heads.
    is_upgraded: AtomicBool,
}

impl Activity {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            in_flight: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            max,
            full: tokio::sync::Notify::new(),
            first: tokio::sync::Notify::new(),
            idle_since: Mutex::new(Instant::now()),
            evicted: tokio_util::sync::CancellationToken::new(),
            is_http2: false.into(),
            is_upgraded: false.into(),
        })
    }

    /// Records the start of a request. It is in flight until the returned value is dropped.
    pub(super) fn begin(self: &Arc<Self>, is_http2: bool) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        let count = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        if count == 1 {
            self.first.notify_one();
        }
        if count == self.max {
            self.full.notify_one();
        }
        self.is_http2.store(is_http2, Ordering::Release);
        InFlight(Arc::clone(self))
    }

    /// Waits until the first request has begun.
    pub(super) async fn wait_for_first_request(&self) {
        if self.requests.load(Ordering::Acquire) == 0 {
            self.first.notified().await;
        }
    }

    /// Waits until the maximum number of requests has been reached.
    pub(super) async fn wait_for_max_requests(&self) {
        self.full.notified().await;
    }

    /// Evicts the connection in favor of another one.
    pub(super) fn evict(&self) {
        self.evicted.cancel();
    }

    /// Reports whether the connection is evicted.
    #[cfg(test)]
    pub(super) fn is_evicted(&self) -> bool {
        self.evicted.is_cancelled()
    }

    /// Waits until the connection is evicted.
    pub(super) async fn wait_for_eviction(&self) {
        self.evicted.cancelled().await;
    }

    /// Returns how long no request has been in flight; `None` while one is.
    pub(super) fn idle(&self) -> Option<Duration> {
        if self.in_flight.load(Ordering::Acquire) > 0 {
            return None;
        }
        Some(self.idle_since.lock().elapsed())
    }
}

/// A request in flight.
pub(super) struct InFlight(Arc<Activity>);

impl InFlight {
    /// Records that the connection changes to another protocol after the response.
    pub(super) fn upgrade(&self) {
        self.0.is_upgraded.store(true, Ordering::Release);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream with timeouts on heads and on stalled writes, requests that are framed in one way, and a limit on HTTP/2 frames that carry no request.
pub(super) struct WatchedIo<S> {
    stream: S,
    activity: Arc<Activity>,
    /// Deadline of the head that is being read.
    head: Option<Pin<Box<Sleep>>>,
    /// Deadline of the stalled write.
    stall: Option<Pin<Box<Sleep>>>,
    frames: ControlFrames,
    framing: FramingScan,
}

impl<S> WatchedIo<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>) -> Self {
        let head = Some(Box::pin(sleep(HEAD_TIMEOUT)));
        Self {
            stream,
            activity,
            head,
            stall: None,
            frames: ControlFrames::new(),
            framing: FramingScan::default(),
        }
    }

    /// Maintains the deadline of a head. A head begins with the first bytes that arrive while no request is in flight.
    fn watch_head(&mut self, context: &mut Context<'_>, received: bool) -> io::Result<()> {
        let Activity { is_http2, is_upgraded, .. } = &*self.activity;
        let is_head = self.activity.idle().is_some() && !is_upgraded.load(Ordering::Acquire);
        if !is_head || is_http2.load(Ordering::Acquire) {
            self.head = None;
            return Ok(());
        }
        if received && self.head.is_none() {
            self.head = Some(Box::pin(sleep(HEAD_TIMEOUT)));
        }
        if belljar_keeper::ServiceWall::SlowHeads.is_down() {
            self.head = None;
        }
        let late = self.head.as_mut().is_some_and(|head| head.as_mut().poll(context).is_ready());
        if late {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the head of a request arrived too slowly"));
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
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL_TIMEOUT)));
        std::task::ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading the response")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let received = read.is_ready() && buffer.filled().len() > before;
        if let Err(late) = self.watch_head(context, received) {
            return Poll::Ready(Err(late));
        }
        if received && !self.frames.accept(&buffer.filled()[before..]) {
            let reason = "too many HTTP/2 frames without a request";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
        }
        if received && !self.activity.is_upgraded.load(Ordering::Acquire) {
            self.framing.spoil(&mut buffer.filled_mut()[before..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedIo<S> {
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
    async fn slow_heads_time_out() {
        let (mut client, server) = duplex(64);
        let activity = Activity::new(10);
        let mut watched = WatchedIo::new(server, Arc::clone(&activity));
        let mut buffer = [0; 64];
        // No bytes at all.
        let late = watched.read(&mut buffer).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        // A slow trickle.
        let (mut trickle, server) = duplex(64);
        let mut watched = WatchedIo::new(server, Arc::clone(&activity));
        let began = Instant::now();
        let feeding = tokio::spawn(async move {
            while trickle.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        while watched.read(&mut buffer).await.is_ok() {}
        assert!(began.elapsed() <= HEAD_TIMEOUT + Duration::from_secs(1));
        drop(watched);
        feeding.abort();
        // Requests in flight may stall, and so may a connection between requests.
        let (mut between, server) = duplex(64);
        let mut watched = WatchedIo::new(server, Arc::clone(&activity));
        between.write_all(b"GET").await.unwrap();
        assert_eq!(watched.read(&mut buffer).await.unwrap(), 3);
        let in_flight = activity.begin(false);
        let waited = tokio::time::timeout(HEAD_TIMEOUT * 3, watched.read(&mut buffer)).await;
        assert!(waited.is_err(), "{waited:?}");
        drop(in_flight);
        let waited = tokio::time::timeout(HEAD_TIMEOUT * 3, watched.read(&mut buffer)).await;
        assert!(waited.is_err(), "{waited:?}");
        client.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn upgraded_connections_have_no_heads() {
        let (mut client, server) = duplex(64);
        let activity = Activity::new(10);
        let mut watched = WatchedIo::new(server, Arc::clone(&activity));
        let request = activity.begin(false);
        request.upgrade();
        drop(request);
        let mut buffer = [0; 64];
        for _ in 0..3 {
            client.write_all(b"input").await.unwrap();
            assert_eq!(watched.read(&mut buffer).await.unwrap(), 5);
            let waited = tokio::time::timeout(HEAD_TIMEOUT * 3, watched.read(&mut buffer)).await;
            assert!(waited.is_err(), "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_clients_time_out() {
        let (_client, server) = duplex(4);
        let mut watched = WatchedIo::new(server, Activity::new(10));
        let late = watched.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
