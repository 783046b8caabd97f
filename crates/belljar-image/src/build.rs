//! A build: from a definition to layers. Every step runs in a sandbox of its own, and what it has changed is packed in another sandbox,
//! which no step has touched, into a layer on those of the steps before.

mod base;
mod check;
mod key;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belljar_engine::Engine;
use belljar_model::{
    ImageInfo, LimitsFile, LimitsGrade, MAX_TREE_LAYERS, NetworkFile, NetworkPolicy, ShownDir, SpecFile,
    TREE_BEFORE, TREE_CHANGES, TemplateStart, TemplateTree, TlsMode, TreeBase,
};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::io::InspectReader;

pub use self::base::is_unpacked;
pub use self::check::check_input;
use self::key::{next_key, step_text, uses_mirror};
use crate::bundle::BundleHeader;
use crate::definition::{CopyStep, Definition, Step, StepKind};
use crate::error::BuildError;
use crate::layers::{Layer, Layers, NewLayer};
use crate::sandbox::{BuildSandbox, BuildSandboxParams, CommandResult, Job, Log, check_starts};
use crate::steps::{self, script};

/// Name of the package mirror in the home directory of a build sandbox.
pub const MIRROR_NAME: &str = "mirror";
const IMAGE_NAME: &str = "image";
const HOME: &str = "/home/user";
/// Directory on the machine's own tree in which trees are assembled.
const WORK: &str = "/opt/template";
/// Where the programs of scripts are looked for that unpack and pack foreign trees.
const WORKSHOP_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Time between reports of packed bytes.
const PACK_INTERVAL: Duration = Duration::from_millis(500);
/// Paths that are excluded from the layers of a separate tree.
pub(crate) const EXCLUDED_PATHS: &[&str] = &["proc/*", "dev/*", "sys/*", "tmp/*", "run/*", "home/user/*"];

/// Inputs of a build besides the definition.
#[derive(Debug, Default)]
pub struct BuildInput {
    /// The directory with packages, on this machine.
    pub mirror: Option<PathBuf>,
    /// The OCI image layout, or a tar of one, on this machine.
    pub image: Option<PathBuf>,
    /// The template on which this one is based, if any.
    pub base: Option<BaseTemplate>,
    /// Permission bits and content of the files for `copy` steps, by name.
    pub files: BTreeMap<String, (u32, Bytes)>,
    /// True if cached steps run again.
    pub fresh: bool,
}

/// A template that is the base of another.
#[derive(Debug, Clone)]
pub struct BaseTemplate {
    /// The tree below its layers.
    pub base: TreeBase,
    /// Its layers, the lowest first.
    pub layers: Vec<Layer>,
    /// Limits and environment of its sandboxes.
    pub spec: SpecFile,
    /// Commands that it starts in each sandbox.
    pub start: TemplateStart,
    /// Modules that its warm interpreters import in advance.
    pub warm: Vec<String>,
}

/// A progress event of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildEvent {
    /// A step starts, or its result is cached.
    Step {
        /// The number of the step, from 1; 0 is the base.
        number: usize,
        /// The number of steps.
        total: usize,
        /// The kind of the step.
        kind: &'static str,
        /// A one-line summary.
        summary: String,
        /// True if the result is cached.
        cached: bool,
    },
    /// A line of a step's output.
    Log {
        /// The number of the step.
        number: usize,
        /// The line, without control characters.
        line: String,
    },
    /// What a step has changed is being packed.
    Packing {
        /// The number of the step.
        number: usize,
        /// Bytes so far.
        bytes: u64,
    },
    /// A step has finished and produced a layer. One that changes nothing produces none.
    Layer {
        /// The number of the step.
        number: usize,
        /// SHA-256 of the layer.
        digest: String,
        /// The size of the layer in bytes.
        bytes: u64,
    },
}

/// The result of a build.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// The tree below the layers.
    pub base: TreeBase,
    /// The layers with the template's files, the lowest first.
    pub layers: Vec<Layer>,
    /// Limits and environment of sandboxes.
    pub spec: SpecFile,
    /// Commands that are started in each sandbox.
    pub start: TemplateStart,
    /// Modules that warm interpreters import in advance.
    pub warm: Vec<String>,
    /// The image that is its base, unless that is a template.
    pub image: Option<ImageInfo>,
}

/// Builds templates and imports bundles.
pub struct Builder<'a> {
    /// The engine that creates the sandboxes.
    pub engine: &'a dyn Engine,
    /// The store of layers.
    pub layers: &'a Layers,
    /// The owner of the template.
    pub owner: &'a str,
    /// How the limits of the sandboxes are enforced.
    pub grade: LimitsGrade,
    /// Receives the events of the build.
    pub tell: &'a mut (dyn FnMut(BuildEvent) + Send),
}

/// State of a build: the result of its base and of the steps so far.
struct State {
    base: TreeBase,
    layers: Vec<Layer>,
    key: String,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    image: Option<ImageInfo>,
    /// Whether the base or a step was not cached, so that all steps after it run.
    is_new: bool,
}

/// Combines the result of the steps with the definition; the base supplies what the definition does not set.
fn assemble(definition: &Definition, base: Option<&BaseTemplate>, state: State) -> Built {
    let mut spec = definition.spec.clone();
    let mut warm = Vec::new();
    let (mut command, mut ready) = (definition.start.clone(), definition.ready.clone());
    if let Some(base) = base {
        spec.limits = base.spec.limits.clone().merge(spec.limits);
        spec.machine = spec.machine.or(base.spec.machine);
        warm.clone_from(&base.warm);
        if command.is_none() {
            (command, ready) = (base.start.command.clone(), base.start.ready.clone());
        }
    }
    let more: Vec<String> = definition.warm.iter().filter(|name| !warm.contains(name)).cloned().collect();
    warm.extend(more);
    spec.env = Some(state.env).filter(|env| !env.is_empty());
    let start = TemplateStart { command, ready, workdir: state.workdir };
    Built { base: state.base, layers: state.layers, spec, start, warm, image: state.image }
}

impl Builder<'_> {
    /// Builds a template.
    ///
    /// # Errors
    /// See [`BuildError`]. Layers of earlier steps stay in the cache; nothing else is left behind.
    pub async fn build(mut self, definition: &Definition, input: &BuildInput) -> Result<Built, BuildError> {
        check_input(definition, input)?;
        let mut state = self.prepare_base(definition, input).await?;
        for step in &definition.steps {
            self.step(definition, input, &mut state, step).await?;
        }
        Ok(assemble(definition, input.base.as_ref(), state))
    }

    async fn step(
        &mut self,
        definition: &Definition,
        input: &BuildInput,
        state: &mut State,
        step: &Step,
    ) -> Result<(), BuildError> {
        let (kind, number, total) = (&step.kind, step.number, definition.steps.len());
        state.key = next_key(&state.key, &format!("{} {}", self.owner, step_text(step, input)?));
        let begin =
            |cached| BuildEvent::Step { number, total, kind: kind.name(), summary: kind.summary(), cached };
        match kind {
            StepKind::Env(env) => {
                state.env.extend(env.clone());
                (self.tell)(begin(false));
                return Ok(());
            }
            StepKind::User(name) => {
                state.env.insert("USER".to_owned(), name.clone());
                state.env.insert("LOGNAME".to_owned(), name.clone());
                (self.tell)(begin(false));
                return Ok(());
            }
            StepKind::Workdir(dir) => {
                state.workdir = Some(dir.clone());
                (self.tell)(begin(false));
                return Ok(());
            }
            _ => {}
        }
        if !state.is_new
            && !input.fresh
            && let Some(layers) = self.layers.find_cached(&state.key).await
        {
            (self.tell)(begin(true));
            state.layers = layers;
            return Ok(());
        }
        state.is_new = true;
        (self.tell)(begin(false));
        let sandbox = self.open_step_sandbox(definition, input, state, Some(step)).await?;
        let result = match self.run_step(&sandbox, state, input, step, total).await {
            Ok(()) => self.pack_layer(&sandbox, state, definition, kind, number).await,
            Err(error) => Err(error),
        };
        let closed = sandbox.close().await;
        let layers = result.map_err(|error| error.in_step(number, total, kind.name(), kind.summary()))?;
        closed?;
        self.finish_layers(state, layers, number).await
    }

    /// Makes layers the state's, and records them in the cache.
    async fn finish_layers(
        &mut self,
        state: &mut State,
        layers: Vec<Layer>,
        number: usize,
    ) -> Result<(), BuildError> {
        self.layers.record(&state.key, &layers).await?;
        if let (Some(last), true) = (layers.last(), layers != state.layers) {
            (self.tell)(BuildEvent::Layer { number, digest: last.digest.clone(), bytes: last.bytes });
        }
        state.layers = layers;
        Ok(())
    }

    /// Opens the sandbox in which a step runs, or the packages of a base are configured.
    async fn open_step_sandbox(
        &mut self,
        definition: &Definition,
        input: &BuildInput,
        state: &State,
        step: Option<&Step>,
    ) -> Result<BuildSandbox, BuildError> {
        let networked = step.filter(|step| step.has_network());
        // Others have nothing of it in their keys.
        let mirror = input.mirror.as_deref().filter(|_| step.is_some_and(uses_mirror));
        let params = BuildSandboxParams {
            base: state.base,
            below: &state.layers,
            owner: self.owner,
            grade: self.grade,
            shown: show_dir(MIRROR_NAME, mirror, false),
            limits: &definition.build,
            network: networked.map_or_else(|| Ok(NetworkPolicy::default()), no_egress_policy)?,
        };
        BuildSandbox::open(self.engine, self.layers, params).await
    }

    /// Opens a sandbox on the machine's own tree that no step has touched.
    async fn open_workshop(
        &mut self,
        definition_limits: &LimitsFile,
        shown: Vec<ShownDir>,
    ) -> Result<BuildSandbox, BuildError> {
        let params = BuildSandboxParams {
            base: TreeBase::Host,
            below: &[],
            owner: self.owner,
            grade: self.grade,
            shown,
            limits: definition_limits,
            network: NetworkPolicy::default(),
        };
        BuildSandbox::open(self.engine, self.layers, params).await
    }

    async fn run_step(
        &mut self,
        sandbox: &BuildSandbox,
        state: &State,
        input: &BuildInput,
        step: &Step,
        total: usize,
    ) -> Result<(), BuildError> {
        let on_host = state.base == TreeBase::Host;
        let (kind, number) = (&step.kind, step.number);
        if let StepKind::Copy(copy) = kind {
            return copy_files(sandbox, copy, input).await;
        }
        let Some(line) = steps::command(step, on_host) else { return Ok(()) };
        let tell = &mut self.tell;
        let mut log = |line: &str| tell(BuildEvent::Log { number, line: line.to_owned() });
        let mut env = state.env.clone();
        env.extend(step.env.clone());
        let env: Vec<(String, String)> = env.into_iter().collect();
        let cwd = state.workdir.as_deref().unwrap_or(if on_host { WORK } else { "/" });
        if state.workdir.is_some() {
            // As Docker does: no layer of the image may have its `WORKDIR`. What cannot be made, the command reports.
            let _ = sandbox.make_dir(cwd).await;
        }
        if step.has_network() {
            sandbox.set_network(&step.network).await?;
        }
        let mut result = sandbox.run(Job { script: &line, env, cwd }, &mut log).await?;
        if result.is_success() {
            // Finishing the tree, and the next step, have no network.
            return if step.has_network() {
                sandbox.set_network(&no_egress_policy(step)?).await
            } else {
                Ok(())
            };
        }
        if step.has_network() {
            // The failure itself is reported even if the log cannot be read.
            let denials = sandbox.denials().await.unwrap_or_default();
            denials.iter().for_each(|reason| result.how.push_str(&format!("; network: {reason}")));
        }
        Err(step_error(result, number, total, kind.name(), kind.summary()))
    }

    /// Packs what has changed in the sandbox's tree, and returns the tree's layers with that. When there would be too many, and for a
    /// base, the whole tree becomes a single one.
    async fn pack_layer(
        &mut self,
        sandbox: &BuildSandbox,
        state: &State,
        definition: &Definition,
        kind: &StepKind,
        number: usize,
    ) -> Result<Vec<Layer>, BuildError> {
        let total = definition.steps.len();
        let on_host = state.base == TreeBase::Host;
        let below = match state.layers.as_slice() {
            layers if layers.len() < MAX_TREE_LAYERS && number > 0 => layers,
            _ => &[],
        };
        let tell = &mut self.tell;
        let mut log = |line: &str| tell(BuildEvent::Log { number, line: line.to_owned() });
        let place = if on_host { WORK } else { "" };
        let changes = if state.layers.is_empty() { place } else { TREE_CHANGES };
        let dirs = steps::python_dirs(kind, on_host);
        let mut line = format!("set -- '{changes}' '{place}' {dirs}\n{}", steps::COMPILE);
        if !on_host {
            line = format!("( {line}\n)\n{}", script(steps::FINISH, &[""]));
        }
        let result = sandbox.run(Job { script: &line, env: Vec::new(), cwd: "/" }, &mut log).await?;
        if !result.is_success() {
            return Err(step_error(result, number, total, kind.name(), "finishing the tree".to_owned()));
        }
        let exclude = if on_host { &[][..] } else { EXCLUDED_PATHS };
        let packed = match (below.is_empty(), on_host) {
            (false, _) => sandbox.pack(TREE_CHANGES, Some(TREE_BEFORE), exclude).await?,
            (true, true) => sandbox.pack(WORK, None, exclude).await?,
            (true, false) => sandbox.pack("/", None, exclude).await?,
        };
        let Some(tar) = packed else { return Ok(below.to_vec()) };
        let workshop = self.open_workshop(&definition.build, Vec::new()).await?;
        let result = match self.extract_tar(&workshop, tar, number, total).await {
            Ok(()) => self.squash(&workshop, "", number, total).await,
            Err(error) => Err(error),
        };
        let closed = workshop.close().await;
        let layer = result?;
        closed?;
        Ok(below.iter().cloned().chain([layer]).collect())
    }

    async fn extract_tar<R>(
        &mut self,
        workshop: &BuildSandbox,
        tar: R,
        number: usize,
        total: usize,
    ) -> Result<(), BuildError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&bytes);
        let tar = InspectReader::new(tar, move |piece| {
            counter.fetch_add(piece.len() as u64, Ordering::Relaxed);
        });
        let line = format!("mkdir {WORK}/tree && exec tar -x -p --no-same-owner -f - -C {WORK}/tree");
        let tell = Mutex::new(&mut self.tell);
        let report = |event| (tell.lock())(event);
        let packing = || BuildEvent::Packing { number, bytes: bytes.load(Ordering::Relaxed) };
        let mut log = |line: &str| report(BuildEvent::Log { number, line: line.to_owned() });
        let mut ticks = tokio::time::interval(PACK_INTERVAL);
        let result = {
            let mut feeding = std::pin::pin!(workshop.feed(&line, tar, &mut log));
            loop {
                tokio::select! {
                    result = &mut feeding => break result?,
                    _ = ticks.tick() => report(packing()),
                }
            }
        };
        report(packing());
        match result.is_success() {
            true => Ok(()),
            false => Err(step_error(result, number, total, "layer", "packing the tree".to_owned())),
        }
    }

    /// Packs the tree in a workshop into a layer. `owners` is a file there with those of its files that are not root's; empty if there is none.
    async fn squash(
        &mut self,
        workshop: &BuildSandbox,
        owners: &str,
        number: usize,
        total: usize,
    ) -> Result<Layer, BuildError> {
        let (tree, file) = (format!("{WORK}/tree"), format!("{WORK}/layer"));
        self.run_in_workshop(
            workshop,
            &script(steps::SQUASH, &[&tree, &file, owners]),
            number,
            total,
            "packing the tree",
        )
        .await?;
        workshop.save_layer(&file, self.layers).await
    }

    async fn run_in_workshop(
        &mut self,
        workshop: &BuildSandbox,
        line: &str,
        number: usize,
        total: usize,
        doing: &str,
    ) -> Result<(), BuildError> {
        let tell = &mut self.tell;
        let mut log = |line: &str| tell(BuildEvent::Log { number, line: line.to_owned() });
        // What is unpacked may lie in any directory in which user code can install programs.
        let env = vec![("PATH".to_owned(), WORKSHOP_PATH.to_owned())];
        let result = workshop.run(Job { script: line, env, cwd: "/" }, &mut log).await?;
        if result.is_success() {
            return Ok(());
        }
        let kind = if number == 0 { "base" } else { "layer" };
        Err(step_error(result, number, total, kind, doing.to_owned()))
    }

    /// Imports the layers of a bundle from elsewhere by unpacking and repacking each in a sandbox.
    ///
    /// # Errors
    /// See [`BuildError`]; layers that do not match the header are refused.
    pub async fn import<R>(mut self, header: &BundleHeader, mut source: R) -> Result<Vec<Layer>, BuildError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        // All are written to disk first, so that a truncated or modified file is refused before anything parses it.
        let mut parts = Vec::new();
        for expected in &header.layers {
            parts.push(receive(self.layers, expected, &mut source).await?);
        }
        if source.read(&mut [0u8; 1]).await.map_err(|error| unreadable(&error))? > 0 {
            return Err(invalid("it is longer than its header says".to_owned()));
        }
        let mut layers = Vec::new();
        for part in &parts {
            let workshop = self.open_workshop(&LimitsFile::default(), Vec::new()).await?;
            let result = self.repack(&workshop, part.path()).await;
            let closed = workshop.close().await;
            layers.push(result?);
            closed?;
        }
        if header.base == TreeBase::Own {
            // One that lacks a directory to mount on would only fail later, in each of its sandboxes.
            let tree = TemplateTree {
                base: header.base,
                layers: self.layers.tree(&layers),
                owner: self.owner.to_owned(),
                build: None,
                warm: Vec::new(),
                start: TemplateStart::default(),
            };
            check_starts(self.engine, tree, self.grade).await?;
        }
        Ok(layers)
    }

    async fn repack(&mut self, workshop: &BuildSandbox, part: &Path) -> Result<Layer, BuildError> {
        let opened = tokio::fs::File::open(part).await;
        let file =
            opened.map_err(|source| BuildError::File { action: "open", path: part.to_owned(), source })?;
        let mut quiet = |_: &str| {};
        let line = format!("exec cat > {WORK}/foreign");
        let log: Log<'_> = &mut quiet;
        let result = workshop.feed(&line, file, log).await?;
        if !result.is_success() {
            return Err(step_error(result, 0, 0, "import", "receiving the layer".to_owned()));
        }
        let (foreign, tree) = (format!("{WORK}/foreign"), format!("{WORK}/tree"));
        let line = format!("{}\nrm -f {foreign}", script(steps::UNSQUASH, &[&foreign, &tree]));
        self.run_in_workshop(workshop, &line, 0, 0, "unpacking the layer").await?;
        self.squash(workshop, "", 0, 0).await
    }
}

/// Reads a layer of a bundle into a file.
async fn receive<R>(layers: &Layers, expected: &Layer, source: &mut R) -> Result<NewLayer, BuildError>
where
    R: AsyncRead + Send + Unpin,
{
    let mut part = layers.begin().await?;
    let mut layer = source.take(expected.bytes);
    let mut buffer = vec![0u8; 256 << 10];
    loop {
        let read = layer.read(&mut buffer).await.map_err(|error| unreadable(&error))?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
        part.write(piece).await?;
    }
    if layer.limit() > 0 || part.digest() != expected.digest {
        return Err(invalid(format!(
            "a layer does not match its header: {} bytes, SHA-256 {}; it was truncated or modified",
            expected.bytes - layer.limit(),
            part.digest()
        )));
    }
    Ok(part)
}

fn invalid(reason: String) -> BuildError {
    BuildError::Bundle { reason }
}

fn unreadable(error: &std::io::Error) -> BuildError {
    invalid(format!("it cannot be read: {error}"))
}

fn step_error(
    result: CommandResult,
    number: usize,
    total: usize,
    kind: &'static str,
    command: String,
) -> BuildError {
    let CommandResult { code, how, last_lines } = result;
    BuildError::Step { number, total, kind, command, how, code, last_lines }
}

fn show_dir(name: &str, source: Option<&Path>, own: bool) -> Vec<ShownDir> {
    let show = |source: &Path| ShownDir { source: source.to_owned(), name: name.to_owned(), own };
    source.map(show).into_iter().collect()
}

/// Writes the files of a `copy` step into the sandbox.
async fn copy_files(sandbox: &BuildSandbox, copy: &CopyStep, input: &BuildInput) -> Result<(), BuildError> {
    for (name, (mode, content)) in &input.files {
        let Some(place) = copy.target(name) else { continue };
        let write = sandbox.sandbox.guest().write(Path::new(&place), *mode, content.clone());
        write.await.map_err(BuildError::guest("copying a file"))?;
    }
    Ok(())
}

/// Returns the policy before and after a step: a gateway that allows no connections. It has to name the hosts to which the gateway
/// terminates TLS in the step.
fn no_egress_policy(step: &Step) -> Result<NetworkPolicy, BuildError> {
    let hosts = step.network.read_hosts().into_iter();
    let tls = hosts.map(|host| (host.to_string(), TlsMode::Terminate.to_string())).collect();
    let policy = NetworkFile { tls: Some(tls), ..NetworkFile::from("whitelist") }.resolve();
    policy.map_err(|error| BuildError::input("build.network", error.to_string()))
}
