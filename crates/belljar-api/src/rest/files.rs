//! Files and directories.

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use belljar_engine::{GuestError, v1};
use belljar_keeper::Entered;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sandboxes::page;
use super::types::{FileEntry, Mode, check_path, path_of};
use super::{as_path, guest_problem, path_detail, recorded};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query};
use crate::problem::Problem;
use crate::refusal::About;

/// The most entries of one page, which is also how many there are if nothing is said.
const MAX_ENTRIES: u32 = 10_000;

/// The deepest listing.
const MAX_DEPTH: u32 = 64;

async fn answered<T>(entered: &Entered, answer: Result<T, GuestError>) -> Result<T, Problem> {
    match answer {
        Ok(answer) => Ok(answer),
        Err(error) => Err(guest_problem(entered, error, About::File).await),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatQuery {
    /// The file: absolute, or below the home directory.
    path: Option<String>,
    /// The same in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Whether to follow a symbolic link in the last place. `true` if not given.
    follow: Option<bool>,
}

/// Shows a file or directory.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), StatQuery),
    responses((status = 200, description = "What it is.", body = FileEntry)))]
pub(super) async fn stat(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<StatQuery>,
) -> Result<axum::Json<FileEntry>, Problem> {
    let path = path_of(query.path, query.path_base64.as_deref(), None)?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    let entry = entered.guest().stat(as_path(&path), query.follow.unwrap_or(true)).await;
    Ok(axum::Json(answered(&entered, entry).await?.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// The directory. The home directory, if not given.
    path: Option<String>,
    /// The same in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Levels below the directory: 1 is its own entries.
    #[param(minimum = 1, maximum = 64)]
    depth: Option<u32>,
    /// Entries of the page.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// What is in a directory.
#[derive(Serialize, ToSchema)]
#[schema(as = Files)]
pub(super) struct FilesBody {
    /// In the order of their paths' bytes; paths are relative to the directory.
    entries: Vec<FileEntry>,
    /// What `cursor` is to be for the next page; nothing after the last.
    next_cursor: Option<String>,
}

/// Lists a directory.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), ListQuery),
    responses((status = 200, description = "A page of its entries.", body = FilesBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<FilesBody>, Problem> {
    let path = path_of(query.path, query.path_base64.as_deref(), Some("."))?;
    let depth = page("depth", query.depth, 1, MAX_DEPTH)?;
    let limit = page("limit", query.limit, MAX_ENTRIES, MAX_ENTRIES)?;
    let after = match query.cursor {
        None => Bytes::new(),
        Some(cursor) => {
            let bytes = URL_SAFE_NO_PAD.decode(cursor);
            bytes.map_err(|_| Problem::field("cursor", "invalid cursor; begin without one"))?.into()
        }
    };
    let entered = shared.keeper.enter(&caller, &id).await?;
    let listed = entered.guest().list(as_path(&path), depth, limit, after).await;
    let (entries, next) = answered(&entered, listed).await?;
    let entries = entries.into_iter().map(Into::into).collect();
    Ok(axum::Json(FilesBody { entries, next_cursor: next.map(|next| URL_SAFE_NO_PAD.encode(next)) }))
}

/// A directory to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MakeDirectory, example = json!({"path": "out/plots", "mode": "0750"}))]
pub(super) struct MakeDirBody {
    /// The directory: absolute, or below the home directory.
    path: String,
    /// Whether missing directories above it are made, and it may be there already. `true` if not given.
    #[serde(default)]
    parents: Option<bool>,
    /// Permission bits in octal. `0755` if not given.
    #[serde(default)]
    mode: Option<Mode>,
}

/// Makes a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", request_body = MakeDirBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "It is there.", body = FileEntry)))]
pub(super) async fn make_dir(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<MakeDirBody>,
) -> Result<(StatusCode, axum::Json<FileEntry>), Problem> {
    check_path("path", body.path.as_bytes())?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    let path = as_path(body.path.as_bytes());
    let mut made = entered.guest().make_dir(path, body.parents.unwrap_or(true)).await;
    if let (Ok(_), Some(mode)) = (&made, body.mode) {
        made = entered.guest().set_mode(set_mode(&body.path, mode, false)).await;
    }
    let made = answered(&entered, made).await;
    let details = vec![path_detail(body.path.as_bytes())];
    let entry = recorded(&shared, &caller, entered.id(), "file.mkdir", details, made).await?;
    Ok((StatusCode::CREATED, axum::Json(entry.into())))
}

/// A file to be given other permissions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangeMode, example = json!({"path": "run.sh", "mode": "0755"}))]
pub(super) struct ChangeModeBody {
    /// The file: absolute, or below the home directory.
    path: String,
    /// Permission bits in octal.
    mode: Mode,
}

fn set_mode(path: &str, mode: Mode, follow: bool) -> v1::SetModeRequest {
    let path = Bytes::copy_from_slice(path.as_bytes());
    v1::SetModeRequest { path, mode: Some(mode.0), follow, ..Default::default() }
}

/// Changes the permissions of a file or directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/chmod", tag = "files", operation_id = "chmod", request_body = ChangeModeBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "It has them.", body = FileEntry)))]
pub(super) async fn change_mode(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ChangeModeBody>,
) -> Result<axum::Json<FileEntry>, Problem> {
    check_path("path", body.path.as_bytes())?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    let changed = entered.guest().set_mode(set_mode(&body.path, body.mode, true)).await;
    let changed = answered(&entered, changed).await;
    let details = vec![path_detail(body.path.as_bytes()), ("mode", body.mode.to_string())];
    let entry = recorded(&shared, &caller, entered.id(), "file.chmod", details, changed).await?;
    Ok(axum::Json(entry.into()))
}

/// A file to move.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Move, example = json!({"from": "a.txt", "to": "b.txt"}))]
pub(super) struct MoveBody {
    /// Where it is.
    from: String,
    /// Where it shall be.
    to: String,
    /// Whether what is there may be replaced. `false` if not given.
    #[serde(default)]
    overwrite: Option<bool>,
}

/// Moves a file or directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/move", tag = "files", request_body = MoveBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "It is there.", body = FileEntry)))]
pub(super) async fn rename(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<MoveBody>,
) -> Result<axum::Json<FileEntry>, Problem> {
    check_path("from", body.from.as_bytes())?;
    check_path("to", body.to.as_bytes())?;
    let (from, to) = (as_path(body.from.as_bytes()), as_path(body.to.as_bytes()));
    let entered = shared.keeper.enter(&caller, &id).await?;
    let moved = entered.guest().rename(from, to, body.overwrite.unwrap_or(false)).await;
    let moved = answered(&entered, moved).await;
    let details = vec![path_detail(body.from.as_bytes()), ("to", body.to.escape_default().to_string())];
    let entry = recorded(&shared, &caller, entered.id(), "file.move", details, moved).await?;
    Ok(axum::Json(entry.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveQuery {
    /// The file or directory: absolute, or below the home directory.
    path: Option<String>,
    /// The same in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Whether a directory goes with all that is in it. `false` if not given.
    recursive: Option<bool>,
}

/// Removes a file or directory.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), RemoveQuery),
    responses((status = 204, description = "It is gone.")))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    let path = path_of(query.path, query.path_base64.as_deref(), None)?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    let removed = entered.guest().remove(as_path(&path), query.recursive.unwrap_or(false)).await;
    let removed = answered(&entered, removed).await;
    recorded(&shared, &caller, entered.id(), "file.remove", vec![path_detail(&path)], removed).await?;
    Ok(StatusCode::NO_CONTENT)
}
