//! The API as a whole: what it is configured to be, and its router.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use belljar_keeper::Keeper;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::guard::{Attempts, StreamSlots};
use crate::metrics::HttpMetrics;
use crate::serve::{Flights, Slots, Traffic};
use crate::{e2b, guard, rest, rpc};

/// What the operator says about the API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Sandboxes have the host names `{port}-{id}.{domain}`. Without a domain, ports are reached by path only.
    pub domain: Option<String>,
    /// Names of the server besides those of loopback and of the address that a client connected to.
    pub hosts: Vec<String>,
    /// Origins of pages that may use the API from a browser, such as `https://console.example.com`.
    pub origins: Vec<String>,
    /// Addresses of reverse proxies, whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.
    pub trusted_proxies: Vec<IpAddr>,
    /// Whether `/metrics` needs no key.
    pub open_metrics: bool,
    /// Whether `/openapi.json` and `/docs` need no key. They hold nothing but what is in the documentation.
    pub open_docs: bool,
    /// Whether E2B's clients are served as well.
    pub e2b: bool,
    /// Whether sandboxes of E2B's clients have an open network unless they say something else.
    pub e2b_internet: bool,
    /// Whether whoever can open the Unix socket is the operator.
    pub operator_socket: bool,
    /// Connections at once, on all listeners together.
    pub max_connections: usize,
    /// Connections at once from one address.
    pub max_connections_per_client: usize,
    /// Requests on one connection, after which it is closed.
    pub max_requests_per_connection: u64,
    /// Open streams (events, WebSockets, tunnels) at once for one key.
    pub max_streams_per_key: usize,
    /// Wrong keys from one address in a minute, after which it has to wait.
    pub max_failed_attempts: u32,
    /// How long requests may take to finish once the server is told to stop.
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

/// What all requests share.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) keeper: Keeper,
    pub(crate) config: ApiConfig,
    /// The same with the host names and origins that hold now.
    current: RwLock<Arc<ApiConfig>>,
    trace_context: OnceLock<Arc<dyn TraceContext>>,
    pub(crate) metrics: HttpMetrics,
    pub(crate) attempts: Attempts,
    pub(crate) streams: StreamSlots,
    /// What E2B's clients watch and ask for.
    pub(crate) e2b_watchers: e2b::Watchers,
    pub(crate) e2b_tags: e2b::Tags,
    /// Bytes of answers that clients have not taken.
    pub(crate) flights: Flights,
    /// Connections on all listeners.
    pub(crate) connections: Slots,
    pub(crate) traffic: Arc<Traffic>,
    /// Fires when the server is told to stop: streams end then.
    pub(crate) stopping: CancellationToken,
}

impl std::ops::Deref for Shared {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Whose trace a request is a part of, in the form that its headers have it. Without one nothing is read or added.
pub trait TraceContext: Send + Sync {
    /// Makes `span` a part of the trace that a request's headers name.
    fn join(&self, span: &tracing::Span, headers: &http::HeaderMap);

    /// Puts the trace of `span` into headers.
    fn carry(&self, span: &tracing::Span, headers: &mut http::HeaderMap);
}

impl Inner {
    /// How traces are passed on, if they are.
    pub(crate) fn trace_context(&self) -> Option<&dyn TraceContext> {
        self.trace_context.get().map(AsRef::as_ref)
    }

    /// The configuration with the host names and origins that hold now.
    pub(crate) fn current(&self) -> Arc<ApiConfig> {
        Arc::clone(&self.current.read())
    }
}

/// The service's facades on one port.
pub struct Api {
    pub(crate) shared: Shared,
    mounts: Vec<Router>,
}

impl Api {
    /// An API for what `keeper` keeps.
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
            e2b_watchers: e2b::Watchers::default(),
            e2b_tags: e2b::Tags::default(),
            flights: Flights::default(),
            connections,
            traffic,
            stopping,
        };
        Self { shared: Shared(Arc::new(inner)), mounts: Vec::new() }
    }

    /// Passes traces on from now on. Only the first context that is given counts.
    pub fn pass_traces_on(&self, context: Arc<dyn TraceContext>) {
        let _ = self.shared.trace_context.set(context);
    }

    /// Takes other names of the server and other origins from now on. All else stays as it was at the start.
    pub fn reconfigure(&self, config: &ApiConfig) {
        let mut current = self.shared.current.write();
        let (hosts, origins) = (canonical(&config.hosts), config.origins.clone());
        *current = Arc::new(ApiConfig { hosts, origins, ..self.shared.config.clone() });
    }

    /// Puts another facade below `prefix`, such as `/hooks`. It sees the whole path, with the prefix. It stands behind the
    /// same guards: a request that reaches it comes from a [`belljar_keeper::Caller`], which is in the request's extensions.
    #[must_use]
    pub fn mount<S>(mut self, prefix: &str, service: S) -> Self
    where
        S: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.mounts.push(Router::new().route_service(&format!("{prefix}/{{*rest}}"), service));
        self
    }

    /// All routes with all guards before them.
    pub fn router(&self) -> Router {
        let mut router = rest::router(&self.shared).merge(rpc::router(&self.shared));
        if self.shared.config.e2b {
            router = router.merge(e2b::router(&self.shared));
        }
        for mounted in &self.mounts {
            router = router.merge(mounted.clone());
        }
        guard::wrap(router, &self.shared)
    }
}

/// Names of hosts as they are compared.
fn canonical(hosts: &[String]) -> Vec<String> {
    hosts.iter().map(|host| host.trim_end_matches('.').to_ascii_lowercase()).collect()
}
