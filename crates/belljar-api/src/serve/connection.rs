//! Serving of one connection.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::flight::{Clock, Flight, Outgoing, PIECE_BYTES, Streams};
use super::io::{Activity, InFlight, STALL_TIMEOUT, WatchedIo};
use crate::guard::{KeyId, Peer};

/// Maximum size of the head of a request, in bytes.
const MAX_HEAD_BYTES: u32 = 64 * 1024;

/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 100;

/// Maximum number of concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 128;

/// Flow-control window in bytes, of one stream and of one connection: data that a client may send before the server
/// reads it.
const STREAM_WINDOW: u32 = 1 << 20;
/// See [`STREAM_WINDOW`].
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Maximum number of bytes of one stream's response that wait to be sent.
const MAX_SEND_BUFFER_BYTES: usize = 4 * PIECE_BYTES;

/// Maximum number of streams that the client opened and reset before they were accepted.
const MAX_RESET_STREAMS: usize = 20;

/// Maximum number of streams that were reset because the client violated the protocol.
const MAX_BROKEN_STREAMS: usize = 256;

/// Interval of HTTP/2 pings, and time that the client has to answer one.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Time that a newly connected client has to begin its first request when the server shuts down. The client cannot know
/// of the shutdown, and still gets its response.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Time that a connection has to finish its requests during a graceful shutdown.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Grace period of a connection beyond the stall timeout of a stream.
const STALL_SLACK: Duration = Duration::from_secs(10);

/// Limits on draining the unread rest of a request body, in bytes and time. A client sends its whole body before it
/// reads the response, and closing the connection before that loses the response (RFC 9112, section 9.6).
const MAX_DRAIN_BYTES: u64 = 1 << 30;
/// See [`MAX_DRAIN_BYTES`].
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// One connection, before it is served.
pub(super) struct Connection {
    pub(super) router: Router,
    pub(super) activity: Arc<Activity>,
    pub(super) flight: Arc<Flight>,
    pub(super) finish: CancellationToken,
    pub(super) peer: Peer,
}

impl Connection {
    /// Serves HTTP/1.1 or HTTP/2, as the client chooses.
    pub(super) async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Arc::clone(&self.activity);
        let io = TokioIo::new(WatchedIo::new(stream, Arc::clone(&activity)));
        let (router, peer, finish_signal) = (self.router, self.peer, self.finish);
        let flight = Arc::clone(&self.flight);
        let requests = Arc::clone(&activity);
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            let in_flight = requests.begin(request.version() == http::Version::HTTP_2);
            request.extensions_mut().insert(peer.clone());
            let answer = router.clone().oneshot(drain_on_drop(request));
            let flight = Arc::clone(&flight);
            async move { answer.await.map(|response| count_response(response, in_flight, &flight)) }
        });
        let builder = builder();
        let mut serving = pin!(builder.serve_connection_with_upgrades(io, service));
        let mut finish = pin!(async {
            finish_signal.cancelled().await;
            let _ = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, activity.wait_for_first_request()).await;
        });
        let mut is_finishing = false;
        loop {
            let wait = wait(&activity, is_finishing);
            tokio::select! {
                // Errors of a connection concern only the client.
                _ = serving.as_mut() => return,
                () = activity.wait_for_eviction() => return,
                () = finish.as_mut(), if !is_finishing => {
                    is_finishing = true;
                    serving.as_mut().graceful_shutdown();
                }
                () = activity.wait_for_max_requests(), if !is_finishing => {
                    is_finishing = true;
                    serving.as_mut().graceful_shutdown();
                }
                () = tokio::time::sleep(wait) => {
                    // The end of a response that was handed over completely, on a stream of its own, has no clock.
                    if self.flight.oldest().is_some_and(|oldest| oldest > STALL_TIMEOUT + STALL_SLACK) {
                        return;
                    }
                    let idle = activity.idle();
                    if is_finishing && idle.is_some_and(|idle| idle >= FINISH_TIMEOUT) {
                        return;
                    }
                    if !is_finishing && idle.is_some_and(|idle| idle >= IDLE_TIMEOUT) {
                        is_finishing = true;
                        serving.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}

/// Returns the time until the next check whether the connection has to end.
fn wait(activity: &Activity, is_finishing: bool) -> Duration {
    let max = if is_finishing { FINISH_TIMEOUT } else { IDLE_TIMEOUT };
    let left = max.saturating_sub(activity.idle().unwrap_or_default());
    left.clamp(Duration::from_millis(250), Duration::from_secs(5))
}

fn builder() -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams { stall: STALL_TIMEOUT });
    builder
        .http1()
        .timer(TokioTimer::new())
        // The connection itself applies the head timeout: it distinguishes a head from the idle time between two
        // requests.
        .header_read_timeout(IDLE_TIMEOUT + FINISH_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES as usize)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_BROKEN_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Drains the unread rest of the request's body once it is dropped. Not if the client waits for `100 Continue`, and not
/// with HTTP/2, where only the stream is reset.
fn drain_on_drop(request: hyper::Request<Incoming>) -> Request {
    let whole = request.version() < http::Version::HTTP_2 && !request.headers().contains_key(header::EXPECT);
    request.map(|body| if whole { Body::new(DrainOnDrop { body: Some(body) }) } else { Body::new(body) })
}

struct DrainOnDrop {
    body: Option<Incoming>,
}

impl HttpBody for DrainOnDrop {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !body.is_end_stream()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(DRAIN_TIMEOUT, async move {
            let mut left = MAX_DRAIN_BYTES;
            while let Some(Ok(frame)) =
                std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
            {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match left.checked_sub(length) {
                    Some(rest) => left = rest,
                    None => return,
                }
            }
        }));
    }
}

/// Keeps the request in flight until its response body has been sent, or, after a protocol upgrade, until the response
/// head.
fn count_response(response: Response, in_flight: InFlight, flight: &Arc<Flight>) -> Response {
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        in_flight.upgrade();
    }
    let key = response.extensions().get::<KeyId>().map(|key| key.0.as_str());
    let outgoing = Outgoing::new(flight, key);
    response.map(|body| Body::new(CountedBody { body, outgoing, _in_flight: in_flight }))
}

struct CountedBody {
    body: Body,
    outgoing: Outgoing,
    _in_flight: InFlight,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            if !this.outgoing.is_empty() {
                let piece = this.outgoing.poll_piece(context);
                Clock::note(piece.is_ready());
                return piece.map(|piece| Some(Ok(Frame::data(piece))));
            }
            let frame = Pin::new(&mut this.body).poll_frame(context);
            match frame.map_ok(Frame::into_data) {
                Poll::Ready(Some(Ok(Ok(data)))) if data.is_empty() => {}
                Poll::Ready(Some(Ok(Ok(data)))) => this.outgoing.put(data),
                Poll::Ready(Some(Ok(Err(other)))) => return Poll::Ready(Some(Ok(other))),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    Clock::note(false);
                    return Poll::Pending;
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.outgoing.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.outgoing.len();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::http2;
    use hyper_util::rt::TokioExecutor;
    use tokio::time::sleep;

    use super::super::flight::Flights;
    use super::*;

    /// A response that is larger than a client's windows, so that the client can stall it.
    const LONG: usize = 8 << 20;

    /// Connects an HTTP/2 client with a small window to a server with long responses. The client answers pings by itself.
    async fn client() -> http2::SendRequest<Empty<Bytes>> {
        let (near, far) = tokio::io::duplex(1 << 20);
        let connection = Connection {
            router: Router::new().route("/", get(|| async { vec![b'x'; LONG] })),
            activity: Activity::new(u64::MAX),
            flight: Flights::default().connection(),
            finish: CancellationToken::new(),
            peer: Peer::default(),
        };
        tokio::spawn(connection.serve(far));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(65_535).initial_connection_window_size(4 << 20);
        let (client, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn send_get(client: &mut http2::SendRequest<Empty<Bytes>>) -> Incoming {
        let request = hyper::Request::get("http://localhost/").body(Empty::new()).unwrap();
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body()
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_stalled_stream_is_reset() {
        let mut client = client().await;
        let (stale, mut slow) = (send_get(&mut client).await, send_get(&mut client).await);
        // The other stream's client reads something now and then.
        let mut taken = 0;
        for _ in 0..3 {
            sleep(STALL_TIMEOUT - Duration::from_secs(15)).await;
            let before = taken;
            while taken < before + 2 * PIECE_BYTES {
                taken += slow.frame().await.unwrap().unwrap().into_data().unwrap().len();
            }
        }
        assert!(stale.collect().await.is_err());
        taken += slow.collect().await.unwrap().to_bytes().len();
        assert_eq!(taken, LONG);
        assert_eq!(send_get(&mut client).await.collect().await.unwrap().to_bytes().len(), LONG);
    }
}
