//! Templates.

use belljar_engine::v1;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult};

use super::call::Call;
use super::convert;
use crate::api::Shared;

/// The service `Templates`.
pub(super) struct Templates(pub(super) Shared);

impl v1::Templates for Templates {
    async fn list(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::ListTemplatesRequest>,
    ) -> ServiceResult<v1::ListTemplatesResponse> {
        let call = Call::of(&self.0, &context)?;
        let templates = self.0.keeper.templates(&call.caller).await.map_err(|error| call.failed(error))?;
        let templates = templates.into_iter().map(convert::template).collect();
        Response::ok(v1::ListTemplatesResponse { templates, ..Default::default() })
    }

    async fn get(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::GetTemplateRequest>,
    ) -> ServiceResult<v1::TemplateInfo> {
        let call = Call::of(&self.0, &context)?;
        let template = self.0.keeper.template(&call.caller, request.template).await;
        Response::ok(convert::template(template.map_err(|error| call.failed(error))?))
    }

    async fn remove(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::RemoveTemplateRequest>,
    ) -> ServiceResult<v1::RemoveTemplateResponse> {
        let call = Call::of(&self.0, &context)?;
        let removed = self.0.keeper.remove_template(&call.caller, request.template).await;
        removed.map_err(|error| call.failed(error))?;
        Response::ok(v1::RemoveTemplateResponse::default())
    }
}
