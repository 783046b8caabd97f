//! Volumes, and their files without a sandbox.

use axum::extract::State;
use axum::response::Response;
use belljar_keeper::VolumeInfo;
use http::{HeaderMap, Method, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::content::{ContentQuery, UploadQuery, receive_file, send_file};
use super::files::{ChangeModeBody, FilesBody, ListQuery, MakeDirBody, MoveBody, RemoveQuery, StatQuery};
use super::types::{FileEntry, NewVolumeBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query, RawBody};
use crate::problem::Problem;

/// Creates a volume: files that outlive sandboxes and can be mounted in several of them at once. Its size is reserved on
/// the server's disk.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = NewVolumeBody,
    responses((status = 201, description = "The volume.", body = VolumeInfo)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<NewVolumeBody>,
) -> Result<(StatusCode, axum::Json<VolumeInfo>), Problem> {
    let volume = shared.keeper.create_volume(&caller, body.into_request()).await?;
    Ok((StatusCode::CREATED, axum::Json(volume)))
}

/// A list of volumes.
#[derive(Serialize, ToSchema)]
#[schema(as = Volumes)]
pub(super) struct VolumesBody {
    /// Oldest first.
    volumes: Vec<VolumeInfo>,
}

/// Lists the volumes of the key's tenant, or all for keys with the role admin.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, description = "The volumes.", body = VolumesBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<axum::Json<VolumesBody>, Problem> {
    Ok(axum::Json(VolumesBody { volumes: shared.keeper.volumes(&caller).await? }))
}

/// Shows a volume.
#[utoipa::path(get, path = "/v1/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The volume's id or name.")),
    responses((status = 200, description = "The volume.", body = VolumeInfo)))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<VolumeInfo>, Problem> {
    Ok(axum::Json(shared.keeper.volume(&caller, &id).await?))
}

/// Removes a volume and its files. A volume that a sandbox mounts is not removed.
#[utoipa::path(delete, path = "/v1/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The volume's id or name.")),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.remove_volume(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists a directory of a volume.
#[utoipa::path(get, path = "/v1/volumes/{id}/files", tag = "volumes", operation_id = "list_files",
    params(("id" = String, Path, description = "The volume's id or name."), ListQuery),
    responses((status = 200, description = "A page of its entries.", body = FilesBody)))]
pub(super) async fn list_files(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<FilesBody>, Problem> {
    let request = query.into_request()?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    Ok(axum::Json(shared.keeper.perform_in(&caller, &entered, request).await?.into()))
}

/// Shows a file or directory of a volume.
#[utoipa::path(get, path = "/v1/volumes/{id}/files/stat", tag = "volumes",
    params(("id" = String, Path, description = "The volume's id or name."), StatQuery),
    responses((status = 200, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn stat(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<StatQuery>,
) -> Result<axum::Json<FileEntry>, Problem> {
    let request = query.into_request()?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    Ok(axum::Json(shared.keeper.perform_in(&caller, &entered, request).await?.into()))
}

/// Reads a file of a volume. Supports `Range`, `If-Range`, `If-None-Match`, `If-Modified-Since` and `HEAD`.
#[utoipa::path(get, path = "/v1/volumes/{id}/files/content", tag = "volumes",
    params(("id" = String, Path, description = "The volume's id or name."), ContentQuery,
        ("Range" = Option<String>, Header, description = "Requested bytes, such as `bytes=0-99`.")),
    responses(
        (status = 200, description = "The file.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part of the file.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "Not modified.")))]
pub(super) async fn download(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<ContentQuery>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = query.into_path()?;
    let slot = shared.streams.take(&caller)?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    send_file(&shared, &caller, slot, &entered, path, &method, &headers).await
}

/// Writes a file of a volume, which appears when the upload is complete. With `Content-Range: bytes FIRST-LAST/*` it is
/// written in place.
#[utoipa::path(put, path = "/v1/volumes/{id}/files/content", tag = "volumes",
    params(("id" = String, Path, description = "The volume's id or name."), UploadQuery,
        ("Content-Range" = Option<String>, Header, description = "Where to write in the file, such as `bytes 100-199/*`.")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The bytes.", example = json!("hello\n")),
    responses((status = 200, description = "The written file.", body = FileEntry)))]
pub(super) async fn upload(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<UploadQuery>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<axum::Json<FileEntry>, Problem> {
    let open = query.into_open()?;
    let slot = shared.streams.take(&caller)?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    receive_file(&shared, &caller, slot, &entered, open, &headers, body).await
}

/// Creates a directory in a volume.
#[utoipa::path(post, path = "/v1/volumes/{id}/files/mkdir", tag = "volumes", request_body = MakeDirBody,
    params(("id" = String, Path, description = "The volume's id or name.")),
    responses((status = 201, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn make_dir(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<MakeDirBody>,
) -> Result<(StatusCode, axum::Json<FileEntry>), Problem> {
    let request = body.into_request()?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    let entry = shared.keeper.perform_in(&caller, &entered, request).await?;
    Ok((StatusCode::CREATED, axum::Json(entry.into())))
}

/// Changes the permissions of a file or directory of a volume.
#[utoipa::path(post, path = "/v1/volumes/{id}/files/chmod", tag = "volumes", operation_id = "chmod", request_body = ChangeModeBody,
    params(("id" = String, Path, description = "The volume's id or name.")),
    responses((status = 200, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn change_mode(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ChangeModeBody>,
) -> Result<axum::Json<FileEntry>, Problem> {
    let request = body.into_request()?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    Ok(axum::Json(shared.keeper.perform_in(&caller, &entered, request).await?.into()))
}

/// Moves a file or directory within a volume.
#[utoipa::path(post, path = "/v1/volumes/{id}/files/move", tag = "volumes", request_body = MoveBody,
    params(("id" = String, Path, description = "The volume's id or name.")),
    responses((status = 200, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn rename(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<MoveBody>,
) -> Result<axum::Json<FileEntry>, Problem> {
    let request = body.into_request()?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    Ok(axum::Json(shared.keeper.perform_in(&caller, &entered, request).await?.into()))
}

/// Removes a file or directory of a volume.
#[utoipa::path(delete, path = "/v1/volumes/{id}/files", tag = "volumes", operation_id = "remove_files",
    params(("id" = String, Path, description = "The volume's id or name."), RemoveQuery),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn remove_files(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    let request = query.into_request()?;
    let entered = shared.keeper.enter_volume(&caller, &id).await?;
    shared.keeper.perform_in(&caller, &entered, request).await?;
    Ok(StatusCode::NO_CONTENT)
}
