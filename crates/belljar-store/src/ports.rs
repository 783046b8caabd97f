//! Published ports of sandboxes, which can be reached from outside.

use std::fmt;
use std::str::FromStr;

use belljar_model::SandboxId;
use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::filter::Filter;
use crate::reader::{Reader, stored_time};

/// Visibility of a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortVisibility {
    /// Reachable with a token for it.
    Private,
    /// Reachable by everybody.
    Public,
}

impl PortVisibility {
    /// Returns the name: `private` or `public`.
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
            .ok_or_else(|| format!("invalid visibility {text:?}: expected private or public"))
    }
}

/// A published port. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRow {
    /// Sandbox.
    pub sandbox: SandboxId,
    /// Port inside the sandbox.
    pub port: u16,
    /// Visibility.
    pub visibility: PortVisibility,
    /// Time of publication.
    pub created_at: Timestamp,
}

/// Table of published ports. They are deleted with the record of their sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Ports<'s> {
    pub(crate) database: &'s Database,
}

const SELECT: &str = "SELECT sandbox, port, visibility, created_at FROM ports";

impl Ports<'_> {
    /// Publishes a port. If it is published already, changes its visibility and keeps its time.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NotFound`] if the sandbox does not exist, or fails if the store cannot be written.
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

    /// Returns a port, if it is published.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, sandbox: &SandboxId, port: u16) -> Result<Option<PortRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("sandbox = ?", &[sandbox.to_string()])?;
        query.and("port = ?", &[i64::from(port)])?;
        let row = self.database.read_one("read a port", query.finish()).await?;
        row.as_ref().map(read_port).transpose()
    }

    /// Lists the published ports of a sandbox, in order.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list(&self, sandbox: &SandboxId) -> Result<Vec<PortRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("sandbox = ? ORDER BY port", &[sandbox.to_string()])?;
        let rows = self.database.read("list ports", query.finish()).await?;
        rows.iter().map(read_port).collect()
    }

    /// Lists the published ports of all sandboxes of a keeper that are not gone.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn list_live(&self, keeper: &str) -> Result<Vec<PortRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        let condition = "sandbox IN (SELECT id FROM sandboxes WHERE keeper = ? AND state <> 'gone')";
        query.and(condition, &[keeper.to_owned()])?;
        let rows = self.database.read("list ports", query.finish()).await?;
        rows.iter().map(read_port).collect()
    }

    /// Withdraws a port, and returns whether it was published.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn withdraw(&self, sandbox: &SandboxId, port: u16) -> Result<bool, StoreError> {
        let text = "DELETE FROM ports WHERE sandbox = $1 AND port = $2";
        let statement = sqlx::query(text).bind(sandbox.as_str()).bind(i64::from(port));
        Ok(self.database.write(statement).await.map_err(failed("withdraw a port"))? > 0)
    }
}

fn read_port(row: &AnyRow) -> Result<PortRow, StoreError> {
    let row = Reader { table: "ports", row };
    let port = row.number("port")?;
    Ok(PortRow {
        sandbox: row.parsed("sandbox")?,
        port: u16::try_from(port).map_err(|error| row.corrupt("port", format!("{port}: {error}")))?,
        visibility: row.parsed("visibility")?,
        created_at: row.time("created_at")?,
    })
}
