//! The service `Filesystem` of E2B's daemon.

use axum::extract::Request;
use axum::response::Response;
use belljar_engine::{ErrorCode, v1};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::entry::{DIRECTORY, METADATA, SandboxCall, absolute, stat};
use super::error::Refusal;
use super::{connect, watch};

/// Maximum number of entries of one listing.
pub(super) const MAX_ENTRIES: usize = 100_000;

/// Maximum depth of a listing, in levels below the directory.
pub(super) const MAX_DEPTH: u32 = 64;

#[derive(Deserialize)]
pub(super) struct PathRequest {
    #[serde(default)]
    pub(super) path: String,
}

#[derive(Deserialize)]
pub(super) struct MoveRequest {
    #[serde(default)]
    pub(super) source: String,
    #[serde(default)]
    pub(super) destination: String,
}

#[derive(Deserialize)]
struct ListRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

/// Answers a call.
pub(super) async fn answer(
    call: &SandboxCall<'_>,
    procedure: &str,
    request: Request,
) -> Result<Response, Refusal> {
    if procedure == "WatchDir" {
        return watch::stream(call, request).await;
    }
    let is_stream = connect::is_stream(request.headers());
    let answer = match procedure {
        "Stat" => {
            let PathRequest { path } = connect::message(request).await?;
            json!({ "entry": call.entry(&absolute(&path)).await? })
        }
        "MakeDir" => {
            let PathRequest { path } = connect::message(request).await?;
            make_dir(call, &absolute(&path)).await?
        }
        "Move" => {
            let MoveRequest { source, destination } = connect::message(request).await?;
            rename(call, &absolute(&source), &absolute(&destination)).await?
        }
        "ListDir" => {
            let ListRequest { path, depth } = connect::message(request).await?;
            list(call, &absolute(&path), depth.max(1)).await?
        }
        "Remove" => {
            let PathRequest { path } = connect::message(request).await?;
            remove(call, &absolute(&path)).await?
        }
        "CreateWatcher" => watch::create(call, connect::message(request).await?).await?,
        "GetWatcherEvents" => watch::events(call, &connect::message(request).await?)?,
        "RemoveWatcher" => watch::remove(call, &connect::message(request).await?)?,
        _ => {
            return Err(Refusal::new(ErrorCode::Unimplemented, format!("unknown procedure {procedure:?}")));
        }
    };
    Ok(connect::unary(&answer, is_stream))
}

fn bytes(path: &str) -> Bytes {
    Bytes::copy_from_slice(path.as_bytes())
}

async fn make_dir(call: &SandboxCall<'_>, path: &str) -> Result<Value, Refusal> {
    match call.perform(stat(path, true)).await {
        Ok(found) if found.kind.as_known() == Some(v1::FileKind::FILE_KIND_DIRECTORY) => {
            return Err(Refusal::new(ErrorCode::AlreadyExists, format!("directory already exists: {path}")));
        }
        Ok(_) => {
            return Err(Refusal::invalid(format!("path already exists but it is not a directory: {path}")));
        }
        Err(Refusal::Error(ErrorCode::NotFound, _)) => {}
        Err(refused) => return Err(refused),
    }
    call.perform(v1::MakeDirRequest { path: bytes(path), parents: true, ..Default::default() }).await?;
    Ok(json!({ "entry": call.entry(path).await? }))
}

async fn rename(call: &SandboxCall<'_>, from: &str, to: &str) -> Result<Value, Refusal> {
    // A missing source is reported before a directory is created for it.
    call.perform(stat(from, false)).await?;
    if let Some((parent, _)) = to.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
        call.perform(v1::MakeDirRequest { path: bytes(parent), parents: true, ..Default::default() }).await?;
    }
    let request = v1::MoveRequest { from: bytes(from), to: bytes(to), overwrite: true, ..Default::default() };
    call.perform(request).await?;
    Ok(json!({ "entry": call.entry(to).await? }))
}

async fn list(call: &SandboxCall<'_>, path: &str, depth: u32) -> Result<Value, Refusal> {
    let directory = call.entry(path).await?;
    if directory.kind != DIRECTORY {
        return Err(Refusal::invalid(format!("path is not a directory: {path}")));
    }
    let depth = depth.min(MAX_DEPTH);
    let mut request =
        v1::ListRequest { path: bytes(path), depth, attributes: METADATA.to_owned(), ..Default::default() };
    let mut entries = Vec::new();
    loop {
        let page = call.perform(request.clone()).await?;
        for entry in &page.entries {
            if entries.len() == MAX_ENTRIES {
                let message = format!("{path}: too many entries: more than {MAX_ENTRIES}; list less of it");
                return Err(Refusal::new(ErrorCode::ResourceExhausted, message));
            }
            let at = format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(&entry.path));
            entries.push(call.describe(at, entry).await?);
        }
        if page.next.is_empty() {
            return Ok(json!({ "entries": entries }));
        }
        request.after = page.next;
    }
}

async fn remove(call: &SandboxCall<'_>, path: &str) -> Result<Value, Refusal> {
    match call.perform(v1::RemoveRequest { path: bytes(path), recursive: true, ..Default::default() }).await {
        // Removing a missing file succeeds.
        Ok(_) | Err(Refusal::Error(ErrorCode::NotFound, _)) => Ok(json!({})),
        Err(refused) => Err(refused),
    }
}
