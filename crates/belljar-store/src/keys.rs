//! The keys with which callers prove who they are. Only their hashes are stored.

use belljar_model::Role;
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, no_nul, stored_optional_time, stored_time};

/// A key. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Its id, which is no secret.
    pub id: String,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    /// The first characters of the key, to tell it from others.
    pub hint: String,
    /// What somebody called it.
    pub name: String,
    /// To whom it gives access.
    pub tenant: String,
    /// What it allows.
    pub role: Role,
    /// What it may use up, as JSON.
    pub quotas: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it is worth nothing.
    pub expires_at: Option<Timestamp>,
    /// When it was taken back.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, as far as has been noted.
    pub last_used_at: Option<Timestamp>,
}

/// The keys with which callers prove who they are.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'s> {
    pub(crate) database: &'s Database,
}

const SELECT: &str = "SELECT id, hash, hint, name, tenant, role, quotas, created_at, expires_at, revoked_at, last_used_at \
     FROM keys";

impl Keys<'_> {
    /// Adds a key. It survives a loss of power.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] if the id or the hash is there already, [`StoreError::Nul`], and those of writing.
    pub async fn insert(&self, row: &KeyRow) -> Result<(), StoreError> {
        no_nul([
            ("the key's id", row.id.as_str()),
            ("the key's hint", &row.hint),
            ("the key's name", &row.name),
            ("the tenant", &row.tenant),
            ("the quotas", &row.quotas),
        ])?;
        let text = "INSERT INTO keys (id, hash, hint, name, tenant, role, quotas, created_at, expires_at, revoked_at, \
             last_used_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
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
            .bind(stored_optional_time(row.last_used_at));
        self.database.write(statement).await.map_err(|error| {
            if is_clash(&error, "keys_pkey", "keys.id") || is_clash(&error, "keys_hash_key", "keys.hash") {
                StoreError::Exists { what: "key", id: row.id.clone() }
            } else {
                failed("write a key")(error)
            }
        })?;
        self.database.sync().await
    }

    /// The key with this hash, also if it has expired or was revoked.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn find_by_hash(&self, hash: &[u8; 32]) -> Result<Option<KeyRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("hash = ?", &[hash.to_vec()])?;
        let row = self.database.read_one("read a key", query.finish()).await?;
        row.as_ref().map(key).transpose()
    }

    /// The key with this id, also if it has expired or was revoked.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn get(&self, id: &str) -> Result<Option<KeyRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("id = ?", &[id.to_owned()])?;
        let row = self.database.read_one("read a key", query.finish()).await?;
        row.as_ref().map(key).transpose()
    }

    /// The keys of a tenant or of all, the oldest first, also those that have expired or were revoked.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn list(&self, tenant: Option<&str>) -> Result<Vec<KeyRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        if let Some(tenant) = tenant {
            query.and("tenant = ?", &[tenant.to_owned()])?;
        }
        query.push::<i64>(" ORDER BY created_at, id", &[])?;
        let rows = self.database.read("list keys", query.finish()).await?;
        rows.iter().map(key).collect()
    }

    /// Takes a key back. It survives a loss of power. Says whether the key was good until now: a second time changes nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`], and those of writing.
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

    /// Changes what the sandboxes of a key may use. It survives a loss of power.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] also if it was revoked, and those of writing.
    pub async fn set_quotas(&self, id: &str, quotas: &str) -> Result<(), StoreError> {
        let text = "UPDATE keys SET quotas = $2 WHERE id = $1 AND revoked_at IS NULL";
        let statement = sqlx::query(text).bind(id).bind(quotas);
        let changed = self.database.write(statement).await.map_err(failed("change a key"))?;
        self.database.sync().await?;
        match changed {
            0 => Err(StoreError::NotFound { what: "key", id: id.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Notes when keys were last used, many at once. Keys that are not there are passed over, and no time goes back.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn touch_many(&self, uses: &[(String, Timestamp)]) -> Result<(), StoreError> {
        const ACTION: &str = "note when keys were used";
        if uses.is_empty() {
            return Ok(());
        }
        // In one order for all keepers, so that none waits for another in a circle.
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

    /// How many keys are good at this time.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn count_live(&self, time: Timestamp) -> Result<u64, StoreError> {
        let text = "SELECT COUNT(*) AS live FROM keys WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)";
        let row = self.database.read_one("count keys", sqlx::query(text).bind(stored_time(time))).await?;
        let count = row.map(|row| Reader { table: "keys", row: &row }.number("live")).transpose()?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }
}

fn key(row: &AnyRow) -> Result<KeyRow, StoreError> {
    let row = Reader { table: "keys", row };
    Ok(KeyRow {
        id: row.text("id")?,
        hash: row.bytes_32("hash")?,
        hint: row.text("hint")?,
        name: row.text("name")?,
        tenant: row.text("tenant")?,
        role: row.parsed("role")?,
        quotas: row.text("quotas")?,
        created_at: row.time("created_at")?,
        expires_at: row.optional_time("expires_at")?,
        revoked_at: row.optional_time("revoked_at")?,
        last_used_at: row.optional_time("last_used_at")?,
    })
}
