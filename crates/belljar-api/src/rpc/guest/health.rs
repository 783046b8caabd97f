//! The service `Health`.

use belljar_engine::v1;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult};

use super::super::call::Call;
use crate::api::Shared;
use crate::problem::{Code, Problem};

/// The service `Health`, forwarded to the guest except for calls that only the keeper may make.
pub(in super::super) struct Health(pub(in super::super) Shared);

impl v1::Health for Health {
    async fn check(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::CheckRequest>,
    ) -> ServiceResult<v1::CheckResponse> {
        Response::ok(Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?)
    }

    async fn metrics(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::MetricsRequest>,
    ) -> ServiceResult<v1::MetricsResponse> {
        Response::ok(Call::new(&self.0, &context)?.perform(&context, request.to_owned_message()).await?)
    }

    /// Refused: the deadline in the guest is the keeper's last resort, and applies to all users of the sandbox.
    async fn set_deadline(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::SetDeadlineRequest>,
    ) -> ServiceResult<v1::SetDeadlineResponse> {
        let call = Call::new(&self.0, &context)?;
        call.enter(&context).await?;
        let detail = "the guest's deadline is the server's own; use Sandboxes.SetTimeout";
        Err(call.problem(&Problem::new(Code::Forbidden, detail)))
    }
}
