//! Shares of tenants in what the machine has, so that none can make it full for the others.
//!
//! ```text
//!   free of a resource ──┬─ twice the headroom: data that is kept, and sandboxes that are started ahead of requests, stop here
//!                        ├─ the headroom: sandboxes of users stop here; for memory, the tenant with the most gives way
//!                        ├─ half of it: sandboxes of administrators stop here
//!                        └─ the reserve of the store: the records of sandboxes that end
//! ```
//!
//! Above that a tenant takes at most [`SHARE`] times what it leaves free: alone three quarters, two tenants three sevenths each; the
//! next one always finds something (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). Keys
//! with the role admin are not bound by the share of their tenant.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use belljar_model::{Role, SandboxSpec};
use belljar_store::ServiceWall;
use futures::StreamExt as _;
use futures::stream::FuturesOrdered;

use crate::caller::Caller;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::head_room::Purpose;
use crate::keeper::{Keeper, Result};

/// What a tenant may take of a resource, as a multiple of what it leaves free.
/// Source: docs/spec.md; held by `tests::share_leaves_something_for_the_next_tenant`.
const SHARE: u64 = 3;

/// How long the memory of ended sandboxes is waited for, and how often it is measured meanwhile.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
const RELEASE_INTERVAL: Duration = Duration::from_millis(10);

/// How long the steps of sandboxes are waited for before others of them are ended. Most are short; a copy of a disk may take minutes, and
/// everybody waits here. It is the time for all that one request needs: then only those are ended that have no step.
const STEP_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of sandboxes whose memory is measured at once.
const MEASURED_AT_ONCE: usize = 16;

/// Checks that a tenant that has `used` of a resource may take `more` of the `free` rest.
///
/// # Errors
/// Returns [`KeeperError::Quota`], which names the resource.
pub(crate) fn check_share(resource: &'static str, used: u64, more: u64, free: u64) -> Result<()> {
    if used.saturating_add(more) <= SHARE.saturating_mul(free.saturating_sub(more))
        || ServiceWall::Shares.is_down()
    {
        return Ok(());
    }
    let limit = used.saturating_add(free) / (SHARE + 1) * SHARE;
    Err(KeeperError::Quota { quota: resource, used, limit, retry_after: None })
}

/// The memory of a sandbox.
struct Memory {
    entry: Arc<Entry>,
    bytes: u64,
}

impl Keeper {
    /// Checks that the caller may start a sandbox now. If memory is short, sandboxes of the tenant that has most of it are ended, as
    /// long as it has more than its part.
    ///
    /// # Errors
    /// Returns [`KeeperError::Quota`] for a tenant that has its share, and [`KeeperError::Full`] for a full machine.
    pub(crate) async fn admit_start(&self, caller: &Caller) -> Result<()> {
        let config = self.inner.config.now();
        let (max, used) = (u64::from(config.max_sandboxes), self.count() as u64);
        if used >= max {
            let what = format!("the operator allows at most {max} sandboxes");
            return Err(KeeperError::Full { what, retry_after: crate::create::RETRY_AFTER });
        }
        // With one tenant there is nobody to leave something for.
        if caller.role != Role::Admin && self.inner.keys.several_tenants() {
            // The new sandbox is counted already.
            let own = self.inner.ledger.sandboxes_of_tenant(&caller.tenant).saturating_sub(1);
            check_share("tenant_sandboxes", own, 1, max - used)?;
        }
        let purpose = if caller.role == Role::Admin { Purpose::Administration } else { Purpose::Start };
        let measure = || config.capacity();
        if measure().check(purpose).is_ok() {
            return Ok(());
        }
        // One at a time: what the last one has freed may be sufficient.
        let _ending = self.inner.making_room.lock().await;
        let steps_until = tokio::time::Instant::now() + STEP_TIMEOUT;
        let missing = || measure().missing_memory(purpose);
        while let Some(mut rest) = missing() {
            let before = rest;
            while rest > 0 {
                match self.take_memory_back(caller, rest, steps_until).await? {
                    0 => break,
                    bytes => rest = rest.saturating_sub(bytes),
                }
            }
            if rest == before {
                break;
            }
            // The memory of a sandbox is released a little after its end.
            let deadline = tokio::time::Instant::now() + RELEASE_TIMEOUT;
            while missing().is_some() && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(RELEASE_INTERVAL).await;
            }
        }
        measure().check(purpose)
    }

    /// Checks that there is room for `bytes` that stay until their owner removes them: twice the headroom stays free, and the caller's
    /// tenant has at most its share of the disk.
    ///
    /// # Errors
    /// Returns [`KeeperError::Full`] or [`KeeperError::Quota`].
    pub(crate) async fn check_lasting(&self, caller: &Caller, bytes: u64) -> Result<()> {
        let config = self.inner.config.now();
        let capacity = config.capacity();
        capacity.check_file(bytes)?;
        let free = capacity.disk_for_lasting();
        match free.filter(|_| caller.role != Role::Admin) {
            Some(free) => {
                check_share("tenant_disk_bytes", self.lasting_bytes(&caller.tenant).await?, bytes, free)
            }
            None => Ok(()),
        }
    }

    /// Checks that the caller's tenant has at most its share of the disk with the disk of a new machine, which the machine's file takes at
    /// once.
    ///
    /// # Errors
    /// Returns [`KeeperError::Quota`].
    pub(crate) async fn check_machine_disk(&self, caller: &Caller, spec: &SandboxSpec) -> Result<()> {
        // With one tenant there is nobody to leave something for.
        if !spec.machine || caller.role == Role::Admin || !self.inner.keys.several_tenants() {
            return Ok(());
        }
        let config = self.inner.config.now();
        let capacity = config.capacity();
        let Some(free) = capacity.disk_for_lasting() else { return Ok(()) };
        let used = self.lasting_bytes(&caller.tenant).await?;
        check_share("tenant_disk_bytes", used, spec.limits.disk.bytes(), free)
    }

    /// Returns the bytes of a tenant's volumes, templates, uploads and disks of machines.
    async fn lasting_bytes(&self, tenant: &str) -> Result<u64> {
        let store = &self.inner.store;
        let volumes = store.volumes().list(Some(tenant)).await?.into_iter().map(|row| row.bytes);
        let templates = store.templates().list(Some(tenant)).await?;
        let templates = templates.into_iter().filter(|row| row.tenant == tenant).map(|row| row.bytes);
        let bytes = volumes.chain(templates).map(|bytes| u64::try_from(bytes).unwrap_or(0));
        let machines = self.entries().into_iter().filter(|entry| entry.tenant == tenant);
        let disks = machines.filter_map(|entry| {
            let live = entry.live();
            (live.spec.machine && live.sandbox.is_some()).then(|| live.spec.limits.disk.bytes())
        });
        let bytes = bytes.chain(disks);
        Ok(bytes.sum::<u64>().saturating_add(self.uploaded_bytes(tenant)))
    }

    /// Ends the largest sandbox of the tenant that has the most memory, if giving back what is beyond its part is sufficient. All
    /// tenants with sandboxes and the caller's have equal parts of what sandboxes may use. Sandboxes that are in a step are waited for
    /// until `steps_until`. Returns the memory of the one that was ended, in bytes; 0 if none was.
    async fn take_memory_back(
        &self,
        caller: &Caller,
        missing: u64,
        steps_until: tokio::time::Instant,
    ) -> Result<u64> {
        if ServiceWall::Shares.is_down() {
            return Ok(0);
        }
        let mut all: Vec<Memory> = futures::stream::iter(self.entries())
            .map(async |entry| {
                let sandbox = entry.live().sandbox.clone()?;
                let usage = sandbox.usage().await;
                let bytes = usage.memory_bytes?.saturating_add(usage.gateway_memory_bytes.unwrap_or(0));
                Some(Memory { entry, bytes })
            })
            .buffer_unordered(MEASURED_AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await;
        let mut roles = HashMap::new();
        for one in &all {
            let key = &one.entry.key;
            if !roles.contains_key(key) {
                let role = self.key_row(key).await.map_or(Role::User, |row| row.role);
                roles.insert(key.clone(), role);
            }
        }
        let is_admin = caller.role == Role::Admin;
        all.retain(|one| roles.get(&one.entry.key) != Some(&Role::Admin));
        let mut sums: HashMap<&str, u64> = HashMap::new();
        for one in &all {
            *sums.entry(&one.entry.tenant).or_default() += one.bytes;
        }
        let parties = sums.len() + usize::from(is_admin || !sums.contains_key(caller.tenant.as_str()));
        let usable = sums.values().sum::<u64>().saturating_sub(missing);
        let part = usable / u64::try_from(parties).unwrap_or(1).max(1);
        let most = sums.iter().max_by_key(|(_, bytes)| **bytes);
        let Some((tenant, bytes)) = most.filter(|(tenant, _)| is_admin || **tenant != caller.tenant) else {
            return Ok(0);
        };
        if bytes.saturating_sub(part) < missing {
            return Ok(0);
        }
        let mut of_tenant: Vec<&Memory> = all.iter().filter(|one| one.entry.tenant == *tenant).collect();
        of_tenant.sort_unstable_by_key(|one| std::cmp::Reverse(one.bytes));
        // All at once, so that no number of busy ones prolongs this.
        let mut locks = FuturesOrdered::new();
        for one in of_tenant {
            locks.push_back(async move {
                let step = tokio::time::timeout_at(steps_until, one.entry.step.lock()).await.ok()?;
                Some((one, step))
            });
        }
        // Held until its end, so that no other step comes first.
        let locked = std::pin::pin!(locks.filter_map(std::future::ready)).next().await;
        let Some((largest, _step)) = locked else { return Ok(0) };
        let mib = |bytes: u64| bytes >> 20;
        tracing::warn!(
            sandbox = %largest.entry.id,
            tenant,
            tenant_mib = mib(*bytes),
            part_mib = mib(part),
            "memory is short and another tenant waits; the largest sandbox of the tenant that has the most is ended"
        );
        let reason = format!(
            "the machine's memory ran short while others waited for theirs; the sandboxes of this tenant used {} MiB, \
             and its part was {} MiB",
            mib(*bytes),
            mib(part)
        );
        self.end_in_step(&largest.entry, None, &reason).await?;
        Ok(largest.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how much a tenant can take in steps of one.
    fn take_all(used: &mut u64, free: &mut u64) -> u64 {
        let before = *used;
        while check_share("x", *used, 1, *free).is_ok() {
            *used += 1;
            *free -= 1;
        }
        *used - before
    }

    #[test]
    fn share_leaves_something_for_the_next_tenant() {
        let mut free = 1000;
        let mut first = 0;
        assert_eq!(take_all(&mut first, &mut free), 750);
        // Each further one gets a part of the rest, and then the first gets no more.
        for least in [187, 46, 11, 3] {
            let mut next = 0;
            assert!(take_all(&mut next, &mut free) >= least, "{next} {free}");
            assert!(check_share("x", first, 1, free).is_err());
        }
        // What is given back can be taken again.
        free += 700;
        first -= 700;
        assert!(check_share("x", first, 1, free).is_ok());
    }

    #[test]
    fn refusal_names_what_the_tenant_may_have() {
        match check_share("tenant_disk_bytes", 600, 400, 400) {
            Err(KeeperError::Quota { quota, used, limit, .. }) => {
                assert_eq!((quota, used, limit), ("tenant_disk_bytes", 600, 750));
            }
            other => panic!("{other:?}"),
        }
    }
}
