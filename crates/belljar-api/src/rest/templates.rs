//! Templates.

use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::sandboxes::PartQuery;
use super::types::TemplateInfoBody;
use crate::api::Shared;
use crate::extract::{Auth, Id, Query};
use crate::problem::Problem;

/// Templates that sandboxes can start from.
#[derive(Serialize, ToSchema)]
#[schema(as = Templates)]
pub(super) struct TemplatesBody {
    templates: Vec<TemplateInfoBody>,
    /// Cursor of the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists templates: the default one first, and then the others, oldest first.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", params(PartQuery),
    responses((status = 200, description = "The templates.", body = TemplatesBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<PartQuery>,
) -> Result<axum::Json<TemplatesBody>, Problem> {
    let page = shared.keeper.templates(&caller, &query.part()?).await?;
    let templates = page.items.into_iter().map(Into::into).collect();
    Ok(axum::Json(TemplatesBody { templates, next_cursor: page.next_cursor }))
}

/// Shows a template.
#[utoipa::path(get, path = "/v1/templates/{id}", tag = "templates",
    params(("id" = String, Path, description = "The template's id or name.")),
    responses((status = 200, description = "The template.", body = TemplateInfoBody)))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<TemplateInfoBody>, Problem> {
    Ok(axum::Json(shared.keeper.template(&caller, &id).await?.into()))
}

/// Removes a template.
#[utoipa::path(delete, path = "/v1/templates/{id}", tag = "templates",
    params(("id" = String, Path, description = "The template's id or name.")),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.remove_template(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
