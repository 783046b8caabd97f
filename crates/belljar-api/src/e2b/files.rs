//! `/files` of E2B's daemon: whole files up and down.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use belljar_engine::v1;
use belljar_keeper::operation::Write;
use belljar_keeper::{Caller, Entered};
use belljar_model::SandboxId;
use bytes::Bytes;
use flate2::write::GzDecoder;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use multer::{Constraints, Multipart, SizeLimit};
use serde::Deserialize;
use serde_json::{Value, json};

use super::access::{self, Head, Signature};
use super::entry::{METADATA, absolute, name};
use super::error::{self, Plain, json_answer};
use crate::api::Shared;
use crate::problem::{Code, Problem};
use crate::rest;

/// The most files of one request.
const MAX_FILES: usize = 1000;

/// The most bytes that a compressed piece may become before they are passed on.
const MAX_INFLATED_BYTES: usize = 4 << 20;

/// What a header begins with that says something about a file.
const METADATA_HEADER: &str = "x-metadata-";

/// The longest key of a file's metadata, and the most bytes of all its keys and values together.
const MAX_METADATA_KEY_BYTES: usize = 246;
const MAX_METADATA_BYTES: usize = 4096;

#[derive(Deserialize)]
struct FilesQuery {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<i64>,
}

/// Answers a request. Where no sandbox is named the signature says which one is meant.
pub(super) async fn answer(shared: &Shared, id: Option<&SandboxId>, request: Request) -> Response {
    let missing = id.filter(|id| shared.keeper.state_of(id).is_none());
    match missing {
        Some(id) => error::sandbox_missing(id.as_str()),
        None => transfer(shared, id, request).await.unwrap_or_else(|refused| refused.0),
    }
}

async fn transfer(shared: &Shared, id: Option<&SandboxId>, request: Request) -> Result<Response, Plain> {
    let query: FilesQuery = crate::extract::parse_query(request.uri().query().unwrap_or_default())?;
    let operation = match *request.method() {
        Method::GET | Method::HEAD => "read",
        Method::POST => "write",
        _ => return Err(Problem::new(Code::MethodNotAllowed, "give GET or POST").into()),
    };
    let caller = caller(shared, id, &query, operation, Head::of(&request)).await?;
    let user = query.username.clone().or_else(|| access::user(request.headers()));
    access::check_user(user.as_deref())?;
    // A signature says which sandbox is meant where the address does not.
    let id = id
        .cloned()
        .or_else(|| caller.only.clone())
        .ok_or_else(|| Problem::new(Code::Unauthenticated, "invalid signature"))?;
    let entered =
        shared.keeper.enter(&caller, id.as_str()).await.map_err(|error| Plain::of(id.as_str(), error))?;
    if operation == "write" {
        let written = receive(shared, &caller, &entered, query.path.as_deref(), request).await?;
        return Ok(json_answer(StatusCode::OK, &written));
    }
    let path = query.path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| Problem::field("path", "it is missing"))?;
    send(shared, &caller, &entered, &absolute(&path), request).await
}

async fn caller(
    shared: &Shared,
    id: Option<&SandboxId>,
    query: &FilesQuery,
    operation: &str,
    head: Head<'_>,
) -> Result<Caller, Problem> {
    match (&query.signature, id) {
        (Some(text), _) => {
            let signature = Signature {
                path: query.path.as_deref().unwrap_or_default(),
                operation,
                user: query.username.as_deref().unwrap_or_default(),
                expires: query.signature_expiration,
                text,
            };
            access::signer(shared, id, &signature, head).await
        }
        (None, Some(id)) if access::token(head.headers).is_some() => access::caller(shared, id, head).await,
        (None, _) => Err(Problem::new(Code::Unauthenticated, "missing signature query parameter")),
    }
}

async fn send(
    shared: &Shared,
    caller: &Caller,
    entered: &Entered,
    path: &str,
    request: Request,
) -> Result<Response, Plain> {
    let slot = shared.streams.take(&caller.key)?;
    let at = Bytes::copy_from_slice(path.as_bytes());
    let sent = rest::send_file(shared, caller, slot, entered, at, request.method(), request.headers()).await;
    let mut response = sent.map_err(|problem| match problem.code() {
        Code::NotRegular => Problem::new(Code::InvalidArgument, problem.detail()),
        _ => problem,
    })?;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        return Err(problem.into());
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    Ok(response)
}

/// Writes what comes: one file as it is, or many in a form.
async fn receive(
    shared: &Shared,
    caller: &Caller,
    entered: &Entered,
    path: Option<&str>,
    request: Request,
) -> Result<Vec<Value>, Plain> {
    let _slot = shared.streams.take(&caller.key)?;
    let headers = request.headers();
    let metadata = metadata(headers)?;
    let kind = text(headers, &header::CONTENT_TYPE).to_owned();
    let is_gzip = match text(headers, &header::CONTENT_ENCODING) {
        "" | "identity" => false,
        "gzip" => true,
        other => {
            let detail = format!("Content-Encoding: {other:?} is not read; give gzip");
            return Err(Problem::new(Code::UnsupportedMediaType, detail).into());
        }
    };
    let body = pieces(request.into_body(), is_gzip);
    if let Ok(boundary) = multer::parse_boundary(&kind) {
        return form(shared, caller, entered, path, body, boundary, &metadata).await;
    }
    let path = path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| Problem::field("path", "it is missing"))?;
    Ok(vec![write(shared, caller, entered, path, body, &metadata).await?])
}

/// What a request's headers say about its files, by the names of their attributes.
///
/// # Errors
/// A value that is not printable ASCII, or more than is kept.
fn metadata(headers: &HeaderMap) -> Result<BTreeMap<String, Bytes>, Problem> {
    let mut all = BTreeMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA_HEADER) else { continue };
        let refused = |why: String| Err(Problem::field("metadata", format!("{key:?}: {why}")));
        bytes += key.len() + value.len();
        if key.is_empty() || key.len() > MAX_METADATA_KEY_BYTES {
            return refused(format!("give a key of 1 to {MAX_METADATA_KEY_BYTES} bytes"));
        }
        if !value.as_bytes().iter().all(|byte| (b' '..=b'~').contains(byte)) {
            return refused("give a value of printable ASCII".to_owned());
        }
        if bytes > MAX_METADATA_BYTES {
            return refused(format!("all of it is more than {MAX_METADATA_BYTES} bytes"));
        }
        if all.insert(format!("{METADATA}{key}"), Bytes::copy_from_slice(value.as_bytes())).is_some() {
            return refused("it is there twice".to_owned());
        }
    }
    Ok(all)
}

fn text<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn form(
    shared: &Shared,
    caller: &Caller,
    entered: &Entered,
    path: Option<&str>,
    body: BoxStream<'static, io::Result<Bytes>>,
    boundary: String,
    metadata: &BTreeMap<String, Bytes>,
) -> Result<Vec<Value>, Plain> {
    let malformed = |error: multer::Error| {
        Problem::new(Code::InvalidRequest, format!("the form cannot be read: {error}"))
    };
    // Lengths are bounded by the disk of the sandbox, and nothing is collected here.
    let constraints = Constraints::new().size_limit(SizeLimit::new());
    let mut form = Multipart::with_constraints(body, boundary, constraints);
    let mut written = Vec::new();
    while let Some(field) = form.next_field().await.map_err(malformed)? {
        if field.name() != Some("file") {
            continue;
        }
        if written.len() == MAX_FILES || (path.is_some() && !written.is_empty()) {
            let most = if path.is_some() { 1 } else { MAX_FILES };
            return Err(Problem::field("file", format!("there are more than {most} files")).into());
        }
        let named = path.or_else(|| field.file_name()).map(str::to_owned);
        let named = named.filter(|named| !named.is_empty());
        let named = named.ok_or_else(|| Problem::field("file", "a file has no name"))?;
        // The form lends its parts, and a file is written in a task of its own: pieces go through a channel.
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let content = tokio_stream(receiver);
        let feeding = async {
            let mut field = field;
            loop {
                let piece = field.chunk().await.map_err(io::Error::other).transpose();
                let Some(piece) = piece else { break };
                let failed = piece.is_err();
                if sender.send(piece).await.is_err() || failed {
                    break;
                }
            }
            drop(sender);
        };
        let (file, ()) = tokio::join!(write(shared, caller, entered, &named, content, metadata), feeding);
        written.push(file?);
    }
    match written.is_empty() {
        true => Err(Problem::field("file", "the form has none").into()),
        false => Ok(written),
    }
}

fn tokio_stream(
    mut receiver: tokio::sync::mpsc::Receiver<io::Result<Bytes>>,
) -> BoxStream<'static, io::Result<Bytes>> {
    futures::stream::poll_fn(move |context| receiver.poll_recv(context)).boxed()
}

/// Writes a file, which appears under its name when all of it has come.
async fn write(
    shared: &Shared,
    caller: &Caller,
    entered: &Entered,
    path: &str,
    content: BoxStream<'static, io::Result<Bytes>>,
    metadata: &BTreeMap<String, Bytes>,
) -> Result<Value, Plain> {
    let path = absolute(path);
    let attributes = metadata.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let open =
        v1::WriteOpen { path: path.clone().into(), make_parents: true, attributes, ..Default::default() };
    shared.e2b_watchers.place(entered.id(), &path);
    let done = shared.keeper.perform_in(caller, entered, Write::new(open, content)).await;
    if let Err(error) = done {
        let problem = match Problem::from(error) {
            problem if problem.code() == Code::NotRegular => {
                Problem::new(Code::InvalidArgument, format!("path is a directory: {path}"))
            }
            // What is exhausted is the sandbox's disk.
            problem if problem.code() == Code::ResourceExhausted => {
                problem.with_status(StatusCode::INSUFFICIENT_STORAGE)
            }
            problem => problem,
        };
        return Err(problem.into());
    }
    let mut written = json!({"path": path, "name": name(&path), "type": "file"});
    if !metadata.is_empty() {
        let pairs = metadata.iter().map(|(name, value)| {
            let key = name.strip_prefix(METADATA).unwrap_or(name);
            (key.to_owned(), json!(String::from_utf8_lossy(value)))
        });
        written["metadata"] = Value::Object(pairs.collect());
    }
    Ok(written)
}

/// The bytes of a body, decompressed if they are compressed.
fn pieces(body: Body, is_gzip: bool) -> BoxStream<'static, io::Result<Bytes>> {
    let pieces = body.into_data_stream().map_err(io::Error::other);
    if !is_gzip {
        return pieces.boxed();
    }
    async_stream::try_stream! {
        let mut pieces = std::pin::pin!(pieces);
        let mut decoder = GzDecoder::new(Vec::new());
        while let Some(piece) = pieces.next().await {
            let mut rest: &[u8] = &piece?;
            while !rest.is_empty() {
                // Little of it at a time: a small piece may become a large one.
                let (part, after) = rest.split_at(rest.len().min(MAX_INFLATED_BYTES / 1024));
                decoder.write_all(part)?;
                rest = after;
                let inflated = std::mem::take(decoder.get_mut());
                if !inflated.is_empty() {
                    yield Bytes::from(inflated);
                }
            }
        }
        let rest = decoder.finish()?;
        if !rest.is_empty() {
            yield Bytes::from(rest);
        }
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn compressed_bodies_come_out_whole_and_broken_ones_as_errors() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let content = b"hello ".repeat(100_000);
        encoder.write_all(&content).unwrap();
        let compressed = encoder.finish().unwrap();
        let out: Vec<Bytes> = pieces(Body::from(compressed.clone()), true).try_collect().await.unwrap();
        assert_eq!(out.concat(), content);
        for broken in [&compressed[..compressed.len() / 2], b"no gzip at all"] {
            let out: Result<Vec<Bytes>, _> = pieces(Body::from(broken.to_vec()), true).try_collect().await;
            assert!(out.is_err());
        }
    }
}
