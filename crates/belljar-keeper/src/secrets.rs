//! Secrets of tenants, stored on the server. Network policies name them, and gateways get their values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use belljar_model::{
    DomainPattern, NetworkPolicy, Role, SecretScope, SecretUse, check_secret_value, is_secret_name,
};
use belljar_store::{SecretChange, SecretRow, SecretValue, ServiceWall, StoreError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::action::{SECRET_CREATE, SECRET_GET, SECRET_LIST, SECRET_REMOVE, SECRET_UPDATE};
use crate::caller::Caller;
use crate::create::fill_random;
use crate::entry::Entry;
use crate::error::{KeeperError, chain};
use crate::json;
use crate::keeper::{Keeper, Result};
use crate::steps::run_detached;

/// Maximum number of entries in a secret's metadata, and maximum bytes of a key, of a value, and of all entries.
/// Source: docs/spec.md; held by `secrets::tests::metadata_is_bounded`.
const MAX_METADATA: (usize, usize, usize, usize) = (32, 128, 1024, 8192);

/// Prefix of ids, which names cannot have.
const ID_PREFIX: &str = "sec_";

/// Request to store a secret.
#[derive(Debug, Clone)]
pub struct NewSecret {
    /// Name, unique in the tenant.
    pub name: String,
    /// The value.
    pub value: SecretValue,
    /// Metadata, chosen by the tenant.
    pub metadata: BTreeMap<String, String>,
    /// The hosts, and the header, that it may be sent to.
    pub scope: SecretScope,
}

/// Request to change a secret's value.
#[derive(Debug, Clone)]
pub struct SecretUpdate {
    /// The value.
    pub value: SecretValue,
    /// New metadata; unchanged if absent.
    pub metadata: Option<BTreeMap<String, String>>,
    /// The hosts, and the header, that it may be sent to from now on; unchanged if absent.
    pub scope: Option<SecretScope>,
}

/// Metadata of a secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretInfo {
    /// Its id.
    #[schema(example = "sec_00112233445566778899")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// Version of the value: 1 at first, incremented by each change.
    pub version: i64,
    /// Metadata, chosen by the tenant.
    pub metadata: BTreeMap<String, String>,
    /// The only hosts that it is sent to. If there are none, only the key that stored it and administrators may use it, for any host.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The only header that it is put into; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Time of creation.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last change.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

impl From<SecretRow> for SecretInfo {
    fn from(row: SecretRow) -> Self {
        let SecretRow { id, name, version, metadata, scope, created_at, updated_at, .. } = row;
        let hosts = scope.hosts().iter().map(ToString::to_string).collect();
        let header = scope.header().map(str::to_owned);
        Self { id, name, version, metadata, hosts, header, created_at, updated_at }
    }
}

impl Keeper {
    /// Stores a secret of the caller's tenant.
    ///
    /// # Errors
    /// Needs the role user; a name, value or metadata that is not allowed, [`KeeperError::NameTaken`], and
    /// [`KeeperError::Quota`] at the tenant's limit.
    pub async fn create_secret(&self, caller: &Caller, secret: NewSecret) -> Result<SecretInfo> {
        let (keeper, caller) = (self.clone(), caller.clone());
        run_detached(&self.inner.tasks, async move {
            let name = secret.name.clone();
            let created = keeper.insert_secret(&caller, secret).await;
            let details = secret_details(&name, created.as_ref().ok());
            keeper.audit(&caller, SECRET_CREATE, None, &created, details).await?;
            let info = created?;
            // Sandboxes may still run that used a removed secret of this name.
            keeper.refill(&caller.tenant, &info.name).await;
            Ok(info)
        })
        .await
    }

    async fn insert_secret(&self, caller: &Caller, secret: NewSecret) -> Result<SecretInfo> {
        self.require(caller, SECRET_CREATE)?;
        if !is_secret_name(&secret.name) || secret.name.starts_with(ID_PREFIX) {
            let reason = "not allowed; give 1 to 128 of a-z, 0-9, -, _ and ., of which the first is a letter or digit, and not sec_ at the beginning";
            return Err(KeeperError::field("name", reason));
        }
        check_value(&secret.value)?;
        check_metadata(&secret.metadata)?;
        let mut random = [0u8; 10];
        fill_random(&mut random)?;
        let now = Timestamp::now();
        let row = SecretRow {
            id: format!("{ID_PREFIX}{}", hex::encode(random)),
            tenant: caller.tenant.clone(),
            name: secret.name,
            version: 1,
            metadata: secret.metadata,
            scope: secret.scope,
            key_id: Some(caller.key.clone()),
            created_at: now,
            updated_at: now,
        };
        let max = self.inner.config.now().max_secrets;
        let taken = |name| KeeperError::NameTaken { name, owner: "a secret".to_owned() };
        match self.inner.store.secrets().insert(&row, &secret.value, max).await {
            Ok(true) => Ok(row.into()),
            Ok(false) if self.inner.store.secrets().get(&row.tenant, &row.name).await?.is_some() => {
                Err(taken(row.name))
            }
            Ok(false) => {
                let (used, limit) = (max.into(), max.into());
                Err(KeeperError::Quota { quota: "secrets", used, limit, retry_after: None })
            }
            Err(StoreError::NameTaken { name, .. }) => Err(taken(name)),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes a secret's value. Sandboxes of this server that use it have the new one when this returns.
    ///
    /// # Errors
    /// Needs the role user; [`KeeperError::NotFound`], and a value or metadata that is not allowed.
    pub async fn update_secret(&self, caller: &Caller, id: &str, update: SecretUpdate) -> Result<SecretInfo> {
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        run_detached(&self.inner.tasks, async move {
            let updated = keeper.write_secret(&caller, &id, update).await;
            let details = secret_details(&id, updated.as_ref().ok());
            keeper.audit(&caller, SECRET_UPDATE, None, &updated, details).await?;
            let info = updated?;
            keeper.refill(&caller.tenant, &info.name).await;
            Ok(info)
        })
        .await
    }

    async fn write_secret(&self, caller: &Caller, id: &str, update: SecretUpdate) -> Result<SecretInfo> {
        self.require(caller, SECRET_UPDATE)?;
        check_value(&update.value)?;
        update.metadata.as_ref().map(check_metadata).transpose()?;
        let row = self.secret_row(caller, id).await?;
        let change = SecretChange {
            key_id: &caller.key,
            metadata: update.metadata.as_ref(),
            scope: update.scope.as_ref(),
        };
        let secrets = self.inner.store.secrets();
        let written =
            secrets.set_value(&row.tenant, &row.id, &update.value, change, Timestamp::now()).await?;
        written.map(SecretInfo::from).ok_or_else(|| not_found(id))
    }

    /// Returns a secret of the caller's tenant, by its id or name.
    ///
    /// # Errors
    /// Needs the role read; [`KeeperError::NotFound`].
    pub async fn secret(&self, caller: &Caller, id: &str) -> Result<SecretInfo> {
        self.require(caller, SECRET_GET)?;
        Ok(self.secret_row(caller, id).await?.into())
    }

    /// Returns at most `limit` secrets of the caller's tenant, sorted by name, and the cursor of the next page.
    ///
    /// # Errors
    /// Needs the role read.
    pub async fn secrets(
        &self,
        caller: &Caller,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<(Vec<SecretInfo>, Option<String>)> {
        self.require(caller, SECRET_LIST)?;
        let after = cursor.unwrap_or_default();
        if !after.is_empty() && !is_secret_name(after) {
            return Err(KeeperError::field("cursor", "invalid cursor; begin without one"));
        }
        let mut rows =
            self.inner.store.secrets().list(&caller.tenant, after, limit.saturating_add(1)).await?;
        let has_more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next = rows.last().filter(|_| has_more).map(|row| row.name.clone());
        Ok((rows.into_iter().map(SecretInfo::from).collect(), next))
    }

    /// Removes a secret. Sandboxes of this server that use it no longer have it when this returns.
    ///
    /// # Errors
    /// Needs the role user; [`KeeperError::NotFound`].
    pub async fn remove_secret(&self, caller: &Caller, id: &str) -> Result<()> {
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        run_detached(&self.inner.tasks, async move {
            let removed = keeper.delete_secret(&caller, &id).await;
            let details = secret_details(&id, removed.as_ref().ok());
            keeper.audit(&caller, SECRET_REMOVE, None, &removed, details).await?;
            keeper.refill(&caller.tenant, &removed?.name).await;
            Ok(())
        })
        .await
    }

    async fn delete_secret(&self, caller: &Caller, id: &str) -> Result<SecretInfo> {
        self.require(caller, SECRET_REMOVE)?;
        let row = self.secret_row(caller, id).await?;
        match self.inner.store.secrets().remove(&row.tenant, &row.id).await? {
            true => Ok(row.into()),
            false => Err(not_found(id)),
        }
    }

    async fn secret_row(&self, caller: &Caller, id: &str) -> Result<SecretRow> {
        self.inner.store.secrets().get(&caller.tenant, id).await?.ok_or_else(|| not_found(id))
    }

    /// Returns the values of the stored secrets that a policy names, without those that have been removed.
    async fn secret_values(&self, tenant: &str, policy: &NetworkPolicy) -> Result<BTreeMap<String, String>> {
        let mut values = BTreeMap::new();
        for name in policy.stored_secrets() {
            if let Some(SecretValue(value)) = self.inner.store.secrets().value(tenant, &name).await? {
                values.insert(name, value);
            }
        }
        Ok(values)
    }

    /// Checks that the tenant has all secrets that a policy names, that it sends them where they may be sent, and that the caller may use
    /// them, by its key's quotas and as one that stored them.
    pub(crate) async fn check_stored_secrets(
        &self,
        caller: &Caller,
        tenant: &str,
        policy: &NetworkPolicy,
    ) -> Result<()> {
        let refuse = |reason| Err(KeeperError::Policy { field: "network.secrets", reason });
        if caller.quotas.stored_secrets == Some(false) && !policy.stored_secrets().is_empty() {
            let reason = "this key may not use secrets that are stored on the server (quota stored_secrets)";
            return refuse(reason.to_owned());
        }
        for wanted in policy.secret_uses() {
            let name = &wanted.name;
            let Some(row) = self.inner.store.secrets().get(tenant, name).await? else {
                let reason = format!(
                    "secret {name:?} not found; create it first, as with `belljar secret create {name}`"
                );
                return Err(KeeperError::field("network.secrets", reason));
            };
            if ServiceWall::SecretScope.is_down() {
                continue;
            }
            let SecretUse { host, header, .. } = &wanted;
            if !row.scope.allows(&wanted) {
                return refuse(format!(
                    "secret {name:?} is for {}, and not for {host} (header {header}); whoever stored it can change that",
                    row.scope
                ));
            }
            let is_own = caller.role == Role::Admin || row.key_id.as_ref() == Some(&caller.key);
            if row.scope.is_unlimited() && !is_own {
                return refuse(format!(
                    "secret {name:?} has no hosts, so that only the key that stored it and administrators may use it; \
                     they can give it hosts, as with `belljar secret set {name} --host {host}`"
                ));
            }
        }
        Ok(())
    }

    /// Returns the policy with the values of the secrets that it names, for its gateway. Secrets that have been removed are left out, and
    /// hosts that a secret may no longer be sent to are denied.
    pub(crate) async fn fill_secrets(&self, tenant: &str, policy: &NetworkPolicy) -> Result<NetworkPolicy> {
        let refused = self.refused_hosts(tenant, policy).await?;
        let policy = &if refused.is_empty() { policy.clone() } else { policy.without_hosts(&refused) };
        Ok(policy.fill(&self.secret_values(tenant, policy).await?))
    }

    /// Returns the hosts to which a policy sends secrets that may no longer be sent there.
    async fn refused_hosts(&self, tenant: &str, policy: &NetworkPolicy) -> Result<BTreeSet<DomainPattern>> {
        let mut refused = BTreeSet::new();
        for wanted in policy.secret_uses() {
            let row = self.inner.store.secrets().get(tenant, &wanted.name).await?;
            if row.is_some_and(|row| !ServiceWall::SecretScope.allows(row.scope.allows(&wanted))) {
                refused.insert(wanted.host);
            }
        }
        Ok(refused)
    }

    /// Sends the current value of a secret to the gateways of this server's running sandboxes that use it. Failures are only logged:
    /// the gateway has ended or does not respond.
    async fn refill(&self, tenant: &str, name: &str) {
        let uses = |entry: &Arc<Entry>| {
            entry.tenant == tenant && entry.live().spec.network.stored_secrets().contains(name)
        };
        for entry in self.entries().into_iter().filter(uses) {
            // Waits for a launch or a change in progress.
            let _step = entry.step.lock().await;
            let (sandbox, policy) = {
                let live = entry.live();
                (live.sandbox.clone(), live.spec.network.clone())
            };
            let Some(sandbox) = sandbox else { continue };
            if let Ok(refused) = self.refused_hosts(tenant, &policy).await {
                for host in refused {
                    entry.note(
                        "network",
                        None,
                        format!("{host} is denied: the secret {name} is no longer for it"),
                    );
                }
            }
            let set = match self.fill_secrets(tenant, &policy).await {
                Ok(policy) => sandbox.set_network(&policy).await.map_err(KeeperError::from),
                Err(error) => Err(error),
            };
            if let Err(error) = set {
                tracing::warn!(sandbox = %entry.id, error = %chain(&error), "cannot give a gateway the value of a secret");
            }
        }
    }
}

fn secret_details(id: &str, info: Option<&SecretInfo>) -> Vec<(&'static str, String)> {
    match info {
        Some(info) => vec![
            ("secret", info.id.clone()),
            ("name", info.name.clone()),
            ("version", info.version.to_string()),
        ],
        None => vec![("secret", id.chars().take(64).collect())],
    }
}

fn not_found(id: &str) -> KeeperError {
    KeeperError::NotFound { what: "secret", id: id.chars().take(64).collect() }
}

fn check_value(value: &SecretValue) -> Result<()> {
    check_secret_value(&value.0)
        .map_err(|allowed| KeeperError::field("value", format!("not allowed; give {allowed}")))
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<()> {
    let (max, max_key, max_value, max_bytes) = MAX_METADATA;
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    let is_long = metadata.iter().any(|(key, value)| key.len() > max_key || value.len() > max_value);
    if metadata.len() > max
        || is_long
        || bytes > max_bytes
        || metadata.iter().any(|(key, value)| key.contains('\0') || value.contains('\0'))
    {
        let reason = format!(
            "not allowed; give at most {max} entries, keys of {max_key} bytes, values of {max_value} bytes, {max_bytes} bytes in all, and no NUL"
        );
        return Err(KeeperError::field("metadata", reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_bounded() {
        let of = |entries: usize, key: usize, value: usize| -> BTreeMap<String, String> {
            (0..entries).map(|number| (format!("{number:0key$}"), "v".repeat(value))).collect()
        };
        for (metadata, is_allowed) in [
            (of(0, 0, 0), true),
            (of(32, 2, 10), true),
            (of(33, 2, 10), false),
            (of(1, 128, 1024), true),
            (of(1, 129, 1), false),
            (of(1, 1, 1025), false),
            (of(8, 2, 1022), true),
            (of(8, 3, 1022), false),
            (BTreeMap::from([("a".to_owned(), "\0".to_owned())]), false),
        ] {
            assert_eq!(check_metadata(&metadata).is_ok(), is_allowed, "{} entries", metadata.len());
        }
    }
}
