//! The keeper's start and shutdown. At the start, the records in the store are reconciled with the sandboxes that exist:
//!
//! | record | exists | action |
//! |---|---|---|
//! | `creating` | yes or no | rolled back: its creation was never acknowledged |
//! | `running` | yes | adopted, and thawed if it is frozen |
//! | `paused` | yes | adopted, and frozen if it runs |
//! | `running`, `paused` | no | recorded as gone: it ended while no server was running |
//! | `stopping` | yes or no | stopped |
//! | none | yes | removed: it was pre-warmed, or its creation was interrupted before it was recorded |

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_engine::{Engine, EngineError, Engines, Sandbox, Survivor};
use belljar_model::{LimitsChange, LimitsGrade, NetworkMode, SandboxId, SandboxSpec, SandboxState};
use belljar_store::{AuditFilter, AuditLog, PortRow, PortVisibility, SandboxRow, Store};
use futures::StreamExt as _;
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::approval::Waiters;
use crate::approvals::ends::UnrecordedEnds;
use crate::build_queue::BuildQueue;
use crate::builds::Builds;
use crate::code_step::START_BYTES;
use crate::code_steps::{SERVER_ENDED, Steps};
use crate::collect::Archives;
use crate::config::{Current, KeeperConfig};
use crate::create::fill_random;
use crate::denials::Denials;
use crate::entry::{Entry, until};
use crate::error::KeeperError;
use crate::events::Events;
use crate::exits::ASK_AGAIN_AFTER;
use crate::exports::Exports;
use crate::fair::Crowds;
use crate::gate::Gate;
use crate::head_room::Purpose;
use crate::keeper::{Inner, Keeper, Result};
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::outputs::Outputs;
use crate::pool::Pools;
use crate::quota::UsageLedger;
use crate::request::{Settings, resolve};
use crate::session::Sessions;
use crate::templates::default_origin;
use crate::token::Tokens;
use crate::unsettled::Unsettled;
use crate::uploads::Links;
use crate::volumes::Volumes;
use crate::warm::RecentTenants;

/// Time that requests in flight get to finish on shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of removing old records and counting processor time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of guests that are asked at a time which commands go on in their sandboxes.
const MAX_ASKED: usize = 8;

/// What happens to the sandboxes on shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnShutdown {
    /// They keep running, for the next server.
    Keep,
    /// They are killed.
    Kill,
}

impl Keeper {
    /// Starts the keeper: adopts live sandboxes, finishes interrupted operations, and fills the pools.
    ///
    /// # Errors
    /// Fails if the store or the engine cannot be used, or the template's spec is not allowed.
    pub async fn open(config: KeeperConfig, store: Store, audit: AuditLog, engines: Engines) -> Result<Self> {
        let secret = store.server_secret().await?;
        let spec = resolve(&engines, LimitsGrade::default(), &config.template, Default::default())?;
        let gate = Gate::new(config.max_starts, config.max_waiting);
        let (size, template_size) = pool_sizes(&config);
        let pools = Pools::new(engines.clone(), default_origin(&config), spec, size, template_size);
        let mut start = [0; START_BYTES];
        fill_random(&mut start)?;
        let keeper = Self::assemble(Inner {
            events: Arc::new(Events::new()?),
            gate,
            screenings: Gate::of_screenings(),
            screeners: Arc::default(),
            exports: Exports::default(),
            pools,
            keys: Keys::default(),
            sessions: Sessions::default(),
            denials: Denials::default(),
            tokens: Tokens::new(secret),
            outputs: Outputs::default(),
            ledger: UsageLedger::default(),
            metrics: Metrics::new(),
            archives: Archives::default(),
            recent_tenants: RecentTenants::default(),
            builds: Builds::default(),
            links: Links::default(),
            volumes: Volumes::default(),
            waiters: Waiters::default(),
            steps: Steps::new(start),
            webhooks: TaskTracker::new(),
            webhooks_stopping: CancellationToken::new(),
            build_queue: BuildQueue::default(),
            building: Arc::default(),
            storing_tool: tokio::sync::Mutex::default(),
            unsettled: Unsettled::default(),
            unrecorded_ends: UnrecordedEnds::default(),
            making_room: tokio::sync::Mutex::default(),
            closing: AtomicBool::new(false),
            crowds: Crowds::default(),
            tasks: TaskTracker::new(),
            followers: TaskTracker::new(),
            shares: Mutex::new(HashMap::new()),
            entries: RwLock::default(),
            config: Current::new(config),
            store,
            audit,
            engines,
        });
        // Before anything that publishes events.
        keeper.spawn_webhooks()?;
        keeper.sweep_archives().await?;
        keeper.sweep_imports().await?;
        keeper.sweep_disks().await?;
        keeper.sweep_uploads(false, false)?;
        keeper.recover_volumes().await?;
        keeper.reconcile().await?;
        keeper.release_holds().await;
        keeper.recover_approvals().await?;
        keeper.end_builds().await;
        keeper.sweep_layers(false).await?;
        keeper.look_for_tenants().await?;
        keeper.register_own_metrics();
        keeper.spawn_pool_filling();
        keeper.spawn_key_touching();
        keeper.spawn_denial_recording();
        keeper.spawn_sweeping();
        keeper.spawn_archiving();
        keeper.spawn_fair_shares();
        Ok(keeper)
    }

    /// Changes timeouts, limits, quotas and pool sizes. Existing sandboxes stay as they are, and so do the keeper's name, its
    /// directory and the default template.
    pub fn reconfigure(&self, config: KeeperConfig) {
        let inner = &self.inner;
        let config = inner.config.change(config);
        inner.gate.resize(config.max_starts, config.max_waiting);
        let (size, template_size) = pool_sizes(&config);
        inner.pools.resize(size, template_size);
    }

    /// Returns the timeout of a sandbox created without one.
    #[must_use]
    pub fn default_lifetime(&self) -> std::time::Duration {
        self.inner.config.now().default_lifetime
    }

    /// Returns the maximum timeout of a sandbox.
    #[must_use]
    pub fn max_lifetime(&self) -> std::time::Duration {
        self.inner.config.now().max_lifetime
    }

    /// Returns the quotas of a key created without any.
    #[must_use]
    pub fn default_quotas(&self) -> crate::caller::Quotas {
        self.inner.config.now().default_quotas.clone()
    }

    async fn reconcile(&self) -> Result<()> {
        let inner = &self.inner;
        let mut survivors = HashMap::new();
        for engine in inner.engines.all() {
            let found = engine.survivors().await?.into_iter();
            survivors.extend(found.map(|survivor| (survivor.id.clone(), (Arc::clone(engine), survivor))));
        }
        let rows = inner.store.sandboxes().list_live(&inner.config.now().name).await?;
        // Decisions of gateways after this time have not been recorded.
        let last = inner.audit.tail(&AuditFilter::default(), None, 1).await?.pop();
        let recorded = last.map_or(Timestamp::UNIX_EPOCH, |record| record.at);
        let mut ports: HashMap<SandboxId, Vec<PortRow>> = HashMap::new();
        for port in inner.store.ports().list_live(&inner.config.now().name).await? {
            ports.entry(port.sandbox.clone()).or_default().push(port);
        }
        let mut adoptions = JoinSet::new();
        for row in rows {
            let found = Found {
                survivor: survivors.remove(&row.id),
                ports: ports.remove(&row.id).unwrap_or_default(),
                recorded,
            };
            let keeper = self.clone();
            adoptions.spawn(async move {
                let id = row.id.clone();
                (id, keeper.adopt(row, found).await)
            });
        }
        // A sandbox that cannot be adopted must not prevent the adoption of others.
        for (id, done) in adoptions.join_all().await {
            if let Err(error) = done {
                tracing::error!(sandbox = %id, error = %crate::error::chain(&error), "cannot take over a sandbox");
            }
        }
        let unknown = survivors.into_values().filter(|(_, survivor)| survivor.ended.is_none());
        futures::future::join_all(unknown.map(remove_unknown)).await;
        tokio::spawn(watch_commands(self.entries()));
        self.resolve_claims().await
    }

    async fn adopt(&self, row: SandboxRow, found: Found) -> Result<()> {
        let Found { survivor, ports, recorded } = found;
        let (spec, settings) = read_row(&row)?;
        let ended = survivor.as_ref().and_then(|(_, survivor)| survivor.ended.clone());
        let sandbox = match &survivor {
            Some((engine, survivor)) if survivor.ended.is_none() => engine.adopt(&survivor.id).await?,
            _ => None,
        };
        let sandbox = sandbox.map(Arc::new);
        let spec = Arc::new(spec);
        let state = row.state;
        self.inner.metrics.record_transition(SandboxState::Gone, state);
        let entry = Entry::new(row, Arc::clone(&spec), settings, sandbox.clone(), &self.inner.events);
        // An earlier server may have stored some.
        entry.answers.store(1, Ordering::Relaxed);
        self.put(&entry);
        self.inner.crowds.grew(&entry);
        match (state, sandbox) {
            (SandboxState::Running | SandboxState::Paused, Some(sandbox)) => {
                let share = self.inner.ledger.adopt(&entry.key, &entry.tenant, &spec);
                self.inner.keep_share(&entry.id, share);
                self.hold_volumes_of(&entry);
                entry.live().has_unwatched = true;
                for port in ports {
                    entry.live().ports.insert(port.port, port.visibility == PortVisibility::Public);
                }
                self.apply_record(&entry, &sandbox).await?;
                entry.note("adopted", None, "by a new server");
                self.guard(&entry);
                // Also if its policy is `disabled` now: it may have been created with another.
                self.follow_network(&entry, recorded);
                Ok(())
            }
            (SandboxState::Running | SandboxState::Paused, None) => {
                let reason = ended.unwrap_or_else(|| "it ended while no server was running".to_owned());
                self.end(&entry, &reason).await
            }
            (SandboxState::Creating, _) => {
                self.end(&entry, "the server ended while it was being created").await
            }
            (SandboxState::Stopping, _) => self.end(&entry, "").await,
            (SandboxState::Gone, _) => Ok(()),
        }
    }

    /// Applies its record to an adopted sandbox.
    async fn apply_record(&self, entry: &Arc<Entry>, sandbox: &Sandbox) -> Result<()> {
        self.apply_limits(entry, sandbox).await;
        self.apply_network(entry, sandbox).await;
        if entry.state() == SandboxState::Paused {
            sandbox.set_deadline(None).await?;
            sandbox.freeze().await?;
            return Ok(());
        }
        self.set_deadlines(entry, sandbox).await?;
        let over = entry.live().row.deadline_at.is_some_and(|at| until(at).is_zero());
        if !over {
            sandbox.thaw().await?;
        }
        Ok(())
    }

    /// Sets the recorded limits: an interrupted change may have reached the control groups but not the record.
    async fn apply_limits(&self, entry: &Arc<Entry>, sandbox: &Sandbox) {
        let limits = entry.live().spec.limits;
        let (memory, cpus, pids) = (Some(limits.memory), Some(limits.cpus), Some(limits.pids));
        match sandbox.set_limits(&LimitsChange { memory, cpus, pids, ..LimitsChange::default() }).await {
            Ok(()) | Err(EngineError::Unsupported { .. }) => {}
            Err(error) => {
                // It uses more than its record allows, and keeps the limits of the interrupted change.
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot set the recorded limits");
            }
        }
    }

    /// Sets the recorded network policy, for the same reason.
    async fn apply_network(&self, entry: &Arc<Entry>, sandbox: &Sandbox) {
        let policy = entry.live().spec.network.clone();
        let set = match self.fill_secrets(&entry.tenant, &policy).await {
            Ok(policy) => sandbox.set_network(&policy).await.map_err(KeeperError::from),
            Err(error) => Err(error),
        };
        match set {
            Err(KeeperError::Engine(EngineError::NoNetwork)) if policy.mode() != NetworkMode::Disabled => {
                entry.note("adopted", None, "without its network, which could not be led to a gateway again");
                tracing::warn!(sandbox = %entry.id, "its network cannot be led to a gateway again; it has none until it ends");
            }
            // A launcher of an earlier version cannot have changed it.
            Ok(()) | Err(KeeperError::Engine(EngineError::NoNetwork | EngineError::Unsupported { .. })) => {}
            Err(error) => {
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot set the recorded network policy");
            }
        }
    }

    /// Spawns a task that removes old records and counts processor time.
    fn spawn_sweeping(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                tokio::time::sleep(SWEEP_INTERVAL).await;
                if let Err(error) = keeper.sweep().await {
                    tracing::warn!(error = %crate::error::chain(&error), "cannot remove old records");
                }
            }
        });
    }

    async fn sweep(&self) -> Result<()> {
        let (store, config) = (&self.inner.store, self.inner.config.now());
        let before = |age: Duration| Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN);
        store.sandboxes().forget_before(before(config.keep_gone)).await?;
        store.idempotency().forget_expired(Timestamp::now()).await?;
        self.inner.unsettled.forget_expired(Timestamp::now());
        let recorded = self.inner.unrecorded_ends.record_again(store).await.map_err(KeeperError::from);
        for done in [recorded, self.close_overdue_approvals().await, self.release_ended_holds().await] {
            if let Err(error) = done {
                tracing::warn!(error = %crate::error::chain(&error), "cannot end what an approval has left");
            }
        }
        store.approvals().forget_before(before(config.approvals.keep)).await?;
        self.sweep_sessions().await?;
        self.sweep_uploads(true, false)?;
        store.shrink().await?;
        store.restore_reserve().await;
        for entry in self.entries() {
            let sandbox = entry.live().sandbox.clone();
            if let Some(sandbox) = sandbox.filter(|_| entry.state() == SandboxState::Running) {
                let usage = sandbox.usage().await;
                self.inner.ledger.record_cpu(&entry, usage.cpu.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Stops the sandboxes in which templates were built: no other server continues a build.
    async fn end_builds(&self) {
        for entry in self.entries().into_iter().filter(|entry| entry.live().settings.for_build) {
            if let Err(error) = self.end(&entry, "the server that built a template in it has ended").await {
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot end a build");
            }
        }
    }

    /// Shuts the keeper and the audit log down. When this returns, the records of all requests in flight are written, except of those
    /// that take longer than [`DRAIN_TIMEOUT`]. Later requests are refused.
    ///
    /// # Errors
    /// Fails if a sandbox could not be stopped or the store failed. The other sandboxes have been stopped anyway.
    pub async fn close(&self, on_shutdown: OnShutdown) -> Result<()> {
        self.inner.closing.store(true, Ordering::Relaxed);
        self.inner.build_queue.cancel_all();
        self.inner.crowds.wake();
        self.inner.waiters.wake_all();
        self.inner.steps.close_all(SERVER_ENDED);
        self.end_builds().await;
        self.end_volume_contents().await;
        self.inner.tasks.close();
        if tokio::time::timeout(DRAIN_TIMEOUT, self.inner.tasks.wait()).await.is_err() {
            tracing::warn!(requests = self.inner.tasks.len(), "requests in flight are aborted");
        }
        let mut done = Ok(());
        for sandbox in self.inner.pools.drain().await {
            done = done.and(sandbox.stop().await.map_err(KeeperError::from));
        }
        if on_shutdown == OnShutdown::Kill {
            for entry in self.entries() {
                let ended = match self.end(&entry, "the server ended").await {
                    Err(KeeperError::TakenOver { .. }) => Ok(()),
                    ended => ended,
                };
                done = done.and(ended);
            }
        }
        if on_shutdown == OnShutdown::Kill {
            self.inner.followers.close();
            if tokio::time::timeout(DRAIN_TIMEOUT, self.inner.followers.wait()).await.is_err() {
                tracing::warn!("the last decisions of gateways are not recorded");
            }
        }
        self.end_webhooks().await;
        self.write_touched().await;
        self.record_denials().await;
        self.inner.denials.wake();
        self.inner.audit.close().await;
        done
    }

    /// Checks that sandboxes can be created now.
    ///
    /// # Errors
    /// Returns the reason why not.
    pub async fn ready(&self) -> Result<()> {
        if self.inner.closing.load(Ordering::Relaxed) {
            return Err(KeeperError::ShuttingDown);
        }
        self.inner.store.ping().await?;
        self.inner.config.now().capacity().check(Purpose::Start)
    }
}

/// Returns the sizes of the default pool and of each other one.
fn pool_sizes(config: &KeeperConfig) -> (usize, usize) {
    if config.pool > 0 { (config.pool, config.template_pool) } else { (0, 0) }
}

/// What is known of a recorded sandbox at the start.
struct Found {
    survivor: Option<EngineSurvivor>,
    ports: Vec<PortRow>,
    /// Time after which no decisions of gateways have been recorded.
    recorded: Timestamp,
}

/// A surviving sandbox and its engine.
type EngineSurvivor = (Arc<dyn Engine>, Survivor);

/// Watches the commands that go on in sandboxes which this server has taken over. A paused one is asked when it is resumed.
async fn watch_commands(mut adopted: Vec<Arc<Entry>>) {
    loop {
        adopted.retain(|entry| entry.state() == SandboxState::Running && entry.live().has_unwatched);
        if adopted.is_empty() {
            return;
        }
        let asking = futures::stream::iter(&adopted);
        asking.for_each_concurrent(MAX_ASKED, async |entry| entry.watch_running().await).await;
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
    }
}

async fn remove_unknown((engine, survivor): EngineSurvivor) {
    let id = survivor.id;
    let removed = match engine.adopt(&id).await {
        Ok(Some(sandbox)) => sandbox.stop().await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::error!(sandbox = %id, error = %crate::error::chain(&error), "cannot remove a sandbox without a record");
    }
}

/// Parses the specification and the settings in a record.
pub(crate) fn read_row(row: &SandboxRow) -> Result<(SandboxSpec, Settings)> {
    let record_error = |what: &'static str| {
        move |source| KeeperError::Record { what: format!("{what} of sandbox {}", row.id), source }
    };
    let spec = serde_json::from_str(&row.spec).map_err(record_error("spec"))?;
    let settings = serde_json::from_str(&row.settings).map_err(record_error("settings"))?;
    Ok((spec, settings))
}
