//! Screening of code.

use axum::extract::State;
use belljar_keeper::{Modules, ScreenReport, ScreenRequest};
use serde::Deserialize;
use utoipa::ToSchema;

use super::types::object;
use crate::api::Shared;
use crate::extract::{Auth, Json};
use crate::problem::Problem;

/// Maximum length of a request: code of 1 MiB whose every byte takes two in JSON, and 1 MiB for the rest.
const MAX_SCREEN_BYTES: usize = 3 << 20;

/// Code to screen.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Screen, example = json!({"language": "python", "code": "import os\nos.system('ls')", "modules": {"deny": ["socket"]}}))]
pub(super) struct ScreenBody {
    /// Its language: `python`, `javascript`, `typescript`, `bash`, `ruby`, `php`, `go`, `rust`, or an alias.
    language: String,
    /// The code, at most 1 MiB.
    code: String,
    /// Modules that the caller has something against.
    #[serde(default, deserialize_with = "object")]
    modules: Option<Modules>,
}

/// Reads code without running it, and reports what it seems to do. Advice, not a wall: code can do what its text does not show.
#[utoipa::path(post, path = "/v1/screen", tag = "screen", request_body = ScreenBody,
    responses((status = 200, description = "The report.", body = ScreenReport)))]
pub(super) async fn screen(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<ScreenBody, MAX_SCREEN_BYTES>,
) -> Result<axum::Json<ScreenReport>, Problem> {
    let ScreenBody { language, code, modules } = body;
    let request = ScreenRequest { language, code, modules: modules.unwrap_or_default() };
    Ok(axum::Json(shared.keeper.screen(&caller, request).await?))
}
