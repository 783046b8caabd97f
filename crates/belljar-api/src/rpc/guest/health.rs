//! The guest itself.

use belljar_engine::v1;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult};

use super::super::call::Inside;
use crate::api::Shared;
use crate::refusal::About;

/// The service `Health`, passed on but for what is the keeper's alone.
pub(in super::super) struct Health(pub(in super::super) Shared);

impl v1::Health for Health {
    async fn check(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::CheckRequest>,
    ) -> ServiceResult<v1::CheckResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::HealthClient::new);
        Response::ok(inside.answered(About::File, guest.check(request)).await?.into_owned())
    }

    async fn metrics(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::MetricsRequest>,
    ) -> ServiceResult<v1::MetricsResponse> {
        let request = request.to_owned_message();
        let inside = Inside::of(&self.0, &context).await?;
        let guest = inside.guest(v1::HealthClient::new);
        Response::ok(inside.answered(About::File, guest.metrics(request)).await?.into_owned())
    }

    /// Refused: the deadline in the guest is the keeper's last resort, and holds for whoever uses the sandbox.
    async fn set_deadline(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::SetDeadlineRequest>,
    ) -> ServiceResult<v1::SetDeadlineResponse> {
        let inside = Inside::of(&self.0, &context).await?;
        Err(inside.refuse("the guest's deadline is the server's own; use Sandboxes.SetTimeout"))
    }
}
