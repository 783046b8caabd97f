//! Processes over a WebSocket.

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use belljar_keeper::{Command, ExecRequest};
use bytes::Bytes;
use http::request::Parts;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::processes::Number;
use super::types::TerminalBody;
use crate::api::Shared;
use crate::extract::{Auth, Id, PathOf, Query};
use crate::guard::SESSION_PROTOCOL;
use crate::problem::Problem;
use crate::stream::{Attachment, MAX_MESSAGE_BYTES, attach as relay, upgrade_required};

/// Maximum number of output bytes that wait in a connection.
const MAX_WAITING_BYTES: usize = 2 << 20;

/// Default command of a terminal: bash if it is installed.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi";

/// A request that can be upgraded to a WebSocket.
pub(super) struct Upgrade(WebSocketUpgrade);

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let upgrade =
            WebSocketUpgrade::from_request_parts(parts, state).await.map_err(|_| upgrade_required())?;
        let max =
            if belljar_keeper::ServiceWall::MessageBounds.is_down() { usize::MAX } else { MAX_MESSAGE_BYTES };
        let upgrade = upgrade
            .protocols([SESSION_PROTOCOL])
            .max_message_size(max)
            .max_frame_size(max)
            .write_buffer_size(0)
            .max_write_buffer_size(MAX_WAITING_BYTES);
        Ok(Self(upgrade))
    }
}

impl Upgrade {
    fn answer(self, shared: Shared, attachment: Attachment) -> Response {
        self.0.on_upgrade(move |socket| relay(socket, shared, attachment))
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AttachQuery {
    /// Offset in standard output to start at.
    stdout: Option<u64>,
    /// Offset in standard error to start at.
    stderr: Option<u64>,
    /// Offset in the output of its terminal to start at.
    terminal: Option<u64>,
}

/// Attaches to a process over a WebSocket.
///
/// To the client: binary messages of one byte for the stream (1 standard output, 2 standard error, 3 terminal), 8 bytes for
/// the offset (big-endian), and the data; text messages `{"event":"exited",…}` and `{"event":"error",…}`. From the client:
/// binary messages are standard input; text messages are one of `{"resize":{"rows","columns"}}`, `{"signal":"SIGINT"}` and
/// `{"close_stdin":true}`. A message has at most 1 MiB.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}/attach", tag = "commands",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("process" = u64, Path, description = "The process's number."), AttachQuery),
    responses((status = 101, description = "The connection is a WebSocket from here on.")))]
pub(super) async fn attach(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Number(number)): PathOf<Number>,
    Query(query): Query<AttachQuery>,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let offsets = [query.stdout, query.stderr, query.terminal].map(|offset| offset.unwrap_or(0));
    super::processes::find_process(&shared, &caller, &id, number).await?;
    let execution =
        shared.keeper.begin(&caller, &id, super::processes::attach_request(number, offsets)).await?;
    Ok(upgrade.answer(shared, Attachment { execution, greeting: None, slot, caller }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TerminalQuery {
    /// Rows of the terminal. 24 if not given.
    #[param(minimum = 1)]
    rows: Option<u16>,
    /// Columns of the terminal. 80 if not given.
    #[param(minimum = 1)]
    columns: Option<u16>,
    /// Working directory: absolute, or below the home directory.
    cwd: Option<String>,
    /// A line for the shell. An interactive shell, if not given.
    command: Option<String>,
}

#[derive(Serialize)]
struct Greeting {
    event: &'static str,
    process: u64,
}

/// Starts a shell on a terminal and attaches to it over a WebSocket, as `attach` does. The first message is the text
/// `{"event":"started","process":N}`. The shell continues if the connection breaks; attach to its number again.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/terminal", tag = "commands",
    params(("id" = String, Path, description = "The sandbox's id or name."), TerminalQuery),
    responses((status = 101, description = "The connection is a WebSocket from here on.")))]
pub(super) async fn terminal(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<TerminalQuery>,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let size = TerminalBody { rows: query.rows.unwrap_or(24), columns: query.columns.unwrap_or(80) };
    if let Some(cwd) = &query.cwd {
        super::types::check_path("cwd", cwd.as_bytes())?;
    }
    if query.command.as_ref().is_some_and(|command| command.is_empty() || command.contains('\0')) {
        return Err(Problem::field("command", "it is empty, or contains a NUL byte"));
    }
    let line = query.command.map_or(Bytes::from_static(SHELL.as_bytes()), Bytes::from);
    let request = ExecRequest {
        command: Command::Shell(line),
        cwd: query.cwd.map(Bytes::from),
        stdin_open: true,
        terminal: Some(size.validate("")?),
        timeout: Some(std::time::Duration::ZERO),
        ..ExecRequest::default()
    };
    let process = shared.keeper.start(&caller, &id, request).await?.process;
    let execution =
        shared.keeper.begin(&caller.begun(), &id, super::processes::attach_request(process, [0; 3])).await?;
    let greeting = serde_json::to_string(&Greeting { event: "started", process }).ok();
    Ok(upgrade.answer(shared, Attachment { execution, greeting, slot, caller }))
}
