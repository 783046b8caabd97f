//! Watches on directories, as a stream and by polling.
//!
//! The guest reports what changed; E2B's clients expect the events of a plain write. A file that the daemon writes
//! appears complete under its name, and is reported as created, changed in its mode and written, as it would be with
//! E2B.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use belljar_engine::{ErrorCode, Watch, v1};
use belljar_keeper::operation::Opened;
use belljar_model::SandboxId;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::connect;
use super::entry::{EntryInfo, SandboxCall, absolute, stat};
use super::error::Refusal;
use super::process::{KeepAlive, with_keep_alive};
use crate::guard::StreamSlot;

/// Maximum number of events that wait for a polling client.
const MAX_EVENTS: usize = 10_000;

/// Maximum number of watchers of one sandbox.
const MAX_WATCHERS: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatchRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatcherRequest {
    #[serde(default)]
    watcher_id: String,
}

/// A change in E2B's format.
#[derive(Debug, Clone, Serialize)]
struct Event {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

/// Returns the kinds of E2B's events for a change. `placed` means that a new file appeared complete under its name.
fn kinds(event: &v1::WatchEvent, placed: bool) -> &'static [&'static str] {
    match event.kind.as_known().unwrap_or_default() {
        v1::WatchKind::WATCH_KIND_CREATED | v1::WatchKind::WATCH_KIND_MOVED_TO => &["EVENT_TYPE_CREATE"],
        // Nothing else of a directory can change.
        v1::WatchKind::WATCH_KIND_CHANGED if event.directory => &["EVENT_TYPE_CHMOD"],
        v1::WatchKind::WATCH_KIND_CHANGED if placed => &["EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"],
        v1::WatchKind::WATCH_KIND_CHANGED => &["EVENT_TYPE_WRITE"],
        v1::WatchKind::WATCH_KIND_REMOVED => &["EVENT_TYPE_REMOVE"],
        v1::WatchKind::WATCH_KIND_MOVED_FROM => &["EVENT_TYPE_RENAME"],
        _ => &[],
    }
}

/// Opens a watch. Later changes are seen.
async fn open(
    call: &SandboxCall<'_>,
    request: &WatchRequest,
) -> Result<(Opened<Watch>, StreamSlot), Refusal> {
    let path = absolute(&request.path);
    let found = call.perform(stat(&path, true)).await?;
    if found.kind.as_known() != Some(v1::FileKind::FILE_KIND_DIRECTORY) {
        return Err(Refusal::invalid(format!("path is not a directory: {path}")));
    }
    let slot = call.shared.streams.take(call.caller)?;
    let asked = v1::WatchRequest { path: path.into(), recursive: request.recursive, ..Default::default() };
    let opened = call.shared.keeper.begin_in(call.caller, call.entered, asked).await;
    let mut opened = opened.map_err(|error| call.refusal(error))?;
    // The first event reports that the watch is active.
    opened.next().await.map_err(|error| call.refusal(error))?;
    Ok((opened, slot))
}

/// The watched directory, and the options of its events.
struct WatchedDir {
    shared: super::E2b,
    caller: belljar_keeper::Caller,
    id: SandboxId,
    path: String,
    with_entries: bool,
    /// The file that was created last.
    created: Bytes,
}

impl WatchedDir {
    fn new(call: &SandboxCall<'_>, request: &WatchRequest) -> Self {
        Self {
            shared: call.shared.clone(),
            caller: call.caller.clone(),
            id: call.entered.id().clone(),
            path: absolute(&request.path),
            with_entries: request.include_entry,
            created: Bytes::new(),
        }
    }

    /// Converts a change to the events for clients.
    async fn events(&mut self, opened: &Opened<Watch>, event: &v1::WatchEvent) -> Vec<Event> {
        let name = String::from_utf8_lossy(&event.path).into_owned();
        let path = format!("{}/{name}", self.path);
        let call = SandboxCall { shared: &self.shared, caller: &self.caller, entered: opened.sandbox() };
        let placed = self.created == event.path && self.shared.0.watchers.is_placed(&self.id, &path);
        // A file that was removed meanwhile has no entry.
        let entry = if self.with_entries { call.entry(&path).await.ok() } else { None };
        let is_new = event.kind.as_known() == Some(v1::WatchKind::WATCH_KIND_CREATED);
        self.created = if is_new { event.path.clone() } else { Bytes::new() };
        let to_event = |kind: &&'static str| Event { name: name.clone(), kind, entry: entry.clone() };
        kinds(event, placed).iter().map(to_event).collect()
    }
}

/// `WatchDir`: streams changes until the client disconnects.
pub(super) async fn stream(call: &SandboxCall<'_>, request: Request) -> Result<Response, Refusal> {
    let keep_alive = KeepAlive::from_headers(request.headers(), &json!({"keepalive": {}}));
    let asked: WatchRequest = connect::message(request).await?;
    let (mut opened, slot) = open(call, &asked).await?;
    let mut dir = WatchedDir::new(call, &asked);
    let frames = async_stream::stream! {
        yield connect::frame(&json!({"start": {}}));
        loop {
            match opened.next().await {
                Ok(Some(event)) => {
                    if is_overflow(&event) {
                        yield connect::end(Some(&overflow()));
                        return;
                    }
                    for event in dir.events(&opened, &event).await {
                        yield connect::frame(&json!({ "filesystem": event }));
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    yield connect::end(Some(&Refusal::from_keeper(dir.id.as_str(), error)));
                    return;
                }
            }
        }
        yield connect::end(None);
    };
    Ok(connect::streaming(with_keep_alive(frames, keep_alive, slot)))
}

fn is_overflow(event: &v1::WatchEvent) -> bool {
    event.kind.as_known() == Some(v1::WatchKind::WATCH_KIND_OVERFLOW)
}

fn overflow() -> Refusal {
    Refusal::new(ErrorCode::ResourceExhausted, "events came faster than they were read; watch again")
}

/// Watches of polling clients.
#[derive(Default)]
pub(super) struct Watchers {
    table: Mutex<WatcherTable>,
    placed: Mutex<VecDeque<(SandboxId, String)>>,
}

#[derive(Default)]
struct WatcherTable {
    /// Number of watchers created so far.
    count: u64,
    watchers: HashMap<String, Watcher>,
}

struct Watcher {
    sandbox: SandboxId,
    events: Arc<Mutex<PendingEvents>>,
    task: tokio::task::AbortHandle,
}

/// Changes that the client has not fetched yet.
#[derive(Default)]
struct PendingEvents {
    events: VecDeque<Event>,
    /// Error after which no more changes follow.
    ended: Option<(ErrorCode, String)>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Maximum number of files remembered as written by the daemon, of all sandboxes together. Their events follow soon
/// after.
const MAX_PLACED: usize = 1024;

impl Watchers {
    /// Remembers that the daemon is about to write this file.
    pub(super) fn place(&self, id: &SandboxId, path: &str) {
        let mut placed = self.placed.lock();
        if placed.len() == MAX_PLACED {
            placed.pop_front();
        }
        placed.push_back((id.clone(), path.to_owned()));
    }

    fn is_placed(&self, id: &SandboxId, path: &str) -> bool {
        let placed = self.placed.lock();
        placed.iter().any(|(sandbox, at)| sandbox == id && at == path)
    }

    fn lock(&self) -> MutexGuard<'_, WatcherTable> {
        self.table.lock()
    }
}

/// `CreateWatcher`.
pub(super) async fn create(call: &SandboxCall<'_>, request: WatchRequest) -> Result<Value, Refusal> {
    let id = call.entered.id().clone();
    let (mut opened, slot) = open(call, &request).await?;
    let mut dir = WatchedDir::new(call, &request);
    let pending = Arc::new(Mutex::new(PendingEvents::default()));
    let events = Arc::clone(&pending);
    let shared = call.shared.clone();
    let mut table = shared.0.watchers.lock();
    // Watchers of sandboxes that have ended have no client left.
    table.watchers.retain(|_, watcher| call.shared.keeper.state_of(&watcher.sandbox).is_some());
    if table.watchers.values().filter(|watcher| watcher.sandbox == id).count() >= MAX_WATCHERS {
        let message = format!("a sandbox has at most {MAX_WATCHERS} watchers; remove one");
        return Err(Refusal::new(ErrorCode::ResourceExhausted, message));
    }
    let task = tokio::spawn(async move {
        let ended = loop {
            let event = tokio::select! {
                event = opened.next() => event,
                problem = slot.wait_for_end() => break Refusal::from(problem),
            };
            match event {
                Ok(Some(event)) if is_overflow(&event) => break overflow(),
                Ok(Some(event)) => {
                    let changes = dir.events(&opened, &event).await;
                    let mut pending = events.lock();
                    if pending.events.len() + changes.len() > MAX_EVENTS {
                        break overflow();
                    }
                    pending.events.extend(changes);
                }
                Ok(None) => break Refusal::new(ErrorCode::NotFound, "the watched directory was removed"),
                Err(error) => break Refusal::from_keeper(dir.id.as_str(), error),
            }
        };
        let (code, message) = ended.parts();
        events.lock().ended = Some((code, message.to_owned()));
    });
    table.count += 1;
    let name = format!("w{}", table.count);
    let watcher = Watcher { sandbox: id, events: pending, task: task.abort_handle() };
    table.watchers.insert(name.clone(), watcher);
    Ok(json!({ "watcherId": name }))
}

fn watcher_not_found(request: &WatcherRequest) -> Refusal {
    Refusal::new(ErrorCode::NotFound, format!("watcher with id {} not found", request.watcher_id))
}

/// `GetWatcherEvents`: returns the changes since the previous call.
pub(super) fn events(call: &SandboxCall<'_>, request: &WatcherRequest) -> Result<Value, Refusal> {
    let table = call.shared.0.watchers.lock();
    let watcher = table.watchers.get(&request.watcher_id);
    let watcher = watcher.filter(|watcher| watcher.sandbox == *call.entered.id());
    let watcher = watcher.ok_or_else(|| watcher_not_found(request))?;
    let mut pending = watcher.events.lock();
    match &pending.ended {
        Some((code, message)) if pending.events.is_empty() => Err(Refusal::new(*code, message.clone())),
        _ => {
            let events: Vec<Event> = pending.events.drain(..).collect();
            Ok(json!({ "events": events }))
        }
    }
}

/// `RemoveWatcher`.
pub(super) fn remove(call: &SandboxCall<'_>, request: &WatcherRequest) -> Result<Value, Refusal> {
    let mut table = call.shared.0.watchers.lock();
    let belongs = table.watchers.get(&request.watcher_id).is_some_and(|it| it.sandbox == *call.entered.id());
    if !belongs {
        return Err(watcher_not_found(request));
    }
    table.watchers.remove(&request.watcher_id);
    Ok(json!({}))
}
