//! Pools of pre-warmed sandboxes: for the template `default`, and for each other recently used one, with its files in place.
//!
//! A pooled sandbox has no owner and no record: after a crash it is removed, as the store does not know it. Files and environment
//! are applied when it is taken.
//! Everything else that code inside can see must equal the pool's specification, or the caller gets a freshly launched sandbox: the
//! files that state its limits are written at its start (docs/decisions/0042-limits-as-programs-see-them.md). The tenant that ran code last
//! finds a warm interpreter in them (`warm.rs`); no other tenant gets those sandboxes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belljar_engine::{CreateRequest, Engines, Sandbox, v1};
use belljar_model::SandboxSpec;
use bytes::Bytes;
use futures::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::head_room::Purpose;
use crate::keeper::Keeper;
use crate::request::resolve;
use crate::templates::{DEFAULT_TEMPLATE, Origin};

/// Delay before a retry after a failed launch.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Pause after a sandbox was taken before the next is launched, while the pool is at least half full: the new owner is running
/// something in it and would compete with the launch for the processors.
const COOLDOWN: Duration = Duration::from_millis(30);

/// The same while the pool is less than half full, but not empty: about the time in which the new owner's first command runs.
const SHORT_COOLDOWN: Duration = Duration::from_millis(4);

/// Interval of checks whether pooled sandboxes are still alive.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time after its last use for which a template has a pool. `default` always has one.
const RECENT_USE: Duration = Duration::from_secs(600);

/// Maximum number of templates with a pool, besides `default`; the least recently used one is evicted.
const MAX_TEMPLATES: usize = 16;

/// Maximum size of a template with a pool, in bytes of its archive: its files are in memory in each sandbox.
const MAX_TEMPLATE_BYTES: u64 = 64 << 20;

/// The pools of all templates.
pub(crate) struct Pools {
    engines: Engines,
    default: Arc<Pool>,
    /// Pools of recently used templates, by id.
    recent: Mutex<HashMap<String, Arc<Pool>>>,
    /// Size of each pool but the default one.
    template_size: AtomicUsize,
    changed: Notify,
    /// Locked during a launch, so that shutdown can wait for it.
    launching: tokio::sync::Mutex<()>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Pools {
    /// Creates pools of `size` sandboxes for the template `default`, and of `template_size` for each other one in use.
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
            recent: Mutex::default(),
            template_size: AtomicUsize::new(template_size),
            changed: Notify::new(),
            launching: tokio::sync::Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Takes a sandbox that fits `wanted` and this tenant.
    pub(crate) fn take(&self, origin: &Origin, wanted: &SandboxSpec, tenant: &str) -> Option<Ready> {
        let pool = if origin.id == DEFAULT_TEMPLATE {
            Arc::clone(&self.default)
        } else {
            self.pool_for(origin, wanted)?
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

    /// Returns the pool of a template; creates it on the first use.
    fn pool_for(&self, origin: &Origin, wanted: &SandboxSpec) -> Option<Arc<Pool>> {
        let size = self.template_size.load(Ordering::Relaxed);
        if size == 0 || origin.id.is_empty() || origin.bytes > MAX_TEMPLATE_BYTES {
            return None;
        }
        let mut recent = self.recent();
        if let Some(pool) = recent.get(&origin.id) {
            if pool.size() == 0 {
                pool.resize(size);
            }
            return Some(Arc::clone(pool));
        }
        let mut spec =
            resolve(&self.engines, self.default.spec.grade, &origin.spec, Default::default()).ok()?;
        spec.tree = wanted.tree.clone();
        if origin.image.is_some() {
            // Other engines than the default one have images.
            spec.engine = wanted.engine;
        }
        let used = recent.values().filter(|pool| pool.size() > 0);
        if used.clone().count() >= MAX_TEMPLATES
            && let Some(oldest) = used.min_by_key(|pool| pool.last_taken())
        {
            oldest.resize(0);
        }
        let pool = Arc::new(Pool::new(origin.clone(), spec, size));
        recent.insert(origin.id.clone(), Arc::clone(&pool));
        Some(pool)
    }

    /// Empties and removes the pool of a template.
    pub(crate) fn discard(&self, template: &str) {
        if let Some(pool) = self.recent().get(template) {
            pool.resize(0);
        }
        self.changed.notify_one();
    }

    /// Returns the numbers of ready and of wanted sandboxes.
    pub(crate) fn level(&self) -> (usize, usize) {
        let all = self.all();
        (all.iter().map(|pool| pool.lock().len()).sum(), all.iter().map(|pool| pool.size()).sum())
    }

    /// Changes the sizes of the default pool and of each other one.
    pub(crate) fn resize(&self, size: usize, template_size: usize) {
        self.default.resize(size);
        self.template_size.store(template_size, Ordering::Relaxed);
        self.recent().values().filter(|pool| pool.size() > 0).for_each(|pool| pool.resize(template_size));
        self.changed.notify_one();
    }

    /// Waits for a launch in flight, and takes out all sandboxes to be stopped. Nothing is launched during shutdown.
    pub(crate) async fn drain(&self) -> Vec<Sandbox> {
        let _launching = self.launching.lock().await;
        let drained = |pool: &Arc<Pool>| pool.lock().drain(..).map(|ready| ready.sandbox).collect::<Vec<_>>();
        self.all().iter().flat_map(drained).collect()
    }

    /// Returns all pools, `default` first. Discards those of templates that have not been used recently.
    fn all(&self) -> Vec<Arc<Pool>> {
        let mut recent = self.recent();
        for pool in recent.values().filter(|pool| pool.last_taken().elapsed() > RECENT_USE) {
            pool.resize(0);
        }
        recent.retain(|_, pool| pool.size() > 0 || !pool.lock().is_empty() || Arc::strong_count(pool) > 1);
        std::iter::once(&self.default).chain(recent.values()).cloned().collect()
    }

    fn recent(&self) -> MutexGuard<'_, HashMap<String, Arc<Pool>>> {
        self.recent.lock()
    }
}

/// A pre-warmed sandbox.
pub(crate) struct Ready {
    pub(crate) sandbox: Sandbox,
    /// The tenant whose warm interpreter waits in it, if any.
    pub(crate) warm_for: Option<String>,
}

/// The pre-warmed sandboxes of one template.
struct Pool {
    origin: Origin,
    spec: SandboxSpec,
    size: AtomicUsize,
    /// Set when a request found only sandboxes with other tenants' interpreters.
    has_foreign_only: AtomicBool,
    ready: Mutex<VecDeque<Ready>>,
    last_taken: Mutex<Instant>,
    /// Time of the last failed launch.
    failed_at: Mutex<Option<Instant>>,
}

impl Pool {
    fn new(origin: Origin, spec: SandboxSpec, size: usize) -> Self {
        Self {
            origin,
            spec: SandboxSpec { env: Vec::new(), ..spec },
            size: AtomicUsize::new(size),
            has_foreign_only: AtomicBool::new(false),
            ready: Mutex::default(),
            last_taken: Mutex::new(Instant::now()),
            failed_at: Mutex::default(),
        }
    }

    fn take(&self, wanted: &SandboxSpec, tenant: &str) -> Option<Ready> {
        self.remove_ended();
        *self.last_taken.lock() = Instant::now();
        if !fits(&self.spec, wanted) {
            return None;
        }
        let mut ready = self.lock();
        // Prefers a sandbox with this tenant's interpreter; one with another tenant's is never given out.
        let of = |ready: &Ready| ready.warm_for.as_deref().map(|owner| owner == tenant);
        let place = ready.iter().position(|ready| of(ready) == Some(true));
        let Some(place) = place.or_else(|| ready.iter().position(|ready| of(ready).is_none())) else {
            self.has_foreign_only.store(!ready.is_empty(), Ordering::Relaxed);
            return None;
        };
        ready.remove(place)
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

    /// Removes sandboxes that have ended, as after a crash of their launcher. Their resources have been released by then.
    fn remove_ended(&self) {
        self.lock().retain(|ready| !has_ended(&ready.sandbox));
    }

    /// Takes out a sandbox to be stopped, if there are too many.
    fn take_surplus(&self) -> Option<Sandbox> {
        let mut ready = self.lock();
        if ready.len() > self.size() { ready.pop_front().map(|ready| ready.sandbox) } else { None }
    }

    /// Takes out a sandbox with another tenant's interpreter, to make room, if a request found only such ones.
    fn take_foreign(&self) -> Option<Sandbox> {
        if !self.has_foreign_only.swap(false, Ordering::Relaxed) {
            return None;
        }
        let mut ready = self.lock();
        let place = ready.iter().position(|ready| ready.warm_for.is_some())?;
        ready.remove(place).map(|ready| ready.sandbox)
    }

    /// Returns the remaining pause before the next launch.
    fn cooldown_remaining(&self) -> Option<Duration> {
        let remaining = |delay: Duration, since: Instant| {
            delay.checked_sub(since.elapsed()).filter(|rest| !rest.is_zero())
        };
        if let Some(rest) = self.failed_at.lock().and_then(|at| remaining(RETRY_DELAY, at)) {
            return Some(rest);
        }
        remaining(cooldown(self.lock().len(), self.size()), self.last_taken())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Ready>> {
        self.ready.lock()
    }
}

/// Returns the pause between the last request and the next launch, for a pool of `size` with `ready` sandboxes left.
fn cooldown(ready: usize, size: usize) -> Duration {
    match ready {
        0 => Duration::ZERO,
        few if few * 2 < size => SHORT_COOLDOWN,
        _ => COOLDOWN,
    }
}

/// Reports whether a sandbox is known to have ended.
pub(crate) fn has_ended(sandbox: &Sandbox) -> bool {
    sandbox.wait_ended().now_or_never().is_some()
}

/// Reports whether a sandbox created as `made` is one of the specification `wanted`, once it has its environment.
fn fits(made: &SandboxSpec, wanted: &SandboxSpec) -> bool {
    let here = &made.limits;
    // May differ, as only the host uses them: the timeout of an execution, and how much of its output is kept.
    let mut same = wanted.clone();
    same.env = made.env.clone();
    same.limits.timeout = here.timeout;
    same.limits.output = here.output;
    same.limits.log = here.log;
    same == *made
}

impl Keeper {
    /// Spawns a task that keeps the pools full.
    pub(crate) fn spawn_pool_filling(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                let changed = keeper.inner.pools.changed.notified();
                let mut rest = CHECK_INTERVAL;
                for pool in keeper.inner.pools.all() {
                    rest = rest.min(keeper.fill(&pool).await);
                }
                if !rest.is_zero() {
                    let _ = tokio::time::timeout(rest, changed).await;
                }
            }
        });
    }

    /// Launches or stops at most one sandbox of a pool; returns the time to wait before the next step.
    async fn fill(&self, pool: &Pool) -> Duration {
        if let Some(sandbox) = pool.take_surplus().or_else(|| pool.take_foreign()) {
            if let Err(error) = sandbox.stop().await {
                tracing::warn!(error = %crate::error::chain(&error), "cannot stop a pre-warmed sandbox");
            }
            return Duration::ZERO;
        }
        pool.remove_ended();
        if pool.lock().len() >= pool.size() {
            return CHECK_INTERVAL;
        }
        if let Some(rest) = pool.cooldown_remaining() {
            return rest;
        }
        match self.add_to_pool(pool).await {
            Ok(()) => Duration::ZERO,
            Err(error) => {
                let template = &pool.origin.name;
                tracing::warn!(error = %crate::error::chain(&error), template, "cannot pre-warm a sandbox");
                // The template may have been removed. If not, its next use creates the pool again.
                if pool.origin.id != DEFAULT_TEMPLATE {
                    self.inner.pools.discard(&pool.origin.id);
                    return Duration::ZERO;
                }
                *pool.failed_at.lock() = Some(Instant::now());
                RETRY_DELAY
            }
        }
    }

    async fn add_to_pool(&self, pool: &Pool) -> crate::keeper::Result<()> {
        let _launching = self.inner.pools.launching.lock().await;
        if self.inner.closing.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.inner.config.now().capacity().check(Purpose::Lasting)?;
        // Requests come first.
        let Some(_permit) = self.inner.gate.try_acquire_idle() else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(());
        };
        let id = crate::create::new_id()?;
        let request = CreateRequest::long_lived(&id, &pool.spec, None);
        let sandbox = self.launch_on(request, &id, &pool.origin).await?;
        if let Err(error) = self.unpack(&pool.origin, &sandbox).await {
            sandbox.stop().await?;
            return Err(error);
        }
        let warm_for = self.prewarm_pooled(&sandbox, &pool.spec.tree).await;
        rehearse(&sandbox).await;
        pool.lock().push_back(Ready { sandbox, warm_for });
        Ok(())
    }
}

/// Asks the guest to start a program that cannot be started, the root directory. That warms up the guest's and the kernel's pages
/// for the first real start, and leaves nothing behind, not even a used process number.
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
    fn the_emptier_the_pool_the_sooner_it_is_refilled() {
        assert_eq!(cooldown(0, 8), Duration::ZERO);
        assert_eq!(cooldown(3, 8), SHORT_COOLDOWN);
        assert_eq!(cooldown(4, 8), COOLDOWN);
        // The only one of the pool is replaced at once.
        assert_eq!(cooldown(0, 1), Duration::ZERO);
        assert!(SHORT_COOLDOWN < COOLDOWN);
    }

    #[test]
    fn only_what_programs_cannot_see_may_differ() {
        let made = spec("{}");
        assert!(fits(
            &made,
            &spec(r#"{"env":{"A":"1"},"limits":{"timeout":"5s","output":"1m","log":"1m"}}"#)
        ));
        for other in [
            r#"{"limits":{"memory":"64m","disk":"480m","tmp":"480m"}}"#,
            r#"{"limits":{"cpus":"0.5"}}"#,
            r#"{"limits":{"pids":"20"}}"#,
            r#"{"limits":{"disk":"9m"}}"#,
            r#"{"limits":{"tmp":"9m"}}"#,
            r#"{"limits":{"inodes":"99"}}"#,
            r#"{"limits":{"open_files":"99"}}"#,
            r#"{"hostname":"other"}"#,
            r#"{"engine":"process"}"#,
            r#"{"grade":"watched"}"#,
            r#"{"mounts":["/srv:/srv"]}"#,
        ] {
            assert!(!fits(&made, &spec(other)), "{other}");
        }
    }
}
