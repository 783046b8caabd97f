//! The API as an OpenAPI document, generated from the code; `docs/openapi.json` is a copy that a test compares.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::response::IntoResponse as _;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Content, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, PathItem, Ref, RefOr,
    Required, Response, ResponseBuilder, SecurityRequirement,
};
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::api::Shared;
use crate::problem::{Code, Problem, ProblemBody};

const DESCRIPTION: &str = "Sandboxes for untrusted code. Requests need a key, as \
    `Authorization: Bearer <key>` or as `X-API-Key: <key>`. An error is `application/problem+json` with a stable `code`. \
    Times are RFC 3339 in UTC; a span of time in a request is a number of seconds or a text such as `10m`; a size is a \
    number of bytes or a text such as `256m`.";

/// Returns the document without its routes.
pub(super) fn frame() -> OpenApi {
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build();
    let info = InfoBuilder::new()
        .title("Belljar")
        .version("1")
        .description(Some(DESCRIPTION))
        .license(Some(license))
        .build();
    OpenApiBuilder::new().info(info).build()
}

/// Returns the complete document.
#[must_use]
pub fn openapi() -> OpenApi {
    let mut document = super::documented_routes().into_openapi();
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API key or a sandbox's token."));
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer.build()));
    let header = ApiKeyValue::with_description("X-API-Key", "The key or token in a separate header.");
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(header)));
    let (name, schema) =
        (<ProblemBody as utoipa::ToSchema>::name(), <ProblemBody as utoipa::PartialSchema>::schema());
    components.schemas.insert(name.into_owned(), schema);
    document.security = Some(vec![
        SecurityRequirement::new("bearer", Vec::<String>::new()),
        SecurityRequirement::new("api_key", Vec::<String>::new()),
    ]);
    let schemas = components.schemas.clone();
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            // The operation `list` of the group `sandboxes` becomes `sandboxes_list`.
            let group = operation.tags.iter().flatten().next().cloned().unwrap_or_default();
            let name = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("{group}_{name}"));
            add_errors(path, operation);
            if let Some(RefOr::T(body)) = &mut operation.request_body
                && may_be_empty(body, &schemas)
            {
                body.required = Some(Required::False);
            }
        }
    }
    document
}

/// Returns the document as JSON, with the usual names of number formats: `uint32`, not `u-int32`.
#[must_use]
pub fn openapi_json() -> String {
    let text = openapi().to_pretty_json().unwrap_or_default();
    text.replace("\"format\": \"u-int", "\"format\": \"uint")
}

/// Returns the JSON document, generated once.
pub(super) fn json() -> &'static str {
    static JSON: OnceLock<String> = OnceLock::new();
    JSON.get_or_init(openapi_json)
}

/// Returns the pages at `/docs`.
pub(super) fn swagger() -> axum::Router<Shared> {
    let pages: axum::Router<Shared> = SwaggerUi::new("/docs").config(Config::from("/openapi.json")).into();
    pages.layer(axum::middleware::map_response(|response: axum::response::Response| async move {
        if response.status() == http::StatusCode::NOT_FOUND {
            return Problem::new(Code::NotFound, "page not found; see /docs/").into_response();
        }
        response
    }))
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.options,
        &mut item.head,
        &mut item.patch,
        &mut item.trace,
    ]
    .into_iter()
    .filter_map(Option::as_mut)
}

/// Reports whether the request is valid without a body: an empty body is no bytes, or a JSON object without keys.
fn may_be_empty(body: &RequestBody, schemas: &BTreeMap<String, RefOr<Schema>>) -> bool {
    let schema = |content: &RefOr<Content>| match content {
        RefOr::T(content) => content.schema.clone(),
        RefOr::Ref(_) => None,
    };
    body.content.iter().all(|(kind, content)| match (kind.as_str(), schema(content)) {
        ("application/octet-stream", _) => true,
        ("application/json", Some(RefOr::Ref(reference))) => {
            let name = reference.ref_location.rsplit('/').next().unwrap_or_default();
            matches!(schemas.get(name), Some(RefOr::T(Schema::Object(object)))
                if object.required.is_empty() && object.min_properties.is_none())
        }
        _ => false,
    })
}

/// Adds the possible errors to an operation, depending on its inputs.
fn add_errors(path: &str, operation: &mut Operation) {
    let is_open = operation.security.as_ref().is_some_and(|security| !security.is_empty());
    let mut statuses = vec![403, 500];
    if !is_open || path.starts_with("/v1/signed/") || path == "/v1/session/redeem" {
        statuses.extend([401, 429, 503]);
    }
    if path == "/ready" {
        statuses.push(503);
    }
    let parameters = operation.parameters.iter().flatten();
    let takes = |wanted: ParameterIn| {
        parameters.clone().any(|one| matches!(one, RefOr::T(one) if one.parameter_in == wanted))
    };
    if takes(ParameterIn::Query)
        || takes(ParameterIn::Path)
        || takes(ParameterIn::Header)
        || operation.request_body.is_some()
    {
        statuses.push(400);
    }
    if takes(ParameterIn::Path) {
        statuses.extend([404, 409, 410]);
    }
    let prefixes = ["/v1/sandboxes/{id}/", "/v1/volumes/{id}/", "/v1/signed/"];
    if prefixes.iter().any(|prefix| path.starts_with(prefix)) {
        statuses.extend([501, 502, 504]);
    }
    if path == "/v1/sandboxes/{id}" && operation.request_body.is_some() {
        statuses.push(501);
    }
    if operation.request_body.is_some() || path.ends_with("/pause") || path.ends_with("/verify") {
        statuses.extend([400, 408, 413, 415]);
    }
    if takes(ParameterIn::Header) {
        statuses.extend([404, 409, 416, 422]);
    }
    if path == "/v1/sandboxes" {
        statuses.extend([404, 409, 410, 422]);
    }
    if path == "/v1/network/check" {
        statuses.extend([404, 410]);
    }
    if path == "/v1/secrets" && operation.request_body.is_some() {
        statuses.push(409);
    }
    if path == "/v1/tools" && operation.request_body.is_some() {
        statuses.extend([404, 409]);
    }
    if path == "/v1/volumes" && operation.request_body.is_some() {
        statuses.extend([409, 501]);
    }
    if operation.responses.responses.contains_key("101") {
        statuses.push(426);
    }
    for status in statuses {
        let response = || RefOr::T(problem(status));
        operation.responses.responses.entry(status.to_string()).or_insert_with(response);
    }
}

/// Returns the response of this status: a problem with one of the codes that have it.
fn problem(status: u16) -> Response {
    let codes = Code::ALL.iter().filter(|code| code.status_number() == status);
    let names: Vec<_> = codes.map(|code| format!("`{}`", code.as_str())).collect();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new()
        .description(format!("A problem: {}.", names.join(", ")))
        .content("application/problem+json", content)
        .build()
}
