//! The validated configuration, with the defaults filled in.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use belljar_model::{
    Cidr, DockerSettings, EngineName, GvisorSettings, ImageRegistry, NetworkCeiling, SpecFile, UpstreamProxy,
    WebhookSecret,
};

use crate::secret::Secret;

/// Configuration of the service.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Listeners and connections.
    pub server: ServerConfig,
    /// The store.
    pub store: StoreConfig,
    /// Sandboxes.
    pub sandboxes: SandboxesConfig,
    /// Images of registries.
    pub images: ImagesConfig,
    /// Settings of the engine `docker`, with the registries of `images`.
    pub docker: DockerSettings,
    /// Settings of the engine `gvisor`.
    pub gvisor: GvisorSettings,
    /// Default specification of a sandbox. Its values have been validated.
    pub template: SpecFile,
    /// Resources that are left to the machine itself.
    pub head_room: HeadRoomConfig,
    /// Default quotas of new keys.
    pub quotas: QuotasConfig,
    /// The log.
    pub log: LogConfig,
    /// Access to the metrics.
    pub metrics: MetricsConfig,
    /// The collector of traces, if any.
    pub otlp: Option<OtlpConfig>,
    /// Where events are posted to, if anywhere.
    pub webhooks: Option<WebhooksConfig>,
    /// The files of the audit log.
    pub audit: AuditConfig,
}

/// Listeners and connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Unix socket to listen on.
    pub socket: Option<PathBuf>,
    /// True if every process that can open the socket is the operator.
    pub operator_socket: bool,
    /// The domain of the sandboxes' host names.
    pub domain: Option<String>,
    /// Additional names of this server.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may use the server.
    pub allowed_origins: Vec<String>,
    /// Reverse proxies whose headers are trusted.
    pub trusted_proxies: Vec<IpAddr>,
    /// Certificate and key, if the addresses speak TLS.
    pub tls: Option<TlsConfig>,
    /// Maximum number of concurrent connections.
    pub max_connections: usize,
    /// Maximum number of concurrent connections from one address.
    pub max_connections_per_client: usize,
    /// Maximum number of requests on one connection.
    pub max_requests_per_connection: u64,
    /// Maximum number of concurrent streams of one key.
    pub max_streams_per_key: usize,
    /// Maximum number of wrong keys from one address in a minute.
    pub max_failed_attempts: u32,
    /// Time for requests to finish on shutdown.
    pub drain: Duration,
    /// Time after which a server that a command has started exits without a sandbox and a connection.
    pub linger: Duration,
    /// True if the documentation needs no key.
    pub open_docs: bool,
    /// True if E2B's clients are served as well.
    pub e2b: bool,
    /// True if the sandboxes of E2B's clients have an open network by default.
    pub e2b_internet: bool,
    /// True if everyone may reach the ports of their sandboxes, unless a sandbox refuses that.
    pub e2b_public_ports: bool,
}

/// The files of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

/// The store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The store's address, which may contain a password.
    pub url: Secret,
    /// Durability of an acknowledged write.
    pub durability: StoreDurability,
    /// File with the key that seals the store.
    pub key_file: PathBuf,
    /// This server's name in the store.
    pub keeper: String,
}

/// Durability of an acknowledged write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDurability {
    /// Survives the end of the server at any instant.
    Process,
    /// Survives a loss of power, too.
    Power,
}

/// Configuration of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxesConfig {
    /// Default engine.
    pub engine: EngineName,
    /// Further engines that a sandbox may name.
    pub engines: Vec<EngineName>,
    /// Template of a sandbox whose request names none.
    pub default_template: String,
    /// Default timeout of a sandbox.
    pub default_timeout: Duration,
    /// Maximum timeout that a request can set.
    pub max_timeout: Duration,
    /// Number of pre-warmed sandboxes.
    pub pool: usize,
    /// Number of pre-warmed sandboxes of each other recently used template.
    pub template_pool: usize,
    /// True if Python contexts are forked from a warm interpreter.
    pub warm_interpreters: bool,
    /// Modules that warm interpreters on the machine's own tree import in advance.
    pub warm_imports: Vec<String>,
    /// Maximum number of concurrent starts; `None` depends on the number of processors.
    pub max_starts: Option<usize>,
    /// Maximum number of requests waiting for a start.
    pub max_waiting: usize,
    /// Maximum number of sandboxes.
    pub max_sandboxes: u32,
    /// Maximum number of secrets that a tenant can store.
    pub max_secrets: u32,
    /// True if tenants may share the machine's own tree.
    pub share_host_tree: bool,
    /// True if keys without the role admin may make machines of templates that are none.
    pub machines: bool,
    /// Treatment of sandboxes on shutdown.
    pub on_exit: OnExit,
    /// Delegated control group in which groups are created.
    pub cgroup: Option<PathBuf>,
    /// Retention of the record of an ended sandbox.
    pub keep_gone: Duration,
    /// Retention of the result of a build step after its last use.
    pub keep_steps: Duration,
    /// Retention of an idempotency key.
    pub keep_idempotency: Duration,
    /// Host paths that may be mounted.
    pub mounts: MountsConfig,
    /// Default size and quotas of volumes.
    pub volumes: VolumesConfig,
    /// How long calls wait for approval, and how many.
    pub approvals: ApprovalsConfig,
    /// Ceiling for the networks of sandboxes, except those of administrators' keys.
    pub network_ceiling: NetworkCeiling,
    /// Ranges that are denied in every mode by default, but that network policies may allow.
    pub network_exceptions: Vec<Cidr>,
    /// Resolvers for names; if empty, those of the machine.
    pub network_resolvers: Vec<SocketAddr>,
    /// The proxy through which networks connect.
    pub network_proxy: Option<UpstreamProxy>,
    /// True if the proxy resolves names.
    pub network_proxy_resolves: bool,
    /// File of certificates that gateways trust in addition to those of the system.
    pub network_ca_file: Option<PathBuf>,
}

/// Calls that wait for approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApprovalsConfig {
    /// Time after which one is refused.
    pub timeout: Duration,
    /// Maximum number of one tenant's.
    pub max_pending: u32,
    /// Retention of the record after its end.
    pub keep: Duration,
}

/// Images of registries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImagesConfig {
    /// Registries from which images may be pulled.
    pub registries: Vec<ImageRegistry>,
    /// Maximum size of an image, compressed, in bytes.
    pub max_bytes: u64,
}

/// Host paths that may be mounted; each is absolute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountsConfig {
    /// Paths that may be mounted for reading.
    pub read: Vec<PathBuf>,
    /// Paths that may be mounted for writing.
    pub write: Vec<PathBuf>,
    /// Paths that are never mounted.
    pub forbidden: Vec<PathBuf>,
}

/// Default size and quotas of volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumesConfig {
    /// Default size of a volume, in bytes.
    pub size_bytes: u64,
    /// Maximum number of volumes of one tenant.
    pub max_count: u32,
    /// Maximum total size of one tenant's volumes, in bytes.
    pub max_bytes: u64,
}

/// Treatment of sandboxes on shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// They keep running, and the next server adopts them.
    Keep,
    /// They end.
    End,
}

/// Resources that are left to the machine itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRoomConfig {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Free space on the disk of the service's home, in bytes.
    pub disk_bytes: u64,
    /// Free inodes there, in percent.
    pub inodes_percent: u8,
    /// Processes and threads.
    pub pids: u64,
}

/// Quotas of all sandboxes of a key together. `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotasConfig {
    /// Number of concurrent sandboxes.
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

/// Configuration of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Format of a line.
    pub format: LogFormat,
    /// Lowest level that is logged.
    pub level: LogLevel,
    /// Log file; `None` is standard error.
    pub file: Option<PathBuf>,
    /// Size in bytes at which the file is rotated.
    pub rotate_bytes: u64,
}

/// Format of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Level of log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Errors.
    Error,
    /// Warnings and errors.
    Warn,
    /// Information, warnings and errors.
    Info,
}

/// Access to the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsConfig {
    /// True if they need no key.
    pub open: bool,
}

/// Configuration of the collector of traces.
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpConfig {
    /// Its address, such as `http://127.0.0.1:4318`, without a slash at the end.
    pub endpoint: String,
    /// Headers of each request to it.
    pub headers: Vec<(String, Secret)>,
    /// Share of the requests that are traced, from 0 to 1.
    pub sampling: f64,
    /// True if log lines are sent as well.
    pub logs: bool,
    /// Name of the service.
    pub service_name: String,
}

/// Where events are posted to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhooksConfig {
    /// The address: with TLS, unless its host is allowed without.
    pub url: String,
    /// The secret that signs messages.
    pub secret: WebhookSecret,
    /// Kinds of events, or beginnings of them up to a dot.
    pub events: Vec<String>,
    /// Hosts that need not have a public address, and those without TLS.
    pub allowed_hosts: Vec<ImageRegistry>,
}

/// Configuration of the audit log's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file, if any.
    pub file: Option<PathBuf>,
    /// Size at which the file is rotated, in bytes.
    pub rotate_bytes: u64,
    /// Number of files that are kept.
    pub keep: usize,
    /// Directory of archived records.
    pub archive_dir: PathBuf,
    /// Age at which records are archived, if they are.
    pub archive_after: Option<Duration>,
}
