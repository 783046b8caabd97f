//! The service `Filesystem`.

use belljar_engine::{Pack, v1};
use belljar_keeper::operation::{Unpack, Write};
use belljar_proto::{InboundStream, RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};

use super::super::call::Call;
use crate::api::Shared;

/// The service `Filesystem`, forwarded to the guest.
pub(in super::super) struct Filesystem(pub(in super::super) Shared);

impl v1::Filesystem for Filesystem {
    async fn read(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ReadRequest>,
    ) -> ServiceResult<ServiceStream<v1::ReadResponse>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let opened = call.open(&context, request.to_owned_message()).await?;
        let first = v1::ReadResponse { entry: opened.get().entry.clone().into(), ..Default::default() };
        let piece = |data| v1::ReadResponse { data, ..Default::default() };
        Response::ok(call.relay(slot, opened, Some(first), piece, |_| None))
    }

    async fn write(
        &self,
        context: RequestContext,
        requests: InboundStream<v1::WriteRequest>,
    ) -> ServiceResult<v1::WriteResponse> {
        let call = Call::new(&self.0, &context)?;
        let parts = |message: v1::WriteRequest| (message.open.into_option(), message.data);
        let entry = call.upload(&context, requests, parts, Write::new).await?;
        Response::ok(v1::WriteResponse { entry: entry.into(), ..Default::default() })
    }

    async fn stat(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::StatRequest>,
    ) -> ServiceResult<v1::StatResponse> {
        let entry = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::StatResponse { entry: entry.into(), ..Default::default() })
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListRequest>,
    ) -> ServiceResult<v1::ListResponse> {
        Response::ok(Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?)
    }

    async fn make_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::MakeDirRequest>,
    ) -> ServiceResult<v1::MakeDirResponse> {
        let entry = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::MakeDirResponse { entry: entry.into(), ..Default::default() })
    }

    async fn r#move(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::MoveRequest>,
    ) -> ServiceResult<v1::MoveResponse> {
        let entry = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::MoveResponse { entry: entry.into(), ..Default::default() })
    }

    async fn remove(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::RemoveRequest>,
    ) -> ServiceResult<v1::RemoveResponse> {
        Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::RemoveResponse::default())
    }

    async fn watch(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::WatchRequest>,
    ) -> ServiceResult<ServiceStream<v1::WatchEvent>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let opened = call.open(&context, request.to_owned_message()).await?;
        Response::ok(call.relay(slot, opened, None, |event| event, |_| None))
    }

    async fn pack(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::PackRequest>,
    ) -> ServiceResult<ServiceStream<v1::PackResponse>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let pack = Pack { request: request.to_owned_message(), max_bytes: u64::MAX };
        let opened = call.open(&context, pack).await?;
        let piece = |data| v1::PackResponse { data, ..Default::default() };
        let last = |archive: &belljar_engine::Archive| {
            let summary = archive.summary().cloned()?;
            Some(v1::PackResponse { summary: summary.into(), ..Default::default() })
        };
        Response::ok(call.relay(slot, opened, None, piece, last))
    }

    async fn search(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SearchRequest>,
    ) -> ServiceResult<ServiceStream<v1::SearchMatch>> {
        let call = Call::new(&self.0, &context)?;
        let slot = call.slot()?;
        let opened = call.open(&context, request.to_owned_message()).await?;
        let last = |search: &belljar_engine::Search| {
            let summary = search.summary().cloned()?;
            Some(v1::SearchMatch { summary: summary.into(), ..Default::default() })
        };
        Response::ok(call.relay(slot, opened, None, |found| found, last))
    }

    async fn set_mode(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SetModeRequest>,
    ) -> ServiceResult<v1::SetModeResponse> {
        let entry = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::SetModeResponse { entry: entry.into(), ..Default::default() })
    }

    async fn unpack(
        &self,
        context: RequestContext,
        requests: InboundStream<v1::UnpackRequest>,
    ) -> ServiceResult<v1::UnpackResponse> {
        let call = Call::new(&self.0, &context)?;
        let parts = |message: v1::UnpackRequest| (message.open.into_option(), message.data);
        Response::ok(call.upload(&context, requests, parts, Unpack::new).await?)
    }
}
