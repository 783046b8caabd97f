//! Secrets, as E2B's clients create and use them.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{NewSecret, SecretInfo, SecretUpdate, SecretValue};
use belljar_model::SecretScope;
use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::json_answer;
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query};
use crate::problem::Problem;
use crate::rest::{MAX_SECRETS_PAGE, check_limit};

/// Metadata of a secret.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    #[serde(rename = "secretID")]
    secret_id: String,
    name: String,
    current_version: i64,
    metadata: BTreeMap<String, String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<SecretInfo> for Secret {
    fn from(info: SecretInfo) -> Self {
        let SecretInfo { id, name, version, metadata, created_at, updated_at, .. } = info;
        Self { secret_id: id, name, current_version: version, metadata, created_at, updated_at }
    }
}

fn answer(status: StatusCode, info: SecretInfo) -> Response {
    json_answer(status, &Secret::from(info))
}

#[derive(Deserialize)]
pub(super) struct NewSecretBody {
    name: String,
    value: String,
    metadata: Option<BTreeMap<String, String>>,
}

pub(super) async fn create(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<NewSecretBody>,
) -> Result<Response, Problem> {
    let secret = NewSecret {
        // E2B's names are case-insensitive.
        name: body.name.to_ascii_lowercase(),
        value: SecretValue(body.value),
        metadata: body.metadata.unwrap_or_default(),
        // Clients name no hosts here: the key that stores it chooses them in its policies.
        scope: SecretScope::default(),
    };
    Ok(answer(StatusCode::CREATED, shared.keeper.create_secret(&caller, secret).await?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListQuery {
    limit: Option<u32>,
    next_token: Option<String>,
}

pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let limit = check_limit("limit", query.limit, MAX_SECRETS_PAGE, MAX_SECRETS_PAGE)?;
    let (secrets, next) = shared.keeper.secrets(&caller, limit, query.next_token.as_deref()).await?;
    let secrets: Vec<Secret> = secrets.into_iter().map(Secret::from).collect();
    let mut response = json_answer(StatusCode::OK, &secrets);
    if let Some(token) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", token);
    }
    Ok(response)
}

pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<Response, Problem> {
    Ok(answer(StatusCode::OK, shared.keeper.secret(&caller, &id.to_ascii_lowercase()).await?))
}

#[derive(Deserialize)]
pub(super) struct SecretUpdateBody {
    value: String,
    metadata: Option<BTreeMap<String, String>>,
}

pub(super) async fn update(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<SecretUpdateBody>,
) -> Result<Response, Problem> {
    let update = SecretUpdate { value: SecretValue(body.value), metadata: body.metadata, scope: None };
    let updated = shared.keeper.update_secret(&caller, &id.to_ascii_lowercase(), update).await?;
    Ok(answer(StatusCode::OK, updated))
}

pub(super) async fn remove(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<StatusCode, Problem> {
    shared.keeper.remove_secret(&caller, &id.to_ascii_lowercase()).await?;
    Ok(StatusCode::NO_CONTENT)
}
