//! The audit trail.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{AuditFilter, Verification};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sandboxes::{Nothing, page};
use crate::api::Shared;
use crate::extract::{Auth, Json, Query};
use crate::problem::Problem;

/// Records of one page, and of one step of an export.
const MAX_RECORDS: u32 = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordsQuery {
    /// Records after this one.
    after: Option<u64>,
    /// Records of the page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only those about this sandbox, by id.
    sandbox: Option<String>,
    /// Only those of this deed, such as `sandbox.create`.
    action: Option<String>,
    /// Only those of this tenant.
    tenant: Option<String>,
}

/// A page of the audit trail.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditRecords)]
pub(super) struct RecordsBody {
    /// The oldest first.
    #[schema(value_type = Vec<Object>)]
    records: Vec<serde_json::Value>,
    /// What `after` is to be next time.
    next: u64,
    /// The last record of the trail.
    head: HeadBody,
}

/// The last record of the trail.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditHead)]
pub(super) struct HeadBody {
    /// Its number.
    seq: u64,
    /// Its digest, which covers all before it.
    hash: String,
}

/// Shows the audit trail. Needs the role admin.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(RecordsQuery),
    responses((status = 200, description = "A page of it.", body = RecordsBody)))]
pub(super) async fn records(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<RecordsQuery>,
) -> Result<axum::Json<RecordsBody>, Problem> {
    let limit = page("limit", query.limit, 100, MAX_RECORDS)?;
    let sandbox = query.sandbox.map(|id| id.parse()).transpose();
    let sandbox = sandbox.map_err(|_| Problem::field("sandbox", "it is not allowed; give a sandbox's id"))?;
    let filter =
        AuditFilter { sandbox, action: query.action, tenant: query.tenant, ..AuditFilter::default() };
    let after = query.after.unwrap_or(0);
    let after_seq = i64::try_from(after).unwrap_or(i64::MAX);
    let found = shared.keeper.audit_records(&caller, &filter, Some(after_seq), limit).await?;
    let head = shared.keeper.audit_head(&caller).await?;
    let head = HeadBody { seq: head.seq.unsigned_abs(), hash: hex(&head.hash) };
    let next = found.last().map_or(after, |record| record.seq.unsigned_abs());
    let records =
        found.iter().map(|record| serde_json::from_str(&record.line()).unwrap_or_default()).collect();
    Ok(axum::Json(RecordsBody { records, next, head }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The whole audit trail as lines of JSON. Needs the role admin.
#[utoipa::path(get, path = "/v1/audit/export", tag = "audit",
    responses((status = 200, description = "One record a line.", body = String, content_type = "application/x-ndjson")))]
pub(super) async fn export(State(shared): State<Shared>, Auth(caller): Auth) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller.key)?;
    let exported = shared.keeper.audit_export(&caller, 1, None)?;
    let stream = exported.map(move |line| {
        let _slot = &slot;
        line.map(|line| Bytes::from(line + "\n")).map_err(std::io::Error::other)
    });
    let mut response = Response::new(Body::from_stream::<_>(pinned(stream)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

fn pinned<S>(stream: S) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send
where
    S: futures::Stream<Item = Result<Bytes, std::io::Error>> + Send,
{
    stream
}

/// Whether the audit trail is whole.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = AuditVerdict)]
pub(super) enum VerdictBody {
    /// It is.
    Whole { ok: bool, records: u64, head: String },
    /// It is not.
    Broken { ok: bool, seq: u64, why: String },
}

/// Checks the whole audit trail. Needs the role admin.
#[utoipa::path(post, path = "/v1/audit/verify", tag = "audit",
    responses((status = 200, description = "Whether it is whole, and if not, from where on.", body = VerdictBody)))]
pub(super) async fn verify(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(Nothing {}): Json<Nothing>,
) -> Result<axum::Json<VerdictBody>, Problem> {
    Ok(axum::Json(match shared.keeper.audit_verify(&caller, 1, None).await? {
        Verification::Verified(verified) => {
            VerdictBody::Whole { ok: true, records: verified.records, head: hex(&verified.head.hash) }
        }
        Verification::Broken(broken) => {
            VerdictBody::Broken { ok: false, seq: broken.seq.unsigned_abs(), why: broken.fault.to_string() }
        }
    }))
}
