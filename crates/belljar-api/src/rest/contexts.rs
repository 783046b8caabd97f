//! Contexts: interpreters whose variables persist from one execution to the next.

use axum::extract::State;
use belljar_engine::code;
use http::StatusCode;

use super::types::{AnswerBody, ContextBody, ContextsBody, InterruptedBody, NewContextBody};
use crate::api::Shared;
use crate::extract::{Auth, ContextId, Id, Json};
use crate::problem::Problem;

/// Creates a context. Besides these, each language has a default context with the language's name, which is created on
/// first use.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts", tag = "code", operation_id = "create_context", request_body = NewContextBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The context.", body = ContextBody)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<NewContextBody>,
) -> Result<(StatusCode, axum::Json<ContextBody>), Problem> {
    let made = shared.keeper.create_context(&caller, &id, body.into_request()?).await?;
    Ok((StatusCode::CREATED, axum::Json(code::context(&made).into())))
}

/// Lists the contexts, the oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/contexts", tag = "code", operation_id = "list_contexts",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The contexts.", body = ContextsBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<ContextsBody>, Problem> {
    let contexts = shared.keeper.contexts(&caller, &id).await?;
    let contexts = contexts.iter().map(|info| code::context(info).into()).collect();
    Ok(axum::Json(ContextsBody { contexts }))
}

/// Ends a context's interpreter and starts a fresh one. Running code ends, and its variables are lost.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{context}/restart", tag = "code", operation_id = "restart_context",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("context" = String, Path, description = "The context's id.")),
    responses((status = 200, description = "The context.", body = ContextBody)))]
pub(super) async fn restart(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    ContextId(context): ContextId,
) -> Result<axum::Json<ContextBody>, Problem> {
    let info = shared.keeper.restart_context(&caller, &id, &context).await?;
    Ok(axum::Json(code::context(&info).into()))
}

/// Interrupts the code that runs in a context, as Ctrl-C does. Does nothing if no code runs.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{context}/interrupt", tag = "code", operation_id = "interrupt_context",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("context" = String, Path, description = "The context's id.")),
    responses((status = 200, description = "Whether code was running.", body = InterruptedBody)))]
pub(super) async fn interrupt(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    ContextId(context): ContextId,
) -> Result<axum::Json<InterruptedBody>, Problem> {
    let interrupted = shared.keeper.interrupt_context(&caller, &id, &context).await?;
    Ok(axum::Json(InterruptedBody { interrupted }))
}

/// Ends a context, with every process that was started in it.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/contexts/{context}", tag = "code", operation_id = "remove_context",
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("context" = String, Path, description = "The context's id.")),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    ContextId(context): ContextId,
) -> Result<StatusCode, Problem> {
    shared.keeper.remove_context(&caller, &id, &context).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Answers a question of running code (`input()`), which was sent as the event `input_requested`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/contexts/{context}/answer", tag = "code", operation_id = "answer_context", request_body = AnswerBody,
    params(("id" = String, Path, description = "The sandbox's id or name."),
        ("context" = String, Path, description = "The context's id.")),
    responses((status = 204, description = "The code received the answer.")))]
pub(super) async fn answer(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    ContextId(context): ContextId,
    Json(body): Json<AnswerBody>,
) -> Result<StatusCode, Problem> {
    shared.keeper.answer_code(&caller, &id, body.into_request(context)?).await?;
    Ok(StatusCode::NO_CONTENT)
}
