//! The server itself.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{EngineInfo, Leftover, Me, action};
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::Shared;
use crate::extract::{Auth, Json, Query};
use crate::problem::Problem;

/// Liveness of the server.
#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
pub(super) struct HealthBody {
    /// Always `ok`.
    #[schema(example = "ok")]
    status: &'static str,
}

/// Version of the server.
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

/// Reports that the server is alive.
#[utoipa::path(get, path = "/health", tag = "server", security(()),
    responses((status = 200, description = "The server is alive.", body = HealthBody)))]
pub(super) async fn health() -> axum::Json<HealthBody> {
    axum::Json(HealthBody { status: "ok" })
}

/// Reports whether sandboxes can be created now.
#[utoipa::path(get, path = "/ready", tag = "server", security(()),
    responses((status = 200, description = "Sandboxes can be created.", body = HealthBody)))]
pub(super) async fn ready(State(shared): State<Shared>) -> Result<axum::Json<HealthBody>, Problem> {
    shared
        .keeper
        .ready()
        .await
        .map_err(|error| Problem::from(error).with_status(http::StatusCode::SERVICE_UNAVAILABLE))?;
    Ok(axum::Json(HealthBody { status: "ok" }))
}

/// Returns a page that tells people in a browser what they have found.
pub(super) async fn home(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    if !crate::guard::wants_page(&headers) {
        return Problem::no_endpoint().into_response();
    }
    const POLICY: &str =
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'";
    let docs = if shared.config.open_docs {
        "<p>The interface is described at <a href=\"/docs\">/docs</a>, and for programs at \
         <a href=\"/openapi.json\">/openapi.json</a>.</p>"
    } else {
        ""
    };
    let page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Belljar</title>\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem;color-scheme:light dark}}</style>\
         <h1>Belljar {}</h1><p>This server runs sandboxes for programs. Requests need a key, which \
         <code>belljar key create</code> makes on its machine.</p>\
         <p>For people, there is a console at <a href=\"/console\">/console</a>.</p>{docs}</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, page).into_response()
}

/// Returns the version of the server.
#[utoipa::path(get, path = "/version", tag = "server", security(()),
    responses((status = 200, description = "The version.", body = VersionBody)))]
pub(super) async fn version() -> axum::Json<VersionBody> {
    axum::Json(VersionBody { version: env!("CARGO_PKG_VERSION"), api: "v1" })
}

/// Returns metrics for Prometheus. Needs the role admin, unless the operator opened them.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "The metrics.", body = String, content_type = "text/plain")))]
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

/// Returns this document.
#[utoipa::path(get, path = "/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "The document.", body = Object)))]
pub(super) async fn document() -> Response {
    let json = super::openapi::json();
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response()
}

/// Returns the key's holder, and the resource usage of its sandboxes.
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

/// Lists the engines, with the capabilities of each on this machine.
#[utoipa::path(get, path = "/v1/engines", tag = "server",
    responses((status = 200, description = "The engines.", body = EnginesBody)))]
pub(super) async fn engines(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<axum::Json<EnginesBody>, Problem> {
    Ok(axum::Json(EnginesBody { engines: shared.keeper.engines(&caller)? }))
}

/// A request to remove leftovers.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = Collect, example = json!({"dry_run": true}))]
pub(super) struct CollectBody {
    /// Whether to report only what would be removed. `false` if not given.
    pub(super) dry_run: bool,
}

/// The query of a request whose settings are in its body: none, so that none is passed over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

/// Leftovers.
#[derive(Serialize, ToSchema)]
#[schema(as = Leftovers)]
pub(super) struct LeftoversBody {
    pub(super) leftovers: Vec<Leftover>,
}

/// Removes unused leftovers of sandboxes, templates, volumes and stored responses. Needs the role admin.
#[utoipa::path(post, path = "/v1/gc", tag = "server", request_body = CollectBody,
    responses((status = 200, description = "The leftovers that were removed, or would be.", body = LeftoversBody)))]
pub(super) async fn collect(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<CollectBody>,
) -> Result<axum::Json<LeftoversBody>, Problem> {
    Ok(axum::Json(LeftoversBody { leftovers: shared.keeper.collect(&caller, body.dry_run).await? }))
}
