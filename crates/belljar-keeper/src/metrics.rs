//! Metrics of the service, in Prometheus's text format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belljar_model::SandboxState;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::keeper::{Inner, Keeper};

/// Histogram buckets for starts, in seconds.
const START_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Histogram buckets for executions, in seconds.
const EXEC_SECONDS: [f64; 12] = [0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3600.0];

/// Histogram buckets for writes to the store, in seconds.
const STORE_SECONDS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PooledLabel {
    pooled: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabel {
    direction: &'static str,
}

/// Metrics that the keeper updates itself. Values that can be read from the state are collected on demand by [`Collector`].
pub(crate) struct Metrics {
    sandboxes: Family<StateLabel, Gauge>,
    starts: Family<PooledLabel, Histogram, fn() -> Histogram>,
    executions: Family<OutcomeLabel, Counter>,
    execution_seconds: Histogram,
    store_write_seconds: Histogram,
    audit_append_seconds: Histogram,
    network_verdicts: Family<VerdictLabel, Counter>,
    network_bytes: Family<DirectionLabel, Counter>,
    network_lost: Counter,
    ended: AtomicU64,
    registry: Mutex<Registry>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let sandboxes = Family::<StateLabel, Gauge>::default();
        let starts = Family::<PooledLabel, Histogram, fn() -> Histogram>::new_with_constructor(
            (|| Histogram::new(START_SECONDS)) as fn() -> Histogram,
        );
        let executions = Family::<OutcomeLabel, Counter>::default();
        let execution_seconds = Histogram::new(EXEC_SECONDS);
        let own = registry.sub_registry_with_prefix("belljar");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        own.register("build", "The program that runs", build);
        own.register("sandboxes", "Sandboxes by state", sandboxes.clone());
        own.register(
            "sandbox_start_seconds",
            "Time from the request until a sandbox can be used",
            starts.clone(),
        );
        own.register("executions", "Executions by outcome", executions.clone());
        own.register("execution_seconds", "Time that executions took", execution_seconds.clone());
        let store_write_seconds = Histogram::new(STORE_SECONDS);
        let audit_append_seconds = Histogram::new(STORE_SECONDS);
        own.register(
            "store_write_seconds",
            "Time until the record of a sandbox is written",
            store_write_seconds.clone(),
        );
        own.register(
            "audit_append_seconds",
            "Time until a record of the audit log is stored",
            audit_append_seconds.clone(),
        );
        let network_verdicts = Family::<VerdictLabel, Counter>::default();
        let network_bytes = Family::<DirectionLabel, Counter>::default();
        let network_lost = Counter::default();
        own.register(
            "network_verdicts",
            "Connections of sandboxes by verdict; a name that was not resolved is a denial",
            network_verdicts.clone(),
        );
        own.register(
            "network_bytes",
            "Bytes of allowed connections that have ended, by direction as sandboxes see it",
            network_bytes.clone(),
        );
        own.register(
            "network_log_lost",
            "Lines of gateways' logs that were overwritten before they were counted",
            network_lost.clone(),
        );
        let metrics = Self {
            sandboxes,
            starts,
            executions,
            execution_seconds,
            store_write_seconds,
            audit_append_seconds,
            network_verdicts,
            network_bytes,
            network_lost,
            ended: AtomicU64::new(0),
            registry: Mutex::new(registry),
        };
        // Creates the series: a missing one cannot be told apart from one that does not exist.
        metrics.record_network(0, 0, (0, 0), 0);
        metrics
    }

    /// Records that a sandbox changed its state; a new sandbox comes from `Gone`.
    pub(crate) fn record_transition(&self, from: SandboxState, to: SandboxState) {
        if from == to {
            return;
        }
        if from != SandboxState::Gone {
            self.sandboxes.get_or_create(&StateLabel { state: from.as_str() }).dec();
        }
        if to != SandboxState::Gone {
            self.sandboxes.get_or_create(&StateLabel { state: to.as_str() }).inc();
        }
    }

    pub(crate) fn record_start(&self, took: Duration, pooled: bool) {
        let label = PooledLabel { pooled: if pooled { "true" } else { "false" } };
        self.starts.get_or_create(&label).observe(took.as_secs_f64());
    }

    pub(crate) fn record_execution(&self, outcome: &'static str, took: Duration) {
        self.executions.get_or_create(&OutcomeLabel { outcome }).inc();
        self.execution_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn record_store_write(&self, took: Duration) {
        self.store_write_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn record_audit_append(&self, took: Duration) {
        self.audit_append_seconds.observe(took.as_secs_f64());
    }

    /// Adds verdicts and traffic of a network; `bytes` are those that a sandbox has sent, and received.
    pub(crate) fn record_network(&self, allowed: u64, denied: u64, bytes: (u64, u64), lost: u64) {
        for (verdict, count) in [("allowed", allowed), ("denied", denied)] {
            self.network_verdicts.get_or_create(&VerdictLabel { verdict }).inc_by(count);
        }
        for (direction, count) in [("sent", bytes.0), ("received", bytes.1)] {
            self.network_bytes.get_or_create(&DirectionLabel { direction }).inc_by(count);
        }
        self.network_lost.inc_by(lost);
    }

    pub(crate) fn record_end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Keeper {
    /// Returns the service's metrics in Prometheus's text format. Facades add their own with [`Keeper::register_metrics`].
    #[must_use]
    pub fn prometheus(&self) -> String {
        let inner = &self.inner;
        let mut text = String::new();
        // Writing into memory does not fail.
        let _ = encode(&mut text, &inner.metrics.registry.lock());
        text
    }

    /// Registers additional metrics of a facade.
    pub fn register_metrics(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.inner.metrics.registry.lock());
    }

    /// Registers the metrics that are collected on demand.
    pub(crate) fn register_own_metrics(&self) {
        let collector = Collector { keeper: Arc::downgrade(&self.inner) };
        self.register_metrics(|registry| registry.register_collector(Box::new(collector)));
    }
}

/// Collector of values that are read from the keeper's state on demand.
struct Collector {
    keeper: std::sync::Weak<Inner>,
}

impl Inner {
    /// Returns gauges with one label each: name, description, label, and the values.
    fn labelled_gauges(&self) -> [(&'static str, &'static str, &'static str, BTreeMap<String, u64>); 3] {
        let (mut tenants, mut memory, mut templates) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for entry in self.entries.read().values() {
            let live = entry.live();
            let add =
                |values: &mut BTreeMap<String, u64>, label: &str, value: u64| match values.get_mut(label) {
                    Some(sum) => *sum += value,
                    None => drop(values.insert(label.to_owned(), value)),
                };
            add(&mut tenants, &entry.tenant, 1);
            add(&mut memory, &entry.tenant, live.spec.limits.memory.bytes());
            add(&mut templates, &live.row.template, 1);
        }
        [
            ("belljar_tenant_sandboxes", "Sandboxes that are not gone, by tenant", "tenant", tenants),
            (
                "belljar_tenant_memory_limit_bytes",
                "Sum of the memory limits of sandboxes that are not gone, by tenant",
                "tenant",
                memory,
            ),
            ("belljar_template_sandboxes", "Sandboxes that are not gone, by template", "template", templates),
        ]
    }

    /// Returns what is free on the machine, as far as it is known.
    fn free_gauges(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let config = self.config.now();
        let (memory, disk) = config.capacity().free_bytes();
        let gauges = [
            ("belljar_free_memory_bytes", "Memory of the machine that is available", memory),
            ("belljar_free_disk_bytes", "Free space on the disk of the server's home", disk),
        ];
        gauges.into_iter().filter_map(|(name, help, value)| Some((name, help, value?)))
    }
}

fn encode_gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &'static str,
    help: &str,
    value: u64,
) -> Result<(), std::fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Collector")
    }
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(inner) = self.keeper.upgrade() else { return Ok(()) };
        let (ready, size) = inner.pools.level();
        let (in_flight, waiting) = inner.gate.load();
        let gauges = [
            ("belljar_pool_ready", "Pre-warmed sandboxes that are ready", ready),
            ("belljar_pool_size", "Target number of pre-warmed sandboxes", size),
            ("belljar_starts_under_way", "Sandboxes that are being started", in_flight),
            ("belljar_starts_waiting", "Requests that wait for a start", waiting),
        ];
        for (name, help, value) in gauges {
            encode_gauge(&mut encoder, name, help, value as u64)?;
        }
        for (name, help, value) in inner.free_gauges() {
            encode_gauge(&mut encoder, name, help, value)?;
        }
        for (name, help, label, values) in inner.labelled_gauges() {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (key, value) in &values {
                let labels = [(label, key.as_str())];
                ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX))
                    .encode(family.encode_family(&labels)?)?;
            }
        }
        let counters = [
            ("belljar_pool_hits", "Requests that the pool served", inner.pools.hits.load(Ordering::Relaxed)),
            (
                "belljar_pool_misses",
                "Requests that the pool could not serve",
                inner.pools.misses.load(Ordering::Relaxed),
            ),
            (
                "belljar_sandboxes_ended",
                "Sandboxes that have ended",
                inner.metrics.ended.load(Ordering::Relaxed),
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}
