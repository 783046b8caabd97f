//! Requests about secrets of a tenant.

use std::fmt;

use belljar_keeper::{KeeperError, NewSecret, SecretUpdate, SecretValue};
use belljar_model::SecretScope;
use serde::Deserialize;
use utoipa::ToSchema;

use super::UniqueMap;
use crate::problem::Problem;

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
    /// The only hosts that it may be sent to: names, or patterns such as `*.example.com`; at most 32. Without hosts only the key that
    /// stores it and administrators may use it, for any host.
    #[serde(default)]
    #[schema(example = json!(["api.example.com"]))]
    hosts: Vec<String>,
    /// The only header that it may be put into; any if absent. Only with `hosts`.
    #[serde(default)]
    header: Option<String>,
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
    /// New hosts; unchanged if absent. Running sandboxes that use the secret for another host no longer reach that host.
    #[serde(default)]
    hosts: Option<Vec<String>>,
    /// The header that belongs to the new hosts. Only with `hosts`.
    #[serde(default)]
    header: Option<String>,
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

impl TryFrom<NewSecretBody> for NewSecret {
    type Error = Problem;

    fn try_from(body: NewSecretBody) -> Result<Self, Problem> {
        let NewSecretBody { name, value, metadata, hosts, header } = body;
        let scope = SecretScope::new(&hosts, header.as_deref()).map_err(KeeperError::from)?;
        Ok(Self { name, value: SecretValue(value), metadata: metadata.unwrap_or_default().0, scope })
    }
}

impl TryFrom<SecretUpdateBody> for SecretUpdate {
    type Error = Problem;

    fn try_from(body: SecretUpdateBody) -> Result<Self, Problem> {
        let SecretUpdateBody { value, metadata, hosts, header } = body;
        let scope = match hosts {
            Some(hosts) => Some(SecretScope::new(&hosts, header.as_deref()).map_err(KeeperError::from)?),
            None if header.is_some() => {
                return Err(Problem::field("header", "give the hosts that the secret is for as well"));
            }
            None => None,
        };
        let metadata = metadata.map(|UniqueMap(metadata)| metadata);
        Ok(Self { value: SecretValue(value), metadata, scope })
    }
}
