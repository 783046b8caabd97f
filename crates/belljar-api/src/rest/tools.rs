//! Stored tools.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{ApprovalScreening, Caller, RunEvent, ToolCall, ToolVerdict};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::approvals::WaitingBody;
use super::code::to_events;
use super::exec::accepts_events;
use super::types::{ToolBody, ToolCallBody, ToolInfoBody, ToolResultBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query};
use crate::problem::Problem;
use crate::stream::{Pieces, event, events, problem_event};
use crate::tool_schema::{Dialect, schema_for};

/// Maximum length of the arguments of a call: code whose every byte takes two in JSON, files in base64, and 1 MiB for the rest.
const MAX_CALL_BYTES: usize = 2 * belljar_keeper::MAX_CODE_BYTES + (3 << 20);

/// Stores a tool: what a model may run by its name, and how.
#[utoipa::path(post, path = "/v1/tools", tag = "tools", request_body = ToolBody,
    responses((status = 201, description = "The tool, in version 1 if its name is new.", body = ToolInfoBody)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<ToolBody>,
) -> Result<(StatusCode, axum::Json<ToolInfoBody>), Problem> {
    let info = shared.keeper.create_tool(&caller, body.into_file(None)?).await?;
    Ok((StatusCode::CREATED, axum::Json(info.into())))
}

/// Tools of a tenant.
#[derive(Serialize, ToSchema)]
#[schema(as = Tools)]
pub(super) struct ToolsBody {
    /// The current versions, sorted by name.
    tools: Vec<ToolInfoBody>,
}

/// Lists the tenant's tools, at most 256.
#[utoipa::path(get, path = "/v1/tools", tag = "tools",
    responses((status = 200, description = "The tools.", body = ToolsBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<axum::Json<ToolsBody>, Problem> {
    let tools = shared.keeper.tools(&caller).await?;
    Ok(axum::Json(ToolsBody { tools: tools.into_iter().map(Into::into).collect() }))
}

/// Shows a tool.
#[utoipa::path(get, path = "/v1/tools/{id}", tag = "tools",
    params(("id" = String, Path, description = "The tool's name, or `NAME@VERSION`.")),
    responses((status = 200, description = "The tool.", body = ToolInfoBody)))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<ToolInfoBody>, Problem> {
    Ok(axum::Json(shared.keeper.tool(&caller, &id).await?.into()))
}

/// Stores a new version of a tool, which becomes the current one. Earlier versions stay, and can be called by their numbers. If nothing
/// changes, there is no new version.
#[utoipa::path(put, path = "/v1/tools/{id}", tag = "tools", request_body = ToolBody,
    params(("id" = String, Path, description = "The tool's name.")),
    responses((status = 200, description = "The current version: the new one, or the one that is the same already.", body = ToolInfoBody)))]
pub(super) async fn update(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ToolBody>,
) -> Result<axum::Json<ToolInfoBody>, Problem> {
    Ok(axum::Json(shared.keeper.update_tool(&caller, &id, body.into_file(Some(&id))?).await?.into()))
}

/// Removes a tool, or one of its versions. The number of a removed version is not used again.
#[utoipa::path(delete, path = "/v1/tools/{id}", tag = "tools",
    params(("id" = String, Path, description = "The tool's name, or `NAME@VERSION`.")),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.remove_tool(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SchemaQuery {
    /// Whose form: `openai` (a function of the Responses interface), `anthropic` or `mcp`.
    #[param(inline)]
    r#for: Dialect,
}

/// Returns the description of a tool that a vendor's interface takes.
#[utoipa::path(get, path = "/v1/tools/{id}/schema", tag = "tools",
    params(("id" = String, Path, description = "The tool's name, or `NAME@VERSION`."), SchemaQuery),
    responses((status = 200, description = "The description.", body = Value)))]
pub(super) async fn schema(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<SchemaQuery>,
) -> Result<axum::Json<Value>, Problem> {
    Ok(axum::Json(schema_for(&shared.keeper.tool(&caller, &id).await?.tool, query.r#for)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DraftQuery {
    /// Whose form: `openai`, `anthropic` or `mcp`, which it is if not given.
    #[param(inline)]
    r#for: Option<Dialect>,
}

/// Returns the description that a tool with this definition would have. Nothing is stored.
#[utoipa::path(post, path = "/v1/tools/{id}/schema", tag = "tools", request_body = ToolBody,
    params(("id" = String, Path, description = "The tool's name."), DraftQuery),
    responses((status = 200, description = "The description.", body = Value)))]
pub(super) async fn draft_schema(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<DraftQuery>,
    Json(body): Json<ToolBody>,
) -> Result<axum::Json<Value>, Problem> {
    let tool = shared.keeper.check_tool(&caller, body.into_file(Some(&id))?)?;
    Ok(axum::Json(schema_for(&tool, query.r#for.unwrap_or(Dialect::Mcp))))
}

/// Decides about a call without running anything.
#[utoipa::path(post, path = "/v1/tools/{id}/test", tag = "tools", request_body = ToolCallBody,
    params(("id" = String, Path, description = "The tool's name, or `NAME@VERSION`.")),
    responses((status = 200, description = "What would be decided, by which rule, and why.", body = ToolVerdictBody)))]
pub(super) async fn test(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ToolCallBody, MAX_CALL_BYTES>,
) -> Result<axum::Json<ToolVerdictBody>, Problem> {
    Ok(axum::Json(shared.keeper.test_tool(&caller, &id, &body.into_call()?).await?.into()))
}

/// What would be decided about a call.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolVerdict)]
pub(super) struct ToolVerdictBody {
    /// Whether it would run.
    allowed: bool,
    /// The rule that decides: the refused argument, `policy`, `role`, `approval` if it would wait for one, the code of another error, or
    /// `tool` if all are satisfied.
    rule: String,
    /// Why.
    reason: String,
    /// The tool's name.
    tool: String,
    /// Its version.
    version: i64,
    /// SHA-256 of its definition.
    digest: String,
    /// SHA-256 of the code.
    code_sha256: String,
    /// What screening has found, if the rule for approvals asks for it.
    screening: Option<ApprovalScreening>,
}

impl From<ToolVerdict> for ToolVerdictBody {
    fn from(verdict: ToolVerdict) -> Self {
        let ToolVerdict { allowed, rule, reason, tool, version, digest, code_sha256, screening } = verdict;
        Self { allowed, rule, reason, tool, version, digest, code_sha256, screening }
    }
}

/// Calls a tool and waits for its end. If the client disconnects, its code is killed. With `Accept: text/event-stream`, events are
/// streamed while it runs: `waiting` if it waits for approval, `started`, then `stdout`, `stderr`, `result` and `error` in order, then
/// `ended` with the result.
#[utoipa::path(post, path = "/v1/tools/{id}/call", tag = "tools", request_body = ToolCallBody,
    params(("id" = String, Path, description = "The tool's name, or `NAME@VERSION`.")),
    responses((status = 200, content(
        (ToolResultBody = "application/json"),
        (String = "text/event-stream", example = "event: waiting\ndata: {\"approval\":\"apr_5d0c6a3f1b2c4d5e\",\"expires_at\":\"2026-11-24T10:05:00.000000Z\"}\n\n")),
        description = "The result.")))]
pub(super) async fn call(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    headers: HeaderMap,
    Json(body): Json<ToolCallBody, MAX_CALL_BYTES>,
) -> Result<Response, Problem> {
    let call = body.into_call()?;
    if accepts_events(&headers) {
        return stream_events(shared, caller, id, call).await;
    }
    let result = shared.keeper.call_tool(&caller, &id, call).await?;
    Ok(axum::Json(ToolResultBody::from(result)).into_response())
}

/// Streams the events. A failure before the first one is the response itself.
async fn stream_events(
    shared: Shared,
    caller: Caller,
    id: String,
    call: ToolCall,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let mut run = shared.keeper.stream_tool(&caller, &id, call);
    run.begun().await?;
    let request_id = caller.request_id;
    let id = request_id.clone();
    let stream = async_stream::stream! {
        let mut pieces = Pieces::default();
        while let Some(next) = run.next().await {
            match next {
                RunEvent::Queued => {}
                RunEvent::Waiting(waiting) => yield event("waiting", &WaitingBody::from(waiting)),
                RunEvent::Progress(event) => for event in to_events(&mut pieces, event) { yield event },
                RunEvent::Ended(done) => {
                    for (name, piece) in pieces.finish() { yield event(name, &piece) }
                    yield match done {
                        Ok(done) => event("ended", &ToolResultBody::from(done)),
                        Err(error) => problem_event(&error.into(), &id),
                    };
                }
            }
        }
    };
    Ok(events(slot, request_id, stream))
}
