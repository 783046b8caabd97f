//! Converts the configuration to the options of the server's parts.

use std::path::PathBuf;

use belljar_api::ApiConfig;
use belljar_config::{OnExit, StoreDurability};
use belljar_engine::{EngineSetup, Engines, Finding, Offer, THIS_COMMAND};
use belljar_keeper::{
    ApprovalsConfig, HeadRoom, ImagesConfig, KeeperConfig, OnShutdown, Quotas, VolumesConfig, WebhooksConfig,
};
use belljar_model::{ModelError, MountPolicy, NetworkSetup};
use belljar_store::{AuditOptions, Durability, KeyFile, MirrorOptions, ServiceWall, StoreError, StoreUrl};

use crate::config::Loaded;
use crate::engines;
use crate::message::Quit;
use crate::policy;

/// Error from configuring a part of the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    /// The store's address is invalid.
    #[error("{origin}: store.url cannot be used")]
    StoreUrl { origin: String, source: StoreError },
    /// A path is not allowed in the mount policy.
    #[error("{origin}: {key} cannot be used")]
    Mounts { origin: String, key: &'static str, source: Box<ModelError> },
}

/// Returns the address of the store.
pub(crate) fn store_url(loaded: &Loaded) -> Result<StoreUrl, PartError> {
    let url = loaded.config.store.url.reveal().parse();
    url.map_err(|source| PartError::StoreUrl {
        origin: loaded.layers.origin("store.url").to_string(),
        source,
    })
}

/// Returns the durability of the store's ordinary rows.
pub(crate) fn durability(loaded: &Loaded) -> Durability {
    match loaded.config.store.durability {
        StoreDurability::Process => Durability::Process,
        StoreDurability::Power => Durability::Power,
    }
}

/// Returns the key that seals the store's secrets.
pub(crate) fn store_key(loaded: &Loaded) -> KeyFile {
    KeyFile::at(loaded.config.store.key_file.clone())
}

/// Returns the options of the audit log.
pub(crate) fn audit(loaded: &Loaded) -> AuditOptions {
    let audit = &loaded.config.audit;
    let mirror = audit.file.as_ref().map(|path| MirrorOptions {
        path: path.clone(),
        max_bytes: audit.rotate_bytes,
        keep: audit.keep,
    });
    AuditOptions { mirror, ..AuditOptions::default() }
}

/// Returns the operator's mount policy. Secrets of the machine's users and the service's own files are always forbidden.
pub(crate) fn mount_policy(loaded: &Loaded) -> Result<MountPolicy, Quit> {
    let mounts = &loaded.config.sandboxes.mounts;
    let mut policy = MountPolicy::new(&policy::homes());
    let refused = |key: &'static str| {
        let origin = loaded.layers.origin(key).to_string();
        move |source| PartError::Mounts { origin, key, source: Box::new(source) }
    };
    for path in &mounts.read {
        policy.allow_read(policy::resolved(path.clone())).map_err(refused("sandboxes.mounts.read"))?;
    }
    for path in &mounts.write {
        policy.allow_write(policy::resolved(path.clone())).map_err(refused("sandboxes.mounts.write"))?;
    }
    for path in &mounts.forbidden {
        policy.forbid(path.clone()).map_err(refused("sandboxes.mounts.forbidden"))?;
    }
    policy.forbid(loaded.home.clone())?;
    policy::forbid_what_is_always(&mut policy)?;
    Ok(policy)
}

/// Returns every engine of this version. Those that are not offered for new sandboxes serve those of an earlier server.
pub(crate) fn engines(loaded: &Loaded) -> Result<Engines, Quit> {
    let sandboxes = &loaded.config.sandboxes;
    let setup = setup(loaded)?;
    let mut kinds = engines::ALL;
    kinds.sort_by_key(|kind| kind.name() != sandboxes.engine);
    let grade = loaded.config.template.grade.as_deref().and_then(|grade| grade.parse().ok());
    Ok(kinds.into_iter().fold(Engines::default(), |engines, kind| {
        let is_offered = kind.name() == sandboxes.engine || sandboxes.engines.contains(&kind.name());
        if !is_offered {
            return engines.with(kind.open(setup.clone()), Offer::Retired);
        }
        let mut obstacles = kind.obstacles(setup.clone(), grade.unwrap_or_default());
        for fix in obstacles.iter_mut().filter_map(|found| found.fix.as_mut()) {
            *fix = fix.replace(THIS_COMMAND, "belljar serve");
        }
        engines.with(kind.open(setup.clone()), Offer::Offered).with_obstacles(kind.name(), obstacles)
    }))
}

fn setup(loaded: &Loaded) -> Result<EngineSetup, Quit> {
    let sandboxes = &loaded.config.sandboxes;
    Ok(EngineSetup {
        mount_policy: mount_policy(loaded)?,
        cgroup_base: sandboxes.cgroup.clone(),
        network: NetworkSetup {
            exceptions: sandboxes.network_exceptions.clone(),
            resolvers: sandboxes.network_resolvers.clone(),
            proxy: sandboxes.network_proxy.clone(),
            proxy_resolves: sandboxes.network_proxy_resolves,
            ca_file: sandboxes.network_ca_file.clone(),
        },
        run_dir: Some(run_dir(loaded)),
        docker: loaded.config.docker.clone(),
        gvisor: loaded.config.gvisor.clone(),
    })
}

/// Warns if this machine cannot create the sandboxes that a request gets by default.
pub(crate) fn warn_of_obstacles(engines: &Engines) {
    let default = engines.default_engine().map(|engine| engine.name());
    for Finding { name, detail, fix, .. } in default.map_or(&[][..], |name| engines.obstacles(name)) {
        tracing::warn!(missing = name, detail, fix, "no sandbox can be created here");
    }
}

/// Returns the directory of the launcher and its log.
fn run_dir(loaded: &Loaded) -> PathBuf {
    loaded.home.join("launcher")
}

/// Returns the configuration of the keeper.
pub(crate) fn keeper(loaded: &Loaded) -> KeeperConfig {
    let config = &loaded.config;
    let sandboxes = &config.sandboxes;
    let default = KeeperConfig::new(loaded.home.clone());
    KeeperConfig {
        name: config.store.keeper.clone(),
        template: config.template.clone(),
        default_template: sandboxes.default_template.clone(),
        default_lifetime: sandboxes.default_timeout,
        max_lifetime: sandboxes.max_timeout,
        pool: sandboxes.pool,
        template_pool: sandboxes.template_pool,
        warm_interpreters: sandboxes.warm_interpreters,
        warm_imports: sandboxes.warm_imports.clone(),
        max_starts: sandboxes.max_starts.unwrap_or(default.max_starts),
        max_waiting: sandboxes.max_waiting,
        max_sandboxes: sandboxes.max_sandboxes,
        max_secrets: sandboxes.max_secrets,
        head_room: HeadRoom {
            memory_bytes: config.head_room.memory_bytes,
            disk_bytes: config.head_room.disk_bytes,
            inodes_percent: config.head_room.inodes_percent,
            pids: config.head_room.pids,
        },
        keep_gone: sandboxes.keep_gone,
        archive_after: config.audit.archive_after,
        archive_dir: config.audit.archive_dir.clone(),
        keep_steps: sandboxes.keep_steps,
        keep_idempotency: sandboxes.keep_idempotency,
        share_host_tree: sandboxes.share_host_tree,
        machines: sandboxes.machines,
        max_network: sandboxes.network_ceiling.clone(),
        network_exceptions: sandboxes.network_exceptions.clone(),
        default_quotas: Quotas {
            sandboxes: config.quotas.sandboxes,
            memory_bytes: config.quotas.memory_bytes,
            disk_bytes: config.quotas.disk_bytes,
            cpu_seconds_per_hour: config.quotas.cpu_seconds_per_hour,
            executions_per_minute: config.quotas.executions_per_minute,
            ..Quotas::default()
        },
        volumes: VolumesConfig {
            size_bytes: sandboxes.volumes.size_bytes,
            max_count: sandboxes.volumes.max_count,
            max_bytes: sandboxes.volumes.max_bytes,
        },
        approvals: ApprovalsConfig {
            timeout: sandboxes.approvals.timeout,
            max_pending: sandboxes.approvals.max_pending,
            keep: sandboxes.approvals.keep,
        },
        images: ImagesConfig {
            registries: config.images.registries.clone(),
            exceptions: sandboxes.network_exceptions.clone(),
            ca_file: sandboxes.network_ca_file.clone(),
            max_bytes: config.images.max_bytes,
        },
        webhooks: config.webhooks.clone().map(|webhooks| WebhooksConfig {
            url: webhooks.url,
            secret: webhooks.secret,
            events: webhooks.events,
            allowed_hosts: webhooks.allowed_hosts,
            exceptions: sandboxes.network_exceptions.clone(),
            ca_file: sandboxes.network_ca_file.clone(),
        }),
        ..default
    }
}

/// Returns the configuration of the API.
pub(crate) fn api(loaded: &Loaded) -> ApiConfig {
    let server = &loaded.config.server;
    ApiConfig {
        domain: server.domain.clone(),
        hosts: server.allowed_hosts.clone(),
        origins: server.allowed_origins.clone(),
        trusted_proxies: server.trusted_proxies.clone(),
        open_metrics: loaded.config.metrics.open,
        open_docs: server.open_docs,
        e2b: server.e2b,
        e2b_internet: server.e2b_internet,
        e2b_public_ports: server.e2b_public_ports,
        operator_socket: server.operator_socket,
        max_connections: server.max_connections.min(connections_by_descriptors()),
        max_connections_per_client: server.max_connections_per_client,
        max_requests_per_connection: server.max_requests_per_connection,
        max_streams_per_key: server.max_streams_per_key,
        max_failed_attempts: server.max_failed_attempts,
        drain: server.drain,
    }
}

/// Returns the maximum number of connections for the process's limit of descriptors: half of it. The other half is for sandboxes,
/// files and the launcher, without which nothing could be ended any more.
fn connections_by_descriptors() -> usize {
    if ServiceWall::Descriptors.is_down() {
        return usize::MAX;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit / 2).unwrap_or(usize::MAX).max(1))
}

/// Returns what happens to sandboxes when the server stops.
pub(crate) fn on_shutdown(loaded: &Loaded) -> OnShutdown {
    match loaded.config.sandboxes.on_exit {
        OnExit::Keep => OnShutdown::Keep,
        OnExit::End => OnShutdown::Kill,
    }
}
