//! The audit log.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use belljar_keeper::{
    ArchiveUntil, ArchivedFile, AuditFilter, AuditHead, AuditRecord, AuditVerdict, Caller, Head, KeeperError,
};
use belljar_model::SandboxId;
use bytes::Bytes;
use futures::Stream;
use http::{HeaderName, HeaderValue, header};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sandboxes::check_limit;
use crate::api::Shared;
use crate::extract::{Auth, Json, Query};
use crate::problem::Problem;

/// Maximum number of records on one page.
const MAX_RECORDS: u32 = 1000;

/// Maximum number of trailing records of an export.
const MAX_LAST: u32 = 10_000;

/// Number of records that one query reads.
const PAGE: u32 = 500;

/// Header of an export: the last record that is archived, as `SEQ:HASH`. The export begins after it.
const BASE_HEADER: HeaderName = HeaderName::from_static("belljar-audit-base");

/// Interval at which new records are polled for.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordsQuery {
    /// Only records after this one.
    after: Option<u64>,
    /// Maximum number of records on the page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only records about this sandbox, by id.
    sandbox: Option<String>,
    /// Only records of this action, such as `sandbox.create`.
    action: Option<String>,
    /// Only records of this tenant.
    tenant: Option<String>,
    /// Only records of this key, by id.
    key: Option<String>,
}

/// A page of the audit log.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditRecords)]
pub(super) struct RecordsBody {
    /// Records, oldest first.
    #[schema(value_type = Vec<Object>)]
    records: Vec<serde_json::Value>,
    /// Value of `after` for the next page.
    next: i64,
    /// The last record of the audit log.
    head: AuditHead,
    /// The last record that is archived: `records` begins after it, even if `after` is smaller. Its `seq` is 0 if none is.
    base: AuditHead,
}

/// Builds the filter. A sandbox is given by its id.
fn filter(
    sandbox: Option<&String>,
    action: Option<String>,
    tenant: Option<String>,
    key: Option<String>,
) -> Result<AuditFilter, Problem> {
    let sandbox = sandbox.map(|id| id.parse::<SandboxId>()).transpose();
    Ok(AuditFilter {
        sandbox: sandbox
            .map_err(|_| Problem::field("sandbox", "invalid id; a sandbox's name is not accepted here"))?,
        action,
        tenant,
        key_id: key,
        ..AuditFilter::default()
    })
}

/// Converts a record's number to the type of the store.
fn to_store_number(field: &str, number: u64) -> Result<i64, Problem> {
    i64::try_from(number).map_err(|_| Problem::field(field, format!("{number} is too large")))
}

/// Shows the audit log. Needs the role admin.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(RecordsQuery),
    responses((status = 200, description = "A page of the audit log.", body = RecordsBody)))]
pub(super) async fn records(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<RecordsQuery>,
) -> Result<axum::Json<RecordsBody>, Problem> {
    let limit = check_limit("limit", query.limit, 100, MAX_RECORDS)?;
    let filter = filter(query.sandbox.as_ref(), query.action, query.tenant, query.key)?;
    let after = to_store_number("after", query.after.unwrap_or(0))?;
    let found = shared.keeper.audit_records(&caller, &filter, Some(after), limit).await?;
    let head = shared.keeper.audit_head(&caller).await?.into();
    // Read after the records: one that is missing among them is not after it.
    let base = shared.keeper.audit_base(&caller).await?.into();
    let next = found.last().map_or(after, |record| record.seq);
    let records = found.iter().filter_map(|record| serde_json::from_str(&record.to_line()).ok()).collect();
    Ok(axum::Json(RecordsBody { records, next, head, base }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// Only records after this one. All, if neither this nor `last` is given.
    after: Option<u64>,
    /// Number of last records to export.
    #[param(minimum = 1, maximum = 10000)]
    last: Option<u32>,
    /// Whether to continue with new records. `false` if not given.
    follow: Option<bool>,
    /// Only records about this sandbox, by id.
    sandbox: Option<String>,
    /// Only records of this action, such as `sandbox.create`.
    action: Option<String>,
    /// Only records of this tenant.
    tenant: Option<String>,
    /// Only records of this key, by id.
    key: Option<String>,
}

/// Exports the audit log as lines of JSON, each exactly as it is hashed. Begins after the archived records. Needs the role admin.
#[utoipa::path(get, path = "/v1/audit/export", tag = "audit", params(ExportQuery),
    responses((status = 200, description = "One record per line.", body = String, content_type = "application/x-ndjson",
        headers(("belljar-audit-base" = String, description = "The last archived record, as `SEQ:HASH`; `SEQ` is 0 if none is.")))))]
pub(super) async fn export(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    let filter = filter(query.sandbox.as_ref(), query.action, query.tenant, query.key)?;
    let slot = shared.streams.take(&caller)?;
    let after = match (query.after, query.last) {
        (Some(_), Some(_)) => return Err(Problem::field("last", "give either after or last")),
        (after, None) => Some(to_store_number("after", after.unwrap_or(0))?),
        (None, Some(_)) => None,
    };
    let many = query.last.map(|last| check_limit("last", Some(last), 1, MAX_LAST)).transpose()?;
    // Callers without permission get an error response, not a stream that ends. An export without `follow` leaves out
    // records that are written meanwhile, so that it ends.
    let last = shared.keeper.audit_head(&caller).await?.seq;
    let first = shared.keeper.audit_records(&caller, &filter, after, many.unwrap_or(PAGE)).await?;
    let base = shared.keeper.audit_base(&caller).await?;
    let until = (query.follow != Some(true)).then_some(last);
    let end = first.last().map_or(after.unwrap_or(last).max(base.seq), |record| record.seq);
    let lines = lines(shared, caller, filter, first, end, until);
    let lines = async_stream::stream! {
        futures::pin_mut!(lines);
        loop {
            match slot.next(&mut lines).await {
                Ok(Some(line)) => yield line.map_err(std::io::Error::other),
                Ok(None) => break,
                Err(problem) => {
                    yield Err(std::io::Error::other(problem.detail().to_owned()));
                    break;
                }
            }
        }
    };
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    if let Ok(base) = HeaderValue::from_str(&base.to_string()) {
        response.headers_mut().insert(BASE_HEADER, base);
    }
    Ok(response)
}

/// Returns the records of `page` and those after `end`, up to `until` or forever.
fn lines(
    shared: Shared,
    caller: Caller,
    filter: AuditFilter,
    mut page: Vec<AuditRecord>,
    mut end: i64,
    until: Option<i64>,
) -> impl Stream<Item = Result<Bytes, KeeperError>> + Send + 'static {
    async_stream::stream! {
        loop {
            let is_end = page.is_empty();
            for record in &page {
                if until.is_some_and(|until| record.seq > until) {
                    return;
                }
                yield Ok(Bytes::from(record.line() + "\n"));
            }
            match until {
                Some(_) if is_end => return,
                None if is_end => tokio::time::sleep(POLL_INTERVAL).await,
                _ => {}
            }
            (page, end) = match shared.keeper.audit_records_on(&caller, &filter, end, PAGE).await {
                Ok(next) => next,
                Err(error) => {
                    yield Err(error);
                    return;
                }
            };
        }
    }
}

/// Records to archive.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = ArchiveAudit, example = json!({"through": 1}))]
pub(super) struct ArchiveBody {
    /// Records before the first one that is not older than this, such as `2026-01-01T00:00:00Z`.
    #[schema(format = DateTime)]
    before: Option<String>,
    /// Records up to this one.
    through: Option<u64>,
}

/// Files with archived records.
#[derive(Serialize, ToSchema)]
#[schema(as = ArchivedFiles)]
pub(super) struct ArchivedBody {
    /// The files, in order; none if there was nothing to archive.
    files: Vec<ArchivedFile>,
}

/// Moves the oldest records to files on the server's machine. Without `before` and `through`, all but the last one. Needs the role
/// admin.
#[utoipa::path(post, path = "/v1/audit/archive", tag = "audit", request_body = ArchiveBody,
    responses((status = 200, description = "The files that were written.", body = ArchivedBody)))]
pub(super) async fn archive(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<ArchiveBody>,
) -> Result<axum::Json<ArchivedBody>, Problem> {
    let until = match (body.before, body.through) {
        (Some(_), Some(_)) => return Err(Problem::field("through", "give either before or through")),
        (Some(before), None) => {
            let parsed = before.parse::<Timestamp>();
            let why = |error| Problem::field("before", format!("invalid time {before:?}: {error}"));
            ArchiveUntil::Before(parsed.map_err(why)?)
        }
        (None, Some(through)) => ArchiveUntil::Record(to_store_number("through", through)?),
        (None, None) => ArchiveUntil::Record(i64::MAX),
    };
    Ok(axum::Json(ArchivedBody { files: shared.keeper.audit_archive(&caller, until).await? }))
}

/// Range of a check of the audit log.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = VerifyAudit, example = json!({}))]
pub(super) struct VerifyBody {
    /// First record to check. If not given, or archived, the first one that is not archived.
    first: Option<u64>,
    /// A head that was noted earlier, as `SEQ:HASH`, which must still be in the log unchanged. It must not be archived, except as
    /// the last record of an archived file.
    head: Option<String>,
}

/// Checks the audit log. Needs the role admin.
#[utoipa::path(post, path = "/v1/audit/verify", tag = "audit", request_body = VerifyBody,
    responses((status = 200, description = "Whether the log is intact, and if not, from which record on.", body = AuditVerdict)))]
pub(super) async fn verify(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Json(body): Json<VerifyBody>,
) -> Result<axum::Json<AuditVerdict>, Problem> {
    let first = to_store_number("first", body.first.unwrap_or(1).max(1))?;
    let known = body.head.map(|head| head.parse::<Head>()).transpose();
    let known = known.map_err(|error| Problem::field("head", &error))?;
    Ok(axum::Json(shared.keeper.audit_verify(&caller, first, known).await?.into()))
}
