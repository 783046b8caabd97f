//! Sandboxes that are made ahead, so that whoever asks for one gets it at once.
//!
//! A sandbox of the pool belongs to nobody and is in no book: after a crash, one that the store does not know is removed.
//! What a caller asks for is applied when it is taken: files, environment, and the limits that can change while it lives.
//! What cannot change then must be as the pool's sandboxes were made; else the caller gets one made for him.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belljar_engine::Sandbox;
use belljar_model::{LimitsChange, SandboxSpec};
use futures::FutureExt as _;
use tokio::sync::Notify;

use crate::keeper::Keeper;

/// How long the pool waits after it could not make a sandbox.
const RETRY: Duration = Duration::from_secs(2);

/// How long after one was taken the next is made, as long as half of them are there: whoever took it runs something in it
/// now, and would share the processors with the making.
const QUIET: Duration = Duration::from_millis(10);

/// How often the pool looks whether its sandboxes still live.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The pool of the template `default`.
pub(crate) struct Pool {
    size: AtomicUsize,
    spec: SandboxSpec,
    ready: Mutex<VecDeque<Sandbox>>,
    taken: Notify,
    last_taken: Mutex<Option<Instant>>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Pool {
    /// A pool of `size` sandboxes that are as `spec` says.
    pub(crate) fn new(size: usize, spec: SandboxSpec) -> Self {
        let spec = SandboxSpec { env: Vec::new(), ..spec };
        Self {
            size: AtomicUsize::new(size),
            spec,
            ready: Mutex::new(VecDeque::new()),
            taken: Notify::new(),
            last_taken: Mutex::new(None),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// A sandbox that can be made what `wanted` says, and what is to be changed of it for that.
    pub(crate) fn take(&self, wanted: &SandboxSpec) -> Option<(Sandbox, LimitsChange)> {
        if self.size() == 0 {
            return None;
        }
        self.bury();
        let found =
            difference(&self.spec, wanted).and_then(|change| Some((self.lock().pop_front()?, change)));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        if found.is_some() {
            *self.last_taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            self.taken.notify_one();
        }
        found
    }

    /// How many are ready, and how many should be.
    pub(crate) fn level(&self) -> (usize, usize) {
        (self.lock().len(), self.size())
    }

    /// How many there should be.
    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// What they are like.
    pub(crate) fn spec(&self) -> &SandboxSpec {
        &self.spec
    }

    /// Says how many there should be from now on.
    pub(crate) fn resize(&self, size: usize) {
        self.size.store(size, Ordering::Relaxed);
        self.taken.notify_one();
    }

    /// Throws away those that have ended: whoever held them may have died. What they held is removed by then.
    fn bury(&self) {
        self.lock().retain(|sandbox| !has_ended(sandbox));
    }

    /// Takes out one that is too many, to be ended.
    fn surplus(&self) -> Option<Sandbox> {
        let mut ready = self.lock();
        if ready.len() > self.size() { ready.pop_front() } else { None }
    }

    /// What is left of the time in which nothing is made.
    fn quiet(&self) -> Option<Duration> {
        if self.lock().len() * 2 < self.size() {
            return None;
        }
        let taken = (*self.last_taken.lock().unwrap_or_else(PoisonError::into_inner))?;
        QUIET.checked_sub(taken.elapsed()).filter(|rest| !rest.is_zero())
    }

    /// Takes out all, to be ended.
    pub(crate) fn drain(&self) -> Vec<Sandbox> {
        self.lock().drain(..).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Sandbox>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a sandbox is known to have ended.
pub(crate) fn has_ended(sandbox: &Sandbox) -> bool {
    sandbox.ended().now_or_never().is_some()
}

/// What must change of a sandbox made as `made` to become `wanted`; nothing if that cannot be.
fn difference(made: &SandboxSpec, wanted: &SandboxSpec) -> Option<LimitsChange> {
    let (here, there) = (&made.limits, &wanted.limits);
    let change = LimitsChange {
        memory: (here.memory != there.memory).then_some(there.memory),
        cpus: (here.cpus != there.cpus).then_some(there.cpus),
        pids: (here.pids != there.pids).then_some(there.pids),
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
    /// Keeps the pool full, in a task of its own.
    pub(crate) fn fill_pool(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                let pool = &keeper.inner.pool;
                let taken = pool.taken.notified();
                if let Some(sandbox) = pool.surplus() {
                    if let Err(error) = sandbox.stop().await {
                        tracing::warn!(error = %crate::error::chain(&error), "cannot end a sandbox made ahead");
                    }
                    continue;
                }
                pool.bury();
                if pool.lock().len() >= pool.size() {
                    let _ = tokio::time::timeout(LOOK_EVERY, taken).await;
                    continue;
                }
                if let Some(rest) = pool.quiet() {
                    tokio::time::sleep(rest).await;
                    continue;
                }
                if let Err(error) = keeper.add_to_pool().await {
                    tracing::warn!(error = %crate::error::chain(&error), "cannot make a sandbox ahead");
                    tokio::time::sleep(RETRY).await;
                }
            }
        });
    }

    async fn add_to_pool(&self) -> crate::keeper::Result<()> {
        crate::head_room::Left::look(&self.inner.config.now().state_dir)
            .check(&self.inner.config.now().head_room)?;
        // Whoever waits for a start comes first.
        let Some(_permit) = self.inner.gate.pass_if_free() else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            return Ok(());
        };
        let id = crate::create::new_id()?;
        let sandbox = self.inner.engine.launch_as(&id, &self.inner.pool.spec, None).await?;
        if self.inner.closing.load(Ordering::Relaxed) {
            sandbox.stop().await?;
            return Ok(());
        }
        self.inner.pool.lock().push_back(sandbox);
        Ok(())
    }
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
