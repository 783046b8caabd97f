//! Secrets of a tenant, stored on the server.

use axum::extract::State;
use belljar_keeper::SecretInfo;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sandboxes::check_limit;
use super::types::{NewSecretBody, SecretUpdateBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query};
use crate::problem::Problem;

/// Maximum number of secrets in a page.
pub(crate) const MAX_SECRETS_PAGE: u32 = 100;

/// Stores a secret, which network policies name as `${secrets.NAME}`. No response contains its value.
#[utoipa::path(post, path = "/v1/secrets", tag = "secrets", request_body = NewSecretBody,
    responses((status = 201, description = "The secret, without its value.", body = SecretInfo)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<NewSecretBody>,
) -> Result<(StatusCode, axum::Json<SecretInfo>), Problem> {
    let created = shared.keeper.create_secret(&caller, body.try_into()?).await?;
    Ok((StatusCode::CREATED, axum::Json(created)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Entries of the page.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Cursor from the previous page.
    cursor: Option<String>,
}

/// A page of secrets.
#[derive(Serialize, ToSchema)]
#[schema(as = Secrets)]
pub(super) struct SecretsBody {
    secrets: Vec<SecretInfo>,
    /// Cursor of the next page; absent after the last.
    next_cursor: Option<String>,
}

/// Lists the tenant's secrets by their names.
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets", params(ListQuery),
    responses((status = 200, description = "A page of secrets, without their values.", body = SecretsBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<SecretsBody>, Problem> {
    let limit = check_limit("limit", query.limit, MAX_SECRETS_PAGE, MAX_SECRETS_PAGE)?;
    let (secrets, next_cursor) = shared.keeper.secrets(&caller, limit, query.cursor.as_deref()).await?;
    Ok(axum::Json(SecretsBody { secrets, next_cursor }))
}

/// Shows a secret, without its value.
#[utoipa::path(get, path = "/v1/secrets/{id}", tag = "secrets",
    params(("id" = String, Path, description = "The secret's id or name.")),
    responses((status = 200, description = "The secret.", body = SecretInfo)))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<SecretInfo>, Problem> {
    Ok(axum::Json(shared.keeper.secret(&caller, &id).await?))
}

/// Changes a secret's value. Running sandboxes that use it get the new one at once.
#[utoipa::path(put, path = "/v1/secrets/{id}", tag = "secrets", request_body = SecretUpdateBody,
    params(("id" = String, Path, description = "The secret's id or name.")),
    responses((status = 200, description = "The changed secret.", body = SecretInfo)))]
pub(super) async fn update(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<SecretUpdateBody>,
) -> Result<axum::Json<SecretInfo>, Problem> {
    Ok(axum::Json(shared.keeper.update_secret(&caller, &id, body.try_into()?).await?))
}

/// Removes a secret. Running sandboxes that use it continue without it.
#[utoipa::path(delete, path = "/v1/secrets/{id}", tag = "secrets",
    params(("id" = String, Path, description = "The secret's id or name.")),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.remove_secret(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
