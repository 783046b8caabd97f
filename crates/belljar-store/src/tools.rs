//! Tools of tenants, by name and version. A version is never changed.

use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_time};
use crate::seal::{Place, Sealer};
use crate::service_wall::ServiceWall;

/// One version of a tool. Times are stored in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRow {
    /// Owning tenant.
    pub tenant: String,
    /// Name.
    pub name: String,
    /// Version, 1 for the first. Numbers are never used again.
    pub version: i64,
    /// The definition, as JSON.
    pub definition: String,
    /// Digest of the definition, in hexadecimal.
    pub digest: String,
    /// Id of the key that stored it.
    pub key_id: String,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Tools of tenants.
#[derive(Debug, Clone, Copy)]
pub struct Tools<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

const DEFINITION: &str = "tools.definition";

const SELECT: &str = "SELECT tenant, name, version, definition, digest, key_id, created_at FROM tools";

impl Tools<'_> {
    /// Inserts a version. Its number must be [`Self::next_version`].
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NameTaken`] if the version exists, or fails if the store cannot be written.
    pub async fn insert(&self, row: &ToolRow) -> Result<(), StoreError> {
        refuse_nul([("the tenant", row.tenant.as_str()), ("the name", &row.name)])?;
        let key = [row.tenant.as_str(), row.name.as_str(), &row.version.to_string()];
        let definition = self.sealer.seal(Place::new(DEFINITION, &key), row.definition.as_bytes())?;
        let text = "INSERT INTO tools (tenant, name, version, definition, digest, key_id, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let statement = sqlx::query(text)
            .bind(&row.tenant)
            .bind(&row.name)
            .bind(row.version)
            .bind(definition)
            .bind(&row.digest)
            .bind(&row.key_id)
            .bind(stored_time(row.created_at));
        self.database.write(statement).await.map_err(|error| {
            if is_clash(&error, "tools_pkey", "tools.tenant, tools.name, tools.version") {
                return StoreError::NameTaken { what: "tool", name: row.name.clone() };
            }
            failed("write a tool")(error)
        })?;
        self.database.sync().await
    }

    /// Returns the number of the next version of a tool: one more than the highest that it has ever had.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn next_version(&self, tenant: &str, name: &str) -> Result<i64, StoreError> {
        let mut query = Filter::new("SELECT COALESCE(MAX(version), 0) + 1 AS next FROM tools");
        query.and("tenant = ? AND name = ?", &[tenant.to_owned(), name.to_owned()])?;
        let row = self.database.read_one("read a tool", query.finish()).await?;
        row.as_ref().map_or(Ok(1), |row| Reader { table: "tools", row }.number("next"))
    }

    /// Returns the versions of a tenant's tool that are there, the newest first.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn versions(&self, tenant: &str, name: &str) -> Result<Vec<ToolRow>, StoreError> {
        let mut query = of_tenant(SELECT, tenant)?;
        query.and("name = ? AND removed_at IS NULL", &[name.to_owned()])?;
        query.push(" ORDER BY version DESC", &[] as &[String])?;
        let rows = self.database.read("read a tool", query.finish()).await?;
        rows.iter().map(|row| self.tool(row)).collect()
    }

    /// Returns the current version of each of a tenant's tools, sorted by name.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(&self, tenant: &str) -> Result<Vec<ToolRow>, StoreError> {
        let mut query = of_tenant(SELECT, tenant)?;
        let newest = "removed_at IS NULL AND NOT EXISTS (SELECT 1 FROM tools newer WHERE newer.tenant = tools.tenant \
             AND newer.name = tools.name AND newer.version > tools.version AND newer.removed_at IS NULL)";
        query.and(newest, &[] as &[String])?;
        query.push(" ORDER BY name", &[] as &[String])?;
        let rows = self.database.read("list tools", query.finish()).await?;
        rows.iter().map(|row| self.tool(row)).collect()
    }

    /// Returns all versions of a tenant's tools that are there.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list_versions(&self, tenant: &str) -> Result<Vec<ToolRow>, StoreError> {
        let mut query = of_tenant(SELECT, tenant)?;
        query.and("removed_at IS NULL", &[] as &[String])?;
        let rows = self.database.read("list tools", query.finish()).await?;
        rows.iter().map(|row| self.tool(row)).collect()
    }

    /// Removes a version of a tool, or all. Returns how many were there.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn remove(
        &self,
        tenant: &str,
        name: &str,
        version: Option<i64>,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let text = "UPDATE tools SET removed_at = $4 \
             WHERE tenant = $1 AND name = $2 AND removed_at IS NULL AND (CAST($3 AS BIGINT) IS NULL OR version = $3)";
        let statement = sqlx::query(text).bind(tenant).bind(name).bind(version).bind(stored_time(now));
        let removed = self.database.write(statement).await.map_err(failed("remove a tool"))?;
        self.database.sync().await?;
        Ok(removed)
    }

    fn tool(&self, row: &AnyRow) -> Result<ToolRow, StoreError> {
        let row = Reader { table: "tools", row };
        let (tenant, name, version) = (row.text("tenant")?, row.text("name")?, row.number("version")?);
        let key = [tenant.as_str(), name.as_str(), &version.to_string()];
        let definition = self.sealer.open_text(Place::new(DEFINITION, &key), &row.text("definition")?)?;
        Ok(ToolRow {
            definition,
            digest: row.text("digest")?,
            key_id: row.text("key_id")?,
            created_at: row.time("created_at")?,
            tenant,
            name,
            version,
        })
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
