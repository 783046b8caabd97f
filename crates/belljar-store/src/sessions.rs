//! Sessions of people in browsers, and one-time links that begin one. Only hashes are stored.

use jiff::Timestamp;
use sqlx::any::AnyRow;

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::filter::Filter;
use crate::reader::{Reader, refuse_nul, stored_time};

/// Maximum number of sessions of one key, and of its links. A new session replaces the one that was used longest ago, a new link the oldest.
const MAX_OF_KEY: i64 = 32;

/// Session, or a link that begins one. Times are stored to the microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// SHA-256 of the cookie, or of the link.
    pub hash: [u8; 32],
    /// SHA-256 of the page's token; `None` for a link.
    pub token: Option<[u8; 32]>,
    /// Key that the session acts as.
    pub key: String,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of expiry.
    pub expires_at: Timestamp,
}

/// Table of sessions.
#[derive(Debug, Clone, Copy)]
pub struct Sessions<'s> {
    pub(crate) database: &'s Database,
}

const SELECT: &str = "SELECT hash, token, key_id, created_at, expires_at FROM sessions";

impl Sessions<'_> {
    /// Adds a session or a link. The oldest ones of a key that has too many end.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Nul`], or fails if the store cannot be written.
    pub async fn insert(&self, row: &SessionRow) -> Result<(), StoreError> {
        refuse_nul([("the key's id", row.key.as_str())])?;
        let text =
            "INSERT INTO sessions (hash, token, key_id, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)";
        let statement = sqlx::query(text)
            .bind(row.hash.as_slice())
            .bind(row.token.map(|token| token.to_vec()))
            .bind(&row.key)
            .bind(stored_time(row.created_at))
            .bind(stored_time(row.expires_at));
        self.database.write(statement).await.map_err(failed("write a session"))?;
        // Each use of a session makes it expire later.
        let kind = if row.token.is_none() { "token IS NULL" } else { "token IS NOT NULL" };
        let text = format!(
            "DELETE FROM sessions WHERE key_id = $1 AND {kind} AND hash NOT IN \
             (SELECT hash FROM sessions WHERE key_id = $1 AND {kind} ORDER BY expires_at DESC, created_at DESC LIMIT $2)"
        );
        let statement = sqlx::query(sqlx::AssertSqlSafe(text)).bind(&row.key).bind(MAX_OF_KEY);
        self.database.write(statement).await.map(|_| ()).map_err(failed("end old sessions"))
    }

    /// Returns the session or link with this hash, also if it has expired.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn get(&self, hash: &[u8; 32]) -> Result<Option<SessionRow>, StoreError> {
        let mut query = Filter::new(SELECT);
        query.and("hash = ?", &[hash.to_vec()])?;
        let row = self.database.read_one("read a session", query.finish()).await?;
        row.as_ref().map(read_session).transpose()
    }

    /// Changes when a session expires. Does nothing if it has ended.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn extend(&self, hash: &[u8; 32], expires_at: Timestamp) -> Result<(), StoreError> {
        let statement = sqlx::query("UPDATE sessions SET expires_at = $2 WHERE hash = $1")
            .bind(hash.as_slice())
            .bind(stored_time(expires_at));
        self.database.write(statement).await.map(|_| ()).map_err(failed("extend a session"))
    }

    /// Removes a session or a link, and returns whether it was there: of several at the same time, one call removes it. The change
    /// survives a power failure.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn remove(&self, hash: &[u8; 32]) -> Result<bool, StoreError> {
        let statement = sqlx::query("DELETE FROM sessions WHERE hash = $1").bind(hash.as_slice());
        let removed = self.database.write(statement).await.map_err(failed("end a session"))?;
        self.database.sync().await?;
        Ok(removed > 0)
    }

    /// Removes all sessions and links of a key, and returns how many there were. The change survives a power failure.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn remove_all(&self, key: &str) -> Result<u64, StoreError> {
        let statement = sqlx::query("DELETE FROM sessions WHERE key_id = $1").bind(key);
        let removed = self.database.write(statement).await.map_err(failed("end the sessions of a key"))?;
        self.database.sync().await?;
        Ok(removed)
    }

    /// Removes sessions and links that expired before this time.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn forget_expired(&self, time: Timestamp) -> Result<(), StoreError> {
        let statement = sqlx::query("DELETE FROM sessions WHERE expires_at <= $1").bind(stored_time(time));
        self.database.write(statement).await.map(|_| ()).map_err(failed("remove expired sessions"))
    }
}

fn read_session(row: &AnyRow) -> Result<SessionRow, StoreError> {
    let row = Reader { table: "sessions", row };
    let token = row.optional_bytes("token")?.map(<[u8; 32]>::try_from).transpose();
    Ok(SessionRow {
        hash: row.bytes_32("hash")?,
        token: token.map_err(|bytes| row.corrupt("token", format!("{} bytes instead of 32", bytes.len())))?,
        key: row.text("key_id")?,
        created_at: row.time("created_at")?,
        expires_at: row.time("expires_at")?,
    })
}
