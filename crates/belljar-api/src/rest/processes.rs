//! Background processes.

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use belljar_engine::{Execution, ProcessEvent, v1};
use belljar_keeper::Caller;
use belljar_keeper::operation::{Feed, Opened};
use futures::{Stream, StreamExt as _, stream};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::types::{ExitedBody, ProcessInfoBody, ResizeBody, SignalBody, StartBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, PathNumber, PathOf, Query, RawBody};
use crate::problem::{Code, Problem};
use crate::stream::{Pieces, event, events, problem_event};

/// The number of a process.
pub(super) struct Number(pub(super) u64);

impl std::str::FromStr for Number {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

impl PathNumber for Number {
    const NAME: &'static str = "process";
    const NONE: Code = Code::ProcessNotFound;
}

/// Starts a command in the background.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes", tag = "commands", request_body = StartBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The started process.", body = ProcessInfoBody)))]
pub(super) async fn start(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<StartBody>,
) -> Result<(StatusCode, axum::Json<ProcessInfoBody>), Problem> {
    let started = shared.keeper.start(&caller, &id, body.into_request()?).await?;
    let info = find_process(&shared, &caller.begun(), &id, started.process).await?;
    Ok((StatusCode::CREATED, axum::Json(to_body(&shared, info))))
}

fn to_body(shared: &Shared, info: v1::ProcessInfo) -> ProcessInfoBody {
    let exited = info.exited.as_option().filter(|_| !info.running);
    let judgement = exited.map(|exited| shared.keeper.judge(exited));
    ProcessInfoBody::new(info, judgement)
}

/// Finds the process with this number.
pub(super) async fn find_process(
    shared: &Shared,
    caller: &Caller,
    id: &str,
    number: u64,
) -> Result<v1::ProcessInfo, Problem> {
    let request = v1::ListProcessesRequest { id: number, ..Default::default() };
    let processes = shared.keeper.perform(caller, id, request).await?;
    // Older guests ignore the number and return all processes.
    let process = processes.into_iter().find(|process| process.id == number);
    process.ok_or_else(|| process_not_found(number))
}

fn process_not_found(number: u64) -> Problem {
    Problem::new(Code::ProcessNotFound, format!("process {number} not found, or removed after its end"))
}

/// The processes of a sandbox.
#[derive(Serialize, ToSchema)]
#[schema(as = Processes)]
pub(super) struct ProcessesBody {
    processes: Vec<ProcessInfoBody>,
}

/// Lists the processes that were started through the API.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes", tag = "commands",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The processes.", body = ProcessesBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<ProcessesBody>, Problem> {
    let processes = shared.keeper.perform(&caller, &id, v1::ListProcessesRequest::default()).await?;
    let processes = processes.into_iter().map(|info| to_body(&shared, info)).collect();
    Ok(axum::Json(ProcessesBody { processes }))
}

/// Shows a process.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}", tag = "commands",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number.")),
    responses((status = 200, description = "The process.", body = ProcessInfoBody)))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
) -> Result<axum::Json<ProcessInfoBody>, Problem> {
    Ok(axum::Json(to_body(&shared, find_process(&shared, &caller, &id, number).await?)))
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutputQuery {
    /// Offset in standard output to start at.
    stdout: Option<u64>,
    /// Offset in standard error to start at.
    stderr: Option<u64>,
    /// Offset in the output of its terminal to start at.
    terminal: Option<u64>,
    /// Whether to continue until the process ends (`true`, the default), or to stop at the current end of the output.
    follow: Option<bool>,
}

impl OutputQuery {
    fn offsets(&self) -> [u64; 3] {
        [self.stdout, self.stderr, self.terminal].map(|offset| offset.unwrap_or(0))
    }
}

/// Streams the output of a process from the given offsets on, as server-sent events: `stdout`, `stderr` and `terminal`
/// with `{"offset","encoding","data"}`, then `exited`. An offset jumps where bytes were not kept.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}/output", tag = "commands",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number."), OutputQuery),
    responses((status = 200, description = "The output.", body = String, content_type = "text/event-stream",
        example = "event: stdout\ndata: {\"offset\":0,\"encoding\":\"utf-8\",\"data\":\"hello\\n\"}\n\n")))]
pub(super) async fn output(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Query(query): Query<OutputQuery>,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let info = find_process(&shared, &caller, &id, number).await?;
    let end = [info.stdout_bytes, info.stderr_bytes, info.terminal_bytes];
    let until = (query.follow == Some(false) && info.running).then_some(end);
    let (offsets, request_id) = (query.offsets(), caller.request_id.clone());
    let request = attach_request(number, offsets);
    let opened = shared.keeper.begin(&caller, &id, request).await?;
    let stream = output_events(shared.clone(), opened, offsets, until, request_id);
    Ok(events(slot, caller.request_id, stream))
}

pub(super) fn attach_request(
    id: u64,
    [stdout_offset, stderr_offset, terminal_offset]: [u64; 3],
) -> v1::AttachRequest {
    v1::AttachRequest { id, stdout_offset, stderr_offset, terminal_offset, ..Default::default() }
}

/// Streams the output from `offsets` on, up to the process's end or to `until`.
fn output_events(
    shared: Shared,
    mut opened: Opened<Execution>,
    offsets: [u64; 3],
    until: Option<[u64; 3]>,
    request_id: String,
) -> impl Stream<Item = Event> + Send + 'static {
    async_stream::stream! {
        let mut pieces = Pieces::default();
        let mut reached = offsets;
        let failed = loop {
            if is_reached(&reached, until) {
                break None;
            }
            match opened.next().await {
                Ok(Some(ProcessEvent::Output { stream, offset, data })) => {
                    for (name, piece) in pieces.push(stream, offset, &data) {
                        yield event(name, &piece);
                    }
                    advance(&mut reached, stream, offset, data.len());
                }
                Ok(Some(ProcessEvent::Exited(exited))) => {
                    for (name, piece) in pieces.finish() {
                        yield event(name, &piece);
                    }
                    let judgement = shared.keeper.judge(&exited);
                    yield event("exited", &ExitedBody::new(&exited, judgement));
                    break None;
                }
                Ok(Some(ProcessEvent::Started { .. })) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        for (name, piece) in pieces.finish() {
            yield event(name, &piece);
        }
        if let Some(error) = failed {
            yield problem_event(&error.into(), &request_id);
        }
    }
}

fn advance(reached: &mut [u64; 3], stream: v1::Stream, offset: u64, length: usize) {
    let index = match stream {
        v1::Stream::STREAM_UNSPECIFIED | v1::Stream::STREAM_STDOUT => 0,
        v1::Stream::STREAM_STDERR => 1,
        v1::Stream::STREAM_TERMINAL => 2,
    };
    if let Some(reached) = reached.get_mut(index) {
        *reached = offset.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
    }
}

fn is_reached(reached: &[u64; 3], until: Option<[u64; 3]>) -> bool {
    until.is_some_and(|until| reached.iter().zip(until).all(|(reached, until)| *reached >= until))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StdinQuery {
    /// Whether the input ends here. `false` if not given.
    close: Option<bool>,
}

/// Result of feeding input.
#[derive(Serialize, ToSchema)]
#[schema(as = Fed)]
pub(super) struct FedBody {
    /// Bytes that were written to the process's pipe.
    bytes: u64,
}

/// Writes to the standard input of a process that was started with `stdin_open`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/stdin", tag = "commands",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number."), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The bytes.", example = json!("hello\n")),
    responses((status = 200, description = "The input was accepted.", body = FedBody)))]
pub(super) async fn stdin(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Query(query): Query<StdinQuery>,
    body: RawBody,
) -> Result<axum::Json<FedBody>, Problem> {
    let message = move |data| v1::InputRequest { id: number, data, ..Default::default() };
    let last = v1::InputRequest { id: number, close: query.close.unwrap_or(false), ..Default::default() };
    let input = body.stream().map(move |piece| piece.map(message)).chain(stream::iter([Ok(last)]));
    let bytes = shared.keeper.perform(&caller, &id, Feed(input.boxed())).await?;
    Ok(axum::Json(FedBody { bytes }))
}

/// Result of sending a signal.
#[derive(Serialize, ToSchema)]
#[schema(as = Signalled)]
pub(super) struct SignalledBody {
    signalled: u32,
}

/// Sends a signal to a process.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/signal", tag = "commands", request_body = SignalBody,
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number.")),
    responses((status = 200, description = "The number of signalled processes.", body = SignalledBody)))]
pub(super) async fn signal(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Json(body): Json<SignalBody>,
) -> Result<axum::Json<SignalledBody>, Problem> {
    let tree = body.tree.unwrap_or(false);
    let request = v1::SignalRequest { id: number, signal: body.signal, tree, ..Default::default() };
    let signalled = shared.keeper.perform(&caller, &id, request).await?;
    if signalled == 0 {
        return Err(Problem::new(Code::ProcessNotFound, format!("process {number} has ended")));
    }
    Ok(axum::Json(SignalledBody { signalled }))
}

/// Changes the size of a process's terminal.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/resize", tag = "commands", request_body = ResizeBody,
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number.")),
    responses((status = 204, description = "Resized.")))]
pub(super) async fn resize(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Json(body): Json<ResizeBody>,
) -> Result<StatusCode, Problem> {
    let (rows, columns) = body.validate("")?;
    let terminal = v1::Terminal { rows: rows.into(), columns: columns.into(), ..Default::default() };
    let request = v1::ResizeRequest { id: number, terminal: terminal.into(), ..Default::default() };
    shared.keeper.perform(&caller, &id, request).await?;
    Ok(StatusCode::NO_CONTENT)
}
