//! API keys. Only their hashes are stored.

use belljar_model::{Approval, Role};
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_optional_time, stored_time};

/// API key. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Id, which is not secret.
    pub id: String,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    /// First characters of the key, to recognize it.
    pub hint: String,
    /// Name given by its creator.
    pub name: String,
    /// Tenant to which it gives access.
    pub tenant: String,
    /// Role that it grants.
    pub role: Role,
    /// Quotas as JSON.
    pub quotas: String,
    /// Person to whom it belongs. Keys without an owner are a person each.
    pub owner: Option<String>,
    /// Whether calls with it wait for approval.
    pub approval: Approval,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of expiry.
    pub expires_at: Option<Timestamp>,
    /// Time of revocation.
    pub revoked_at: Option<Timestamp>,
    /// Time of the last recorded use.
    pub last_used_at: Option<Timestamp>,
}

/// Change of a key. What is absent stays as it is, so that changes of different fields at the same time all apply.
#[derive(Debug, Clone, Default)]
pub struct KeyUpdate {
    /// New name.
    pub name: Option<String>,
    /// New role.
    pub role: Option<Role>,
    /// New quotas, as JSON.
    pub quotas: Option<String>,
    /// New owner, or none.
    pub owner: Option<Option<String>>,
    /// Whether calls with it wait for approval.
    pub approval: Option<Approval>,
    /// New time of expiry, or none.
    pub expires_at: Option<Option<Timestamp>>,
}

/// Table of API keys.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'s> {
    pub(crate) database: &'s Database,
}

const SELECT: &str = "SELECT id, hash, hint, name, tenant, role, quotas, owner, approval, created_at, expires_at, revoked_at, \
     last_used_at FROM keys";

impl Keys<'_> {
    /// Adds a key. The change survives a power failure.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Exists`] if the id or the hash already exists, [`StoreError::Nul`], or fails if the store cannot
    /// be written.
    pub async fn insert(&self, row: &KeyRow) -> Result<(), StoreError> {
        refuse_nul([
            ("the key's id", row.id.as_str()),
            ("the key's hint", &row.hint),
            ("the key's name", &row.name),
            ("the tenant", &row.tenant),
            ("the quotas", &row.quotas),
            ("the owner", row.owner.as_deref().unwrap_or_default()),
        ])?;
        let text = "INSERT INTO keys (id, hash, hint, name, tenant, role, quotas, created_at, expires_at, revoked_at, \
             last_used_at, owner, approval) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
        let statement = sqlx::query(text)
            .bind(&row.id)
            .bind(row.hash.as_slice())
            .bind(&row.hint)
            .bind(&row.name)
            .bind(&row.tenant)
            .bind(row.role.as_str())
            .bind(&row.quotas)
            .bind(stored_time(row.created_at))
            .bind(stored_optional_time(row.expires_at))
            .bind(stored_optional_time(row.revoked_at))
            .bind(stored_optional_time(row.last_used_at))
            .bind(row.owner.clone())
            .bind(row.approval.as_str());
        self.database.write(statement).await.map_err(|error| {
            if is_clash(&error, "keys_pkey", "keys.id") || is_clash(&error, "keys_hash_key", "keys.hash") {
                StoreError::Exists { what: "key", id: row.id.clone() }
            } else {
                failed("write a key")(error)
            }
        })?;
        self.database.sync().await
    }

    /// Returns the key with this hash, also if it has expired or was revoked.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn find_by_hash(&self, hash: &[u8; 32]) -> Result<Option<KeyRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("hash = ?", &[hash.to_vec()])?;
        let row = self.database.read_one("read a key", query.finish()).await?;
        row.as_ref().map(read_key).transpose()
    }

    /// Returns the key with this id, also if it has expired or was revoked.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, id: &str) -> Result<Option<KeyRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("id = ?", &[id.to_owned()])?;
        let row = self.database.read_one("read a key", query.finish()).await?;
        row.as_ref().map(read_key).transpose()
    }

    /// Lists a page of the keys of all tenants, oldest first, including expired and revoked ones: those after a creation time and
    /// id, at most `limit`.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(
        &self,
        after: Option<(Timestamp, &str)>,
        limit: u32,
    ) -> Result<Vec<KeyRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.after(after)?;
        query.push(" ORDER BY created_at, id LIMIT ?", &[i64::from(limit)])?;
        let rows = self.database.read("list keys", query.finish()).await?;
        rows.iter().map(read_key).collect()
    }

    /// Revokes a key. The change survives a power failure. Returns whether it was not revoked before: revoking it again changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NotFound`], or fails if the store cannot be written.
    pub async fn revoke(&self, id: &str, time: Timestamp) -> Result<bool, StoreError> {
        let text = "UPDATE keys SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
        let statement = sqlx::query(text).bind(id).bind(stored_time(time));
        let changed = self.database.write(statement).await.map_err(failed("revoke a key"))?;
        self.database.sync().await?;
        if changed == 0 && self.get(id).await?.is_none() {
            return Err(StoreError::NotFound { what: "key", id: id.to_owned() });
        }
        Ok(changed > 0)
    }

    /// Changes a key. The change survives a power failure. Returns the key as it is then.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NotFound`], also if the key was revoked, [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn update(&self, id: &str, change: KeyUpdate) -> Result<KeyRow, StoreError> {
        let KeyUpdate { name, role, quotas, owner, approval, expires_at } = change;
        let new_owner = owner.as_ref().and_then(Option::as_deref);
        let texts = [
            ("the key's name", name.as_deref()),
            ("the quotas", quotas.as_deref()),
            ("the owner", new_owner),
        ];
        refuse_nul(texts.into_iter().filter_map(|(what, text)| Some((what, text?))))?;
        let mut query = Filter::new("UPDATE keys SET id = id");
        if let Some(name) = name {
            query.push(", name = ?", &[name])?;
        }
        if let Some(role) = role {
            query.push(", role = ?", &[role.as_str().to_owned()])?;
        }
        if let Some(quotas) = quotas {
            query.push(", quotas = ?", &[quotas])?;
        }
        if let Some(owner) = owner {
            query.push(", owner = ?", &[owner])?;
        }
        if let Some(approval) = approval {
            query.push(", approval = ?", &[approval.as_str().to_owned()])?;
        }
        if let Some(expires_at) = expires_at {
            query.push(", expires_at = ?", &[stored_optional_time(expires_at)])?;
        }
        query.and("id = ? AND revoked_at IS NULL", &[id.to_owned()])?;
        let changed = self.database.write(query.finish()).await.map_err(failed("change a key"))?;
        self.database.sync().await?;
        let not_found = || StoreError::NotFound { what: "key", id: id.to_owned() };
        if changed == 0 {
            return Err(not_found());
        }
        self.get(id).await?.ok_or_else(not_found)
    }

    /// Updates when keys were last used, many at once. Unknown keys are skipped, and times never go back.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn touch_many(&self, uses: &[(String, Timestamp)]) -> Result<(), StoreError> {
        const ACTION: &str = "update when keys were used";
        if uses.is_empty() {
            return Ok(());
        }
        // In the same order in all keepers, so that they cannot deadlock.
        let mut uses: Vec<_> = uses.iter().collect();
        uses.sort();
        let text =
            "UPDATE keys SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)";
        let mut transaction = self.database.begin(ACTION).await?;
        for (id, time) in uses {
            let statement = sqlx::query(text).bind(id).bind(stored_time(*time));
            statement.execute(&mut *transaction).await.map_err(failed(ACTION))?;
        }
        self.database.commit(transaction).await.map_err(failed(ACTION))
    }

    /// Returns the first and the last tenant, in the order of their names, with a key that is neither expired nor revoked at this
    /// time; `None` without any. They are the same if there is only one.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn live_tenants(&self, time: Timestamp) -> Result<Option<(String, String)>, StoreError> {
        // Each end of the index is read, and not the keys between them.
        let text = "SELECT \
             (SELECT MIN(tenant) FROM keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)) AS first, \
             (SELECT MAX(tenant) FROM keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)) AS last";
        let row = self.database.read_one("read tenants", sqlx::query(text).bind(stored_time(time))).await?;
        let Some(row) = row else { return Ok(None) };
        let row = Reader { table: "keys", row: &row };
        Ok(row.optional_text("first")?.zip(row.optional_text("last")?))
    }

    /// Reports whether another person than this has a key that is neither expired nor revoked at this time and may decide about calls of
    /// the tenant: with the role approver and of the tenant, or with the role admin.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn has_approver(
        &self,
        tenant: &str,
        person: &str,
        time: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut query = Filter::new("SELECT id FROM keys");
        query
            .and("role IN ('admin', 'approver') AND (role = 'admin' OR tenant = ?)", &[tenant.to_owned()])?;
        query.and("COALESCE(owner, id) <> ?", &[person.to_owned()])?;
        query.and(
            "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) LIMIT 1",
            &[stored_time(time)],
        )?;
        Ok(self.database.read_one("read approvers", query.finish()).await?.is_some())
    }

    /// Reports whether the tenant has a key that is neither expired nor revoked at this time.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn is_live_tenant(&self, tenant: &str, time: Timestamp) -> Result<bool, StoreError> {
        let mut query = Filter::new("SELECT id FROM keys");
        query.and("tenant = ?", &[tenant.to_owned()])?;
        query.and(
            "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) LIMIT 1",
            &[stored_time(time)],
        )?;
        Ok(self.database.read_one("read a tenant", query.finish()).await?.is_some())
    }
}

fn read_key(row: &AnyRow) -> Result<KeyRow, StoreError> {
    let row = Reader { table: "keys", row };
    Ok(KeyRow {
        id: row.text("id")?,
        hash: row.bytes_32("hash")?,
        hint: row.text("hint")?,
        name: row.text("name")?,
        tenant: row.text("tenant")?,
        role: row.parsed("role")?,
        quotas: row.text("quotas")?,
        owner: row.optional_text("owner")?,
        approval: row.parsed("approval")?,
        created_at: row.time("created_at")?,
        expires_at: row.optional_time("expires_at")?,
        revoked_at: row.optional_time("revoked_at")?,
        last_used_at: row.optional_time("last_used_at")?,
    })
}
