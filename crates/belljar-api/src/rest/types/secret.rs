//! Requests about secrets of a tenant.

use std::fmt;

use belljar_keeper::{NewSecret, SecretUpdate, SecretValue};
use serde::Deserialize;
use utoipa::ToSchema;

use super::UniqueMap;

/// Request to store a secret.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSecret, example = json!({"name": "example-key", "value": "a secret", "metadata": {"owner": "ci"}}))]
pub(crate) struct NewSecretBody {
    /// Its name, unique in the tenant: 1 to 128 of `a-z`, `0-9`, `-`, `_` and `.`, a letter or digit first, and not `sec_` at the
    /// beginning.
    name: String,
    /// The value: 1 to 8192 visible ASCII characters, with no space at either end. Responses do not contain it.
    value: String,
    /// Metadata: at most 32 entries, and 8192 bytes in all.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<UniqueMap<String>>,
}

/// Request to change a secret's value.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SecretUpdate, example = json!({"value": "another secret"}))]
pub(crate) struct SecretUpdateBody {
    /// The value. Responses do not contain it.
    value: String,
    /// New metadata; unchanged if absent.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<UniqueMap<String>>,
}

impl fmt::Debug for NewSecretBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a secret {:?}", self.name)
    }
}

impl fmt::Debug for SecretUpdateBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another value of a secret")
    }
}

impl From<NewSecretBody> for NewSecret {
    fn from(NewSecretBody { name, value, metadata }: NewSecretBody) -> Self {
        Self { name, value: SecretValue(value), metadata: metadata.unwrap_or_default().0 }
    }
}

impl From<SecretUpdateBody> for SecretUpdate {
    fn from(SecretUpdateBody { value, metadata }: SecretUpdateBody) -> Self {
        Self { value: SecretValue(value), metadata: metadata.map(|UniqueMap(metadata)| metadata) }
    }
}
