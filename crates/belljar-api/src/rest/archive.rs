//! Archives of directory trees.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use belljar_engine::{Pack, v1};
use belljar_keeper::operation::Unpack;
use belljar_keeper::{Caller, Entered};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::disposition;
use super::types::parse_path;
use crate::api::Shared;
use crate::extract::{Auth, Id, Query, RawBody};
use crate::guard::StreamSlot;
use crate::problem::Problem;

/// Maximum length of a packed archive: 1 TiB. The content of a sandbox is bounded by its disk, but holes in files are
/// not.
const MAX_ARCHIVE_BYTES: u64 = 1 << 40;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PackQuery {
    /// The directory. The home directory, if not given.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// `tar`, which is the default, or `tar.gz`.
    #[param(inline)]
    format: Option<PackFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = PackFormat)]
pub(super) enum PackFormat {
    #[serde(rename = "tar")]
    Tar,
    #[serde(rename = "tar.gz")]
    TarGzip,
}

/// Packs a directory with everything in it. Names in the archive are relative to it. The content of the archive is
/// controlled by code in the sandbox: unpack it with care.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/archive", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), PackQuery),
    responses((status = 200, description = "The archive.", content(
        (Vec<u8> = "application/x-tar"),
        (Vec<u8> = "application/gzip")))))]
pub(super) async fn pack(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<PackQuery>,
) -> Result<Response, Problem> {
    let path = parse_path(query.path, query.path_base64.as_deref(), Some("."))?;
    let slot = shared.streams.take(&caller)?;
    let entered = shared.keeper.enter(&caller, &id).await?;
    send_archive(&shared, &caller, slot, &entered, path, query.format.unwrap_or(PackFormat::Tar)).await
}

/// Streams the archive of a directory as a response.
pub(super) async fn send_archive(
    shared: &Shared,
    caller: &Caller,
    slot: StreamSlot,
    entered: &Entered,
    path: Bytes,
    format: PackFormat,
) -> Result<Response, Problem> {
    let (format, kind, ending) = match format {
        PackFormat::Tar => (v1::ArchiveFormat::ARCHIVE_FORMAT_TAR, "application/x-tar", ".tar"),
        PackFormat::TarGzip => (v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP, "application/gzip", ".tar.gz"),
    };
    let request = v1::PackRequest { base: path.clone(), format: format.into(), ..Default::default() };
    let pack = Pack { request, max_bytes: MAX_ARCHIVE_BYTES };
    let mut archive = shared.keeper.begin_in(caller, entered, pack).await?;
    let stream = async_stream::stream! {
        while let Some(piece) = archive.next().await.transpose() {
            let failed = piece.is_err();
            yield piece.map_err(std::io::Error::other);
            if failed {
                break;
            }
        }
    };
    let mut response = Response::new(Body::from_stream(slot.break_off(stream)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::CONTENT_DISPOSITION,
        disposition::attachment(&archive_name(&path, entered.id().as_str(), ending)),
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    Ok(response)
}

/// Returns the archive's name: that of the directory, or the sandbox's id.
fn archive_name(path: &[u8], id: &str, ending: &str) -> Vec<u8> {
    let last = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty());
    let last = last.filter(|name| *name != b"." && *name != b"..").unwrap_or(id.as_bytes());
    [last, ending.as_bytes()].concat()
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UnpackQuery {
    /// The directory. The home directory, if not given.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// `auto`, which is the default, `tar`, `tar.gz` or `zip`.
    #[param(inline)]
    format: Option<UnpackFormat>,
    /// Number of leading parts of each name to drop. A name without more parts is left out.
    strip: Option<u32>,
    /// Whether existing files may be replaced. `true` if not given.
    overwrite: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = UnpackFormat)]
pub(super) enum UnpackFormat {
    #[serde(rename = "auto")]
    Auto,
    #[serde(rename = "tar")]
    Tar,
    #[serde(rename = "tar.gz")]
    TarGzip,
    #[serde(rename = "zip")]
    Zip,
}

/// Result of unpacking an archive.
#[derive(Serialize, ToSchema)]
#[schema(as = Unpacked)]
pub(super) struct UnpackedBody {
    /// Files, directories and links.
    entries: u64,
    /// Bytes of files.
    bytes: u64,
}

/// Unpacks an archive below a directory, which is created if missing. If the archive is invalid, nothing of it is kept.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/archive", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), UnpackQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The archive.", example = json!("")),
    responses((status = 200, description = "The archive was unpacked.", body = UnpackedBody)))]
pub(super) async fn unpack(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<UnpackQuery>,
    body: RawBody,
) -> Result<axum::Json<UnpackedBody>, Problem> {
    let path = parse_path(query.path, query.path_base64.as_deref(), Some("."))?;
    let format = match query.format.unwrap_or(UnpackFormat::Auto) {
        UnpackFormat::Auto => v1::ArchiveFormat::ARCHIVE_FORMAT_UNSPECIFIED,
        UnpackFormat::Tar => v1::ArchiveFormat::ARCHIVE_FORMAT_TAR,
        UnpackFormat::TarGzip => v1::ArchiveFormat::ARCHIVE_FORMAT_TAR_GZIP,
        UnpackFormat::Zip => v1::ArchiveFormat::ARCHIVE_FORMAT_ZIP,
    };
    let _slot = shared.streams.take(&caller)?;
    let open = v1::UnpackOpen {
        path,
        format: format.into(),
        strip_components: query.strip.unwrap_or(0),
        overwrite: query.overwrite.unwrap_or(true),
        ..Default::default()
    };
    let archive = super::content::check_length(body.length, body.stream().boxed());
    let done = shared.keeper.perform(&caller, &id, Unpack::new(open, archive)).await?;
    Ok(axum::Json(UnpackedBody { entries: done.entries, bytes: done.bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_named_after_the_directory() {
        let cases: [(&[u8], &[u8]); 4] =
            [(b"out/", b"out.tar"), (b"/a/b", b"b.tar"), (b".", b"id.tar"), (b"/", b"id.tar")];
        for (path, name) in cases {
            assert_eq!(archive_name(path, "id", ".tar"), name);
        }
    }
}
