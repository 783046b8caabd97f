//! The whole API: its configuration and its router.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use belljar_keeper::Keeper;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::facade::{self, Claims, Facade, FacadeConflict, Head};
use crate::guard::Guarded;
use crate::guard::{Answers, Attempts, StreamSlots};
use crate::metrics::HttpMetrics;
use crate::serve::{Flights, Slots, Traffic};
use crate::{console, e2b, guard, mcp, rest, rpc};

/// Configuration of the API, as set by the operator.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Sandboxes have the host names `{port}-{id}.{domain}`. Without a domain, ports are reached by path only.
    pub domain: Option<String>,
    /// Names of the server besides those of loopback and of the address that a client connected to.
    pub hosts: Vec<String>,
    /// Origins of pages that may use the API from a browser, such as `https://console.example.com`.
    pub origins: Vec<String>,
    /// Addresses of reverse proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are trusted.
    pub trusted_proxies: Vec<IpAddr>,
    /// Serves `/metrics` without a key.
    pub open_metrics: bool,
    /// Serves `/openapi.json` and `/docs` without a key. They contain only what is in the documentation.
    pub open_docs: bool,
    /// Serves E2B's clients as well.
    pub e2b: bool,
    /// Gives sandboxes of E2B's clients an open network unless the request sets another one.
    pub e2b_internet: bool,
    /// Lets everyone reach the ports of their sandboxes, unless a sandbox refuses that.
    pub e2b_public_ports: bool,
    /// Treats everyone who can open the Unix socket as the operator.
    pub operator_socket: bool,
    /// Maximum number of concurrent connections, on all listeners together.
    pub max_connections: usize,
    /// Maximum number of concurrent connections from one address.
    pub max_connections_per_client: usize,
    /// Maximum number of requests on one connection, after which it is closed.
    pub max_requests_per_connection: u64,
    /// Maximum number of open streams (events, WebSockets, tunnels) for one key.
    pub max_streams_per_key: usize,
    /// Maximum number of wrong keys from one address in a minute, after which further wrong ones have to wait.
    pub max_failed_attempts: u32,
    /// Drain time: time that requests have to finish after the server starts to shut down.
    pub drain: Duration,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            domain: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            trusted_proxies: Vec::new(),
            open_metrics: false,
            open_docs: true,
            e2b: false,
            e2b_internet: true,
            e2b_public_ports: true,
            operator_socket: false,
            max_connections: 2048,
            max_connections_per_client: 512,
            max_requests_per_connection: 100_000,
            max_streams_per_key: 256,
            max_failed_attempts: 30,
            drain: Duration::from_secs(10),
        }
    }
}

/// State shared by all requests.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) keeper: Keeper,
    pub(crate) config: ApiConfig,
    /// The configuration with the current host names and origins.
    current: RwLock<Arc<ApiConfig>>,
    trace_context: OnceLock<Arc<dyn TraceContext>>,
    pub(crate) metrics: HttpMetrics,
    pub(crate) attempts: Attempts,
    pub(crate) streams: StreamSlots,
    /// Answers that clients have not read yet, and files that are being changed.
    pub(crate) answers: Answers,
    /// Bytes of responses that clients have not read yet.
    pub(crate) flights: Flights,
    /// Connections on all listeners.
    pub(crate) connections: Slots,
    pub(crate) traffic: Arc<Traffic>,
    /// Cancelled when the server shuts down; streams end then.
    pub(crate) stopping: CancellationToken,
}

impl std::ops::Deref for Shared {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Propagation of traces through request headers. Without one, no headers are read or added.
pub trait TraceContext: Send + Sync {
    /// Attaches `span` to the trace named in a request's headers.
    fn extract(&self, span: &tracing::Span, headers: &http::HeaderMap);

    /// Writes the trace of `span` into headers.
    fn inject(&self, span: &tracing::Span, headers: &mut http::HeaderMap);
}

impl Inner {
    /// Returns the trace propagation, if one is set.
    pub(crate) fn trace_context(&self) -> Option<&dyn TraceContext> {
        self.trace_context.get().map(AsRef::as_ref)
    }

    /// Returns the configuration with the current host names and origins.
    pub(crate) fn current(&self) -> Arc<ApiConfig> {
        Arc::clone(&self.current.read())
    }
}

/// The service's facades, served on one port.
pub struct Api {
    pub(crate) shared: Shared,
    facades: Vec<Arc<dyn Facade>>,
}

/// Returns the facades of a configuration. The last one gets the requests that no other has claimed.
fn facades(shared: &Shared) -> Vec<Arc<dyn Facade>> {
    let mut facades: Vec<Arc<dyn Facade>> =
        vec![Arc::new(rpc::Rpc(shared.clone())), Arc::new(mcp::Mcp::new(shared)), Arc::new(console::Console)];
    if shared.config.e2b {
        facades.push(Arc::new(e2b::E2b::new(shared)));
    }
    facades.push(Arc::new(rest::Rest(shared.clone())));
    facades
}

impl Api {
    /// Creates the API of `keeper`.
    #[must_use]
    pub fn new(mut config: ApiConfig, keeper: Keeper) -> Self {
        config.domain = config.domain.map(|domain| domain.trim_matches('.').to_ascii_lowercase());
        config.hosts = canonical(&config.hosts);
        let attempts = Attempts::new(config.max_failed_attempts);
        let connections = Slots::new(config.max_connections, config.max_connections_per_client);
        let stopping = CancellationToken::new();
        let streams = StreamSlots::new(config.max_streams_per_key, stopping.clone());
        let current = RwLock::new(Arc::new(config.clone()));
        let metrics = HttpMetrics::default();
        keeper.register_metrics(|registry| metrics.register(registry));
        let trace_context = OnceLock::new();
        let traffic = Arc::default();
        let inner = Inner {
            keeper,
            config,
            current,
            trace_context,
            metrics,
            attempts,
            streams,
            answers: Answers::default(),
            flights: Flights::default(),
            connections,
            traffic,
            stopping,
        };
        let shared = Shared(Arc::new(inner));
        Self { facades: facades(&shared), shared }
    }

    /// Sets the trace propagation. Only the first call has an effect.
    pub fn set_trace_context(&self, context: Arc<dyn TraceContext>) {
        let _ = self.shared.trace_context.set(context);
    }

    /// Replaces the server's host names and the allowed origins. All other settings are left unchanged.
    pub fn reconfigure(&self, config: &ApiConfig) {
        let mut current = self.shared.current.write();
        let (hosts, origins) = (canonical(&config.hosts), config.origins.clone());
        *current = Arc::new(ApiConfig { hosts, origins, ..self.shared.config.clone() });
    }

    /// Adds a facade. The same guards apply.
    ///
    /// # Errors
    /// Fails if it claims what another facade has claimed.
    pub fn with_facade(mut self, facade: Arc<dyn Facade>) -> Result<Self, FacadeConflict> {
        self.facades.insert(0, facade);
        let all: Vec<&dyn Facade> = self.facades.iter().map(AsRef::as_ref).collect();
        facade::check(&all)?;
        Ok(self)
    }

    /// Returns the routes of all facades, behind all guards.
    pub fn router(&self) -> Router {
        let all: Arc<[Arc<dyn Facade>]> = self.facades.clone().into();
        let claims: Arc<[Claims]> = all.iter().map(|facade| facade.claims()).collect();
        let labels: Arc<[&'static str]> =
            claims.iter().flat_map(|claims| claims.labels.iter().copied()).collect();
        let guarded = |own: &Arc<dyn Facade>| {
            let (shared, own) = (self.shared.clone(), Arc::clone(own));
            guard::wrap(&Guarded { shared, own, all: Arc::clone(&all), labels: Arc::clone(&labels) })
        };
        let routers: Arc<[Router]> = all.iter().map(guarded).collect();
        Router::new().fallback_service(tower::service_fn(move |request: Request| {
            let mut router = routers[facade::owner_of(&claims, Head::of(&request))].clone();
            Service::call(&mut router, request)
        }))
    }
}

/// Normalizes host names for comparison.
fn canonical(hosts: &[String]) -> Vec<String> {
    hosts.iter().map(|host| host.trim_end_matches('.').to_ascii_lowercase()).collect()
}
