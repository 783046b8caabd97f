//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::Stream;
use http::{HeaderName, HeaderValue, header};
use serde::Serialize;

use crate::guard::StreamSlot;
use crate::problem::Problem;

/// Interval of keep-alive comments on a silent stream.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Creates an event of this name.
pub(crate) fn event(name: &'static str, data: &impl Serialize) -> Event {
    // Only types of this crate are serialized here, and none of them can fail.
    Event::default().event(name).json_data(data).unwrap_or_else(|_| Event::default().event(name).data("{}"))
}

/// Creates the event that reports why a stream ends early.
pub(crate) fn problem_event(problem: &Problem, request_id: &str) -> Event {
    event("error", &problem.body(request_id))
}

/// Streams events until there are no more, the key is revoked or the server shuts down. `slot` is held that long.
pub(crate) fn events<S>(slot: StreamSlot, request_id: String, stream: S) -> Response
where
    S: Stream<Item = Event> + Send + 'static,
{
    let stream = async_stream::stream! {
        let mut stream = std::pin::pin!(stream);
        loop {
            match slot.next(&mut stream).await {
                Ok(Some(event)) => yield Ok::<_, Infallible>(event),
                Ok(None) => break,
                Err(problem) => {
                    yield Ok(problem_event(&problem, &request_id));
                    break;
                }
            }
        }
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE_INTERVAL).text("alive");
    let mut response = Sse::new(stream).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Reverse proxies would buffer events otherwise.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
