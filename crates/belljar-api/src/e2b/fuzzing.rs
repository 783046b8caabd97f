//! Access to private functions for the checks of `belljar-fuzz`.

use std::collections::BTreeMap;
use std::io;

use axum::body::Body;
use axum::extract::{FromRequest as _, Request};
use belljar_engine::v1;
use belljar_keeper::{CreateSandbox, TemplateInfo, TemplateKind};
use belljar_model::NetworkFile;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;

use super::entry::{METADATA, absolute};
use super::error::Refusal;
use super::files::{self, Files, FilesQuery};
use super::filesystem::{MoveRequest, PathRequest};
use super::network::NetworkBody;
use super::process::{InputRequest, SignalRequest, StartRequest};
use super::types::NewSandbox;
use super::{connect, metadata};
use crate::extract::{Form, RawBody, parse_json};
use crate::problem::Problem;

/// Returns the messages in the frames of a body that arrives in these pieces, and the error that ended them, if any.
pub async fn frames(pieces: Vec<Bytes>) -> (Vec<Bytes>, Option<String>) {
    let body = Body::from_stream(stream::iter(pieces).map(Ok::<_, io::Error>));
    let body = match RawBody::from_request(Request::new(body), &()).await {
        Ok(body) => body,
        Err(problem) => return (Vec::new(), Some(problem.detail().to_owned())),
    };
    let (mut messages, mut frames) = (Vec::new(), connect::frames(body).boxed());
    loop {
        match frames.next().await {
            Some(Ok(message)) => messages.push(message),
            Some(Err(error)) => return (messages, Some(error.to_string())),
            None => return (messages, None),
        }
    }
}

/// A parsed call.
#[derive(Debug)]
pub enum Call {
    /// A process, and its tag.
    Start(Box<v1::StartRequest>, Option<String>),
    /// Input for a process.
    Input(Bytes),
    /// A signal for a process.
    Signal(i32),
    /// Something about one path, or two.
    Paths(Vec<String>),
}

/// Parses the message of a call; returns `None` for a procedure without a check.
///
/// # Errors
/// Returns the message for the client.
pub fn call(procedure: &str, message: &[u8]) -> Option<Result<Call, String>> {
    let read = match procedure {
        "Start" => connect::parse::<StartRequest>(message)
            .and_then(|message| message.into_guest("sandbox"))
            .map(|(request, tag)| Call::Start(Box::new(request), tag)),
        "SendInput" => {
            connect::parse::<InputRequest>(message).and_then(|message| message.input.data()).map(Call::Input)
        }
        "SendSignal" => {
            connect::parse::<SignalRequest>(message).and_then(|message| message.number()).map(Call::Signal)
        }
        "Stat" => connect::parse::<PathRequest>(message).map(|message| vec![message.path]).map(paths),
        "Move" => connect::parse::<MoveRequest>(message)
            .map(|message| vec![message.source, message.destination])
            .map(paths),
        _ => return None,
    };
    Some(read.map_err(|refusal: Refusal| refusal.parts().1.to_owned()))
}

fn paths(named: Vec<String>) -> Call {
    Call::Paths(named.iter().map(|path| absolute(path)).collect())
}

/// Parses a request for a sandbox of a template called `base`. `internet` is the default for its internet access.
///
/// # Errors
/// Returns the problem if the request is not allowed.
pub fn new_sandbox(body: &[u8], internet: bool) -> Result<CreateSandbox, Problem> {
    let template = TemplateInfo {
        machine: false,
        start: None,
        ready: None,
        workdir: None,
        id: "base".to_owned(),
        name: None,
        kind: TemplateKind::Builtin,
        base: "host",
        warm: Vec::new(),
        source: None,
        digest: String::new(),
        bytes: 0,
        created_at: Timestamp::UNIX_EPOCH,
        note: None,
        build: None,
        parent: None,
        steps: Vec::new(),
        limits: BTreeMap::new(),
        env: BTreeMap::new(),
        image: None,
    };
    parse_json::<NewSandbox>(body)?.into_request(&template, 300, internet, false, None)
}

/// Parses the new network policy of a running sandbox.
///
/// # Errors
/// Returns the problem if the policy is not allowed.
pub fn network(body: &[u8]) -> Result<Option<NetworkFile>, Problem> {
    parse_json::<NetworkBody>(body)?.into_file(None)
}

/// Reports whether the query of a file's URL was signed with this token; `None` if it is not signed at all.
///
/// # Errors
/// Fails if the query is malformed.
pub fn is_signed(query: &str, operation: &str, token: &str) -> Result<Option<bool>, Problem> {
    let query = FilesQuery::parse(query)?;
    Ok(query.signature(operation).map(|signature| signature.is_made_with(token)))
}

/// Converts metadata to labels.
///
/// # Errors
/// Fails if the metadata exceeds the limits of labels.
pub fn to_labels(metadata: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Problem> {
    metadata::to_labels(metadata).map(|labels| labels.get().clone())
}

/// Converts labels back to metadata.
#[must_use]
pub fn from_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    metadata::from_labels(labels)
}

/// Parses a filter into the labels that it selects.
///
/// # Errors
/// Fails if the filter is malformed.
pub fn filter(text: &str) -> Result<BTreeMap<String, String>, Problem> {
    metadata::filter(text)
}

/// Parses an upload that arrives in these pieces, and returns the files of the form with their names, each a path.
///
/// # Errors
/// Fails if the upload is malformed or incomplete.
pub async fn upload(
    pieces: Vec<Bytes>,
    boundary: &str,
    is_gzip: bool,
) -> Result<Vec<(String, Vec<u8>)>, Problem> {
    let body = Body::from_stream(stream::iter(pieces).map(Ok::<_, io::Error>));
    let form = Form::new(files::pieces(body, is_gzip), boundary.to_owned());
    let mut files = Files { form, path: None, count: 0 };
    let mut all = Vec::new();
    while let Some((name, content)) = files.next().await? {
        let pieces: Vec<Bytes> = content.try_collect().await.map_err(|error| {
            Problem::new(crate::problem::Code::UploadFailed, format!("the upload broke off: {error}"))
        })?;
        all.push((absolute(&name), pieces.concat()));
    }
    Ok(all)
}

/// Parses the metadata of files in headers, by key; `None` if the headers are malformed.
///
/// # Errors
/// Fails if the metadata is not allowed or too large.
pub fn file_metadata(headers: &[(String, Vec<u8>)]) -> Option<Result<BTreeMap<String, Bytes>, Problem>> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    Some(files::metadata(&map).map(|kept| {
        kept.into_iter()
            .map(|(name, value)| (name.strip_prefix(METADATA).unwrap_or(&name).to_owned(), value))
            .collect()
    }))
}

/// Returns the boundary of the form in a `Content-Type`.
#[must_use]
pub fn boundary(kind: &str) -> Option<String> {
    multer::parse_boundary(kind).ok()
}
