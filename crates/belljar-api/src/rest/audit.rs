//! The audit trail.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{AuditFilter, Head, Verification};
use belljar_model::SandboxId;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sandboxes::{Nothing, page};
use crate::api::Shared;
use crate::extract::{Auth, Json, Query};
use crate::problem::Problem;

/// The most records of one page.
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
    next: i64,
    /// The last record of the trail.
    head: HeadBody,
}

/// The last record of the trail.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditHead)]
pub(super) struct HeadBody {
    /// Its number; 0 if there is none.
    seq: i64,
    /// Its digest in hexadecimal, which covers all before it.
    hash: String,
}

impl From<Head> for HeadBody {
    fn from(head: Head) -> Self {
        Self { seq: head.seq, hash: head.hash.iter().map(|byte| format!("{byte:02x}")).collect() }
    }
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
    let sandbox = query.sandbox.map(|id| id.parse::<SandboxId>()).transpose();
    let filter = AuditFilter {
        sandbox: sandbox
            .map_err(|_| Problem::field("sandbox", "it is no id of a sandbox; a name is not enough here"))?,
        action: query.action,
        tenant: query.tenant,
        ..AuditFilter::default()
    };
    let after = query.after.unwrap_or(0);
    let after = i64::try_from(after).map_err(|_| Problem::field("after", format!("{after} is too large")))?;
    let found = shared.keeper.audit_records(&caller, &filter, Some(after), limit).await?;
    let head = HeadBody::from(shared.keeper.audit_head(&caller).await?);
    let next = found.last().map_or(after, |record| record.seq);
    let records = found.iter().filter_map(|record| serde_json::from_str(&record.to_line()).ok()).collect();
    Ok(axum::Json(RecordsBody { records, next, head }))
}

/// The whole audit trail as lines of JSON. Needs the role admin.
#[utoipa::path(get, path = "/v1/audit/export", tag = "audit",
    responses((status = 200, description = "One record a line.", body = String, content_type = "application/x-ndjson")))]
pub(super) async fn export(State(shared): State<Shared>, Auth(caller): Auth) -> Result<Response, Problem> {
    let slot = shared.streams.take(&caller.key)?;
    // What comes while it is read is not part of it, so that it ends.
    let last = shared.keeper.audit_head(&caller).await?.seq;
    let lines = shared.keeper.audit_export(&caller, 1, Some(last))?;
    let lines = lines.map(move |line| {
        let _held = &slot;
        line.map(|line| Bytes::from(line + "\n")).map_err(std::io::Error::other)
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// Whether the audit trail is whole.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = AuditVerdict)]
pub(super) enum VerdictBody {
    /// It is.
    Whole {
        /// `true`.
        ok: bool,
        /// How many records there are.
        records: u64,
        /// The last of them. Note it elsewhere: a trail that is cut later shows by it.
        head: HeadBody,
    },
    /// It is not.
    Broken {
        /// `false`.
        ok: bool,
        /// The first record that is not what it was.
        seq: i64,
        /// What is wrong with it.
        why: String,
    },
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
        Verification::Verified(found) => {
            VerdictBody::Whole { ok: true, records: found.records, head: found.head.into() }
        }
        Verification::Broken(broken) => {
            VerdictBody::Broken { ok: false, seq: broken.seq, why: broken.fault.to_string() }
        }
    }))
}
