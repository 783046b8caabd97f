//! Sandboxes.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use belljar_keeper::{KeeperError, ListSandboxes, Part, RunEvent, SandboxInfo};
use belljar_model::{NetworkEvent, NetworkRecord, SandboxState};
use futures::StreamExt as _;
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::types::{
    CreateSandboxBody, ForkBody, LogsBody, MetricsBody, SandboxBody, SnapshotBody, Span, TemplateInfoBody,
    TokenBody, UpdateBody,
};
use crate::api::Shared;
use crate::extract::{Auth, Id, IdempotentJson, Json, Query};
use crate::problem::{Problem, ProblemBody};
use crate::stream::{event, events};

/// Default number of entries on one page.
const DEFAULT_PAGE: u32 = 50;

/// Maximum number of entries on one page.
const MAX_PAGE: u32 = 100;

fn to_body(shared: &Shared, info: SandboxInfo) -> SandboxBody {
    SandboxBody::new(info, shared.config.domain.as_deref())
}

fn answer(shared: &Shared, info: SandboxInfo) -> axum::Json<SandboxBody> {
    axum::Json(to_body(shared, info))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CreateQuery {
    /// Whether to wait until it runs; yes, if not given. With `false` the answer is `202` as soon as the sandbox is accepted.
    wait: Option<bool>,
}

/// Creates a sandbox.
///
/// With `wait=false` the answer comes as soon as the sandbox is accepted, which then has the state `creating`: requests for it wait until it
/// runs, and the event `sandbox.created` or `sandbox.gone` tells how it went. A sandbox that runs at once is answered as without.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandboxBody,
    params(CreateQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "Idempotency key, with which a repeated request is performed only once: 1 to 255 of `[A-Za-z0-9_.:-]`.")),
    responses(
        (status = 201, description = "The created sandbox.", body = SandboxBody),
        (status = 202, description = "The sandbox, which is accepted and not created yet.", body = SandboxBody),
        (status = 200, description = "The existing sandbox.", body = SandboxBody)))]
pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<CreateQuery>,
    body: IdempotentJson<CreateSandboxBody>,
) -> Result<Response, Problem> {
    let request = body.value.into_request(body.idempotency, shared.keeper.default_lifetime())?;
    let created = match query.wait {
        None | Some(true) => shared.keeper.create(&caller, request).await?,
        Some(false) => {
            let mut run = shared.keeper.stream_create(&caller, request);
            loop {
                match run.next().await {
                    Some(RunEvent::Ended(created)) => break created?,
                    Some(RunEvent::Progress(info)) => {
                        return Ok((StatusCode::ACCEPTED, answer(&shared, info)).into_response());
                    }
                    Some(RunEvent::Waiting(_) | RunEvent::Queued) => {}
                    None => return Err(KeeperError::ShuttingDown.into()),
                }
            }
        }
    };
    let status = if created.existing { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, answer(&shared, created.info)).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// States to include, separated by commas; all but `gone` if not given. May be given several times.
    #[serde(default)]
    state: Vec<String>,
    /// A label that the sandboxes must have, as `key=value`. May be given several times; all must match.
    #[serde(default)]
    label: Vec<String>,
    /// The name.
    name: Option<String>,
    /// Entries of the page.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Cursor from the previous page.
    cursor: Option<String>,
    /// Newest first (`desc`) or oldest first (`asc`).
    #[param(inline)]
    order: Option<Order>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    Desc,
    Asc,
}

impl ListQuery {
    fn into_request(self) -> Result<ListSandboxes, Problem> {
        let limit = check_limit("limit", self.limit, DEFAULT_PAGE, MAX_PAGE)?;
        let states = split_words(&self.state).map(str::parse::<SandboxState>).collect::<Result<_, _>>();
        Ok(ListSandboxes {
            states: states?,
            labels: parse_labels(&self.label)?,
            name: self.name,
            ascending: self.order == Some(Order::Asc),
            limit,
            cursor: self.cursor,
        })
    }
}

/// Splits the values of a repeatable parameter at commas.
pub(super) fn split_words(given: &[String]) -> impl Iterator<Item = &str> {
    given.iter().flat_map(|words| words.split(',')).filter(|word| !word.is_empty())
}

/// Parses the values of the parameter `label`.
pub(super) fn parse_labels(given: &[String]) -> Result<BTreeMap<String, String>, Problem> {
    let mut labels = BTreeMap::new();
    for label in given {
        let (key, value) = label.split_once('=').ok_or_else(|| Problem::field("label", "give key=value"))?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some_and(|before| before != value) {
            return Err(Problem::field("label", format!("{key:?} is given with two values")));
        }
    }
    Ok(labels)
}

/// A part of a list that is given whole otherwise.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PartQuery {
    /// Entries of the page. All, if not given.
    #[param(minimum = 1, maximum = 100)]
    pub(super) limit: Option<u32>,
    /// Cursor from the previous page.
    pub(super) cursor: Option<String>,
}

impl PartQuery {
    pub(crate) fn part(self) -> Result<Part, Problem> {
        let checked = |limit| check_limit("limit", Some(limit), DEFAULT_PAGE, MAX_PAGE);
        Ok(Part { limit: self.limit.map(checked).transpose()?, cursor: self.cursor })
    }
}

/// Checks a limit, such as the number of entries on a page.
pub(crate) fn check_limit(field: &str, asked: Option<u32>, default: u32, max: u32) -> Result<u32, Problem> {
    match asked {
        None => Ok(default),
        Some(limit) if (1..=max).contains(&limit) => Ok(limit),
        Some(limit) => Err(Problem::field(field, format!("{limit} is not allowed; give 1 to {max}"))),
    }
}

/// A page of sandboxes.
#[derive(Serialize, ToSchema)]
#[schema(as = Sandboxes)]
pub(super) struct SandboxesBody {
    sandboxes: Vec<SandboxBody>,
    /// Cursor of the next page; absent after the last.
    next_cursor: Option<String>,
}

/// Lists sandboxes.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, description = "A page of sandboxes.", body = SandboxesBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<SandboxesBody>, Problem> {
    let page = shared.keeper.list(&caller, query.into_request()?).await?;
    let sandboxes = page.items.into_iter().map(|info| to_body(&shared, info)).collect();
    Ok(axum::Json(SandboxesBody { sandboxes, next_cursor: page.next_cursor }))
}

/// Shows a sandbox. This does not count as a use of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The sandbox.", body = SandboxBody)))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<SandboxBody>, Problem> {
    Ok(answer(&shared, shared.keeper.get(&caller, &id).await?))
}

/// Changes labels, limits, timeout settings and the network policy of a sandbox.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}", tag = "sandboxes", request_body = UpdateBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The sandbox as it is now.", body = SandboxBody)))]
pub(super) async fn update(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<UpdateBody>,
) -> Result<axum::Json<SandboxBody>, Problem> {
    Ok(answer(&shared, shared.keeper.update(&caller, &id, body.into_update()?).await?))
}

/// Ends a sandbox, with everything in it.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 204, description = "Removed.")))]
pub(super) async fn delete(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.kill(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A new timeout of a sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SetTimeout, example = json!({"timeout": 300}))]
pub(super) struct TimeoutBody {
    /// Timeout from now on; 0 ends the sandbox now.
    timeout: Span,
}

/// Sets the timeout of a sandbox, from now on.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/timeout", tag = "sandboxes", request_body = TimeoutBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The sandbox as it is now.", body = SandboxBody)))]
pub(super) async fn timeout(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<TimeoutBody>,
) -> Result<axum::Json<SandboxBody>, Problem> {
    Ok(answer(&shared, shared.keeper.set_timeout(&caller, &id, body.timeout.0).await?))
}

/// An empty body.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyBody {}

/// Pauses a sandbox: its processes are frozen and its timeout is suspended.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The sandbox as it is now.", body = SandboxBody)))]
pub(super) async fn pause(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(EmptyBody {}): Json<EmptyBody>,
) -> Result<axum::Json<SandboxBody>, Problem> {
    Ok(answer(&shared, shared.keeper.pause(&caller, &id).await?))
}

/// A minimum timeout of a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Resume, example = json!({"timeout": 300}))]
pub(super) struct ResumeBody {
    /// Minimum timeout from now on.
    timeout: Option<Span>,
}

/// Resumes a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes", request_body = ResumeBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The sandbox as it is now.", body = SandboxBody)))]
pub(super) async fn resume(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ResumeBody>,
) -> Result<axum::Json<SandboxBody>, Problem> {
    let timeout = body.timeout.map(|timeout| timeout.0);
    Ok(answer(&shared, shared.keeper.resume(&caller, &id, timeout).await?))
}

/// Saves a sandbox's files as a template. Processes are not saved.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/snapshot", tag = "sandboxes", request_body = SnapshotBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The template.", body = TemplateInfoBody)))]
pub(super) async fn snapshot(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<SnapshotBody>,
) -> Result<(StatusCode, axum::Json<TemplateInfoBody>), Problem> {
    let template = shared.keeper.snapshot(&caller, &id, body.into_request()?).await?;
    Ok((StatusCode::CREATED, axum::Json(template.into())))
}

/// Forked sandboxes.
#[derive(Serialize, ToSchema)]
#[schema(as = Forks)]
pub(super) struct ForksBody {
    sandboxes: Vec<ForkedBody>,
}

/// A forked sandbox, or the reason why it was not created.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Forked)]
pub(super) enum ForkedBody {
    /// The created sandbox.
    Sandbox(Box<SandboxBody>),
    /// The reason why it was not created.
    Error(ProblemBody),
}

/// Forks a sandbox: creates sandboxes with copies of its files. Processes are not copied.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork", tag = "sandboxes", request_body = ForkBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "Each sandbox, or the reason why it was not created.", body = ForksBody)))]
pub(super) async fn fork(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ForkBody>,
) -> Result<(StatusCode, axum::Json<ForksBody>), Problem> {
    let forks = shared.keeper.fork(&caller, &id, body.into_request()?).await?;
    let sandboxes = forks.all().await.into_iter().map(|one| match one {
        Ok(info) => ForkedBody::Sandbox(Box::new(to_body(&shared, info))),
        Err(error) => ForkedBody::Error(Problem::from(error).body(&caller.request_id)),
    });
    Ok((StatusCode::CREATED, axum::Json(ForksBody { sandboxes: sandboxes.collect() })))
}

/// Returns the current resource usage of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/metrics", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 200, description = "The resource usage.", body = MetricsBody)))]
pub(super) async fn metrics(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<MetricsBody>, Problem> {
    let info = shared.keeper.get(&caller, &id).await?;
    let metrics = shared.keeper.metrics(&caller, &id).await?;
    Ok(axum::Json(MetricsBody::new(metrics, &info.spec.limits)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LogsQuery {
    /// Entries after this one.
    after: Option<u64>,
    /// Entries of the page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Returns the log of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/logs", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id or name."), LogsQuery),
    responses((status = 200, description = "The log.", body = LogsBody)))]
pub(super) async fn logs(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<LogsQuery>,
) -> Result<axum::Json<LogsBody>, Problem> {
    let limit = check_limit("limit", query.limit, 100, 1000)?;
    let after = query.after.unwrap_or(0);
    let entries = shared.keeper.logs(&caller, &id, after, limit).await?;
    Ok(axum::Json(LogsBody::new(entries, after)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NetworkLogQuery {
    /// Begin after the record with this number.
    after: Option<u64>,
    /// Whether to continue with new records. `true` if not given. `false` ends with the last record.
    follow: Option<bool>,
}

/// A record, with its time as text.
#[derive(Serialize)]
struct NetworkRecordBody {
    number: u64,
    at: String,
    #[serde(flatten)]
    event: NetworkEvent,
}

/// Streams decisions about the connections of a running sandbox, as numbered server-sent events: the last 1,024 since it
/// was started or resumed, and new ones.
///
/// `lookup` is a name that was not resolved (`host`, `rule`, `reason`), `connection` a verdict (`flow`, `host`, `port`,
/// `allowed`, `address`, `rule`, `reason`), `ended` the end of an allowed connection (`flow`, `host`, `port`, `sent`,
/// `received`, `error`).
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network/log", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id or name."), NetworkLogQuery),
    responses((status = 200, description = "The decisions.", body = String, content_type = "text/event-stream",
        example = "event: network\nid: 1\ndata: {\"number\":1,\"at\":\"2026-11-24T10:00:00.000Z\",\"event\":\"connection\",\"flow\":1,\"host\":\"example.com\",\"port\":443,\"allowed\":true,\"address\":\"93.184.215.14\",\"rule\":\"allow: example.com:443\",\"reason\":\"example.com:443 is allowed\"}\n\n")))]
pub(super) async fn network_log(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<NetworkLogQuery>,
) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller)?;
    let follow = query.follow != Some(false);
    let records = shared.keeper.network_log(&caller, &id, query.after.unwrap_or(0), follow).await?;
    // The log ends with its gateway.
    let records =
        records.take_while(|record| std::future::ready(record.is_ok())).filter_map(async |record| {
            let NetworkRecord { number, unix_ms, event: what } = record.ok()?;
            let at = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?.to_string();
            Some(event("network", &NetworkRecordBody { number, at, event: what }).id(number.to_string()))
        });
    Ok(events(slot, caller.request_id, records))
}

/// A request for a token.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewToken, example = json!({"expires": 3600}))]
pub(super) struct NewTokenBody {
    /// Validity period. An hour, if not given.
    expires: Option<Span>,
}

impl NewTokenBody {
    pub(super) fn expires(&self) -> std::time::Duration {
        self.expires.map_or(DEFAULT_TOKEN_VALIDITY, |expires| expires.0)
    }
}

/// Default validity period of a token.
pub(super) const DEFAULT_TOKEN_VALIDITY: std::time::Duration = std::time::Duration::from_secs(3600);

/// Creates a token for this sandbox's own routes, and nothing else.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/tokens", tag = "sandboxes", request_body = NewTokenBody,
    params(("id" = String, Path, description = "The sandbox's id or name.")),
    responses((status = 201, description = "The token. It is shown only once.", body = TokenBody)))]
pub(super) async fn token(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<NewTokenBody>,
) -> Result<(StatusCode, axum::Json<TokenBody>), Problem> {
    let token = shared.keeper.sandbox_token(&caller, &id, body.expires()).await?;
    Ok((StatusCode::CREATED, axum::Json(token.into())))
}
