//! Records of volumes. The files themselves are the keeper's.

use belljar_model::VolumeId;
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed, is_clash};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_time};

/// The record of a volume. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    /// Id.
    pub id: VolumeId,
    /// Owning tenant.
    pub tenant: String,
    /// Key that created it.
    pub key_id: String,
    /// Keeper whose machine has the file.
    pub keeper: String,
    /// Name, unique in the tenant.
    pub name: String,
    /// Size in bytes.
    pub bytes: i64,
    /// Creation time.
    pub created_at: Timestamp,
}

/// The records of volumes.
#[derive(Debug, Clone, Copy)]
pub struct Volumes<'s> {
    pub(crate) database: &'s Database,
}

const SELECT: &str = "SELECT id, tenant, key_id, keeper, name, bytes, created_at FROM volumes";

impl Volumes<'_> {
    /// Adds a volume. The record survives a power failure when this returns.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NameTaken`], [`StoreError::Exists`] or [`StoreError::Nul`], or fails if the database does.
    pub async fn insert(&self, row: &VolumeRow) -> Result<(), StoreError> {
        refuse_nul([
            ("the tenant", row.tenant.as_str()),
            ("the key", &row.key_id),
            ("the keeper", &row.keeper),
            ("the name", &row.name),
        ])?;
        let text = "INSERT INTO volumes (id, tenant, key_id, keeper, name, bytes, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let statement = sqlx::query(text)
            .bind(row.id.as_str())
            .bind(&row.tenant)
            .bind(&row.key_id)
            .bind(&row.keeper)
            .bind(&row.name)
            .bind(row.bytes)
            .bind(stored_time(row.created_at));
        self.database.write(statement).await.map_err(|error| {
            if is_clash(&error, "volumes_name", "volumes.name") {
                StoreError::NameTaken { what: "volume", name: row.name.clone() }
            } else if is_clash(&error, "volumes_pkey", "volumes.id") {
                StoreError::Exists { what: "volume", id: row.id.to_string() }
            } else {
                failed("write a volume")(error)
            }
        })?;
        self.database.sync().await
    }

    /// Returns the volume with this id or name of a tenant; without a tenant, the one with this id of any.
    ///
    /// # Errors
    ///
    /// Fails if the database does.
    pub async fn get(&self, tenant: Option<&str>, id_or_name: &str) -> Result<Option<VolumeRow>, StoreError> {
        let text = id_or_name.to_owned();
        let mut query = Filter::new(SELECT);
        match tenant {
            Some(tenant) => {
                query.and("tenant = ?", &[tenant.to_owned()])?;
                // Names never have the form of an id.
                query.and("(id = ? OR name = ?)", &[text.clone(), text])?;
            }
            None => query.and("id = ?", &[text])?,
        }
        let row = self.database.read_one("read a volume", query.finish()).await?;
        row.as_ref().map(volume).transpose()
    }

    /// Lists the volumes of a tenant, or all, oldest first.
    ///
    /// # Errors
    ///
    /// Fails if the database does.
    pub async fn list(&self, tenant: Option<&str>) -> Result<Vec<VolumeRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        if let Some(tenant) = tenant {
            query.and("tenant = ?", &[tenant.to_owned()])?;
        }
        query.push::<i64>(" ORDER BY created_at, id", &[])?;
        let rows = self.database.read("list volumes", query.finish()).await?;
        rows.iter().map(volume).collect()
    }

    /// Removes a volume's record. The removal survives a power failure when this returns.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NotFound`], or fails if the database does.
    pub async fn remove(&self, id: &VolumeId) -> Result<(), StoreError> {
        let statement = sqlx::query("DELETE FROM volumes WHERE id = $1").bind(id.as_str());
        match self.database.write(statement).await.map_err(failed("remove a volume"))? {
            0 => Err(StoreError::NotFound { what: "volume", id: id.to_string() }),
            _ => self.database.sync().await,
        }
    }
}

fn volume(row: &AnyRow) -> Result<VolumeRow, StoreError> {
    let row = Reader { table: "volumes", row };
    Ok(VolumeRow {
        id: row.parsed("id")?,
        tenant: row.text("tenant")?,
        key_id: row.text("key_id")?,
        keeper: row.text("keeper")?,
        name: row.text("name")?,
        bytes: row.number("bytes")?,
        created_at: row.time("created_at")?,
    })
}
