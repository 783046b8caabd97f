//! The audit trail.

use std::time::Duration;

use belljar_engine::v1;
use belljar_keeper::{AuditFilter, AuditVerdict};
use belljar_proto::{ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};

use super::call::Call;
use super::convert;
use crate::api::Shared;

/// How many records are looked at in one go.
const PAGE: u32 = 500;

/// How long to wait before looking for new records.
const PAUSE: Duration = Duration::from_millis(250);

/// The service `Audit`.
pub(super) struct Audit(pub(super) Shared);

impl v1::Audit for Audit {
    async fn tail(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::TailAuditRequest>,
    ) -> ServiceResult<ServiceStream<v1::AuditRecordLine>> {
        let call = Call::of(&self.0, &context)?;
        let request = request.to_owned_message();
        let filter = request.filter.into_option().unwrap_or_default();
        let filter = AuditFilter {
            sandbox: convert::given(filter.sandbox),
            action: convert::given(filter.action),
            tenant: convert::given(filter.tenant),
        };
        records(call, filter, request.after, request.limit, !request.no_follow).await
    }

    async fn verify(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::VerifyAuditRequest>,
    ) -> ServiceResult<v1::VerifyAuditResponse> {
        let call = Call::of(&self.0, &context)?;
        let verdict = self.0.keeper.audit_verify(&call.caller).await.map_err(|error| call.failed(error))?;
        Response::ok(match verdict {
            AuditVerdict::Whole { records, head } => {
                v1::VerifyAuditResponse { whole: true, records, head, ..Default::default() }
            }
            AuditVerdict::Broken { seq, why } => {
                v1::VerifyAuditResponse { whole: false, broken_seq: seq, why, ..Default::default() }
            }
        })
    }

    async fn export(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ExportAuditRequest>,
    ) -> ServiceResult<ServiceStream<v1::AuditRecordLine>> {
        let call = Call::of(&self.0, &context)?;
        records(call, AuditFilter::default(), request.after, 0, false).await
    }
}

/// A page of records, and where the next one begins.
struct Page {
    lines: Vec<v1::AuditRecordLine>,
    next: u64,
}

async fn page(call: &Call, filter: &AuditFilter, after: u64) -> Result<Page, ConnectError> {
    let found = call.shared.keeper.audit_records(&call.caller, filter.clone(), after, PAGE).await;
    let found = found.map_err(|error| call.failed(error))?;
    let lines = found.records.iter().map(|record| v1::AuditRecordLine {
        seq: record.get("seq").and_then(serde_json::Value::as_u64).unwrap_or_default(),
        json: record.to_string(),
        ..Default::default()
    });
    Ok(Page { lines: lines.collect(), next: found.next })
}

async fn records(
    call: Call,
    filter: AuditFilter,
    after: u64,
    limit: u32,
    follow: bool,
) -> ServiceResult<ServiceStream<v1::AuditRecordLine>> {
    let slot = call.slot()?;
    // Who may not read it gets an answer, not the end of a stream.
    let mut found = page(&call, &filter, after).await?;
    let reader = call.clone();
    let lines = async_stream::stream! {
        let mut after = after;
        let mut left = if limit == 0 { u64::MAX } else { limit.into() };
        loop {
            let is_end = found.lines.is_empty();
            after = found.lines.last().map_or(found.next, |line| line.seq).max(after);
            for line in found.lines {
                yield Ok(line);
                left -= 1;
                if left == 0 {
                    return;
                }
            }
            if is_end && !follow {
                return;
            }
            if is_end {
                tokio::time::sleep(PAUSE).await;
            }
            found = match page(&reader, &filter, after).await {
                Ok(found) => found,
                Err(error) => {
                    yield Err(error);
                    return;
                }
            };
        }
    };
    Response::ok(call.until_stopped(slot, lines))
}
