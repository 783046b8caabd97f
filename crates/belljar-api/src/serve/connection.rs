//! One connection.

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
use super::io::{Activity, MAX_STALL, UnderWay, Watched};
use crate::guard::{KeyId, Peer};

/// The most bytes of the head of a request.
const MAX_HEAD_BYTES: u32 = 64 * 1024;

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 128;

/// Bytes that may be on their way to the server, on one stream and on one connection, before they are read.
const STREAM_WINDOW: u32 = 1 << 20;
/// See [`STREAM_WINDOW`].
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Bytes of one stream's answer that may wait to be sent.
const MAX_SEND_BUFFER_BYTES: usize = 4 * PIECE_BYTES;

/// Streams that the client opened and reset at once, before they were looked at.
const MAX_RESET_STREAMS: usize = 20;

/// Streams that were reset because the client broke the protocol.
const MAX_BROKEN_STREAMS: usize = 256;

/// How often an HTTP/2 client is asked whether it is there, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
/// See [`PING_EVERY`].
const MAX_PONG: Duration = Duration::from_secs(20);

/// How long a connection may do nothing.
const MAX_IDLE: Duration = Duration::from_secs(75);

/// How long a client that has just connected may take to begin its first request when the server is told to stop. It cannot
/// know of that, and has its answer.
const MAX_FIRST: Duration = Duration::from_secs(1);

/// How long a connection may take to end once it was told to.
const MAX_FINISH: Duration = Duration::from_secs(10);

/// How much longer than a stream's client its connection may take nothing.
const STALL_SLACK: Duration = Duration::from_secs(10);

/// How much of a body that nobody wants is read all the same, in bytes, and for how long. A client sends its whole body before it
/// looks for an answer, and a connection that is closed before that takes the answer with it (RFC 9112, section 9.6).
const MAX_READ_AWAY_BYTES: u64 = 64 << 20;
/// See [`MAX_READ_AWAY_BYTES`].
const MAX_READ_AWAY: Duration = Duration::from_secs(30);

/// One connection, before it is served.
pub(super) struct Connection {
    pub(super) router: Router,
    pub(super) activity: Arc<Activity>,
    pub(super) flight: Arc<Flight>,
    pub(super) finish: CancellationToken,
    pub(super) peer: Peer,
}

impl Connection {
    /// Serves HTTP/1.1 or HTTP/2, as the client begins.
    pub(super) async fn serve<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Arc::clone(&self.activity);
        let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
        let (router, peer, told_to_finish) = (self.router, self.peer, self.finish);
        let flight = Arc::clone(&self.flight);
        let counted = Arc::clone(&activity);
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            let under_way = counted.begin(request.version() == http::Version::HTTP_2);
            request.extensions_mut().insert(peer.clone());
            let answer = router.clone().oneshot(read_away(request));
            let flight = Arc::clone(&flight);
            async move { answer.await.map(|response| counted_answer(response, under_way, &flight)) }
        });
        let builder = builder();
        let mut serving = pin!(builder.serve_connection_with_upgrades(io, service));
        let mut finish = pin!(async {
            told_to_finish.cancelled().await;
            let _ = tokio::time::timeout(MAX_FIRST, activity.begun()).await;
        });
        let mut told = false;
        loop {
            let wait = wait(&activity, told);
            tokio::select! {
                // What breaks a connection is the client's own affair.
                _ = serving.as_mut() => return,
                () = activity.evicted() => return,
                () = finish.as_mut(), if !told => {
                    told = true;
                    serving.as_mut().graceful_shutdown();
                }
                () = activity.full(), if !told => {
                    told = true;
                    serving.as_mut().graceful_shutdown();
                }
                () = tokio::time::sleep(wait) => {
                    // The end of an answer that was given away whole, on a stream of its own, has no clock.
                    if self.flight.oldest().is_some_and(|oldest| oldest > MAX_STALL + STALL_SLACK) {
                        return;
                    }
                    let idle = activity.idle();
                    if told && idle.is_some_and(|idle| idle >= MAX_FINISH) {
                        return;
                    }
                    if !told && idle.is_some_and(|idle| idle >= MAX_IDLE) {
                        told = true;
                        serving.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}

/// When to look again whether the connection is to end.
fn wait(activity: &Activity, told: bool) -> Duration {
    let most = if told { MAX_FINISH } else { MAX_IDLE };
    let left = most.saturating_sub(activity.idle().unwrap_or_default());
    left.clamp(Duration::from_millis(250), Duration::from_secs(5))
}

fn builder() -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams { stall: MAX_STALL });
    builder
        .http1()
        .timer(TokioTimer::new())
        // Heads are timed by the connection itself, which knows a head from the quiet between two requests.
        .header_read_timeout(MAX_IDLE + MAX_FINISH)
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
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(MAX_PONG);
    builder
}

/// The request, of whose body the rest is read away once nobody wants it. Not where the client waits to be asked for it, nor over
/// HTTP/2, where a stream is reset alone.
fn read_away(request: hyper::Request<Incoming>) -> Request {
    let whole = request.version() < http::Version::HTTP_2 && !request.headers().contains_key(header::EXPECT);
    request.map(|body| if whole { Body::new(ReadAway { body: Some(body) }) } else { Body::new(body) })
}

struct ReadAway {
    body: Option<Incoming>,
}

impl HttpBody for ReadAway {
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

impl Drop for ReadAway {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !body.is_end_stream()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(MAX_READ_AWAY, async move {
            let mut left = MAX_READ_AWAY_BYTES;
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

/// The answer, which is under way until its body has been sent. After a change of protocol, that is at once.
fn counted_answer(response: Response, under_way: UnderWay, flight: &Arc<Flight>) -> Response {
    let key = response.extensions().get::<KeyId>().map(|key| key.0.as_str());
    let outgoing = Outgoing::new(flight, key);
    response.map(|body| Body::new(Counted { body, outgoing, _under_way: under_way }))
}

struct Counted {
    body: Body,
    outgoing: Outgoing,
    _under_way: UnderWay,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let counted = &mut *self;
        loop {
            if !counted.outgoing.is_empty() {
                let piece = counted.outgoing.poll_piece(context);
                Clock::note(piece.is_ready());
                return piece.map(|piece| Some(Ok(Frame::data(piece))));
            }
            let frame = Pin::new(&mut counted.body).poll_frame(context);
            match frame.map_ok(Frame::into_data) {
                Poll::Ready(Some(Ok(Ok(data)))) if data.is_empty() => {}
                Poll::Ready(Some(Ok(Ok(data)))) => counted.outgoing.put(data),
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

    /// An answer of which a client takes nothing for longer than it may.
    const LONG: usize = 8 << 20;

    /// A client of HTTP/2, whose window is small, of a server that gives long answers. It says by itself that it is there.
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
        let (client, talking) = builder.handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(talking);
        client
    }

    async fn asked(client: &mut http2::SendRequest<Empty<Bytes>>) -> Incoming {
        let request = hyper::Request::get("http://localhost/").body(Empty::new()).unwrap();
        let answer = client.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_client_takes_nothing_is_reset_alone() {
        let mut client = client().await;
        let (stale, mut slow) = (asked(&mut client).await, asked(&mut client).await);
        // The other stream's client takes something now and then.
        let mut taken = 0;
        for _ in 0..3 {
            sleep(MAX_STALL - Duration::from_secs(15)).await;
            let before = taken;
            while taken < before + 2 * PIECE_BYTES {
                taken += slow.frame().await.unwrap().unwrap().into_data().unwrap().len();
            }
        }
        assert!(stale.collect().await.is_err());
        taken += slow.collect().await.unwrap().to_bytes().len();
        assert_eq!(taken, LONG);
        assert_eq!(asked(&mut client).await.collect().await.unwrap().to_bytes().len(), LONG);
    }
}
