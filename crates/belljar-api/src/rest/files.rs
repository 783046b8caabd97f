//! Files and directories.

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use belljar_engine::v1;
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sandboxes::check_limit;
use super::types::{FileEntry, Mode, check_path, parse_path};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query};
use crate::problem::Problem;

/// Maximum and default number of entries on one page.
const MAX_ENTRIES: u32 = 10_000;

/// Maximum depth of a listing.
const MAX_DEPTH: u32 = 64;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatQuery {
    /// The file: absolute, or below the home directory; in a volume below its root.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Whether to follow a symbolic link at the end of the path. `true` if not given.
    follow: Option<bool>,
}

impl StatQuery {
    pub(super) fn into_request(self) -> Result<v1::StatRequest, Problem> {
        let path = parse_path(self.path, self.path_base64.as_deref(), None)?;
        Ok(v1::StatRequest { path, follow: self.follow.unwrap_or(true), ..Default::default() })
    }
}

/// Shows a file or directory.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), StatQuery),
    responses((status = 200, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn stat(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<StatQuery>,
) -> Result<axum::Json<FileEntry>, Problem> {
    Ok(axum::Json(shared.keeper.perform(&caller, &id, query.into_request()?).await?.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// The directory. The home directory or the volume's root, if not given.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Levels below the directory: 1 is its own entries.
    #[param(minimum = 1, maximum = 64)]
    depth: Option<u32>,
    /// Entries of the page.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
    /// Cursor of the previous page.
    cursor: Option<String>,
}

impl ListQuery {
    pub(super) fn into_request(self) -> Result<v1::ListRequest, Problem> {
        let path = parse_path(self.path, self.path_base64.as_deref(), Some("."))?;
        let depth = check_limit("depth", self.depth, 1, MAX_DEPTH)?;
        let limit = check_limit("limit", self.limit, MAX_ENTRIES, MAX_ENTRIES)?;
        let after = match self.cursor {
            None => Bytes::new(),
            Some(cursor) => {
                let bytes = URL_SAFE_NO_PAD.decode(cursor);
                bytes.map_err(|_| Problem::field("cursor", "invalid cursor; begin without one"))?.into()
            }
        };
        Ok(v1::ListRequest { path, depth, limit, after, ..Default::default() })
    }
}

/// Content of a directory.
#[derive(Serialize, ToSchema)]
#[schema(as = Files)]
pub(super) struct FilesBody {
    /// In the order of their paths' bytes; paths are relative to the directory.
    entries: Vec<FileEntry>,
    /// Value of `cursor` for the next page; none on the last one.
    next_cursor: Option<String>,
}

impl From<v1::ListResponse> for FilesBody {
    fn from(v1::ListResponse { entries, next, .. }: v1::ListResponse) -> Self {
        Self {
            entries: entries.into_iter().map(Into::into).collect(),
            next_cursor: (!next.is_empty()).then(|| URL_SAFE_NO_PAD.encode(next)),
        }
    }
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
    Ok(axum::Json(shared.keeper.perform(&caller, &id, query.into_request()?).await?.into()))
}

/// A directory to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MakeDirectory, example = json!({"path": "out/plots", "mode": "0750"}))]
pub(super) struct MakeDirBody {
    /// The directory: absolute, or below the home directory; in a volume below its root.
    path: String,
    /// Whether missing parent directories are created, and an existing directory is accepted. `true` if not given.
    #[serde(default)]
    parents: Option<bool>,
    /// Permission bits in octal. `0755` if not given.
    #[serde(default)]
    mode: Option<Mode>,
}

impl MakeDirBody {
    pub(super) fn into_request(self) -> Result<v1::MakeDirRequest, Problem> {
        check_path("path", self.path.as_bytes())?;
        Ok(v1::MakeDirRequest {
            path: self.path.into(),
            parents: self.parents.unwrap_or(true),
            mode: self.mode.map_or(0, |mode| mode.0),
            ..Default::default()
        })
    }
}

/// Creates a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", request_body = MakeDirBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn make_dir(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<MakeDirBody>,
) -> Result<(StatusCode, axum::Json<FileEntry>), Problem> {
    let entry = shared.keeper.perform(&caller, &id, body.into_request()?).await?;
    Ok((StatusCode::CREATED, axum::Json(entry.into())))
}

/// A change of a file's permissions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangeMode, example = json!({"path": "run.sh", "mode": "0755"}))]
pub(super) struct ChangeModeBody {
    /// The file: absolute, or below the home directory; in a volume below its root.
    path: String,
    /// Permission bits in octal.
    mode: Mode,
}

impl ChangeModeBody {
    pub(super) fn into_request(self) -> Result<v1::SetModeRequest, Problem> {
        check_path("path", self.path.as_bytes())?;
        let (path, mode) = (self.path.into(), Some(self.mode.0));
        Ok(v1::SetModeRequest { path, mode, follow: true, ..Default::default() })
    }
}

/// Changes the permissions of a file or directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/chmod", tag = "files", operation_id = "chmod", request_body = ChangeModeBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn change_mode(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ChangeModeBody>,
) -> Result<axum::Json<FileEntry>, Problem> {
    let entry = shared.keeper.perform(&caller, &id, body.into_request()?).await?;
    Ok(axum::Json(entry.into()))
}

/// A file to move.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Move, example = json!({"from": "a.txt", "to": "b.txt"}))]
pub(super) struct MoveBody {
    /// Current path.
    from: String,
    /// New path.
    to: String,
    /// Whether an existing file may be replaced. `false` if not given.
    #[serde(default)]
    overwrite: Option<bool>,
}

impl MoveBody {
    pub(super) fn into_request(self) -> Result<v1::MoveRequest, Problem> {
        check_path("from", self.from.as_bytes())?;
        check_path("to", self.to.as_bytes())?;
        Ok(v1::MoveRequest {
            from: self.from.into(),
            to: self.to.into(),
            overwrite: self.overwrite.unwrap_or(false),
            ..Default::default()
        })
    }
}

/// Moves a file or directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/move", tag = "files", request_body = MoveBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The file or directory.", body = FileEntry)))]
pub(super) async fn rename(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<MoveBody>,
) -> Result<axum::Json<FileEntry>, Problem> {
    let entry = shared.keeper.perform(&caller, &id, body.into_request()?).await?;
    Ok(axum::Json(entry.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveQuery {
    /// The file or directory: absolute, or below the home directory; in a volume below its root.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Whether a directory is removed with everything in it. `false` if not given.
    recursive: Option<bool>,
}

impl RemoveQuery {
    pub(super) fn into_request(self) -> Result<v1::RemoveRequest, Problem> {
        let path = parse_path(self.path, self.path_base64.as_deref(), None)?;
        Ok(v1::RemoveRequest { path, recursive: self.recursive.unwrap_or(false), ..Default::default() })
    }
}

/// Removes a file or directory.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), RemoveQuery),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    shared.keeper.perform(&caller, &id, query.into_request()?).await?;
    Ok(StatusCode::NO_CONTENT)
}
