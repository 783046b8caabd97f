//! Build, export and import of templates.

use axum::body::Body;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{
    BuildInfo, BuildProgress, Caller, Exported, MAX_BUILD_FILE_BYTES, SandboxName, TemplateBuild,
};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use utoipa::{IntoParams, ToSchema};

use super::exec::accepts_events;
use super::types::{BuildBody, BuildEventBody, TemplateInfoBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query, RawBody};
use crate::guard::StreamSlot;
use crate::problem::Problem;
use crate::stream::{event, events, problem_event};

/// Maximum length of a request to build a template: its files in base64, and the rest.
const MAX_BODY_BYTES: usize = MAX_BUILD_FILE_BYTES / 3 * 4 + (2 << 20);

/// Builds a template. With `Accept: text/event-stream`, its steps and their output are streamed; the last event is
/// `template` or `error`. The build continues if the client disconnects.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", operation_id = "build_template",
    request_body = BuildBody,
    responses((status = 200, content(
        (TemplateInfoBody = "application/json"),
        (String = "text/event-stream", example = "event: step\ndata: {\"number\":1,\"total\":1,\"kind\":\"run\",\"summary\":\"true\",\"cached\":false}\n\n")),
        description = "The template.")))]
pub(super) async fn build(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    headers: HeaderMap,
    Json(body): Json<BuildBody, MAX_BODY_BYTES>,
) -> Result<Response, Problem> {
    let request = body.into_request()?;
    let slot = shared.streams.take(&caller)?;
    let building = shared.keeper.build_template(&caller, request).await?;
    respond(slot, caller, &headers, building).await
}

/// Returns the events of a build, if the request asks for such, or else its result.
pub(super) async fn respond(
    slot: StreamSlot,
    caller: Caller,
    headers: &HeaderMap,
    mut building: TemplateBuild,
) -> Result<Response, Problem> {
    if accepts_events(headers) {
        return Ok(events(slot, caller.request_id.clone(), follow(building, caller.request_id)));
    }
    let _slot = slot;
    while let Some(progress) = building.next().await {
        if let BuildProgress::Done(result) = progress {
            return match result.as_ref() {
                Ok(info) => Ok(axum::Json(TemplateInfoBody::from(info.clone())).into_response()),
                Err(error) => Err(error.into()),
            };
        }
    }
    Err(belljar_keeper::KeeperError::ShuttingDown.into())
}

/// Returns a build's events, the first of which has its id.
fn follow(
    mut building: TemplateBuild,
    request_id: String,
) -> impl futures::Stream<Item = Event> + Send + 'static {
    async_stream::stream! {
        yield event("build", &serde_json::json!({ "id": building.id() }));
        while let Some(progress) = building.next().await {
            yield match progress {
                BuildProgress::Queued { ahead } => event("queued", &serde_json::json!({ "ahead": ahead })),
                BuildProgress::Event(one) => {
                    let (name, data) = BuildEventBody::from_event(one);
                    event(name, &data)
                }
                BuildProgress::Done(result) => match result.as_ref() {
                    Ok(info) => event("template", &TemplateInfoBody::from(info.clone())),
                    Err(error) => problem_event(&error.into(), &request_id),
                },
            };
        }
    }
}

/// Builds of template files.
#[derive(Serialize, ToSchema)]
#[schema(as = Builds)]
pub(super) struct BuildsBody {
    builds: Vec<BuildInfo>,
}

/// Lists builds of template files: those that wait or run, and the last that have ended, the oldest first.
#[utoipa::path(get, path = "/v1/builds", tag = "templates", operation_id = "list_builds",
    responses((status = 200, description = "The builds.", body = BuildsBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<axum::Json<BuildsBody>, Problem> {
    Ok(axum::Json(BuildsBody { builds: shared.keeper.template_builds(&caller)? }))
}

/// Shows a build. With `Accept: text/event-stream`, follows it from its beginning, as the request that started it does.
#[utoipa::path(get, path = "/v1/builds/{id}", tag = "templates", operation_id = "get_build",
    params(("id" = String, Path, description = "The build's id.")),
    responses((status = 200, content(
        (BuildInfo = "application/json"),
        (String = "text/event-stream", example = "event: build\ndata: {\"id\":\"bld_00000000000000000000\"}\n\n")),
        description = "The build.")))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    headers: HeaderMap,
    Id(id): Id,
) -> Result<Response, Problem> {
    if !accepts_events(&headers) {
        return Ok(axum::Json(shared.keeper.template_build(&caller, &id)?).into_response());
    }
    let slot = shared.streams.take(&caller)?;
    let building = shared.keeper.follow_build(&caller, &id)?;
    Ok(events(slot, caller.request_id.clone(), follow(building, caller.request_id)))
}

/// Cancels a build, and shows it. One that has ended stays as it is.
#[utoipa::path(delete, path = "/v1/builds/{id}", tag = "templates", operation_id = "cancel_build",
    params(("id" = String, Path, description = "The build's id.")),
    responses((status = 200, description = "The build.", body = BuildInfo)))]
pub(super) async fn cancel(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<BuildInfo>, Problem> {
    Ok(axum::Json(shared.keeper.cancel_build(&caller, &id).await?))
}

/// Exports a built template as one file.
#[utoipa::path(get, path = "/v1/templates/{id}/export", tag = "templates", operation_id = "export_template",
    params(("id" = String, Path, description = "The template's id or name.")),
    responses((status = 200, description = "The file.", body = Vec<u8>, content_type = "application/octet-stream")))]
pub(super) async fn export(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let Exported { head, layers, name } = shared.keeper.export_template(&caller, &id).await?;
    let bytes = layers.iter().fold(head.len() as u64, |sum, (_, bytes)| sum + bytes);
    let begin = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(head))]);
    let files = layers.into_iter().map(|(file, length)| {
        ReaderStream::with_capacity(tokio::fs::File::from_std(file).take(length), 256 << 10)
    });
    let all = begin.chain(futures::stream::iter(files).flatten());
    Ok(attachment(Body::from_stream(slot.break_off(all)), bytes, &format!("{name}.belljar")))
}

/// Returns a file of so many bytes as a response.
pub(super) fn attachment(body: Body, bytes: u64, name: &str) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    response
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportQuery {
    /// The template's name, if not the one in the file. A built template of that name is replaced.
    name: Option<String>,
}

/// Imports a template from an exported file. Its files are unpacked in a sandbox and packed anew there.
#[utoipa::path(post, path = "/v1/templates/import", tag = "templates", operation_id = "import_template",
    params(ImportQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The file.", example = json!("belljar-template 1\n")),
    responses((status = 201, description = "The template.", body = TemplateInfoBody)))]
pub(super) async fn import(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<ImportQuery>,
    body: RawBody,
) -> Result<(StatusCode, axum::Json<TemplateInfoBody>), Problem> {
    let name = query.name.map(|name| name.parse::<SandboxName>()).transpose()?;
    let _slot = shared.streams.take(&caller)?;
    let info = shared.keeper.import_template(&caller, name, body.reader()).await?;
    Ok((StatusCode::CREATED, axum::Json(info.into())))
}
