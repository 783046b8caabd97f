//! The keeper's start and end. At the start what is written and what is there are made to agree:
//!
//! | written | there | what is done |
//! |---|---|---|
//! | `creating` | yes or no | it is undone: nobody was told of it |
//! | `running` | yes | it is taken over, and thawed if it stands still |
//! | `paused` | yes | it is taken over, and frozen if it runs |
//! | `running`, `paused` | no | it is gone: it ended while nobody looked |
//! | `stopping` | yes or no | it is ended, as it was to be |
//! | nothing | yes | it is removed: it was made ahead, or its making was cut off before it was written |

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_engine::{Engine, EngineError, Engines, Sandbox, Survivor};
use belljar_model::{LimitsChange, SandboxId, SandboxSpec, SandboxState};
use belljar_store::{AuditFilter, AuditLog, PortVisibility, SandboxRow, Store};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use crate::builds::Builds;
use crate::collect::Archives;
use crate::config::{Current, KeeperConfig};
use crate::denials::Denials;
use crate::entry::{Entry, until};
use crate::error::KeeperError;
use crate::events::Events;
use crate::gate::Gate;
use crate::keeper::{Inner, Keeper, Result};
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::outputs::Outputs;
use crate::pool::Pools;
use crate::quota::Spent;
use crate::request::{Settings, resolve};
use crate::templates::default_origin;
use crate::token::Tokens;
use crate::uploads::Links;
use crate::volumes::Volumes;
use crate::warm::Coders;

/// How long requests whose callers are gone may go on once the keeper is closed.
const FINISH: Duration = Duration::from_secs(5);

/// How often old records are thrown away, and processor time is counted.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// What is to become of the sandboxes when the server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// They live on, for the next server.
    Running,
    /// They end with it.
    Nothing,
}

impl Keeper {
    /// Starts the keeper: takes over what lives, finishes what was begun, and makes sandboxes ahead.
    ///
    /// # Errors
    /// The store or the engine cannot be used, or the template's spec is not allowed.
    pub async fn open(config: KeeperConfig, store: Store, audit: AuditLog, engines: Engines) -> Result<Self> {
        let secret = store.server_secret().await?;
        let spec = resolve(&engines, &config.template, Default::default())?;
        let gate = Gate::new(config.max_starts, config.max_waiting);
        let (size, template_size) = pool_sizes(&config);
        let pools = Pools::new(engines.clone(), default_origin(&config), spec, size, template_size);
        let keeper = Self::assemble(Inner {
            events: Arc::new(Events::new()?),
            gate,
            pools,
            keys: Keys::default(),
            denials: Denials::default(),
            tokens: Tokens::new(secret),
            outputs: Outputs::default(),
            spent: Spent::default(),
            metrics: Metrics::new(),
            archives: Archives::default(),
            coders: Coders::default(),
            builds: Builds::default(),
            links: Links::default(),
            volumes: Volumes::default(),
            building: Arc::default(),
            closing: AtomicBool::new(false),
            crowd_changed: tokio::sync::Notify::new(),
            tasks: TaskTracker::new(),
            followers: TaskTracker::new(),
            shares: Mutex::new(HashMap::new()),
            entries: Self::new_entries(),
            config: Current::new(config),
            store,
            audit,
            engines,
        });
        keeper.sweep_archives().await?;
        keeper.sweep_uploads(false, false)?;
        keeper.recover_volumes().await?;
        keeper.reconcile().await?;
        keeper.end_builds().await;
        keeper.sweep_layers(false).await?;
        keeper.count_tenants().await?;
        keeper.register_own_metrics();
        keeper.fill_pools();
        keeper.keep_touching();
        keeper.keep_telling_denials();
        keeper.keep_sweeping();
        keeper.keep_sharing_out();
        Ok(keeper)
    }

    /// Takes new times, limits, quotas and sizes of the pool. Sandboxes that are there stay as they are; so do the keeper's
    /// name, its directory and the template, which are those of its start.
    pub fn reconfigure(&self, config: KeeperConfig) {
        let inner = &self.inner;
        let config = inner.config.change(config);
        inner.gate.resize(config.max_starts, config.max_waiting);
        let (size, template_size) = pool_sizes(&config);
        inner.pools.resize(size, template_size);
    }

    /// The life of a sandbox for which none was asked.
    #[must_use]
    pub fn default_lifetime(&self) -> std::time::Duration {
        self.inner.config.now().default_lifetime
    }

    /// The quotas of a key for which none were named.
    #[must_use]
    pub fn default_quotas(&self) -> crate::caller::Quotas {
        self.inner.config.now().default_quotas.clone()
    }

    async fn reconcile(&self) -> Result<()> {
        let inner = &self.inner;
        let mut there = HashMap::new();
        for engine in inner.engines.all() {
            let survivors = engine.survivors().await?.into_iter();
            there.extend(survivors.map(|survivor| (survivor.id.clone(), (Arc::clone(engine), survivor))));
        }
        let rows = inner.store.sandboxes().list_live(&inner.config.now().name).await?;
        // What networks have decided since then was recorded by no server.
        let last = inner.audit.tail(&AuditFilter::default(), None, 1).await?.pop();
        let recorded = last.map_or(Timestamp::UNIX_EPOCH, |record| record.at);
        let mut adoptions = Vec::new();
        for row in rows {
            let survivor = there.remove(&row.id);
            adoptions.push(self.take_over(row, survivor, recorded));
        }
        // One sandbox that cannot be taken over must not keep the others from it.
        for (id, done) in futures::future::join_all(adoptions).await {
            if let Err(error) = done {
                tracing::error!(sandbox = %id, error = %crate::error::chain(&error), "cannot take over a sandbox");
            }
        }
        let unknown = there.into_values().filter(|(_, survivor)| survivor.ended.is_none());
        futures::future::join_all(unknown.map(remove_unknown)).await;
        self.give_claims_back().await
    }

    async fn take_over(
        &self,
        row: SandboxRow,
        survivor: Option<OfEngine>,
        recorded: Timestamp,
    ) -> (SandboxId, Result<()>) {
        let id = row.id.clone();
        (id, self.take_over_row(row, survivor, recorded).await)
    }

    async fn take_over_row(
        &self,
        row: SandboxRow,
        survivor: Option<OfEngine>,
        recorded: Timestamp,
    ) -> Result<()> {
        let (spec, settings) = read_row(&row)?;
        let ended = survivor.as_ref().and_then(|(_, survivor)| survivor.ended.clone());
        let sandbox = match &survivor {
            Some((engine, survivor)) if survivor.ended.is_none() => engine.adopt(&survivor.id).await?,
            _ => None,
        };
        let sandbox = sandbox.map(Arc::new);
        let spec = Arc::new(spec);
        let state = row.state;
        self.inner.metrics.moved(SandboxState::Gone, state);
        let entry = Entry::new(row, Arc::clone(&spec), settings, sandbox.clone(), &self.inner.events);
        self.put(&entry);
        match (state, sandbox) {
            (SandboxState::Running | SandboxState::Paused, Some(sandbox)) => {
                let share = self.inner.spent.adopt(&entry.key, &spec);
                self.inner.keep_share(&entry.id, share);
                self.hold_volumes_of(&entry);
                for port in self.inner.store.ports().list(&entry.id).await? {
                    entry.live().ports.insert(port.port, port.visibility == PortVisibility::Public);
                }
                self.agree(&entry, &sandbox).await?;
                entry.note("adopted", None, "by a new server");
                self.guard(&entry);
                // Also where its policy is `disabled` by now: it may have been made with another.
                self.follow_network(&entry, recorded);
                Ok(())
            }
            (SandboxState::Running | SandboxState::Paused, None) => {
                let reason = ended.unwrap_or_else(|| "it ended while no server was running".to_owned());
                self.end(&entry, &reason).await
            }
            (SandboxState::Creating, _) => self.end(&entry, "the server ended while it was made").await,
            (SandboxState::Stopping, _) => self.end(&entry, "").await,
            (SandboxState::Gone, _) => Ok(()),
        }
    }

    /// Makes a sandbox do what is written of it.
    async fn agree(&self, entry: &Arc<Entry>, sandbox: &Sandbox) -> Result<()> {
        self.agree_on_limits(entry, sandbox).await;
        self.agree_on_network(entry, sandbox).await;
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

    /// A change of limits that was cut off may have come as far as the control groups and not into the record.
    async fn agree_on_limits(&self, entry: &Arc<Entry>, sandbox: &Sandbox) {
        let limits = entry.live().spec.limits;
        let (memory, cpus, pids) = (Some(limits.memory), Some(limits.cpus), Some(limits.pids));
        match sandbox.set_limits(&LimitsChange { memory, cpus, pids, ..LimitsChange::default() }).await {
            Ok(()) | Err(EngineError::Unsupported { .. }) => {}
            Err(error) => {
                // It has more in use than the record allows it: it keeps what it was given a moment before.
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot set the limits that are written");
            }
        }
    }

    /// So may a change of the network policy.
    async fn agree_on_network(&self, entry: &Arc<Entry>, sandbox: &Sandbox) {
        let policy = entry.live().spec.network.clone();
        let set = match self.fill_secrets(&entry.tenant, &policy).await {
            Ok(policy) => sandbox.set_network(&policy).await.map_err(KeeperError::from),
            Err(error) => Err(error),
        };
        match set {
            // A launcher of an earlier version cannot have changed it.
            Ok(()) | Err(KeeperError::Engine(EngineError::NoNetwork | EngineError::Unsupported { .. })) => {}
            Err(error) => {
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot set the network policy that is written");
            }
        }
    }

    /// Throws old records away, and counts processor time, in a task of its own.
    fn keep_sweeping(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                tokio::time::sleep(SWEEP_EVERY).await;
                if let Err(error) = keeper.sweep().await {
                    tracing::warn!(error = %crate::error::chain(&error), "cannot throw old records away");
                }
            }
        });
    }

    async fn sweep(&self) -> Result<()> {
        let (store, config) = (&self.inner.store, self.inner.config.now());
        let before = |age: Duration| Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN);
        store.sandboxes().forget_before(before(config.keep_gone)).await?;
        store.idempotency().forget_expired(Timestamp::now()).await?;
        self.sweep_uploads(true, false)?;
        store.shrink().await?;
        store.restore_reserve().await;
        for entry in self.entries() {
            let sandbox = entry.live().sandbox.clone();
            if let Some(sandbox) = sandbox.filter(|_| entry.state() == SandboxState::Running) {
                let usage = sandbox.usage().await;
                self.inner.spent.took(&entry, usage.cpu.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Ends the sandboxes in which templates were built. Nobody would go on with a build that another server has begun.
    async fn end_builds(&self) {
        for entry in self.entries().into_iter().filter(|entry| entry.live().settings.for_build) {
            if let Err(error) = self.end(&entry, "the server that built a template in it has ended").await {
                tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot end a build");
            }
        }
    }

    /// Ends the keeper, and with it the audit: every record that was begun is written when this returns, but for those of
    /// requests that take longer than [`FINISH`]. Requests that come after this are refused.
    ///
    /// # Errors
    /// A sandbox could not be ended, or the store failed. The others have been all the same.
    pub async fn close(&self, leave: Leave) -> Result<()> {
        self.inner.closing.store(true, Ordering::Relaxed);
        self.inner.crowd_changed.notify_one();
        self.end_builds().await;
        self.end_volume_contents().await;
        self.inner.tasks.close();
        if tokio::time::timeout(FINISH, self.inner.tasks.wait()).await.is_err() {
            tracing::warn!(requests = self.inner.tasks.len(), "requests without a caller are cut off");
        }
        let mut done = Ok(());
        for sandbox in self.inner.pools.drain().await {
            done = done.and(sandbox.stop().await.map_err(KeeperError::from));
        }
        if leave == Leave::Nothing {
            for entry in self.entries() {
                let ended = match self.end(&entry, "the server ended").await {
                    Err(KeeperError::TakenOver { .. }) => Ok(()),
                    ended => ended,
                };
                done = done.and(ended);
            }
        }
        if leave == Leave::Nothing {
            self.inner.followers.close();
            if tokio::time::timeout(FINISH, self.inner.followers.wait()).await.is_err() {
                tracing::warn!("what networks have decided last is not recorded");
            }
        }
        self.write_touched().await;
        self.tell_denials().await;
        self.inner.denials.end();
        self.inner.audit.close().await;
        done
    }

    /// Whether sandboxes can be made now.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn ready(&self) -> Result<()> {
        if self.inner.closing.load(Ordering::Relaxed) {
            return Err(KeeperError::ShuttingDown);
        }
        self.inner.store.ping().await?;
        crate::head_room::Left::look(&self.inner.config.now().state_dir)
            .check(&self.inner.config.now().head_room)
    }
}

/// How many sandboxes are made ahead of the template `default`, and of each other one.
fn pool_sizes(config: &KeeperConfig) -> (usize, usize) {
    if config.pool > 0 { (config.pool, config.template_pool) } else { (0, 0) }
}

/// A survivor, and the engine that has it.
type OfEngine = (Arc<dyn Engine>, Survivor);

async fn remove_unknown((engine, survivor): OfEngine) {
    let id = survivor.id;
    let removed = match engine.adopt(&id).await {
        Ok(Some(sandbox)) => sandbox.stop().await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::error!(sandbox = %id, error = %crate::error::chain(&error), "cannot remove a sandbox that nobody knows");
    }
}

/// What a record says of a sandbox's walls and life.
pub(crate) fn read_row(row: &SandboxRow) -> Result<(SandboxSpec, Settings)> {
    let unreadable = |what: &'static str| {
        move |error: serde_json::Error| KeeperError::Record { what, id: row.id.to_string(), source: error }
    };
    let spec = serde_json::from_str(&row.spec).map_err(unreadable("spec"))?;
    let settings = serde_json::from_str(&row.settings).map_err(unreadable("settings"))?;
    Ok((spec, settings))
}
