//! The end that makes calls.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use connectrpc::ConnectError;
use connectrpc::client::{ClientBody, ClientTransport, SharedHttp2Connection};
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tower::ServiceExt as _;

/// Maximum number of connections on which a call is tried, if each breaks before any of the call was sent.
const MAX_ATTEMPTS: usize = 4;

/// Maximum time until a closed stream is noticed by the library.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);

/// An end that makes calls. Clones share its connection, which is opened at the first call, and again at the first one
/// after it breaks. A break fails only the calls that were being answered.
#[derive(Clone)]
pub struct Connection {
    pub(crate) inner: SharedHttp2Connection,
    /// Reports whether the latest stream has been hung up, if that can be told.
    pub(crate) latest: Arc<Mutex<Option<Monitor>>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Connection")
    }
}

/// No connection could be opened: no part of the call was sent.
#[derive(Debug, thiserror::Error)]
#[error("cannot open a connection")]
pub struct DialError(#[source] pub(crate) Box<dyn std::error::Error + Send + Sync>);

impl ClientTransport for Connection {
    type ResponseBody = hyper::body::Incoming;
    type Error = ConnectError;

    fn send(
        &self,
        request: http::Request<ClientBody>,
    ) -> BoxFuture<'static, Result<http::Response<Self::ResponseBody>, Self::Error>> {
        let (service, latest) = (self.inner.clone(), Arc::clone(&self.latest));
        Box::pin(async move {
            // A stream that is already closed may not have been noticed yet, and takes a call nowhere.
            let monitor = latest.lock().clone();
            if let Some(monitor) = monitor {
                monitor.wait_if_closed().await;
            }
            let (head, mut body) = request.into_parts();
            let mut attempts = 1;
            loop {
                let kept = Arc::new(Mutex::new(Some(body)));
                let request = http::Request::from_parts(head.clone(), OnceRead::body(&kept));
                let error = match service.clone().oneshot(request).await {
                    Ok(response) => return Ok(response),
                    Err(error) => error,
                };
                // The library reads the body as soon as the head is on its way. One that was not read means that the
                // connection broke before the call was sent, so it is sent on another.
                let unread = kept.lock().take();
                match unread.filter(|_| attempts < MAX_ATTEMPTS && !error.is::<DialError>()) {
                    Some(unread) => body = unread,
                    None => {
                        return Err(ConnectError::unavailable_from_transport("cannot make the call", error));
                    }
                }
                attempts += 1;
            }
        })
    }
}

/// Body that is taken from its slot when it is read for the first time.
struct OnceRead {
    slot: Arc<Mutex<Option<ClientBody>>>,
    body: Option<ClientBody>,
}

impl OnceRead {
    fn body(slot: &Arc<Mutex<Option<ClientBody>>>) -> ClientBody {
        ClientBody::new(Self { slot: Arc::clone(slot), body: None })
    }
}

impl Body for OnceRead {
    type Data = Bytes;
    type Error = ConnectError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectError>>> {
        let OnceRead { slot, body } = &mut *self;
        if body.is_none() {
            *body = slot.lock().take();
        }
        match body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    /// Also an empty body is read before it ends.
    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => self.slot.lock().as_ref().map(Body::size_hint).unwrap_or_default(),
        }
    }
}

/// A stream whose loss is noticed.
pub(crate) struct Watched<S, L: Fn()> {
    stream: Arc<Mutex<S>>,
    lost: L,
    /// Closed with this.
    _alive: watch::Sender<()>,
}

/// Tells whether a [`Watched`] stream is closed.
#[derive(Clone)]
pub(crate) struct Monitor {
    is_closed: Arc<dyn Fn() -> bool + Send + Sync>,
    alive: watch::Receiver<()>,
}

impl Monitor {
    /// If the stream is closed, waits until the library has dropped it.
    async fn wait_if_closed(mut self) {
        if (self.is_closed)() {
            let _ = tokio::time::timeout(NOTICE_TIMEOUT, self.alive.changed()).await;
        }
    }
}

impl<S: AsFd + Send + 'static, L: Fn()> Watched<S, L> {
    pub(crate) fn new(stream: S, lost: L) -> (Self, Monitor) {
        let stream = Arc::new(Mutex::new(stream));
        let weak = Arc::downgrade(&stream);
        let (sender, alive) = watch::channel(());
        let is_closed =
            Arc::new(move || Weak::upgrade(&weak).is_some_and(|stream| is_hung_up(&*stream.lock())));
        (Self { stream, lost, _alive: sender }, Monitor { is_closed, alive })
    }
}

/// Reports whether the other end of a socket is closed, or this one is shut down.
fn is_hung_up(socket: &impl AsFd) -> bool {
    let mut polls = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polls, Some(&now)).is_ok_and(|count| count > 0)
}

impl<S, L: Fn()> Drop for Watched<S, L> {
    fn drop(&mut self) {
        (self.lost)();
    }
}

impl<S: AsyncRead + Unpin, L: Fn() + Unpin> AsyncRead for Watched<S, L> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, L: Fn() + Unpin> AsyncWrite for Watched<S, L> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream.lock()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream.lock()).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_shutdown(context)
    }
}
