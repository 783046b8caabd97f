//! HTTP/2 over a connected stream, for both ends.
//!
//! Both ends belong to this program, so the limits by which HTTP/2 libraries end a connection whose peer resets too many
//! streams are off: they count over the life of a connection, and here ordinary use resets streams, as a reader that
//! stops early does. What bounds the memory of an end stays: windows, lengths of messages, streams at a time.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

pub use connectrpc::client::ClientConfig;
use connectrpc::client::{Http2Connection, Http2ConnectionBuilder};
use connectrpc::{CompressionRegistry, ConnectRpcService, Limits, Router};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use crate::connection::{Connection, DialError, Watched};

/// Maximum length of a message that either side accepts, in bytes. Streams are split into much smaller pieces.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Bytes in flight on one stream before the reader has consumed them. Bounds the memory that a flood from the other side can take.
const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes in flight on all streams of a connection to the host: as many as they may have together, so that those that are not read hold up
/// themselves alone. What a caller may open bounds their number.
const HOST_CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Bytes in flight on all streams of a connection to the guest, in memory of the sandbox.
const GUEST_CONNECTION_WINDOW: u32 = 16 << 20;
/// Maximum length of an HTTP/2 frame, in bytes: fewer, longer frames carry bulk data faster.
const FRAME_BYTES: u32 = 256 * 1024;
/// Maximum number of calls waiting for a free connection slot on the client side.
const CALL_QUEUE: usize = 64;
/// Maximum number of calls at a time on a connection. More than a guest's tunnels, so that they leave room for others.
const MAX_STREAMS: u32 = 512;
/// Number of streams that were reset a moment ago and are still known, so that frames of the other end that crossed the
/// reset on the way are dropped silently.
const KEPT_RESET_STREAMS: usize = 1024;

/// Stream of messages that the guest sends in response to one.
pub type ServerStream<View> = connectrpc::client::ServerStream<hyper::body::Incoming, View>;

/// Stream of messages in both directions.
pub type BidiStream<Request, View> = connectrpc::client::BidiStream<hyper::body::Incoming, Request, View>;

/// The sending half of a [`BidiStream`].
pub type BidiSender<Request> = connectrpc::client::BidiSendHalf<Request>;

/// The receiving half of a [`BidiStream`].
pub type BidiReceiver<View> = connectrpc::client::BidiRecvHalf<hyper::body::Incoming, View>;

/// Serves `router` on `stream` until the other side closes it.
///
/// # Errors
/// Fails if the connection breaks; an orderly close is not an error.
pub async fn serve<S>(stream: S, router: Router) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let limits = Limits::default()
        .with_max_message_size(MAX_MESSAGE_BYTES)
        .with_max_request_body_size(MAX_MESSAGE_BYTES);
    // No compression is offered, so that data from the other side is never decompressed.
    let service =
        ConnectRpcService::new(router).with_limits(limits).with_compression(CompressionRegistry::new());
    let service = hyper_util::service::TowerToHyperService::new(service);
    hyper::server::conn::http2::Builder::new(LocalExecutor)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(GUEST_CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(FRAME_BYTES as usize * 4)
        .max_concurrent_streams(MAX_STREAMS)
        // `None` would be the library's default.
        .max_pending_accept_reset_streams(usize::MAX)
        .max_local_error_reset_streams(None)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// Runs a connection's tasks on the current tokio runtime.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        tokio::spawn(future);
    }
}

/// Creates an HTTP/2 client on `stream`, which nothing replaces. Nothing is sent before the first call.
#[must_use]
pub fn connect<S>(stream: S) -> Connection
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let slot = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: http::Uri| {
        let taken = slot.lock().take();
        async move { taken.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    connect_with(connector, authority())
}

/// Creates an HTTP/2 client on streams that `dial` opens: one at the first call, and another one after it breaks. `lost` is
/// called whenever that happens, and when the client is dropped.
pub fn connect_by<S, F, L>(dial: impl Fn() -> F + Send + 'static, lost: L) -> Connection
where
    S: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
    L: Fn() + Clone + Send + Sync + Unpin + 'static,
{
    let latest = Arc::new(Mutex::new(None));
    let connector = tower::service_fn({
        let latest = Arc::clone(&latest);
        move |_: http::Uri| {
            let (dialed, lost, latest) = (dial(), lost.clone(), Arc::clone(&latest));
            async move {
                let (stream, monitor) = Watched::new(dialed.await?, lost);
                *latest.lock() = Some(monitor);
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        }
    });
    Connection { latest, ..connect_with(connector, authority()) }
}

/// Creates an HTTP/2 client on streams that `connector` opens: one at the first call, and another one whenever it breaks.
/// Frames are the same as for a guest's connection.
#[must_use]
pub fn connect_with<C>(connector: C, authority: http::Uri) -> Connection
where
    C: tower::Service<http::Uri> + Send + 'static,
    C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    C::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    C::Future: Send + 'static,
{
    let connector = connector.map_err(|error| DialError(error.into()));
    let inner = builder().lazy_with_connector(connector, authority).shared(CALL_QUEUE);
    Connection { inner, latest: Arc::default() }
}

fn builder() -> Http2ConnectionBuilder {
    Http2Connection::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(HOST_CONNECTION_WINDOW)
        .h2_settings(|settings| {
            settings
                .max_frame_size(FRAME_BYTES)
                .max_send_buf_size(FRAME_BYTES as usize * 4)
                .max_concurrent_reset_streams(KEPT_RESET_STREAMS)
                .max_pending_accept_reset_streams(usize::MAX)
                .max_local_error_reset_streams(None);
        })
}

/// Returns the configuration of calls to a guest: binary messages in the Connect protocol, bounded in size.
#[must_use]
pub fn client_config(call_timeout: Option<Duration>) -> ClientConfig {
    let config = ClientConfig::new(authority())
        .with_default_max_message_size(MAX_MESSAGE_BYTES)
        .with_compression(CompressionRegistry::new());
    match call_timeout {
        Some(timeout) => config.with_default_timeout(timeout),
        None => config,
    }
}

fn authority() -> http::Uri {
    http::Uri::from_static("http://guest")
}
