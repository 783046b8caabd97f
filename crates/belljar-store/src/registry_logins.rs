//! Accounts of tenants at registries of images. Passwords are sealed.

use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_time};
use crate::seal::{Place, Sealer};
use crate::secrets::SecretValue;
use crate::service_wall::ServiceWall;

/// An account without its password. Times are stored in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryLoginRow {
    /// Owning tenant.
    pub tenant: String,
    /// The registry: a host, with a port if it has one.
    pub registry: String,
    /// Name of the account.
    pub account: String,
    /// Id of the key that stored it.
    pub key_id: String,
    /// Time at which it was stored.
    pub created_at: Timestamp,
}

/// Accounts of tenants at registries.
#[derive(Debug, Clone, Copy)]
pub struct RegistryLogins<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

const PASSWORD: &str = "registry_logins.password";

const SELECT: &str = "SELECT tenant, registry, account, password, key_id, created_at FROM registry_logins";

impl RegistryLogins<'_> {
    /// Stores an account, in the place of the tenant's earlier one at that registry.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn put(&self, row: &RegistryLoginRow, password: &SecretValue) -> Result<(), StoreError> {
        refuse_nul([("the tenant", row.tenant.as_str()), ("the account", &row.account)])?;
        let password = self.sealer.seal(place(&[&row.tenant, &row.registry]), password.0.as_bytes())?;
        let text = "INSERT INTO registry_logins (tenant, registry, account, password, key_id, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, registry) DO UPDATE SET \
             account = excluded.account, password = excluded.password, key_id = excluded.key_id, created_at = excluded.created_at";
        let statement = sqlx::query(text)
            .bind(&row.tenant)
            .bind(&row.registry)
            .bind(&row.account)
            .bind(password)
            .bind(&row.key_id)
            .bind(stored_time(row.created_at));
        self.database.write(statement).await.map_err(failed("write an account at a registry"))?;
        self.database.sync().await
    }

    /// Returns a tenant's account at a registry, with its password.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(
        &self,
        tenant: &str,
        registry: &str,
    ) -> Result<Option<(RegistryLoginRow, SecretValue)>, StoreError> {
        let mut query = of_tenant(tenant)?;
        query.and("registry = ?", &[registry.to_owned()])?;
        let row = self.database.read_one("read an account at a registry", query.finish()).await?;
        let Some(row) = &row else { return Ok(None) };
        let found = login(row)?;
        let sealed = Reader { table: "registry_logins", row }.text("password")?;
        let password = self.sealer.open_text(place(&[&found.tenant, &found.registry]), &sealed)?;
        Ok(Some((found, SecretValue(password))))
    }

    /// Lists a tenant's accounts, sorted by registry.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(&self, tenant: &str) -> Result<Vec<RegistryLoginRow>, StoreError> {
        let mut query = of_tenant(tenant)?;
        query.push(" ORDER BY registry", &[] as &[String])?;
        let rows = self.database.read("list accounts at registries", query.finish()).await?;
        rows.iter().map(login).collect()
    }

    /// Removes an account. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn remove(&self, tenant: &str, registry: &str) -> Result<bool, StoreError> {
        let text = "DELETE FROM registry_logins WHERE tenant = $1 AND registry = $2";
        let statement = sqlx::query(text).bind(tenant).bind(registry);
        let removed =
            self.database.write(statement).await.map_err(failed("remove an account at a registry"))?;
        self.database.sync().await?;
        Ok(removed > 0)
    }
}

fn place<'a>(key: &'a [&'a str]) -> Place<'a> {
    Place::new(PASSWORD, key)
}

/// Begins a query for rows of one tenant. Tests can disable that protection.
fn of_tenant(tenant: &str) -> Result<Filter, StoreError> {
    let mut query = Filter::new(SELECT);
    if !ServiceWall::Tenants.is_down() {
        query.and("tenant = ?", &[tenant.to_owned()])?;
    }
    Ok(query)
}

fn login(row: &AnyRow) -> Result<RegistryLoginRow, StoreError> {
    let row = Reader { table: "registry_logins", row };
    Ok(RegistryLoginRow {
        tenant: row.text("tenant")?,
        registry: row.text("registry")?,
        account: row.text("account")?,
        key_id: row.text("key_id")?,
        created_at: row.time("created_at")?,
    })
}
