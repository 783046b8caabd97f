//! Keys.

use belljar_keeper::{DEFAULT_TENANT, KeyChange, NewKey, Quotas};
use belljar_model::{Approval, Role};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Span, object};

/// A request to create a key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewKey, example = json!({
    "name": "ci",
    "role": "user",
    "tenant": "default",
    "expires": 2_592_000,
    "quotas": {"sandboxes": 10, "memory_bytes": 8_589_934_592_u64}
}))]
pub(crate) struct NewKeyBody {
    /// Its purpose.
    name: String,
    /// Role of its holder. `user` if not given.
    #[serde(default)]
    role: Option<Role>,
    /// Its tenant, whose sandboxes it can access. `default` if not given.
    #[serde(default)]
    tenant: Option<String>,
    /// Validity period. Unlimited, if not given.
    #[serde(default)]
    expires: Option<Span>,
    /// Quotas of all its sandboxes together.
    #[serde(default, deserialize_with = "object")]
    quotas: Option<Quotas>,
    /// The person to whom it belongs: nobody approves calls that were made with a key of the same owner. If not given, it is a person of
    /// its own.
    #[serde(default)]
    owner: Option<String>,
    /// Which calls with it wait until another person approves them: `never`, which it is if not given; `on-risk` or `on-medium-risk`,
    /// those in which screening finds a high, or at least a medium risk; `always`.
    #[serde(default)]
    #[schema(value_type = Option<String>, pattern = "^(never|on-risk|on-medium-risk|always)$")]
    approval: Option<Approval>,
}

impl From<NewKeyBody> for NewKey {
    fn from(body: NewKeyBody) -> Self {
        Self {
            name: body.name,
            role: body.role.unwrap_or(Role::User),
            tenant: body.tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
            expires: body.expires.map(|expires| expires.0),
            quotas: body.quotas.unwrap_or_default(),
            owner: body.owner,
            approval: body.approval.unwrap_or_default(),
        }
    }
}

/// A request to change a key. What is not given stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyUpdate, example = json!({"name": "ci", "quotas": {"sandboxes": 20}}))]
pub(crate) struct KeyUpdateBody {
    /// New name.
    name: Option<String>,
    /// New role of its holder.
    role: Option<Role>,
    /// New validity period, from now on; 0 makes it unlimited.
    expires: Option<Span>,
    /// Quotas of all its sandboxes together, which replace all earlier ones.
    #[serde(default, deserialize_with = "object")]
    quotas: Option<Quotas>,
    /// New owner; an empty text for none.
    owner: Option<String>,
    /// Which calls with it wait until another person approves them: `never`, `on-risk`, `on-medium-risk` or `always`.
    #[schema(value_type = Option<String>, pattern = "^(never|on-risk|on-medium-risk|always)$")]
    approval: Option<Approval>,
}

impl KeyUpdateBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_change(self) -> KeyChange {
        let Self { name, role, expires, quotas, owner, approval } = self;
        let expires = expires.map(|expires| Some(expires.0).filter(|expires| !expires.is_zero()));
        let owner = owner.map(|owner| Some(owner).filter(|owner| !owner.is_empty()));
        KeyChange { name, role, expires, quotas, owner, approval }
    }
}
