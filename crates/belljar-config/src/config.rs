//! What the configuration means: values that have been checked, with the defaults filled in.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use belljar_model::{Cidr, EngineName, NetworkCeiling, SpecFile, UpstreamProxy};

use crate::secret::Secret;

/// How the service is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Who may connect, and how.
    pub server: ServerConfig,
    /// Where records are kept.
    pub store: StoreConfig,
    /// What sandboxes there may be.
    pub sandboxes: SandboxesConfig,
    /// What a sandbox is like of which nothing else is said. Its values have been checked.
    pub template: SpecFile,
    /// What is left to the machine itself.
    pub head_room: HeadRoomConfig,
    /// The quotas of new keys that name none of their own.
    pub quotas: QuotasConfig,
    /// What is logged, and where.
    pub log: LogConfig,
    /// Who sees the metrics.
    pub metrics: MetricsConfig,
    /// The collector of traces, if there is one.
    pub otlp: Option<OtlpConfig>,
    /// The audit trail as a file.
    pub audit: AuditConfig,
}

/// Who may connect, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Unix socket to listen on.
    pub socket: Option<PathBuf>,
    /// Whether whoever can open the socket is the operator.
    pub operator_socket: bool,
    /// The domain of the sandboxes' host names.
    pub domain: Option<String>,
    /// Names of this server besides the usual ones.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may use the server.
    pub allowed_origins: Vec<String>,
    /// Reverse proxies that are believed.
    pub trusted_proxies: Vec<IpAddr>,
    /// Certificate and key, if the addresses speak TLS.
    pub tls: Option<TlsConfig>,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once from one address.
    pub max_connections_per_client: usize,
    /// Requests on one connection.
    pub max_requests_per_connection: u64,
    /// Streams at once of one key.
    pub max_streams_per_key: usize,
    /// Wrong keys from one address in a minute.
    pub max_failed_attempts: u32,
    /// How long requests may take to finish once the server is told to stop.
    pub drain: Duration,
    /// How long a server that a command has started stays without a sandbox and a connection.
    pub linger: Duration,
    /// Whether the documentation needs no key.
    pub open_docs: bool,
    /// Whether E2B's clients are served as well.
    pub e2b: bool,
    /// Whether their sandboxes have an open network unless they say something else.
    pub e2b_internet: bool,
}

/// The files of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

/// Where records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The store's address; it may hold a password.
    pub url: Secret,
    /// What an acknowledged write survives.
    pub durability: StoreDurability,
    /// The file with the key that the store is sealed with.
    pub key_file: PathBuf,
    /// This server's name in the store.
    pub keeper: String,
}

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDurability {
    /// The end of the server, at any instant.
    Process,
    /// The loss of power, too.
    Power,
}

/// What sandboxes there may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxesConfig {
    /// What builds the walls of a sandbox that names no engine.
    pub engine: EngineName,
    /// Further engines that a sandbox may name.
    pub engines: Vec<EngineName>,
    /// Life of a sandbox for which none was asked.
    pub default_timeout: Duration,
    /// Longest life that can be asked for.
    pub max_timeout: Duration,
    /// Sandboxes that are made ahead.
    pub pool: usize,
    /// Sandboxes that are made ahead of each other template that was used lately.
    pub template_pool: usize,
    /// Whether contexts of Python are forked from an interpreter that is ready.
    pub warm_interpreters: bool,
    /// Modules that warm interpreters on the machine's own tree have imported.
    pub warm_imports: Vec<String>,
    /// Sandboxes that start at once; `None` is what fits this machine.
    pub max_starts: Option<usize>,
    /// Requests that may wait for a start.
    pub max_waiting: usize,
    /// Sandboxes at once.
    pub max_sandboxes: u32,
    /// Whether tenants may share the machine's own tree.
    pub share_host_tree: bool,
    /// What becomes of sandboxes when the server stops.
    pub on_exit: OnExit,
    /// Delegated control group to make groups in.
    pub cgroup: Option<PathBuf>,
    /// How long the record of a sandbox that is gone is kept.
    pub keep_gone: Duration,
    /// How long what came of a step of a template's build is kept after its last use.
    pub keep_steps: Duration,
    /// How long an idempotency key is remembered.
    pub keep_idempotency: Duration,
    /// Host paths that may be mounted.
    pub mounts: MountsConfig,
    /// The most that a sandbox's network may reach, but for administrators' keys.
    pub network_most: NetworkCeiling,
    /// Ranges that are denied in every mode, and that network policies may allow all the same.
    pub network_exceptions: Vec<Cidr>,
    /// Resolvers that are asked for names; none are those of the machine.
    pub network_resolvers: Vec<SocketAddr>,
    /// The proxy through which networks connect.
    pub network_proxy: Option<UpstreamProxy>,
    /// Whether the proxy looks names up.
    pub network_proxy_resolves: bool,
    /// Certificates that gateways trust beside those of the system.
    pub network_ca_file: Option<PathBuf>,
}

/// Host paths that may be mounted; each is absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountsConfig {
    /// For reading.
    pub read: Vec<PathBuf>,
    /// For writing.
    pub write: Vec<PathBuf>,
    /// Never.
    pub forbidden: Vec<PathBuf>,
}

/// What becomes of sandboxes when the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// They live on, and the next server takes them over.
    Keep,
    /// They end.
    End,
}

/// What is left to the machine itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRoomConfig {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Free room on the disk of the service's home, in bytes.
    pub disk_bytes: u64,
    /// Free inodes there, in percent.
    pub inodes_percent: u8,
    /// Processes and threads.
    pub pids: u64,
}

/// What the sandboxes of a key may use together. `None` is as much as there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotasConfig {
    /// Sandboxes at once.
    pub sandboxes: Option<u32>,
    /// Sum of their memory limits, in bytes.
    pub memory_bytes: Option<u64>,
    /// Sum of their disk limits, in bytes.
    pub disk_bytes: Option<u64>,
    /// Processor seconds in any hour.
    pub cpu_seconds_per_hour: Option<u64>,
    /// Executions in any minute.
    pub executions_per_minute: Option<u32>,
}

/// What is logged, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// How a line looks.
    pub format: LogFormat,
    /// What is logged.
    pub level: LogLevel,
    /// Where to; standard error if nothing is said.
    pub file: Option<PathBuf>,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// What went wrong.
    Error,
    /// What may go wrong, too.
    Warn,
    /// What happens, too.
    Info,
}

/// Who sees the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Whether they need no key.
    pub open: bool,
}

/// The collector of traces.
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpConfig {
    /// Its address, such as `http://127.0.0.1:4318`, without a slash at the end.
    pub endpoint: String,
    /// Headers of each request to it.
    pub headers: Vec<(String, Secret)>,
    /// Share of the requests that are traced, from 0 to 1.
    pub sampling: f64,
    /// Whether log lines are sent as well.
    pub logs: bool,
    /// Name of the service.
    pub service_name: String,
}

/// The audit trail as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file, if there is to be one.
    pub file: Option<PathBuf>,
    /// Size at which a new one is begun, in bytes.
    pub rotate_bytes: u64,
    /// Files that are kept.
    pub keep: usize,
}
