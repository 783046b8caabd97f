//! Keys.

use belljar_keeper::{Caller, DEFAULT_TENANT, KeyInfo, KeyUsage, NewKey, Quotas};
use belljar_model::Role;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Object, Span, object, time};

/// A request to make a key.
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
    /// What it is for.
    name: String,
    /// What its holder may do. `user` if not given.
    #[serde(default)]
    role: Option<RoleName>,
    /// Whose sandboxes it sees. `default` if not given.
    #[serde(default)]
    tenant: Option<String>,
    /// How long it works. For ever, if not given.
    #[serde(default)]
    expires: Option<Span>,
    /// What its sandboxes may use together.
    #[serde(default, deserialize_with = "object")]
    quotas: Option<QuotasBody>,
}

/// What the holder of a key may do. Each may do what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Role)]
enum RoleName {
    Read,
    User,
    Admin,
}

/// What the sandboxes of one key may use together. `null` is as much as the machine has.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Quotas)]
struct QuotasBody {
    /// Sandboxes at once.
    sandboxes: Option<u32>,
    /// Sum of their memory limits.
    memory_bytes: Option<u64>,
    /// Sum of their disk limits and of templates.
    disk_bytes: Option<u64>,
    /// Processor seconds in any hour.
    cpu_seconds_per_hour: Option<u64>,
    /// Executions in any minute.
    executions_per_minute: Option<u32>,
}

impl From<QuotasBody> for Quotas {
    fn from(body: QuotasBody) -> Self {
        Self {
            sandboxes: body.sandboxes,
            memory_bytes: body.memory_bytes,
            disk_bytes: body.disk_bytes,
            cpu_seconds_per_hour: body.cpu_seconds_per_hour,
            executions_per_minute: body.executions_per_minute,
        }
    }
}

impl From<Quotas> for QuotasBody {
    fn from(quotas: Quotas) -> Self {
        Self {
            sandboxes: quotas.sandboxes,
            memory_bytes: quotas.memory_bytes,
            disk_bytes: quotas.disk_bytes,
            cpu_seconds_per_hour: quotas.cpu_seconds_per_hour,
            executions_per_minute: quotas.executions_per_minute,
        }
    }
}

impl From<NewKeyBody> for NewKey {
    fn from(body: NewKeyBody) -> Self {
        Self {
            name: body.name,
            role: match body.role.unwrap_or(RoleName::User) {
                RoleName::Read => Role::Read,
                RoleName::User => Role::User,
                RoleName::Admin => Role::Admin,
            },
            tenant: body.tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
            expires: body.expires.map(|expires| expires.0),
            quotas: body.quotas.unwrap_or_default().into(),
        }
    }
}

/// A request to change a key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyUpdate, example = json!({"quotas": {"sandboxes": 20}}))]
pub(crate) struct KeyUpdateBody {
    /// What its sandboxes may use together, in the place of all that was said before.
    #[schema(value_type = QuotasBody)]
    quotas: Object<QuotasBody>,
}

impl From<KeyUpdateBody> for Quotas {
    fn from(body: KeyUpdateBody) -> Self {
        body.quotas.0.into()
    }
}

/// Key metadata, without the secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeyInfo)]
pub(crate) struct KeyInfoBody {
    /// Its id; it is no secret.
    id: String,
    /// The first characters of the key.
    #[schema(example = "bj_1a2b…")]
    hint: String,
    /// What it is for.
    name: String,
    /// What its holder may do.
    #[schema(value_type = RoleName)]
    role: &'static str,
    /// Whose sandboxes it sees.
    tenant: String,
    /// What its sandboxes may use together.
    quotas: QuotasBody,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    #[schema(format = DateTime)]
    revoked_at: Option<String>,
    /// To the minute.
    #[schema(format = DateTime)]
    last_used_at: Option<String>,
}

impl From<KeyInfo> for KeyInfoBody {
    fn from(info: KeyInfo) -> Self {
        Self {
            id: info.id,
            hint: info.hint,
            name: info.name,
            role: info.role.as_str(),
            tenant: info.tenant,
            quotas: info.quotas.into(),
            created_at: time(info.created_at),
            expires_at: info.expires_at.map(time),
            revoked_at: info.revoked_at.map(time),
            last_used_at: info.last_used_at.map(time),
        }
    }
}

/// A key that was just made.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CreatedKey)]
pub(crate) struct KeyBody {
    #[serde(flatten)]
    pub(crate) info: KeyInfoBody,
    /// The key itself. It is told this once.
    #[schema(example = "bj_00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff")]
    pub(crate) key: String,
}

/// Who asks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Me)]
pub(crate) struct MeBody {
    /// The id of the key.
    key: String,
    /// Whose sandboxes it sees.
    tenant: String,
    /// What it may do.
    #[schema(value_type = RoleName)]
    role: &'static str,
    /// What its sandboxes may use together.
    quotas: QuotasBody,
    /// What they use now.
    usage: UsageBody,
}

/// What the sandboxes of a key use now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Usage)]
struct UsageBody {
    sandboxes: u32,
    /// Sum of their memory limits.
    memory_bytes: u64,
    /// Sum of their disk limits.
    disk_bytes: u64,
    /// Processor seconds within the last hour.
    cpu_seconds: u64,
}

impl MeBody {
    pub(crate) fn new(caller: Caller, usage: &KeyUsage) -> Self {
        Self {
            key: caller.key,
            tenant: caller.tenant,
            role: caller.role.as_str(),
            quotas: caller.quotas.into(),
            usage: UsageBody {
                sandboxes: usage.sandboxes,
                memory_bytes: usage.memory_bytes,
                disk_bytes: usage.disk_bytes,
                cpu_seconds: usage.cpu_seconds,
            },
        }
    }
}
