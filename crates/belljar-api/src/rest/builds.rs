//! Build, export and import of templates.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{BuildProgress, Exported, SandboxName};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

use super::exec::accepts_events;
use super::types::{BuildBody, BuildEventBody, TemplateInfoBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query, RawBody};
use crate::problem::Problem;
use crate::stream::{event, events, problem_event};

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
    Json(body): Json<BuildBody>,
) -> Result<Response, Problem> {
    let request = body.into_request()?;
    let slot = shared.streams.take(&caller.key)?;
    let mut building = shared.keeper.build_template(&caller, request).await?;
    if !accepts_events(&headers) {
        let _slot = slot;
        while let Some(progress) = building.next().await {
            if let BuildProgress::Done(result) = progress {
                let info = (*result)?;
                return Ok(axum::Json(TemplateInfoBody::from(info)).into_response());
            }
        }
        return Err(belljar_keeper::KeeperError::ShuttingDown.into());
    }
    let request_id = caller.request_id.clone();
    let id = request_id.clone();
    let stream = async_stream::stream! {
        while let Some(progress) = building.next().await {
            yield match progress {
                BuildProgress::Event(one) => {
                    let (name, data) = BuildEventBody::from_event(one);
                    event(name, &data)
                }
                BuildProgress::Done(result) => match *result {
                    Ok(info) => event("template", &TemplateInfoBody::from(info)),
                    Err(error) => problem_event(&error.into(), &id),
                },
            };
        }
    };
    Ok(events(slot, request_id, stream))
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
    let slot = shared.streams.take(&caller.key)?;
    let Exported { head, layer, name } = shared.keeper.export_template(&caller, &id).await?;
    let bytes = head.len() as u64 + layer.as_ref().map_or(0, |(_, bytes)| *bytes);
    let begin = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(head))]);
    let body = match layer {
        None => Body::from_stream(begin),
        Some((file, length)) => {
            let rest = ReaderStream::with_capacity(tokio::fs::File::from_std(file).take(length), 256 << 10);
            let rest = rest.inspect(move |_| {
                let _ = &slot;
            });
            Body::from_stream(begin.chain(rest))
        }
    };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}.belljar\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
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
    let _slot = shared.streams.take(&caller.key)?;
    let info = shared.keeper.import_template(&caller, name, body.reader()).await?;
    Ok((StatusCode::CREATED, axum::Json(info.into())))
}
