//! Processors where they are short: the sandboxes of one tenant weigh together what one sandbox of another weighs, however many they are.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_model::LimitsChange;
use belljar_store::ServiceWall;

use crate::entry::Entry;
use crate::keeper::Keeper;

impl Keeper {
    /// Gives each sandbox its part of its tenant's weight, whenever there are more or fewer of them, in a task of its own.
    pub(crate) fn keep_sharing_out(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                keeper.share_out().await;
                keeper.inner.crowd_changed.notified().await;
            }
        });
    }

    async fn share_out(&self) {
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
            let Some(sharers) = next(count, entry.shared_by.load(Ordering::Relaxed)) else { continue };
            entry.shared_by.store(sharers.get(), Ordering::Relaxed);
            let change = LimitsChange { shared_by: Some(sharers), ..LimitsChange::default() };
            if let Err(error) = sandbox.set_limits(&change).await {
                log(entry, &error);
            }
        }
    }
}

/// An engine without control groups has no weights, and a sandbox that has just ended has no group.
fn log(entry: &Arc<Entry>, error: &belljar_engine::EngineError) {
    tracing::debug!(sandbox = %entry.id, error = %crate::error::chain(error), "cannot change the weight of a sandbox");
}

/// From how many sandboxes on a crowd is a large one.
const LARGE: u16 = 16;

/// By how many the weight is to be shared that `count` sandboxes have and that is shared by `now`; nothing if that does. Powers
/// of two, and of a large crowd half of its members may go before the others get more: few sandboxes get another part when one
/// comes or goes.
fn next(count: usize, now: u16) -> Option<NonZeroU16> {
    let least = count.max(1).checked_next_power_of_two().and_then(|least| u16::try_from(least).ok());
    let least = least.unwrap_or(u16::MAX);
    let slack = if least < LARGE { 1 } else { 2 };
    let fits = now >= least && now / slack <= least;
    if fits { None } else { NonZeroU16::new(least) }
}

#[cfg(test)]
mod tests {
    use super::next;

    #[test]
    fn parts_follow_the_crowd_in_few_steps() {
        let mut now = 1;
        let mut steps = Vec::new();
        for count in (1..=33).chain((1..33).rev()) {
            if let Some(sharers) = next(count, now) {
                now = sharers.get();
                steps.push((count, now));
            }
        }
        assert_eq!(
            steps,
            [(2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]
        );
        assert_eq!(next(usize::MAX, 1).map(|sharers| sharers.get()), Some(u16::MAX));
        assert_eq!(next(0, 1), None);
    }
}
