//! Code in contexts.

use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse as _, Response};
use belljar_engine::{CodeEvent, code, v1};
use belljar_keeper::{Caller, MAX_CODE_BYTES, Run, RunEvent, StepEnd};
use belljar_model::{CodeExecution, CodeResult, Written};
use bytes::Bytes;
use http::HeaderMap;
use serde::Serialize;
use serde_json::Value;

use super::approvals::WaitingBody;
use super::exec::accepts_events;
use super::types::{
    CodeBody, CodeErrorBody, ContextBody, EndBody, OutcomeBody, ResultBody, StepBody, ToolResultsBody,
};
use crate::api::Shared;
use crate::extract::{Auth, Id, IdempotentJson, Json};
use crate::guard::StreamSlot;
use crate::problem::Problem;
use crate::stream::{KeptOutput, Pieces, event, events, problem_event};

/// Maximum length of a request body, in bytes: code whose every byte takes two in JSON, and 1 MiB for the rest.
const MAX_BODY_BYTES: usize = 2 * MAX_CODE_BYTES + (1 << 20);

/// Runs code in a context and waits for its end. With `Accept: text/event-stream`, events are streamed while it runs:
/// `waiting` if it waits for approval, `started`, then `stdout`, `stderr`, `result`, `error`, `input_requested` and `tool_called` in order, then
/// `ended`, or `tool_calls` at the end of a step.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/code", tag = "code", operation_id = "run_code", request_body = CodeBody,
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("Idempotency-Key" = Option<String>, Header, description = "Idempotency key, with which a repeated request is performed only once: 1 to 255 of `[A-Za-z0-9_.:-]`.")),
    responses((status = 200, content(
        (OutcomeBody = "application/json"),
        (String = "text/event-stream", example = "event: started\ndata: {\"execution\":7,\"count\":1,\"context\":{\"id\":\"python\"}}\n\nevent: result\ndata: {\"main\":true,\"data\":{\"text/plain\":\"2\"}}\n\n")),
        description = "The result, or the calls that are to be answered.")))]
pub(super) async fn run(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    headers: HeaderMap,
    body: IdempotentJson<CodeBody, MAX_BODY_BYTES>,
) -> Result<Response, Problem> {
    let has_events = accepts_events(&headers);
    let request = body.value.into_request(body.idempotency, has_events)?;
    if has_events {
        let slot = shared.streams.take(&caller)?;
        let mut run = shared.keeper.stream_code(&caller, &id, request);
        // A failure before the first event is the response itself.
        run.begun().await?;
        return Ok(stream_events(shared, slot, caller, run));
    }
    let end = match request.tools.steps {
        true => shared.keeper.finish_step(shared.keeper.stream_code(&caller, &id, request)).await?,
        false => StepEnd::Ended(Box::new(shared.keeper.run_code(&caller, &id, request).await?)),
    };
    Ok(axum::Json(OutcomeBody::from(end)).into_response())
}

/// Answers the calls with which a step of code has ended (`tool_calls`), and runs the code to the end of its next step, as the request that
/// began it does.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/code/continue", tag = "code", operation_id = "continue_code", request_body = ToolResultsBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, content(
        (OutcomeBody = "application/json"),
        (String = "text/event-stream", example = "event: ended\ndata: {\"status\":\"ok\",\"state\":\"preserved\"}\n\n")),
        description = "The result, or the calls that are to be answered.")))]
pub(super) async fn go_on(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    headers: HeaderMap,
    Json(body): Json<ToolResultsBody, MAX_RESULTS_BYTES>,
) -> Result<Response, Problem> {
    let answers = body.into_answers()?;
    // Before anything is answered.
    let slot = accepts_events(&headers).then(|| shared.streams.take(&caller)).transpose()?;
    let (_, run) = shared.keeper.continue_code(&caller, Some(&id), answers).await?;
    match slot {
        Some(slot) => Ok(stream_events(shared, slot, caller, run)),
        None => {
            let end = shared.keeper.finish_step(run).await?;
            Ok(axum::Json(OutcomeBody::from(end)).into_response())
        }
    }
}

/// Maximum length of a body with answers, in bytes: those of the 16 calls that can wait.
const MAX_RESULTS_BYTES: usize = 17 << 20;

#[derive(Serialize)]
struct StartedBody {
    execution: u64,
    context: ContextBody,
    count: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    rebuilt: String,
}

#[derive(Serialize)]
struct ToolCalledBody {
    call: u64,
    name: String,
    arguments: Value,
}

#[derive(Serialize)]
struct InputBody {
    prompt: String,
    password: bool,
}

/// Streams the events of a step.
fn stream_events(
    shared: Shared,
    slot: StreamSlot,
    caller: Caller,
    mut run: Run<CodeEvent, CodeExecution>,
) -> Response {
    let request_id = caller.request_id;
    let id = request_id.clone();
    let stream = async_stream::stream! {
        let mut pieces = Pieces::default();
        if let Some(stored) = run.take_stored() {
            for event in replay(&stored) { yield event }
            yield event("ended", &EndBody::from(&stored));
        }
        while let Some(next) = run.next().await {
            match next {
                RunEvent::Queued => {}
                RunEvent::Waiting(waiting) => yield event("waiting", &WaitingBody::from(waiting)),
                RunEvent::Progress(event) => for event in to_events(&mut pieces, event) { yield event },
                RunEvent::Ended(done) => {
                    for (name, piece) in pieces.finish() { yield event(name, &piece) }
                    yield match done {
                        Ok(done) => event("ended", &EndBody::from(&done)),
                        Err(error) => problem_event(&error.into(), &id),
                    };
                }
            }
        }
        for (name, piece) in pieces.finish() { yield event(name, &piece) }
        match shared.keeper.keep_step(run) {
            Ok(Some(step)) => yield event("tool_calls", &StepBody::from(step)),
            Ok(None) => {}
            Err(error) => yield problem_event(&error.into(), &id),
        }
    };
    events(slot, request_id, stream)
}

/// Converts the stored result of an execution to events.
fn replay(done: &CodeExecution) -> Vec<Event> {
    let mut pieces = Pieces::default();
    let mut all = Vec::new();
    let (stdout, stderr) = (KeptOutput::from(&done.stdout), KeptOutput::from(&done.stderr));
    let mut from = Written::default();
    let mut write = |all: &mut Vec<Event>, to: Written| {
        for (stream, kept, part) in [
            (v1::Stream::STREAM_STDOUT, &stdout, from.stdout..to.stdout),
            (v1::Stream::STREAM_STDERR, &stderr, from.stderr..to.stderr),
        ] {
            for (offset, data) in kept.parts(&part).into_iter().filter(|(_, data)| !data.is_empty()) {
                let whole = pieces.push(stream, offset, &Bytes::copy_from_slice(data));
                all.extend(whole.into_iter().map(|(name, piece)| event(name, &piece)));
            }
        }
        all.extend(pieces.finish().into_iter().map(|(name, piece)| event(name, &piece)));
        from = to;
    };
    for result in &done.results {
        if let Some(to) = result.after {
            write(&mut all, to);
        }
        all.push(event("result", &ResultBody::from(CodeResult { after: None, ..result.clone() })));
    }
    write(&mut all, Written { stdout: stdout.total, stderr: stderr.total });
    all.extend(done.error.iter().map(|error| event("error", &CodeErrorBody::from(error.clone()))));
    all
}

pub(super) fn to_events(pieces: &mut Pieces, code_event: CodeEvent) -> Vec<Event> {
    let one = match code_event {
        CodeEvent::Output { stream, offset, data } => {
            let whole = pieces.push(stream, offset, &data);
            return whole.into_iter().map(|(name, piece)| event(name, &piece)).collect();
        }
        CodeEvent::Started(started) => {
            let context = started.context.as_option().cloned().unwrap_or_default();
            let context = code::context(&context).into();
            let (execution, count) = (started.execution, started.count);
            event(
                "started",
                &StartedBody { execution, context, count, rebuilt: code::text(&started.rebuilt) },
            )
        }
        CodeEvent::Result(result) => event("result", &ResultBody::from(code::to_result(&result))),
        CodeEvent::Error(error) => event("error", &CodeErrorBody::from(code::to_error(&error))),
        CodeEvent::InputRequested(asked) => {
            event("input_requested", &InputBody { prompt: asked.prompt, password: asked.password })
        }
        CodeEvent::ToolCalled(called) => {
            // The guest has checked that it is an object.
            let arguments = serde_json::from_slice(&called.arguments).unwrap_or_default();
            event("tool_called", &ToolCalledBody { call: called.call, name: called.name, arguments })
        }
        CodeEvent::Ended(_) => return Vec::new(),
    };
    // Earlier output goes first.
    let mut all: Vec<Event> = pieces.finish().into_iter().map(|(name, piece)| event(name, &piece)).collect();
    all.push(one);
    all
}
