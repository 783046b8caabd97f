//! Secrets of tenants, stored on the server, by name. Values are sealed; only the newest one is stored.

use std::collections::BTreeMap;
use std::fmt;

use belljar_model::SecretScope;
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_time};
use crate::seal::{Place, Sealer};
use crate::service_wall::ServiceWall;

/// A secret without its value. Times are stored in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    /// Id.
    pub id: String,
    /// Owning tenant.
    pub tenant: String,
    /// Name, unique in the tenant.
    pub name: String,
    /// Version of the value: 1 at first, incremented by each change.
    pub version: i64,
    /// Metadata, chosen by the tenant.
    pub metadata: BTreeMap<String, String>,
    /// The hosts, and the header, that it may be sent to.
    pub scope: SecretScope,
    /// Id of the key that stored the value; `None` for values of earlier versions.
    pub key_id: Option<String>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// The value of a secret. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(pub String);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

/// Secrets of tenants, stored on the server.
#[derive(Debug, Clone, Copy)]
pub struct Secrets<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

const VALUE: &str = "secrets.value";

const SELECT: &str =
    "SELECT id, tenant, name, version, metadata, hosts, header, key_id, created_at, updated_at FROM secrets";

/// What is changed with a secret's value; what is absent stays.
#[derive(Debug, Clone, Copy, Default)]
pub struct SecretChange<'a> {
    /// Id of the key that changes it.
    pub key_id: &'a str,
    /// Metadata.
    pub metadata: Option<&'a BTreeMap<String, String>>,
    /// The hosts, and the header, that it may be sent to.
    pub scope: Option<&'a SecretScope>,
}

impl Secrets<'_> {
    /// Inserts a secret, unless its tenant has `max` of them. Returns whether it was inserted.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NameTaken`] or [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn insert(&self, row: &SecretRow, value: &SecretValue, max: u32) -> Result<bool, StoreError> {
        refuse_nul([("the tenant", row.tenant.as_str()), ("the name", &row.name)])?;
        let text = "INSERT INTO secrets (id, tenant, name, value, version, metadata, created_at, updated_at, hosts, header, key_id) \
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, $10, $11, $12 \
             WHERE (SELECT count(*) FROM secrets WHERE tenant = $2) < $9";
        let statement = sqlx::query(text)
            .bind(&row.id)
            .bind(&row.tenant)
            .bind(&row.name)
            .bind(self.seal(&row.tenant, &row.id, value)?)
            .bind(row.version)
            .bind(metadata_json(&row.metadata)?)
            .bind(stored_time(row.created_at))
            .bind(stored_time(row.updated_at))
            .bind(i64::from(max))
            .bind(hosts_json(&row.scope))
            .bind(row.scope.header().map(str::to_owned))
            .bind(row.key_id.clone());
        let added = self.database.write(statement).await.map_err(|error| {
            if is_clash(&error, "secrets_name", "secrets.name") {
                return StoreError::NameTaken { what: "secret", name: row.name.clone() };
            }
            failed("write a secret")(error)
        })?;
        self.database.sync().await?;
        Ok(added > 0)
    }

    /// Changes a secret's value, and the rest if given. Returns the changed secret; `None` if the id is not found.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read or written.
    pub async fn set_value(
        &self,
        tenant: &str,
        id: &str,
        value: &SecretValue,
        change: SecretChange<'_>,
        now: Timestamp,
    ) -> Result<Option<SecretRow>, StoreError> {
        // The header belongs to the hosts: it is replaced with them, also by none.
        let text = "UPDATE secrets SET value = $3, version = version + 1, metadata = COALESCE($4, metadata), updated_at = $5, \
             header = CASE WHEN CAST($6 AS TEXT) IS NULL THEN header ELSE $7 END, hosts = COALESCE($6, hosts), key_id = $8 \
             WHERE tenant = $1 AND id = $2";
        let statement = sqlx::query(text)
            .bind(tenant)
            .bind(id)
            .bind(self.seal(tenant, id, value)?)
            .bind(change.metadata.map(metadata_json).transpose()?)
            .bind(stored_time(now))
            .bind(change.scope.map(hosts_json))
            .bind(change.scope.and_then(SecretScope::header).map(str::to_owned))
            .bind(change.key_id.to_owned());
        let changed = self.database.write(statement).await.map_err(failed("change a secret"))?;
        self.database.sync().await?;
        if changed == 0 { Ok(None) } else { self.get(tenant, id).await }
    }

    /// Returns the tenant's secret with this id or name. Ids take precedence.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, tenant: &str, id_or_name: &str) -> Result<Option<SecretRow>, StoreError> {
        let text = id_or_name.to_owned();
        let mut query = of_tenant(SELECT, tenant)?;
        query.and("(id = ? OR name = ?)", &[text.clone(), text.clone()])?;
        query.push(" ORDER BY CASE WHEN id = ? THEN 0 ELSE 1 END LIMIT 1", &[text])?;
        let row = self.database.read_one("read a secret", query.finish()).await?;
        row.as_ref().map(secret).transpose()
    }

    /// Returns at most `limit` secrets of a tenant, sorted by name, after the given name.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(&self, tenant: &str, after: &str, limit: u32) -> Result<Vec<SecretRow>, StoreError> {
        let mut query = of_tenant(SELECT, tenant)?;
        query.and("name > ?", &[after.to_owned()])?;
        query.push(" ORDER BY name LIMIT ?", &[i64::from(limit)])?;
        let rows = self.database.read("list secrets", query.finish()).await?;
        rows.iter().map(secret).collect()
    }

    /// Returns the value of the tenant's secret with this name.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn value(&self, tenant: &str, name: &str) -> Result<Option<SecretValue>, StoreError> {
        let mut query = of_tenant("SELECT id, tenant, value FROM secrets", tenant)?;
        query.and("name = ?", &[name.to_owned()])?;
        let row = self.database.read_one("read a secret", query.finish()).await?;
        let Some(row) = &row else { return Ok(None) };
        let row = Reader { table: "secrets", row };
        let place = [row.text("tenant")?, row.text("id")?];
        let place = place.each_ref().map(String::as_str);
        self.sealer
            .open_text(Place::new(VALUE, &place), &row.text("value")?)
            .map(|text| Some(SecretValue(text)))
    }

    /// Removes a secret permanently. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn remove(&self, tenant: &str, id: &str) -> Result<bool, StoreError> {
        let statement =
            sqlx::query("DELETE FROM secrets WHERE tenant = $1 AND id = $2").bind(tenant).bind(id);
        let removed = self.database.write(statement).await.map_err(failed("remove a secret"))?;
        self.database.sync().await?;
        Ok(removed > 0)
    }

    fn seal(&self, tenant: &str, id: &str, value: &SecretValue) -> Result<String, StoreError> {
        self.sealer.seal(Place::new(VALUE, &[tenant, id]), value.0.as_bytes())
    }
}

/// Begins a query for rows of one tenant. Tests can disable that protection.
fn of_tenant(select: &'static str, tenant: &str) -> Result<Filter, StoreError> {
    let mut query = Filter::new(select);
    if !ServiceWall::Tenants.is_down() {
        query.and("tenant = ?", &[tenant.to_owned()])?;
    }
    Ok(query)
}

fn metadata_json(metadata: &BTreeMap<String, String>) -> Result<String, StoreError> {
    refuse_nul(
        metadata.iter().flat_map(|(key, value)| [("the metadata", key.as_str()), ("the metadata", value)]),
    )?;
    Ok(serde_json::to_string(metadata).unwrap_or_default())
}

fn hosts_json(scope: &SecretScope) -> String {
    // Cannot fail: texts only.
    serde_json::to_string(scope.hosts()).unwrap_or_default()
}

fn secret(row: &AnyRow) -> Result<SecretRow, StoreError> {
    let row = Reader { table: "secrets", row };
    let hosts = row.text("hosts")?;
    let corrupt = |why: String| row.corrupt("hosts", why);
    let hosts: Vec<String> = serde_json::from_str(&hosts).map_err(|error| corrupt(error.to_string()))?;
    let header = row.optional_text("header")?;
    let scope = SecretScope::new(&hosts, header.as_deref()).map_err(|error| corrupt(error.to_string()))?;
    Ok(SecretRow {
        id: row.text("id")?,
        tenant: row.text("tenant")?,
        name: row.text("name")?,
        version: row.number("version")?,
        metadata: row.labels("metadata")?,
        scope,
        key_id: row.optional_text("key_id")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}
