//! Commands that run to completion.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use belljar_keeper::{Caller, ExecEvent, ExecRequest, RunEvent};
use futures::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, header};
use serde::Serialize;
use tokio::sync::oneshot;

use super::approvals::WaitingBody;
use super::deferred::{DeferredOutput, json};
use super::types::{ExecBody, ExecResultBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, IdempotentJson};
use crate::problem::Problem;
use crate::stream::{Pieces, event, events, problem_event};

/// Runs a command and waits for its end. With `Accept: text/event-stream`, its output is streamed while it runs, after the event
/// `waiting` if it waits for approval. If the client disconnects, the command is terminated.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec", tag = "commands", request_body = ExecBody,
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("Idempotency-Key" = Option<String>, Header, description = "Idempotency key, with which a repeated request is performed only once: 1 to 255 of `[A-Za-z0-9_.:-]`.")),
    responses((status = 200, content(
        (ExecResultBody = "application/json"),
        (String = "text/event-stream", example = "event: started\ndata: {\"process\":7,\"pid\":12}\n\nevent: stdout\ndata: {\"offset\":0,\"encoding\":\"utf-8\",\"data\":\"hello\\n\"}\n\n")),
        description = "The result.")))]
pub(super) async fn exec(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    headers: HeaderMap,
    body: IdempotentJson<ExecBody>,
) -> Result<Response, Problem> {
    let request = body.value.into_request(body.idempotency)?;
    if accepts_events(&headers) {
        return stream_events(shared, caller, id, request).await;
    }
    let result = shared.keeper.exec(&caller, &id, request).await?;
    let mut deferred = DeferredOutput::default();
    let body = ExecResultBody::new(result, &mut deferred);
    Ok(deferred.answer(&body))
}

pub(super) fn accepts_events(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = values
        .flat_map(|value| value.split(','))
        .map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.any(|kind| kind.eq_ignore_ascii_case("text/event-stream"))
}

#[derive(Serialize)]
struct StartedBody {
    process: u64,
    pid: u32,
}

/// Streams the events. A failure before the first one is the response itself.
async fn stream_events(
    shared: Shared,
    caller: Caller,
    id: String,
    request: ExecRequest,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let mut run = shared.keeper.stream_exec(&caller, &id, request);
    run.begun().await?;
    let request_id = caller.request_id;
    let id = request_id.clone();
    let (long, rest) = oneshot::channel();
    let stream = async_stream::stream! {
        let mut pieces = Pieces::default();
        let mut long = Some(long);
        while let Some(next) = run.next().await {
            let result = match next {
                RunEvent::Queued => continue,
                RunEvent::Waiting(waiting) => {
                    yield event("waiting", &WaitingBody::from(waiting));
                    continue;
                }
                RunEvent::Progress(event) => {
                    for event in to_events(&mut pieces, event) { yield event }
                    continue;
                }
                RunEvent::Ended(result) => result,
            };
            for (name, piece) in pieces.finish() { yield event(name, &piece) }
            match result {
                Ok(result) => {
                    let mut deferred = DeferredOutput::default();
                    let body = ExecResultBody::new(result, &mut deferred);
                    if deferred.is_empty() {
                        yield event("result", &body);
                    } else if let Some(long) = long.take() {
                        let _ = long.send((body, deferred));
                    }
                }
                Err(error) => yield problem_event(&error.into(), &id),
            }
        }
    };
    let rest = async_stream::try_stream! {
        if let Ok((body, deferred)) = rest.await {
            for await piece in deferred.pieces(format!("event: result\ndata: {}\n\n", json(&body))) {
                yield piece?;
            }
        }
    };
    Ok(events(slot, request_id, stream).map(|body| {
        Body::from_stream(
            body.into_data_stream().chain(rest.map_err(|error: std::io::Error| axum::Error::new(error))),
        )
    }))
}

fn to_events(pieces: &mut Pieces, exec_event: ExecEvent) -> Vec<Event> {
    match exec_event {
        ExecEvent::Started { process, pid } => vec![event("started", &StartedBody { process, pid })],
        ExecEvent::Output { stream, offset, data } => {
            let whole = pieces.push(stream, offset, &data);
            whole.into_iter().map(|(name, piece)| event(name, &piece)).collect()
        }
    }
}
