//! The network of a sandbox that something else runs, such as a container: the same gateway as that of a sandbox of the engine `local`, in
//! the sandbox's network namespace.
//!
//! ```text
//!  start ── the gateway's process ──► open or make the namespace ── its sockets ──► ready ──► the guest is configured
//! ```
//!
//! A gateway ends with the server, as nothing else holds it. The next server makes another one, which denies everything until it gets the policy;
//! until then, code in the sandbox connects to nothing.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_engine::backend::{NetworkControl, random};
use belljar_engine::{EngineError, NetworkLog};
use belljar_gateway::Authority;
use belljar_linux::{ContainerGroups, GatewayGroup, GatewayPlan, Wall, Without};
use belljar_model::{NetworkMode, NetworkPolicy, NetworkSetup};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::gateway::{Gateways, Prepared, START_GATEWAY, START_TIMEOUT, log};
use crate::orphans::SIGKILL;
use crate::trust::{Trust, authority};
use crate::unaccepted::Counted;

/// First user id of these gateways. Each has a random one of the 2^24 from here, which no account and no sandbox has, so that nothing else
/// can signal it.
const FIRST_USER: u32 = 1_850_000_000;

/// Number of them.
const USERS: u32 = 1 << 24;

/// Maximum time for the gateway of an earlier server to end, which has the sockets until then.
const EARLIER_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval at which that is tried again.
const EARLIER_INTERVAL: Duration = Duration::from_millis(20);

/// What a server records of a sandbox's network, to take it over after a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NetworkFacts {
    /// The authority whose certificates its programs trust, if the gateway terminates TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authority: Option<Authority>,
}

impl NetworkFacts {
    /// Returns those of a new sandbox with this policy; `None` if its network is disabled.
    ///
    /// # Errors
    /// Fails if the operator's file of certificates cannot be read, or no key can be made.
    pub fn new(policy: &NetworkPolicy, setup: &NetworkSetup) -> Result<Option<Self>, EngineError> {
        // Walls that a test asks for have to exist, whether there is a network or not.
        let without = Without::from_environment().map_err(io::Error::other);
        without.map_err(EngineError::launch("disable the walls that a test asks for"))?;
        match policy.mode() {
            NetworkMode::Disabled => Ok(None),
            _ => Ok(Some(Self { authority: authority(policy, setup)? })),
        }
    }

    /// Returns what programs trust in addition to what the tree has, if the gateway terminates TLS.
    ///
    /// # Errors
    /// Fails if the certificate cannot be made.
    pub fn trust(&self) -> Result<Option<Trust>, EngineError> {
        self.authority.as_ref().map(Trust::in_sandbox).transpose()
    }
}

/// A sandbox's network. Its gateway ends when this is dropped.
pub struct Network {
    gateways: Arc<Gateways>,
    plan: Arc<GatewayPlan>,
    connections: Arc<Connections>,
}

/// Connections in a sandbox's network that no program has accepted.
struct Connections {
    /// Limit of memory in bytes.
    memory: AtomicU64,
    is_over: AtomicBool,
    has_exceeded: AtomicBool,
}

/// A process whose network namespace they are in, and with which the sandbox ends.
struct InProcess {
    connections: Arc<Connections>,
    pid: i32,
    pidfd: OwnedFd,
}

impl Counted for InProcess {
    fn is_over(&self) -> bool {
        self.connections.is_over.load(Ordering::Acquire)
    }

    fn process(&self) -> Option<i32> {
        Some(self.pid)
    }

    fn memory_bytes(&self) -> u64 {
        self.connections.memory.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.connections.has_exceeded.store(true, Ordering::Release);
        // Fails if it has ended already.
        let _: Result<(), rustix::io::Errno> = belljar_linux::pidfd_kill(self.pidfd.as_fd(), SIGKILL);
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    /// Starts the gateway, in `group` if given. It serves once its sockets are opened. `memory_bytes` is the sandbox's limit. Needs root, and a
    /// tokio runtime.
    ///
    /// # Errors
    /// Fails if the process cannot be started.
    pub fn start(
        facts: &NetworkFacts,
        policy: &NetworkPolicy,
        setup: &NetworkSetup,
        memory_bytes: u64,
        group: Option<GatewayGroup>,
    ) -> Result<Self, EngineError> {
        let user = FIRST_USER + u32::from_ne_bytes(random()?) % USERS;
        let start = || {
            let without = Without::from_environment().map_err(io::Error::other)?;
            let authority = facts.authority.clone();
            let (prepared, sockets) = Prepared::new(setup, policy, authority, Some(user), group, without)?;
            let connections = Connections {
                memory: memory_bytes.into(),
                is_over: AtomicBool::new(without.has(Wall::Unaccepted)),
                has_exceeded: AtomicBool::new(false),
            };
            Ok(Self {
                gateways: prepared.start()?,
                plan: Arc::new(GatewayPlan::new(sockets)),
                connections: Arc::new(connections),
            })
        };
        start().map_err(EngineError::launch(START_GATEWAY))
    }

    /// Returns the result of `run` in a new network namespace of the sandbox: what it starts is in it. Blocks meanwhile.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn make_namespace<T: Send>(&self, run: impl FnOnce() -> T + Send) -> io::Result<T> {
        self.plan.in_new_namespace(run)
    }

    /// Opens the gateway's sockets in the network namespace of a process, which has a loopback only, that is up. See [`Self::ready`] for `pid`
    /// and `id`.
    ///
    /// # Errors
    /// Fails if the kernel refuses a step, or the namespace is not such a one.
    pub async fn open(&self, pid: i32, id: &str) -> Result<(), EngineError> {
        let (plan, id) = (Arc::clone(&self.plan), id.to_owned());
        let opening = tokio::task::spawn_blocking(move || {
            let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
            check_process(pid, &id)?;
            let begin = Instant::now();
            loop {
                match plan.in_namespace(namespace.as_fd()) {
                    Err(error)
                        if error.kind() == io::ErrorKind::AddrInUse && begin.elapsed() < EARLIER_TIMEOUT =>
                    {
                        std::thread::sleep(EARLIER_INTERVAL);
                    }
                    opened => return opened,
                }
            }
        });
        let opened = opening.await.map_err(io::Error::other).flatten();
        opened.map_err(EngineError::launch("lead the sandbox's network to its gateway"))
    }

    /// Waits until the gateway is ready, and looks after the network from then on: another gateway is started whenever one ends, and
    /// connections that no program accepts are counted. Called once. The sandbox ends with the process `pid`, which is in its network; `id` is a
    /// part of the names of its control groups, by which another process that has the number meanwhile is told from it.
    ///
    /// # Errors
    /// Fails if the gateway could not start, or the process has ended.
    pub async fn ready(&self, pid: i32, id: &str) -> Result<(), EngineError> {
        let ready = async {
            tokio::time::timeout(START_TIMEOUT, self.gateways.started()?).await??;
            let process = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
            let pidfd = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?;
            check_process(pid, id)?;
            tokio::spawn(Arc::clone(&self.gateways).keep_running());
            crate::unaccepted::count(InProcess { connections: Arc::clone(&self.connections), pid, pidfd });
            Ok(())
        };
        ready.await.map_err(EngineError::launch(START_GATEWAY))
    }

    /// Sets the sandbox's limit of memory, in bytes.
    pub fn set_memory(&self, bytes: u64) {
        self.connections.memory.store(bytes, Ordering::Relaxed);
    }

    /// Reports whether it was ended for [`UNACCEPTED`](crate::UNACCEPTED).
    #[must_use]
    pub fn has_exceeded(&self) -> bool {
        self.connections.has_exceeded.load(Ordering::Acquire)
    }

    /// Ends the gateway, and waits until it is gone.
    pub async fn end(&self) {
        self.connections.is_over.store(true, Ordering::Release);
        self.gateways.end().await;
    }
}

impl NetworkControl for Network {
    fn set_policy<'a>(&'a self, policy: &'a NetworkPolicy) -> BoxFuture<'a, ()> {
        Box::pin(self.gateways.set_policy(policy))
    }

    fn log(&self, after: u64, follow: bool) -> BoxFuture<'_, Result<NetworkLog, EngineError>> {
        Box::pin(async move {
            let connection = self.gateways.connection().await;
            log(connection.map_err(EngineError::launch("reach the sandbox's gateway"))?, after, follow).await
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.connections.is_over.store(true, Ordering::Release);
        self.gateways.shut_down();
    }
}

/// Checks that a process is in control groups with this id in their names.
fn check_process(pid: i32, id: &str) -> io::Result<()> {
    let found = ContainerGroups::find(pid, id);
    found.map(drop).ok_or_else(|| io::Error::other("the sandbox's first process has ended"))
}
