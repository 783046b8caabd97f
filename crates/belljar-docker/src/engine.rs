//! Creation of sandboxes in containers, and taking them over.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use belljar_engine::backend::{Launches, Launching, New, Record, adopt, random, start};
use belljar_engine::{
    Capabilities, CreateRequest, Engine, EngineError, EngineKind as _, Records, Sandbox, Survivor,
};
use belljar_linux::ContainerGroups;
use belljar_local::{Network, NetworkFacts};
use belljar_model::{
    DockerSettings, EngineName, ImageReference, LimitsGrade, NetworkMode, NetworkPolicy, NetworkSetup,
    SandboxId,
};
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum, ContainerUpdateBody};
use bollard::query_parameters::{CreateContainerOptionsBuilder, ListContainersOptionsBuilder};
use futures::future::BoxFuture;
use tokio::sync::OnceCell;

use crate::backend::{ContainerFacts, DockerBackend, remove_container};
use crate::container::{self, Container, HOME, SANDBOX_LABEL, SERVER_LABEL};
use crate::daemon::{DOCKER, Daemon, failed, status, unsupported};
use crate::guest_volume::Guest;
use crate::image;
use crate::kind::DockerKind;
use crate::reach::Reach;
use crate::{host, layers};

/// Age at which a container of this engine that was never started is a leftover of a program that was killed.
const ABANDONED_AGE: Duration = Duration::from_secs(600);

/// Number of starts per sweep for such containers.
const SWEEP_EVERY: u32 = 16;

/// Configuration of a [`DockerEngine`], determined by the operator and never by code in a sandbox.
#[derive(Debug, Clone, Default)]
pub struct DockerConfig {
    /// The operator's settings.
    pub settings: DockerSettings,
    /// The operator's network setup.
    pub network: NetworkSetup,
    /// Directory in which a server records its sandboxes, to take them over after a restart. Without one they end with this process.
    pub run_dir: Option<PathBuf>,
    /// The guest's program. By default it is `belljar-guest` in this program's directory, or this program itself.
    pub guest: Option<PathBuf>,
    /// How guests are reached.
    pub route: Route,
}

/// What a network needs, the beginning of a sentence.
const NEEDS_HERE: &str =
    "its gateway enters the container's network, as root and on the machine of a daemon at unix://";

/// How guests are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Route {
    /// Directly if the container is on this machine and this process may look into it, else through the daemon.
    #[default]
    Shortest,
    /// Always through the daemon.
    ThroughDaemon,
}

/// Engine whose sandboxes are containers of a daemon with Docker's API.
#[derive(Debug)]
pub struct DockerEngine {
    config: DockerConfig,
    daemon: OnceCell<Daemon>,
    guest: OnceCell<Guest>,
    launches: Launches,
}

/// Where a server records its sandboxes, and the server's id.
struct Holder {
    records: Records<Record<ContainerFacts>>,
    server: String,
}

impl DockerEngine {
    /// Creates an engine with this configuration. The daemon is not contacted yet.
    #[must_use]
    pub fn new(config: DockerConfig) -> Self {
        Self { config, daemon: OnceCell::new(), guest: OnceCell::new(), launches: Launches::default() }
    }

    /// Returns the address of the daemon.
    fn host(&self) -> String {
        self.config.settings.host.clone().unwrap_or_else(host::from_environment)
    }

    async fn daemon(&self) -> Result<&Daemon, EngineError> {
        self.daemon.get_or_try_init(|| async { Daemon::connect(&self.host()).await }).await
    }

    /// Reports whether containers can have a network: its gateway enters their network namespace, which takes root on the daemon's
    /// machine. That a daemon with a socket here is on another machine shows only once a container runs.
    fn has_networks(&self) -> bool {
        let is_here = self.config.route == Route::Shortest && self.host().starts_with("unix://");
        is_here && rustix::process::geteuid().is_root()
    }

    fn capabilities_with(&self, has_networks: bool) -> Capabilities {
        // Until the daemon was asked, it is assumed to have control groups: otherwise a sandbox fails with an error that says so.
        let has_groups = self.daemon.get().is_none_or(|daemon| daemon.facts.cgroups.is_some());
        let none = Capabilities::none(DockerKind.isolation(), DockerKind.default_timeout());
        Capabilities {
            network: match has_networks {
                true => NetworkMode::ALL.map(|mode| mode.as_str().into()).into(),
                false => none.network.clone(),
            },
            pause: has_groups,
            live_limits: has_groups,
            // There is no snapshot: a template of files alone would lack the image that they belong to.
            fork: true,
            images: true,
            held_by: self.config.run_dir.as_ref().map(|_| "the Docker daemon".into()),
            ..none
        }
    }

    async fn guest(&self) -> Result<&Guest, EngineError> {
        let read = || async {
            let path = self.config.guest.clone();
            let read = tokio::task::spawn_blocking(move || Guest::read(path.as_deref())).await;
            read.map_err(io::Error::other).flatten().map_err(EngineError::launch("read the guest's program"))
        };
        self.guest.get_or_try_init(read).await
    }

    /// Returns where sandboxes are recorded, if this is the engine of a server.
    fn holder(&self) -> Result<Option<Holder>, EngineError> {
        let Some(dir) = &self.config.run_dir else { return Ok(None) };
        let id = hex::encode(random::<16>()?);
        let open = || {
            let records = Records::open(dir)?;
            let server = records.server_id(&id)?;
            Ok(Some(Holder { records, server }))
        };
        open().map_err(EngineError::launch("open the records of sandboxes in Docker"))
    }

    /// Returns where sandboxes are recorded, if any ever were.
    fn existing_holder(&self) -> Result<Option<Holder>, EngineError> {
        match &self.config.run_dir {
            Some(dir) if dir.exists() => self.holder(),
            _ => Ok(None),
        }
    }

    async fn launch(&self, CreateRequest { spec, life }: CreateRequest<'_>) -> Result<Sandbox, EngineError> {
        let begin = Instant::now();
        if spec.network.mode() != NetworkMode::Disabled && !self.has_networks() {
            let host = self.host();
            return Err(unsupported(
                "network",
                format!("{NEEDS_HERE}; this process is not root, or {host} is none there"),
            ));
        }
        self.capabilities().require(DOCKER, spec)?;
        let wanted = image::requested(spec, &self.config.settings)?;
        let daemon = self.daemon().await?;
        if let Some(obstacle) = daemon.facts.obstacle(spec.grade) {
            return Err(EngineError::Layer {
                layer: "the limits of memory, processors and processes".into(),
                reason: obstacle,
                fix: "use a daemon with control groups, or have the guest watch limits, which is weaker: --limits watched".to_owned(),
            });
        }
        if let Some(runtime) = &self.config.settings.runtime
            && !daemon.facts.runtimes.is_empty()
            && !daemon.facts.runtimes.contains(runtime)
        {
            let known = daemon.facts.runtimes.join(", ");
            return Err(unsupported(
                "engines.docker.runtime",
                format!("the daemon has no runtime {runtime}; it has {known}"),
            ));
        }
        let guest = self.guest().await?;
        let network = NetworkFacts::new(&spec.network, &self.config.network)?;
        let trust = network.as_ref().map_or(Ok(None), NetworkFacts::trust)?;
        let network = network.map(|facts| (facts, spec.limits.memory.bytes()));
        let image = image::find(&daemon.client, &wanted, &self.config.settings).await?;
        let launching = self.launches.begin(life)?;
        let Launching { id, deadline, is_long, .. } = &launching;
        let holder = if *is_long { self.holder()? } else { None };
        let number = u32::from_ne_bytes(random()?);
        if number.is_multiple_of(SWEEP_EVERY) {
            self.sweep(daemon).await;
        }
        // Assumed until it is known, as the container's limit of processes depends on it.
        let is_direct = self.config.route == Route::Shortest && rustix::process::geteuid().is_root();
        let request = Container {
            id,
            spec,
            image: &image,
            guest,
            facts: &daemon.facts,
            runtime: self.config.settings.runtime.as_deref(),
            server: holder.as_ref().map(|holder| holder.server.as_str()),
            is_long: *is_long,
            user: container::user(&daemon.facts, number),
            own_pids: container::own_pids(is_direct),
            trust: trust.as_ref(),
        };
        let facts = ContainerFacts { user: request.user, network };
        let record = Record::new(layers::isolation(&request, is_direct), *deadline, facts)?;
        let records = holder.as_ref().map(|holder| &holder.records);
        if let Some(records) = records {
            if records.get(id).is_some() {
                return Err(EngineError::IdInUse { id: id.clone() });
            }
            records.put(id, &record).map_err(EngineError::launch("record the sandbox"))?;
        }
        let made = async {
            let started = self.start(daemon, &request, begin).await?;
            let container = started.container.clone();
            let connecting =
                self.connect(daemon, request, started, record, records.cloned(), *deadline).await;
            if connecting.is_err() {
                remove_container(daemon, &container).await?;
            }
            connecting
        };
        let made = made.await;
        if let (Err(_), Some(records)) = (&made, records) {
            records.remove(id).map_err(EngineError::launch("remove the record of a sandbox"))?;
        }
        made
    }

    /// Creates and starts a container.
    async fn start(
        &self,
        daemon: &Daemon,
        request: &Container<'_>,
        begin: Instant,
    ) -> Result<Started, EngineError> {
        let step = || format!("start the container of the image {}", request.image.name);
        let mut is_second = false;
        loop {
            let options = CreateContainerOptionsBuilder::new().name(&container::name(request.id)).build();
            let made = daemon.client.create_container(Some(options), request.body()).await;
            let container = match made {
                Ok(made) if is_container_id(&made.id) => made.id,
                Ok(made) => {
                    let source = io::Error::other(format!("{:?} is no id of a container", made.id));
                    let step = "create a container: the daemon's answer is invalid".to_owned();
                    return Err(EngineError::Launch { step, source });
                }
                Err(error) if status(&error) == Some(409) => {
                    return Err(EngineError::IdInUse { id: request.id.clone() });
                }
                Err(error) => {
                    return Err(failed(format!("create a container of the image {}", request.image.name))(
                        error,
                    ));
                }
            };
            let created = begin.elapsed();
            let Err(error) = daemon.client.start_container(&container, None).await else {
                let phases = vec![("create", created), ("start", begin.elapsed() - created)];
                return Ok(Started { container, phases, begin });
            };
            remove_container(daemon, &container).await?;
            // The volume with the guest's program is empty when it is new. Another launch may be filling it as well.
            if is_second {
                return Err(failed(step())(error));
            }
            is_second = true;
            if request.guest.fill(&daemon.client, &request.image.id).await? {
                request.guest.remove_others(&daemon.client).await;
            }
        }
    }

    /// Connects to the guest of a container that has been started, and configures it.
    async fn connect(
        &self,
        daemon: &Daemon,
        request: Container<'_>,
        started: Started,
        mut record: Record<ContainerFacts>,
        records: Option<Records<Record<ContainerFacts>>>,
        deadline: Option<Duration>,
    ) -> Result<Sandbox, EngineError> {
        let Started { container, phases, begin } = started;
        let (groups, reach, pid) = self.reach(daemon, &container, request.user).await?;
        let network = self.network(&record.facts, &request.spec.network, &container, pid, &reach).await?;
        let own_pids = container::own_pids(reach.is_direct());
        if own_pids != request.own_pids {
            let limit = request.spec.limits.pids.get().saturating_add(own_pids);
            let body = ContainerUpdateBody {
                pids_limit: (request.spec.grade == LimitsGrade::Cgroup).then(|| limit.into()),
                ..ContainerUpdateBody::default()
            };
            let updated = daemon.client.update_container(&container, body).await;
            updated.map_err(failed("set the limit of processes of the container"))?;
            record.isolation = layers::isolation(&request, reach.is_direct());
            if let Some(records) = &records {
                records.put(request.id, &record).map_err(EngineError::launch("record the sandbox"))?;
            }
        }
        let (id, config) = (request.id.clone(), request.guest_config(deadline));
        let daemon = daemon.clone();
        let backend = DockerBackend { id: id.clone(), daemon, container, reach, groups, own_pids, network };
        let new = New { id, home: HOME.into(), record, records, phases, backend };
        let sandbox = start(new, config, deadline, begin).await?;
        for (path, content) in request.trust.iter().flat_map(|trust| trust.files()) {
            sandbox.write_file(path, content.to_vec()).await?;
        }
        Ok(sandbox)
    }

    /// Starts the gateway of a container that is to have a network, in its namespace.
    async fn network(
        &self,
        facts: &ContainerFacts,
        policy: &NetworkPolicy,
        container: &str,
        pid: Option<i32>,
        reach: &Reach,
    ) -> Result<Option<Network>, EngineError> {
        let Some((facts, memory_bytes)) = &facts.network else { return Ok(None) };
        let Some(pid) = pid.filter(|_| reach.is_direct()) else {
            return Err(unsupported("network", format!("{NEEDS_HERE}; its containers are not here")));
        };
        let network = Network::start(facts, policy, &self.config.network, *memory_bytes, None)?;
        network.open(pid, container).await?;
        network.ready(pid, container).await?;
        Ok(Some(network))
    }

    /// Returns the control groups of a container, if they are on this machine, how its guest is reached, and the guest's process.
    async fn reach(
        &self,
        daemon: &Daemon,
        container: &str,
        user: u32,
    ) -> Result<(Option<ContainerGroups>, Reach, Option<i32>), EngineError> {
        let found = daemon.client.inspect_container(container, None).await;
        let state = found.map_err(failed("look at the container"))?.state.unwrap_or_default();
        let pid = state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
        let groups = pid.and_then(|pid| ContainerGroups::find(pid, container));
        let bridge =
            || Reach::bridge(daemon.client.clone(), container.to_owned(), container::bridge_user(user));
        let is_here = groups.is_some() && self.config.route == Route::Shortest;
        let direct = pid.filter(|_| is_here).and_then(|pid| Reach::direct(pid).ok());
        // The process id may have been given to another process meanwhile.
        let is_same = pid.is_some_and(|pid| ContainerGroups::find(pid, container).is_some());
        Ok((groups, direct.filter(|_| is_same).unwrap_or_else(bridge), pid))
    }

    /// Lists the containers of this engine with this label.
    async fn list(
        &self,
        daemon: &Daemon,
        label: &str,
    ) -> Result<Vec<(SandboxId, ContainerSummary)>, EngineError> {
        let filters: HashMap<&str, Vec<&str>> = [("label", vec![label])].into();
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let listed = daemon.client.list_containers(Some(options)).await.map_err(failed("list containers"))?;
        let sandbox = |one: ContainerSummary| {
            let id = one.labels.as_ref()?.get(SANDBOX_LABEL)?.parse().ok()?;
            Some((id, one))
        };
        Ok(listed.into_iter().filter_map(sandbox).collect())
    }

    /// Removes what programs that were killed have left: containers that were never started. Others end with their programs.
    async fn sweep(&self, daemon: &Daemon) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let oldest = i64::try_from(now.saturating_sub(ABANDONED_AGE).as_secs()).unwrap_or(0);
        let Ok(all) = self.list(daemon, SANDBOX_LABEL).await else { return };
        for (_, one) in all {
            let server = one.labels.and_then(|labels| labels.get(SERVER_LABEL).cloned());
            let has_server = server.is_some_and(|server| !server.is_empty());
            let is_waiting = one.state == Some(ContainerSummaryStateEnum::CREATED);
            if let (false, true, Some(id)) = (has_server, is_waiting && one.created < Some(oldest), one.id) {
                let _ = remove_container(daemon, &id).await;
            }
        }
    }

    async fn find_survivors(&self) -> Result<Vec<Survivor>, EngineError> {
        let Some(Holder { records, server }) = self.existing_holder()? else { return Ok(Vec::new()) };
        let mut recorded: BTreeSet<SandboxId> = records
            .all()
            .map_err(EngineError::launch("list the records of sandboxes"))?
            .into_iter()
            .collect();
        if recorded.is_empty() {
            // A server without sandboxes needs no daemon.
            return Ok(Vec::new());
        }
        let daemon = self.daemon().await?;
        let mut survivors = Vec::new();
        for (id, one) in self.list(daemon, &format!("{SERVER_LABEL}={server}")).await? {
            recorded.remove(&id);
            if self.launches.contains(&id) {
                continue;
            }
            let is_frozen = one.state == Some(ContainerSummaryStateEnum::PAUSED);
            let record = records.get(&id).filter(|_| is_running(&one));
            if let (None, Some(container)) = (&record, &one.id) {
                remove_container(daemon, container).await?;
                records.remove(&id).map_err(EngineError::launch("remove the record of a sandbox"))?;
            }
            let ended =
                record.is_none().then(|| "its container ended while no server was running".to_owned());
            survivors.push(Survivor {
                id,
                is_frozen,
                deadline: record.and_then(|record| record.time_left()),
                ended,
            });
        }
        for id in recorded.iter().filter(|id| !self.launches.contains(id)) {
            records.remove(id).map_err(EngineError::launch("remove the record of a sandbox"))?;
        }
        Ok(survivors)
    }

    async fn take_over(&self, id: &SandboxId) -> Result<Option<Sandbox>, EngineError> {
        let Some(Holder { records, server }) = self.existing_holder()? else { return Ok(None) };
        let Some(record) = records.get(id) else { return Ok(None) };
        let daemon = self.daemon().await?;
        // By its label, as anyone who may use the daemon may rename it.
        let mut found = self.list(daemon, &format!("{SERVER_LABEL}={server}")).await?;
        let is_id = |one: &ContainerSummary| one.id.as_deref().is_some_and(is_container_id);
        found.retain(|(found, one)| found == id && is_running(one) && is_id(one));
        let Some(container) = found.pop().and_then(|(_, one)| one.id) else { return Ok(None) };
        let (groups, reach, pid) = self.reach(daemon, &container, record.facts.user).await?;
        // It denies everything until it gets the policy.
        let policy = NetworkPolicy::default();
        // Without a gateway nothing leads out; it can still be used, and ended.
        let network = self.network(&record.facts, &policy, &container, pid, &reach).await.unwrap_or_default();
        let own_pids = container::own_pids(reach.is_direct());
        let (daemon, records) = (daemon.clone(), Some(records));
        let backend = DockerBackend { id: id.clone(), daemon, container, reach, groups, own_pids, network };
        let home = HOME.into();
        Ok(Some(adopt(New { id: id.clone(), home, record, records, phases: Vec::new(), backend })))
    }
}

/// Reports whether the daemon's answer is an id: 32 bytes in hexadecimal digits. What is shorter might be a part of the names of other
/// processes' control groups, by which a container on this machine is recognized.
fn is_container_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Reports whether a container runs, frozen or not.
fn is_running(container: &ContainerSummary) -> bool {
    let running = [ContainerSummaryStateEnum::RUNNING, ContainerSummaryStateEnum::PAUSED];
    container.state.is_some_and(|state| running.contains(&state))
}

/// A container that has been started.
#[derive(Debug, Clone)]
struct Started {
    container: String,
    phases: Vec<(&'static str, Duration)>,
    begin: Instant,
}

impl Engine for DockerEngine {
    fn name(&self) -> EngineName {
        DOCKER
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities_with(self.has_networks())
    }

    fn default_image(&self) -> Option<ImageReference> {
        self.config.settings.image.clone()
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
        let engine = DockerEngine::new(DockerConfig { run_dir, ..DockerConfig::default() });
        let can = engine.capabilities_with(true);
        belljar_engine::conformance::check_documented("docker", &can);
    }
}
