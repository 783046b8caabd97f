//! Keys.

use belljar_engine::v1;
use belljar_keeper::{DEFAULT_TENANT, NewKey, Quotas};
use belljar_model::Role;
use belljar_proto::{RequestContext, Response, ServiceRequest, ServiceResult};

use super::call::Call;
use super::convert;
use crate::api::Shared;
use crate::problem::Problem;

/// The service `Keys`.
pub(super) struct Keys(pub(super) Shared);

impl v1::Keys for Keys {
    async fn create(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::CreateKeyRequest>,
    ) -> ServiceResult<v1::CreateKeyResponse> {
        let call = Call::of(&self.0, &context)?;
        let wanted = wanted(request.to_owned_message()).map_err(|problem| call.problem(&problem))?;
        let made = self.0.keeper.create_key(&call.caller, wanted).await;
        let (info, key) = made.map_err(|error| call.failed(error))?;
        Response::ok(v1::CreateKeyResponse { info: convert::key(info).into(), key, ..Default::default() })
    }

    async fn list(
        &self,
        context: RequestContext,
        _: ServiceRequest<'_, v1::ListKeysRequest>,
    ) -> ServiceResult<v1::ListKeysResponse> {
        let call = Call::of(&self.0, &context)?;
        let keys = self.0.keeper.keys(&call.caller).await.map_err(|error| call.failed(error))?;
        let keys = keys.into_iter().map(convert::key).collect();
        Response::ok(v1::ListKeysResponse { keys, ..Default::default() })
    }

    async fn update(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::UpdateKeyRequest>,
    ) -> ServiceResult<v1::KeyInfo> {
        let call = Call::of(&self.0, &context)?;
        let request = request.to_owned_message();
        let quotas = quotas(&request.quotas.into_option().unwrap_or_default());
        let changed = self.0.keeper.set_key_quotas(&call.caller, &request.id, quotas).await;
        Response::ok(convert::key(changed.map_err(|error| call.failed(error))?))
    }

    async fn revoke(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, v1::RevokeKeyRequest>,
    ) -> ServiceResult<v1::RevokeKeyResponse> {
        let call = Call::of(&self.0, &context)?;
        self.0.keeper.revoke_key(&call.caller, request.id).await.map_err(|error| call.failed(error))?;
        Response::ok(v1::RevokeKeyResponse::default())
    }
}

fn wanted(request: v1::CreateKeyRequest) -> Result<NewKey, Problem> {
    let role = match convert::known("role", request.role)? {
        v1::KeyRole::KEY_ROLE_UNSPECIFIED | v1::KeyRole::KEY_ROLE_USER => Role::User,
        v1::KeyRole::KEY_ROLE_READ => Role::Read,
        v1::KeyRole::KEY_ROLE_ADMIN => Role::Admin,
    };
    Ok(NewKey {
        name: request.name,
        role,
        tenant: convert::given(request.tenant).unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
        expires: convert::span("expires", &request.expires)?,
        quotas: quotas(&request.quotas.into_option().unwrap_or_default()),
    })
}

fn quotas(quotas: &v1::KeyQuotas) -> Quotas {
    Quotas {
        sandboxes: quotas.sandboxes,
        memory_bytes: quotas.memory_bytes,
        disk_bytes: quotas.disk_bytes,
        cpu_seconds_per_hour: quotas.cpu_seconds_per_hour,
        executions_per_minute: quotas.executions_per_minute,
    }
}
