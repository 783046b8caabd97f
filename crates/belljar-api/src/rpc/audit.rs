//! The audit trail.

use std::time::Duration;

use belljar_engine::v1;
use belljar_keeper::{AuditFilter, AuditRecord, Head, KeeperError, Verification};
use belljar_proto::{ConnectError, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use futures::StreamExt as _;

use super::call::Call;
use super::convert;
use crate::api::Shared;
use crate::problem::Problem;

/// How many records are looked at in one go.
const PAGE: u32 = 500;

/// How many of the last records are told to who does not say from where on.
const LAST: u32 = 100;

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
        let slot = call.slot()?;
        let request = request.to_owned_message();
        let filter = wanted(request.filter.into_option().unwrap_or_default())
            .map_err(|problem| call.problem(&problem))?;
        let after = request.after.map(|after| number("after", after)).transpose();
        let after = after.map_err(|problem| call.problem(&problem))?;
        // Who may not read it gets an answer, not the end of a stream.
        let first = call.shared.keeper.audit_records(
            &call.caller,
            &filter,
            after,
            if after.is_some() { PAGE } else { LAST },
        );
        let first = first.await.map_err(|error| call.failed(error))?;
        let follow = (!request.no_follow).then_some(PAUSE);
        let lines = follow_trail(call.clone(), filter, after.unwrap_or(0), request.limit, follow, first);
        Response::ok(call.until_stopped(slot, lines))
    }

    async fn verify(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::VerifyAuditRequest>,
    ) -> ServiceResult<v1::VerifyAuditResponse> {
        let call = Call::of(&self.0, &context)?;
        let request = request.to_owned_message();
        let from = number("from", request.from.max(1)).map_err(|problem| call.problem(&problem))?;
        let known =
            request.known.into_option().map(known).transpose().map_err(|problem| call.problem(&problem))?;
        let verdict = self.0.keeper.audit_verify(&call.caller, from, known).await;
        Response::ok(match verdict.map_err(|error| call.failed(error))? {
            Verification::Verified(verified) => v1::VerifyAuditResponse {
                whole: true,
                records: verified.records,
                head: v1::AuditHead {
                    seq: verified.head.seq.unsigned_abs(),
                    hash: bytes::Bytes::copy_from_slice(&verified.head.hash),
                    ..Default::default()
                }
                .into(),
                steps_back: verified.steps_back,
                ..Default::default()
            },
            Verification::Broken(broken) => v1::VerifyAuditResponse {
                whole: false,
                broken_seq: broken.seq.unsigned_abs(),
                why: broken.fault.to_string(),
                ..Default::default()
            },
        })
    }

    async fn export(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ExportAuditRequest>,
    ) -> ServiceResult<ServiceStream<v1::AuditRecordLine>> {
        let call = Call::of(&self.0, &context)?;
        let slot = call.slot()?;
        let problem = |problem: Problem| call.problem(&problem);
        let first = number("first", request.first.max(1)).map_err(problem)?;
        let last = (request.last != 0).then(|| number("last", request.last)).transpose().map_err(problem)?;
        let exported =
            self.0.keeper.audit_export(&call.caller, first, last).map_err(|error| call.failed(error))?;
        let (reader, mut seq) = (call.clone(), request.first.max(1));
        let lines = exported.map(move |line| {
            let json = line.map_err(|error| reader.failed(KeeperError::from(error)))?;
            let line = v1::AuditRecordLine { seq, json, ..Default::default() };
            // There are no gaps in it.
            seq += 1;
            Ok(line)
        });
        Response::ok(call.until_stopped(slot, lines))
    }
}

/// A record's number, as the store has it.
fn number(field: &str, number: u64) -> Result<i64, Problem> {
    i64::try_from(number)
        .map_err(|_| Problem::field(field, format!("{number} is not allowed; there is no such record")))
}

fn known(head: v1::AuditHead) -> Result<Head, Problem> {
    let hash = <[u8; 32]>::try_from(head.hash.as_ref());
    let hash = hash.map_err(|_| Problem::field("known.hash", "it is not allowed; give 32 bytes"))?;
    Ok(Head { seq: number("known.seq", head.seq)?, hash })
}

fn wanted(filter: v1::AuditRecordFilter) -> Result<AuditFilter, Problem> {
    let sandbox = convert::given(filter.sandbox).map(|id| id.parse()).transpose();
    Ok(AuditFilter {
        sandbox: sandbox
            .map_err(|_| Problem::field("filter.sandbox", "it is not allowed; give a sandbox's id"))?,
        action: convert::given(filter.action),
        tenant: convert::given(filter.tenant),
        key_id: convert::given(filter.key),
        ..AuditFilter::default()
    })
}

fn line(record: &AuditRecord) -> v1::AuditRecordLine {
    v1::AuditRecordLine { seq: record.seq.unsigned_abs(), json: record.line(), ..Default::default() }
}

/// What is there, and if asked for what comes.
fn follow_trail(
    call: Call,
    filter: AuditFilter,
    mut after: i64,
    limit: u32,
    follow: Option<Duration>,
    first: Vec<AuditRecord>,
) -> impl futures::Stream<Item = Result<v1::AuditRecordLine, ConnectError>> + Send + 'static {
    async_stream::stream! {
        let mut page = first;
        let mut left = if limit == 0 { u64::MAX } else { limit.into() };
        loop {
            let is_end = page.is_empty();
            for record in &page {
                yield Ok(line(record));
                after = record.seq;
                left -= 1;
                if left == 0 {
                    return;
                }
            }
            match follow {
                None if is_end => return,
                Some(pause) if is_end => tokio::time::sleep(pause).await,
                _ => {}
            }
            page = match call.shared.keeper.audit_records(&call.caller, &filter, Some(after), PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    yield Err(call.failed(error));
                    return;
                }
            };
        }
    }
}
