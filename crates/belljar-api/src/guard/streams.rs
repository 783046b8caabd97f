//! Limit on the open streams of one key, which end when the key is revoked or the server shuts down.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_keeper::{Caller, ServiceWall, Session};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::problem::{Code, Problem};

/// Counter of open streams by key.
#[derive(Clone)]
pub(crate) struct StreamSlots {
    max: usize,
    /// Cancelled when the server shuts down.
    stopping: CancellationToken,
    open: Arc<Mutex<HashMap<String, OpenStreams>>>,
}

/// The open streams of a key.
struct OpenStreams {
    count: usize,
    /// Cancelled when the streams have to end.
    end: CancellationToken,
}

/// An open stream. It is counted until it is dropped.
pub(crate) struct StreamSlot {
    slots: StreamSlots,
    key: String,
    end: CancellationToken,
    /// The session of its caller.
    session: Option<Session>,
}

impl StreamSlots {
    /// Allows at most `max` streams for each key.
    pub(crate) fn new(max: usize, stopping: CancellationToken) -> Self {
        Self { max, stopping, open: Arc::default() }
    }

    /// Ends the open streams of a key.
    pub(crate) fn end(&self, key: &str) {
        let open = self.open().remove(key);
        if let Some(open) = open.filter(|_| !ServiceWall::RevokedStreams.is_down()) {
            open.end.cancel();
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, OpenStreams>> {
        self.open.lock()
    }

    /// Opens a stream of the caller's key, which ends with the caller's session too.
    ///
    /// # Errors
    /// Fails if the key has the maximum number of open streams.
    pub(crate) fn take(&self, caller: &Caller) -> Result<StreamSlot, Problem> {
        let mut slot = self.take_for(&caller.key)?;
        slot.session = caller.session.clone();
        Ok(slot)
    }

    /// Opens a stream that counts for this key.
    ///
    /// # Errors
    /// Fails if the key has the maximum number of open streams.
    pub(crate) fn take_for(&self, key: &str) -> Result<StreamSlot, Problem> {
        let mut open = self.open();
        let new = || OpenStreams { count: 0, end: self.stopping.child_token() };
        let of_key = open.entry(key.to_owned()).or_insert_with(new);
        if of_key.count >= self.max {
            let detail = format!("streams: {} of {} are open; close one and try again", self.max, self.max);
            return Err(Problem::new(Code::QuotaExceeded, detail)
                .with_retry_after(Some(std::time::Duration::from_secs(1))));
        }
        of_key.count += 1;
        Ok(StreamSlot { slots: self.clone(), key: key.to_owned(), end: of_key.end.clone(), session: None })
    }
}

impl StreamSlot {
    /// Waits until the stream has to end, and returns why.
    pub(crate) async fn wait_for_end(&self) -> Problem {
        let session_end = async {
            match &self.session {
                Some(session) => session.wait_for_end().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.end.cancelled() => {}
            () = session_end => return Problem::new(Code::Unauthenticated, "the session has ended"),
        }
        if self.slots.stopping.is_cancelled() {
            Problem::new(Code::ShuttingDown, "the server is shutting down; connect again soon")
        } else {
            Problem::new(Code::Unauthenticated, "the key was revoked")
        }
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open();
        // Streams of a revoked key are no longer counted.
        if let Some(of_key) = open.get_mut(&self.key).filter(|_| !self.end.is_cancelled()) {
            of_key.count = of_key.count.saturating_sub(1);
            if of_key.count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_released() {
        let stopping = CancellationToken::new();
        let slots = StreamSlots::new(2, stopping);
        let first = slots.take_for("a").unwrap();
        let _second = slots.take_for("a").unwrap();
        assert_eq!(slots.take_for("a").err().map(|problem| problem.code()), Some(Code::QuotaExceeded));
        assert!(slots.take_for("b").is_ok());
        drop(first);
        assert!(slots.take_for("a").is_ok());
        assert_eq!(slots.open().len(), 1);
    }

    #[tokio::test]
    async fn streams_end_on_revocation_and_shutdown() {
        let stopping = CancellationToken::new();
        let slots = StreamSlots::new(2, stopping.clone());
        let (first, other) = (slots.take_for("a").unwrap(), slots.take_for("b").unwrap());
        slots.end("a");
        assert_eq!(first.wait_for_end().await.code(), Code::Unauthenticated);
        drop(first);
        assert!(!other.end.is_cancelled());
        stopping.cancel();
        assert_eq!(other.wait_for_end().await.code(), Code::ShuttingDown);
    }
}
