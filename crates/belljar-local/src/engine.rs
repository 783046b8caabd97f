//! The local engine, and the weaker engines `process` and `none`: the same guest with fewer walls.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use belljar_engine::backend::random;
use belljar_engine::{Capabilities, CreateRequest, Engine, EngineError, First, Life, Sandbox, Walls as _};
use belljar_gateway::Authority;
use belljar_guest_config::OnHostLoss;
use belljar_linux::{CgroupLayout, GatewayPlan, LaunchPlan, MAX_DATA_BYTES, Supervisor, Wall, Without};
use belljar_model::{EngineName, Isolation, MountPolicy, NetworkMode, NetworkSetup, SandboxId, SandboxSpec};
use futures::future::BoxFuture;
use rustix::net::{RecvFlags, SocketType};

use crate::failure::Failures;
use crate::forks::Forks;
use crate::gateway::{Prepared, START_GATEWAY};
use crate::kind::LocalKind;
use crate::planner::Planner;
use crate::sockets::{control_pair, guest_control_pair, pair, stream};
use crate::walls::{LocalWalls, Resources, monotonic_ns};

/// Number of starts per sweep for leftovers of killed supervisors. A sweep is too expensive for every start.
const SWEEP_EVERY: u32 = 16;

/// Timeout for the first message of the guest; a launch that takes longer has hung.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Configuration of a [`LocalEngine`], determined by the operator and never by code in a sandbox.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// `local`, `process` or `none`.
    pub kind: LocalKind,
    /// Policy for mounts.
    pub mount_policy: MountPolicy,
    /// A delegated v2 control group in which groups are created, instead of this process's own.
    pub cgroup_base: Option<PathBuf>,
    /// Whether a sandbox ends with this process or keeps running until its deadline.
    pub on_host_loss: OnHostLoss,
    /// The guest's program, which must be of this build. By default it is `belljar-guest` in this program's directory, or this program
    /// itself if that cannot be used.
    pub guest: Option<PathBuf>,
    /// The operator's network setup.
    pub network: NetworkSetup,
}

impl LocalConfig {
    /// Returns the default configuration of an engine of this kind: no mounts, sandboxes end with their host.
    #[must_use]
    pub fn new(kind: LocalKind) -> Self {
        Self {
            kind,
            mount_policy: MountPolicy::new(&[]),
            cgroup_base: None,
            on_host_loss: OnHostLoss::End,
            guest: None,
            network: NetworkSetup::default(),
        }
    }
}

/// Engine that runs sandboxes on this machine, without a daemon.
#[derive(Debug)]
pub struct LocalEngine {
    config: LocalConfig,
    layout: OnceLock<CgroupLayout>,
    /// Starts the supervisors, if this process does not do so itself.
    forks: Option<Arc<Forks>>,
}

impl LocalEngine {
    /// Creates an engine with this configuration.
    #[must_use]
    pub fn new(config: LocalConfig) -> Self {
        Self { config, layout: OnceLock::new(), forks: None }
    }

    /// Creates an engine that has its supervisors started by a fork server.
    pub(crate) fn with_forks(config: LocalConfig, forks: Arc<Forks>) -> Self {
        Self { forks: Some(forks), ..Self::new(config) }
    }

    /// Creates an engine that uses only control groups v1, for tests of machines without v2. Returns `None` if v1 is not sufficient here.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn with_v1(config: LocalConfig) -> Option<Self> {
        let layout = CgroupLayout::detect_v1();
        let can = layout.is_complete() && layout.freezer.is_some();
        can.then(|| Self { config, layout: OnceLock::from(layout), forks: None })
    }

    pub(crate) fn config(&self) -> &LocalConfig {
        &self.config
    }

    /// Returns the layout of the control groups of this machine.
    pub(crate) fn layout(&self) -> &CgroupLayout {
        self.layout.get_or_init(|| CgroupLayout::detect(self.config.cgroup_base.as_deref()))
    }

    /// Starts a supervisor.
    fn start(&self, plan: &LaunchPlan, control: &OwnedFd) -> Result<Supervisor, EngineError> {
        let started = match &self.forks {
            Some(forks) => forks.start(plan, control),
            None => belljar_linux::start(plan, control).map_err(std::io::Error::from),
        };
        started.map_err(EngineError::launch("start the supervisor"))
    }

    /// Launches a sandbox.
    pub(crate) async fn launch(&self, request: CreateRequest<'_>) -> Result<Launched, EngineError> {
        let begin = Instant::now();
        let CreateRequest { spec, life } = request;
        if spec.engine != self.name() {
            return Err(EngineError::WrongEngine { asked: spec.engine, this: self.name() });
        }
        let (entropy, random) = entropy()?;
        let id = match life {
            Life::Run { .. } => SandboxId::from_entropy(entropy),
            Life::Long { id, .. } => id.clone(),
        };
        let without = Without::from_environment().map_err(|reason| EngineError::Layer {
            layer: "the walls that a test asked for".into(),
            reason,
            fix: "name walls that there are".to_owned(),
        })?;
        let sockets = GuestSockets::new(life).map_err(EngineError::launch("make the guest's connection"))?;
        let (control, sandbox_control) =
            control_pair().map_err(EngineError::launch("make the supervisor's connection"))?;
        if random.is_multiple_of(SWEEP_EVERY) {
            self.layout().sweep();
        }
        let mut planner = Planner {
            config: &self.config,
            layout: self.layout(),
            spec,
            id: &id,
            is_long: matches!(life, Life::Long { .. }),
            starts: matches!(life, Life::Run { first: First::Start }),
            without,
            watched: false,
            cgroups: false,
            images: Vec::new(),
            warm: None,
            trust: None,
        };
        let authority = crate::trust::authority(&spec.network, &self.config.network)?;
        planner.trust = authority.as_ref().map(crate::trust::Trust::in_sandbox).transpose()?;
        let mut plan = planner.plan(random, sockets.guest)?;
        let gateway = self.prepare_gateway(&mut plan, &planner, authority);
        let gateway = gateway.map_err(EngineError::launch("prepare the network's gateway"))?;
        let entry = crate::warm::Entry::from_plan(&plan, spec);
        let isolation =
            crate::layers::isolation(&plan, self.config.kind, spec, planner.watched, self.layout());
        let failures = Failures::from_plan(&plan);
        let scratch = match &plan.scratch {
            Some(scratch) => {
                let parent = scratch
                    .parent
                    .try_clone()
                    .map_err(EngineError::launch("keep hold of the scratch directory"))?;
                Some((parent, scratch.name.clone()))
            }
            None => None,
        };
        let planned = begin.elapsed();
        let launched_ns = monotonic_ns();
        let supervisor = self.start(&plan, &sandbox_control)?;
        drop(sandbox_control);
        // It starts concurrently with the sandbox, whose connections wait in the socket's queue.
        let started = gateway.map(Prepared::start).transpose();
        let (gateway, no_gateway) = started.map_or_else(|error| (None, Some(error)), |one| (one, None));
        let home = crate::planner::home(self.config.kind, &id);
        let identity = &plan.identity;
        let owner = identity.privileged.then_some((identity.outside_uid, identity.outside_gid));
        let direct = planner.is_direct().then_some(owner);
        let counts_unaccepted = plan.namespaces.is_some() && !without.has(Wall::Unaccepted);
        // The supervisor has its own copies of the plan's descriptors.
        drop(plan);
        let images = std::mem::take(&mut planner.images);
        let cgroups = planner.cgroups.then(|| self.layout().clone());
        let held = Resources {
            id,
            kind: self.config.kind,
            memory: Arc::new(spec.limits.memory.bytes().into()),
            counts_unaccepted,
            cgroups,
            scratch,
            direct,
            guest_control: sockets.control.map(Arc::new),
            gateway,
            failures,
            launched: (launched_ns, planned),
            entry,
            _images: images,
        };
        let walls = LocalWalls::new(held, control, supervisor)
            .map_err(EngineError::launch("follow the supervisor"))?;
        if let Some(error) = no_gateway {
            let _ = walls.stop().await;
            return Err(EngineError::launch(START_GATEWAY)(error));
        }
        if let Life::Long { deadline: Some(deadline), .. } = life {
            walls.keep_deadline(Some(deadline));
        }
        let stream = stream(sockets.host).map_err(EngineError::launch("open the guest's connection"))?;
        match life {
            Life::Run { first: First::Guest } | Life::Long { .. } => {
                if let Err(error) = until_ready(&walls, &stream).await {
                    // Leftovers of the launch are removed before its failure is reported.
                    let _ = walls.stop().await;
                    return Err(error);
                }
                walls.send_memory_files();
            }
            // Until then, the host would only compete with the supervisor for the processor.
            Life::Run { first: First::Call | First::Start } => walls.wait_until_started().await,
        }
        Ok(Launched { isolation, home, stream, walls })
    }
}

impl LocalEngine {
    /// Prepares the gateway of a sandbox that has a network.
    fn prepare_gateway(
        &self,
        plan: &mut LaunchPlan,
        planner: &Planner<'_>,
        authority: Option<Authority>,
    ) -> std::io::Result<Option<Prepared>> {
        let Planner { spec, id, cgroups, .. } = *planner;
        if spec.network.mode() == NetworkMode::Disabled {
            return Ok(None);
        }
        let user = plan.identity.privileged.then_some(plan.identity.outside_uid);
        let group = if cgroups && !plan.without.has(Wall::GatewayGroup) {
            let memory_bytes = MAX_DATA_BYTES.saturating_add(spec.limits.memory.bytes());
            self.layout().make_gateway_group(id.as_str(), memory_bytes)?
        } else {
            None
        };
        let (gateway, sockets) =
            Prepared::new(&self.config.network, &spec.network, authority, user, group, plan.without)?;
        plan.gateway = Some(GatewayPlan::new(sockets));
        Ok(Some(gateway))
    }

    /// Launches the parent of warm interpreters, which receives its requests over `socket`. It has the walls of a sandbox except for a
    /// user namespace, with which it could not enter another one.
    pub(crate) fn launch_parent(
        &self,
        spec: &SandboxSpec,
        imports: &[String],
        socket: OwnedFd,
    ) -> Result<LocalWalls, EngineError> {
        let begin = Instant::now();
        let (entropy, random) = entropy()?;
        let id = SandboxId::from_entropy(entropy);
        let (control, sandbox_control) =
            control_pair().map_err(EngineError::launch("make the supervisor's connection"))?;
        let mut planner = Planner {
            config: &self.config,
            layout: self.layout(),
            spec,
            id: &id,
            is_long: true,
            starts: false,
            without: Without::default(),
            watched: false,
            cgroups: false,
            images: Vec::new(),
            warm: Some(imports),
            trust: None,
        };
        let plan = planner.plan(random, socket)?;
        let failures = Failures::from_plan(&plan);
        let (planned, launched_ns) = (begin.elapsed(), monotonic_ns());
        let supervisor = self.start(&plan, &sandbox_control)?;
        drop((sandbox_control, plan));
        let held = Resources {
            kind: self.config.kind,
            memory: Arc::new(spec.limits.memory.bytes().into()),
            counts_unaccepted: false,
            cgroups: planner.cgroups.then(|| self.layout().clone()),
            scratch: None,
            direct: None,
            guest_control: None,
            gateway: None,
            failures,
            launched: (launched_ns, planned),
            entry: None,
            _images: std::mem::take(&mut planner.images),
            id,
        };
        LocalWalls::new(held, control, supervisor).map_err(EngineError::launch("follow the supervisor"))
    }
}

/// The ends of the sockets between host and guest.
struct GuestSockets {
    /// The first connection, the host's end.
    host: OwnedFd,
    /// Descriptor that the guest is started with: the connection itself, or a control socket that passes it.
    guest: OwnedFd,
    /// The host's end of the control socket.
    control: Option<OwnedFd>,
}

impl GuestSockets {
    fn new(life: Life<'_>) -> std::io::Result<Self> {
        let (host, connection) = pair(SocketType::STREAM)?;
        match life {
            Life::Run { .. } => Ok(Self { host, guest: connection, control: None }),
            Life::Long { .. } => {
                let (control, guest) = guest_control_pair()?;
                belljar_linux::send_with(control.as_fd(), b"c", &[connection.as_fd()])?;
                Ok(Self { host, guest, control: Some(control) })
            }
        }
    }
}

/// A sandbox that has been launched, with the first connection to its guest.
pub(crate) struct Launched {
    pub(crate) isolation: Isolation,
    pub(crate) home: PathBuf,
    pub(crate) stream: tokio::net::UnixStream,
    pub(crate) walls: LocalWalls,
}

impl Launched {
    fn into_sandbox(self) -> Sandbox {
        let id = self.walls.id().clone();
        let guest = self.walls.guest_client(self.stream);
        Sandbox::new(id, self.isolation, self.home, guest, Box::new(self.walls))
    }
}

impl Engine for LocalEngine {
    fn name(&self) -> EngineName {
        self.config.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.config.kind.capabilities(self.layout().is_complete(), None)
    }

    fn open_disk(&self, disk: &Path) -> Result<File, EngineError> {
        crate::volumes::open_disk(disk)
    }

    /// A long-lived sandbox also ends with this process, or when it is dropped; `LauncherEngine` avoids that.
    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        Box::pin(async move { Ok(self.launch(request).await?.into_sandbox()) })
    }
}

/// Waits until the guest serves or the launch has failed.
async fn until_ready(walls: &LocalWalls, stream: &tokio::net::UnixStream) -> Result<(), EngineError> {
    tokio::select! {
        // A failed launch also breaks the connection; its own reason is more precise.
        biased;
        error = walls.failure() => Err(error),
        // The guest speaks first, as soon as it serves.
        ready = tokio::time::timeout(START_TIMEOUT, stream.readable()) => match ready {
            Ok(ready) => {
                ready.map_err(EngineError::launch("wait for the guest"))?;
                // A broken connection is readable as well, and the reason may arrive a moment later.
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                if !matches!(rustix::net::recv(stream, &mut [0u8; 1], flags), Ok((1, _))) {
                    let gone = || EngineError::Ended { how: "the guest closed its connection".to_owned() };
                    return Err(walls.explain_end().await.unwrap_or_else(gone));
                }
                walls.record_first_answer();
                // Sent before, but perhaps not read yet.
                walls.wait_until_confined().await;
                walls.gateway_started().await
            }
            Err(_) => Err(EngineError::Ended { how: "the guest did not answer in time".to_owned() }),
        }
    }
}

/// Returns random bytes for an id, and a random start for the search for a user id.
pub(crate) fn entropy() -> Result<([u8; 20], u32), EngineError> {
    let bytes = random::<24>()?;
    let (id, place) = bytes.split_at(20);
    let id = <[u8; 20]>::try_from(id).unwrap_or_default();
    Ok((id, u32::from_ne_bytes(place.try_into().unwrap_or_default())))
}
