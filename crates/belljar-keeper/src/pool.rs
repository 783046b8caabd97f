//! Sandboxes that are made ahead, so that whoever asks for one gets it at once: of the template `default`, and of each other
//! that was used lately, with its files in place.
//!
//! A sandbox of a pool belongs to nobody and is in no book: after a crash, one that the store does not know is removed.
//! What a caller asks for is applied when it is taken: files, environment, and the limits that can change while it lives.
//! What cannot change then must be as the pool's sandboxes were made; else the caller gets one made for him.
//! Whoever has run code last finds a warm interpreter in them (`warm.rs`); nobody else gets those.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belljar_engine::{CreateRequest, Engines, Sandbox, v1};
use belljar_model::{LimitsChange, SandboxSpec, Tree};
use bytes::Bytes;
use futures::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::keeper::Keeper;
use crate::request::resolve;
use crate::templates::{DEFAULT_TEMPLATE, Origin};

/// How long a pool waits after it could not make a sandbox.
const RETRY: Duration = Duration::from_secs(2);

/// How long after one was taken the next is made, as long as half of them are there: whoever took it runs something in it
/// now, and would share the processors with the making.
const QUIET: Duration = Duration::from_millis(30);

/// How often a pool looks whether its sandboxes still live.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long after its last use a template has a pool. That of `default` is always there.
const LATELY: Duration = Duration::from_secs(600);

/// Templates that have a pool at once, besides `default`; the one that was not used for longest gives way.
const MAX_TEMPLATES: usize = 16;

/// The largest template that has a pool, in bytes of its archive: its files are in memory in each sandbox.
const MAX_TEMPLATE_BYTES: u64 = 64 << 20;

/// All pools.
pub(crate) struct Pools {
    engines: Engines,
    default: Arc<Pool>,
    /// Of templates that were used lately, by id.
    lately: Mutex<HashMap<String, Arc<Pool>>>,
    /// What a template's pool has.
    template_size: AtomicUsize,
    changed: Notify,
    /// Held while one is made, so that the end of the keeper can wait for it.
    making: tokio::sync::Mutex<()>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Pools {
    /// Pools of `size` sandboxes of the template `default`, and of `template_size` of each that is used.
    pub(crate) fn new(
        engines: Engines,
        default: Origin,
        spec: SandboxSpec,
        size: usize,
        template_size: usize,
    ) -> Self {
        Self {
            engines,
            default: Arc::new(Pool::new(default, spec, size)),
            lately: Mutex::default(),
            template_size: AtomicUsize::new(template_size),
            changed: Notify::new(),
            making: tokio::sync::Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// A sandbox of this template that can be made what `wanted` says for this tenant, and what is to be changed of it for that.
    pub(crate) fn take(
        &self,
        origin: &Origin,
        wanted: &SandboxSpec,
        tenant: &str,
    ) -> Option<(Ready, LimitsChange)> {
        let pool = if origin.id == DEFAULT_TEMPLATE {
            Arc::clone(&self.default)
        } else {
            self.of(origin, &wanted.tree)?
        };
        if pool.size() == 0 {
            return None;
        }
        let found = pool.take(wanted, tenant);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
        found
    }

    /// The pool of a template, which it gets with its first use.
    fn of(&self, origin: &Origin, tree: &Tree) -> Option<Arc<Pool>> {
        let size = self.template_size.load(Ordering::Relaxed);
        if size == 0 || origin.id.is_empty() || origin.bytes > MAX_TEMPLATE_BYTES {
            return None;
        }
        let mut lately = self.lately();
        if let Some(pool) = lately.get(&origin.id) {
            if pool.size() == 0 {
                pool.resize(size);
            }
            return Some(Arc::clone(pool));
        }
        let mut spec = resolve(&self.engines, &origin.spec, Default::default()).ok()?;
        spec.tree = tree.clone();
        let used = lately.values().filter(|pool| pool.size() > 0);
        if used.clone().count() >= MAX_TEMPLATES
            && let Some(oldest) = used.min_by_key(|pool| pool.last_taken())
        {
            oldest.resize(0);
        }
        let pool = Arc::new(Pool::new(origin.clone(), spec, size));
        lately.insert(origin.id.clone(), Arc::clone(&pool));
        Some(pool)
    }

    /// Gives up the pool of a template.
    pub(crate) fn give_up(&self, template: &str) {
        if let Some(pool) = self.lately().get(template) {
            pool.resize(0);
        }
        self.changed.notify_one();
    }

    /// How many are ready, and how many should be.
    pub(crate) fn level(&self) -> (usize, usize) {
        let all = self.all();
        (all.iter().map(|pool| pool.lock().len()).sum(), all.iter().map(|pool| pool.size()).sum())
    }

    /// Says how many there should be from now on: of the template `default`, and of each other that is used.
    pub(crate) fn resize(&self, size: usize, template_size: usize) {
        self.default.resize(size);
        self.template_size.store(template_size, Ordering::Relaxed);
        self.lately().values().filter(|pool| pool.size() > 0).for_each(|pool| pool.resize(template_size));
        self.changed.notify_one();
    }

    /// Takes out all, to be ended, when the one that is being made is there. No more are made by a keeper that closes.
    pub(crate) async fn drain(&self) -> Vec<Sandbox> {
        let _making = self.making.lock().await;
        let drained = |pool: &Arc<Pool>| pool.lock().drain(..).map(|ready| ready.sandbox).collect::<Vec<_>>();
        self.all().iter().flat_map(drained).collect()
    }

    /// All pools, `default` first. Those of templates that were not used for long are given up.
    fn all(&self) -> Vec<Arc<Pool>> {
        let mut lately = self.lately();
        for pool in lately.values().filter(|pool| pool.last_taken().elapsed() > LATELY) {
            pool.resize(0);
        }
        lately.retain(|_, pool| pool.size() > 0 || !pool.lock().is_empty() || Arc::strong_count(pool) > 1);
        std::iter::once(&self.default).chain(lately.values()).cloned().collect()
    }

    fn lately(&self) -> MutexGuard<'_, HashMap<String, Arc<Pool>>> {
        self.lately.lock()
    }
}

/// A sandbox that is ready.
pub(crate) struct Ready {
    pub(crate) sandbox: Sandbox,
    /// The tenant whose warm interpreter waits in it, if there is one.
    pub(crate) warm_for: Option<String>,
}

/// The sandboxes of one template.
struct Pool {
    origin: Origin,
    spec: SandboxSpec,
    size: AtomicUsize,
    /// Whether somebody has found interpreters of other tenants only.
    is_anothers: AtomicBool,
    ready: Mutex<VecDeque<Ready>>,
    last_taken: Mutex<Instant>,
}

impl Pool {
    fn new(origin: Origin, spec: SandboxSpec, size: usize) -> Self {
        Self {
            origin,
            spec: SandboxSpec { env: Vec::new(), ..spec },
            size: AtomicUsize::new(size),
            is_anothers: AtomicBool::new(false),
            ready: Mutex::default(),
            last_taken: Mutex::new(Instant::now()),
        }
    }

    fn take(&self, wanted: &SandboxSpec, tenant: &str) -> Option<(Ready, LimitsChange)> {
        self.bury();
        *self.last_taken.lock() = Instant::now();
        let change = difference(&self.spec, wanted)?;
        let mut ready = self.lock();
        // One with an interpreter that waits for this tenant is the best; nobody gets one with another's.
        let of = |ready: &Ready| ready.warm_for.as_deref().map(|owner| owner == tenant);
        let place = ready.iter().position(|ready| of(ready) == Some(true));
        let Some(place) = place.or_else(|| ready.iter().position(|ready| of(ready).is_none())) else {
            self.is_anothers.store(!ready.is_empty(), Ordering::Relaxed);
            return None;
        };
        Some((ready.remove(place)?, change))
    }

    fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    fn resize(&self, size: usize) {
        self.size.store(size, Ordering::Relaxed);
    }

    fn last_taken(&self) -> Instant {
        *self.last_taken.lock()
    }

    /// Throws away those that have ended: whoever held them may have died. What they held is removed by then.
    fn bury(&self) {
        self.lock().retain(|ready| !has_ended(&ready.sandbox));
    }

    /// Takes out one that is too many, to be ended.
    fn surplus(&self) -> Option<Sandbox> {
        let mut ready = self.lock();
        if ready.len() > self.size() { ready.pop_front().map(|ready| ready.sandbox) } else { None }
    }

    /// Takes out one whose interpreter waits for a tenant who is not the one that asked, to make room.
    fn anothers(&self) -> Option<Sandbox> {
        if !self.is_anothers.swap(false, Ordering::Relaxed) {
            return None;
        }
        let mut ready = self.lock();
        let place = ready.iter().position(|ready| ready.warm_for.is_some())?;
        ready.remove(place).map(|ready| ready.sandbox)
    }

    /// What is left of the time in which nothing is made.
    fn quiet(&self) -> Option<Duration> {
        if self.lock().len() * 2 < self.size() {
            return None;
        }
        QUIET.checked_sub(self.last_taken().elapsed()).filter(|rest| !rest.is_zero())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Ready>> {
        self.ready.lock()
    }
}

/// Whether a sandbox is known to have ended.
pub(crate) fn has_ended(sandbox: &Sandbox) -> bool {
    sandbox.wait_ended().now_or_never().is_some()
}

/// What must change of a sandbox made as `made` to become `wanted`; nothing if that cannot be.
fn difference(made: &SandboxSpec, wanted: &SandboxSpec) -> Option<LimitsChange> {
    let (here, there) = (&made.limits, &wanted.limits);
    let change = LimitsChange {
        memory: (here.memory != there.memory).then_some(there.memory),
        cpus: (here.cpus != there.cpus).then_some(there.cpus),
        pids: (here.pids != there.pids).then_some(there.pids),
        shared_by: None,
    };
    // What the host keeps for itself differs without harm: the time of an execution, how much of its output is kept.
    let mut same = wanted.clone();
    same.env = made.env.clone();
    same.limits.memory = here.memory;
    same.limits.cpus = here.cpus;
    same.limits.pids = here.pids;
    same.limits.timeout = here.timeout;
    same.limits.output = here.output;
    same.limits.log = here.log;
    (same == *made).then_some(change)
}

impl Keeper {
    /// Keeps the pools full, in a task of its own.
    pub(crate) fn fill_pools(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                let changed = keeper.inner.pools.changed.notified();
                let mut rest = LOOK_EVERY;
                for pool in keeper.inner.pools.all() {
                    rest = rest.min(keeper.fill(&pool).await);
                }
                if !rest.is_zero() {
                    let _ = tokio::time::timeout(rest, changed).await;
                }
            }
        });
    }

    /// Takes one step towards what the pool should have, and says how long to wait for the next.
    async fn fill(&self, pool: &Pool) -> Duration {
        if let Some(sandbox) = pool.surplus().or_else(|| pool.anothers()) {
            if let Err(error) = sandbox.stop().await {
                tracing::warn!(error = %crate::error::chain(&error), "cannot end a sandbox made ahead");
            }
            return Duration::ZERO;
        }
        pool.bury();
        if pool.lock().len() >= pool.size() {
            return LOOK_EVERY;
        }
        if let Some(rest) = pool.quiet() {
            return rest;
        }
        match self.add_to_pool(pool).await {
            Ok(()) => Duration::ZERO,
            Err(error) => {
                let template = &pool.origin.name;
                tracing::warn!(error = %crate::error::chain(&error), template, "cannot make a sandbox ahead");
                // The files of a template that was removed are not there any more. With its next use it may try again.
                if pool.origin.id != DEFAULT_TEMPLATE {
                    self.inner.pools.give_up(&pool.origin.id);
                    return Duration::ZERO;
                }
                tokio::time::sleep(RETRY).await;
                Duration::ZERO
            }
        }
    }

    async fn add_to_pool(&self, pool: &Pool) -> crate::keeper::Result<()> {
        let _making = self.inner.pools.making.lock().await;
        if self.inner.closing.load(Ordering::Relaxed) {
            return Ok(());
        }
        crate::head_room::Left::look(&self.inner.config.now().state_dir)
            .check(&self.inner.config.now().head_room)?;
        // Whoever waits for a start comes first.
        let Some(_permit) = self.inner.gate.pass_if_free() else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(());
        };
        let id = crate::create::new_id()?;
        let sandbox =
            self.engine(pool.spec.engine)?.create(CreateRequest::long(&id, &pool.spec, None)).await?;
        if let Err(error) = self.unpack(&pool.origin, &sandbox).await {
            sandbox.stop().await?;
            return Err(error);
        }
        let warm_for = self.warm_in_pool(&sandbox, &pool.spec.tree).await;
        rehearse(&sandbox).await;
        pool.lock().push_back(Ready { sandbox, warm_for });
        Ok(())
    }
}

/// Asks for a program that cannot be started: the root directory. What a guest does for the first time takes it longer, as neither its
/// pages nor the kernel's are there yet, and this leaves nothing behind, not even the number of a process.
async fn rehearse(sandbox: &Sandbox) {
    let nothing = v1::StartRequest { argv: vec![Bytes::from_static(b"/")], ..Default::default() };
    let _ = sandbox.guest().call(nothing).await;
}

#[cfg(test)]
mod tests {
    use belljar_model::SpecFile;

    use super::*;

    fn spec(json: &str) -> SandboxSpec {
        SpecFile::from_json(json).unwrap().resolve().unwrap()
    }

    #[test]
    fn only_what_can_change_may_differ() {
        let made = spec("{}");
        let same =
            difference(&made, &spec(r#"{"env":{"A":"1"},"limits":{"timeout":"5s","output":"1m"}}"#)).unwrap();
        assert!(same.is_empty());
        let change =
            difference(&made, &spec(r#"{"limits":{"memory":"64m","cpus":"0.5","pids":"20"}}"#)).unwrap();
        assert_eq!(change.memory.unwrap().bytes(), 64 << 20);
        assert!(change.cpus.is_some() && change.pids.is_some());
        for other in [
            r#"{"limits":{"disk":"9m"}}"#,
            r#"{"limits":{"tmp":"9m"}}"#,
            r#"{"limits":{"inodes":"99"}}"#,
            r#"{"limits":{"open_files":"99"}}"#,
            r#"{"hostname":"other"}"#,
            r#"{"engine":"process"}"#,
            r#"{"grade":"watched"}"#,
            r#"{"mounts":["/srv:/srv"]}"#,
        ] {
            assert_eq!(difference(&made, &spec(other)), None, "{other}");
        }
    }
}
