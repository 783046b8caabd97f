//! The service `Session`.

use belljar_engine::v1;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};

use super::super::call::Call;
use super::process::start_stream;
use crate::api::Shared;

/// The service `Session`, forwarded to the guest.
pub(in super::super) struct Session(pub(in super::super) Shared);

impl v1::Session for Session {
    async fn open(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SessionOpen>,
    ) -> ServiceResult<v1::SessionOpened> {
        Response::ok(Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?)
    }

    async fn run(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SessionRun>,
    ) -> ServiceResult<ServiceStream<v1::ProcessEvent>> {
        Response::ok(start_stream(&self.0, &context, request.to_owned_message()).await?)
    }

    async fn list(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::ListSessionsRequest>,
    ) -> ServiceResult<v1::ListSessionsResponse> {
        let sessions = Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::ListSessionsResponse { sessions, ..Default::default() })
    }

    async fn close(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::SessionClose>,
    ) -> ServiceResult<v1::SessionClosed> {
        Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?;
        Response::ok(v1::SessionClosed::default())
    }
}
