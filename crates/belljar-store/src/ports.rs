//! Ports of sandboxes that may be reached from outside.

use std::fmt;
use std::str::FromStr;

use belljar_model::SandboxId;
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::filter::Filter;
use crate::reader::{Reader, stored_time};

/// Who may reach a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortVisibility {
    /// Who has a token for it.
    Private,
    /// Everybody.
    Public,
}

impl PortVisibility {
    /// The name: `private` or `public`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Public => "public",
        }
    }
}

impl fmt::Display for PortVisibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PortVisibility {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Private, Self::Public]
            .into_iter()
            .find(|visibility| visibility.as_str() == text)
            .ok_or_else(|| format!("{text:?} is neither private nor public"))
    }
}

/// A published port. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRow {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The port inside.
    pub port: u16,
    /// Who may reach it.
    pub visibility: PortVisibility,
    /// When it was published.
    pub created_at: Timestamp,
}

/// Ports of sandboxes that may be reached from outside. They are forgotten with the record of their sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Ports<'s> {
    pub(crate) database: &'s Database,
}

const SELECT: &str = "SELECT sandbox, port, visibility, created_at FROM ports";

impl Ports<'_> {
    /// Publishes a port. If it is published already, it gets the new visibility and keeps its time.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such sandbox, and those of writing.
    pub async fn publish(&self, row: &PortRow) -> Result<(), StoreError> {
        let text = "INSERT INTO ports (sandbox, port, visibility, created_at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (sandbox, port) DO UPDATE SET visibility = excluded.visibility";
        let statement = sqlx::query(text)
            .bind(row.sandbox.as_str())
            .bind(i64::from(row.port))
            .bind(row.visibility.as_str())
            .bind(stored_time(row.created_at));
        self.database.write(statement).await.map(|_| ()).map_err(|error| {
            if error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_foreign_key_violation) {
                return StoreError::NotFound { what: "sandbox", id: row.sandbox.to_string() };
            }
            failed("publish a port")(error)
        })
    }

    /// A port, if it is published.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn get(&self, sandbox: &SandboxId, port: u16) -> Result<Option<PortRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("sandbox = ?", &[sandbox.to_string()])?;
        query.and("port = ?", &[i64::from(port)])?;
        let row = self.database.read_one("read a port", query.finish()).await?;
        row.as_ref().map(published).transpose()
    }

    /// The published ports of a sandbox, in order.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn list(&self, sandbox: &SandboxId) -> Result<Vec<PortRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("sandbox = ? ORDER BY port", &[sandbox.to_string()])?;
        let rows = self.database.read("list ports", query.finish()).await?;
        rows.iter().map(published).collect()
    }

    /// Takes a port back, and says whether it was published.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn withdraw(&self, sandbox: &SandboxId, port: u16) -> Result<bool, StoreError> {
        let text = "DELETE FROM ports WHERE sandbox = $1 AND port = $2";
        let statement = sqlx::query(text).bind(sandbox.as_str()).bind(i64::from(port));
        Ok(self.database.write(statement).await.map_err(failed("take a port back"))? > 0)
    }
}

fn published(row: &AnyRow) -> Result<PortRow, StoreError> {
    let row = Reader { table: "ports", row };
    let port = row.number("port")?;
    Ok(PortRow {
        sandbox: row.parsed("sandbox")?,
        port: u16::try_from(port).map_err(|error| row.corrupt("port", format!("{port}: {error}")))?,
        visibility: row.parsed("visibility")?,
        created_at: row.time("created_at")?,
    })
}
