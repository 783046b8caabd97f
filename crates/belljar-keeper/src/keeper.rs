//! The keeper: all sandboxes that are not gone, and the only place that changes their state.
//!
//! Each transition is first written to the store, then carried out, then published. So the next start can finish an interrupted one;
//! see `reconcile.rs`. A sandbox's `step` lock serializes its transitions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use belljar_engine::{Engines, ErrorCode, GuestError, Sandbox};
use belljar_model::{Role, SandboxId, SandboxState, VolumeId};
use belljar_store::{AuditLog, SandboxRow, ServiceWall, Store, StoreError};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::action::{Action, SANDBOX_GET, SANDBOX_USE};
use crate::approval::Waiters;
use crate::approvals::ends::UnrecordedEnds;
use crate::build_queue::BuildQueue;
use crate::builds::Builds;
use crate::caller::Caller;
use crate::code_steps::Steps;
use crate::collect::Archives;
use crate::config::Current;
use crate::denials::Denials;
use crate::entry::{Entry, Use};
use crate::error::{GuestResource, KeeperError};
use crate::events::Events;
use crate::exports::Exports;
use crate::fair::Crowds;
use crate::gate::Gate;
use crate::info::SandboxInfo;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::outputs::Outputs;
use crate::pool::Pools;
use crate::quota::{Share, UsageLedger};
use crate::session::Sessions;
use crate::steps::{run_detached, step};
use crate::token::Tokens;
use crate::unsettled::Unsettled;
use crate::uploads::Links;
use crate::volumes::Volumes;
use crate::warm::RecentTenants;

pub(crate) type Result<T> = std::result::Result<T, KeeperError>;

/// The service without a wire protocol. Clones share its state.
#[derive(Clone)]
pub struct Keeper {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: Current,
    pub(crate) store: Store,
    pub(crate) audit: AuditLog,
    pub(crate) engines: Engines,
    pub(crate) events: Arc<Events>,
    pub(crate) gate: Gate,
    /// Limits concurrent screenings.
    pub(crate) screenings: Gate,
    pub(crate) screeners: Arc<belljar_screen::Screeners>,
    pub(crate) exports: Exports,
    pub(crate) pools: Pools,
    pub(crate) keys: Keys,
    pub(crate) sessions: Sessions,
    pub(crate) denials: Denials,
    pub(crate) tokens: Tokens,
    pub(crate) ledger: UsageLedger,
    /// Files of outputs whose answers have not been sent.
    pub(crate) outputs: Outputs,
    pub(crate) metrics: Metrics,
    pub(crate) archives: Archives,
    /// Tenants that have run code recently.
    pub(crate) recent_tenants: RecentTenants,
    /// Builds in steps, and links for their files.
    pub(crate) builds: Builds,
    pub(crate) links: Links,
    pub(crate) volumes: Volumes,
    /// Events that are sent to the operator's address.
    pub(crate) webhooks: TaskTracker,
    /// Ends the task that sends them.
    pub(crate) webhooks_stopping: CancellationToken,
    /// Calls that wait for approval.
    pub(crate) waiters: Waiters,
    /// Runs of code whose calls wait for answers.
    pub(crate) steps: Steps,
    /// Builds of template files.
    pub(crate) build_queue: BuildQueue,
    /// Held while a template is built.
    pub(crate) building: Arc<tokio::sync::Mutex<()>>,
    /// Held while a version of a tool is stored.
    pub(crate) storing_tool: tokio::sync::Mutex<()>,
    pub(crate) unsettled: Unsettled,
    pub(crate) unrecorded_ends: UnrecordedEnds,
    /// Serializes ending sandboxes for others that wait for memory.
    pub(crate) making_room: tokio::sync::Mutex<()>,
    pub(crate) closing: AtomicBool,
    pub(crate) crowds: Crowds,
    /// Operations detached from their callers, which end with an audit record.
    pub(crate) tasks: TaskTracker,
    /// Tasks that follow gateways, one per sandbox with a network.
    pub(crate) followers: TaskTracker,
    /// Each sandbox's share of its key's quotas.
    pub(crate) shares: Mutex<HashMap<SandboxId, Share>>,
    pub(crate) entries: RwLock<Entries>,
}

/// All sandboxes that are not gone.
#[derive(Default)]
pub(crate) struct Entries {
    by_id: HashMap<SandboxId, Arc<Entry>>,
    by_tenant: HashMap<String, OfTenant>,
}

/// The sandboxes of a tenant.
#[derive(Default)]
pub(crate) struct OfTenant {
    pub(crate) by_id: HashMap<SandboxId, Arc<Entry>>,
    by_name: HashMap<String, Arc<Entry>>,
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.by_id.values()
    }

    pub(crate) fn of_tenant(&self, tenant: &str) -> Option<&OfTenant> {
        self.by_tenant.get(tenant)
    }

    fn insert(&mut self, entry: &Arc<Entry>) {
        let own = self.by_tenant.entry(entry.tenant.clone()).or_default();
        own.by_id.insert(entry.id.clone(), Arc::clone(entry));
        // The name of one that is gone, but still here, may have been given again.
        if let Some(name) = entry.live().row.name.clone() {
            own.by_name.insert(name, Arc::clone(entry));
        }
        self.by_id.insert(entry.id.clone(), Arc::clone(entry));
    }

    fn remove(&mut self, id: &SandboxId) -> Option<Arc<Entry>> {
        let entry = self.by_id.remove(id)?;
        if let Some(own) = self.by_tenant.get_mut(&entry.tenant) {
            own.by_id.remove(id);
            if let Some(name) = &entry.live().row.name
                && own.by_name.get(name).is_some_and(|named| named.id == *id)
            {
                own.by_name.remove(name);
            }
            if own.by_id.is_empty() {
                self.by_tenant.remove(&entry.tenant);
            }
        }
        Some(entry)
    }
}

/// A running sandbox in use: it counts as active until this is dropped.
#[derive(Clone)]
pub struct Entered {
    pub(crate) entry: Arc<Entry>,
    sandbox: Arc<Sandbox>,
    spec: Arc<belljar_model::SandboxSpec>,
    /// The volume of a content sandbox.
    volume: Option<VolumeId>,
    /// Id of the key that has opened it; `None` if nobody had to present one.
    opener: Option<Caller>,
    _use: Use,
}

impl Entered {
    /// Returns a use of a volume's content sandbox.
    pub(crate) fn of_volume(entry: &Arc<Entry>, sandbox: Arc<Sandbox>, volume: VolumeId) -> Self {
        let spec = Arc::clone(&entry.live().spec);
        let (entry, _use) = (Arc::clone(entry), entry.begin_use());
        Self { _use, entry, sandbox, spec, volume: Some(volume), opener: None }
    }

    /// Records who has opened it.
    pub(crate) fn opened_by(self, opener: Option<Caller>) -> Self {
        Self { opener, ..self }
    }

    /// Returns who has opened it, with whose key its connections end; `None` for a public port.
    #[must_use]
    pub fn opener(&self) -> Option<&Caller> {
        self.opener.as_ref()
    }

    /// Returns the volume, if this is a content sandbox and not a sandbox of a tenant.
    #[must_use]
    pub fn volume(&self) -> Option<&VolumeId> {
        self.volume.as_ref()
    }

    /// Returns the sandbox's id.
    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.entry.id
    }

    /// Returns the client of its guest: processes, files, ports.
    pub(crate) fn guest(&self) -> &belljar_engine::GuestClient {
        self.sandbox.guest()
    }

    /// Returns the engine's handle.
    pub(crate) fn sandbox(&self) -> &Arc<Sandbox> {
        &self.sandbox
    }

    /// Kills it without the keeper's knowledge, as a crash does. For tests.
    #[doc(hidden)]
    pub fn crash(&self) {
        self.sandbox.kill();
    }

    /// Freezes it without the keeper's knowledge, so that its guest does not answer, and reports that. For tests.
    ///
    /// # Errors
    /// See [`Sandbox::freeze`].
    #[doc(hidden)]
    pub async fn hang(&self) -> Result<()> {
        self.sandbox.freeze().await?;
        self.guest().doubt();
        Ok(())
    }

    /// Returns the host that programs on a port see, if it is not the one that the client used.
    #[must_use]
    pub fn masked_host(&self, port: u16) -> Option<String> {
        self.entry.live().settings.ports.host.as_ref().map(|mask| mask.for_port(port))
    }

    /// Returns its specification.
    #[must_use]
    pub fn spec(&self) -> &belljar_model::SandboxSpec {
        &self.spec
    }

    /// Connects to a published port. The caller's access has been checked.
    ///
    /// # Errors
    /// Fails if the guest cannot connect.
    pub async fn connect(&self, port: u16) -> Result<belljar_engine::Tunnel> {
        match self.guest().tunnel(port).await {
            Ok(tunnel) => Ok(tunnel),
            Err(error) => Err(self.explain_about(error, GuestResource::Port).await),
        }
    }

    /// Converts an error of a guest call; if the sandbox has ended, the result is the reason of its end.
    pub(crate) async fn explain(&self, error: belljar_engine::GuestError) -> KeeperError {
        self.explain_about(error, GuestResource::Sandbox).await
    }

    /// Converts an error of a guest call about a resource in the sandbox, like `explain`.
    pub async fn explain_about(
        &self,
        error: belljar_engine::GuestError,
        resource: GuestResource,
    ) -> KeeperError {
        let is_doubtful = match &error {
            GuestError::Refused { code, .. } => *code == ErrorCode::DeadlineExceeded,
            error => matches!(error, GuestError::Gone(_) | GuestError::Unreachable(_)),
        };
        if is_doubtful {
            self.sandbox.guest().doubt();
        }
        match self.sandbox.explain(error.into()).await {
            belljar_engine::EngineError::Guest(source) => KeeperError::Guest { resource, source },
            error if self.volume.is_some() => crate::volumes::explain(error),
            belljar_engine::EngineError::Ended { how } => {
                let reason = self.entry.live().row.reason.clone().unwrap_or(how);
                KeeperError::Gone { id: self.entry.id.clone(), reason }
            }
            error => KeeperError::Engine(error),
        }
    }
}

impl Keeper {
    pub(crate) fn assemble(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Clones what a detached operation needs.
    pub(crate) fn clone_for_task(&self, caller: &Caller, id: &str) -> (Self, Caller, String) {
        (self.clone(), caller.clone(), id.to_owned())
    }

    /// Runs an action that the caller may do, with the id of what it concerns, to its end, even if the caller disconnects.
    ///
    /// # Errors
    /// As [`Keeper::require`], and the error of the steps.
    pub(crate) async fn transact<T: Send, F>(
        &self,
        action: Action,
        caller: &Caller,
        id: &str,
        steps: impl FnOnce(Self, Caller, String) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.require(caller, action)?;
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        run_detached(&self.inner.tasks, steps(keeper, caller, id)).await
    }

    /// Runs a call to its end, even if its caller disconnects, of which it is told.
    pub(crate) async fn run_call<T: Send, F>(
        &self,
        caller: &Caller,
        id: &str,
        call: impl FnOnce(Self, Caller, String, oneshot::Receiver<()>) -> F,
    ) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        // Dropped with this future.
        let (_waiting, gone) = oneshot::channel();
        let (keeper, caller, id) = self.clone_for_task(caller, id);
        run_detached(&self.inner.tasks, call(keeper, caller, id, gone)).await
    }

    /// Returns all sandboxes that are not gone.
    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        self.inner.entries.read().values().cloned().collect()
    }

    /// Returns the sandbox with this id, if it is not gone.
    pub(crate) fn entry(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.inner.entries.read().by_id.get(id).cloned()
    }

    /// Reports whether all sandboxes are gone. Pre-warmed ones do not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.entries.read().len() == 0
    }

    pub(crate) fn put(&self, entry: &Arc<Entry>) {
        self.inner.entries.write().insert(entry);
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        let removed = self.inner.entries.write().remove(id);
        if let Some(entry) = removed {
            self.inner.crowds.shrank(&entry.tenant);
        }
    }

    /// Finds the caller's sandbox by id or name. A missing sandbox and another tenant's give the same error.
    pub(crate) async fn find(&self, caller: &Caller, id: &str) -> Result<Arc<Entry>> {
        let found = match id.parse::<SandboxId>() {
            Ok(id) => self.entry(&id),
            Err(_) => self.find_name(&caller.tenant, id),
        };
        // One that is recorded as gone is still here until it has been released.
        let is_here = |entry: &Arc<Entry>| {
            entry.state() != SandboxState::Gone && caller.may_see(&entry.tenant, &entry.id)
        };
        match found.filter(is_here) {
            Some(entry) => Ok(entry),
            None => Err(self.missing_error(caller, id).await?),
        }
    }

    pub(crate) fn find_name(&self, tenant: &str, name: &str) -> Option<Arc<Entry>> {
        self.inner.entries.read().of_tenant(tenant)?.by_name.get(name).cloned()
    }

    /// Finds the record of an ended sandbox of the caller.
    pub(crate) async fn find_ended(&self, caller: &Caller, id: &str) -> Result<Option<SandboxRow>> {
        Ok(self.find_record(caller, id).await?.filter(|row| row.state == SandboxState::Gone))
    }

    /// Finds the record of a sandbox of the caller, in any state and on any server.
    async fn find_record(&self, caller: &Caller, id: &str) -> Result<Option<SandboxRow>> {
        let Ok(sandbox) = id.parse::<SandboxId>() else { return Ok(None) };
        // Other tenants' records are not even read, so that they take no longer than missing ones.
        let tenant = (caller.role != Role::Admin).then_some(caller.tenant.as_str());
        let row = self.inner.store.sandboxes().get_for_tenant(tenant, &sandbox).await?;
        Ok(row.filter(|row| caller.may_see(&row.tenant, &row.id)))
    }

    /// Returns the error for a sandbox that is not found; its own caller gets the reason of its end.
    async fn missing_error(&self, caller: &Caller, id: &str) -> Result<KeeperError> {
        Ok(match self.find_record(caller, id).await? {
            Some(SandboxRow { id, reason, state: SandboxState::Gone, .. }) => {
                KeeperError::Gone { id, reason: reason.unwrap_or_else(|| "it has ended".to_owned()) }
            }
            Some(SandboxRow { id, keeper, .. }) if keeper != self.inner.config.now().name => {
                KeeperError::Elsewhere { id, keeper }
            }
            _ => not_found(id),
        })
    }

    /// Returns the caller's sandbox.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`], [`KeeperError::Gone`].
    pub async fn get(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> {
        Ok(self.find_to_look(caller, id, SANDBOX_GET).await?.info())
    }

    /// Returns the caller's sandbox, also after its end.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`].
    pub async fn get_ended(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> {
        match self.find_to_look(caller, id, SANDBOX_GET).await {
            Err(KeeperError::Gone { id, reason }) => match self.find_ended(caller, id.as_str()).await? {
                Some(row) => self.row_info(&row),
                None => Err(KeeperError::Gone { id, reason }),
            },
            found => Ok(found?.info()),
        }
    }

    /// Enters a sandbox for use. A paused one is resumed if its settings allow that.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::WrongState`] when it is paused and stays so; [`KeeperError::Forbidden`] for a
    /// read-only key.
    pub async fn enter(&self, caller: &Caller, id: &str) -> Result<Entered> {
        self.enter_for(caller, id, SANDBOX_USE).await
    }

    pub(crate) async fn enter_entry(&self, entry: Arc<Entry>) -> Result<Entered> {
        let used = entry.begin_use();
        let state = entry.state();
        if state == SandboxState::Creating {
            // The lock is held until it has been created.
            drop(entry.step.lock().await);
        } else if state == SandboxState::Paused && entry.live().settings.lifetime.auto_resume {
            let (keeper, entry) = (self.clone(), Arc::clone(&entry));
            run_detached(&self.inner.tasks, async move { keeper.thaw(&entry, None).await }).await?;
        }
        let sandbox = entry.require_running("using it")?;
        let spec = Arc::clone(&entry.live().spec);
        Ok(Entered { entry, sandbox, spec, volume: None, opener: None, _use: used })
    }

    /// Writes a change of the record, then applies it in memory. Illegal transitions of `SandboxState` are refused. The caller holds the
    /// step lock.
    pub(crate) async fn write(&self, entry: &Arc<Entry>, change: impl FnOnce(&mut SandboxRow)) -> Result<()> {
        let old = entry.live().row.clone();
        let mut row = old.clone();
        change(&mut row);
        row.updated_at = Timestamp::now();
        if old.state != row.state && !old.state.can_become(row.state) {
            return Err(KeeperError::Transition { id: entry.id.clone(), from: old.state, to: row.state });
        }
        let begin = Instant::now();
        let sandboxes = self.inner.store.sandboxes();
        let mut updated = sandboxes.update(&mut row).instrument(step!("store.update")).await;
        if matches!(&updated, Err(error) if error.is_full()) && self.inner.store.release_reserve().await {
            tracing::warn!(
                "the disk of the store is full: its reserve is in use, and nothing new is started"
            );
            updated = sandboxes.update(&mut row).await;
        }
        self.inner.metrics.record_store_write(begin.elapsed());
        match updated {
            Err(StoreError::Conflict { .. }) => {
                return Err(KeeperError::TakenOver { id: entry.id.clone() });
            }
            written => written?,
        }
        self.inner.metrics.record_transition(old.state, row.state);
        let kind = match (old.state, row.state) {
            (old, new) if old == new => None,
            (_, SandboxState::Paused) => Some("sandbox.paused"),
            (SandboxState::Paused, SandboxState::Running) => Some("sandbox.resumed"),
            (_, SandboxState::Stopping) => Some("sandbox.stopping"),
            (_, SandboxState::Gone) => Some("sandbox.gone"),
            // Published as `sandbox.created`.
            (_, SandboxState::Running | SandboxState::Creating) => None,
        };
        let reason = row.reason.clone().unwrap_or_default();
        entry.live().row = row;
        if let Some(kind) = kind {
            entry.publish(kind, None, reason);
        }
        Ok(())
    }
}

pub(crate) fn not_found(id: &str) -> KeeperError {
    KeeperError::NotFound { what: "sandbox", id: id.chars().take(64).collect() }
}

impl Caller {
    /// Reports whether the caller may see this sandbox.
    pub(crate) fn may_see(&self, tenant: &str, id: &SandboxId) -> bool {
        // The key may have issued the token as an administrator, for another tenant's sandbox.
        let is_only = self.only.as_ref().is_none_or(|only| ServiceWall::TokenScope.allows(only == id));
        is_only && self.may_see_tenant(tenant)
    }

    /// Reports whether the caller may see this tenant's resources.
    pub(crate) fn may_see_tenant(&self, tenant: &str) -> bool {
        ServiceWall::Tenants.allows(self.role == Role::Admin || self.tenant == tenant)
    }
}
