//! Sessions: shells that keep their state from one command to the next.

use axum::extract::State;
use belljar_engine::v1;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::types::{UniqueMap, check_path, parse_env, to_text};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, PathNumber, PathOf};
use crate::problem::{Code, Problem};

/// The number of a session.
pub(super) struct Session(u64);

impl std::str::FromStr for Session {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl std::fmt::Display for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

impl PathNumber for Session {
    const NAME: &'static str = "session";
    const NONE: Code = Code::SessionNotFound;
}

/// A session to open.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSession, example = json!({"cwd": "src", "env": {"LANG": "C.UTF-8"}}))]
pub(super) struct OpenBody {
    /// Working directory: absolute, or below the home directory.
    cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    env: Option<UniqueMap<String>>,
}

/// A session.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionInfo)]
pub(super) struct SessionBody {
    /// Its number in the sandbox, which is never reused.
    session: u64,
    /// Name of its shell.
    #[schema(example = "bash")]
    shell: String,
    /// Number of the command that runs in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u64>,
}

/// The sessions of a sandbox.
#[derive(Serialize, ToSchema)]
#[schema(as = Sessions)]
pub(super) struct SessionsBody {
    sessions: Vec<SessionBody>,
}

/// Returns the name of a shell, without its path.
fn shell_name(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    to_text(name).0
}

/// Opens a session: a shell that keeps its directory, variables and functions from one command to the next. Run a
/// command in it with `session` in a request to `exec`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/sessions", tag = "commands", operation_id = "open_session", request_body = OpenBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The opened session.", body = SessionBody)))]
pub(super) async fn open(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<OpenBody>,
) -> Result<(StatusCode, axum::Json<SessionBody>), Problem> {
    if let Some(cwd) = &body.cwd {
        check_path("cwd", cwd.as_bytes())?;
    }
    let env = parse_env(body.env)?.into_iter();
    let env =
        env.map(|(name, value)| v1::EnvVar { name: name.into(), value: value.into(), ..Default::default() });
    let request = v1::SessionOpen {
        cwd: body.cwd.map(Bytes::from).unwrap_or_default(),
        env: env.collect(),
        ..Default::default()
    };
    let opened = shared.keeper.perform(&caller, &id, request).await?;
    let body = SessionBody { session: opened.id, shell: shell_name(&opened.shell), process: None };
    Ok((StatusCode::CREATED, axum::Json(body)))
}

/// Lists open sessions.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/sessions", tag = "commands", operation_id = "list_sessions",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The sessions.", body = SessionsBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<SessionsBody>, Problem> {
    let sessions = shared.keeper.perform(&caller, &id, v1::ListSessionsRequest::default()).await?;
    let sessions = sessions.into_iter().map(|session| SessionBody {
        session: session.id,
        shell: shell_name(&session.shell),
        process: Some(session.command).filter(|command| *command != 0),
    });
    Ok(axum::Json(SessionsBody { sessions: sessions.collect() }))
}

/// Ends a session, with every process that was started in it.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/sessions/{session}", tag = "commands", operation_id = "close_session",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("session" = u64, Path, description = "The session's number.")),
    responses((status = 204, description = "Ended.")))]
pub(super) async fn close(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    PathOf(Session(session)): PathOf<Session>,
) -> Result<StatusCode, Problem> {
    shared.keeper.perform(&caller, &id, v1::SessionClose { id: session, ..Default::default() }).await?;
    Ok(StatusCode::NO_CONTENT)
}
