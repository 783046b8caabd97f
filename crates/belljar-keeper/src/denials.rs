//! Audit records of what is repeated: denied credentials, refused requests, and cheap actions. They are counted and recorded once per
//! interval, so that floods do not fill the disk.
//!
//! ```text
//!   note ──► counted by reason, address and key ──► after FIRST_DELAY, and then once per INTERVAL: one record each
//!              └─ too many addresses ──► counted without them, by reason and key
//! ```

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belljar_store::{KeyRow, NewRecord, ServiceWall};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::caller::Caller;
use crate::error::{KeeperError, chain};
use crate::keeper::Keeper;
use crate::keys::Denied;

/// Action of the records.
const ACTION: &str = "auth.denied";

/// Maximum number of records per interval that name an address. All others are counted together, by reason.
/// Source: docs/audit.md; held by `c16b_flood_of_invalid_keys_is_counted_and_not_recorded`.
const MAX_NAMED: usize = 16;

/// Maximum number of refused requests of a key per interval with their own record. All others are counted by action and outcome.
/// Source: docs/audit.md; held by `c25_flood_of_refused_requests_is_counted`.
const MAX_RECORDED: u32 = 60;

/// Maximum number of successful actions of one kind and key per interval with their own record. All others are counted.
/// Source: docs/audit.md; held by `repeated_actions_are_counted_by_key_and_kind`.
const MAX_DONE: u32 = 600;

/// Time for which equal denials are counted before they are recorded again.
const INTERVAL: Duration = Duration::from_secs(60);

/// Delay of the first record after an idle time, to include further denials.
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// Kind of all refused requests of a key together.
const REFUSED: &str = "refused";

/// Number of counters from which those of earlier intervals are forgotten.
const FORGOTTEN_AT: usize = 1024;

/// Placeholder for addresses that are not named.
const OTHERS: &str = "others";

/// Denials without an audit record yet.
#[derive(Default)]
pub(crate) struct Denials {
    pending: Mutex<BTreeMap<Denial, Count>>,
    /// Number of refused requests of each key in the current interval, and of each key's successful actions of a kind.
    recorded: Mutex<HashMap<KeyAndKind, (Instant, u32)>>,
    /// Serializes writing, so that the next caller waits until all are written.
    recording: tokio::sync::Mutex<()>,
    wake: Notify,
}

/// A key's id, and a kind of its requests.
type KeyAndKind = (String, &'static str);

/// Key by which denials are counted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Denial {
    action: &'static str,
    reason: &'static str,
    outcome: String,
    /// The client's address, without its port.
    peer: String,
    /// Id of the API key, if known, and its tenant.
    key: Option<(String, String)>,
}

#[derive(Debug, Clone)]
struct Count {
    count: u64,
    first: Timestamp,
    /// Id of the first request.
    request_id: String,
    /// Action of the first request, if known.
    wanted: Option<&'static str>,
}

impl Denials {
    fn note(&self, denial: Denial, request_id: &str, wanted: Option<&'static str>) {
        let mut pending = self.pending();
        let named = pending.keys().filter(|denial| denial.peer != OTHERS).count();
        let unbounded = ServiceWall::DenialBound.is_down();
        let denial = match denial {
            _ if unbounded => Denial { peer: format!("{} {}", denial.peer, pending.len()), ..denial },
            denial if named < MAX_NAMED || pending.contains_key(&denial) => denial,
            denial => Denial { peer: OTHERS.to_owned(), ..denial },
        };
        let count = pending.entry(denial).or_insert_with(|| Count {
            count: 0,
            first: Timestamp::now(),
            request_id: request_id.to_owned(),
            wanted,
        });
        count.count = count.count.saturating_add(1);
        drop(pending);
        self.wake.notify_one();
    }

    /// Counts a request of a key, of a kind that has at most `max` records per interval; reports whether it gets one.
    fn has_record(&self, key: &str, kind: &'static str, max: u32) -> bool {
        let mut recorded = self.recorded.lock();
        let counted = (key.to_owned(), kind);
        // Only for a new one: with many in use, each request would look at all.
        if recorded.len() >= FORGOTTEN_AT && !recorded.contains_key(&counted) {
            recorded.retain(|_, (since, _)| since.elapsed() < INTERVAL);
        }
        let (since, count) = recorded.entry(counted).or_insert_with(|| (Instant::now(), 0));
        if since.elapsed() >= INTERVAL {
            (*since, *count) = (Instant::now(), 0);
        }
        *count = count.saturating_add(1);
        ServiceWall::RefusalBound.allows(*count <= max)
    }

    /// Wakes the recording task, so that it notices the shutdown.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    fn take(&self) -> BTreeMap<Denial, Count> {
        std::mem::take(&mut *self.pending())
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<Denial, Count>> {
        self.pending.lock()
    }
}

impl Keeper {
    /// Counts a denied credential. The credential itself is not recorded.
    pub(crate) fn note_denied(&self, why: Denied, row: Option<&KeyRow>, client: &str, request_id: &str) {
        let reason = match why {
            Denied::Unknown => "unknown",
            Denied::Expired => "expired",
            Denied::Revoked => "revoked",
            // Not the credential's fault.
            Denied::Unavailable => return,
        };
        let key = row.map(|row| (row.id.clone(), row.tenant.clone()));
        let denial = Denial {
            action: ACTION,
            reason,
            outcome: "unauthenticated".to_owned(),
            peer: address(client),
            key,
        };
        self.inner.denials.note(denial, request_id, None);
    }

    /// Counts a request for which a valid key's role is not sufficient.
    pub(crate) fn note_forbidden(&self, caller: &Caller, wanted: &'static str) {
        let reason = if caller.only.is_some() { "token" } else { "role" };
        let key = Some((caller.key.clone(), caller.tenant.clone()));
        let denial = Denial {
            action: ACTION,
            reason,
            outcome: "forbidden".to_owned(),
            peer: address(&caller.client),
            key,
        };
        self.inner.denials.note(denial, &caller.request_id, Some(wanted));
    }

    /// Counts a refused or failed request instead of recording it, if its key has too many. Reports whether it was counted.
    pub(crate) fn note_refused(&self, caller: &Caller, action: &'static str, outcome: &str) -> bool {
        if self.inner.denials.has_record(&caller.key, REFUSED, MAX_RECORDED) {
            return false;
        }
        self.note_repeated(caller, action, outcome);
        true
    }

    /// Counts a successful action instead of recording it, if its key has too many of this kind. Reports whether it was counted.
    pub(crate) fn note_done(&self, caller: &Caller, action: &'static str) -> bool {
        if self.inner.denials.has_record(&caller.key, action, MAX_DONE) {
            return false;
        }
        self.note_repeated(caller, action, "ok");
        true
    }

    fn note_repeated(&self, caller: &Caller, action: &'static str, outcome: &str) {
        let denial = Denial {
            action,
            reason: "repeated",
            outcome: outcome.to_owned(),
            peer: address(&caller.client),
            key: Some((caller.key.clone(), caller.tenant.clone())),
        };
        self.inner.denials.note(denial, &caller.request_id, None);
    }

    /// Spawns a task that records denials.
    pub(crate) fn spawn_denial_recording(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                keeper.inner.denials.wake.notified().await;
                tokio::time::sleep(FIRST_DELAY).await;
                keeper.record_denials().await;
                tokio::time::sleep(INTERVAL).await;
            }
        });
    }

    /// Records pending denials. Returns when all that were pending before the call are written.
    pub(crate) async fn record_denials(&self) {
        let _recording = self.inner.denials.recording.lock().await;
        let records = self.inner.denials.take().into_iter().map(|(denial, count)| record(denial, count));
        let written = records.map(|record| self.inner.audit.append(record));
        for outcome in futures::future::join_all(written).await {
            if let Err(error) = outcome {
                let error = KeeperError::from(error);
                tracing::warn!(error = %chain(&error), "cannot record denied keys in the audit log");
            }
        }
    }
}

fn record(denial: Denial, count: Count) -> NewRecord {
    let (key, tenant) = denial.key.unzip();
    let tenant = tenant.unwrap_or_default();
    let mut record = NewRecord::new(Timestamp::now(), &tenant, denial.action, &denial.outcome);
    record.key_id = key;
    record.actor = denial.peer;
    record.request_id = count.request_id;
    let first = count.first.to_string();
    record.details =
        record.details.with("reason", denial.reason).with("first", first).with("count", count.count);
    if let Some(wanted) = count.wanted {
        record.details = record.details.with("wanted", wanted);
    }
    record
}

/// Returns the client's address without its port, which varies.
fn address(client: &str) -> String {
    client.parse::<SocketAddr>().map_or_else(|_| client.to_owned(), |address| address.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(peer: &str, reason: &'static str) -> Denial {
        Denial {
            action: ACTION,
            reason,
            outcome: "unauthenticated".to_owned(),
            peer: address(peer),
            key: None,
        }
    }

    #[test]
    fn equal_denials_are_counted_and_records_are_bounded() {
        let denials = Denials::default();
        for port in 1..=1000u16 {
            denials.note(denial(&format!("192.0.2.1:{port}"), "unknown"), "first", None);
        }
        for number in 0..=255u8 {
            for reason in ["unknown", "expired", "revoked"] {
                denials.note(denial(&format!("[2001:db8::{number:x}]:1"), reason), "later", None);
            }
        }
        let counts = denials.take();
        assert_eq!(counts.len(), MAX_NAMED + 3, "{counts:?}");
        assert_eq!(counts[&denial("192.0.2.1:1", "unknown")].count, 1000);
        let total: u64 = counts.values().map(|count| count.count).sum();
        assert_eq!(total, 1000 + 3 * 256, "one was not counted");
        assert!(denials.take().is_empty());
    }

    #[test]
    fn repeated_actions_are_counted_by_key_and_kind() {
        let denials = Denials::default();
        let recorded =
            |key: &str, kind, max| (0..2000).filter(|_| denials.has_record(key, kind, max)).count();
        assert_eq!(recorded("a", "file.read", MAX_DONE), 600);
        assert_eq!(recorded("a", "file.write", MAX_DONE), 600);
        assert_eq!(recorded("b", "file.read", MAX_DONE), 600);
        assert_eq!(recorded("a", REFUSED, MAX_RECORDED), 60);
        // Many addresses of one key are counted together, and the key is named.
        for number in 0..=255u8 {
            let key = Some(("key_1".to_owned(), "acme".to_owned()));
            let done = Denial {
                action: "file.read",
                outcome: "ok".to_owned(),
                key,
                ..denial(&format!("192.0.2.{number}:1"), "repeated")
            };
            denials.note(done, "r", None);
        }
        let counts = denials.take();
        assert_eq!(counts.len(), MAX_NAMED + 1);
        assert!(counts.keys().all(|denial| denial.key.is_some()));
        assert_eq!(counts.values().map(|count| count.count).sum::<u64>(), 256);
    }

    #[test]
    fn addresses_have_no_ports() {
        for (client, expected) in
            [("192.0.2.1:80", "192.0.2.1"), ("[2001:db8::1]:80", "2001:db8::1"), ("unix", "unix")]
        {
            assert_eq!(address(client), expected);
        }
    }
}
