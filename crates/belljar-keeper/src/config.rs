//! The operator's configuration of the keeper.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_model::{Cidr, ImageRegistry, NetworkCeiling, SpecFile, WebhookSecret};
use parking_lot::RwLock;

use crate::approval::ApprovalsConfig;
use crate::caller::Quotas;
use crate::images::ImagesConfig;
use crate::request::{DEFAULT_LIFETIME, MAX_LIFETIME};
use crate::templates::DEFAULT_TEMPLATE;
use crate::volumes::VolumesConfig;

/// The operator's configuration. No request can change it.
#[derive(Debug, Clone)]
pub struct KeeperConfig {
    /// Name of this keeper in the store, which several keepers may share.
    pub name: String,
    /// Directory of templates, uploads and volumes.
    pub state_dir: PathBuf,
    /// Specification of the template `default`.
    pub template: SpecFile,
    /// Name of the template of a sandbox whose request names none.
    pub default_template: String,
    /// Timeout of a sandbox created without one.
    pub default_lifetime: Duration,
    /// Maximum timeout of a sandbox.
    pub max_lifetime: Duration,
    /// Number of pre-warmed sandboxes of the template `default`; 0 disables all pools.
    pub pool: usize,
    /// Number of pre-warmed sandboxes of each other template used in the last ten minutes; 0 is none. At most 16 templates of at
    /// most 64 MiB have some.
    pub template_pool: usize,
    /// Whether Python contexts are forked from a warm interpreter, where the engine supports that.
    pub warm_interpreters: bool,
    /// Modules imported by warm interpreters on the machine's own tree.
    pub warm_imports: Vec<String>,
    /// Maximum number of concurrent starts; others wait for their turn.
    pub max_starts: usize,
    /// Maximum number of requests that wait for a start.
    pub max_waiting: usize,
    /// Maximum number of sandboxes of all keys.
    pub max_sandboxes: u32,
    /// Maximum number of secrets of one tenant.
    pub max_secrets: u32,
    /// Resources of the machine that must stay free for sandboxes to be started.
    pub head_room: HeadRoom,
    /// Time after which a sandbox is ended whose guest does not answer. Source: docs/spec.md; held by
    /// `lifecycle::silent_guest_ends_its_sandbox`.
    pub guest_timeout: Duration,
    /// Time for which the record of a gone sandbox is kept.
    pub keep_gone: Duration,
    /// Time for which the cached result of a build step is kept after its last use.
    pub keep_steps: Duration,
    /// Time for which an idempotency key is remembered.
    pub keep_idempotency: Duration,
    /// Age at which records of the audit log are archived, if they are.
    pub archive_after: Option<Duration>,
    /// Directory of archived records.
    pub archive_dir: PathBuf,
    /// Whether several tenants may share the machine's own tree read-only. They then share its page cache, a side channel; see
    /// docs/threat-model.md.
    pub share_host_tree: bool,
    /// Whether keys without the role admin may make machines of templates that are none.
    pub machines: bool,
    /// Network ceiling of sandboxes, except for administrators' keys.
    pub max_network: NetworkCeiling,
    /// Ranges of addresses that network policies may allow although they are not public. Engines have them from their start on.
    pub network_exceptions: Vec<Cidr>,
    /// Quotas of a key created without any.
    pub default_quotas: Quotas,
    /// How long calls wait for approval, and how many.
    pub approvals: ApprovalsConfig,
    /// Default size and quotas of volumes.
    pub volumes: VolumesConfig,
    /// Where images come from.
    pub images: ImagesConfig,
    /// Where events are sent to, if anywhere.
    pub webhooks: Option<WebhooksConfig>,
}

/// Where events are sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhooksConfig {
    /// The address: `https://…`, or `http://…` if the host is allowed without TLS.
    pub url: String,
    /// The secret that signs messages.
    pub secret: WebhookSecret,
    /// Kinds of events, or prefixes of them up to a dot.
    pub events: Vec<String>,
    /// Hosts that may have any address, and those without TLS.
    pub allowed_hosts: Vec<ImageRegistry>,
    /// Ranges of addresses that are allowed although they are not public.
    pub exceptions: Vec<Cidr>,
    /// PEM file of certificates that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
}

/// The current configuration.
#[derive(Debug)]
pub(crate) struct Current(RwLock<Arc<KeeperConfig>>);

impl Current {
    pub(crate) fn new(config: KeeperConfig) -> Self {
        Self(RwLock::new(Arc::new(config)))
    }

    /// Returns the current configuration. A step that needs several values calls this once.
    pub(crate) fn now(&self) -> Arc<KeeperConfig> {
        Arc::clone(&self.0.read())
    }

    /// Replaces the configuration, except for values that cannot change while the keeper runs.
    pub(crate) fn change(&self, config: KeeperConfig) -> Arc<KeeperConfig> {
        let mut current = self.0.write();
        let (name, state_dir) = (current.name.clone(), current.state_dir.clone());
        let (template, webhooks) = (current.template.clone(), current.webhooks.clone());
        let network_exceptions = current.network_exceptions.clone();
        *current =
            Arc::new(KeeperConfig { name, state_dir, template, webhooks, network_exceptions, ..config });
        Arc::clone(&current)
    }
}

/// Resources that must stay free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRoom {
    /// Available memory, in bytes.
    pub memory_bytes: u64,
    /// Free space on the disk of the state directory, in bytes.
    pub disk_bytes: u64,
    /// Free inodes on that disk, in percent.
    pub inodes_percent: u8,
    /// Further processes and threads that the kernel allows.
    pub pids: u64,
}

impl Default for HeadRoom {
    /// 512 MiB of memory, 1 GiB of disk, 5 % of the inodes, 1000 processes.
    fn default() -> Self {
        Self { memory_bytes: 512 << 20, disk_bytes: 1 << 30, inodes_percent: 5, pids: 1000 }
    }
}

impl KeeperConfig {
    /// Returns the default configuration, with its files below `state_dir`.
    #[must_use]
    pub fn new(state_dir: PathBuf) -> Self {
        Self {
            name: "local".to_owned(),
            archive_after: None,
            archive_dir: state_dir.join("audit"),
            state_dir,
            template: SpecFile::default(),
            default_template: DEFAULT_TEMPLATE.to_owned(),
            default_lifetime: DEFAULT_LIFETIME,
            max_lifetime: MAX_LIFETIME,
            pool: 4,
            template_pool: 1,
            warm_interpreters: true,
            warm_imports: Vec::new(),
            max_starts: std::thread::available_parallelism().map_or(4, |cores| cores.get() * 2),
            max_waiting: 1000,
            max_sandboxes: 2000,
            max_secrets: 1000,
            head_room: HeadRoom::default(),
            guest_timeout: Duration::from_secs(60),
            keep_gone: Duration::from_secs(7 * 24 * 3600),
            keep_steps: Duration::from_secs(30 * 24 * 3600),
            keep_idempotency: Duration::from_secs(24 * 3600),
            share_host_tree: false,
            machines: false,
            max_network: NetworkCeiling::default(),
            network_exceptions: Vec::new(),
            default_quotas: Quotas::default(),
            approvals: ApprovalsConfig::default(),
            volumes: VolumesConfig::default(),
            images: ImagesConfig::default(),
            webhooks: None,
        }
    }
}
