//! Caller of a request, and its quotas.

use std::time::Duration;

use belljar_model::{Approval, NetworkCeiling, NetworkMode, Role};
use belljar_store::ServiceWall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type,
};

use crate::action::Action;
use crate::session::Session;
use crate::validity::{Rights, Standing, Validity};

/// Authenticated caller: a key, or the operator at the machine itself.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Id of the key; not secret.
    pub key: String,
    /// Tenant whose sandboxes the caller sees.
    pub tenant: String,
    /// What the caller may do.
    pub role: Role,
    /// Quotas of the key.
    pub quotas: Quotas,
    /// The person to whom the key belongs, if it names one.
    pub owner: Option<String>,
    /// Whether its calls wait for approval.
    pub approval: Approval,
    /// The only sandbox that the caller may access, if it authenticated with that sandbox's token instead of a key.
    pub only: Option<belljar_model::SandboxId>,
    /// The session that it authenticated with, instead of presenting the key.
    pub session: Option<Session>,
    /// When its key was read.
    pub validity: Validity,
    /// Address of the client, such as `127.0.0.1:50000` or `cli`.
    pub client: String,
    /// Id of the request in logs, in the audit log and in errors.
    pub request_id: String,
}

impl Caller {
    /// Returns the operator at the machine itself: an administrator of the default tenant, without quotas.
    #[must_use]
    pub fn operator(client: &str, request_id: &str) -> Self {
        Self {
            key: OPERATOR.to_owned(),
            tenant: DEFAULT_TENANT.to_owned(),
            role: Role::Admin,
            quotas: Quotas::default(),
            owner: None,
            approval: Approval::Never,
            only: None,
            session: None,
            validity: Validity::default(),
            client: client.to_owned(),
            request_id: request_id.to_owned(),
        }
    }

    /// Reports whether the caller is the operator at the machine itself, who could also read the server's files and log.
    #[must_use]
    pub fn is_operator(&self) -> bool {
        self.key == OPERATOR && self.role == Role::Admin && self.only.is_none()
    }

    /// Reports whether this server has revoked the caller's key since it was authenticated, or lowered what it may do.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.validity.has_ended(&self.key)
    }

    /// Returns what its key could do when it was read, also for calls that have been approved.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.validity.rights().unwrap_or(Rights { role: self.role, approval: self.approval })
    }

    /// Returns the caller for the rest of a call that has begun, such as its answer and its clean-up: that does not end with the key.
    #[must_use]
    pub fn begun(&self) -> Self {
        Self { session: None, validity: Validity::default(), ..self.clone() }
    }

    pub(crate) fn standing(&self) -> Standing {
        let (key, session) = (self.key.clone(), self.session.clone());
        Standing { key, session, validity: self.validity.clone() }
    }

    /// Reports whether the caller has the role for an action, and a key if the token of a sandbox is not enough for it.
    pub(crate) fn may(&self, action: Action) -> bool {
        ServiceWall::Roles.allows(self.role.includes(action.role) && (self.only.is_none() || action.token))
    }
}

/// Key id of the operator. No key has it: ids of keys begin with `key_`.
pub(crate) const OPERATOR: &str = "operator";

/// Tenant of keys that were created without one.
pub const DEFAULT_TENANT: &str = "default";

/// Quotas of all sandboxes of one key together. `null` is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// Number of sandboxes, including paused ones.
    pub sandboxes: Option<u32>,
    /// Sum of the memory limits of its sandboxes, in bytes.
    pub memory_bytes: Option<u64>,
    /// Sum of the disk limits of its sandboxes and of its templates, in bytes.
    pub disk_bytes: Option<u64>,
    /// Processor seconds in any hour.
    pub cpu_seconds_per_hour: Option<u64>,
    /// Executions in any minute.
    pub executions_per_minute: Option<u32>,
    /// The most that the network policies of its sandboxes may reach: a mode, or `presets` and `allow`. It holds for keys with
    /// the role admin, too.
    #[schema(schema_with = network_ceiling)]
    pub network: Option<NetworkCeiling>,
    /// Whether the network policies of its sandboxes may use secrets that are stored on the server; `null` is true. It holds for keys
    /// with the role admin, too.
    pub stored_secrets: Option<bool>,
}

/// Returns the schema of a network ceiling: a mode, or presets and rules.
pub(crate) fn network_ceiling() -> Schema {
    let of = |kind| ObjectBuilder::new().schema_type(SchemaType::Type(kind));
    let list_or_null = SchemaType::from_iter([Type::Array, Type::Null]);
    let texts = || ArrayBuilder::new().schema_type(list_or_null.clone()).items(of(Type::String));
    let lists = of(Type::Object).property("presets", texts()).property("allow", texts());
    let lists = lists.additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let mode = of(Type::String).enum_values(Some(NetworkMode::ALL.map(NetworkMode::as_str)));
    OneOfBuilder::new().item(of(Type::Null)).item(mode).item(lists).into()
}

/// Window over which processor time is counted. See [`Quotas::cpu_seconds_per_hour`].
pub const CPU_WINDOW: Duration = Duration::from_secs(3600);
