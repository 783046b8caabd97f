//! Fair shares of processor time between tenants: all sandboxes of one tenant together have the CPU weight of a single sandbox.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_model::LimitsChange;
use belljar_store::ServiceWall;

use crate::entry::Entry;
use crate::keeper::Keeper;

impl Keeper {
    /// Spawns a task that gives each sandbox its part of its tenant's weight whenever their number changes.
    pub(crate) fn spawn_fair_shares(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                keeper.apply_fair_shares().await;
                keeper.inner.crowd_changed.notified().await;
            }
        });
    }

    async fn apply_fair_shares(&self) {
        if ServiceWall::FairShares.is_down() {
            return;
        }
        let entries: Vec<_> = self
            .entries()
            .into_iter()
            .filter_map(|entry| {
                let sandbox = entry.live().sandbox.clone()?;
                Some((entry, sandbox))
            })
            .collect();
        let mut crowds: HashMap<&str, usize> = HashMap::new();
        for (entry, _) in &entries {
            *crowds.entry(entry.tenant.as_str()).or_default() += 1;
        }
        for (entry, sandbox) in &entries {
            let count = crowds.get(entry.tenant.as_str()).copied().unwrap_or_default();
            let Some(sharers) = next_divisor(count, entry.shared_by.load(Ordering::Relaxed)) else {
                continue;
            };
            entry.shared_by.store(sharers.get(), Ordering::Relaxed);
            let change = LimitsChange { shared_by: Some(sharers), ..LimitsChange::default() };
            if let Err(error) = sandbox.set_limits(&change).await {
                log(entry, &error);
            }
        }
    }
}

/// Logs a failed change of weight at debug level: an engine without control groups has no weights, and a sandbox that has just
/// ended has no group.
fn log(entry: &Arc<Entry>, error: &belljar_engine::EngineError) {
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
