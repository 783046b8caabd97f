//! Access log, metrics and trace span of each request. The log line is written when the response has been sent or
//! abandoned.
//!
//! Never recorded: queries and paths, which may contain tokens, and bodies.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tracing::{Instrument as _, Span};

use super::authenticate::KeyId;
use super::client::Client;
use super::envelope::RequestId;
use crate::api::Shared;
use crate::metrics::InFlight;

/// Logs, counts and traces a request.
pub(super) async fn log(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", |path| path.as_str()).to_owned();
    let request_id = RequestId::from_extensions(request.extensions());
    // For traces only; log lines of the handler get the request's id from the inner span.
    let traced = tracing::info_span!(
        target: "belljar_steps",
        parent: None,
        "request",
        otel.name = format!("{} {route}", request.method()),
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        http.request.method = %request.method(),
        http.route = route,
        http.response.status_code = tracing::field::Empty,
        request_id,
    );
    if let Some(context) = shared.trace_context() {
        context.extract(&traced, request.headers());
        // Forwarding the request forwards the trace as well.
        context.inject(&traced, request.headers_mut());
    }
    let span = tracing::info_span!(target: "belljar_api::request", parent: &traced, "request", request_id);
    let mut line = LogLine {
        traced: traced.clone(),
        in_flight: shared.metrics.begin(request.method(), &route),
        method: request.method().clone(),
        route,
        client: Client::from_request(&shared.config, request.headers(), request.extensions()).text,
        request_id,
        key: String::new(),
        // Status that is recorded if the caller disconnects before the response.
        status: StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT),
        began: Instant::now(),
        bytes: 0,
    };
    let mut response = next.run(request).instrument(span).instrument(traced).await;
    line.status = response.status();
    if let Some(context) = shared.trace_context() {
        context.inject(&line.traced, response.headers_mut());
    }
    if let Some(KeyId(key)) = response.extensions().get() {
        line.key.clone_from(key);
    }
    response.map(|body| Body::new(LoggedBody { body, line }))
}

struct LogLine {
    traced: Span,
    in_flight: InFlight,
    method: Method,
    route: String,
    client: String,
    request_id: String,
    key: String,
    status: StatusCode,
    began: Instant,
    bytes: u64,
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.in_flight.end(self.status, took);
        self.traced.record("http.response.status_code", self.status.as_u16());
        if self.status.is_server_error() {
            self.traced.record("otel.status_code", "error");
        }
        let _in = self.traced.enter();
        let ms = took.as_secs_f64() * 1000.0;
        tracing::info!(
            target: "belljar_api::access",
            method = %self.method,
            route = self.route,
            status = self.status.as_u16(),
            ms,
            bytes = self.bytes,
            key = self.key,
            client = self.client,
            request_id = self.request_id,
            "request"
        );
    }
}

struct LoggedBody {
    body: Body,
    line: LogLine,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            let length = frame.data_ref().map_or(0, Bytes::len);
            self.line.bytes += u64::try_from(length).unwrap_or(u64::MAX);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
