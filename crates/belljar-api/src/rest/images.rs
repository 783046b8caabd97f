//! Images: import, what is left over of them, and accounts at registries.

use std::fmt;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{ExportedImage, ImageExport, RegistryLogin, SecretValue};
use belljar_model::{ImageReference, ImageReferenceError};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use utoipa::{IntoParams, ToSchema};

use super::builds;
use super::server::{CollectBody, LeftoversBody, NoQuery};
use super::types::TemplateInfoBody;
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query, RawBody, Registry};
use crate::problem::Problem;

/// Size of the pieces in which a file is sent, in bytes.
const PIECE_BYTES: usize = 256 << 10;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportQuery {
    /// The image's name, such as `app:1.0`, if not the one in the file. Of a file with several images, the one that is imported. An image
    /// of that name is replaced.
    name: Option<String>,
}

/// Imports an image from a file: a tar of `docker save`, or of an OCI image layout, which may be compressed with gzip. Its layers are
/// unpacked in a sandbox. With `Accept: text/event-stream`, this is a stream of events, as when a template is built. Needs the role admin.
#[utoipa::path(post, path = "/v1/images/import", tag = "images", operation_id = "import_image",
    params(ImportQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The file.", example = json!("a tar")),
    responses((status = 200, content(
        (TemplateInfoBody = "application/json"),
        (String = "text/event-stream", example = "event: build\ndata: {\"id\":\"bld_00000000000000000000\"}\n\n")),
        description = "The template that is the image.")))]
pub(super) async fn import(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<ImportQuery>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, Problem> {
    let parse = |text: String| text.parse::<ImageReference>();
    let name = query.name.map(parse).transpose();
    let name = name.map_err(|error: ImageReferenceError| Problem::field("name", error.to_string()))?;
    let slot = shared.streams.take(&caller)?;
    let length = body.length;
    let building = shared.keeper.import_image(&caller, name, length, body.reader()).await?;
    builds::respond(slot, caller, &headers, building).await
}

/// Exports a built template with a tree of its own as an image: a tar of an OCI image layout, which `docker load` reads too.
#[utoipa::path(get, path = "/v1/templates/{id}/image", tag = "images", operation_id = "export_image",
    params(("id" = String, Path, description = "The template's id or name.")),
    responses((status = 200, description = "The file.", body = Vec<u8>, content_type = "application/octet-stream")))]
pub(super) async fn export(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let ExportedImage { name, image, place } = shared.keeper.export_image(&caller, &id).await?;
    let ImageExport { head, layer, layer_bytes, tail } = image;
    let length = head.len() as u64 + layer_bytes + tail.len() as u64;
    let part = |bytes: Vec<u8>| futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(bytes))]);
    let layer = ReaderStream::with_capacity(tokio::fs::File::from_std(layer).take(layer_bytes), PIECE_BYTES);
    let whole = part(head).chain(layer).chain(part(tail));
    // The file counts until it is read to its end, or its reader is gone.
    let whole = whole.inspect(move |_| {
        let _ = &place;
    });
    Ok(builds::attachment(Body::from_stream(slot.break_off(whole)), length, &format!("{name}.tar")))
}

/// Removes what no sandbox, template or tag needs of images: layers, also those that only cached steps of builds have, and what is left of
/// pulls that failed. Needs the role admin.
#[utoipa::path(post, path = "/v1/images/gc", tag = "images", operation_id = "collect_images", request_body = CollectBody,
    responses((status = 200, description = "What was removed, or would be.", body = LeftoversBody)))]
pub(super) async fn collect(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<CollectBody>,
) -> Result<axum::Json<LeftoversBody>, Problem> {
    Ok(axum::Json(LeftoversBody { leftovers: shared.keeper.collect_images(&caller, body.dry_run).await? }))
}

/// An account at a registry.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RegistryAccount, example = json!({"user": "bob", "password": "a token"}))]
pub(super) struct AccountBody {
    /// Name of the account.
    user: String,
    /// Its password, or a token in place of one. No response contains it.
    password: String,
}

impl fmt::Debug for AccountBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an account {:?}", self.user)
    }
}

/// Accounts at registries.
#[derive(Serialize, ToSchema)]
#[schema(as = RegistryLogins)]
pub(super) struct LoginsBody {
    registries: Vec<RegistryLogin>,
}

/// Lists the tenant's accounts at registries, without their passwords. Needs the role admin.
#[utoipa::path(get, path = "/v1/registries", tag = "images", operation_id = "list_registries",
    responses((status = 200, description = "The accounts.", body = LoginsBody)))]
pub(super) async fn logins(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<axum::Json<LoginsBody>, Problem> {
    Ok(axum::Json(LoginsBody { registries: shared.keeper.logins(&caller).await? }))
}

/// Stores the account with which images of a registry are pulled, once the registry has accepted it. Needs the role admin.
#[utoipa::path(put, path = "/v1/registries/{registry}", tag = "images", operation_id = "log_in", request_body = AccountBody,
    params(("registry" = String, Path, description = "The registry: a host, with a port if it has one, such as `ghcr.io`.")),
    responses((status = 200, description = "The account, without its password.", body = RegistryLogin)))]
pub(super) async fn log_in(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Registry(registry): Registry,
    Json(body): Json<AccountBody>,
) -> Result<axum::Json<RegistryLogin>, Problem> {
    let AccountBody { user, password } = body;
    Ok(axum::Json(shared.keeper.log_in(&caller, &registry, user, SecretValue(password)).await?))
}

/// Removes the tenant's account at a registry. Needs the role admin.
#[utoipa::path(delete, path = "/v1/registries/{registry}", tag = "images", operation_id = "log_out",
    params(("registry" = String, Path, description = "The registry.")),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn log_out(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Registry(registry): Registry,
) -> Result<StatusCode, Problem> {
    shared.keeper.log_out(&caller, &registry).await?;
    Ok(StatusCode::NO_CONTENT)
}
