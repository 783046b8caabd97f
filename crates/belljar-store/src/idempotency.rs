//! Idempotent requests: a repeated request is carried out once and answered identically each time.
//!
//! ```text
//!   claim ──► New ──────────────► finish ──► Done, with the answer, until it expires
//!     │        └─ fails ──► abandon ──► as if never claimed
//!     ├─► Running                in progress
//!     ├─► Done
//!     └─► Mismatch               the key was used for another request
//! ```

use jiff::Timestamp;

use crate::database::Database;
use crate::error::{StoreError, failed};
use crate::reader::{Reader, refuse_nul, stored_time};
use crate::seal::{Place, Sealer};

/// Maximum number of attempts while others claim and abandon the same key.
const MAX_ATTEMPTS: u32 = 16;

/// Claim of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim<'c> {
    /// Scope of the key: a tenant and an operation.
    pub scope: &'c str,
    /// Idempotency key of the caller.
    pub key: &'c str,
    /// SHA-256 of the request. Using the same key with another request is an error of the caller.
    pub request: [u8; 32],
    /// Keeper that is going to answer.
    pub owner: &'c str,
    /// Current time.
    pub now: Timestamp,
    /// Time from which on the key may be reused for another request.
    pub expires_at: Timestamp,
}

/// Result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The request is new: the claimant is to carry it out.
    New,
    /// The request is in progress.
    Running,
    /// The request has been answered.
    Done {
        /// Stored answer.
        response: Vec<u8>,
    },
    /// The key was used with another request.
    Mismatch,
}

/// Table of idempotent requests.
#[derive(Debug, Clone, Copy)]
pub struct Idempotency<'s> {
    pub(crate) database: &'s Database,
    pub(crate) sealer: &'s Sealer,
}

/// Column that may contain secrets: an answer may hold the whole output of a program.
pub(crate) const RESPONSE: &str = "idempotency.response";

impl Idempotency<'_> {
    /// Claims a request. Of any number of concurrent calls, one gets [`Claimed::New`].
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Nul`], or fails if the store cannot be read or written.
    pub async fn claim(&self, claim: &Claim<'_>) -> Result<Claimed, StoreError> {
        refuse_nul([
            ("the scope", claim.scope),
            ("the idempotency key", claim.key),
            ("the keeper", claim.owner),
        ])?;
        for _ in 0..MAX_ATTEMPTS {
            if self.try_claim(claim).await? {
                return Ok(Claimed::New);
            }
            // The other claim may have been abandoned by now.
            if let Some(claimed) = self.read_claim(claim).await? {
                return Ok(claimed);
            }
        }
        Err(StoreError::Busy { action: "claim a request" })
    }

    /// Stores the answer to a request that a keeper has claimed.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::NotFound`] if the request is not in progress there, or fails if the store cannot be written.
    pub async fn finish(
        &self,
        owner: &str,
        scope: &str,
        key: &str,
        response: &[u8],
    ) -> Result<(), StoreError> {
        let text = "UPDATE idempotency SET response = $3 \
             WHERE scope = $1 AND name = $2 AND response IS NULL AND owner = $4";
        let response = self.sealer.seal(Place::new(RESPONSE, &[scope, key]), response)?;
        let statement = sqlx::query(text).bind(scope).bind(key).bind(response.as_bytes()).bind(owner);
        match self.database.write(statement).await.map_err(failed("keep an answer"))? {
            0 => Err(StoreError::NotFound { what: "request in progress with the key", id: key.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Releases a keeper's claim, so that the request may be retried. A stored answer stays, and so does the claim of another keeper.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn abandon(&self, owner: &str, scope: &str, key: &str) -> Result<(), StoreError> {
        let text =
            "DELETE FROM idempotency WHERE scope = $1 AND name = $2 AND response IS NULL AND owner = $3";
        let statement = sqlx::query(text).bind(scope).bind(key).bind(owner);
        self.database.write(statement).await.map(|_| ()).map_err(failed("abandon a request"))
    }

    /// Releases all claims that a keeper left when it died, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn abandon_all(&self, owner: &str) -> Result<u64, StoreError> {
        let text = "DELETE FROM idempotency WHERE owner = $1 AND response IS NULL";
        self.database.write(sqlx::query(text).bind(owner)).await.map_err(failed("abandon requests"))
    }

    /// Answers all claims that a keeper left when it died, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn answer_all(&self, owner: &str, response: &[u8]) -> Result<u64, StoreError> {
        let text = "SELECT scope, name FROM idempotency WHERE owner = $1 AND response IS NULL";
        let rows = self.database.read("answer requests", sqlx::query(text).bind(owner)).await?;
        let mut answered = 0;
        for row in &rows {
            let row = Reader { table: "idempotency", row };
            match self.finish(owner, &row.text("scope")?, &row.text("name")?, response).await {
                Ok(()) => answered += 1,
                // It was answered or abandoned meanwhile.
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(answered)
    }

    /// Deletes expired claims and answers, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn forget_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let statement = sqlx::query("DELETE FROM idempotency WHERE expires_at <= $1").bind(stored_time(now));
        self.database.write(statement).await.map_err(failed("delete answers"))
    }

    /// Deletes all but the newest `keep` answers of a scope.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn forget_older(&self, scope: &str, keep: u32) -> Result<(), StoreError> {
        let text = "DELETE FROM idempotency WHERE scope = $1 AND response IS NOT NULL AND name NOT IN \
             (SELECT name FROM idempotency WHERE scope = $1 ORDER BY created_at DESC, name LIMIT $2)";
        let statement = sqlx::query(text).bind(scope).bind(i64::from(keep));
        self.database.write(statement).await.map(drop).map_err(failed("delete answers"))
    }

    /// Returns the number of rows that [`Self::forget_expired`] would delete.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn count_expired(&self, now: Timestamp) -> Result<u64, StoreError> {
        let text = "SELECT COUNT(*) AS expired FROM idempotency WHERE expires_at <= $1";
        let statement = sqlx::query(text).bind(stored_time(now));
        let row = self.database.read_one("count answers", statement).await?;
        let count =
            row.map(|row| Reader { table: "idempotency", row: &row }.number("expired")).transpose()?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }

    /// Inserts the claim if the key is free or has expired. Returns whether it did.
    async fn try_claim(&self, claim: &Claim<'_>) -> Result<bool, StoreError> {
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

    async fn read_claim(&self, claim: &Claim<'_>) -> Result<Option<Claimed>, StoreError> {
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
