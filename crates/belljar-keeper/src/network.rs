//! Decisions of gateways, for the metrics and the audit log.
//!
//! ```text
//!   a gateway's log ──► a task for each sandbox with a network ──► counters
//!                         ├─ verdicts, as [`Verdicts`] has them ──► audit
//!                         ├─ after another gateway was started: what was lost with the one before ──► audit
//!                         └─ at the end: totals ──► audit
//! ```

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{EngineError, NetworkLog};
use belljar_model::{NetworkEvent, NetworkRecord, NetworkReport, NetworkTotals, SandboxState};
use belljar_store::NewRecord;
use futures::StreamExt as _;
use jiff::Timestamp;

use crate::entry::Entry;
use crate::error::{KeeperError, chain};
use crate::events::Event;
use crate::keeper::Keeper;
use crate::verdicts::{Verdict, Verdicts};

/// Interval between attempts to follow a log.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Actor in audit records, instead of a client's address.
const ACTOR: &str = "gateway";

/// Totals of one sandbox's network.
#[derive(Debug, Default)]
struct Totals {
    allowed: u64,
    denied: u64,
    /// Bytes of gateways that have ended unexpectedly, as of their last report.
    earlier: Bytes,
    /// The last report of the current gateway; `None` if it is of a version that makes none.
    current: Option<NetworkTotals>,
    /// Bytes of connections whose end was logged, for gateways without reports.
    logged: Bytes,
    /// Connections that were open when their gateway ended unexpectedly.
    lost_connections: u64,
    /// Lines of the log that were overwritten before they were read.
    lost: u64,
    verdicts: Verdicts,
    last: u64,
    /// Generation of the current gateway, once it has reported anything.
    generation: Option<u64>,
}

/// Bytes that a sandbox has sent and received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bytes {
    sent: u64,
    received: u64,
}

impl Bytes {
    fn add(&mut self, sent: u64, received: u64) {
        self.sent = self.sent.saturating_add(sent);
        self.received = self.received.saturating_add(received);
    }
}

impl Totals {
    /// Notes that a report is of the gateway of this generation. If another one was the last, that has ended unexpectedly: returns the
    /// number of its connections that were open.
    fn enter(&mut self, generation: u64) -> Option<u64> {
        self.generation.replace(generation).filter(|before| *before < generation)?;
        let current = self.current.take().unwrap_or_default();
        self.earlier.add(current.sent, current.received);
        self.lost_connections = self.lost_connections.saturating_add(current.open);
        Some(current.open)
    }

    fn bytes(&self) -> Bytes {
        let mut bytes = self.earlier;
        match self.current {
            Some(current) => bytes.add(current.sent, current.received),
            None if bytes == Bytes::default() => bytes = self.logged,
            None => {}
        }
        bytes
    }

    /// Adds a line of the log. Returns its verdict, if that gets a record.
    fn take(&mut self, record: NetworkRecord) -> Option<Verdict> {
        self.lost = self.lost.saturating_add(record.lost_since(self.last));
        self.last = record.number;
        let kind = record.event.kind();
        let verdict = match record.event {
            NetworkEvent::Ended { host, port, sent, received, .. } => {
                self.logged.add(sent, received);
                self.verdicts.add_bytes(host, port, (sent, received));
                return None;
            }
            NetworkEvent::Lookup { host, rule, .. } => {
                Verdict { allowed: false, host, port: None, rule, address: None, is_folded: false }
            }
            NetworkEvent::Connection { host, port, allowed, address, rule, .. } => {
                let address = address.map(|address| address.to_string());
                Verdict { allowed, host, port: Some(port), rule, address, is_folded: false }
            }
        };
        *(if verdict.allowed { &mut self.allowed } else { &mut self.denied }) += 1;
        self.verdicts.take(kind, verdict)
    }
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
                let reports = sandbox.network_log(totals.last, true).await;
                drop(sandbox);
                match reports {
                    Ok(reports) => {
                        has_network = true;
                        keeper.record_network(&entry, &mut totals, reports, since).await;
                        // The sandbox has ended, or its gateway has and is started again.
                    }
                    // The sandbox was created without a network, or by a launcher of an earlier version.
                    Err(
                        EngineError::NoNetwork | EngineError::Unsupported { .. } | EngineError::Ended { .. },
                    ) => break,
                    Err(_) if matches!(entry.state(), SandboxState::Stopping | SandboxState::Gone) => break,
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
        mut reports: NetworkLog,
        since: Timestamp,
    ) {
        let metrics = &self.inner.metrics;
        while let Some(Ok(report)) = reports.next().await {
            let before = (totals.allowed, totals.denied, totals.bytes(), totals.lost);
            let generation = match &report {
                NetworkReport::Record(record) => NetworkRecord::generation(record.number),
                NetworkReport::Totals(now) => now.generation,
            };
            if let Some(open) = totals.enter(generation) {
                entry.note("gateway_restarted", None, "the network's gateway had ended unexpectedly");
                let mut record = self.network_record(entry, "network.restart");
                record.details = record.details.with("lost_connections", open);
                self.append_network(entry, record).await;
            }
            let verdict = match report {
                NetworkReport::Record(record)
                    if i128::from(record.unix_ms) <= i128::from(since.as_millisecond()) =>
                {
                    totals.last = record.number;
                    None
                }
                NetworkReport::Record(record) => totals.take(record),
                NetworkReport::Totals(now) => {
                    // The first report about a sandbox that was adopted has what an earlier server has counted.
                    let is_adopted = totals.current.is_none() && since > Timestamp::UNIX_EPOCH;
                    totals.current = Some(now);
                    if is_adopted {
                        continue;
                    }
                    None
                }
            };
            let (allowed, denied) = (totals.allowed - before.0, totals.denied - before.1);
            let bytes = totals.bytes();
            let bytes =
                (bytes.sent.saturating_sub(before.2.sent), bytes.received.saturating_sub(before.2.received));
            metrics.record_network(allowed, denied, bytes, totals.lost - before.3);
            if let Some(verdict) = verdict {
                self.publish_denial(entry, &verdict);
                let record = self.verdict_record(entry, verdict);
                self.append_network(entry, record).await;
            }
        }
    }

    fn verdict_record(&self, entry: &Entry, verdict: Verdict) -> NewRecord {
        let action = if verdict.allowed { "network.allow" } else { "network.deny" };
        let mut record = self.network_record(entry, action);
        record.details = record.details.with("host", verdict.host);
        // Unknown if only bytes are known of its connections.
        if !verdict.rule.is_empty() {
            record.details = record.details.with("rule", verdict.rule);
        }
        if let Some(port) = verdict.port {
            record.details = record.details.with("port", u64::from(port));
        }
        if let Some(address) = verdict.address {
            record.details = record.details.with("address", address);
        }
        if verdict.is_folded {
            record.details = record.details.with("others", true);
        }
        record
    }

    async fn record_totals(&self, entry: &Entry, totals: &Totals) {
        let (largest, unrecorded) = totals.verdicts.largest();
        for one in largest {
            let allowed = one.verdict.allowed;
            let mut record = self.verdict_record(entry, one.verdict);
            record.details = record.details.with("others", true).with("count", one.count);
            if allowed {
                let (sent, received) = one.bytes;
                record.details = record.details.with("sent_bytes", sent).with("received_bytes", received);
            }
            self.append_network(entry, record).await;
        }
        let mut record = self.network_record(entry, "network.end");
        let Bytes { sent, received } = totals.bytes();
        for (name, count) in [
            ("allowed", totals.allowed),
            ("denied", totals.denied),
            ("sent_bytes", sent),
            ("received_bytes", received),
            ("unrecorded", unrecorded),
            ("lost", totals.lost),
            ("lost_connections", totals.lost_connections),
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

    /// Publishes a denial that has a record of its own, so that a sandbox that tries much does not push other events out.
    fn publish_denial(&self, entry: &Entry, verdict: &Verdict) {
        if verdict.allowed {
            return;
        }
        let port = verdict.port.map(|port| format!(":{port}")).unwrap_or_default();
        self.inner.events.publish(Event {
            sandbox: Some(entry.id.clone()),
            labels: entry.live().row.labels.clone(),
            detail: format!("{}{port}: {}", verdict.host, verdict.rule),
            ..Event::new("network.deny", &entry.tenant)
        });
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

    fn ended(sent: u64, received: u64) -> NetworkEvent {
        NetworkEvent::Ended { flow: 1, host: "a.example".to_owned(), port: 443, sent, received, error: None }
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
        assert!(totals.take(record(10, ended(3, 5))).is_none());
        assert!(totals.take(record(11, ended(4, 6))).is_none());
        assert_eq!((totals.allowed, totals.denied, totals.lost), (3, 2, 4));
        // Without reports of totals, the ends that were logged are all there is.
        assert_eq!(totals.bytes(), Bytes { sent: 7, received: 11 });
    }

    #[test]
    fn bytes_of_a_gateway_that_has_ended_are_kept() {
        let mut totals = Totals::default();
        let mut report = |generation, open, sent, received| {
            let lost = totals.enter(generation);
            totals.current = Some(NetworkTotals { generation, open, sent, received });
            (lost, totals.bytes())
        };
        // The first one seen may be of any generation, after a server's restart.
        assert_eq!(report(1, 0, 0, 0), (None, Bytes::default()));
        assert_eq!(report(1, 3, 10, 500), (None, Bytes { sent: 10, received: 500 }));
        assert_eq!(report(2, 0, 0, 0), (Some(3), Bytes { sent: 10, received: 500 }));
        assert_eq!(report(2, 1, 1, 2), (None, Bytes { sent: 11, received: 502 }));
        assert_eq!(report(4, 0, 5, 5), (Some(1), Bytes { sent: 16, received: 507 }));
        assert_eq!(totals.lost_connections, 4);
    }
}
