//! File contents: downloads with ranges, and streamed uploads.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use belljar_engine::{Download, v1};
use belljar_keeper::operation::{Opened, Write};
use belljar_keeper::{Caller, Entered};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use utoipa::IntoParams;

use super::disposition;
use super::range::{RequestedRange, parse_range, upload_range};
use super::types::{FileEntry, FileKind, Mode, modified_time, parse_path};
use crate::api::Shared;
use crate::extract::{Auth, Id, Query, RawBody};
use crate::guard::StreamSlot;
use crate::problem::{Code, Problem};

/// Maximum number of attempts to read a file that changes between its stat and its opening.
const MAX_ATTEMPTS: usize = 3;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ContentQuery {
    /// The file: absolute, or below the home directory; in a volume below its root.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
}

impl ContentQuery {
    pub(super) fn into_path(self) -> Result<Bytes, Problem> {
        parse_path(self.path, self.path_base64.as_deref(), None)
    }
}

/// Reads a file. Supports `Range`, `If-Range`, `If-None-Match`, `If-Modified-Since` and `HEAD`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/content", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), ContentQuery,
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
    let entered = shared.keeper.enter(&caller, &id).await?;
    send_file(&shared, &caller, slot, &entered, path, &method, &headers).await
}

/// Returns a response with a file.
pub(crate) async fn send_file(
    shared: &Shared,
    caller: &Caller,
    slot: StreamSlot,
    entered: &Entered,
    path: Bytes,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    for _ in 0..MAX_ATTEMPTS {
        let entry = match stat_regular(shared, caller, entered, &path).await {
            Err(problem) if method != Method::HEAD => {
                // Failed attempts to read are in the audit log as well.
                let request = v1::ReadRequest { path: path.clone(), length: 1, ..Default::default() };
                shared.keeper.begin_in(caller, entered, request).await?;
                return Err(problem);
            }
            found => found?,
        };
        if is_unchanged(&entry, headers) {
            return Ok(with_headers(StatusCode::NOT_MODIFIED, Body::empty(), &entry, &path));
        }
        // Files in /proc report a size of 0 and may have content: their length is only known at the end.
        let sized = entry.size > 0;
        let part = match requested_range(&entry, headers) {
            RequestedRange::Nothing if sized => {
                let detail = format!("Range: the file has {} bytes", entry.size);
                let mut response =
                    Problem::new(Code::RangeNotSatisfiable, detail).with_field("Range").into_response();
                set(&mut response, header::CONTENT_RANGE, format!("bytes */{}", entry.size));
                return Ok(response);
            }
            RequestedRange::Whole | RequestedRange::Nothing => None,
            RequestedRange::Part { start, length } => Some((start, length)),
        };
        let (start, length) = part.unwrap_or((0, entry.size));
        let status = if part.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let body = if method == Method::HEAD {
            Body::empty()
        } else {
            let asked = if sized { length } else { 0 };
            let request =
                v1::ReadRequest { path: path.clone(), offset: start, length: asked, ..Default::default() };
            let download = shared.keeper.begin_in(caller, entered, request).await?;
            if tag(&download.get().entry) != tag(&entry) {
                continue;
            }
            Body::from_stream(slot.break_off(pieces(download, sized.then_some(length))))
        };
        let mut response = with_headers(status, body, &entry, &path);
        if part.is_some() {
            let last = start + length - 1;
            set(&mut response, header::CONTENT_RANGE, format!("bytes {start}-{last}/{}", entry.size));
        }
        if sized {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        return Ok(response);
    }
    Err(Problem::new(Code::FailedPrecondition, "the file changes while it is read; try again later"))
}

/// Returns the file's entry, if it is a regular file.
async fn stat_regular(
    shared: &Shared,
    caller: &Caller,
    entered: &Entered,
    path: &Bytes,
) -> Result<v1::Entry, Problem> {
    let request = v1::StatRequest { path: path.clone(), follow: true, ..Default::default() };
    let entry = shared.keeper.perform_in(caller, entered, request).await?;
    if FileKind::from(entry.kind.as_known().unwrap_or_default()) == FileKind::File {
        return Ok(entry);
    }
    let detail = format!("{}: not a regular file, so it has no content", String::from_utf8_lossy(path));
    Err(Problem::new(Code::NotRegular, detail).with_field("path"))
}

/// Returns the bytes of a file, which must match the promised length.
fn pieces(
    mut download: Opened<Download>,
    promised: Option<u64>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    async_stream::stream! {
        let mut left = promised;
        loop {
            match download.next().await {
                Ok(Some(mut piece)) => {
                    if let Some(left) = &mut left {
                        // A file that has grown meanwhile is cut at its earlier end.
                        piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                        *left -= u64::try_from(piece.len()).unwrap_or(u64::MAX).min(*left);
                    }
                    if !piece.is_empty() {
                        yield Ok(piece);
                    }
                    if left == Some(0) {
                        return;
                    }
                }
                Ok(None) => {
                    if left.is_some_and(|left| left > 0) {
                        yield Err(io::Error::other("the file became shorter while it was read"));
                    }
                    return;
                }
                Err(error) => {
                    yield Err(io::Error::other(error));
                    return;
                }
            }
        }
    }
}

fn tag(entry: &v1::Entry) -> String {
    format!("\"{:x}-{:x}-{:x}-{:x}\"", entry.inode, entry.size, entry.modified_ns, entry.changed_ns)
}

fn last_modified(entry: &v1::Entry) -> String {
    httpdate::fmt_http_date(modified_http(entry))
}

/// Returns the modification time, clamped to what HTTP dates can express: from 1970 to the year 9999.
fn modified_http(entry: &v1::Entry) -> std::time::SystemTime {
    let last = 253_402_300_799;
    let seconds = modified_time(entry).as_second().clamp(0, last);
    std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn is_unchanged(entry: &v1::Entry, headers: &HeaderMap) -> bool {
    let tag = tag(entry);
    if headers.contains_key(header::IF_NONE_MATCH) {
        let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut known = values.flat_map(|value| value.split(',')).map(str::trim);
        return known.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag);
    }
    let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    let since = since.and_then(|text| httpdate::parse_http_date(text).ok());
    since.is_some_and(|since| modified_http(entry) <= since)
}

/// Returns the requested range, unless `If-Range` names another version of the file.
fn requested_range(entry: &v1::Entry, headers: &HeaderMap) -> RequestedRange {
    let same = headers.get(header::IF_RANGE).is_none_or(|value| {
        value.as_bytes() == tag(entry).as_bytes() || value.as_bytes() == last_modified(entry).as_bytes()
    });
    if same { parse_range(headers.get(header::RANGE), entry.size) } else { RequestedRange::Whole }
}

fn with_headers(status: StatusCode, body: Body, entry: &v1::Entry, path: &[u8]) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    set(&mut response, header::ETAG, tag(entry));
    set(&mut response, header::LAST_MODIFIED, last_modified(entry));
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    if status != StatusCode::NOT_MODIFIED {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_DISPOSITION, disposition::attachment(path));
        // Browsers must not treat the content as a page of this server.
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers
            .insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    }
    response
}

fn set(response: &mut Response, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        response.headers_mut().insert(name, value);
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UploadQuery {
    /// The file: absolute, or below the home directory; in a volume below its root.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Permission bits in octal. `0644` if not given.
    #[param(inline)]
    mode: Option<Mode>,
    /// Whether missing directories are created. `true` if not given.
    make_parents: Option<bool>,
    /// Whether to add to the file instead of replacing it. `false` if not given.
    append: Option<bool>,
    /// Whether to fail if the file already exists. `false` if not given.
    exclusive: Option<bool>,
}

impl UploadQuery {
    pub(super) fn into_open(self) -> Result<v1::WriteOpen, Problem> {
        Ok(v1::WriteOpen {
            path: parse_path(self.path, self.path_base64.as_deref(), None)?,
            mode: self.mode.map_or(0, |mode| mode.0),
            make_parents: self.make_parents.unwrap_or(true),
            append: self.append.unwrap_or(false),
            exclusive: self.exclusive.unwrap_or(false),
            ..Default::default()
        })
    }
}

/// Writes a file, of any length that fits on the disk of the sandbox. The file appears under its name only once it is
/// complete: an interrupted upload leaves the old file. With `Content-Range: bytes FIRST-LAST/*` it is written in
/// place.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/content", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), UploadQuery,
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
    let entered = shared.keeper.enter(&caller, &id).await?;
    receive_file(&shared, &caller, slot, &entered, open, &headers, body).await
}

/// Writes the request body to a file.
pub(super) async fn receive_file(
    shared: &Shared,
    caller: &Caller,
    slot: StreamSlot,
    entered: &Entered,
    mut open: v1::WriteOpen,
    headers: &HeaderMap,
    body: RawBody,
) -> Result<axum::Json<FileEntry>, Problem> {
    let _slot = slot;
    let expected = match headers.get(header::CONTENT_RANGE) {
        None => body.length,
        Some(value) => {
            let refused = |reason: &str| Problem::field("Content-Range", reason);
            let (start, length) =
                upload_range(value).ok_or_else(|| refused("it is not allowed; give bytes FIRST-LAST/*"))?;
            if body.length.is_some_and(|known| known != length) {
                return Err(refused("its length differs from Content-Length"));
            }
            open.offset = Some(start);
            Some(length)
        }
    };
    let content = check_length(expected, body.stream().boxed());
    let entry = shared.keeper.perform_in(caller, entered, Write::new(open, content)).await?;
    Ok(axum::Json(FileEntry::from(entry)))
}

/// Returns the same bytes, with an error at the end if their number differs from the expected one.
pub(crate) fn check_length<S>(
    expected: Option<u64>,
    source: S,
) -> impl Stream<Item = io::Result<Bytes>> + Send
where
    S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
{
    futures::stream::unfold((source, expected), |(mut source, mut left)| async move {
        let item = match (source.next().await, left) {
            (Some(Ok(piece)), Some(expected)) => {
                let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
                match expected.checked_sub(length) {
                    Some(rest) => {
                        left = Some(rest);
                        Ok(piece)
                    }
                    None => Err(io::Error::other("the body is longer than announced")),
                }
            }
            (Some(item), _) => item,
            (None, Some(rest)) if rest > 0 => {
                left = Some(0);
                Err(io::Error::other("the body is shorter than announced"))
            }
            (None, _) => return None,
        };
        Some((item, (source, left)))
    })
}
