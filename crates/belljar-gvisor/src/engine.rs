//! Creation of sandboxes under `runsc`, and taking them over.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use belljar_engine::{
    Capabilities, CreateRequest, Dial, Engine, EngineError, EngineKind as _, GuestClient, Lack, Life,
    Records, Sandbox, Survivor, configure, connect_later,
};
use belljar_guest_config::GuestConfig;
use belljar_linux::{CgroupLayout, ContainerGroups};
use belljar_local::HOST_HOME;
use belljar_model::{
    EngineName, GvisorSettings, Isolation, LimitsGrade, NetworkMode, SandboxId, SandboxSpec, Tree,
};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::rand::GetRandomFlags;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use crate::bundle::{Bundle, LOG, RUN_DIR, SOCKET, group_limits, guest_program};
use crate::kind::GvisorKind;
use crate::layers;
use crate::runsc::{GVISOR, INSTALL, Runsc};
use crate::walls::{GvisorWalls, Launched, Runner, guest_deadline_ms};

/// Time for the guest to listen, after `runsc` was started.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Delay before the guest's socket is tried again.
const DIAL_INTERVAL: Duration = Duration::from_millis(2);

/// Directory for the sandboxes of programs without a server.
const PRIVATE_DIR: &str = "/run/belljar-gvisor";

/// Age at which the directory of a sandbox without a program that holds it is a leftover.
const MIN_SWEEP_AGE: Duration = Duration::from_secs(60);

/// Configuration of a [`GvisorEngine`], determined by the operator and never by code in a sandbox.
#[derive(Debug, Clone, Default)]
pub struct GvisorConfig {
    /// The operator's settings.
    pub settings: GvisorSettings,
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
    /// Sandboxes that are being launched, which are no survivors yet.
    launching: Mutex<BTreeSet<SandboxId>>,
}

/// Record of one sandbox.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The secret of its guest.
    pub(crate) secret: String,
    pub(crate) isolation: Isolation,
    /// The process that runs it; none until it was started.
    pub(crate) pid: Option<i32>,
    /// When it ends.
    pub(crate) deadline: Option<SystemTime>,
}

impl Record {
    /// Returns the time until the deadline.
    fn time_left(&self) -> Option<Duration> {
        Some(self.deadline?.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Returns the process that runs the sandbox, if it still does: another process of that id is in other control groups.
    fn process(&self, id: &SandboxId) -> Option<i32> {
        self.pid.filter(|pid| is_running(*pid) && ContainerGroups::find(*pid, id.as_str()).is_some())
    }
}

/// Reports whether there is such a process that has not ended. One that has stays until its parent looks.
fn is_running(pid: i32) -> bool {
    let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    process.is_some_and(|process| {
        let mut polled = [PollFd::new(&process, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    })
}

/// A launch in progress: when it is dropped, the sandbox may be found as a survivor.
struct Launching<'a> {
    all: &'a Mutex<BTreeSet<SandboxId>>,
    id: SandboxId,
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
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
    begin: Instant,
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
            "limits are not only watched here: the sentry's own processes need control groups".to_owned();
        return Some(("limits", reason, "use the limits cgroup, which are the default"));
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
        Self { config, runsc: OnceCell::new(), layout: OnceCell::new(), launching: Mutex::default() }
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
    fn records(&self) -> Result<Records<Record>, EngineError> {
        Records::open(&self.base()).map_err(launch("open the directory of sandboxes of gVisor"))
    }

    /// Returns the records of a server, if there ever was a sandbox.
    fn existing_records(&self) -> Result<Option<Records<Record>>, EngineError> {
        match &self.config.run_dir {
            Some(dir) if dir.exists() => self.records().map(Some),
            _ => Ok(None),
        }
    }

    /// Checks that all that a specification asks for is there, or can be enforced.
    fn check(&self, spec: &SandboxSpec, layout: &CgroupLayout) -> Result<(), EngineError> {
        if spec.engine != GVISOR {
            return Err(EngineError::WrongEngine { asked: spec.engine, this: GVISOR });
        }
        let refuse = |field: &'static str, reason: String| EngineError::Unsupported {
            what: field.into(),
            engine: GVISOR,
            reason: reason.into(),
        };
        self.capabilities()
            .check(spec)
            .map_err(|Lack { field, reason }| refuse(field, format!("it {reason}")))?;
        if spec.tree == Tree::Bare {
            return Err(refuse(
                "template",
                "a sandbox of this engine shows the machine's own tree".to_owned(),
            ));
        }
        if spec.limits.inodes != belljar_model::Inodes::default() {
            let reason =
                "gVisor does not limit the number of files; omit it, as their memory counts".to_owned();
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
        let guest =
            guest_program(self.config.guest.as_deref()).map_err(launch("find the guest's program"))?;
        let (id, deadline) = match life {
            Life::Run { .. } => {
                (SandboxId::from_entropy(random().map_err(launch("get random bytes"))?), None)
            }
            Life::Long { id, deadline } => (id.clone(), deadline),
        };
        let is_long = matches!(life, Life::Long { .. });
        if !self.launching.lock().insert(id.clone()) {
            return Err(EngineError::IdInUse { id });
        }
        let _launching = Launching { all: &self.launching, id: id.clone() };
        let base = self.records()?;
        let records = (is_long && self.config.run_dir.is_some()).then(|| base.clone());
        let mut record = Record {
            secret: hex::encode(random::<32>().map_err(launch("get random bytes"))?),
            isolation: layers::isolation(spec, runsc, layout),
            pid: None,
            deadline: deadline.and_then(|after| SystemTime::now().checked_add(after)),
        };
        let dir = self.base().join(id.as_str());
        let started = self.start(spec, &id, dir.clone(), guest.clone(), is_long, begin).await?;
        let made = async {
            let Started { mut child, reach, lock, mut phases, begin } = started;
            record.pid = i32::try_from(child.id()).ok();
            if let Some(records) = &records {
                records.put(&id, &record).map_err(launch("record the sandbox"))?;
            }
            let bundle = Bundle { id: &id, spec, dir: &dir, guest: &guest, is_long };
            let config = bundle.guest_config(guest_deadline_ms(deadline));
            let guest = configure_guest(&mut child, &dir, &reach, &record.secret, &config).await?;
            let before = phases.iter().map(|(_, time)| *time).sum::<Duration>();
            phases.push(("guest", begin.elapsed().saturating_sub(before)));
            let launched = Launched {
                id: id.clone(),
                dir: dir.clone(),
                _lock: Some(lock),
                layout: layout.clone(),
                reach,
                secret: record.secret.clone(),
                records: records.clone(),
                phases,
            };
            let runner = Runner::child(child).map_err(launch("watch runsc"))?;
            Ok(hold(launched, runner, record.isolation.clone(), guest, deadline))
        };
        let made = made.await;
        if made.is_err() {
            remove(layout, &id, &dir, records.as_ref()).await?;
        }
        made
    }

    /// Writes a bundle, and runs it in control groups of its own. After an error nothing is left.
    async fn start(
        &self,
        spec: &SandboxSpec,
        id: &SandboxId,
        dir: PathBuf,
        guest: PathBuf,
        is_long: bool,
        begin: Instant,
    ) -> Result<Started, EngineError> {
        let (runsc, layout) = (self.runsc().await?.clone(), self.layout().await.clone());
        let (spec, id, is_private) = (spec.clone(), id.clone(), self.config.run_dir.is_none());
        let base = self.base();
        let starting = tokio::task::spawn_blocking(move || {
            if is_private {
                sweep(&layout, &base);
            }
            let bundle = Bundle { id: &id, spec: &spec, dir: &dir, guest: &guest, is_long };
            bundle.write().map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => EngineError::IdInUse { id: id.clone() },
                _ => {
                    let _ = std::fs::remove_dir_all(&dir);
                    EngineError::Launch { step: format!("write {}", dir.display()), source }
                }
            })?;
            let written = begin.elapsed();
            let run = || {
                let lock = lock(&dir)?.ok_or(io::ErrorKind::WouldBlock)?;
                let reach = Reach::open(&dir)?;
                let mut command = runsc.command(&dir, &format!("belljar-{id}"));
                let log = std::fs::File::create(dir.join(LOG))?;
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
                layout.make_for(id.as_str(), &group_limits(&spec), &mut command)?;
                let child = command.spawn()?;
                let phases = vec![("bundle", written), ("start", begin.elapsed().saturating_sub(written))];
                Ok(Started { child, reach, lock, phases, begin })
            };
            run().map_err(|source| {
                let _ = layout.remove(id.as_str());
                let _ = std::fs::remove_dir_all(&dir);
                EngineError::Launch { step: "run runsc".to_owned(), source }
            })
        });
        starting.await.map_err(io::Error::other).map_err(launch("run runsc"))?
    }

    async fn find_survivors(&self) -> Result<Vec<Survivor>, EngineError> {
        let Some(records) = self.existing_records()? else { return Ok(Vec::new()) };
        let layout = self.layout().await;
        let mut survivors = Vec::new();
        for id in records.all().map_err(launch("list the records of sandboxes"))? {
            if self.launching.lock().contains(&id) {
                continue;
            }
            let running = records.get(&id).filter(|record| record.process(&id).is_some());
            if running.is_none() {
                remove(layout, &id, &self.base().join(id.as_str()), Some(&records)).await?;
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
        let listed = std::fs::read_dir(self.base()).map_err(launch("list the directories of sandboxes"))?;
        for id in listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<SandboxId>().ok()) {
            if records.get(&id).is_none() && !self.launching.lock().contains(&id) {
                remove(layout, &id, &self.base().join(id.as_str()), None).await?;
            }
        }
        Ok(survivors)
    }

    async fn take_over(&self, id: &SandboxId) -> Result<Option<Sandbox>, EngineError> {
        let Some(records) = self.existing_records()? else { return Ok(None) };
        let Some((record, pid)) =
            records.get(id).and_then(|record| Some((record.clone(), record.process(id)?)))
        else {
            return Ok(None);
        };
        let dir = self.base().join(id.as_str());
        let reach = Reach::open(&dir).map_err(launch("open the directory of the guest's socket"))?;
        let runner = Runner::other(pid).map_err(launch("watch runsc"))?;
        let guest = connect_later(reach.clone(), record.secret.clone());
        let deadline = record.time_left();
        let launched = Launched {
            id: id.clone(),
            dir,
            _lock: None,
            layout: self.layout().await.clone(),
            reach,
            secret: record.secret,
            records: Some(records),
            phases: Vec::new(),
        };
        Ok(Some(hold(launched, runner, record.isolation, guest, deadline)))
    }
}

/// Follows a sandbox whose guest runs.
fn hold(
    launched: Launched,
    runner: Runner,
    isolation: Isolation,
    guest: GuestClient,
    deadline: Option<Duration>,
) -> Sandbox {
    let id = launched.id.clone();
    let walls = GvisorWalls::new(launched, runner, guest.clone(), deadline);
    Sandbox::new(id, isolation, HOST_HOME.into(), guest, Box::new(walls))
}

/// Kills all processes of a sandbox, and removes its control groups, its directory and its record.
pub(crate) async fn remove(
    layout: &CgroupLayout,
    id: &SandboxId,
    dir: &Path,
    records: Option<&Records<Record>>,
) -> Result<(), EngineError> {
    let (layout, id, dir, records) = (layout.clone(), id.clone(), dir.to_owned(), records.cloned());
    let removing = tokio::task::spawn_blocking(move || {
        let count = layout.remove(id.as_str());
        if count > 0 {
            let source = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(EngineError::Leftovers { id, count, source });
        }
        match std::fs::remove_dir_all(&dir) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(EngineError::Leftovers { id, count: 1, source });
            }
            _ => {}
        }
        let removed = records.map_or(Ok(()), |records| records.remove(&id));
        removed.map_err(launch("remove the record of a sandbox"))
    });
    removing.await.map_err(io::Error::other).map_err(launch("remove a sandbox"))?
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

/// Waits until the guest listens, and configures it.
async fn configure_guest(
    child: &mut Child,
    dir: &Path,
    reach: &Reach,
    secret: &str,
    config: &GuestConfig,
) -> Result<GuestClient, EngineError> {
    let begin = Instant::now();
    loop {
        let error = match configure(reach.clone(), secret.to_owned(), config.clone()).await {
            Ok(guest) => return Ok(guest),
            Err(error) => error,
        };
        if let Ok(Some(status)) = child.try_wait() {
            let log = std::fs::read_to_string(dir.join(LOG)).unwrap_or_default();
            let said = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
            let source = io::Error::other(format!("it ended with {status} and said: {said}"));
            return Err(EngineError::Launch { step: "run the guest under runsc".to_owned(), source });
        }
        let is_early = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !is_early || begin.elapsed() > START_TIMEOUT {
            return Err(EngineError::Launch { step: "configure the guest".to_owned(), source: error });
        }
        tokio::time::sleep(DIAL_INTERVAL).await;
    }
}

pub(crate) fn launch(step: &'static str) -> impl FnOnce(io::Error) -> EngineError {
    move |source| EngineError::Launch { step: step.to_owned(), source }
}

fn layer(layer: &'static str, reason: String, fix: &str) -> EngineError {
    EngineError::Layer { layer: layer.into(), reason, fix: fix.to_owned() }
}

fn random<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0u8; COUNT];
    // Up to 256 bytes are returned completely (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

impl Engine for GvisorEngine {
    fn name(&self) -> EngineName {
        GVISOR
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: GvisorKind.isolation(),
            network: vec![NetworkMode::Disabled.as_str().into()],
            pause: true,
            // The guest watches memory, and is not told of another limit.
            live_limits: false,
            snapshot: true,
            fork: true,
            own_tree: false,
            images: false,
            machines: false,
            mounts: false,
            volumes: false,
            warm_interpreters: false,
            gpu: false,
            held_by: self.config.run_dir.as_ref().map(|_| "runsc".into()),
            default_timeout: GvisorKind.default_timeout(),
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

    /// Checks the column of the table of docs/engines.md.
    #[test]
    fn documentation_lists_capabilities() {
        let run_dir = Some("/run".into());
        let can = GvisorEngine::new(GvisorConfig { run_dir, ..GvisorConfig::default() }).capabilities();
        let page = include_str!("../../../docs/engines.md");
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let head = cells(page.lines().find(|line| line.starts_with("| |")).unwrap());
        let column = head.iter().position(|cell| cell == "`gvisor`").unwrap();
        let check = |name: &str, cell: String| {
            let line = page.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).unwrap();
            assert_eq!(cells(line)[column], cell, "{name}");
        };
        check("isolation", format!("{:?}", can.isolation).to_lowercase());
        check("network", can.network.join(", "));
        for (name, has) in can.list() {
            check(name, if has { "yes" } else { "no" }.to_owned());
        }
        check("default_timeout_s", can.default_timeout.duration().as_secs().to_string());
    }

    #[test]
    fn directories_of_running_programs_are_not_swept() {
        let base = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * MIN_SWEEP_AGE;
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
