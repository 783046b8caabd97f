//! Ends of claims on idempotency keys that the store did not take.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_store::{Store, StoreError};
use jiff::Timestamp;
use parking_lot::Mutex;

/// Scope and key of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) scope: String,
    pub(crate) key: String,
}

/// The end of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// The answer; `None` for a request that may be sent again.
    pub(crate) answer: Option<Vec<u8>>,
    /// Keeper that has claimed it.
    pub(crate) owner: String,
    /// Time from which on the key may belong to another request.
    pub(crate) expires_at: Timestamp,
}

/// The ends of claims that could not be stored. In the store these requests are in progress until somebody repeats them, the claims
/// expire, or the server starts again.
#[derive(Clone, Default)]
pub(crate) struct Unsettled(Arc<Mutex<HashMap<Place, End>>>);

impl Unsettled {
    pub(crate) fn insert(&self, place: Place, end: End) {
        self.forget_expired(Timestamp::now());
        self.0.lock().insert(place, end);
    }

    /// Removes the ends of claims that have expired.
    pub(crate) fn forget_expired(&self, now: Timestamp) {
        self.0.lock().retain(|_, end| end.expires_at > now);
    }

    /// Stores the end of the claim, if it is one of these.
    pub(crate) async fn settle(
        &self,
        store: &Store,
        place: &Place,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        // Taken out, so that only one of several requests does this.
        let removed = self.0.lock().remove(place);
        let Some(end) = removed.filter(|end| end.expires_at > now) else { return Ok(()) };
        let (claims, Place { scope, key }) = (store.idempotency(), place);
        let stored = match &end.answer {
            Some(answer) => claims.finish(&end.owner, scope, key, answer).await,
            None => claims.abandon(&end.owner, scope, key).await,
        };
        match stored {
            // Somebody else has claimed it since.
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => {
                self.insert(place.clone(), end);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use belljar_store::Claimed;

    use super::*;

    #[tokio::test]
    async fn expired_ends_are_dropped() {
        let now = Timestamp::now();
        let (past, future) = (now - Duration::from_secs(1), now + Duration::from_secs(60));
        let place = |key: &str| Place { scope: "acme/create".to_owned(), key: key.to_owned() };
        let end = |answer: &[u8], expires_at| End {
            answer: Some(answer.to_vec()),
            owner: "keeper".to_owned(),
            expires_at,
        };
        let (store, unsettled) = (Store::in_memory().await.unwrap(), Unsettled::default());
        unsettled.insert(place("a"), end(b"old", past));
        // The key belongs to another request.
        let claim = belljar_store::Claim {
            scope: "acme/create",
            key: "a",
            request: [1; 32],
            owner: "keeper",
            now,
            expires_at: future,
        };
        assert_eq!(store.idempotency().claim(&claim).await.unwrap(), Claimed::New);
        unsettled.settle(&store, &place("a"), now).await.unwrap();
        assert_eq!(store.idempotency().claim(&claim).await.unwrap(), Claimed::Running);
        unsettled.insert(place("a"), end(b"old", past));
        unsettled.insert(place("b"), end(b"new", future));
        assert_eq!(unsettled.0.lock().len(), 1);
        unsettled.forget_expired(future);
        assert_eq!(unsettled.0.lock().len(), 0);
    }
}
