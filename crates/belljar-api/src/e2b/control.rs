//! The control plane: the life cycle of sandboxes.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{any, delete, get, post, put};
use belljar_keeper::{
    Caller, ForkRequest, KeeperError, Labels, ListSandboxes, MAX_PAGE, SandboxInfo, SandboxUpdate,
    SnapshotRequest,
};
use belljar_model::SandboxState;
use http::{HeaderValue, StatusCode, Uri};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

use super::domain::Domain;
use super::error::{json_answer, not_offered};
use super::network::NetworkBody;
use super::types::{ListedSandbox, Metric, NewSandbox, Sandbox, SandboxDetail, log_entry};
use super::{builds, secrets, templates, volumes};
use super::{metadata, templates::SnapshotBody};
use crate::api::Shared;
use crate::extract::{Auth, Id, IdempotentJson, Json, Query, refuse_keys};
use crate::problem::{Code, Problem};

/// Default timeouts of a sandbox, in seconds, by the generation of the route.
const DEFAULT_TIMEOUTS: [u64; 2] = [15, 300];

/// Paths with the method POST that obey the header `Idempotency-Key`.
const KEYED: [&str; 2] = ["/sandboxes", "/v2/sandboxes"];

/// Returns all routes of the control plane.
pub(super) fn router(shared: &Shared) -> Router {
    let router = Router::new()
        .route("/sandboxes", post(create::<0>).get(list_running))
        .route("/v2/sandboxes", post(create::<1>).get(list))
        .route("/sandboxes/{id}", get(detail).delete(kill))
        .route("/sandboxes/{id}/timeout", post(timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/fork", post(fork))
        .route("/sandboxes/{id}/snapshots", post(snapshot))
        .route("/sandboxes/{id}/network", put(network))
        .route("/sandboxes/{id}/metrics", get(metrics))
        .route("/sandboxes/{id}/logs", get(logs))
        .route("/v2/sandboxes/{id}/logs", get(logs))
        .route("/snapshots", get(templates::snapshots))
        .route("/templates", get(templates::list).post(not_supported))
        .route("/v2/templates", get(templates::list).post(builds::request))
        .route("/v3/templates", post(builds::request))
        .route("/templates/{id}", delete(templates::remove).fallback(not_supported))
        .route("/templates/aliases/{id}", get(templates::alias))
        .route("/templates/tags", post(templates::tag).delete(templates::untag))
        .route("/templates/{id}/tags", get(templates::tags))
        .route("/templates/{id}/files/{hash}", get(builds::files))
        .route("/uploads/{token}", put(builds::upload))
        .route("/v2/templates/{id}/builds/{build}", post(builds::start))
        .route("/templates/{id}/builds/{build}/status", get(builds::status))
        .route("/v2/templates/{id}", any(not_supported))
        .route("/v2/templates/{id}/{*rest}", any(not_supported))
        .route("/templates/{id}/{*rest}", any(not_supported))
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/{id}", get(volumes::get).delete(volumes::remove))
        .route(
            "/volumecontent/{id}/path",
            get(volumes::stat).patch(volumes::change).delete(volumes::remove_path),
        )
        .route("/volumecontent/{id}/dir", get(volumes::list_files).post(volumes::make_dir))
        .route("/volumecontent/{id}/file", get(volumes::read).put(volumes::write))
        .route("/secrets", get(secrets::list).post(secrets::create))
        .route("/secrets/{id}", get(secrets::get).post(secrets::update).delete(secrets::remove));
    let reason = "only making a sandbox has one; leave it out";
    refuse_keys(router, &KEYED, reason).with_state(shared.clone())
}

/// Refuses an operation on templates that E2B has and this server does not.
async fn not_supported() -> Problem {
    not_offered("this operation on templates")
}

/// Returns the sandbox with a new access token.
async fn with_token(
    shared: &Shared,
    caller: &Caller,
    domain: &Domain,
    info: &SandboxInfo,
) -> Result<Sandbox, Problem> {
    let token = shared.keeper.issue_access_token(caller, info.id.as_str()).await?;
    Ok(Sandbox::new(info, token, domain.0.clone()))
}

async fn create<const GENERATION: usize>(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    domain: Domain,
    IdempotentJson { value, idempotency }: IdempotentJson<NewSandbox>,
) -> Result<Response, Problem> {
    value.check()?;
    let template = templates::find(&shared, &caller, &value.template_id).await?;
    let default = DEFAULT_TIMEOUTS.get(GENERATION).copied().unwrap_or_default();
    let config = &shared.config;
    let request =
        value.into_request(&template, default, config.e2b_internet, config.e2b_public_ports, idempotency)?;
    let created = shared.keeper.create(&caller, request).await.map_err(|error| match error {
        // Clients take 404 to mean the template.
        KeeperError::NotFound { what: "volume", .. } => {
            Problem::field("volumeMounts", format!("invalid mounts: {error}"))
        }
        error => error.into(),
    })?;
    Ok(json_answer(StatusCode::CREATED, &with_token(&shared, &caller, &domain, &created.info).await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListQuery {
    metadata: Option<String>,
    #[serde(default)]
    state: Vec<String>,
    order: Option<Order>,
    started_after: Option<Timestamp>,
    template: Option<String>,
    limit: Option<u32>,
    next_token: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    Asc,
    Desc,
}

impl ListQuery {
    fn states(&self) -> Result<Vec<SandboxState>, Problem> {
        let mut states = Vec::new();
        for name in self.state.iter().flat_map(|names| names.split(',')).filter(|name| !name.is_empty()) {
            match name {
                "running" => states.extend([SandboxState::Creating, SandboxState::Running]),
                "paused" => states.push(SandboxState::Paused),
                other => return Err(Problem::field("state", format!("{other:?} is not running or paused"))),
            }
        }
        if states.is_empty() {
            states = vec![SandboxState::Creating, SandboxState::Running, SandboxState::Paused];
        }
        Ok(states)
    }
}

/// Lists a page of sandboxes. Leaves out those started before `startedAfter` or from another template.
async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Problem::field("limit", format!("{limit} is not allowed; give 1 to {MAX_PAGE}")));
    }
    let request = ListSandboxes {
        states: query.states()?,
        labels: metadata::filter(query.metadata.as_deref().unwrap_or_default())?,
        name: None,
        ascending: query.order == Some(Order::Asc),
        limit,
        cursor: query.next_token.clone().filter(|token| !token.is_empty()),
    };
    let page = shared.keeper.list(&caller, request).await?;
    let matches = |info: &&SandboxInfo| {
        let started = info.started_at.unwrap_or(info.created_at);
        !info.for_build
            && query.started_after.is_none_or(|after| started > after)
            && query.template.as_deref().is_none_or(|name| {
                templates::public_name(&info.template) == templates::public_name(name)
                    || info.template == name
            })
    };
    let listed: Vec<ListedSandbox> = page.items.iter().filter(matches).map(ListedSandbox::from).collect();
    let mut response = json_answer(StatusCode::OK, &listed);
    if let Some(token) = page.next_cursor.and_then(|cursor| HeaderValue::from_str(&cursor).ok()) {
        response.headers_mut().insert("x-next-token", token);
    }
    Ok(response)
}

#[derive(Deserialize)]
struct RunningQuery {
    metadata: Option<String>,
}

/// Lists all running sandboxes, for the first generation of clients.
async fn list_running(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<RunningQuery>,
) -> Result<Response, Problem> {
    let mut request = ListSandboxes {
        states: vec![SandboxState::Creating, SandboxState::Running],
        labels: metadata::filter(query.metadata.as_deref().unwrap_or_default())?,
        limit: MAX_PAGE,
        ..ListSandboxes::default()
    };
    let mut all = Vec::new();
    loop {
        let page = shared.keeper.list(&caller, request.clone()).await?;
        all.extend(page.items.iter().filter(|info| !info.for_build).map(ListedSandbox::from));
        request.cursor = page.next_cursor;
        if request.cursor.is_none() {
            return Ok(json_answer(StatusCode::OK, &all));
        }
    }
}

async fn detail(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    domain: Domain,
    Id(id): Id,
) -> Result<Response, Problem> {
    let info = shared.keeper.get(&caller, &id).await?;
    let token = match shared.keeper.access_token(&caller, &id).await {
        // A read-only key gets everything but the access token.
        Err(KeeperError::Forbidden { .. }) => None,
        token => Some(token?),
    };
    let ports = shared.keeper.port_settings(&info.id).unwrap_or_default();
    Ok(json_answer(StatusCode::OK, &SandboxDetail::new(&info, token, &ports, domain.0)))
}

async fn kill(State(shared): State<Shared>, Auth(caller): Auth, Id(id): Id) -> Result<StatusCode, Problem> {
    shared.keeper.kill(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct TimeoutBody {
    timeout: u64,
}

async fn timeout(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<TimeoutBody>,
) -> Result<StatusCode, Problem> {
    shared.keeper.set_timeout(&caller, &id, Duration::from_secs(body.timeout)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct RefreshBody {
    duration: Option<u64>,
}

/// Extends the timeout of a running sandbox, and never shortens it.
async fn refresh(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<RefreshBody>,
) -> Result<StatusCode, Problem> {
    let info = shared.keeper.get(&caller, &id).await?;
    if info.state == SandboxState::Paused {
        return Err(Problem::new(Code::WrongState, format!("sandbox {id} is paused; resume it first")));
    }
    let timeout = Duration::from_secs(body.duration.unwrap_or(DEFAULT_TIMEOUTS[0]));
    shared.keeper.resume(&caller, &id, Some(timeout)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResumeBody {
    timeout: Option<u64>,
    auto_pause: Option<bool>,
    memory: Option<bool>,
}

fn check_memory(memory: Option<bool>) -> Result<(), Problem> {
    match memory {
        Some(false) => {
            Err(not_offered("memory: false (a pause keeps all of a sandbox, and a resume restores it)"))
        }
        _ => Ok(()),
    }
}

/// Resumes a paused sandbox (201), or extends the timeout of a running one (200).
async fn connect(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    domain: Domain,
    Id(id): Id,
    Json(body): Json<ResumeBody>,
) -> Result<Response, Problem> {
    check_memory(body.memory)?;
    let was_paused = shared.keeper.get(&caller, &id).await?.state == SandboxState::Paused;
    let timeout = Duration::from_secs(body.timeout.unwrap_or(DEFAULT_TIMEOUTS[1]));
    let info = shared.keeper.resume(&caller, &id, Some(timeout)).await?;
    let status = if was_paused { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json_answer(status, &with_token(&shared, &caller, &domain, &info).await?))
}

/// Resumes a paused sandbox, for clients older than `connect`.
async fn resume(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    domain: Domain,
    Id(id): Id,
    Json(body): Json<ResumeBody>,
) -> Result<Response, Problem> {
    check_memory(body.memory)?;
    if shared.keeper.get(&caller, &id).await?.state != SandboxState::Paused {
        return Err(Problem::new(Code::WrongState, format!("Sandbox {id} is already running")));
    }
    if let Some(auto_pause) = body.auto_pause {
        use belljar_keeper::TimeoutAction::{Kill, Pause};
        let on_timeout = Some(if auto_pause { Pause } else { Kill });
        shared.keeper.update(&caller, &id, SandboxUpdate { on_timeout, ..SandboxUpdate::default() }).await?;
    }
    let timeout = Duration::from_secs(body.timeout.unwrap_or(DEFAULT_TIMEOUTS[0]));
    let info = shared.keeper.resume(&caller, &id, Some(timeout)).await?;
    Ok(json_answer(StatusCode::CREATED, &with_token(&shared, &caller, &domain, &info).await?))
}

#[derive(Deserialize)]
struct PauseBody {
    memory: Option<bool>,
}

async fn pause(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<PauseBody>,
) -> Result<StatusCode, Problem> {
    check_memory(body.memory)?;
    shared.keeper.pause(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct ForkBody {
    timeout: Option<u64>,
    count: Option<u32>,
}

async fn fork(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    domain: Domain,
    Id(id): Id,
    Json(body): Json<ForkBody>,
) -> Result<Response, Problem> {
    let request = ForkRequest {
        count: body.count.unwrap_or(1),
        timeout: Some(Duration::from_secs(body.timeout.unwrap_or(DEFAULT_TIMEOUTS[0]))),
        labels: Labels::default(),
        env: BTreeMap::new(),
    };
    let forks = shared.keeper.fork(&caller, &id, request).await?.all().await;
    let mut all: Vec<Value> = Vec::new();
    for fork in forks {
        let made = match fork {
            Ok(info) => with_token(&shared, &caller, &domain, &info).await,
            Err(error) => Err(error.into()),
        };
        all.push(match made {
            Ok(sandbox) => json!({ "sandbox": sandbox }),
            Err(problem) => {
                json!({"error": {"code": problem.code().status_number(), "message": problem.detail()}})
            }
        });
    }
    Ok(json_answer(StatusCode::CREATED, &all))
}

#[derive(Deserialize)]
struct SnapshotRequestBody {
    name: Option<String>,
    memory: Option<bool>,
}

/// Takes a snapshot of a sandbox's files. Processes are never included.
async fn snapshot(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<SnapshotRequestBody>,
) -> Result<Response, Problem> {
    // Accepted without effect: `memory: false` is what happens anyway.
    let _ = body.memory;
    let name =
        body.name.as_deref().map(|name| name.strip_suffix(":default").unwrap_or(name).parse()).transpose()?;
    let template = shared.keeper.snapshot(&caller, &id, SnapshotRequest { name, note: None }).await?;
    Ok(json_answer(StatusCode::CREATED, &SnapshotBody::from(template)))
}

/// Replaces the network policy. Missing fields are cleared.
async fn network(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<NetworkBody>,
) -> Result<StatusCode, Problem> {
    let network = Some(body.into_file(None)?.unwrap_or_else(|| "open".into()));
    shared.keeper.update(&caller, &id, SandboxUpdate { network, ..SandboxUpdate::default() }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct MetricsQuery {
    start: Option<i64>,
    end: Option<i64>,
}

/// Returns the current usage, if the requested range includes the present. No history is kept.
async fn metrics(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<MetricsQuery>,
) -> Result<Response, Problem> {
    let info = shared.keeper.get(&caller, &id).await?;
    let metrics = shared.keeper.metrics(&caller, &id).await?;
    let now = Timestamp::now().as_second();
    let includes_now = query.start.is_none_or(|start| start <= now) && query.end.is_none_or(|end| end >= now);
    let all: Vec<Metric> = includes_now.then(|| Metric::new(&info, &metrics)).into_iter().collect();
    Ok(json_answer(StatusCode::OK, &all))
}

#[derive(Deserialize)]
struct LogsQuery {
    limit: Option<u32>,
}

/// Maximum number of log entries in one response.
const MAX_LOG_ENTRIES: u32 = 1000;

/// Returns the log of a sandbox, in the formats of both generations.
async fn logs(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Query(query): Query<LogsQuery>,
    uri: Uri,
) -> Result<Response, Problem> {
    let limit = query.limit.unwrap_or(MAX_LOG_ENTRIES);
    if !(1..=MAX_LOG_ENTRIES).contains(&limit) {
        return Err(Problem::field("limit", format!("{limit} is not allowed; give 1 to {MAX_LOG_ENTRIES}")));
    }
    let entries: Vec<Value> =
        shared.keeper.logs(&caller, &id, 0, limit).await?.iter().map(log_entry).collect();
    if uri.path().starts_with("/v2/") {
        return Ok(json_answer(StatusCode::OK, &json!({ "logs": entries })));
    }
    let line = |entry: &Value| json!({"timestamp": entry["timestamp"], "line": entry["message"]});
    let lines: Vec<Value> = entries.iter().map(line).collect();
    Ok(json_answer(StatusCode::OK, &json!({"logs": lines, "logEntries": entries})))
}
