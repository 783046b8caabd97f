//! Fair shares of processor time between tenants: all sandboxes of one tenant together have the CPU weight of a single sandbox.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_model::LimitsChange;
use belljar_store::ServiceWall;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::entry::Entry;
use crate::keeper::Keeper;

/// What has changed in the number of each tenant's sandboxes.
#[derive(Default)]
pub(crate) struct Crowds {
    /// The new sandboxes of each tenant whose number of sandboxes has changed.
    changed: Mutex<HashMap<String, Vec<Arc<Entry>>>>,
    notify: Notify,
}

impl Crowds {
    /// Notes a new sandbox.
    pub(crate) fn grew(&self, entry: &Arc<Entry>) {
        self.changed.lock().entry(entry.tenant.clone()).or_default().push(Arc::clone(entry));
        self.wake();
    }

    /// Notes that a tenant has one sandbox less.
    pub(crate) fn shrank(&self, tenant: &str) {
        self.changed.lock().entry(tenant.to_owned()).or_default();
        self.wake();
    }

    /// Wakes the task that applies the changes.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }
}

impl Keeper {
    /// Spawns a task that gives each sandbox its part of its tenant's weight whenever their number changes.
    pub(crate) fn spawn_fair_shares(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            let mut divisors = HashMap::new();
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                keeper.apply_fair_shares(&mut divisors).await;
                keeper.inner.crowds.notify.notified().await;
            }
        });
    }

    /// Sets the weights that have changed: of a tenant's new sandboxes, or of all its sandboxes if its divisor has changed.
    async fn apply_fair_shares(&self, divisors: &mut HashMap<String, NonZeroU16>) {
        let changed = std::mem::take(&mut *self.inner.crowds.changed.lock());
        if ServiceWall::FairShares.is_down() {
            return;
        }
        for (tenant, new) in changed {
            let now = divisors.get(&tenant).copied().unwrap_or(NonZeroU16::MIN);
            let (divisor, entries) = {
                let entries = self.inner.entries.read();
                let Some(own) = entries.of_tenant(&tenant) else {
                    divisors.remove(&tenant);
                    continue;
                };
                match next_divisor(own.by_id.len(), now.get()) {
                    Some(next) => (next, own.by_id.values().cloned().collect()),
                    None => (now, new),
                }
            };
            divisors.insert(tenant, divisor);
            for entry in entries {
                entry.set_divisor(divisor).await;
            }
        }
    }
}

impl Entry {
    async fn set_divisor(&self, divisor: NonZeroU16) {
        // One without a sandbox is being created, and gets its divisor afterwards.
        let Some(sandbox) = self.live().sandbox.clone() else { return };
        if self.shared_by.swap(divisor.get(), Ordering::Relaxed) == divisor.get() {
            return;
        }
        let change = LimitsChange { shared_by: Some(divisor), ..LimitsChange::default() };
        if let Err(error) = sandbox.set_limits(&change).await {
            log(self, &error);
        }
    }
}

/// Logs a failed change of weight at debug level: an engine without control groups has no weights, and a sandbox that has just
/// ended has no group.
fn log(entry: &Entry, error: &belljar_engine::EngineError) {
    tracing::debug!(sandbox = %entry.id, error = %crate::error::chain(error), "cannot change the weight of a sandbox");
}

/// Number of sandboxes from which on hysteresis applies; see [`next_divisor`].
const HYSTERESIS_MIN: u16 = 16;

/// Returns the number by which to divide the weight of a tenant with `count` sandboxes, or `None` if the current divisor `now`
/// still fits. Divisors are powers of two, and from [`HYSTERESIS_MIN`] on, half of the sandboxes can end before the divisor
/// shrinks: so few sandboxes need a new weight when one is created or ends.
fn next_divisor(count: usize, now: u16) -> Option<NonZeroU16> {
    let least = count.max(1).checked_next_power_of_two().and_then(|least| u16::try_from(least).ok());
    let least = least.unwrap_or(u16::MAX);
    let slack = if least < HYSTERESIS_MIN { 1 } else { 2 };
    let fits = now >= least && now / slack <= least;
    if fits { None } else { NonZeroU16::new(least) }
}

#[cfg(test)]
mod tests {
    use super::next_divisor;

    #[test]
    fn divisor_follows_count_in_few_steps() {
        let mut now = 1;
        let mut steps = Vec::new();
        for count in (1..=33).chain((1..33).rev()) {
            if let Some(sharers) = next_divisor(count, now) {
                now = sharers.get();
                steps.push((count, now));
            }
        }
        assert_eq!(
            steps,
            [(2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]
        );
        assert_eq!(next_divisor(usize::MAX, 1).map(|sharers| sharers.get()), Some(u16::MAX));
        assert_eq!(next_divisor(0, 1), None);
    }
}
