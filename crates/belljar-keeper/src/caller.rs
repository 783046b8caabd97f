//! Who asks for something, and what they may use.

use std::time::Duration;

use belljar_model::{NetworkCeiling, NetworkMode, Role};
use belljar_store::ServiceWall;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type,
};

use crate::error::KeeperError;

/// Who asks: a key that has been checked, or the operator at the machine itself.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The key's id; it is no secret.
    pub key: String,
    /// Whose sandboxes it sees.
    pub tenant: String,
    /// What it may do.
    pub role: Role,
    /// What it may use.
    pub quotas: Quotas,
    /// The only sandbox that it may touch, if it came with that sandbox's token instead of a key.
    pub only: Option<belljar_model::SandboxId>,
    /// Where it comes from, such as `127.0.0.1:50000` or `cli`.
    pub client: String,
    /// Names the request in logs, in the audit trail and in errors.
    pub request_id: String,
}

impl Caller {
    /// The operator at the machine itself: an administrator of the first tenant, without quotas.
    #[must_use]
    pub fn operator(client: &str, request_id: &str) -> Self {
        Self {
            key: OPERATOR.to_owned(),
            tenant: DEFAULT_TENANT.to_owned(),
            role: Role::Admin,
            quotas: Quotas::default(),
            only: None,
            client: client.to_owned(),
            request_id: request_id.to_owned(),
        }
    }

    /// Whether it is the operator at the machine itself, who could read the server's files and log as well.
    #[must_use]
    pub fn is_operator(&self) -> bool {
        self.key == OPERATOR && self.role == Role::Admin && self.only.is_none()
    }

    /// Checks the role.
    ///
    /// # Errors
    /// [`KeeperError::Forbidden`] when it is less than `needed`, or when the caller has the token of one sandbox only.
    pub fn require(&self, needed: Role, action: &'static str) -> Result<(), KeeperError> {
        if !ServiceWall::Roles.allows(self.role >= needed && self.only.is_none()) {
            return Err(KeeperError::Forbidden { action, needed });
        }
        Ok(())
    }
}

/// Stands where a key's id would. No key has it: their ids begin with `key_`.
const OPERATOR: &str = "operator";

/// The tenant of keys that were made without naming one.
pub const DEFAULT_TENANT: &str = "default";

/// What the sandboxes of one key may use together. `null` is as much as the machine has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// Sandboxes at once, paused ones included.
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
}

/// A mode, or presets and rules.
fn network_ceiling() -> Schema {
    let of = |kind| ObjectBuilder::new().schema_type(SchemaType::Type(kind));
    let list_or_null = SchemaType::from_iter([Type::Array, Type::Null]);
    let texts = || ArrayBuilder::new().schema_type(list_or_null.clone()).items(of(Type::String));
    let lists = of(Type::Object).property("presets", texts()).property("allow", texts());
    let lists = lists.additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let mode = of(Type::String).enum_values(Some(NetworkMode::ALL.map(NetworkMode::as_str)));
    OneOfBuilder::new().item(of(Type::Null)).item(mode).item(lists).into()
}

/// The span over which processor time is counted. See [`Quotas::cpu_seconds_per_hour`].
pub const CPU_WINDOW: Duration = Duration::from_secs(3600);
