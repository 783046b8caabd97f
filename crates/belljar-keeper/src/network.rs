//! Decisions of gateways, for the metrics and the audit log.
//!
//! ```text
//!   a gateway's log ──► a task for each sandbox with a network ──► counters
//!                         ├─ each verdict on a host and port once, at most so many of each kind ──► audit
//!                         └─ at the end: totals ──► audit
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{EngineError, NetworkLog};
use belljar_model::{NetworkEvent, NetworkEventKind, NetworkRecord};
use belljar_store::NewRecord;
use futures::StreamExt as _;
use jiff::Timestamp;

use crate::entry::Entry;
use crate::error::{KeeperError, chain};
use crate::keeper::Keeper;

/// Maximum numbers of verdicts on hosts with their own record, per sandbox. All others are counted in its last record. Code chooses the
/// names that are denied, so these cannot use up the records of what it has reached.
/// Source: docs/audit.md; held by `network::tests::each_kind_of_verdict_has_its_own_records`.
const fn max_recorded(kind: NetworkEventKind) -> usize {
    match kind {
        NetworkEventKind::Allowed => 512,
        NetworkEventKind::AlwaysDenied | NetworkEventKind::Denied => 64,
        NetworkEventKind::Ended => 0,
    }
}

/// Maximum number of those for names of one domain that were denied by the policy.
const MAX_OF_DOMAIN: usize = 8;

/// Interval between attempts to follow a log.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Actor in audit records, instead of a client's address.
const ACTOR: &str = "gateway";

/// Totals of one sandbox's network.
#[derive(Debug, Default)]
struct Totals {
    allowed: u64,
    denied: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// Verdicts without their own record, above [`max_recorded`].
    unrecorded: u64,
    /// Lines of the log that were overwritten before they were read.
    lost: u64,
    /// Verdicts with a record.
    seen: BTreeSet<(NetworkEventKind, String, Option<u16>)>,
    /// Numbers of records, by kind and, where that is limited, by domain.
    recorded: BTreeMap<(NetworkEventKind, String), usize>,
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
    /// Reports whether the gateway that wrote the last record has ended, and another one has written this.
    fn is_of_next_gateway(&self, record: &NetworkRecord) -> bool {
        self.last > 0 && NetworkRecord::generation(record.number) > NetworkRecord::generation(self.last)
    }

    /// Adds a line of the log. Returns its verdict, unless that was already returned or [`max_recorded`] is reached.
    fn take(&mut self, record: NetworkRecord) -> Option<Verdict> {
        self.lost = self.lost.saturating_add(record.lost_since(self.last));
        self.last = record.number;
        let kind = record.event.kind();
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
        let key = (kind, verdict.host.clone(), verdict.port);
        if self.seen.contains(&key) {
            return None;
        }
        let mut limits = vec![((kind, String::new()), max_recorded(kind))];
        if kind == NetworkEventKind::Denied {
            limits.push(((kind, domain(&verdict.host).to_owned()), MAX_OF_DOMAIN));
        }
        if limits.iter().any(|(of, max)| self.recorded.get(of).is_some_and(|count| count >= max)) {
            self.unrecorded += 1;
            return None;
        }
        for (of, _) in limits {
            *self.recorded.entry(of).or_default() += 1;
        }
        self.seen.insert(key);
        Some(verdict)
    }
}

/// Returns the last two labels of a name, or the whole address.
fn domain(host: &str) -> &str {
    if host.parse::<std::net::IpAddr>().is_ok() {
        return host;
    }
    let dots = host.rmatch_indices('.').map(|(at, _)| at + 1);
    dots.take(2).nth(1).and_then(|at| host.get(at..)).unwrap_or(host)
}

impl Keeper {
    /// Spawns a task that counts and records the decisions of a running sandbox's gateways after `since`. It ends with the
    /// sandbox.
    pub(crate) fn follow_network(&self, entry: &Arc<Entry>, since: Timestamp) {
        let (keeper, entry) = (self.clone(), Arc::clone(entry));
        self.inner.followers.spawn(async move {
            let mut totals = Totals::default();
            let mut has_network = false;
            loop {
                let Some(sandbox) = entry.live().sandbox.clone() else { break };
                let records = sandbox.network_log(totals.last, true).await;
                drop(sandbox);
                match records {
                    Ok(records) => {
                        has_network = true;
                        keeper.record_network(&entry, &mut totals, records, since).await;
                        // The sandbox has ended, or its gateway has and is started again.
                    }
                    // The sandbox was created without a network, or by a launcher of an earlier version.
                    Err(
                        EngineError::NoNetwork | EngineError::Unsupported { .. } | EngineError::Ended { .. },
                    ) => break,
                    Err(error) => {
                        tracing::warn!(sandbox = %entry.id, error = %chain(&error), "cannot follow the log of a network");
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                }
            }
            if has_network {
                keeper.record_totals(&entry, &totals).await;
            }
        });
    }

    async fn record_network(
        &self,
        entry: &Entry,
        totals: &mut Totals,
        mut records: NetworkLog,
        since: Timestamp,
    ) {
        let metrics = &self.inner.metrics;
        while let Some(Ok(record)) = records.next().await {
            if i128::from(record.unix_ms) <= i128::from(since.as_millisecond()) {
                totals.last = record.number;
                continue;
            }
            if totals.is_of_next_gateway(&record) {
                entry.note("gateway_restarted", None, "the network's gateway had ended unexpectedly");
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
    }

    async fn record_totals(&self, entry: &Entry, totals: &Totals) {
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
    }

    #[test]
    fn each_kind_of_verdict_has_its_own_records() {
        let mut totals = Totals::default();
        let mut number = 0;
        let mut recorded = |event| {
            number += 1;
            totals.take(record(number, event)).is_some()
        };
        // Names of one domain, then of many.
        let denied =
            (0..100).filter(|n| recorded(connection(&format!("h{n}.noise.example"), 1, false))).count();
        assert_eq!(denied, MAX_OF_DOMAIN);
        let denied =
            (0..100).filter(|n| recorded(connection(&format!("www.h{n}.example"), 1, false))).count();
        assert_eq!(denied, 64 - MAX_OF_DOMAIN);
        let (host, rule) = ("169.254.169.254".to_owned(), "always denied: metadata service".to_owned());
        let (address, reason) = (None, String::new());
        let metadata =
            NetworkEvent::Connection { flow: 1, host, port: 80, allowed: false, address, rule, reason };
        assert!(recorded(metadata));
        let allowed = (0..1000).filter(|n| recorded(connection(&format!("h{n}.example"), 443, true))).count();
        assert_eq!(allowed, 512);
        assert_eq!((totals.unrecorded, totals.denied, totals.allowed), (92 + 44 + 488, 201, 1000));
    }

    #[test]
    fn domains_are_the_last_two_labels() {
        for (host, expected) in [
            ("a.b.example.org", "example.org"),
            ("example.org", "example.org"),
            ("localhost", "localhost"),
            ("10.1.2.3", "10.1.2.3"),
            ("", ""),
        ] {
            assert_eq!(domain(host), expected);
        }
    }
}
