//! `/files` of E2B's daemon: download and upload of whole files.

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
use serde::Deserialize;
use serde_json::{Value, json};

use super::E2b;
use super::access::{self, Head, Signature};
use super::entry::{METADATA, absolute, name};
use super::error::{self, Plain, json_answer};
use crate::extract::Form;
use crate::problem::{Code, Problem};
use crate::rest;

/// Maximum number of files in one request.
const MAX_FILES: usize = 1000;

/// Maximum size of decompressed data that is held before it is passed on, in bytes.
const MAX_INFLATED_BYTES: usize = 4 << 20;

/// Prefix of headers that hold metadata of a file.
const METADATA_HEADER: &str = "x-metadata-";

/// Maximum length of a metadata key, and of all keys and values of a file together, in bytes.
const MAX_METADATA_KEY_BYTES: usize = 246;
const MAX_METADATA_BYTES: usize = 4096;

#[derive(Deserialize)]
pub(super) struct FilesQuery {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<i64>,
}

impl FilesQuery {
    pub(super) fn parse(query: &str) -> Result<Self, Problem> {
        crate::extract::parse_query(query)
    }

    /// Returns the signature of the URL, if it has one.
    pub(super) fn signature<'a>(&'a self, operation: &'a str) -> Option<Signature<'a>> {
        Some(Signature {
            text: self.signature.as_deref()?,
            path: self.path.as_deref().unwrap_or_default(),
            operation,
            user: self.username.as_deref().unwrap_or_default(),
            expires: self.signature_expiration,
        })
    }
}

/// Answers a request. Without a sandbox id, the signature determines the sandbox.
pub(super) async fn answer(shared: &E2b, id: Option<&SandboxId>, request: Request) -> Response {
    let missing = id.filter(|id| shared.keeper.state_of(id).is_none());
    match missing {
        Some(id) => error::sandbox_missing(id.as_str()),
        None => transfer(shared, id, request).await.unwrap_or_else(|refused| refused.0),
    }
}

async fn transfer(shared: &E2b, id: Option<&SandboxId>, mut request: Request) -> Result<Response, Plain> {
    let query = FilesQuery::parse(request.uri().query().unwrap_or_default())?;
    let operation = match *request.method() {
        Method::GET | Method::HEAD => "read",
        Method::POST => "write",
        _ => return Err(Problem::new(Code::MethodNotAllowed, "give GET or POST").into()),
    };
    let caller = caller(shared, id, &query, operation, Head::from_request(&request)).await?;
    access::bind(shared, &caller, &mut request);
    let user = query.username.clone().or_else(|| access::user(request.headers()));
    access::check_user(user.as_deref())?;
    // Without an id in the URL, the signature determines the sandbox.
    let id = id
        .cloned()
        .or_else(|| caller.only.clone())
        .ok_or_else(|| Problem::new(Code::Unauthenticated, "invalid signature"))?;
    let entered = shared
        .keeper
        .enter(&caller, id.as_str())
        .await
        .map_err(|error| Plain::from_keeper(id.as_str(), error))?;
    if operation == "write" {
        let written = receive(shared, &caller, &entered, query.path.as_deref(), request).await?;
        return Ok(json_answer(StatusCode::OK, &written));
    }
    let path = query.path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| Problem::field("path", "it is missing"))?;
    send(shared, &caller, &entered, &absolute(&path), request).await
}

async fn caller(
    shared: &E2b,
    id: Option<&SandboxId>,
    query: &FilesQuery,
    operation: &str,
    head: Head<'_>,
) -> Result<Caller, Problem> {
    match (query.signature(operation), id) {
        (Some(signature), _) => access::signer(shared, id, &signature, head).await,
        (None, Some(id)) if access::token(head.headers).is_some() => access::caller(shared, id, head).await,
        (None, _) => Err(Problem::new(Code::Unauthenticated, "missing signature query parameter")),
    }
}

async fn send(
    shared: &E2b,
    caller: &Caller,
    entered: &Entered,
    path: &str,
    request: Request,
) -> Result<Response, Plain> {
    let slot = shared.streams.take(caller)?;
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

/// Writes the body: one file as it is, or several in a form.
async fn receive(
    shared: &E2b,
    caller: &Caller,
    entered: &Entered,
    path: Option<&str>,
    request: Request,
) -> Result<Vec<Value>, Plain> {
    let _slot = shared.streams.take(caller)?;
    let headers = request.headers();
    let metadata = metadata(headers)?;
    let kind = text(headers, &header::CONTENT_TYPE).to_owned();
    let is_gzip = match text(headers, &header::CONTENT_ENCODING) {
        "" | "identity" => false,
        "gzip" => true,
        other => {
            let detail = format!("Content-Encoding: {other:?} is not supported; give gzip");
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

/// Parses the metadata of files from a request's headers, keyed by the names of their attributes.
///
/// # Errors
/// Fails if a value is not printable ASCII, or if the metadata is too large.
pub(super) fn metadata(headers: &HeaderMap) -> Result<BTreeMap<String, Bytes>, Problem> {
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
            return refused("duplicate key".to_owned());
        }
    }
    Ok(all)
}

fn text<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

async fn form(
    shared: &E2b,
    caller: &Caller,
    entered: &Entered,
    path: Option<&str>,
    body: BoxStream<'static, io::Result<Bytes>>,
    boundary: String,
    metadata: &BTreeMap<String, Bytes>,
) -> Result<Vec<Value>, Plain> {
    let mut files = Files { form: Form::new(body, boundary), path, count: 0 };
    let mut written = Vec::new();
    while let Some((named, content)) = files.next().await? {
        written.push(write(shared, caller, entered, &named, content, metadata).await?);
    }
    Ok(written)
}

/// The files in a form, in order.
pub(super) struct Files<'a> {
    pub(super) form: Form,
    /// Name of the only file; without it each part has its own.
    pub(super) path: Option<&'a str>,
    pub(super) count: usize,
}

impl Files<'_> {
    /// Returns the next file's name and content.
    ///
    /// # Errors
    /// Fails if the form is malformed, has no file or too many, or if a file has no name.
    pub(super) async fn next(
        &mut self,
    ) -> Result<Option<(String, BoxStream<'static, io::Result<Bytes>>)>, Problem> {
        while let Some(part) = self.form.next().await? {
            if part.name.as_deref() != Some("file") {
                part.skip().await?;
                continue;
            }
            let max = if self.path.is_some() { 1 } else { MAX_FILES };
            if self.count == max {
                return Err(Problem::field("file", format!("too many files: more than {max}")));
            }
            self.count += 1;
            let named = self.path.map(str::to_owned).or(part.file_name).filter(|named| !named.is_empty());
            let named = named.ok_or_else(|| Problem::field("file", "a file has no name"))?;
            return Ok(Some((named, part.content)));
        }
        match self.count {
            0 => Err(Problem::field("file", "no file in the form")),
            _ => Ok(None),
        }
    }
}

/// Writes a file, which appears under its name once it is complete.
async fn write(
    shared: &E2b,
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
    shared.0.watchers.place(entered.id(), &path);
    let done = shared.keeper.perform_in(caller, entered, Write::new(open, content)).await;
    if let Err(error) = done {
        let problem = match Problem::from(error) {
            problem if problem.code() == Code::NotRegular => {
                Problem::new(Code::InvalidArgument, format!("path is a directory: {path}"))
            }
            // The exhausted resource is the sandbox's disk.
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

/// Returns the bytes of a body, decompressed if necessary.
pub(super) fn pieces(body: Body, is_gzip: bool) -> BoxStream<'static, io::Result<Bytes>> {
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
                // Decompresses small chunks at a time: a small chunk may expand to a large one.
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
    async fn compressed_bodies_are_decompressed_and_broken_ones_fail() {
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
