//! Decisions of gateways, for the metrics and the audit log.
//!
//! ```text
//!   a gateway's log ──► a task for each sandbox with a network ──► counters
//!                         ├─ each verdict on a host and port once, at most MAX_RECORDED ──► audit
//!                         └─ at the end: totals ──► audit
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use belljar_engine::{EngineError, NetworkLog};
use belljar_model::{NetworkEvent, NetworkRecord};
use belljar_store::NewRecord;
use futures::StreamExt as _;
use jiff::Timestamp;

use crate::entry::Entry;
use crate::error::{KeeperError, chain};
use crate::keeper::Keeper;

/// Maximum number of verdicts on hosts with their own record, per sandbox. All others are counted in its last record.
/// Source: docs/audit.md; held by `network::tests::each_verdict_on_a_host_is_recorded_once`.
const MAX_RECORDED: usize = 64;

/// Actor in audit records, instead of a client's address.
const ACTOR: &str = "gateway";

/// Totals of one sandbox's network.
#[derive(Debug, Default)]
struct Totals {
    allowed: u64,
    denied: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// Verdicts without their own record, above [`MAX_RECORDED`].
    unrecorded: u64,
    /// Lines of the log that were overwritten before they were read.
    lost: u64,
    seen: BTreeSet<(bool, String, Option<u16>)>,
    last: u64,
}

/// A verdict that gets a record of its own.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    allowed: bool,
    host: String,
    port: Option<u16>,
    rule: String,
    address: Option<String>,
}

impl Totals {
    /// Adds a line of the log. Returns its verdict, unless that was already returned or [`MAX_RECORDED`] is reached.
    fn take(&mut self, record: NetworkRecord) -> Option<Verdict> {
        let skipped = record.number.saturating_sub(self.last.saturating_add(1));
        self.lost = self.lost.saturating_add(skipped);
        self.last = record.number;
        let verdict = match record.event {
            NetworkEvent::Ended { sent, received, .. } => {
                self.sent_bytes = self.sent_bytes.saturating_add(sent);
                self.received_bytes = self.received_bytes.saturating_add(received);
                return None;
            }
            NetworkEvent::Lookup { host, rule, .. } => {
                Verdict { allowed: false, host, port: None, rule, address: None }
            }
            NetworkEvent::Connection { host, port, allowed, address, rule, .. } => {
                let address = address.map(|address| address.to_string());
                Verdict { allowed, host, port: Some(port), rule, address }
            }
        };
        *(if verdict.allowed { &mut self.allowed } else { &mut self.denied }) += 1;
        let key = (verdict.allowed, verdict.host.clone(), verdict.port);
        if self.seen.contains(&key) {
            return None;
        }
        if self.seen.len() >= MAX_RECORDED {
            self.unrecorded += 1;
            return None;
        }
        self.seen.insert(key);
        Some(verdict)
    }
}

impl Keeper {
    /// Spawns a task that counts and records the decisions of a running sandbox's gateway after `since`. It ends with the
    /// gateway.
    pub(crate) fn follow_network(&self, entry: &Arc<Entry>, since: Timestamp) {
        let Some(sandbox) = entry.live().sandbox.clone() else { return };
        let (keeper, entry) = (self.clone(), Arc::clone(entry));
        self.inner.followers.spawn(async move {
            let records = sandbox.network_log(0, true).await;
            drop(sandbox);
            match records {
                Ok(records) => keeper.record_network(&entry, records, since).await,
                // The sandbox was created without a network, or by a launcher of an earlier version.
                Err(EngineError::NoNetwork | EngineError::Unsupported { .. } | EngineError::Ended { .. }) => {}
                Err(error) => {
                    tracing::warn!(sandbox = %entry.id, error = %chain(&error), "cannot follow the log of a network");
                }
            }
        });
    }

    async fn record_network(&self, entry: &Entry, mut records: NetworkLog, since: Timestamp) {
        let (mut totals, metrics) = (Totals::default(), &self.inner.metrics);
        while let Some(Ok(record)) = records.next().await {
            if i128::from(record.unix_ms) <= i128::from(since.as_millisecond()) {
                totals.last = record.number;
                continue;
            }
            let before =
                (totals.allowed, totals.denied, totals.sent_bytes, totals.received_bytes, totals.lost);
            let verdict = totals.take(record);
            metrics.record_network(
                totals.allowed - before.0,
                totals.denied - before.1,
                (totals.sent_bytes - before.2, totals.received_bytes - before.3),
                totals.lost - before.4,
            );
            let Some(verdict) = verdict else { continue };
            let action = if verdict.allowed { "network.allow" } else { "network.deny" };
            let mut record = self.network_record(entry, action);
            record.details = record.details.with("host", verdict.host).with("rule", verdict.rule);
            if let Some(port) = verdict.port {
                record.details = record.details.with("port", u64::from(port));
            }
            if let Some(address) = verdict.address {
                record.details = record.details.with("address", address);
            }
            self.append_network(entry, record).await;
        }
        let mut record = self.network_record(entry, "network.end");
        for (name, count) in [
            ("allowed", totals.allowed),
            ("denied", totals.denied),
            ("sent_bytes", totals.sent_bytes),
            ("received_bytes", totals.received_bytes),
            ("unrecorded", totals.unrecorded),
            ("lost", totals.lost),
        ] {
            record.details = record.details.with(name, count);
        }
        self.append_network(entry, record).await;
    }

    fn network_record(&self, entry: &Entry, action: &'static str) -> NewRecord {
        let mut record = NewRecord::new(Timestamp::now(), &entry.tenant, action, "ok");
        record.key_id = Some(entry.key.clone());
        record.actor = ACTOR.to_owned();
        record.sandbox = Some(entry.id.clone());
        record
    }

    async fn append_network(&self, entry: &Entry, record: NewRecord) {
        if let Err(error) = self.inner.audit.append(record).await {
            let error = KeeperError::from(error);
            tracing::warn!(sandbox = %entry.id, error = %chain(&error), "cannot record a network decision");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, event: NetworkEvent) -> NetworkRecord {
        NetworkRecord { number, unix_ms: 0, event }
    }

    fn connection(host: &str, port: u16, allowed: bool) -> NetworkEvent {
        let (host, rule, reason) = (host.to_owned(), "rule".to_owned(), String::new());
        NetworkEvent::Connection { flow: 1, host, port, allowed, address: None, rule, reason }
    }

    #[test]
    fn each_verdict_on_a_host_is_recorded_once() {
        let mut totals = Totals::default();
        assert!(totals.take(record(1, connection("a.example", 443, true))).is_some());
        assert!(totals.take(record(2, connection("a.example", 443, true))).is_none());
        assert!(totals.take(record(3, connection("a.example", 443, false))).is_some());
        assert!(totals.take(record(4, connection("a.example", 80, true))).is_some());
        let (host, rule, reason) = ("b.example".to_owned(), String::new(), String::new());
        assert!(totals.take(record(9, NetworkEvent::Lookup { host, rule, reason })).is_some());
        let ended = |sent, received| NetworkEvent::Ended {
            flow: 1,
            host: "a.example".to_owned(),
            port: 443,
            sent,
            received,
            error: None,
        };
        assert!(totals.take(record(10, ended(3, 5))).is_none());
        assert!(totals.take(record(11, ended(4, 6))).is_none());
        assert_eq!((totals.allowed, totals.denied, totals.lost), (3, 2, 4));
        assert_eq!((totals.sent_bytes, totals.received_bytes), (7, 11));
        for number in 0..200 {
            let verdict = totals.take(record(12 + number, connection(&format!("h{number}"), 1, false)));
            assert_eq!(verdict.is_some(), number < MAX_RECORDED as u64 - 4, "{number}");
        }
        assert_eq!((totals.unrecorded, totals.denied, totals.lost), (140, 202, 4));
    }
}
