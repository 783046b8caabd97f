//! Sessions that this server has seen: what their callers carry, and how their open streams end.

use std::collections::HashMap;

use belljar_store::SessionRow;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The session that a caller authenticated with.
#[derive(Debug, Clone)]
pub struct Session {
    pub(crate) hash: [u8; 32],
    ended: CancellationToken,
}

impl Session {
    /// Waits until the session has ended.
    pub async fn wait_for_end(&self) {
        self.ended.cancelled().await;
    }

    /// Reports whether the session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }
}

/// Sessions that this server has seen, by the hash of their cookie: those that may have open streams.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<[u8; 32], Seen>>);

struct Seen {
    key: String,
    ended: CancellationToken,
}

impl Sessions {
    /// Returns the session of a row, and whether it is seen for the first time.
    pub(crate) fn see(&self, row: &SessionRow) -> (Session, bool) {
        let mut seen = self.0.lock();
        let known = seen.len();
        let new = || Seen { key: row.key.clone(), ended: CancellationToken::new() };
        let ended = seen.entry(row.hash).or_insert_with(new).ended.clone();
        (Session { hash: row.hash, ended }, seen.len() > known)
    }

    /// Ends the open streams of the sessions for which this holds.
    pub(crate) fn end(&self, is_ended: impl Fn(&[u8; 32], &str) -> bool) {
        self.0.lock().retain(|hash, seen| {
            let ends = is_ended(hash, &seen.key);
            if ends {
                seen.ended.cancel();
            }
            !ends
        });
    }

    pub(crate) fn hashes(&self) -> Vec<[u8; 32]> {
        self.0.lock().keys().copied().collect()
    }
}
