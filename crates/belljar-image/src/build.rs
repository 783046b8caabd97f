//! A build: from a definition to a layer. Every step runs in a sandbox, and its result is packed in another sandbox, which no
//! step has touched.

mod base;
mod key;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_engine::Engine;
use belljar_model::{
    LimitsFile, LimitsGrade, NetworkFile, NetworkPolicy, ShownDir, SpecFile, TemplateStart, TlsMode, TreeBase,
};
use bytes::Bytes;
use tokio::io::AsyncRead;

pub use self::base::is_unpacked;
use self::key::{mirror_folder, next_key, step_text};
use crate::bundle::BundleHeader;
use crate::definition::{Base, CopyStep, Definition, Step, StepKind};
use crate::error::BuildError;
use crate::layers::{Layer, Layers};
use crate::sandbox::{BuildSandbox, BuildSandboxParams, CommandResult, Job, Log};
use crate::steps::{self, script};

/// Name of the package mirror in the home directory of a build sandbox.
pub const MIRROR_NAME: &str = "mirror";
const IMAGE_NAME: &str = "image";
const HOME: &str = "/home/user";
/// Directory on the machine's own tree in which trees are assembled.
const WORK: &str = "/opt/template";
/// Paths that are excluded from the layer of a separate tree.
const EXCLUDED_PATHS: &[&str] = &["proc/*", "dev/*", "sys/*", "tmp/*", "run/*", "home/user/*"];

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
    /// The tree below its layer.
    pub base: TreeBase,
    /// Its layer.
    pub layer: Option<Layer>,
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
    /// A step has finished and produced a layer.
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
    /// The tree below the layer.
    pub base: TreeBase,
    /// The layer with the template's files, if there are any.
    pub layer: Option<Layer>,
    /// Limits and environment of sandboxes.
    pub spec: SpecFile,
    /// Commands that are started in each sandbox.
    pub start: TemplateStart,
    /// Modules that warm interpreters import in advance.
    pub warm: Vec<String>,
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
    layer: Option<Layer>,
    key: String,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
}

/// Combines the result of the steps with the definition; the base supplies what the definition does not set.
fn assemble(definition: &Definition, base: Option<&BaseTemplate>, state: State) -> Built {
    let mut spec = definition.spec.clone();
    let mut warm = Vec::new();
    let (mut command, mut ready) = (definition.start.clone(), definition.ready.clone());
    if let Some(base) = base {
        spec.limits = base.spec.limits.clone().merge(spec.limits);
        warm.clone_from(&base.warm);
        if command.is_none() {
            (command, ready) = (base.start.command.clone(), base.start.ready.clone());
        }
    }
    let more: Vec<String> = definition.warm.iter().filter(|name| !warm.contains(name)).cloned().collect();
    warm.extend(more);
    spec.env = Some(state.env).filter(|env| !env.is_empty());
    let start = TemplateStart { command, ready, workdir: state.workdir };
    Built { base: state.base, layer: state.layer, spec, start, warm }
}

impl Builder<'_> {
    /// Builds a template.
    ///
    /// # Errors
    /// See [`BuildError`]. Layers of earlier steps stay in the cache; nothing else is left behind.
    pub async fn build(mut self, definition: &Definition, input: &BuildInput) -> Result<Built, BuildError> {
        check_input(definition, input)?;
        let mut state = self.prepare_base(definition, input).await?;
        let mut sandbox: Option<BuildSandbox> = None;
        let total = definition.steps.len();
        let mut failure = None;
        for step in &definition.steps {
            let result = self.step(definition, input, &mut state, &mut sandbox, step.number, total).await;
            if let Err(error) = result {
                failure = Some(error);
                break;
            }
        }
        if let Some(sandbox) = sandbox {
            let closed = sandbox.close().await;
            if failure.is_none() {
                closed?;
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(assemble(definition, input.base.as_ref(), state))
    }

    async fn step(
        &mut self,
        definition: &Definition,
        input: &BuildInput,
        state: &mut State,
        sandbox: &mut Option<BuildSandbox>,
        number: usize,
        total: usize,
    ) -> Result<(), BuildError> {
        let Some(step) = definition.steps.get(number - 1) else { return Ok(()) };
        let kind = &step.kind;
        state.key = next_key(&state.key, &step_text(step, input)?);
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
        if sandbox.is_none()
            && !input.fresh
            && let Some(layer) = self.layers.find_cached(&state.key).await
        {
            (self.tell)(begin(true));
            state.layer = Some(layer);
            return Ok(());
        }
        (self.tell)(begin(false));
        if sandbox.is_none() {
            *sandbox = Some(self.open_step_sandbox(definition, input, state).await?);
        }
        let Some(sandbox) = sandbox.as_ref() else { return Ok(()) };
        self.run_step(sandbox, state, input, step, total).await?;
        let layer = self.pack_layer(sandbox, state, definition, kind, number, total).await?;
        self.layers.record(&state.key, &layer).await?;
        (self.tell)(BuildEvent::Layer { number, digest: layer.digest.clone(), bytes: layer.bytes });
        state.layer = Some(layer);
        Ok(())
    }

    /// Opens the sandbox in which the steps run.
    async fn open_step_sandbox(
        &mut self,
        definition: &Definition,
        input: &BuildInput,
        state: &State,
    ) -> Result<BuildSandbox, BuildError> {
        let params = BuildSandboxParams {
            base: state.base,
            layer: state.layer.as_ref(),
            owner: self.owner,
            grade: self.grade,
            shown: show_dir(MIRROR_NAME, input.mirror.as_deref()),
            limits: &definition.build,
            network: if definition.steps.iter().any(Step::has_network) {
                no_egress_policy(&definition.steps)?
            } else {
                NetworkPolicy::default()
            },
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
            layer: None,
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
        let env: Vec<(String, String)> = state.env.clone().into_iter().collect();
        let cwd = state.workdir.as_deref().unwrap_or(if on_host { WORK } else { "/" });
        if step.has_network() {
            sandbox.set_network(&step.network).await?;
        }
        let mut result = sandbox.run(Job { script: &line, env, cwd }, &mut log).await?;
        if result.is_success() {
            // Finishing the tree, and the next step, have no network.
            return if step.has_network() {
                sandbox.set_network(&no_egress_policy(&[])?).await
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

    /// Makes a layer of the sandbox's current tree.
    async fn pack_layer(
        &mut self,
        sandbox: &BuildSandbox,
        state: &State,
        definition: &Definition,
        kind: &StepKind,
        number: usize,
        total: usize,
    ) -> Result<Layer, BuildError> {
        let on_host = state.base == TreeBase::Host;
        let tell = &mut self.tell;
        let mut log = |line: &str| tell(BuildEvent::Log { number, line: line.to_owned() });
        let mut line = format!("set -- {}\n{}", steps::python_dirs(kind, on_host), steps::COMPILE);
        if !on_host {
            line = format!("( {line}\n)\n{}", script(steps::FINISH, &[""]));
        }
        let result = sandbox.run(Job { script: &line, env: Vec::new(), cwd: "/" }, &mut log).await?;
        if !result.is_success() {
            return Err(step_error(result, number, total, kind.name(), "finishing the tree".to_owned()));
        }
        let (base, exclude) = if on_host { (WORK, &[][..]) } else { ("/", EXCLUDED_PATHS) };
        let tar = sandbox.pack(base, exclude).await?;
        let workshop = self.open_workshop(&definition.build, Vec::new()).await?;
        let result = self.squash_tar(&workshop, tar, number, total).await;
        let closed = workshop.close().await;
        let layer = result?;
        closed?;
        Ok(layer)
    }

    async fn squash_tar<R>(
        &mut self,
        workshop: &BuildSandbox,
        tar: R,
        number: usize,
        total: usize,
    ) -> Result<Layer, BuildError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let tell = &mut self.tell;
        let mut log = |line: &str| tell(BuildEvent::Log { number, line: line.to_owned() });
        let line = format!("mkdir {WORK}/tree && exec tar -x -p --no-same-owner -f - -C {WORK}/tree");
        let result = workshop.feed(&line, tar, &mut log).await?;
        if !result.is_success() {
            return Err(step_error(result, number, total, "layer", "packing the tree".to_owned()));
        }
        self.squash(workshop, number, total).await
    }

    /// Packs the tree in a workshop into a layer.
    async fn squash(
        &mut self,
        workshop: &BuildSandbox,
        number: usize,
        total: usize,
    ) -> Result<Layer, BuildError> {
        let (tree, file) = (format!("{WORK}/tree"), format!("{WORK}/layer"));
        self.run_in_workshop(
            workshop,
            &script(steps::SQUASH, &[&tree, &file]),
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
        let result = workshop.run(Job { script: line, env: Vec::new(), cwd: "/" }, &mut log).await?;
        if result.is_success() {
            return Ok(());
        }
        let kind = if number == 0 { "base" } else { "layer" };
        Err(step_error(result, number, total, kind, doing.to_owned()))
    }

    /// Imports the layer of a bundle from elsewhere by unpacking and repacking it in a sandbox.
    ///
    /// # Errors
    /// See [`BuildError`]; a layer that does not match the header is refused.
    pub async fn import<R>(
        mut self,
        header: &BundleHeader,
        mut source: R,
    ) -> Result<Option<Layer>, BuildError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        use tokio::io::AsyncReadExt as _;
        let invalid = |reason: String| BuildError::Bundle { reason };
        let Some(expected) = &header.layer else { return Ok(None) };
        // Written to disk first, so that a truncated or modified file is refused before anything parses it.
        let mut part = self.layers.begin().await?;
        let mut buffer = vec![0u8; 256 << 10];
        let mut bytes = 0u64;
        loop {
            let read = source
                .read(&mut buffer)
                .await
                .map_err(|error| invalid(format!("it cannot be read: {error}")))?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            bytes += piece.len() as u64;
            if bytes > expected.bytes {
                return Err(invalid(format!(
                    "its layer is longer than the {} bytes in its header",
                    expected.bytes
                )));
            }
            part.write(piece).await?;
        }
        if bytes != expected.bytes || part.digest() != expected.digest {
            return Err(invalid(format!(
                "its layer does not match its header: {bytes} bytes, SHA-256 {}; it was truncated or modified",
                part.digest()
            )));
        }
        let workshop = self.open_workshop(&LimitsFile::default(), Vec::new()).await?;
        let result = self.repack(&workshop, part.path()).await;
        let closed = workshop.close().await;
        drop(part);
        let layer = result?;
        closed?;
        Ok(Some(layer))
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
        self.squash(workshop, 0, 0).await
    }
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

fn show_dir(name: &str, source: Option<&Path>) -> Vec<ShownDir> {
    source.map(|source| ShownDir { source: source.to_owned(), name: name.to_owned() }).into_iter().collect()
}

/// Writes the files of a `copy` step into the sandbox.
async fn copy_files(sandbox: &BuildSandbox, copy: &CopyStep, input: &BuildInput) -> Result<(), BuildError> {
    let below = format!("{}/", copy.from);
    for (name, (mode, content)) in &input.files {
        let place = match name.strip_prefix(&below) {
            Some(rest) => format!("{}/{rest}", copy.to),
            None if *name == copy.from => copy.to.clone(),
            None => continue,
        };
        let write = sandbox.sandbox.guest().write(Path::new(&place), *mode, content.clone());
        write.await.map_err(BuildError::guest("copying a file"))?;
    }
    Ok(())
}

/// Returns the policy between steps: a gateway that allows no connections. The one with which a sandbox starts has to name the hosts to
/// which the gateway terminates TLS in any of its steps.
fn no_egress_policy(steps: &[Step]) -> Result<NetworkPolicy, BuildError> {
    let hosts = steps.iter().flat_map(|step| step.network.read_hosts());
    let tls = hosts.map(|host| (host.to_string(), TlsMode::Terminate.to_string())).collect();
    let policy = NetworkFile { tls: Some(tls), ..NetworkFile::from("whitelist") }.resolve();
    policy.map_err(|error| BuildError::input("build.network", error.to_string()))
}

/// Checks that all inputs of the steps exist, before anything starts.
fn check_input(definition: &Definition, input: &BuildInput) -> Result<(), BuildError> {
    if let (Base::Debian { .. }, None) = (&definition.base, &input.mirror) {
        return Err(BuildError::input(
            "base",
            "a base has no network, so its packages come from a directory; fill one and name it with --mirror DIR",
        ));
    }
    let from_mirror =
        definition.steps.iter().find(|step| mirror_folder(&step.kind).is_some() && !step.has_network());
    if let (Some(step), None) = (from_mirror, &input.mirror) {
        return Err(BuildError::input(
            format!("step.{}.{}", step.number, step.kind.name()),
            format!(
                "it has no network, so packages come from a directory: fill one and name it with --mirror DIR, or give \
                 the step network = {{ presets = [\"{}\"] }}",
                step.kind.name()
            ),
        ));
    }
    if let (Base::Oci { .. } | Base::Image(_), None) = (&definition.base, &input.image) {
        return Err(BuildError::input("image", "the path of the image is missing"));
    }
    for step in &definition.steps {
        if let StepKind::Copy(copy) = &step.kind {
            let below = format!("{}/", copy.from);
            let exists = input.files.keys().any(|name| *name == copy.from || name.starts_with(&below));
            if !exists {
                let field = format!("step.{}.copy.from", step.number);
                return Err(BuildError::input(
                    field,
                    format!("{:?} did not come with the template", copy.from),
                ));
            }
        }
    }
    if definition.base == Base::Host || input.base.as_ref().is_some_and(|base| base.base == TreeBase::Host) {
        let apt = definition.steps.iter().find(|step| matches!(step.kind, StepKind::Apt(_)));
        if let Some(step) = apt {
            return Err(BuildError::input(
                format!("step.{}.apt", step.number),
                "packages cannot be installed into the machine's own tree; use base = \"debian\"",
            ));
        }
    }
    Ok(())
}
