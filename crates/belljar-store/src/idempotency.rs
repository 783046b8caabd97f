//! Requests that callers may repeat: what was asked for once is done once, and answered alike each time.
//!
//! ```text
//!   claim ──► New ──────────────► finish ──► Done, with the answer, until it expires
//!     │        └─ fails ──► abandon ──► as if nothing had been
//!     ├─► Running                somebody is at it
//!     ├─► Done
//!     └─► Mismatch               the key was used for something else
//! ```

use jiff::Timestamp;

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::reader::{Reader, no_nul, stored_time};
use crate::seal::{Place, Sealer};

/// How often a claim is tried again while others claim and abandon the same key.
const TRIES: u32 = 16;

/// A claim to answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim<'c> {
    /// Whose keys these are: a tenant, and what is asked for.
    pub scope: &'c str,
    /// The caller's key.
    pub key: &'c str,
    /// SHA-256 of the request. The same key with another request is a mistake of the caller.
    pub request: [u8; 32],
    /// The keeper that is going to answer.
    pub owner: &'c str,
    /// Now.
    pub now: Timestamp,
    /// From when on the key may be used again for something else.
    pub expires_at: Timestamp,
}

/// What came of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// Nobody has answered this request: the claimant is to do so.
    New,
    /// Somebody is about to answer it.
    Running,
    /// It has been answered.
    Done {
        /// The answer.
        response: Vec<u8>,
    },
    /// The key was used for another request.
    Mismatch,
}

/// Requests that callers may repeat.
#[derive(Debug, Clone, Copy)]
pub struct Idempotency<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

/// The column with what may be secret: an answer may hold all that a program wrote.
pub(crate) const RESPONSE: &str = "idempotency.response";

impl Idempotency<'_> {
    /// Claims to answer a request. Of any number at once, one gets [`Claimed::New`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Nul`], and those of reading and writing.
    pub async fn claim(&self, claim: &Claim<'_>) -> Result<Claimed, StoreError> {
        no_nul([
            ("the scope", claim.scope),
            ("the idempotency key", claim.key),
            ("the keeper", claim.owner),
        ])?;
        for _ in 0..TRIES {
            if self.take(claim).await? {
                return Ok(Claimed::New);
            }
            // It may be gone again by now.
            if let Some(claimed) = self.look(claim).await? {
                return Ok(claimed);
            }
        }
        Err(StoreError::Busy { action: "claim a request" })
    }

    /// Keeps the answer to a request that was claimed.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if nobody is about to answer it, and those of writing.
    pub async fn finish(&self, scope: &str, key: &str, response: &[u8]) -> Result<(), StoreError> {
        let text = "UPDATE idempotency SET response = $3 WHERE scope = $1 AND name = $2 AND response IS NULL";
        let response = self.sealer.seal(Place::new(RESPONSE, &[scope, key]), response)?;
        let statement = sqlx::query(text).bind(scope).bind(key).bind(response.as_bytes());
        match self.database.write(statement).await.map_err(failed("keep an answer"))? {
            0 => Err(StoreError::NotFound { what: "request under way with the key", id: key.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Gives a claim back: the request may be tried again. An answer that is kept stays.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn abandon(&self, scope: &str, key: &str) -> Result<(), StoreError> {
        let text = "DELETE FROM idempotency WHERE scope = $1 AND name = $2 AND response IS NULL";
        let statement = sqlx::query(text).bind(scope).bind(key);
        self.database.write(statement).await.map(|_| ()).map_err(failed("abandon a request"))
    }

    /// Gives back every claim of a keeper, which it left when it died. Says how many there were.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn abandon_all(&self, owner: &str) -> Result<u64, StoreError> {
        let text = "DELETE FROM idempotency WHERE owner = $1 AND response IS NULL";
        self.database.write(sqlx::query(text).bind(owner)).await.map_err(failed("abandon requests"))
    }

    /// Answers every claim that a keeper left when it died. Says how many there were.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn answer_all(&self, owner: &str, response: &[u8]) -> Result<u64, StoreError> {
        let text = "SELECT scope, name FROM idempotency WHERE owner = $1 AND response IS NULL";
        let rows = self.database.read("answer requests", sqlx::query(text).bind(owner)).await?;
        let mut answered = 0;
        for row in &rows {
            let row = Reader { table: "idempotency", row };
            match self.finish(&row.text("scope")?, &row.text("name")?, response).await {
                Ok(()) => answered += 1,
                // Somebody else has done so meanwhile.
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(answered)
    }

    /// Removes what has expired, and says how much it was.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn forget_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let statement = sqlx::query("DELETE FROM idempotency WHERE expires_at <= $1").bind(stored_time(now));
        self.database.write(statement).await.map_err(failed("forget answers"))
    }

    /// Removes the answers of a scope but for the last `keep` ones.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn forget_older(&self, scope: &str, keep: u32) -> Result<(), StoreError> {
        let text = "DELETE FROM idempotency WHERE scope = $1 AND response IS NOT NULL AND name NOT IN \
             (SELECT name FROM idempotency WHERE scope = $1 ORDER BY created_at DESC, name LIMIT $2)";
        let statement = sqlx::query(text).bind(scope).bind(i64::from(keep));
        self.database.write(statement).await.map(drop).map_err(failed("forget answers"))
    }

    /// How many answers [`Self::forget_expired`] would remove.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn count_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let text = "SELECT COUNT(*) AS expired FROM idempotency WHERE expires_at <= $1";
        let statement = sqlx::query(text).bind(stored_time(now));
        let row = self.database.read_one("count answers", statement).await?;
        let count =
            row.map(|row| Reader { table: "idempotency", row: &row }.number("expired")).transpose()?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }

    /// Takes the key, if it is free or has expired.
    async fn take(&self, claim: &Claim<'_>) -> Result<bool, StoreError> {
        let text = "INSERT INTO idempotency (scope, name, request, owner, created_at, expires_at, response) \
             VALUES ($1, $2, $3, $4, $5, $6, NULL) ON CONFLICT (scope, name) DO UPDATE SET request = excluded.request, \
             owner = excluded.owner, created_at = excluded.created_at, expires_at = excluded.expires_at, response = NULL \
             WHERE idempotency.expires_at <= excluded.created_at";
        let statement = sqlx::query(text)
            .bind(claim.scope)
            .bind(claim.key)
            .bind(claim.request.as_slice())
            .bind(claim.owner)
            .bind(stored_time(claim.now))
            .bind(stored_time(claim.expires_at));
        Ok(self.database.write(statement).await.map_err(failed("claim a request"))? == 1)
    }

    async fn look(&self, claim: &Claim<'_>) -> Result<Option<Claimed>, StoreError> {
        let text = "SELECT request, response FROM idempotency WHERE scope = $1 AND name = $2";
        let query = sqlx::query(text).bind(claim.scope).bind(claim.key);
        let Some(row) = self.database.read_one("read a request", query).await? else { return Ok(None) };
        let row = Reader { table: "idempotency", row: &row };
        if row.bytes_32("request")? != claim.request {
            return Ok(Some(Claimed::Mismatch));
        }
        let Some(sealed) = row.optional_bytes("response")? else { return Ok(Some(Claimed::Running)) };
        let response = self.sealer.open(Place::new(RESPONSE, &[claim.scope, claim.key]), &sealed)?;
        Ok(Some(Claimed::Done { response }))
    }
}
