//! Accounting and enforcement of each key's quotas.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_model::{SandboxId, SandboxSpec};
use governor::clock::{Clock as _, DefaultClock};
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use parking_lot::{Mutex, MutexGuard};

use crate::caller::{CPU_WINDOW, Caller, Quotas};
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::info::KeyUsage;
use crate::keeper::Inner;

type Limiter = RateLimiter<NotKeyed, InMemoryState, DefaultClock>;

/// Granularity of the accounting of processor time.
const BUCKET: Duration = Duration::from_secs(60);

/// Usage ledger of all keys, including reservations for sandboxes that are being created.
#[derive(Default)]
pub(crate) struct UsageLedger {
    shared: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    keys: HashMap<String, KeyState>,
    /// Number of sandboxes of each tenant.
    tenants: HashMap<String, u64>,
    /// Processor time of each sandbox that has already been counted.
    counted: HashMap<SandboxId, Duration>,
}

#[derive(Default)]
struct KeyState {
    sandboxes: u32,
    memory_bytes: u64,
    disk_bytes: u64,
    /// Processor time by minute, the oldest first.
    cpu: VecDeque<(Instant, Duration)>,
    /// The limiter, and its limit of executions per minute.
    executions: Option<(u32, Arc<Limiter>)>,
}

/// Share of one sandbox in its key's quotas, released when dropped.
pub(crate) struct Share {
    shared: Arc<Mutex<State>>,
    key: String,
    tenant: String,
    memory_bytes: u64,
    disk_bytes: u64,
}

impl UsageLedger {
    /// Reserves a sandbox's share. Reserves nothing if that would exceed any quota.
    ///
    /// # Errors
    /// Returns [`KeeperError::Quota`] with the exceeded quota.
    pub(crate) fn reserve(&self, caller: &Caller, spec: &SandboxSpec) -> Result<Share, KeeperError> {
        let quotas = &caller.quotas;
        let mut state = self.lock();
        state.check_cpu(&caller.key, quotas)?;
        let key = state.keys.entry(caller.key.clone()).or_default();
        let (memory, disk) = (spec.limits.memory.bytes(), disk_bytes(spec));
        check("sandboxes", key.sandboxes.into(), 1, quotas.sandboxes.map(u64::from))?;
        check("memory_bytes", key.memory_bytes, memory, quotas.memory_bytes)?;
        check("disk_bytes", key.disk_bytes, disk, quotas.disk_bytes)?;
        key.add(memory, disk);
        Ok(self.share(&mut state, &caller.key, &caller.tenant, (memory, disk)))
    }

    /// Reserves the share of a sandbox that existed before this process.
    pub(crate) fn adopt(&self, key: &str, tenant: &str, spec: &SandboxSpec) -> Share {
        let (memory, disk) = (spec.limits.memory.bytes(), disk_bytes(spec));
        let mut state = self.lock();
        state.keys.entry(key.to_owned()).or_default().add(memory, disk);
        self.share(&mut state, key, tenant, (memory, disk))
    }

    fn share(
        &self,
        state: &mut State,
        key: &str,
        tenant: &str,
        (memory_bytes, disk_bytes): (u64, u64),
    ) -> Share {
        *state.tenants.entry(tenant.to_owned()).or_default() += 1;
        let (key, tenant) = (key.to_owned(), tenant.to_owned());
        Share { shared: Arc::clone(&self.shared), key, tenant, memory_bytes, disk_bytes }
    }

    /// Returns the number of sandboxes of a tenant, those that are being created included.
    pub(crate) fn sandboxes_of_tenant(&self, tenant: &str) -> u64 {
        self.lock().tenants.get(tenant).copied().unwrap_or_default()
    }

    /// Counts an execution.
    ///
    /// # Errors
    /// Returns [`KeeperError::Quota`] if there were too many in the last minute, or too much processor time in the last hour.
    pub(crate) fn count_execution(&self, caller: &Caller) -> Result<(), KeeperError> {
        let limiter = {
            let mut state = self.lock();
            state.check_cpu(&caller.key, &caller.quotas)?;
            let Some(max) = caller.quotas.executions_per_minute.and_then(NonZeroU32::new) else {
                return match caller.quotas.executions_per_minute {
                    Some(_) => Err(quota_error("executions_per_minute", 0, 0, Some(BUCKET))),
                    None => Ok(()),
                };
            };
            let key = state.keys.entry(caller.key.clone()).or_default();
            match &key.executions {
                Some((same, limiter)) if *same == max.get() => Arc::clone(limiter),
                _ => {
                    let limiter = Arc::new(RateLimiter::direct(Quota::per_minute(max)));
                    key.executions = Some((max.get(), Arc::clone(&limiter)));
                    limiter
                }
            }
        };
        limiter.check().map_err(|early| {
            let wait = early.wait_time_from(DefaultClock::default().now());
            let max = u64::from(caller.quotas.executions_per_minute.unwrap_or(0));
            quota_error("executions_per_minute", max, max, Some(wait.max(Duration::from_secs(1))))
        })
    }

    /// Records the total processor time that a sandbox has used so far.
    pub(crate) fn record_cpu(&self, entry: &Entry, cpu: Duration) {
        let mut state = self.lock();
        // What has been released is forgotten, and would be counted anew.
        if entry.live().sandbox.is_some() {
            state.record_cpu_at(&entry.key, &entry.id, cpu, Instant::now());
        }
    }

    /// Forgets a sandbox that is gone; its processor time still counts.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.lock().counted.remove(id);
    }

    /// Returns the current usage of a key's sandboxes.
    pub(crate) fn usage(&self, key: &str) -> KeyUsage {
        let mut state = self.lock();
        let cpu = state.cpu(key, Instant::now()).0;
        let found = state.keys.get(key);
        KeyUsage {
            sandboxes: found.map_or(0, |key| key.sandboxes),
            memory_bytes: found.map_or(0, |key| key.memory_bytes),
            disk_bytes: found.map_or(0, |key| key.disk_bytes),
            cpu_seconds: cpu.as_secs(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl State {
    fn record_cpu_at(&mut self, key: &str, id: &SandboxId, cpu: Duration, now: Instant) {
        let counted = self.counted.entry(id.clone()).or_default();
        let more = cpu.saturating_sub(*counted);
        *counted = (*counted).max(cpu);
        if more.is_zero() {
            return;
        }
        let key = self.keys.entry(key.to_owned()).or_default();
        match key.cpu.back_mut() {
            Some((begin, sum)) if now.duration_since(*begin) < BUCKET => *sum += more,
            _ => key.cpu.push_back((now, more)),
        }
    }

    /// Returns the processor time within the window, and the time until its oldest part leaves the window.
    fn cpu(&mut self, key: &str, now: Instant) -> (Duration, Option<Duration>) {
        let Some(key) = self.keys.get_mut(key) else { return (Duration::ZERO, None) };
        while key.cpu.front().is_some_and(|(begin, _)| now.duration_since(*begin) >= CPU_WINDOW) {
            key.cpu.pop_front();
        }
        let oldest = key.cpu.front().map(|(begin, _)| CPU_WINDOW.saturating_sub(now.duration_since(*begin)));
        (key.cpu.iter().map(|(_, sum)| *sum).sum(), oldest)
    }

    fn check_cpu(&mut self, key: &str, quotas: &Quotas) -> Result<(), KeeperError> {
        let Some(max) = quotas.cpu_seconds_per_hour else { return Ok(()) };
        let (used, until) = self.cpu(key, Instant::now());
        if used < Duration::from_secs(max) {
            return Ok(());
        }
        Err(quota_error("cpu_seconds_per_hour", used.as_secs(), max, Some(until.unwrap_or(BUCKET))))
    }
}

impl KeyState {
    fn add(&mut self, memory_bytes: u64, disk_bytes: u64) {
        self.sandboxes += 1;
        self.memory_bytes += memory_bytes;
        self.disk_bytes += disk_bytes;
    }
}

impl Share {
    /// Changes the memory limit of the share. Less is always possible, also for a key that uses more than its quota since that was lowered.
    ///
    /// # Errors
    /// Returns [`KeeperError::Quota`] if it becomes more and that exceeds the quota; nothing is changed then.
    pub(crate) fn set_memory(&mut self, quotas: &Quotas, memory_bytes: u64) -> Result<(), KeeperError> {
        let mut state = self.shared.lock();
        let key = state.keys.entry(self.key.clone()).or_default();
        let others = key.memory_bytes.saturating_sub(self.memory_bytes);
        if memory_bytes > self.memory_bytes {
            check("memory_bytes", others, memory_bytes, quotas.memory_bytes)?;
        }
        key.memory_bytes = others + memory_bytes;
        self.memory_bytes = memory_bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(key) = state.keys.get_mut(&self.key) {
            key.sandboxes = key.sandboxes.saturating_sub(1);
            key.memory_bytes = key.memory_bytes.saturating_sub(self.memory_bytes);
            key.disk_bytes = key.disk_bytes.saturating_sub(self.disk_bytes);
        }
        if let Some(sandboxes) = state.tenants.get_mut(&self.tenant) {
            *sandboxes = sandboxes.saturating_sub(1);
            if *sandboxes == 0 {
                state.tenants.remove(&self.tenant);
            }
        }
    }
}

impl Inner {
    /// Keeps a sandbox's share until [`Self::release_share`].
    pub(crate) fn keep_share(&self, id: &SandboxId, share: Share) {
        self.shares().insert(id.clone(), share);
    }

    /// Releases the share of a sandbox that is gone.
    pub(crate) fn release_share(&self, id: &SandboxId) {
        let share = self.shares().remove(id);
        // Dropped outside of this lock, as dropping it takes a lock of its own.
        drop(share);
    }

    /// Changes the memory limit in a sandbox's share.
    ///
    /// # Errors
    /// Fails as [`Share::set_memory`] does.
    pub(crate) fn set_share_memory(
        &self,
        id: &SandboxId,
        quotas: &Quotas,
        memory_bytes: u64,
    ) -> Result<(), KeeperError> {
        match self.shares().get_mut(id) {
            Some(share) => share.set_memory(quotas, memory_bytes),
            None => Ok(()),
        }
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<SandboxId, Share>> {
        self.shares.lock()
    }
}

/// Returns the disk space that a sandbox may use: its home and its `/tmp`.
fn disk_bytes(spec: &SandboxSpec) -> u64 {
    spec.limits.disk.bytes().saturating_add(spec.limits.tmp.bytes())
}

fn check(quota: &'static str, used: u64, more: u64, limit: Option<u64>) -> Result<(), KeeperError> {
    match limit {
        Some(limit) if used.saturating_add(more) > limit => Err(quota_error(quota, used, limit, None)),
        _ => Ok(()),
    }
}

fn quota_error(quota: &'static str, used: u64, limit: u64, retry_after: Option<Duration>) -> KeeperError {
    KeeperError::Quota { quota, used, limit, retry_after }
}

#[cfg(test)]
mod tests {
    use belljar_model::SpecFile;

    use super::*;

    fn caller(quotas: Quotas) -> Caller {
        Caller { quotas, key: "k".to_owned(), ..Caller::operator("test", "r") }
    }

    fn spec() -> SandboxSpec {
        SpecFile::from_json(r#"{"limits":{"memory":"100m","disk":"10m","tmp":"6m"}}"#)
            .unwrap()
            .resolve()
            .unwrap()
    }

    #[test]
    fn exceeded_quota_is_named() {
        let mib = |count: u64| Some(count << 20);
        let cases = [
            (Quotas { sandboxes: Some(1), ..Quotas::default() }, "sandboxes"),
            (Quotas { memory_bytes: mib(199), ..Quotas::default() }, "memory_bytes"),
            (Quotas { disk_bytes: mib(31), ..Quotas::default() }, "disk_bytes"),
        ];
        for (quotas, name) in cases {
            let (ledger, caller) = (UsageLedger::default(), caller(quotas));
            let first = ledger.reserve(&caller, &spec()).unwrap();
            let refused = ledger.reserve(&caller, &spec()).err().unwrap();
            assert!(matches!(refused, KeeperError::Quota { quota, .. } if quota == name), "{refused}");
            assert_eq!(ledger.usage("k").sandboxes, 1);
            assert_eq!(ledger.sandboxes_of_tenant(&caller.tenant), 1);
            drop(first);
            assert_eq!(ledger.sandboxes_of_tenant(&caller.tenant), 0);
            assert_eq!(ledger.usage("k"), KeyUsage::default());
            assert!(ledger.reserve(&caller, &spec()).is_ok());
        }
    }

    #[test]
    fn keys_have_separate_quotas() {
        let ledger = UsageLedger::default();
        let one = caller(Quotas { sandboxes: Some(1), ..Quotas::default() });
        let _share = ledger.reserve(&one, &spec()).unwrap();
        assert!(ledger.reserve(&one, &spec()).is_err());
        assert!(ledger.reserve(&Caller { key: "other".to_owned(), ..one }, &spec()).is_ok());
    }

    #[test]
    fn executions_are_limited_per_minute() {
        let (ledger, caller) =
            (UsageLedger::default(), caller(Quotas { executions_per_minute: Some(3), ..Quotas::default() }));
        for _ in 0..3 {
            ledger.count_execution(&caller).unwrap();
        }
        let Err(KeeperError::Quota { retry_after: Some(after), .. }) = ledger.count_execution(&caller) else {
            panic!("a fourth execution was allowed")
        };
        assert!(after >= Duration::from_secs(1) && after <= BUCKET, "{after:?}");
        let none =
            Caller { quotas: Quotas { executions_per_minute: Some(0), ..Quotas::default() }, ..caller };
        assert!(ledger.count_execution(&none).is_err());
    }

    #[test]
    fn processor_time_counts_once_and_expires_after_an_hour() {
        let ledger = UsageLedger::default();
        let caller = caller(Quotas { cpu_seconds_per_hour: Some(10), ..Quotas::default() });
        let id = SandboxId::from_entropy([1; 20]);
        let long_ago = Instant::now().checked_sub(CPU_WINDOW).unwrap();
        ledger.lock().record_cpu_at("k", &id, Duration::from_secs(9), long_ago);
        assert!(ledger.count_execution(&caller).is_ok());
        ledger.lock().record_cpu_at("k", &id, Duration::from_secs(18), Instant::now());
        ledger.lock().record_cpu_at("k", &id, Duration::from_secs(18), Instant::now());
        assert_eq!(ledger.usage("k").cpu_seconds, 9);
        assert!(ledger.count_execution(&caller).is_ok());
        ledger.lock().record_cpu_at("k", &id, Duration::from_secs(19), Instant::now());
        let refused = ledger.count_execution(&caller).unwrap_err();
        assert!(matches!(refused, KeeperError::Quota { quota: "cpu_seconds_per_hour", .. }), "{refused}");
        assert!(ledger.reserve(&caller, &spec()).is_err());
    }

    /// A call may still read its counters.
    #[test]
    fn processor_time_of_released_sandboxes_is_not_counted_anew() {
        let ledger = UsageLedger::default();
        let entry = crate::entry::tests::entry(belljar_model::SandboxState::Gone, None);
        ledger.record_cpu(&entry, Duration::from_secs(9));
        assert_eq!(ledger.usage(&entry.key).cpu_seconds, 0);
        assert!(ledger.lock().counted.is_empty());
    }

    #[test]
    fn memory_change_respects_quota() {
        let (ledger, caller) =
            (UsageLedger::default(), caller(Quotas { memory_bytes: Some(300 << 20), ..Quotas::default() }));
        let _other = ledger.reserve(&caller, &spec()).unwrap();
        let mut share = ledger.reserve(&caller, &spec()).unwrap();
        assert!(share.set_memory(&caller.quotas, 201 << 20).is_err());
        share.set_memory(&caller.quotas, 200 << 20).unwrap();
        assert_eq!(ledger.usage("k").memory_bytes, 300 << 20);
        // The quota was lowered meanwhile: less is possible, more is not.
        let lowered = Quotas { memory_bytes: Some(50 << 20), ..Quotas::default() };
        share.set_memory(&lowered, 100 << 20).unwrap();
        assert_eq!(ledger.usage("k").memory_bytes, 200 << 20);
        assert!(share.set_memory(&lowered, (100 << 20) + 1).is_err());
        drop(share);
        assert_eq!(ledger.usage("k").memory_bytes, 100 << 20);
    }
}
