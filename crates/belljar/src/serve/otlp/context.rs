//! The W3C trace context of requests: extracted from incoming headers, and injected into outgoing ones.

use belljar_api::TraceContext;
use http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Propagator of `traceparent` and `tracestate`.
#[derive(Debug, Default)]
pub(crate) struct W3c {
    propagator: TraceContextPropagator,
}

impl TraceContext for W3c {
    fn extract(&self, span: &Span, headers: &HeaderMap) {
        let parent = self.propagator.extract(&HeaderExtractor(headers));
        // A span that is not traced has no parent.
        let _ = span.set_parent(parent);
    }

    fn inject(&self, span: &Span, headers: &mut HeaderMap) {
        self.propagator.inject_context(&span.context(), &mut HeaderInjector(headers));
    }
}
