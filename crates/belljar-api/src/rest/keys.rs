//! Keys.

use axum::extract::State;
use belljar_keeper::{CreatedKey, KeyInfo};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::sandboxes::PartQuery;
use super::types::{KeyUpdateBody, NewKeyBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query};
use crate::problem::Problem;

/// Creates a key. Needs the role admin.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = NewKeyBody,
    responses((status = 201, description = "The key. It is shown only once.", body = CreatedKey)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<NewKeyBody>,
) -> Result<(StatusCode, axum::Json<CreatedKey>), Problem> {
    Ok((StatusCode::CREATED, axum::Json(shared.keeper.create_key(&caller, body.into()).await?)))
}

/// Metadata of keys, without the secrets.
#[derive(Serialize, ToSchema)]
#[schema(as = Keys)]
pub(super) struct KeysBody {
    keys: Vec<KeyInfo>,
    /// Cursor of the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists keys, oldest first. Needs the role admin.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", params(PartQuery),
    responses((status = 200, description = "The keys.", body = KeysBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<PartQuery>,
) -> Result<axum::Json<KeysBody>, Problem> {
    let page = shared.keeper.keys(&caller, &query.part()?).await?;
    Ok(axum::Json(KeysBody { keys: page.items, next_cursor: page.next_cursor }))
}

/// Changes a key, from its next request on: its name, role, expiry and quotas. Existing sandboxes stay. Needs the role admin.
#[utoipa::path(patch, path = "/v1/keys/{id}", tag = "keys", request_body = KeyUpdateBody,
    params(("id" = String, Path, description = "The key's id.")),
    responses((status = 200, description = "The key as it is now.", body = KeyInfo)))]
pub(super) async fn update(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<KeyUpdateBody>,
) -> Result<axum::Json<KeyInfo>, Problem> {
    Ok(axum::Json(shared.keeper.update_key(&caller, &id, body.into_change()).await?))
}

/// Revokes a key. Needs the role admin.
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys",
    params(("id" = String, Path, description = "The key's id.")),
    responses((status = 204, description = "Revoked.")))]
pub(super) async fn revoke(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.revoke_key(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
