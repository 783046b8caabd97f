//! Pre-warmed interpreters.
//!
//! The engine keeps a warm parent process for each tenant that has run code recently, and a new sandbox of such a tenant gets a
//! child of it right away, before the first code arrives. Other sandboxes get one with their first code. Without a warm parent,
//! the context starts like any process, and reports why.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::Sandbox;
use belljar_model::{Survival, Tree};
use parking_lot::Mutex;

use crate::entry::Entry;
use crate::keeper::{Entered, Keeper};

/// Time after a tenant's last code during which its new sandboxes get a pre-warmed interpreter.
const RECENT: Duration = Duration::from_secs(600);

/// Maximum number of remembered tenants; no intended use exceeds it.
const MAX_TENANTS: usize = 10_000;

/// State of one sandbox's interpreters.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    /// An interpreter was sent and has not been used yet.
    is_sent: bool,
    /// The default context of Python is alive.
    is_alive: bool,
}

impl Warm {
    /// Records that an interpreter was sent while the sandbox was in the pool.
    pub(crate) fn mark_sent(&mut self) {
        self.is_sent = true;
    }
}

/// Time of the last code of each tenant.
#[derive(Debug, Default)]
pub(crate) struct RecentTenants(Mutex<HashMap<String, Instant>>);

impl RecentTenants {
    fn record(&self, tenant: &str) {
        let mut tenants = self.0.lock();
        if tenants.len() >= MAX_TENANTS {
            tenants.retain(|_, last| last.elapsed() < RECENT);
        }
        if tenants.len() < MAX_TENANTS {
            tenants.insert(tenant.to_owned(), Instant::now());
        }
    }

    /// Returns the tenant that ran code last, if that was recent.
    fn last_tenant(&self) -> Option<String> {
        let tenants = self.0.lock();
        let recent = tenants.iter().filter(|(_, last)| last.elapsed() < RECENT);
        recent.max_by_key(|(_, last)| **last).map(|(tenant, _)| tenant.clone())
    }

    fn is_recent(&self, tenant: &str) -> bool {
        let tenants = self.0.lock();
        tenants.get(tenant).is_some_and(|last| last.elapsed() < RECENT)
    }
}

impl Keeper {
    /// Sends an interpreter into a new sandbox, without waiting for it.
    pub(crate) fn prewarm(&self, entry: &Arc<Entry>) {
        if !self.inner.config.now().warm_interpreters || !self.inner.recent_tenants.is_recent(&entry.tenant) {
            return;
        }
        let (keeper, entry, held) = (self.clone(), Arc::clone(entry), Arc::clone(&entry.warm));
        // The sandbox is new, so the lock is free: code that arrives now waits for it.
        let Ok(mut warm) = held.try_lock_owned() else { return };
        if warm.is_sent {
            return;
        }
        tokio::spawn(async move {
            let sandbox = entry.live().sandbox.clone();
            if let Some(sandbox) = sandbox {
                let imports = keeper.imports(&entry.live().spec.tree);
                warm.is_sent = sandbox.offer_interpreter(&entry.tenant, &imports).await.is_ok();
            }
        });
    }

    /// Sends an interpreter of the tenant that ran code last into a sandbox of the pool; returns that tenant.
    pub(crate) async fn prewarm_pooled(&self, sandbox: &Sandbox, tree: &Tree) -> Option<String> {
        let owner =
            self.inner.recent_tenants.last_tenant().filter(|_| self.inner.config.now().warm_interpreters)?;
        sandbox.offer_interpreter(&owner, &self.imports(tree)).await.ok()?;
        Some(owner)
    }

    /// Ensures that an interpreter is available for a new Python context; for the default context (`is_default`) only if that
    /// is not alive already. Returns the reason if there is none.
    pub(crate) async fn ensure_warm(
        &self,
        entered: &Entered,
        language: Option<&str>,
        is_default: bool,
    ) -> Option<String> {
        let language = language.unwrap_or_default().to_ascii_lowercase();
        if !["", "python", "python3", "py"].contains(&language.as_str()) {
            return None;
        }
        if !self.inner.config.now().warm_interpreters {
            return Some("warm interpreters are disabled by the operator".to_owned());
        }
        self.inner.recent_tenants.record(&entered.entry.tenant);
        let mut warm = entered.entry.warm.lock().await;
        if is_default && std::mem::replace(&mut warm.is_alive, true) {
            return None;
        }
        if std::mem::take(&mut warm.is_sent) {
            return None;
        }
        let imports = self.imports(&entered.spec().tree);
        entered.sandbox().offer_interpreter(&entered.entry.tenant, &imports).await.err()
    }

    /// Records whether the default context is still alive.
    pub(crate) async fn record_warm_state(&self, entered: &Entered, context: &str, state: Survival) {
        if context == "python" {
            entered.entry.warm.lock().await.is_alive = state == Survival::Preserved;
        }
    }

    /// Returns the modules that interpreters on this tree have imported.
    fn imports(&self, tree: &Tree) -> Vec<String> {
        tree.template().map_or_else(|| self.inner.config.now().warm_imports.clone(), |tree| tree.warm.clone())
    }
}
