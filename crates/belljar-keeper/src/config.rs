//! How the operator wants the service to be.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belljar_model::{NetworkCeiling, SpecFile};
use parking_lot::RwLock;

use crate::caller::Quotas;
use crate::request::{DEFAULT_LIFETIME, MAX_LIFETIME};
use crate::volumes::VolumesConfig;

/// How the operator wants the service to be. No request can change any of it.
#[derive(Debug, Clone)]
pub struct KeeperConfig {
    /// This keeper's name in the store, which several may share.
    pub name: String,
    /// Where the files of templates are kept.
    pub state_dir: PathBuf,
    /// What a sandbox is like of which nothing else is said: the template `default`.
    pub template: SpecFile,
    /// The life of a sandbox for which none was asked.
    pub default_lifetime: Duration,
    /// The longest life that can be asked for.
    pub max_lifetime: Duration,
    /// Sandboxes that are made ahead of the template `default`; 0 is none, of other templates neither.
    pub pool: usize,
    /// Sandboxes that are made ahead of each other template that was used in the last ten minutes; 0 is none. At most 16
    /// templates have some, none of more than 64 MiB.
    pub template_pool: usize,
    /// Whether contexts of Python are forked from an interpreter that is ready, where the engine can do that.
    pub warm_interpreters: bool,
    /// Modules that those on the machine's own tree have imported.
    pub warm_imports: Vec<String>,
    /// Sandboxes that start at once; the others wait for their turn.
    pub max_starts: usize,
    /// Requests that may wait for a start.
    pub max_waiting: usize,
    /// Sandboxes at once, of all keys together.
    pub max_sandboxes: u32,
    /// Secrets of one tenant.
    pub max_secrets: u32,
    /// What of the machine no sandbox is started into.
    pub head_room: HeadRoom,
    /// How long the record of a sandbox that is gone is kept.
    pub keep_gone: Duration,
    /// How long what came of a step of a template's build is kept after its last use.
    pub keep_steps: Duration,
    /// How long an idempotency key is remembered.
    pub keep_idempotency: Duration,
    /// Whether several tenants may share the machine's own tree read-only. They share its page cache then, which is a way
    /// to learn about each other; see docs/threat-model.md.
    pub share_host_tree: bool,
    /// The most that the network of a sandbox may be, but for administrators' keys.
    pub most_network: NetworkCeiling,
    /// The quotas of a key that is made without naming any.
    pub default_quotas: Quotas,
    /// Default size and quotas of volumes.
    pub volumes: VolumesConfig,
}

/// The configuration as it is now.
#[derive(Debug)]
pub(crate) struct Current(RwLock<Arc<KeeperConfig>>);

impl Current {
    pub(crate) fn new(config: KeeperConfig) -> Self {
        Self(RwLock::new(Arc::new(config)))
    }

    /// What holds now. A step that needs several of its values takes it once.
    pub(crate) fn now(&self) -> Arc<KeeperConfig> {
        Arc::clone(&self.0.read())
    }

    /// Takes a new one, but for what cannot change while sandboxes are there.
    pub(crate) fn change(&self, config: KeeperConfig) -> Arc<KeeperConfig> {
        let mut current = self.0.write();
        let (name, state_dir) = (current.name.clone(), current.state_dir.clone());
        let template = current.template.clone();
        *current = Arc::new(KeeperConfig { name, state_dir, template, ..config });
        Arc::clone(&current)
    }
}

/// What is left to the machine itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRoom {
    /// Memory that must stay available, in bytes.
    pub memory_bytes: u64,
    /// Room that must stay free on the disk of the state directory, in bytes.
    pub disk_bytes: u64,
    /// Share of its inodes that must stay free, in percent.
    pub inodes_percent: u8,
    /// Processes and threads that must stay possible.
    pub pids: u64,
}

impl Default for HeadRoom {
    /// 512 MiB of memory, 1 GiB of disk, 5 % of the inodes, 1000 processes.
    fn default() -> Self {
        Self { memory_bytes: 512 << 20, disk_bytes: 1 << 30, inodes_percent: 5, pids: 1000 }
    }
}

impl KeeperConfig {
    /// The default set-up, with its files below `state_dir`.
    #[must_use]
    pub fn new(state_dir: PathBuf) -> Self {
        Self {
            name: "local".to_owned(),
            state_dir,
            template: SpecFile::default(),
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
            keep_gone: Duration::from_secs(7 * 24 * 3600),
            keep_steps: Duration::from_secs(30 * 24 * 3600),
            keep_idempotency: Duration::from_secs(24 * 3600),
            share_host_tree: false,
            most_network: NetworkCeiling::default(),
            default_quotas: Quotas::default(),
            volumes: VolumesConfig::default(),
        }
    }
}
