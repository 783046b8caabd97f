//! Watches on files.

use axum::extract::State;
use axum::response::Response;
use belljar_engine::v1;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::types::{parse_path, to_text};
use crate::api::Shared;
use crate::extract::{Auth, Id, Query};
use crate::problem::Problem;
use crate::stream::{event, events, problem_event};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchQuery {
    /// The directory. The home directory, if not given.
    path: Option<String>,
    /// `path` in base64, for names that are not UTF-8.
    path_base64: Option<String>,
    /// Whether subdirectories are watched. `true` if not given.
    recursive: Option<bool>,
}

#[derive(Serialize)]
struct ChangeBody {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    directory: bool,
}

#[derive(Serialize)]
struct Empty {}

/// Streams changes below a directory, as server-sent events: `ready` once, then `created`, `changed`, `removed`,
/// `moved_from` and `moved_to` with `{"path","directory"}`, and `overflow` when events came faster than they were read.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/watch", tag = "files",
    params(("id" = String, Path, description = "The sandbox's id or name."), WatchQuery),
    responses((status = 200, description = "The changes.", body = String, content_type = "text/event-stream",
        example = "event: ready\ndata: {}\n\nevent: created\ndata: {\"path\":\"a.txt\",\"directory\":false}\n\n")))]
pub(super) async fn watch(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Problem> {
    let path = parse_path(query.path, query.path_base64.as_deref(), Some("."))?;
    let slot = shared.streams.take(&caller)?;
    let recursive = query.recursive.unwrap_or(true);
    let request = v1::WatchRequest { path, recursive, ..Default::default() };
    let mut watch = shared.keeper.begin(&caller, &id, request).await?;
    let request_id = caller.request_id.clone();
    let stream = async_stream::stream! {
        loop {
            match watch.next().await {
                Ok(Some(change)) => yield to_event(&change),
                Ok(None) => return,
                Err(error) => {
                    yield problem_event(&error.into(), &request_id);
                    return;
                }
            }
        }
    };
    Ok(events(slot, caller.request_id, stream))
}

fn to_event(change: &v1::WatchEvent) -> axum::response::sse::Event {
    let name = match change.kind.as_known().unwrap_or_default() {
        v1::WatchKind::WATCH_KIND_READY => return event("ready", &Empty {}),
        v1::WatchKind::WATCH_KIND_OVERFLOW => return event("overflow", &Empty {}),
        v1::WatchKind::WATCH_KIND_CREATED => "created",
        v1::WatchKind::WATCH_KIND_UNSPECIFIED | v1::WatchKind::WATCH_KIND_CHANGED => "changed",
        v1::WatchKind::WATCH_KIND_REMOVED => "removed",
        v1::WatchKind::WATCH_KIND_MOVED_FROM => "moved_from",
        v1::WatchKind::WATCH_KIND_MOVED_TO => "moved_to",
    };
    let (path, path_base64) = to_text(&change.path);
    event(name, &ChangeBody { path, path_base64, directory: change.directory })
}
