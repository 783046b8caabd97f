//! The keeper: every sandbox that is not gone, and the one place that takes them from state to state.
//!
//! Each step goes: the next state is written to the store, then it is made true, then it is told. So whatever is cut off can
//! be finished by the next start; see `reconcile.rs`. A sandbox's `step` lock lets one step happen at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_engine::{Engines, Sandbox};
use belljar_model::{Role, SandboxId, SandboxState, VolumeId};
use belljar_store::{AuditLog, SandboxRow, ServiceWall, Store, StoreError};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::action::{SANDBOX_KILL, SANDBOX_PAUSE, SANDBOX_RESUME, SANDBOX_TIMEOUT, SANDBOX_USE};
use crate::builds::Builds;
use crate::caller::Caller;
use crate::collect::Archives;
use crate::config::Current;
use crate::denials::Denials;
use crate::entry::{Entry, Use, until};
use crate::error::{About, KeeperError};
use crate::events::Events;
use crate::gate::Gate;
use crate::info::SandboxInfo;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::outputs::Outputs;
use crate::pool::{Pools, has_ended};
use crate::quota::{Share, Spent};
use crate::request::TimeoutAction;
use crate::steps::{step, to_its_end};
use crate::token::Tokens;
use crate::uploads::Links;
use crate::volumes::Volumes;
use crate::warm::Coders;

pub(crate) type Result<T> = std::result::Result<T, KeeperError>;

/// How much longer than the keeper whoever holds the walls lets a sandbox live: the keeper comes first, and says why.
const HOLDER_SLACK: Duration = Duration::from_secs(10);

/// The service without a wire. Clones share it.
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
    pub(crate) pools: Pools,
    pub(crate) keys: Keys,
    pub(crate) denials: Denials,
    pub(crate) tokens: Tokens,
    pub(crate) spent: Spent,
    /// Files of outputs whose answers have not been sent.
    pub(crate) outputs: Outputs,
    pub(crate) metrics: Metrics,
    pub(crate) archives: Archives,
    /// Whose code was run lately.
    pub(crate) coders: Coders,
    /// Builds that go step by step, and links for their files.
    pub(crate) builds: Builds,
    pub(crate) links: Links,
    pub(crate) volumes: Volumes,
    /// Held while a template is built.
    pub(crate) building: Arc<tokio::sync::Mutex<()>>,
    pub(crate) closing: AtomicBool,
    /// There are more sandboxes, or fewer.
    pub(crate) crowd_changed: tokio::sync::Notify,
    /// What goes on without its caller, and ends in a record of the audit.
    pub(crate) tasks: TaskTracker,
    /// What follows gateways, each for as long as its sandbox lives.
    pub(crate) followers: TaskTracker,
    /// What each sandbox takes of its key's quotas.
    pub(crate) shares: Mutex<HashMap<SandboxId, Share>>,
    pub(crate) entries: RwLock<HashMap<SandboxId, Arc<Entry>>>,
}

/// A sandbox in use: it runs, and counts as active, for as long as this is held.
#[derive(Clone)]
pub struct Entered {
    pub(crate) entry: Arc<Entry>,
    sandbox: Arc<Sandbox>,
    spec: Arc<belljar_model::SandboxSpec>,
    /// The volume of a content sandbox.
    volume: Option<VolumeId>,
    _use: Use,
}

impl Entered {
    /// Returns a use of a volume's content sandbox.
    pub(crate) fn of_volume(entry: &Arc<Entry>, sandbox: Arc<Sandbox>, volume: VolumeId) -> Self {
        let spec = Arc::clone(&entry.live().spec);
        Self { _use: entry.begin_use(), entry: Arc::clone(entry), sandbox, spec, volume: Some(volume) }
    }

    /// Returns the volume, if this is a content sandbox and not a sandbox of a tenant.
    #[must_use]
    pub fn volume(&self) -> Option<&VolumeId> {
        self.volume.as_ref()
    }

    /// Which sandbox.
    #[must_use]
    pub fn id(&self) -> &SandboxId {
        &self.entry.id
    }

    /// Its guest: processes, files, ports.
    pub(crate) fn guest(&self) -> &belljar_engine::GuestClient {
        self.sandbox.guest()
    }

    /// What holds it.
    pub(crate) fn sandbox(&self) -> &Arc<Sandbox> {
        &self.sandbox
    }

    /// Ends it without the keeper's doing, as a crash does. For tests.
    #[doc(hidden)]
    pub fn crash(&self) {
        self.sandbox.kill();
    }

    /// What it was made to be.
    #[must_use]
    pub fn spec(&self) -> &belljar_model::SandboxSpec {
        &self.spec
    }

    /// Connects to a port that is published, for whoever has been let in to that.
    ///
    /// # Errors
    /// What the guest refuses.
    pub async fn connect(&self, port: u16) -> Result<belljar_engine::Tunnel> {
        match self.guest().tunnel(port).await {
            Ok(tunnel) => Ok(tunnel),
            Err(error) => Err(self.explain_about(error, About::Port).await),
        }
    }

    /// Why a call to the guest failed: where the sandbox has ended, that is the reason.
    pub(crate) async fn explain(&self, error: belljar_engine::GuestError) -> KeeperError {
        self.explain_about(error, About::Sandbox).await
    }

    /// The same for what was asked about something in it.
    pub async fn explain_about(&self, error: belljar_engine::GuestError, about: About) -> KeeperError {
        match self.sandbox.explain(error.into()).await {
            belljar_engine::EngineError::Guest(source) => KeeperError::Guest { about, source },
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

    /// What steps that go on without their caller take along.
    pub(crate) fn owned(&self, caller: &Caller, id: &str) -> (Self, Caller, String) {
        (self.clone(), caller.clone(), id.to_owned())
    }

    pub(crate) fn new_entries() -> RwLock<HashMap<SandboxId, Arc<Entry>>> {
        RwLock::new(HashMap::new())
    }

    /// All sandboxes that are not gone.
    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        self.inner.entries.read().values().cloned().collect()
    }

    /// One of them.
    pub(crate) fn entry(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.inner.entries.read().get(id).cloned()
    }

    /// Whether there is no sandbox that is not gone. What is made ahead does not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.entries.read().is_empty()
    }

    pub(crate) fn put(&self, entry: &Arc<Entry>) {
        let mut entries = self.inner.entries.write();
        entries.insert(entry.id.clone(), Arc::clone(entry));
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        self.inner.entries.write().remove(id);
        self.inner.crowd_changed.notify_one();
    }

    /// The caller's sandbox by id or name. One that is not there and one that is not the caller's are answered alike.
    pub(crate) async fn find(&self, caller: &Caller, id: &str) -> Result<Arc<Entry>> {
        let found = match id.parse::<SandboxId>() {
            Ok(id) => self.entry(&id),
            Err(_) => self.find_name(&caller.tenant, id),
        };
        if let Some(entry) = found.filter(|entry| caller.may_see(&entry.tenant, &entry.id)) {
            return Ok(entry);
        }
        Err(self.missing(caller, id).await?)
    }

    pub(crate) fn find_name(&self, tenant: &str, name: &str) -> Option<Arc<Entry>> {
        let entries = self.inner.entries.read();
        let is_it =
            |entry: &&Arc<Entry>| entry.tenant == tenant && entry.live().row.name.as_deref() == Some(name);
        entries.values().find(is_it).cloned()
    }

    /// The record of the caller's sandbox that has ended.
    pub(crate) async fn find_ended(&self, caller: &Caller, id: &str) -> Result<Option<SandboxRow>> {
        let Ok(sandbox) = id.parse::<SandboxId>() else { return Ok(None) };
        // What is another tenant's is not even read: it must not take longer than what is not there.
        let tenant = (caller.role != Role::Admin).then_some(caller.tenant.as_str());
        let row = self.inner.store.sandboxes().get_of(tenant, &sandbox).await?;
        Ok(row.filter(|row| row.state == SandboxState::Gone && caller.may_see(&row.tenant, &row.id)))
    }

    /// What to say of a sandbox that is not there: its own caller hears why it ended.
    async fn missing(&self, caller: &Caller, id: &str) -> Result<KeeperError> {
        Ok(match self.find_ended(caller, id).await? {
            Some(SandboxRow { id, reason, .. }) => {
                KeeperError::Gone { id, reason: reason.unwrap_or_else(|| "it has ended".to_owned()) }
            }
            None => not_found(id),
        })
    }

    /// The caller's sandbox, to be looked at.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`], [`KeeperError::Gone`].
    pub async fn get(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> {
        Ok(self.find(caller, id).await?.info())
    }

    /// The caller's sandbox, to be looked at, also after its end.
    ///
    /// # Errors
    /// [`KeeperError::NotFound`].
    pub async fn get_ended(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> {
        match self.find(caller, id).await {
            Err(KeeperError::Gone { id, reason }) => match self.find_ended(caller, id.as_str()).await? {
                Some(row) => self.info_of(&row),
                None => Err(KeeperError::Gone { id, reason }),
            },
            found => Ok(found?.info()),
        }
    }

    /// The sandbox, to be used. One that is paused is resumed if it may be.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::WrongState`] when it is paused and stays so; [`KeeperError::Forbidden`] for a key
    /// that may only look.
    pub async fn enter(&self, caller: &Caller, id: &str) -> Result<Entered> {
        self.enter_for(caller, id, SANDBOX_USE).await
    }

    pub(crate) async fn enter_found(&self, caller: &Caller, id: &str) -> Result<Entered> {
        let entry = self.find(caller, id).await?;
        let entering = step!("keeper.enter", sandbox = %entry.id);
        self.enter_entry(entry).instrument(entering).await
    }

    pub(crate) async fn enter_entry(&self, entry: Arc<Entry>) -> Result<Entered> {
        let used = entry.begin_use();
        let state = entry.state();
        if state == SandboxState::Creating {
            // Whoever makes it holds the lock until it stands.
            drop(entry.step.lock().await);
        } else if state == SandboxState::Paused && entry.live().settings.lifetime.auto_resume {
            let (keeper, entry) = (self.clone(), Arc::clone(&entry));
            to_its_end(&self.inner.tasks, async move { keeper.thaw(&entry, None).await }).await?;
        }
        let sandbox = entry.running("using it")?;
        let spec = Arc::clone(&entry.live().spec);
        Ok(Entered { entry, sandbox, spec, volume: None, _use: used })
    }

    /// Ends a sandbox.
    ///
    /// # Errors
    /// As [`Keeper::get`]. When this returns an error of the engine, the sandbox is gone from the books only if all that it
    /// held is.
    pub async fn kill(&self, caller: &Caller, id: &str) -> Result<()> {
        let (keeper, caller, id) = self.owned(caller, id);
        to_its_end(&self.inner.tasks, async move { keeper.kill_to_its_end(&caller, &id).await }).await
    }

    async fn kill_to_its_end(&self, caller: &Caller, id: &str) -> Result<()> {
        self.require(caller, SANDBOX_KILL)?;
        let entry = self.find(caller, id).await?;
        let reason = match caller.is_operator() {
            true => "ended on request of the operator".to_owned(),
            false => format!("ended on request of key {}", caller.key),
        };
        let ending = self.end(&entry, &reason);
        let ended = ending.instrument(step!("keeper.kill", sandbox = %entry.id)).await;
        self.audit(caller, SANDBOX_KILL, Some(&entry.id), &ended, Vec::new()).await?;
        ended
    }

    /// Stopping, then gone. Returns when nothing of it is left.
    pub(crate) async fn end(&self, entry: &Arc<Entry>, reason: &str) -> Result<()> {
        // What is under way inside ends now, not after whoever holds the lock has waited for it.
        let sandbox = entry.live().sandbox.clone();
        let _step = entry.step.lock().await;
        if entry.state() == SandboxState::Gone {
            return Ok(());
        }
        // A paused one cannot be asked.
        let can_tell = entry.state() == SandboxState::Running && entry.live().has_background;
        let stopping = |row: &mut SandboxRow| {
            row.state = SandboxState::Stopping;
            row.reason = Some(reason.to_owned());
        };
        if entry.state() != SandboxState::Stopping
            && let Err(KeeperError::TakenOver { id }) = self.write(entry, stopping).await
        {
            // It is the other keeper's to end.
            self.let_go(entry);
            return Err(KeeperError::TakenOver { id });
        }
        if let Some(sandbox) = sandbox.or_else(|| entry.live().sandbox.clone()) {
            let usage = sandbox.usage().await;
            self.inner.spent.took(entry, usage.cpu.unwrap_or_default());
            if can_tell && !has_ended(&sandbox) {
                self.last_words(entry, &sandbox).await;
            }
            sandbox.stop().instrument(step!("engine.stop")).await?;
        }
        if entry.state() != SandboxState::Stopping {
            // There was no space to write it. It has ended all the same, and the record takes both steps or none.
            self.write(entry, stopping).await?;
        }
        self.gone(entry).await
    }

    /// Nothing of it is left: the record says so.
    pub(crate) async fn gone(&self, entry: &Arc<Entry>) -> Result<()> {
        let reason = entry.live().row.reason.clone().unwrap_or_default();
        let log = entry.post_mortem(&reason);
        // Secrets in its environment are of no more use.
        let mut spec = (*entry.live().spec).clone();
        spec.env.clear();
        spec.network.forget_secrets();
        let spec = serde_json::to_string(&spec).unwrap_or_default();
        let gone = |log: String| {
            let spec = spec.clone();
            |row: &mut SandboxRow| {
                row.state = SandboxState::Gone;
                row.ended_at = Some(Timestamp::now());
                row.deadline_at = None;
                row.spec = spec;
                row.log = log;
            }
        };
        // Where there is no space for the log, there may be some for the end alone.
        if self.write(entry, gone(log)).await.is_err() {
            self.write(entry, gone(String::new())).await?;
        }
        self.inner.metrics.ended();
        if let Err(error) = self.forget_answers(entry).await {
            // They go when they expire.
            tracing::warn!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot forget answers");
        }
        self.let_go(entry);
        Ok(())
    }

    /// It is not this keeper's any more.
    fn let_go(&self, entry: &Arc<Entry>) {
        entry.live().sandbox = None;
        self.forget(&entry.id);
        self.inner.spent.forget(&entry.id);
        self.inner.release_share(&entry.id);
        entry.release_volumes();
        entry.end_log();
        entry.changed.notify_one();
    }

    /// Pauses a sandbox: freezes its processes and suspends its timeout.
    ///
    /// # Errors
    /// As [`Keeper::get`]; [`KeeperError::WrongState`] when it does not run; an engine without a freezer says so.
    pub async fn pause(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> {
        let (keeper, caller, id) = self.owned(caller, id);
        to_its_end(&self.inner.tasks, async move { keeper.pause_to_its_end(&caller, &id).await }).await
    }

    async fn pause_to_its_end(&self, caller: &Caller, id: &str) -> Result<SandboxInfo> {
        self.require(caller, SANDBOX_PAUSE)?;
        let entry = self.find(caller, id).await?;
        let paused = self.freeze(&entry).await;
        self.audit(caller, SANDBOX_PAUSE, Some(&entry.id), &paused, Vec::new()).await?;
        paused.map(|()| entry.info())
    }

    pub(crate) async fn freeze(&self, entry: &Arc<Entry>) -> Result<()> {
        let _step = entry.step.lock().await;
        let sandbox = entry.running("pausing it")?;
        let spec = Arc::clone(&entry.live().spec);
        self.check_can(&spec, "pausing it", |can| can.pause)?;
        self.write(entry, |row| {
            row.state = SandboxState::Paused;
            row.paused_at = Some(Timestamp::now());
        })
        .await?;
        entry.live().deadline = None;
        let frozen = match sandbox.set_deadline(None).await {
            Ok(()) => sandbox.freeze().instrument(step!("engine.freeze")).await,
            error => error,
        };
        if let Err(error) = frozen {
            // It goes on as before.
            self.write(entry, |row| {
                row.state = SandboxState::Running;
                row.paused_at = None;
            })
            .await?;
            self.set_deadlines(entry, &sandbox).await?;
            return Err(error.into());
        }
        entry.note("paused", None, "");
        entry.changed.notify_one();
        Ok(())
    }

    /// Lets a paused sandbox go on. One that runs stays as it is, but for a `timeout` that reaches further than its own.
    ///
    /// # Errors
    /// As [`Keeper::get`].
    pub async fn resume(&self, caller: &Caller, id: &str, timeout: Option<Duration>) -> Result<SandboxInfo> {
        let (keeper, caller, id) = self.owned(caller, id);
        to_its_end(&self.inner.tasks, async move { keeper.resume_to_its_end(&caller, &id, timeout).await })
            .await
    }

    async fn resume_to_its_end(
        &self,
        caller: &Caller,
        id: &str,
        timeout: Option<Duration>,
    ) -> Result<SandboxInfo> {
        self.require(caller, SANDBOX_RESUME)?;
        let timeout = timeout.map(|timeout| self.checked_lifetime(timeout)).transpose()?;
        let entry = self.find(caller, id).await?;
        let resumed = self.thaw(&entry, timeout).await;
        self.audit(caller, SANDBOX_RESUME, Some(&entry.id), &resumed, Vec::new()).await?;
        resumed.map(|()| entry.info())
    }

    pub(crate) async fn thaw(&self, entry: &Arc<Entry>, timeout: Option<Duration>) -> Result<()> {
        let _step = entry.step.lock().await;
        if entry.state() == SandboxState::Running {
            let further =
                |timeout: &Duration| entry.live().row.deadline_at.is_some_and(|at| until(at) < *timeout);
            if let Some(timeout) = timeout.filter(further) {
                self.move_deadline(entry, timeout).await?;
            }
            return Ok(());
        }
        let (sandbox, row, lifetime) = {
            let live = entry.live();
            (live.sandbox.clone(), live.row.clone(), live.settings.lifetime.clone())
        };
        let (Some(sandbox), SandboxState::Paused) = (sandbox, row.state) else {
            return Err(entry.wrong_state(row.state, "resuming it", "paused"));
        };
        // Its clock stood still: what was left then is left now. What had run out begins anew.
        let left = match (row.deadline_at, row.paused_at) {
            (Some(deadline), Some(paused)) => {
                Duration::try_from(deadline.duration_since(paused)).unwrap_or_default()
            }
            _ => lifetime.timeout,
        };
        let left = timeout.unwrap_or(if left.is_zero() { lifetime.timeout } else { left });
        self.write(entry, |row| {
            row.state = SandboxState::Running;
            row.paused_at = None;
            row.deadline_at = after(left);
        })
        .await?;
        self.set_deadlines(entry, &sandbox).await?;
        sandbox.thaw().instrument(step!("engine.thaw")).await?;
        entry.live().touched = Instant::now();
        entry.note("resumed", None, "");
        entry.changed.notify_one();
        Ok(())
    }

    /// Gives it `timeout` from now; zero ends its time now.
    ///
    /// # Errors
    /// As [`Keeper::get`]; a time that is longer than allowed is refused.
    pub async fn set_timeout(&self, caller: &Caller, id: &str, timeout: Duration) -> Result<SandboxInfo> {
        let (keeper, caller, id) = self.owned(caller, id);
        to_its_end(
            &self.inner.tasks,
            async move { keeper.set_timeout_to_its_end(&caller, &id, timeout).await },
        )
        .await
    }

    async fn set_timeout_to_its_end(
        &self,
        caller: &Caller,
        id: &str,
        timeout: Duration,
    ) -> Result<SandboxInfo> {
        self.require(caller, SANDBOX_TIMEOUT)?;
        let timeout = if timeout.is_zero() { timeout } else { self.checked_lifetime(timeout)? };
        let entry = self.find(caller, id).await?;
        {
            let _step = entry.step.lock().await;
            if entry.state() == SandboxState::Paused {
                // Its clock stands: this is what will be left when it goes on.
                self.write(&entry, |row| {
                    let paused = row.paused_at.unwrap_or_else(Timestamp::now);
                    row.deadline_at = paused.checked_add(timeout).ok();
                })
                .await?;
            } else {
                self.move_deadline(&entry, timeout).await?;
            }
        }
        let set = Ok(());
        let details = vec![("timeout_s", timeout.as_secs_f64().to_string())];
        self.audit(caller, SANDBOX_TIMEOUT, Some(&entry.id), &set, details).await?;
        if timeout.is_zero() && entry.state() != SandboxState::Paused {
            // The guardian may be at it already: then this waits for it.
            match self.time_is_over(&entry).await {
                Err(
                    KeeperError::WrongState { state: SandboxState::Paused, .. } | KeeperError::Gone { .. },
                ) => {}
                done => done?,
            }
        }
        Ok(entry.info())
    }

    /// Writes a new deadline, and sets it. The caller holds the step lock.
    async fn move_deadline(&self, entry: &Arc<Entry>, timeout: Duration) -> Result<()> {
        let sandbox = entry.running("setting its timeout")?;
        self.write(entry, |row| row.deadline_at = after(timeout)).await?;
        self.set_deadlines(entry, &sandbox).await?;
        entry.changed.notify_one();
        Ok(())
    }

    /// Sets the keeper's own deadline, and that of whoever holds the walls, as the record says.
    pub(crate) async fn set_deadlines(&self, entry: &Arc<Entry>, sandbox: &Sandbox) -> Result<()> {
        let (left, action) = {
            let mut live = entry.live();
            let left = live.row.deadline_at.map(until);
            live.deadline = left.map(|left| Instant::now() + left);
            (left, live.on_timeout())
        };
        sandbox.set_deadline(holder_deadline(left, action)).await?;
        Ok(())
    }

    /// What was asked for when its time is over: it ends, or it stands still.
    pub(crate) async fn time_is_over(&self, entry: &Arc<Entry>) -> Result<()> {
        let action = entry.live().on_timeout();
        match action {
            TimeoutAction::Kill => self.end(entry, "timed out").await,
            TimeoutAction::Pause => match self.freeze(entry).await {
                // Where nothing can stand still it must not run on.
                Err(KeeperError::Engine(belljar_engine::EngineError::Unsupported { .. })) => {
                    self.end(entry, "timed out, and it could not be paused").await
                }
                paused => paused,
            },
        }
    }

    pub(crate) fn checked_lifetime(&self, timeout: Duration) -> Result<Duration> {
        let most = self.inner.config.now().max_lifetime;
        if timeout < Duration::from_secs(1) || timeout > most {
            let reason = format!("{timeout:?} is not allowed; give a time from 1 s to {most:?}");
            return Err(KeeperError::field("timeout", reason));
        }
        Ok(timeout)
    }

    /// Writes the record, and then has it in memory. Its state moves only as drawn in `SandboxState`. The caller holds the step
    /// lock.
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
                "the disk of the store is full: what was set aside for that is in use, and nothing new is begun"
            );
            updated = sandboxes.update(&mut row).await;
        }
        self.inner.metrics.stored(begin.elapsed());
        match updated {
            Err(StoreError::Conflict { .. }) => {
                return Err(KeeperError::TakenOver { id: entry.id.clone() });
            }
            written => written?,
        }
        self.inner.metrics.moved(old.state, row.state);
        let kind = match (old.state, row.state) {
            (old, new) if old == new => None,
            (_, SandboxState::Paused) => Some("sandbox.paused"),
            (SandboxState::Paused, SandboxState::Running) => Some("sandbox.resumed"),
            (_, SandboxState::Stopping) => Some("sandbox.stopping"),
            (_, SandboxState::Gone) => Some("sandbox.gone"),
            // That it can be used is told as `sandbox.created`.
            (_, SandboxState::Running | SandboxState::Creating) => None,
        };
        let reason = row.reason.clone().unwrap_or_default();
        entry.live().row = row;
        if let Some(kind) = kind {
            entry.publish(kind, None, reason);
        }
        Ok(())
    }

    /// Watches over a sandbox until it is gone: its end, its deadline, its idleness.
    pub(crate) fn guard(&self, entry: &Arc<Entry>) {
        let (keeper, entry) = (self.clone(), Arc::clone(entry));
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                let changed = entry.changed.notified();
                let (state, sandbox, deadline) = {
                    let live = entry.live();
                    (live.row.state, live.sandbox.clone(), live.deadline)
                };
                let Some(sandbox) = sandbox.filter(|_| state != SandboxState::Gone) else { return };
                let idle = entry.idle_until().filter(|_| state == SandboxState::Running);
                let over = deadline.into_iter().chain(idle).min();
                let done = tokio::select! {
                    how = sandbox.wait_ended() => keeper.end(&entry, &how).await,
                    () = sleep_until(over) => keeper.look_at_time(&entry).await,
                    () = changed => Ok(()),
                };
                if let Err(error) = done {
                    tracing::error!(sandbox = %entry.id, error = %crate::error::chain(&error), "cannot end or pause a sandbox; trying again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        });
    }

    /// A time has come: if it has not been moved meanwhile, it is over.
    async fn look_at_time(&self, entry: &Arc<Entry>) -> Result<()> {
        let now = Instant::now();
        let deadline = entry.live().deadline;
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if passed(deadline) || passed(entry.idle_until()) {
            return self.time_is_over(entry).await;
        }
        Ok(())
    }
}

/// How long the guardian waits after a failure.
const RETRY: Duration = Duration::from_secs(1);

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// The time for whoever holds the walls: a sandbox that is to be paused must not be ended by them.
pub(crate) fn holder_deadline(left: Option<Duration>, action: TimeoutAction) -> Option<Duration> {
    left.filter(|_| action == TimeoutAction::Kill).map(|left| left + HOLDER_SLACK)
}

/// The time `timeout` from now.
pub(crate) fn after(timeout: Duration) -> Option<Timestamp> {
    Timestamp::now().checked_add(timeout).ok()
}

pub(crate) fn not_found(id: &str) -> KeeperError {
    KeeperError::NotFound { what: "sandbox", id: id.chars().take(64).collect() }
}

impl Caller {
    /// Whether the sandbox may be known to it.
    pub(crate) fn may_see(&self, tenant: &str, id: &SandboxId) -> bool {
        match &self.only {
            Some(only) => ServiceWall::TokenScope.allows(only == id),
            None => self.may_see_tenant(tenant),
        }
    }

    /// Whether what is this tenant's may be seen.
    pub(crate) fn may_see_tenant(&self, tenant: &str) -> bool {
        ServiceWall::Tenants.allows(self.role == Role::Admin || self.tenant == tenant)
    }
}
