//! Templates under the names that E2B's clients expect.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{
    Caller, DEFAULT_TEMPLATE, KeeperError, Part, TaggedName, TemplateInfo, TemplateKind, TemplateTag,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::json_answer;
use crate::api::Shared;
use crate::extract::{self, Auth, Id, Query};
use crate::problem::Problem;

/// Default template name of E2B's clients.
pub(super) const BASE: &str = "base";

/// Default template name of the code interpreter's client.
pub(super) const CODE_INTERPRETER: &str = "code-interpreter-v1";

/// Returns the templates that substitute for a missing one of this name.
fn substitutes(name: &str) -> &'static [&'static str] {
    match name {
        BASE => &[DEFAULT_TEMPLATE],
        CODE_INTERPRETER => &["code-interpreter", "code-interpreter-light", DEFAULT_TEMPLATE],
        _ => &[],
    }
}

/// Finds the template that a client names.
///
/// # Errors
/// Fails if no such template exists.
pub(super) async fn find(shared: &Shared, caller: &Caller, asked: &str) -> Result<TemplateInfo, Problem> {
    let name = asked.strip_suffix(":default").unwrap_or(asked);
    let candidates = std::iter::once(name).chain(substitutes(name).iter().copied());
    for candidate in candidates {
        match shared.keeper.template(caller, candidate).await {
            Err(KeeperError::NotFound { .. }) => {}
            found => return Ok(found?),
        }
    }
    Err(KeeperError::NotFound { what: "template", id: asked.chars().take(64).collect() }.into())
}

/// Returns the name of a template as clients see it.
pub(super) fn public_name(template: &str) -> &str {
    if template == DEFAULT_TEMPLATE { BASE } else { template }
}

/// A snapshot in E2B's format.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotBody {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

impl From<TemplateInfo> for SnapshotBody {
    fn from(info: TemplateInfo) -> Self {
        Self { names: info.name.iter().cloned().collect(), snapshot_id: info.id }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotsQuery {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// Number of snapshots on one page.
const PAGE: usize = 100;

/// Lists snapshots, the newest first.
pub(super) async fn snapshots(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<SnapshotsQuery>,
) -> Result<(HeaderMap, Json<Vec<SnapshotBody>>), Problem> {
    let mut all = shared.keeper.templates(&caller, &Part::default()).await?.items;
    all.retain(|info| {
        info.kind == TemplateKind::Snapshot
            && info.build.is_none()
            && query.sandbox_id.as_ref().is_none_or(|id| info.source.as_ref() == Some(id))
            && query.name.as_ref().is_none_or(|name| info.name.as_ref() == Some(name) || info.id == *name)
    });
    all.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
    if let Some(last) = &query.next_token {
        let at = all.iter().position(|info| info.id == *last);
        let at = at.ok_or_else(|| Problem::field("nextToken", "invalid token; begin without one"))?;
        all.drain(..=at);
    }
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=PAGE).contains(&limit) {
        return Err(Problem::field("limit", format!("{limit} is not allowed; give 1 to {PAGE}")));
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let mut headers = HeaderMap::new();
    if let Some(next) = all.last().filter(|_| more).and_then(|last| HeaderValue::from_str(&last.id).ok()) {
        headers.insert("x-next-token", next);
    }
    Ok((headers, Json(all.into_iter().map(Into::into).collect())))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TemplateBody {
    #[serde(rename = "templateID")]
    template_id: String,
    names: Vec<String>,
    aliases: Vec<String>,
    public: bool,
    created_at: Timestamp,
}

/// Lists templates.
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
) -> Result<Json<Vec<TemplateBody>>, Problem> {
    let all = shared.keeper.templates(&caller, &Part::default()).await?.items.into_iter().map(|info| {
        let names: Vec<_> = info.name.iter().map(|name| public_name(name).to_owned()).collect();
        let template_id = public_name(&info.id).to_owned();
        TemplateBody {
            template_id,
            aliases: names.clone(),
            names,
            public: false,
            created_at: info.created_at,
        }
    });
    Ok(Json(all.collect()))
}

/// Removes a template or a snapshot.
pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    let is_removed = match id.parse::<TaggedName>() {
        Ok(name) => shared.keeper.remove_tagged(&caller, &name).await?,
        Err(_) => false,
    };
    if !is_removed {
        let id = id.strip_suffix(":default").unwrap_or(&id);
        shared.keeper.remove_template(&caller, id).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AliasBody {
    #[serde(rename = "templateID")]
    template_id: String,
    public: bool,
}

/// Reports whether a template with this name exists. A name without a tag matches a template with any tag.
pub(super) async fn alias(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(alias): Id,
) -> Result<Json<AliasBody>, Problem> {
    let missing = match find(&shared, &caller, &alias).await {
        Ok(info) => {
            let template_id = public_name(info.name.as_ref().unwrap_or(&info.id)).to_owned();
            return Ok(Json(AliasBody { template_id, public: false }));
        }
        Err(problem) => problem,
    };
    let name = alias.parse::<TaggedName>().ok().filter(|name| name.given_tag().is_none());
    match name {
        Some(name) if !shared.keeper.template_tags(&caller, name.name()).await?.is_empty() => {
            Ok(Json(AliasBody { template_id: alias, public: false }))
        }
        _ => Err(missing),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TagBody {
    tag: String,
    #[serde(rename = "buildID")]
    build_id: String,
    created_at: Timestamp,
}

/// Lists the tags of a template.
pub(super) async fn tags(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<Json<Vec<TagBody>>, Problem> {
    let missing = || KeeperError::NotFound { what: "template", id: id.chars().take(64).collect() };
    let name: TaggedName = id.parse().map_err(|_| missing())?;
    let tags = shared.keeper.template_tags(&caller, name.name()).await?;
    if tags.is_empty() {
        return Err(missing().into());
    }
    let body = |tag: TemplateTag| TagBody { tag: tag.tag, build_id: tag.build, created_at: tag.created_at };
    Ok(Json(tags.into_iter().map(body).collect()))
}

#[derive(Deserialize)]
pub(super) struct NewTags {
    target: String,
    tags: Vec<String>,
}

/// Adds tags to a template.
pub(super) async fn tag(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    extract::Json(body): extract::Json<NewTags>,
) -> Result<Response, Problem> {
    let target = body.target.parse()?;
    let build = shared.keeper.tag_template(&caller, &target, &body.tags).await?;
    Ok(json_answer(StatusCode::CREATED, &json!({"buildID": build, "tags": body.tags})))
}

#[derive(Deserialize)]
pub(super) struct OldTags {
    name: String,
    tags: Vec<String>,
}

/// Removes tags from a template.
pub(super) async fn untag(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    extract::Json(body): extract::Json<OldTags>,
) -> Result<StatusCode, Problem> {
    shared.keeper.untag_template(&caller, &body.name.parse()?, &body.tags).await?;
    Ok(StatusCode::NO_CONTENT)
}
