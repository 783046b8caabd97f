//! The server itself.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{EngineInfo, Leftover, Me, action};
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::Shared;
use crate::extract::{Auth, Json};
use crate::problem::Problem;

/// Whether the server lives.
#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
pub(super) struct HealthBody {
    /// Always `ok`.
    #[schema(example = "ok")]
    status: &'static str,
}

/// Which server this is.
#[derive(Serialize, ToSchema)]
#[schema(as = Version)]
pub(super) struct VersionBody {
    /// The version of the program.
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// The version of this interface.
    #[schema(example = "v1")]
    api: &'static str,
}

/// Says that the server lives.
#[utoipa::path(get, path = "/health", tag = "server", security(()),
    responses((status = 200, description = "It lives.", body = HealthBody)))]
pub(super) async fn health() -> axum::Json<HealthBody> {
    axum::Json(HealthBody { status: "ok" })
}

/// Says whether sandboxes can be made now.
#[utoipa::path(get, path = "/ready", tag = "server", security(()),
    responses((status = 200, description = "They can.", body = HealthBody)))]
pub(super) async fn ready(State(shared): State<Shared>) -> Result<axum::Json<HealthBody>, Problem> {
    shared
        .keeper
        .ready()
        .await
        .map_err(|error| Problem::from(error).with_status(http::StatusCode::SERVICE_UNAVAILABLE))?;
    Ok(axum::Json(HealthBody { status: "ok" }))
}

/// Says which server this is.
#[utoipa::path(get, path = "/version", tag = "server", security(()),
    responses((status = 200, description = "This one.", body = VersionBody)))]
pub(super) async fn version() -> axum::Json<VersionBody> {
    axum::Json(VersionBody { version: env!("CARGO_PKG_VERSION"), api: "v1" })
}

/// Metrics for Prometheus. Needs the role admin, unless the operator opened them.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "The figures.", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(shared): State<Shared>, caller: Option<Auth>) -> Result<Response, Problem> {
    if !shared.config.open_metrics {
        let Some(Auth(caller)) = caller else { return Err(crate::guard::denied()) };
        shared.keeper.require(&caller, action::SERVER_METRICS)?;
    }
    let mut response = shared.keeper.prometheus().into_response();
    let kind = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "The document.", body = Object)))]
pub(super) async fn document() -> Response {
    let json = super::openapi::json();
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response()
}

/// Who the key's holder is, and what its sandboxes use.
#[utoipa::path(get, path = "/v1/me", tag = "keys",
    responses((status = 200, description = "The holder.", body = Me)))]
pub(super) async fn me(State(shared): State<Shared>, Auth(caller): Auth) -> Result<axum::Json<Me>, Problem> {
    Ok(axum::Json(shared.keeper.me(&caller)?))
}

/// The engines of the server.
#[derive(Serialize, ToSchema)]
#[schema(as = Engines)]
pub(super) struct EnginesBody {
    /// The default first.
    engines: Vec<EngineInfo>,
}

/// The engines that make sandboxes, and what each can do on this machine.
#[utoipa::path(get, path = "/v1/engines", tag = "server",
    responses((status = 200, description = "The engines.", body = EnginesBody)))]
pub(super) async fn engines(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<axum::Json<EnginesBody>, Problem> {
    Ok(axum::Json(EnginesBody { engines: shared.keeper.engines(&caller)? }))
}

/// What is to be done about what is left over.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = Collect, example = json!({"dry_run": true}))]
pub(super) struct CollectBody {
    /// Only say what would be removed. `false` if not given.
    dry_run: bool,
}

/// What was left over.
#[derive(Serialize, ToSchema)]
#[schema(as = Leftovers)]
pub(super) struct LeftoversBody {
    leftovers: Vec<Leftover>,
}

/// Removes what is left over of sandboxes, templates, volumes and answers, and is in nobody's use. Needs the role admin.
#[utoipa::path(post, path = "/v1/gc", tag = "server", request_body = CollectBody,
    responses((status = 200, description = "What is removed, or would be.", body = LeftoversBody)))]
pub(super) async fn collect(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<CollectBody>,
) -> Result<axum::Json<LeftoversBody>, Problem> {
    Ok(axum::Json(LeftoversBody { leftovers: shared.keeper.collect(&caller, body.dry_run).await? }))
}
