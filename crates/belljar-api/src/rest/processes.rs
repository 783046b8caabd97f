//! Processes in the background.

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use belljar_engine::{GuestError, ProcessEvent, v1};
use belljar_keeper::Entered;
use futures::Stream;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::types::{ExitedBody, ProcessInfoBody, ResizeBody, SignalBody, StartBody};
use super::{guest_problem, recorded};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, PathNumber, PathOf, Query, RawBody};
use crate::problem::{Code, Problem};
use crate::refusal::About;
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
    responses((status = 201, description = "It runs.", body = ProcessInfoBody)))]
pub(super) async fn start(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<StartBody>,
) -> Result<(StatusCode, axum::Json<ProcessInfoBody>), Problem> {
    let started = shared.keeper.start(&caller, &id, body.into_request()?).await?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    let info = found(&entered, started.process).await?;
    Ok((StatusCode::CREATED, axum::Json(told(&shared, info))))
}

fn told(shared: &Shared, info: v1::ProcessInfo) -> ProcessInfoBody {
    let exited = info.exited.as_option().filter(|_| !info.running);
    let judgement = exited.map(|exited| shared.keeper.judge(exited));
    ProcessInfoBody::new(info, judgement)
}

/// The process of this number.
async fn found(entered: &Entered, number: u64) -> Result<v1::ProcessInfo, Problem> {
    let processes = match entered.guest().list_processes().await {
        Ok(processes) => processes,
        Err(error) => return Err(guest_problem(entered, error, About::Process).await),
    };
    let process = processes.into_iter().find(|process| process.id == number);
    process.ok_or_else(|| missing(number))
}

pub(super) fn missing(number: u64) -> Problem {
    Problem::new(
        Code::ProcessNotFound,
        format!("there is no process {number}, or it was forgotten after its end"),
    )
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
    let entered = shared.keeper.enter(&caller, &id).await?;
    match entered.guest().list_processes().await {
        Ok(processes) => {
            let processes = processes.into_iter().map(|info| told(&shared, info)).collect();
            Ok(axum::Json(ProcessesBody { processes }))
        }
        Err(error) => Err(guest_problem(&entered, error, About::Process).await),
    }
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
    let entered = shared.keeper.enter(&caller, &id).await?;
    Ok(axum::Json(told(&shared, found(&entered, number).await?)))
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutputQuery {
    /// Where to begin in standard output.
    stdout: Option<u64>,
    /// Where to begin in standard error.
    stderr: Option<u64>,
    /// Where to begin in the output of its terminal.
    terminal: Option<u64>,
    /// Whether to go on until the process ends (`true`, the default), or only to what is there now.
    follow: Option<bool>,
}

impl OutputQuery {
    fn offsets(&self) -> [u64; 3] {
        [self.stdout, self.stderr, self.terminal].map(|offset| offset.unwrap_or(0))
    }
}

/// The output of a process from given places on, as server-sent events: `stdout`, `stderr` and `terminal` with
/// `{"offset","encoding","data"}`, then `exited`. An offset jumps where bytes were not kept.
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
    let slot = shared.streams.take(&caller.key)?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    let info = found(&entered, number).await?;
    let end = [info.stdout_bytes, info.stderr_bytes, info.terminal_bytes];
    let until = (query.follow == Some(false) && info.running).then_some(end);
    let stream =
        output_events(shared.clone(), entered, number, query.offsets(), until, caller.request_id.clone());
    Ok(events(slot, caller.request_id, stream))
}

/// The output from `offsets` on, up to the process's end or to `until`.
fn output_events(
    shared: Shared,
    entered: Entered,
    number: u64,
    offsets: [u64; 3],
    until: Option<[u64; 3]>,
    request_id: String,
) -> impl Stream<Item = Event> + Send + 'static {
    async_stream::stream! {
        let mut pieces = Pieces::default();
        let mut reached = offsets;
        let failed = 'reading: {
            if is_reached(&reached, until) {
                break 'reading None;
            }
            let mut execution = match entered.guest().attach(number, offsets).await {
                Ok(execution) => execution,
                Err(error) => break 'reading Some(error),
            };
            loop {
                match execution.next().await {
                    Ok(Some(ProcessEvent::Output { stream, offset, data })) => {
                        for (name, piece) in pieces.push(stream, offset, &data) {
                            yield event(name, &piece);
                        }
                        advance(&mut reached, stream, offset, data.len());
                        if is_reached(&reached, until) {
                            break 'reading None;
                        }
                    }
                    Ok(Some(ProcessEvent::Exited(exited))) => {
                        for (name, piece) in pieces.finish() {
                            yield event(name, &piece);
                        }
                        let judgement = shared.keeper.judge(&exited);
                        yield event("exited", &ExitedBody::new(&exited, judgement));
                        break 'reading None;
                    }
                    Ok(Some(ProcessEvent::Started { .. })) => {}
                    Ok(None) => break 'reading None,
                    Err(error) => break 'reading Some(error),
                }
            }
        };
        for (name, piece) in pieces.finish() {
            yield event(name, &piece);
        }
        if let Some(error) = failed {
            yield problem_event(&guest_problem(&entered, error, About::Process).await, &request_id);
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
    /// Whether nothing more comes after this. `false` if not given.
    close: Option<bool>,
}

/// How much input was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = Fed)]
pub(super) struct FedBody {
    /// Bytes that the process's pipe took.
    bytes: u64,
}

/// Feeds the standard input of a process that was started with `stdin_open`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/stdin", tag = "commands",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number."), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The bytes.", example = json!("hello\n")),
    responses((status = 200, description = "They were taken.", body = FedBody)))]
pub(super) async fn stdin(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Query(query): Query<StdinQuery>,
    body: RawBody,
) -> Result<axum::Json<FedBody>, Problem> {
    let entered = shared.keeper.enter(&caller, &id).await?;
    found(&entered, number).await?;
    match entered.guest().feed(number, body.reader(), query.close.unwrap_or(false)).await {
        Ok(bytes) => Ok(axum::Json(FedBody { bytes })),
        Err(error) => Err(guest_problem(&entered, error, About::Process).await),
    }
}

/// How many processes got a signal.
#[derive(Serialize, ToSchema)]
#[schema(as = Signalled)]
pub(super) struct SignalledBody {
    signalled: u32,
}

/// Sends a signal to a process.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/signal", tag = "commands", request_body = SignalBody,
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number.")),
    responses((status = 200, description = "How many got it.", body = SignalledBody)))]
pub(super) async fn signal(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Json(body): Json<SignalBody>,
) -> Result<axum::Json<SignalledBody>, Problem> {
    let entered = shared.keeper.enter(&caller, &id).await?;
    let details = vec![("process", number.to_string()), ("signal", body.signal.to_string())];
    let sent = send_signal(&entered, number, &body).await;
    let signalled = recorded(&shared, &caller, entered.id(), "process.signal", details, sent).await?;
    Ok(axum::Json(SignalledBody { signalled }))
}

async fn send_signal(entered: &Entered, number: u64, body: &SignalBody) -> Result<u32, Problem> {
    if !found(entered, number).await?.running {
        return Err(Problem::new(Code::ProcessNotFound, format!("process {number} has ended")));
    }
    answered(entered, entered.guest().signal(number, body.signal, body.tree.unwrap_or(false)).await).await
}

/// Changes the size of a process's terminal.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/resize", tag = "commands", request_body = ResizeBody,
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number.")),
    responses((status = 204, description = "It has that size.")))]
pub(super) async fn resize(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Json(body): Json<ResizeBody>,
) -> Result<StatusCode, Problem> {
    let (rows, columns) = body.checked("")?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    answered(&entered, entered.guest().resize(number, rows, columns).await).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn answered<T>(entered: &Entered, answer: Result<T, GuestError>) -> Result<T, Problem> {
    match answer {
        Ok(answer) => Ok(answer),
        Err(error) => Err(guest_problem(entered, error, About::Process).await),
    }
}
