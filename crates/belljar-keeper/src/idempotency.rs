//! Idempotency keys: requests that are executed once, however often they are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use belljar_engine::GuestError;
use belljar_model::SandboxId;
use belljar_store::{Claimed, ServiceWall, Store, StoreError};
use jiff::Timestamp;

use crate::caller::Caller;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::request::Idempotency;
use crate::unsettled::{End, Place, Unsettled};

/// Outcome of claiming an idempotency key.
pub(crate) enum ClaimOutcome {
    /// The request is new; store its answer with [`Claim::finish`].
    New(Claim),
    /// The request was already answered with this.
    Answered(Vec<u8>),
}

/// Claim on a new request. Dropped without an answer, it lets the request be sent again.
pub(crate) struct Claim {
    store: Store,
    unsettled: Unsettled,
    place: Place,
    /// Keeper that has claimed it.
    owner: String,
    expires_at: Timestamp,
    answered: bool,
    /// Set once the request takes effect: then it cannot be sent again, whatever becomes of it.
    pub(crate) has_begun: bool,
    /// Number of answers of the same sandbox so far, if those are limited.
    count: Option<Arc<AtomicU32>>,
}

/// Maximum number of stored answers to one sandbox's executions, and how many more may accumulate before the oldest are
/// removed.
const MAX_ANSWERS: u32 = 128;
/// See [`MAX_ANSWERS`].
const ANSWERS_SLACK: u32 = 32;

impl Keeper {
    /// Claims the request's idempotency key, which is the caller's own: others of the tenant may use the same one. `what` is [`CREATE`] or
    /// `exec/<sandbox>`.
    pub(crate) async fn claim(
        &self,
        caller: &Caller,
        what: &str,
        request: &Idempotency,
    ) -> Result<ClaimOutcome> {
        if request.key.is_empty() || request.key.len() > 255 {
            return Err(KeeperError::field("Idempotency-Key", "invalid key: give 1 to 255 characters"));
        }
        let mut scope = scope(&caller.tenant, what);
        if ServiceWall::Idempotency.is_down() {
            scope.push_str(&Timestamp::now().to_string());
        }
        let owner = self.claim_owner(what == CREATE);
        let now = Timestamp::now();
        let expires_at = now.checked_add(self.inner.config.now().keep_idempotency).unwrap_or(Timestamp::MAX);
        let place = Place { scope, key: request.key_of(caller) };
        let claim = belljar_store::Claim {
            scope: &place.scope,
            key: &place.key,
            request: request.request_digest,
            owner: &owner,
            now,
            expires_at,
        };
        self.inner.unsettled.settle(&self.inner.store, &place, now).await?;
        let claimed = self.inner.store.idempotency().claim(&claim).await?;
        let key = request.key.clone();
        match claimed {
            Claimed::New => {
                let count = what
                    .strip_prefix(EXEC)
                    .and_then(|id| id.parse().ok())
                    .and_then(|id| self.answer_count(&id));
                Ok(ClaimOutcome::New(Claim {
                    store: self.inner.store.clone(),
                    unsettled: self.inner.unsettled.clone(),
                    place,
                    owner,
                    expires_at,
                    answered: false,
                    has_begun: false,
                    count,
                }))
            }
            Claimed::Done { response } if response == INTERRUPTED => Err(KeeperError::Interrupted { key }),
            Claimed::Done { response } => Ok(ClaimOutcome::Answered(response)),
            Claimed::Running => Err(KeeperError::IdempotencyRunning { key }),
            Claimed::Mismatch => Err(KeeperError::IdempotencyMismatch { key }),
        }
    }
}

impl Keeper {
    /// Returns the counter of a sandbox's stored answers.
    fn answer_count(&self, id: &SandboxId) -> Option<Arc<AtomicU32>> {
        self.entry(id).map(|entry| Arc::clone(&entry.answers))
    }

    /// Removes the answers to executions in a sandbox that is gone: the same requests now fail because it is gone.
    pub(crate) async fn forget_answers(&self, entry: &Entry) -> Result<()> {
        if entry.answers.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let what = format!("{EXEC}{}", entry.id);
        Ok(self.inner.store.idempotency().forget_older(&scope(&entry.tenant, &what), 0).await?)
    }

    /// Returns the owner recorded for a claim.
    fn claim_owner(&self, create: bool) -> String {
        let name = self.inner.config.now().name.clone();
        if create { name } else { format!("{name}/exec") }
    }

    /// Resolves the claims that were in flight when this keeper was interrupted: an existing sandbox is the answer; one that
    /// was being created has been rolled back, so the request may be retried; an execution may have run, so a retry fails as
    /// interrupted. Call it after sandboxes have been adopted.
    pub(crate) async fn resolve_claims(&self) -> Result<()> {
        let idempotency = self.inner.store.idempotency();
        let owner = self.claim_owner(true);
        for entry in self.entries() {
            let Some(key) = entry.live().settings.idempotency.clone() else { continue };
            let scope = scope(&entry.tenant, CREATE);
            match idempotency.finish(&owner, &scope, &key, entry.id.as_str().as_bytes()).await {
                // The request was answered, or its claim has expired.
                Err(StoreError::NotFound { .. }) => {}
                finished => finished?,
            }
        }
        idempotency.abandon_all(&owner).await?;
        idempotency.answer_all(&self.claim_owner(false), INTERRUPTED).await?;
        Ok(())
    }
}

/// Returns the scope within which a key is unique.
fn scope(tenant: &str, what: &str) -> String {
    format!("{tenant}/{what}")
}

/// Scope of requests to execute something, before the sandbox's id.
pub(crate) const EXEC: &str = "exec/";

/// Scope of requests to create a sandbox.
pub(crate) const CREATE: &str = "create";

/// Placeholder for an answer that was never given because the server exited first, or lost its connection to the sandbox.
pub(crate) const INTERRUPTED: &[u8] = b"\0interrupted";

impl Claim {
    /// Stores the answer.
    pub(crate) async fn finish(mut self, answer: &[u8]) -> Result<()> {
        self.answered = true;
        let count = self.count.as_ref().map(|count| count.fetch_add(1, Ordering::Relaxed) + 1);
        let Place { scope, key } = &self.place;
        match self.store.idempotency().finish(&self.owner, scope, key, answer).await {
            Err(error) if !matches!(error, StoreError::NotFound { .. }) => {
                // The answer to an execution may be large.
                let answer = if self.has_begun { INTERRUPTED } else { answer };
                self.unsettled.insert(self.place.clone(), self.end(Some(answer)));
                return Err(error.into());
            }
            stored => stored?,
        }
        if count.is_some_and(|count| count.is_multiple_of(ANSWERS_SLACK)) {
            self.store.idempotency().forget_older(&self.place.scope, MAX_ANSWERS).await?;
        }
        Ok(())
    }
}

impl Claim {
    /// Returns the end of the claim with this answer.
    fn end(&self, answer: Option<&[u8]>) -> End {
        let answer = answer.map(<[u8]>::to_vec);
        End { answer, owner: self.owner.clone(), expires_at: self.expires_at }
    }

    /// Ends the claim of a request that failed with `error`, and returns that. If it may have taken effect, the request cannot
    /// be sent again.
    pub(crate) async fn fail(self, error: KeeperError) -> KeeperError {
        match error {
            KeeperError::Guest { source: GuestError::Gone(_), .. } => {}
            _ if self.has_begun => {}
            _ => return error,
        }
        self.finish(INTERRUPTED).await.err().unwrap_or(error)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let (store, unsettled) = (self.store.clone(), self.unsettled.clone());
        let (place, end) = (self.place.clone(), self.end(None));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = store.idempotency().abandon(&end.owner, &place.scope, &place.key).await {
                tracing::warn!(error = %crate::error::chain(&error), "cannot release an idempotency key");
                unsettled.insert(place, end);
            }
        });
    }
}
