//! Metrics of requests, by route. A route is its pattern, never a path, so that the number of routes is bounded.

use std::time::Duration;

use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Bucket bounds of a request's duration, in seconds.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0];

/// Methods with a label of their own. Clients can send arbitrary other methods.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    method: &'static str,
    route: String,
    status: u16,
}

/// Metrics of requests.
#[derive(Clone)]
pub(crate) struct HttpMetrics {
    responses: Family<ResponseLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        Self {
            responses: Family::default(),
            seconds: Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram),
            in_flight: Gauge::default(),
        }
    }
}

impl HttpMetrics {
    /// Adds these metrics to the registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "belljar_http_requests",
            "Requests by route and status; 499 means that the client disconnected",
            self.responses.clone(),
        );
        registry.register(
            "belljar_http_request_seconds",
            "Time until the whole response was sent",
            self.seconds.clone(),
        );
        registry.register(
            "belljar_http_requests_under_way",
            "Requests in flight, streams included",
            self.in_flight.clone(),
        );
    }

    /// Counts the start of a request.
    pub(crate) fn begin(&self, method: &Method, route: &str) -> InFlight {
        self.in_flight.inc();
        let method = METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other");
        InFlight { metrics: self.clone(), method, route: route.to_owned() }
    }
}

/// A request in flight.
pub(crate) struct InFlight {
    metrics: HttpMetrics,
    method: &'static str,
    route: String,
}

impl InFlight {
    /// Records the end of the request.
    pub(crate) fn end(&mut self, status: StatusCode, took: Duration) {
        let (method, route) = (self.method, std::mem::take(&mut self.route));
        let labels = ResponseLabels { method, route: route.clone(), status: status.as_u16() };
        self.metrics.responses.get_or_create(&labels).inc();
        self.metrics.seconds.get_or_create(&RouteLabels { method, route }).observe(took.as_secs_f64());
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn requests_are_counted_by_route() {
        let metrics = HttpMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut first = metrics.begin(&Method::GET, "/v1/sandboxes/{id}");
        let second = metrics.begin(&Method::from_bytes(b"BREW").unwrap(), "none");
        first.end(StatusCode::NOT_FOUND, Duration::from_millis(2));
        drop(first);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = r#"belljar_http_requests_total{method="GET",route="/v1/sandboxes/{id}",status="404"} 1"#;
        assert!(text.contains(line), "{text}");
        assert!(text.contains("belljar_http_requests_under_way 1"), "{text}");
        drop(second);
        assert_eq!(metrics.in_flight.get(), 0);
    }
}
