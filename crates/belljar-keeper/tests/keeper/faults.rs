//! An engine whose sandboxes fail where a test says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_engine::{
    Capabilities, CreateRequest, Engine, EngineError, Engines, GuestClient, NetworkLog, Sandbox, Usage, Walls,
};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{EngineName, LimitsChange, NetworkPolicy, SandboxId};
use futures::future::BoxFuture;
use parking_lot::Mutex;

/// What fails now.
#[derive(Default)]
pub(crate) struct Faults {
    /// Changes of memory, each once this is free.
    pub(crate) limits: tokio::sync::Mutex<()>,
    /// Whether such a change has begun.
    pub(crate) is_changing: AtomicBool,
    /// Whether a sandbox's usage has been asked for.
    pub(crate) is_measured: AtomicBool,
    /// The memory that a sandbox is said to use, in bytes.
    pub(crate) memory: Mutex<HashMap<SandboxId, u64>>,
    /// Freezing a sandbox, once `change` is free.
    pub(crate) freeze: AtomicBool,
    /// Thawing a sandbox, once `change` is free.
    pub(crate) thaw: AtomicBool,
    /// What freezing and thawing wait for before they fail.
    pub(crate) change: tokio::sync::Mutex<()>,
    /// A lost guest: the engine says only that somebody has stopped it.
    pub(crate) stopped: AtomicBool,
}

impl Faults {
    /// Returns the engine alone.
    pub(crate) fn engines(self: &Arc<Self>) -> Engines {
        Engines::new(Arc::new(Faulty(LocalEngine::new(LocalConfig::new(LocalKind::Local)), Arc::clone(self))))
    }
}

struct Faulty(LocalEngine, Arc<Faults>);

impl Engine for Faulty {
    fn name(&self) -> EngineName {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        Box::pin(async move {
            let sandbox = self.0.create(request).await?;
            let (id, isolation, home) = (sandbox.id.clone(), sandbox.isolation.clone(), sandbox.home.clone());
            let guest = sandbox.guest().clone();
            let walls = FaultyWalls { sandbox, faults: Arc::clone(&self.1) };
            Ok(Sandbox::new(id, isolation, home, guest, Box::new(walls)))
        })
    }
}

struct FaultyWalls {
    sandbox: Sandbox,
    faults: Arc<Faults>,
}

impl FaultyWalls {
    fn fault(&self) -> EngineError {
        EngineError::Unsupported {
            what: "this".into(),
            engine: EngineName::LOCAL,
            reason: "it fails now".into(),
        }
    }

    async fn failed_change(&self) -> Result<(), EngineError> {
        drop(self.faults.change.lock().await);
        Err(self.fault())
    }
}

impl Walls for FaultyWalls {
    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(async {
            self.faults.is_measured.store(true, Ordering::Relaxed);
            let usage = self.sandbox.usage().await;
            let said = self.faults.memory.lock().get(&self.sandbox.id).copied();
            Usage { memory_bytes: said.or(usage.memory_bytes), ..usage }
        })
    }

    fn set_limits<'a>(&'a self, change: &'a LimitsChange) -> BoxFuture<'a, Result<(), EngineError>> {
        if change.memory.is_none() {
            return Box::pin(self.sandbox.set_limits(change));
        }
        self.faults.is_changing.store(true, Ordering::Relaxed);
        Box::pin(async {
            drop(self.faults.limits.lock().await);
            Err(self.fault())
        })
    }

    fn set_network<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(self.sandbox.set_network(policy))
    }

    fn network_log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        Box::pin(self.sandbox.network_log(after, follow))
    }

    fn set_deadline(&self, after: Option<Duration>) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.sandbox.set_deadline(after))
    }

    fn freeze(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        match self.faults.freeze.load(Ordering::Relaxed) {
            true => Box::pin(self.failed_change()),
            false => Box::pin(self.sandbox.freeze()),
        }
    }

    fn thaw(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        match self.faults.thaw.load(Ordering::Relaxed) {
            true => Box::pin(self.failed_change()),
            false => Box::pin(self.sandbox.thaw()),
        }
    }

    fn connect(&self) -> BoxFuture<'_, Result<GuestClient, EngineError>> {
        Box::pin(self.sandbox.connect())
    }

    fn explain_end(&self) -> BoxFuture<'_, Option<EngineError>> {
        Box::pin(async { self.faults.stopped.load(Ordering::Relaxed).then(|| self.fault()) })
    }

    fn kill(&self) {
        self.sandbox.kill();
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(self.sandbox.stop())
    }

    fn wait_ended(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            let how = self.sandbox.wait_ended().await;
            match self.faults.stopped.load(Ordering::Relaxed) {
                true => std::future::pending().await,
                false => how,
            }
        })
    }
}
