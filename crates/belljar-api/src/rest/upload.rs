//! Upload of several files in one request.

use axum::extract::State;
use belljar_engine::v1;
use belljar_keeper::operation::Write;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::types::{FileEntry, parse_path};
use crate::api::Shared;
use crate::extract::{Auth, Form, Id, Query, RawBody};
use crate::problem::{Code, Problem};

/// Maximum number of files in one request.
const MAX_FILES: usize = 1000;

/// Maximum length of a file's name, in bytes.
const MAX_NAME_BYTES: usize = 1024;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UploadQuery {
    /// The directory for the files. The home directory, if not given.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
}

/// A form with files.
#[derive(ToSchema)]
#[schema(as = UploadForm)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct UploadForm {
    /// The files; the name of each is its path below the directory.
    #[schema(value_type = Vec<String>, format = Binary, required = false)]
    file: Vec<Vec<u8>>,
}

/// Files that were written.
#[derive(Serialize, ToSchema)]
#[schema(as = Uploaded)]
pub(super) struct UploadedBody {
    files: Vec<FileEntry>,
}

/// Writes several files. Each part of the form is called `file`, and its file name is its path below the directory. If
/// the request is interrupted, the files that were complete are kept.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/upload", tag = "files", operation_id = "upload_many",
    params(("id" = String, Path, description = "The sandbox's id or name."), UploadQuery),
    request_body(content = UploadForm, content_type = "multipart/form-data", example = json!({"file": ["hello\n"]})),
    responses((status = 200, description = "The written files.", body = UploadedBody)))]
pub(super) async fn upload(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<UploadQuery>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<axum::Json<UploadedBody>, Problem> {
    let directory = parse_path(query.path, query.path_base64.as_deref(), Some("."))?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind).map_err(|_| {
        let detail = "unsupported body; send a form with Content-Type: multipart/form-data";
        Problem::new(Code::UnsupportedMediaType, detail).with_field("Content-Type")
    })?;
    let _slot = shared.streams.take(&caller)?;
    let mut form = Form::new(body.stream(), boundary);
    let mut files = Vec::new();
    while let Some(part) = form.next().await? {
        if files.len() == MAX_FILES {
            return Err(Problem::field(
                "file",
                format!("more than {MAX_FILES} files; send them in several requests"),
            ));
        }
        if part.name.as_deref() != Some("file") {
            let name = part.name.as_deref().unwrap_or("part");
            return Err(Problem::field(name, "unknown part; a part must be called file"));
        }
        let path = path_below(&directory, part.file_name.as_deref())?;
        let open = v1::WriteOpen { path, make_parents: true, ..Default::default() };
        files.push(shared.keeper.perform(&caller, &id, Write::new(open, part.content)).await?.into());
    }
    // Without a file, neither the caller's permission nor the existence of the sandbox has been checked yet.
    if files.is_empty() {
        return Err(Problem::field("file", "it is missing; a form has at least one"));
    }
    Ok(axum::Json(UploadedBody { files }))
}

/// Returns the path of a part, which must be below the directory.
fn path_below(directory: &Bytes, name: Option<&str>) -> Result<Bytes, Problem> {
    let refused = |reason: &str| Problem::field("filename", reason);
    let name = name.ok_or_else(|| refused("it is missing; each part has the path of its file"))?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
        return Err(refused("it is not allowed; give 1 to 1024 bytes without NUL"));
    }
    if name.starts_with('/') || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(refused("it is not allowed; give a path below the directory, without . and .."));
    }
    let mut path = BytesMut::with_capacity(directory.len() + 1 + name.len());
    path.put_slice(directory);
    path.put_u8(b'/');
    path.put_slice(name.as_bytes());
    Ok(path.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_directory() {
        let directory = Bytes::from_static(b"out");
        for name in ["a.txt", "a/b.txt", "..a", "a\\b", "a b"] {
            assert_eq!(path_below(&directory, Some(name)).unwrap(), format!("out/{name}"), "{name}");
        }
        for name in ["", "/etc/x", "../x", "a/../b", "a//b", "./a", "a/", "a\0b", &"x".repeat(1025)] {
            assert!(path_below(&directory, Some(name)).is_err(), "{name:?}");
        }
        assert!(path_below(&directory, None).is_err());
    }
}
