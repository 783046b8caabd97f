//! The server itself.

use belljar_engine::v1;
use belljar_keeper::Leftover;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult};

use super::call::Call;
use super::convert;
use crate::api::Shared;

/// The service `Server`.
pub(super) struct Server(pub(super) Shared);

impl v1::Server for Server {
    async fn version(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ServerVersionRequest>,
    ) -> ServiceResult<v1::ServerVersionResponse> {
        Response::ok(v1::ServerVersionResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generation: belljar_proto::GENERATION,
            ..Default::default()
        })
    }

    async fn health(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, v1::ServerHealthRequest>,
    ) -> ServiceResult<v1::ServerHealthResponse> {
        let ready = self.0.keeper.ready().await.is_ok();
        Response::ok(v1::ServerHealthResponse { ready, ..Default::default() })
    }

    async fn me(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::MeRequest>,
    ) -> ServiceResult<v1::MeResponse> {
        let call = Call::of(&self.0, &context)?;
        let usage = self.0.keeper.usage(&call.caller).await.map_err(|error| call.failed(error))?;
        let caller = call.caller;
        Response::ok(v1::MeResponse {
            quotas: convert::quotas(&caller.quotas).into(),
            key: caller.key,
            tenant: caller.tenant,
            role: convert::role(caller.role).into(),
            usage: v1::KeyUsage {
                sandboxes: usage.sandboxes,
                memory_bytes: usage.memory_bytes,
                disk_bytes: usage.disk_bytes,
                cpu_seconds: usage.cpu_seconds,
                ..Default::default()
            }
            .into(),
            only_sandbox: caller.only.map(|id| id.to_string()).unwrap_or_default(),
            ..Default::default()
        })
    }

    async fn collect(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::CollectRequest>,
    ) -> ServiceResult<v1::CollectResponse> {
        let call = Call::of(&self.0, &context)?;
        let dry_run = request.to_owned_message().dry_run;
        let collected = self.0.keeper.collect(&call.caller, dry_run).await;
        let leftovers = collected.map_err(|error| call.failed(error))?;
        let leftover = |one: Leftover| v1::Leftover {
            kind: one.kind.to_owned(),
            name: one.path.map(|path| path.display().to_string()).unwrap_or_default(),
            bytes: one.bytes,
            count: one.count,
            ..Default::default()
        };
        Response::ok(v1::CollectResponse {
            leftovers: leftovers.into_iter().map(leftover).collect(),
            ..Default::default()
        })
    }
}
