//! Creation of sandboxes under `runsc`, and taking them over.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::backend::{Launches, Launching, New, Record, adopt, start};
use belljar_engine::{
    Capabilities, CreateRequest, Dial, Engine, EngineError, EngineKind as _, Records, Sandbox, Survivor,
};
use belljar_linux::{CgroupLayout, ContainerGroups, MAX_DATA_BYTES};
use belljar_local::{HOST_HOME, Network, NetworkFacts, Trust};
use belljar_model::{
    EngineName, GvisorSettings, LimitsGrade, NetworkMode, NetworkPolicy, NetworkSetup, SandboxId,
    SandboxSpec, Tree,
};
use futures::future::BoxFuture;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use crate::backend::{GvisorBackend, RunFacts, Runner};
use crate::bundle::{Bundle, LOG, RUN_DIR, SOCKET, group_limits, guest_program};
use crate::kind::GvisorKind;
use crate::layers;
use crate::runsc::{GVISOR, INSTALL, Runsc};

/// Directory for the sandboxes of programs without a server.
const PRIVATE_DIR: &str = "/run/belljar-gvisor";

/// Age at which the directory of a sandbox without a program that holds it is a leftover.
const MIN_SWEEP_AGE: Duration = Duration::from_secs(60);

/// Configuration of a [`GvisorEngine`], determined by the operator and never by code in a sandbox.
#[derive(Debug, Clone, Default)]
pub struct GvisorConfig {
    /// The operator's settings.
    pub settings: GvisorSettings,
    /// The operator's network setup.
    pub network: NetworkSetup,
    /// A delegated v2 control group in which groups are created, instead of this process's own.
    pub cgroup_base: Option<PathBuf>,
    /// Directory in which a server records its sandboxes, to take them over after a restart. Without one they end with this process.
    pub run_dir: Option<PathBuf>,
    /// The guest's program. By default it is `belljar-guest` in this program's directory, or this program itself.
    pub guest: Option<PathBuf>,
}

/// Engine whose sandboxes each have a kernel of gVisor's.
#[derive(Debug)]
pub struct GvisorEngine {
    config: GvisorConfig,
    runsc: OnceCell<Runsc>,
    layout: OnceCell<CgroupLayout>,
    launches: Launches,
}

/// Returns the process that runs a sandbox, if it still does: another process of that id is in other control groups.
fn process(record: &Record<RunFacts>, id: &SandboxId) -> Option<i32> {
    let is_it = |pid: &i32| is_running(*pid) && ContainerGroups::find(*pid, id.as_str()).is_some();
    record.facts.pid.filter(is_it)
}

/// Reports whether there is such a process that has not ended. One that has stays until its parent looks.
fn is_running(pid: i32) -> bool {
    let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    process.is_some_and(|process| {
        let mut polled = [PollFd::new(&process, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    })
}

/// The directory of a guest's socket, opened: its path may be too long for an address.
#[derive(Debug, Clone)]
pub(crate) struct Reach(Arc<OwnedFd>);

impl Reach {
    fn open(bundle: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(Arc::new(rustix::fs::open(bundle.join(RUN_DIR), flags, Mode::empty())?)))
    }
}

impl Dial for Reach {
    type Stream = UnixStream;

    async fn dial(&self) -> io::Result<UnixStream> {
        UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", self.0.as_raw_fd())).await
    }
}

/// What has been started.
struct Started {
    child: Child,
    reach: Reach,
    lock: OwnedFd,
    phases: Vec<(&'static str, Duration)>,
    network: Option<Network>,
}

/// What is to be started.
#[derive(Debug, Clone)]
struct Launch {
    spec: SandboxSpec,
    id: SandboxId,
    dir: PathBuf,
    guest: PathBuf,
    is_long: bool,
    network: Option<(NetworkFacts, u64)>,
    trust: Option<Arc<Trust>>,
}

impl Launch {
    fn bundle(&self) -> Bundle<'_> {
        let Self { spec, id, dir, guest, is_long, trust, .. } = self;
        Bundle { id, spec, dir, guest, is_long: *is_long, trust: trust.as_deref() }
    }
}

/// Returns what keeps sandboxes with limits of this grade from being created here, as a name, the reason and the fix.
pub(crate) fn obstacle(
    layout: &CgroupLayout,
    grade: LimitsGrade,
) -> Option<(&'static str, String, &'static str)> {
    if !rustix::process::geteuid().is_root() {
        let reason = "runsc is started as root, and this process is not".to_owned();
        return Some(("root", reason, "run it as root, or use the engine local"));
    }
    if grade == LimitsGrade::Watched {
        let reason =
            "this engine enforces limits with control groups alone, which its sentry needs".to_owned();
        return Some(("limits", reason, "leave out --limits watched, or use the engine local"));
    }
    if !layout.is_complete() {
        let reasons: Vec<String> =
            layout.missing.iter().map(|(controller, reason)| format!("{controller}: {reason}")).collect();
        let fix = "mount the control groups of memory, cpu and pids writable, or use the engine local with --limits watched";
        return Some(("limits", reasons.join("; "), fix));
    }
    None
}

impl GvisorEngine {
    /// Creates an engine with this configuration. Nothing is looked up yet.
    #[must_use]
    pub fn new(config: GvisorConfig) -> Self {
        Self { config, runsc: OnceCell::new(), layout: OnceCell::new(), launches: Launches::default() }
    }

    async fn runsc(&self) -> Result<&Runsc, EngineError> {
        let find = || async {
            let settings = self.config.settings.clone();
            let found = tokio::task::spawn_blocking(move || Runsc::find(&settings)).await;
            let found = found.unwrap_or_else(|error| Err(error.to_string()));
            found.map_err(|reason| layer("a kernel of its own", reason, INSTALL))
        };
        self.runsc.get_or_try_init(find).await
    }

    async fn layout(&self) -> &CgroupLayout {
        let detect = || async { CgroupLayout::detect(self.config.cgroup_base.as_deref()) };
        self.layout.get_or_init(detect).await
    }

    /// Returns the directory of this engine's sandboxes.
    fn base(&self) -> PathBuf {
        self.config.run_dir.clone().unwrap_or_else(|| PRIVATE_DIR.into())
    }

    /// Opens the directory of this engine's sandboxes, with the records of a server.
    fn records(&self) -> Result<Records<Record<RunFacts>>, EngineError> {
        Records::open(&self.base()).map_err(EngineError::launch("open the directory of sandboxes of gVisor"))
    }

    /// Returns the records of a server, if there ever was a sandbox.
    fn existing_records(&self) -> Result<Option<Records<Record<RunFacts>>>, EngineError> {
        match &self.config.run_dir {
            Some(dir) if dir.exists() => self.records().map(Some),
            _ => Ok(None),
        }
    }

    /// Checks that all that a specification asks for is there, or can be enforced.
    fn check(&self, spec: &SandboxSpec, layout: &CgroupLayout) -> Result<(), EngineError> {
        self.capabilities().require(GVISOR, spec)?;
        let refuse = |field: &'static str, reason: &'static str| EngineError::Unsupported {
            what: field.into(),
            engine: GVISOR,
            reason: reason.into(),
        };
        if spec.tree == Tree::Bare {
            return Err(refuse("template", "a sandbox of this engine shows the machine's own tree"));
        }
        if spec.limits.inodes != belljar_model::Inodes::default() {
            let reason = "gVisor does not limit the number of files; omit it, as their memory counts";
            return Err(refuse("inodes", reason));
        }
        match obstacle(layout, spec.grade) {
            Some((_, reason, fix)) => Err(layer("the engine gvisor", reason, fix)),
            None => Ok(()),
        }
    }

    async fn launch(&self, CreateRequest { spec, life }: CreateRequest<'_>) -> Result<Sandbox, EngineError> {
        let begin = Instant::now();
        let layout = self.layout().await;
        self.check(spec, layout)?;
        let runsc = self.runsc().await?;
        let guest = guest_program(self.config.guest.as_deref())
            .map_err(EngineError::launch("find the guest's program"))?;
        let network = NetworkFacts::new(&spec.network, &self.config.network)?;
        let trust = network.as_ref().map_or(Ok(None), NetworkFacts::trust)?.map(Arc::new);
        let network = network.map(|facts| (facts, spec.limits.memory.bytes()));
        let launching = self.launches.begin(life)?;
        let Launching { id, deadline, is_long, .. } = &launching;
        let base = self.records()?;
        let records = (*is_long && self.config.run_dir.is_some()).then(|| base.clone());
        let mut record = Record::new(
            layers::isolation(spec, runsc, layout),
            *deadline,
            RunFacts { pid: None, network: network.clone() },
        )?;
        let dir = self.base().join(id.as_str());
        let launch = Launch {
            spec: spec.clone(),
            id: id.clone(),
            dir: dir.clone(),
            guest,
            is_long: *is_long,
            network,
            trust,
        };
        let Started { child, reach, lock, phases, network } = self.start(launch.clone(), begin).await?;
        let made = async {
            record.facts.pid = i32::try_from(child.id()).ok();
            if let Some(records) = &records {
                records.put(id, &record).map_err(EngineError::launch("record the sandbox"))?;
            }
            if let (Some(network), Some(pid)) = (&network, record.facts.pid) {
                network.ready(pid, id.as_str()).await?;
            }
            let config = launch.bundle().guest_config(*deadline);
            let runner = Runner::child(child).map_err(EngineError::launch("watch runsc"))?;
            let (layout, id, dir) = (layout.clone(), id.clone(), dir.clone());
            let backend =
                GvisorBackend { id: id.clone(), dir, _lock: Some(lock), layout, reach, runner, network };
            let (home, records) = (HOST_HOME.into(), records.clone());
            start(New { id, home, record, records, phases, backend }, config, *deadline, begin).await
        };
        let made = made.await;
        if made.is_err() {
            remove(layout, id, &dir).await?;
            records.map_or(Ok(()), |records| forget(&records, id))?;
        }
        made
    }

    /// Writes a bundle, and runs it in control groups of its own. After an error nothing is left.
    async fn start(&self, launch: Launch, begin: Instant) -> Result<Started, EngineError> {
        let (runsc, layout) = (self.runsc().await?.clone(), self.layout().await.clone());
        let (setup, is_private) = (self.config.network.clone(), self.config.run_dir.is_none());
        let base = self.base();
        let starting = tokio::task::spawn_blocking(move || {
            if is_private {
                sweep(&layout, &base);
            }
            let Launch { spec, id, dir, network, .. } = &launch;
            launch.bundle().write().map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => EngineError::IdInUse { id: id.clone() },
                _ => {
                    let _ = std::fs::remove_dir_all(dir);
                    EngineError::Launch { step: format!("write {}", dir.display()), source }
                }
            })?;
            let written = begin.elapsed();
            let undo = || {
                let _ = layout.remove(id.as_str());
                let _ = std::fs::remove_dir_all(dir);
            };
            let network =
                network.as_ref().map(|facts| start_gateway(facts, &spec.network, &setup, &layout, id));
            let network = network.transpose();
            let network = network.inspect_err(|_| undo())?;
            let run = || {
                let lock = lock(dir)?.ok_or(io::ErrorKind::WouldBlock)?;
                let reach = Reach::open(dir)?;
                let mut command = runsc.command(dir, &format!("belljar-{id}"), network.is_some());
                let log = std::fs::File::create(dir.join(LOG))?;
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
                layout.make_for(id.as_str(), &group_limits(spec, runsc.platform()), &mut command)?;
                let child = match &network {
                    Some(network) => {
                        let made = network.make_namespace(|| command.spawn());
                        let failed = |error| io::Error::other(format!("make the sandbox's network: {error}"));
                        made.map_err(failed).flatten()?
                    }
                    None => command.spawn()?,
                };
                let phases = vec![("bundle", written), ("start", begin.elapsed().saturating_sub(written))];
                Ok(Started { child, reach, lock, phases, network })
            };
            run().map_err(|source| {
                undo();
                EngineError::Launch { step: "run runsc".to_owned(), source }
            })
        });
        starting.await.map_err(io::Error::other).map_err(EngineError::launch("run runsc"))?
    }

    async fn find_survivors(&self) -> Result<Vec<Survivor>, EngineError> {
        let Some(records) = self.existing_records()? else { return Ok(Vec::new()) };
        let layout = self.layout().await;
        let mut survivors = Vec::new();
        for id in records.all().map_err(EngineError::launch("list the records of sandboxes"))? {
            if self.launches.contains(&id) {
                continue;
            }
            let running = records.get(&id).filter(|record| process(record, &id).is_some());
            if running.is_none() {
                remove(layout, &id, &self.base().join(id.as_str())).await?;
                forget(&records, &id)?;
            }
            let freezer = layout.freezer_of(id.as_str());
            survivors.push(Survivor {
                is_frozen: freezer.is_some_and(|freezer| freezer.is_frozen().unwrap_or(false)),
                ended: running.is_none().then(|| "it ended while no server was running".to_owned()),
                deadline: running.and_then(|record| record.time_left()),
                id,
            });
        }
        // Launches that were interrupted before there was a record.
        let listed = std::fs::read_dir(self.base())
            .map_err(EngineError::launch("list the directories of sandboxes"))?;
        for id in listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<SandboxId>().ok()) {
            if records.get(&id).is_none() && !self.launches.contains(&id) {
                remove(layout, &id, &self.base().join(id.as_str())).await?;
            }
        }
        Ok(survivors)
    }

    async fn take_over(&self, id: &SandboxId) -> Result<Option<Sandbox>, EngineError> {
        let Some(records) = self.existing_records()? else { return Ok(None) };
        let Some((record, pid)) =
            records.get(id).and_then(|record| Some((record.clone(), process(&record, id)?)))
        else {
            return Ok(None);
        };
        let dir = self.base().join(id.as_str());
        let reach =
            Reach::open(&dir).map_err(EngineError::launch("open the directory of the guest's socket"))?;
        let runner = Runner::other(pid).map_err(EngineError::launch("watch runsc"))?;
        let (layout, home, phases) = (self.layout().await.clone(), HOST_HOME.into(), Vec::new());
        let network = match &record.facts.network {
            Some(facts) => {
                // It denies everything until it gets the policy.
                let policy = NetworkPolicy::default();
                let leading = async {
                    let network = start_gateway(facts, &policy, &self.config.network, &layout, id)?;
                    network.open(pid, id.as_str()).await?;
                    network.ready(pid, id.as_str()).await?;
                    Ok::<_, EngineError>(network)
                };
                // Without a gateway nothing leads out; it can still be used, and ended.
                leading.await.ok()
            }
            None => None,
        };
        let backend = GvisorBackend { id: id.clone(), dir, _lock: None, layout, reach, runner, network };
        Ok(Some(adopt(New { id: id.clone(), home, record, records: Some(records), phases, backend })))
    }
}

/// Starts the gateway of a sandbox, in a control group beside that of the sandbox.
fn start_gateway(
    (facts, memory_bytes): &(NetworkFacts, u64),
    policy: &NetworkPolicy,
    setup: &NetworkSetup,
    layout: &CgroupLayout,
    id: &SandboxId,
) -> Result<Network, EngineError> {
    let group = layout.make_gateway_group(id.as_str(), MAX_DATA_BYTES.saturating_add(*memory_bytes));
    let group = group.map_err(EngineError::launch("make the control group of the network's gateway"))?;
    Network::start(facts, policy, setup, *memory_bytes, group)
}

/// Kills all processes of a sandbox, and removes its control groups and its directory.
pub(crate) async fn remove(layout: &CgroupLayout, id: &SandboxId, dir: &Path) -> Result<(), EngineError> {
    let (layout, id, dir) = (layout.clone(), id.clone(), dir.to_owned());
    let removing = tokio::task::spawn_blocking(move || {
        let count = layout.remove(id.as_str());
        if count > 0 {
            let source = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(EngineError::Leftovers { id, count, source });
        }
        match std::fs::remove_dir_all(&dir) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(EngineError::Leftovers { id, count: 1, source })
            }
            _ => Ok(()),
        }
    });
    removing.await.map_err(io::Error::other).map_err(EngineError::launch("remove a sandbox"))?
}

fn forget(records: &Records<Record<RunFacts>>, id: &SandboxId) -> Result<(), EngineError> {
    records.remove(id).map_err(EngineError::launch("remove the record of a sandbox"))
}

/// Locks the directory of a sandbox for as long as the result is open; `None` if another program has.
fn lock(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(dir)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes what programs without a server have left that were killed: their sandboxes have ended, as their connections broke.
fn sweep(layout: &CgroupLayout, base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()) else {
            continue;
        };
        let made = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MIN_SWEEP_AGE));
        if is_old
            && let Ok(Some(_lock)) = lock(&entry.path())
            && layout.remove(id.as_str()) == 0
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn layer(layer: &'static str, reason: String, fix: &str) -> EngineError {
    EngineError::Layer { layer: layer.into(), reason, fix: fix.to_owned() }
}

impl Engine for GvisorEngine {
    fn name(&self) -> EngineName {
        GVISOR
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            network: NetworkMode::ALL.map(|mode| mode.as_str().into()).into(),
            pause: true,
            // There are no live limits: the guest watches memory, and is not told of another limit.
            snapshot: true,
            fork: true,
            held_by: self.config.run_dir.as_ref().map(|_| "runsc".into()),
            ..Capabilities::none(GvisorKind.isolation(), GvisorKind.default_timeout())
        }
    }

    fn create<'a>(&'a self, request: CreateRequest<'a>) -> BoxFuture<'a, Result<Sandbox, EngineError>> {
        Box::pin(self.launch(request))
    }

    fn survivors(&self) -> BoxFuture<'_, Result<Vec<Survivor>, EngineError>> {
        Box::pin(self.find_survivors())
    }

    fn adopt<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Sandbox>, EngineError>> {
        Box::pin(self.take_over(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_lists_capabilities() {
        let run_dir = Some("/run".into());
        let can = GvisorEngine::new(GvisorConfig { run_dir, ..GvisorConfig::default() }).capabilities();
        belljar_engine::conformance::check_documented("gvisor", &can);
    }

    #[test]
    fn directories_of_running_programs_are_not_swept() {
        let base = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - 2 * MIN_SWEEP_AGE;
        let make = |byte: u8| {
            let dir = base.path().join(SandboxId::from_entropy([byte; SandboxId::LEN]).as_str());
            std::fs::create_dir(&dir).unwrap();
            dir
        };
        let (held, left, new, other) = (make(1), make(2), make(3), base.path().join("other"));
        std::fs::create_dir(&other).unwrap();
        for dir in [&held, &left, &other] {
            std::fs::File::open(dir).unwrap().set_modified(old).unwrap();
        }
        let _lock = lock(&held).unwrap().unwrap();
        sweep(&CgroupLayout::default(), base.path());
        assert!(held.exists() && new.exists() && other.exists() && !left.exists());
    }
}
