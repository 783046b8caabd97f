//! Ends of approved calls that could not be recorded.

use std::sync::Arc;

use belljar_model::ApprovalState;
use belljar_store::{Store, StoreError};
use jiff::Timestamp;
use parking_lot::Mutex;

/// The end of an approved call.
pub(super) struct End {
    /// Id of the approval.
    pub(super) approval: String,
    pub(super) state: ApprovalState,
    pub(super) outcome: String,
    pub(super) at: Timestamp,
}

/// The ends that the store did not take. As a call begins only when the store takes that, there are at most as many as calls ran then.
#[derive(Clone, Default)]
pub(crate) struct UnrecordedEnds(Arc<Mutex<Vec<End>>>);

impl UnrecordedEnds {
    /// Records an end, and keeps it if the store does not take it.
    pub(super) async fn record(&self, store: &Store, end: End) -> Result<(), StoreError> {
        let recorded = store.approvals().end(&end.approval, end.state, &end.outcome, end.at).await;
        if recorded.is_err() {
            self.0.lock().push(end);
        }
        recorded.map(drop)
    }

    /// Records the ends that are kept. Returns the last error.
    pub(crate) async fn record_again(&self, store: &Store) -> Result<(), StoreError> {
        let ends = std::mem::take(&mut *self.0.lock());
        let mut done = Ok(());
        for end in ends {
            let recorded = self.record(store, end).await;
            done = recorded.and(done);
        }
        done
    }
}
