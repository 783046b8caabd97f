//! Interpreters that are ready before they are asked for.
//!
//! Whose code was run lately has a parent that is warm (the engine sees to that), and a new sandbox of theirs gets a child of it
//! right away: it is there when the code comes. Other sandboxes get one with their first code. Where there is none, the context
//! starts as any process does, and says why.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::Sandbox;
use belljar_model::{Survival, Tree};
use parking_lot::Mutex;

use crate::entry::Entry;
use crate::keeper::{Entered, Keeper};

/// For how long after its last code a tenant's new sandboxes get an interpreter ahead.
const LATELY: Duration = Duration::from_secs(600);

/// Tenants that are remembered; more are a mistake of whoever makes them.
const MAX_TENANTS: usize = 10_000;

/// What is known of the interpreters of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    /// One has been sent and not been used yet.
    is_sent: bool,
    /// The default context of Python lives.
    lives: bool,
}

impl Warm {
    /// One was sent while the sandbox was in the pool.
    pub(crate) fn was_sent(&mut self) {
        self.is_sent = true;
    }
}

/// Whose code was run when.
#[derive(Debug, Default)]
pub(crate) struct Coders(Mutex<HashMap<String, Instant>>);

impl Coders {
    fn note(&self, tenant: &str) {
        let mut coders = self.0.lock();
        if coders.len() >= MAX_TENANTS {
            coders.retain(|_, last| last.elapsed() < LATELY);
        }
        if coders.len() < MAX_TENANTS {
            coders.insert(tenant.to_owned(), Instant::now());
        }
    }

    /// Who has run code last, lately.
    fn last(&self) -> Option<String> {
        let coders = self.0.lock();
        let lately = coders.iter().filter(|(_, last)| last.elapsed() < LATELY);
        lately.max_by_key(|(_, last)| **last).map(|(tenant, _)| tenant.clone())
    }

    fn lately(&self, tenant: &str) -> bool {
        let coders = self.0.lock();
        coders.get(tenant).is_some_and(|last| last.elapsed() < LATELY)
    }
}

impl Keeper {
    /// Sends an interpreter into a sandbox that is new, without waiting for it.
    pub(crate) fn warm_ahead(&self, entry: &Arc<Entry>) {
        if !self.inner.config.now().warm_interpreters || !self.inner.coders.lately(&entry.tenant) {
            return;
        }
        let (keeper, entry, held) = (self.clone(), Arc::clone(entry), Arc::clone(&entry.warm));
        // Nobody else has it yet: code that comes now waits for this.
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

    /// Sends an interpreter of whoever has run code last into a sandbox of the pool; says whose it is.
    pub(crate) async fn warm_in_pool(&self, sandbox: &Sandbox, tree: &Tree) -> Option<String> {
        let owner = self.inner.coders.last().filter(|_| self.inner.config.now().warm_interpreters)?;
        sandbox.offer_interpreter(&owner, &self.imports(tree)).await.ok()?;
        Some(owner)
    }

    /// Sees to it that an interpreter is there for a context of Python that is to be made: `is_default`, if it is not there already.
    /// Says why there is none.
    pub(crate) async fn warm_for(
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
            return Some("the operator has switched warm interpreters off".to_owned());
        }
        self.inner.coders.note(&entered.entry.tenant);
        let mut warm = entered.entry.warm.lock().await;
        if is_default && std::mem::replace(&mut warm.lives, true) {
            return None;
        }
        if std::mem::take(&mut warm.is_sent) {
            return None;
        }
        let imports = self.imports(&entered.spec().tree);
        entered.sandbox().offer_interpreter(&entered.entry.tenant, &imports).await.err()
    }

    /// Takes note of what has become of a default context.
    pub(crate) async fn warm_after(&self, entered: &Entered, context: &str, state: Survival) {
        if context == "python" {
            entered.entry.warm.lock().await.lives = state == Survival::Preserved;
        }
    }

    /// What interpreters on this tree have imported.
    fn imports(&self, tree: &Tree) -> Vec<String> {
        match tree {
            Tree::Template(tree) => tree.warm.clone(),
            Tree::Host => self.inner.config.now().warm_imports.clone(),
        }
    }
}
