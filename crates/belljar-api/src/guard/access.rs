//! One line of log for each request, when its answer has been sent or given up.
//!
//! Never in it: queries and paths, which may hold tokens, and bodies.

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

use super::authenticate::KeyId;
use super::client::Client;
use super::envelope::RequestId;
use crate::api::Shared;

/// Writes the line.
pub(super) async fn log(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", |path| path.as_str()).to_owned();
    let mut line = Line {
        method: request.method().clone(),
        route,
        client: Client::of(&shared.config, request.headers(), request.extensions()).text,
        request_id: RequestId::of(request.extensions()),
        key: String::new(),
        // What a caller that went away before the answer gets.
        status: StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT),
        began: Instant::now(),
        bytes: 0,
    };
    let response = next.run(request).await;
    line.status = response.status();
    if let Some(KeyId(key)) = response.extensions().get() {
        line.key.clone_from(key);
    }
    response.map(|body| Body::new(Logged { body, line }))
}

struct Line {
    method: Method,
    route: String,
    client: String,
    request_id: String,
    key: String,
    status: StatusCode,
    began: Instant,
    bytes: u64,
}

impl Drop for Line {
    fn drop(&mut self) {
        let ms = self.began.elapsed().as_secs_f64() * 1000.0;
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

struct Logged {
    body: Body,
    line: Line,
}

impl HttpBody for Logged {
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
