//! Small things that are there once.

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::random::random_32;
use crate::reader::{Reader, no_nul};

/// The name of the server's secret.
const SECRET: &str = "server.secret";

/// Small things that are there once, by name.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'s> {
    pub(crate) database: &'s Database,
}

impl Meta<'_> {
    /// What is stored under the name.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let query = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(name);
        let row = self.database.read_one("read a setting", query).await?;
        row.map(|row| Reader { table: "meta", row: &row }.bytes("value")).transpose()
    }

    /// Stores something under the name, in place of what was there. It survives a loss of power.
    ///
    /// # Errors
    ///
    /// [`StoreError::Nul`], and those of writing.
    pub async fn set(&self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        no_nul([("the name of the setting", name)])?;
        let text = "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let statement = sqlx::query(text).bind(name).bind(value);
        self.database.write(statement).await.map_err(failed("write a setting"))?;
        self.database.sync().await
    }

    /// 32 random bytes, which are made the first time and stay the same for all who share the store.
    ///
    /// # Errors
    ///
    /// Those of reading and writing, and [`StoreError::Random`].
    pub async fn server_secret(&self) -> Result<[u8; 32], StoreError> {
        if let Some(secret) = self.get(SECRET).await? {
            return as_secret(&secret);
        }
        let fresh = random_32()?;
        let text = "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        let statement = sqlx::query(text).bind(SECRET).bind(fresh.as_slice());
        self.database.write(statement).await.map_err(failed("write the server's secret"))?;
        self.database.sync().await?;
        // Another keeper may have been faster; what is stored counts.
        let stored = self.get(SECRET).await?;
        as_secret(&stored.unwrap_or_default())
    }
}

fn as_secret(bytes: &[u8]) -> Result<[u8; 32], StoreError> {
    bytes.try_into().map_err(|_| StoreError::Corrupt {
        what: format!("meta.{SECRET}"),
        why: format!("{} bytes instead of 32", bytes.len()),
    })
}
