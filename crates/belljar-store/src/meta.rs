//! Settings that exist once per store.

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::random::random_32;
use crate::reader::{Reader, refuse_nul};

/// Name of the server's secret.
const SECRET: &str = "server.secret";

/// Table of settings that exist once per store, by name.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'s> {
    pub(crate) database: &'s Database,
}

impl Meta<'_> {
    /// Returns the value of a name.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let query = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(name);
        let row = self.database.read_one("read a setting", query).await?;
        row.map(|row| Reader { table: "meta", row: &row }.bytes("value")).transpose()
    }

    /// Sets the value of a name, replacing the previous one. The change survives a power failure.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn set(&self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        refuse_nul([("the name of the setting", name)])?;
        let text = "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let statement = sqlx::query(text).bind(name).bind(value);
        self.database.write(statement).await.map_err(failed("write a setting"))?;
        self.database.sync().await
    }

    /// Returns the server's secret: 32 random bytes, created on first use and shared by all servers of the store.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Random`], or fails if the store cannot be read or written.
    pub async fn server_secret(&self) -> Result<[u8; 32], StoreError> {
        if let Some(secret) = self.get(SECRET).await? {
            return parse_secret(&secret);
        }
        let fresh = random_32()?;
        let text = "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        let statement = sqlx::query(text).bind(SECRET).bind(fresh.as_slice());
        self.database.write(statement).await.map_err(failed("write the server's secret"))?;
        self.database.sync().await?;
        // Another keeper may have been faster; the stored value is authoritative.
        let stored = self.get(SECRET).await?;
        parse_secret(&stored.unwrap_or_default())
    }
}

fn parse_secret(bytes: &[u8]) -> Result<[u8; 32], StoreError> {
    bytes.try_into().map_err(|_| StoreError::Corrupt {
        what: format!("meta.{SECRET}"),
        why: format!("{} bytes instead of 32", bytes.len()),
    })
}
