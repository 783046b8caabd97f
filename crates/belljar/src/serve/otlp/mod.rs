//! Traces and log lines for an OpenTelemetry collector, by OTLP over HTTP. Without a collector none of this is created, and
//! the program's trace points cost one load each.

mod client;
mod context;

use std::collections::HashMap;
use std::time::Duration;

use belljar_config::OtlpConfig;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;

pub(crate) use client::{Client, ClientError};
pub(crate) use context::W3c;

use super::log::{ExtraLayer, STEPS};

/// Timeout for sending the rest when the server ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Error from setting up the exporter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OtlpError {
    /// See [`ClientError`].
    #[error("otlp.endpoint: cannot use {endpoint:?}")]
    Client { endpoint: String, source: ClientError },
    /// The exporter cannot be built.
    #[error("otlp: cannot set up the exporter")]
    SetUp(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Exporter of traces and log lines, until closed.
#[derive(Debug)]
pub(crate) struct Otlp {
    traces: SdkTracerProvider,
    logs: Option<SdkLoggerProvider>,
}

impl Otlp {
    /// Starts to export. The returned layers receive the traces and log lines. Must be called within a runtime, which sends the
    /// requests.
    pub(crate) fn start(config: &OtlpConfig) -> Result<(Self, Vec<ExtraLayer>), OtlpError> {
        let client = Client::new(&config.endpoint)
            .map_err(|source| OtlpError::Client { endpoint: config.endpoint.clone(), source })?;
        let headers: HashMap<_, _> =
            config.headers.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned())).collect();
        let resource = Resource::builder()
            .with_service_name(config.service_name.clone())
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let spans = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", config.endpoint))
            .with_headers(headers.clone())
            .with_http_client(client.clone())
            .build()?;
        let traces = SdkTracerProvider::builder()
            .with_batch_exporter(spans)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sampling))))
            .with_resource(resource.clone())
            .build();
        let tracer = traces.tracer("belljar");
        let layer =
            tracing_opentelemetry::layer().with_tracer(tracer).with_threads(false).with_location(false);
        let mut layers: Vec<ExtraLayer> = vec![layer.with_filter(trace_filter()).boxed()];
        let logs = if config.logs {
            let exporter = LogExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(format!("{}/v1/logs", config.endpoint))
                .with_headers(headers)
                .with_http_client(client)
                .build()?;
            let provider =
                SdkLoggerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
            layers.push(OpenTelemetryTracingBridge::new(&provider).with_filter(log_filter()).boxed());
            Some(provider)
        } else {
            None
        };
        Ok((Self { traces, logs }, layers))
    }

    /// Sends what is left. Blocks.
    pub(crate) fn close(&self) {
        // An unreachable collector must not keep the server from ending.
        let _ = self.traces.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
        if let Some(logs) = &self.logs {
            let _ = logs.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}

/// Returns the filter for traces: requests and their steps.
fn trace_filter() -> Targets {
    Targets::new().with_target(STEPS, LevelFilter::INFO)
}

/// Returns the filter for log lines: the same as the log's.
fn log_filter() -> Targets {
    Targets::new().with_default(LevelFilter::WARN).with_target("belljar", LevelFilter::INFO)
}
