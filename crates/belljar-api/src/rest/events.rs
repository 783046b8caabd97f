//! Live events of the service.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use belljar_keeper::{EventFilter, Occurrence};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::sandboxes::{parse_labels, split_words};
use crate::api::Shared;
use crate::extract::{Auth, Query};
use crate::problem::Problem;
use crate::stream::{event, events};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Kinds, separated by commas: whole, or the part before the point, such as `sandbox,process.exited`. All, if not given.
    /// May be given several times.
    #[serde(default)]
    kind: Vec<String>,
    /// A label that the sandbox must have, as `key=value`. May be given several times; all must match.
    #[serde(default)]
    label: Vec<String>,
    /// The sandbox, by id.
    sandbox: Option<String>,
    /// Whether to continue with new events. `true` if not given. `false` ends with the last event; without an id it
    /// begins with the oldest event that is kept.
    follow: Option<bool>,
    /// Begin after the event with this id. The header `Last-Event-ID` has the same meaning and takes precedence.
    after: Option<String>,
}

#[derive(Serialize)]
struct MissedBody {
    /// Number of missed events; `None` if the server has been restarted since.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

impl EventsQuery {
    fn filter(&self) -> Result<EventFilter, Problem> {
        let sandbox = self.sandbox.as_ref().map(|id| id.parse()).transpose();
        Ok(EventFilter {
            kinds: split_words(&self.kind).map(str::to_owned).collect(),
            labels: parse_labels(&self.label)?,
            sandbox: sandbox.map_err(|_| {
                Problem::field("sandbox", "invalid id; a sandbox's name is not accepted here")
            })?,
        })
    }
}

/// Streams events as server-sent events: those of sandboxes, processes, templates and ports of the caller's tenant; for
/// administrators those of all tenants, and of keys.
///
/// The name of each event is its kind: `sandbox.created`, `sandbox.paused`, `sandbox.resumed`, `sandbox.stopping`, `sandbox.gone`,
/// `sandbox.adopted`, `process.started`, `process.exited`, `context.ended`, `approval.requested`, `approval.approved`,
/// `approval.denied`, `approval.budget_ended`, `approval.expired`, `approval.cancelled` (their detail is the approval's id), `network.deny` (host, port and rule), and actions of the audit log on
/// templates, keys and ports. `missed` with `{"count"}` means that events are no longer available. An interrupted stream continues with `Last-Event-ID`.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(EventsQuery),
    responses((status = 200, description = "The events.", body = String, content_type = "text/event-stream",
        example = "event: sandbox.gone\nid: 5d0c6a3f-17\ndata: {\"id\":\"5d0c6a3f-17\",\"at\":\"2026-11-24T10:00:00.000000Z\",\"kind\":\"sandbox.gone\",\"tenant\":\"default\",\"sandbox\":\"k3v9x2m4q8w1z7t5r6p0\",\"detail\":\"timed out\"}\n\n")))]
pub(super) async fn follow(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Response, Problem> {
    let header = headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().to_owned());
    let after = header.or_else(|| query.after.clone()).filter(|id| !id.is_empty());
    let slot = shared.streams.take(&caller)?;
    let followed =
        shared.keeper.follow(&caller, query.filter()?, after.as_deref(), query.follow != Some(false))?;
    let frames = followed.map(|occurrence| match occurrence {
        Occurrence::Event(what) => Event::default().data(what.json()).event(&*what.kind).id(&what.id),
        Occurrence::Missed(count) => event("missed", &MissedBody { count }),
    });
    Ok(events(slot, caller.request_id, frames))
}
