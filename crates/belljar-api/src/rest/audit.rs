//! The audit trail.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{AuditFilter, AuditVerdict};
use bytes::Bytes;
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
    let filter = AuditFilter { sandbox: query.sandbox, action: query.action, tenant: query.tenant };
    let page = shared.keeper.audit_records(&caller, filter, query.after.unwrap_or(0), limit).await?;
    let head = HeadBody { seq: page.head_seq, hash: page.head_hash };
    Ok(axum::Json(RecordsBody { records: page.records, next: page.next, head }))
}

/// The whole audit trail as lines of JSON. Needs the role admin.
#[utoipa::path(get, path = "/v1/audit/export", tag = "audit",
    responses((status = 200, description = "One record a line.", body = String, content_type = "application/x-ndjson")))]
pub(super) async fn export(State(shared): State<Shared>, Auth(caller): Auth) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller.key)?;
    let mut page = shared.keeper.audit_records(&caller, AuditFilter::default(), 0, MAX_RECORDS).await?;
    // What comes while it is read is not part of it, so that it ends.
    let end = page.head_seq;
    let stream = async_stream::try_stream! {
        let _slot = slot;
        loop {
            let mut lines = Vec::new();
            for record in &page.records {
                serde_json::to_writer(&mut lines, record).map_err(std::io::Error::other)?;
                lines.push(b'\n');
            }
            let more = !page.records.is_empty() && page.next < end;
            yield Bytes::from(lines);
            if !more {
                break;
            }
            let next = shared.keeper.audit_records(&caller, AuditFilter::default(), page.next, MAX_RECORDS).await;
            page = next.map_err(std::io::Error::other)?;
        }
    };
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
    Ok(axum::Json(match shared.keeper.audit_verify(&caller).await? {
        AuditVerdict::Whole { records, head } => VerdictBody::Whole { ok: true, records, head },
        AuditVerdict::Broken { seq, why } => VerdictBody::Broken { ok: false, seq, why },
    }))
}
