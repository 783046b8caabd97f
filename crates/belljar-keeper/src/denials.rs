//! Keys that were refused, and requests of good keys, for the trail. Whoever knocks often fills a line, not the disk: what is alike is
//! counted, and told once in a while.
//!
//! ```text
//!   note ──► counted by reason, address and key ──► soon, and then once an interval: one record each
//!              └─ too many addresses ──► counted together, by reason
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

/// What the records are called.
const ACTION: &str = "auth.denied";

/// The most records of one interval that name an address. All others are counted together, by reason.
/// Source: docs/audit.md; held by `c16b_a_flood_of_wrong_keys_is_counted_and_not_written`.
const MAX_NAMED: usize = 16;

/// The most requests of one key in an interval that get a record each when they are refused. All others are counted by action and outcome.
/// Source: docs/audit.md; held by `c25_a_flood_of_refused_requests_is_counted`.
const MAX_RECORDED: u32 = 60;

/// How long what is alike is counted before it is written again.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long the first refusal after a quiet time waits for others.
const SOON: Duration = Duration::from_millis(500);

/// Stands for the addresses that are not named.
const OTHERS: &str = "others";

/// Refusals that are not in the trail yet.
#[derive(Default)]
pub(crate) struct Denials {
    noted: Mutex<BTreeMap<Denial, Count>>,
    /// Requests of each key that were refused in this interval, with a record each so far.
    recorded: Mutex<HashMap<String, (Instant, u32)>>,
    /// Held while they are written, so that whoever comes next waits until they are.
    telling: tokio::sync::Mutex<()>,
    wake: Notify,
}

/// What is alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Denial {
    action: &'static str,
    reason: &'static str,
    outcome: String,
    /// The client's address, without its port.
    peer: String,
    /// The id of the key, if there is one; and its tenant.
    key: Option<(String, String)>,
}

#[derive(Debug, Clone)]
struct Count {
    count: u64,
    first: Timestamp,
    /// Of the first.
    request_id: String,
    /// What the first wanted, where that is known.
    wanted: Option<&'static str>,
}

impl Denials {
    fn note(&self, denial: Denial, request_id: &str, wanted: Option<&'static str>) {
        let mut noted = self.noted();
        let named = noted.keys().filter(|denial| denial.peer != OTHERS).count();
        let unbounded = ServiceWall::DenialBound.is_down();
        let denial = match denial {
            _ if unbounded => Denial { peer: format!("{} {}", denial.peer, noted.len()), ..denial },
            denial if named < MAX_NAMED || noted.contains_key(&denial) => denial,
            denial => Denial { peer: OTHERS.to_owned(), key: None, ..denial },
        };
        let count = noted.entry(denial).or_insert_with(|| Count {
            count: 0,
            first: Timestamp::now(),
            request_id: request_id.to_owned(),
            wanted,
        });
        count.count = count.count.saturating_add(1);
        drop(noted);
        self.wake.notify_one();
    }

    /// Whether one more refused request of a key gets a record of its own.
    fn has_record(&self, key: &str) -> bool {
        let mut recorded = self.recorded.lock();
        recorded.retain(|_, (since, _)| since.elapsed() < INTERVAL);
        let (_, count) = recorded.entry(key.to_owned()).or_insert_with(|| (Instant::now(), 0));
        *count = count.saturating_add(1);
        ServiceWall::RefusalBound.allows(*count <= MAX_RECORDED)
    }

    /// Wakes the task that tells them, which then sees that the keeper ends.
    pub(crate) fn end(&self) {
        self.wake.notify_one();
    }

    fn take(&self) -> BTreeMap<Denial, Count> {
        std::mem::take(&mut *self.noted())
    }

    fn noted(&self) -> MutexGuard<'_, BTreeMap<Denial, Count>> {
        self.noted.lock()
    }
}

impl Keeper {
    /// Notes that a credential was refused. The credential itself is never told.
    pub(crate) fn note_denied(&self, why: Denied, row: Option<&KeyRow>, client: &str, request_id: &str) {
        let reason = match why {
            Denied::Unknown => "unknown",
            Denied::Expired => "expired",
            Denied::Revoked => "revoked",
            // That is no word on the credential.
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

    /// Notes that a key was good, but not for what was asked for.
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

    /// Notes that a request was refused or failed, where its key has so many of those that they are counted. Says whether it was.
    pub(crate) fn note_refused(&self, caller: &Caller, action: &'static str, outcome: &str) -> bool {
        if self.inner.denials.has_record(&caller.key) {
            return false;
        }
        let denial = Denial {
            action,
            reason: "repeated",
            outcome: outcome.to_owned(),
            peer: address(&caller.client),
            key: Some((caller.key.clone(), caller.tenant.clone())),
        };
        self.inner.denials.note(denial, &caller.request_id, None);
        true
    }

    /// Writes refusals into the trail, in a task of its own.
    pub(crate) fn keep_telling_denials(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                keeper.inner.denials.wake.notified().await;
                tokio::time::sleep(SOON).await;
                keeper.tell_denials().await;
                tokio::time::sleep(INTERVAL).await;
            }
        });
    }

    /// Writes what has been noted. When this returns everything is written that was noted before the call.
    pub(crate) async fn tell_denials(&self) {
        let _telling = self.inner.denials.telling.lock().await;
        let records = self.inner.denials.take().into_iter().map(|(denial, count)| record(denial, count));
        let written = records.map(|record| self.inner.audit.append(record));
        for outcome in futures::future::join_all(written).await {
            if let Err(error) = outcome {
                let error = KeeperError::from(error);
                tracing::warn!(error = %chain(&error), "cannot write into the trail that keys were refused");
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

/// The client's address without its port, of which a client has many.
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
    fn what_is_alike_is_counted_and_the_number_of_records_is_bounded() {
        let denials = Denials::default();
        for port in 1..=1000u16 {
            denials.note(denial(&format!("192.0.2.1:{port}"), "unknown"), "first", None);
        }
        for number in 0..=255u8 {
            for reason in ["unknown", "expired", "revoked"] {
                denials.note(denial(&format!("[2001:db8::{number:x}]:1"), reason), "later", None);
            }
        }
        let told = denials.take();
        assert_eq!(told.len(), MAX_NAMED + 3, "{told:?}");
        assert_eq!(told[&denial("192.0.2.1:1", "unknown")].count, 1000);
        let total: u64 = told.values().map(|count| count.count).sum();
        assert_eq!(total, 1000 + 3 * 256, "one was not counted");
        assert!(denials.take().is_empty());
    }

    #[test]
    fn ports_are_left_out_of_addresses() {
        for (client, expected) in
            [("192.0.2.1:80", "192.0.2.1"), ("[2001:db8::1]:80", "2001:db8::1"), ("unix", "unix")]
        {
            assert_eq!(address(client), expected);
        }
    }
}
