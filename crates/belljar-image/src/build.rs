//! A build: from what a template says to its layer. Every step runs in a sandbox, and so does the packing of what came of it, in
//! another one that no step has touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_engine::Engine;
use belljar_model::{LimitsFile, NetworkFile, NetworkPolicy, ShownDir, SpecFile, TemplateStart, TreeBase};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncRead;

use crate::bundle::BundleHeader;
use crate::definition::{Base, CopyStep, Definition, Step, StepKind};
use crate::error::BuildError;
use crate::layers::{Layer, Layers};
use crate::oci;
use crate::sandbox::{Ended, Job, Log, Room, Wanted};
use crate::steps::{self, script};

/// The mirror's name in the home directory of a build.
pub const MIRROR_NAME: &str = "mirror";
const IMAGE_NAME: &str = "image";
const HOME: &str = "/home/user";
/// Where trees are put together on the machine's own tree.
const WORK: &str = "/opt/template";
/// Changes the key of everything that was built before.
const GENERATION: &str = "belljar template 2";
/// The most files of a mirror that are looked at.
const MAX_MIRROR_FILES: usize = 200_000;
/// What a tree of its own does not take along.
const NOT_OF_THE_TREE: &[&str] = &["proc/*", "dev/*", "sys/*", "tmp/*", "run/*", "home/user/*"];

/// What a build is made of besides its definition.
#[derive(Debug, Default)]
pub struct BuildInput {
    /// A directory with packages, on this machine.
    pub mirror: Option<PathBuf>,
    /// An OCI image layout, or a tar of one, on this machine.
    pub image: Option<PathBuf>,
    /// The template that it starts from, if it is one.
    pub base: Option<BaseTemplate>,
    /// Files for the `copy` steps, by their names, with their permission bits.
    pub files: BTreeMap<String, (u32, Bytes)>,
    /// Whether steps run although they are cached.
    pub fresh: bool,
}

/// A template that another starts from.
#[derive(Debug, Clone)]
pub struct BaseTemplate {
    /// What its layer lies on.
    pub base: TreeBase,
    /// Its layer.
    pub layer: Option<Layer>,
    /// Its limits and environment.
    pub spec: SpecFile,
    /// What it starts in each sandbox.
    pub start: TemplateStart,
    /// Modules that its warm interpreters have imported.
    pub warm: Vec<String>,
}

/// What a build says while it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildEvent {
    /// A step begins, or is known from before.
    Step {
        /// Its number, from 1; 0 is the base.
        number: usize,
        /// How many there are.
        total: usize,
        /// What kind it is.
        kind: &'static str,
        /// What it does.
        summary: String,
        /// Whether what came of it is known from before.
        cached: bool,
    },
    /// A line of a step's output.
    Log {
        /// The step's number.
        number: usize,
        /// The line, without control characters.
        line: String,
    },
    /// A step has ended, and what came of it is a layer.
    Layer {
        /// The step's number.
        number: usize,
        /// SHA-256 of the layer.
        digest: String,
        /// Its size, in bytes.
        bytes: u64,
    },
}

/// What came of a build.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// What the layer lies on.
    pub base: TreeBase,
    /// The files.
    pub layer: Option<Layer>,
    /// Limits and environment of sandboxes.
    pub spec: SpecFile,
    /// What is started in each sandbox.
    pub start: TemplateStart,
    /// Modules that warm interpreters have imported.
    pub warm: Vec<String>,
}

/// Makes layers.
pub struct Builder<'a> {
    /// What makes the sandboxes.
    pub engine: &'a dyn Engine,
    /// Where layers are kept.
    pub layers: &'a Layers,
    /// Whose the template is.
    pub owner: &'a str,
    /// Is told what happens.
    pub tell: &'a mut (dyn FnMut(BuildEvent) + Send),
}

/// Where a build stands.
struct State {
    base: TreeBase,
    layer: Option<Layer>,
    key: String,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
}

/// What came of the steps. What the definition does not say, its base does.
fn built(definition: &Definition, base: Option<&BaseTemplate>, state: State) -> Built {
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
    /// See [`BuildError`]. What earlier steps have made stays in the cache; nothing else is left.
    pub async fn build(mut self, definition: &Definition, input: &BuildInput) -> Result<Built, BuildError> {
        check_input(definition, input)?;
        let mut state = self.base(definition, input).await?;
        let mut room: Option<Room> = None;
        let total = definition.steps.len();
        let mut failed = None;
        for step in &definition.steps {
            let result = self.step(definition, input, &mut state, &mut room, step.number, total).await;
            if let Err(error) = result {
                failed = Some(error);
                break;
            }
        }
        if let Some(room) = room {
            let closed = room.close().await;
            if failed.is_none() {
                closed?;
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(built(definition, input.base.as_ref(), state))
    }

    async fn step(
        &mut self,
        definition: &Definition,
        input: &BuildInput,
        state: &mut State,
        room: &mut Option<Room>,
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
        if room.is_none()
            && !input.fresh
            && let Some(layer) = self.layers.cached(&state.key).await
        {
            (self.tell)(begin(true));
            state.layer = Some(layer);
            return Ok(());
        }
        (self.tell)(begin(false));
        if room.is_none() {
            *room = Some(self.room(definition, input, state).await?);
        }
        let Some(inside) = room.as_ref() else { return Ok(()) };
        self.carry_out(inside, state, input, step, total).await?;
        let layer = self.pack(inside, state, definition, kind, number, total).await?;
        self.layers.note(&state.key, &layer).await?;
        (self.tell)(BuildEvent::Layer { number, digest: layer.digest.clone(), bytes: layer.bytes });
        state.layer = Some(layer);
        Ok(())
    }

    /// The sandbox in which steps run.
    async fn room(
        &mut self,
        definition: &Definition,
        input: &BuildInput,
        state: &State,
    ) -> Result<Room, BuildError> {
        let wanted = Wanted {
            base: state.base,
            layer: state.layer.as_ref(),
            owner: self.owner,
            shown: shown(MIRROR_NAME, input.mirror.as_deref()),
            limits: &definition.build,
            network: if definition.steps.iter().any(Step::has_network) {
                nowhere()?
            } else {
                NetworkPolicy::default()
            },
        };
        Room::open(self.engine, self.layers, wanted).await
    }

    /// A sandbox that no step has touched, on the machine's own tree.
    async fn workshop(
        &mut self,
        definition_limits: &LimitsFile,
        shown: Vec<ShownDir>,
    ) -> Result<Room, BuildError> {
        let wanted = Wanted {
            base: TreeBase::Host,
            layer: None,
            owner: self.owner,
            shown,
            limits: definition_limits,
            network: NetworkPolicy::default(),
        };
        Room::open(self.engine, self.layers, wanted).await
    }

    async fn carry_out(
        &mut self,
        room: &Room,
        state: &State,
        input: &BuildInput,
        step: &Step,
        total: usize,
    ) -> Result<(), BuildError> {
        let on_host = state.base == TreeBase::Host;
        let (kind, number) = (&step.kind, step.number);
        if let StepKind::Copy(copy) = kind {
            return copy_files(room, copy, input).await;
        }
        let Some(line) = steps::command(step, on_host) else { return Ok(()) };
        let tell = &mut self.tell;
        let mut log = |line: &str| tell(BuildEvent::Log { number, line: line.to_owned() });
        let env: Vec<(String, String)> = state.env.clone().into_iter().collect();
        let cwd = state.workdir.as_deref().unwrap_or(if on_host { WORK } else { "/" });
        if step.has_network() {
            room.reach(&step.network).await?;
        }
        let mut ended = room.run(Job { script: &line, env, cwd }, &mut log).await?;
        if ended.is_good() {
            // What finishes the tree, and the next step, have none.
            return if step.has_network() { room.reach(&nowhere()?).await } else { Ok(()) };
        }
        if step.has_network() {
            // The failure itself is told also where the log cannot be read.
            let denials = room.denials().await.unwrap_or_default();
            denials.iter().for_each(|reason| ended.how.push_str(&format!("; network: {reason}")));
        }
        Err(failure(ended, number, total, kind.name(), kind.summary()))
    }

    /// Makes a layer of what is in the room now.
    async fn pack(
        &mut self,
        room: &Room,
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
        let ended = room.run(Job { script: &line, env: Vec::new(), cwd: "/" }, &mut log).await?;
        if !ended.is_good() {
            return Err(failure(ended, number, total, kind.name(), "finishing the tree".to_owned()));
        }
        let (base, exclude) = if on_host { (WORK, &[][..]) } else { ("/", NOT_OF_THE_TREE) };
        let tar = room.pack(base, exclude).await?;
        let workshop = self.workshop(&definition.build, Vec::new()).await?;
        let made = self.squash_tar(&workshop, tar, number, total).await;
        let closed = workshop.close().await;
        let layer = made?;
        closed?;
        Ok(layer)
    }

    async fn squash_tar<R>(
        &mut self,
        workshop: &Room,
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
        let ended = workshop.feed(&line, tar, &mut log).await?;
        if !ended.is_good() {
            return Err(failure(ended, number, total, "layer", "packing the tree".to_owned()));
        }
        self.squash(workshop, number, total).await
    }

    /// Makes a layer of the tree in a workshop.
    async fn squash(&mut self, workshop: &Room, number: usize, total: usize) -> Result<Layer, BuildError> {
        let (tree, file) = (format!("{WORK}/tree"), format!("{WORK}/layer"));
        self.in_workshop(
            workshop,
            &script(steps::SQUASH, &[&tree, &file]),
            number,
            total,
            "packing the tree",
        )
        .await?;
        workshop.take(&file, self.layers).await
    }

    async fn in_workshop(
        &mut self,
        workshop: &Room,
        line: &str,
        number: usize,
        total: usize,
        doing: &str,
    ) -> Result<(), BuildError> {
        let tell = &mut self.tell;
        let mut log = |line: &str| tell(BuildEvent::Log { number, line: line.to_owned() });
        let ended = workshop.run(Job { script: line, env: Vec::new(), cwd: "/" }, &mut log).await?;
        if ended.is_good() {
            return Ok(());
        }
        let kind = if number == 0 { "base" } else { "layer" };
        Err(failure(ended, number, total, kind, doing.to_owned()))
    }

    /// What the template starts from.
    async fn base(&mut self, definition: &Definition, input: &BuildInput) -> Result<State, BuildError> {
        let total = definition.steps.len();
        let mut state = State {
            base: TreeBase::Own,
            layer: None,
            key: String::new(),
            env: BTreeMap::new(),
            workdir: None,
        };
        match &definition.base {
            Base::Host => {
                state.base = TreeBase::Host;
                state.key = next_key(GENERATION, &format!("host {}", host_digest()));
            }
            Base::Template(name) => {
                let Some(base) = &input.base else {
                    return Err(BuildError::input("base", format!("there is no template {name}")));
                };
                state.base = base.base;
                state.env = base.spec.env.clone().unwrap_or_default();
                state.workdir = base.start.workdir.clone();
                state.layer = base.layer.clone();
                let digest = base.layer.as_ref().map_or("", |layer| layer.digest.as_str());
                let around = format!("{:?} {:?}", state.env, state.workdir);
                let text = format!("template {} {digest} {around}", base.base.as_str());
                state.key = next_key(GENERATION, &text);
            }
            Base::Debian { suite } => {
                let mirror = input.mirror.as_deref();
                let scripts = format!("{} {} {}", steps::DEBIAN, steps::CONFIGURE, steps::FINISH);
                let text = format!("debian {suite} {scripts} {}", mirror_digest(mirror, "apt")?);
                state.key = next_key(GENERATION, &text);
                let summary = format!("debian {suite}");
                if self.known(&mut state, input, total, summary).await {
                    return Ok(state);
                }
                let workshop = self.workshop(&definition.build, shown(MIRROR_NAME, mirror)).await?;
                let made = self.unpacked(&workshop, suite, total).await;
                let closed = workshop.close().await;
                state.layer = Some(made?);
                closed?;
                let room = self.room(definition, input, &state).await?;
                let made = self.configured(&room, &state, definition, total).await;
                self.settle(room, made, &mut state).await?;
            }
            Base::Oci { reference, .. } => {
                let workshop =
                    self.workshop(&definition.build, shown(IMAGE_NAME, input.image.as_deref())).await?;
                let made = self.image(&workshop, reference.as_deref(), input, &mut state, total).await;
                match made {
                    Ok(None) => workshop.close().await?,
                    Ok(Some(layer)) => self.settle(workshop, Ok(layer), &mut state).await?,
                    Err(error) => self.settle(workshop, Err(error), &mut state).await?,
                }
            }
        }
        Ok(state)
    }

    /// Tells that the base begins, and whether it is known from before.
    async fn known(&mut self, state: &mut State, input: &BuildInput, total: usize, summary: String) -> bool {
        let cached = if input.fresh { None } else { self.layers.cached(&state.key).await };
        let known = cached.is_some();
        (self.tell)(BuildEvent::Step { number: 0, total, kind: "base", summary, cached: known });
        state.layer = cached;
        known
    }

    /// Ends a workshop, and keeps what came of it.
    async fn settle(
        &mut self,
        workshop: Room,
        made: Result<Layer, BuildError>,
        state: &mut State,
    ) -> Result<(), BuildError> {
        let closed = workshop.close().await;
        let layer = made?;
        closed?;
        self.layers.note(&state.key, &layer).await?;
        (self.tell)(BuildEvent::Layer { number: 0, digest: layer.digest.clone(), bytes: layer.bytes });
        state.layer = Some(layer);
        Ok(())
    }

    /// The packages of a Debian tree, in their places, with none of them run.
    async fn unpacked(&mut self, workshop: &Room, suite: &str, total: usize) -> Result<Layer, BuildError> {
        let tree = format!("{WORK}/tree");
        let line = script(steps::DEBIAN, &[&tree, suite]);
        self.in_workshop(workshop, &line, 0, total, "making a Debian tree").await?;
        self.squash(workshop, 0, total).await
    }

    /// The packages of a Debian tree installed, by the tree itself.
    async fn configured(
        &mut self,
        room: &Room,
        state: &State,
        definition: &Definition,
        total: usize,
    ) -> Result<Layer, BuildError> {
        self.in_workshop(room, steps::CONFIGURE, 0, total, "installing the packages of a Debian tree")
            .await?;
        let kind = StepKind::Apt(Vec::new());
        self.pack(room, state, definition, &kind, 0, total).await
    }

    /// The tree of an OCI image; `None` when it is known from before.
    async fn image(
        &mut self,
        workshop: &Room,
        reference: Option<&str>,
        input: &BuildInput,
        state: &mut State,
        total: usize,
    ) -> Result<Option<Layer>, BuildError> {
        let shown = format!("{HOME}/{IMAGE_NAME}");
        let unpack = format!(
            "mkdir {WORK}/tree && if [ -d {shown} ]; then ln -s {shown} {WORK}/layout; else mkdir {WORK}/layout && \
             tar -x --no-same-owner -f {shown} -C {WORK}/layout; fi"
        );
        self.in_workshop(workshop, &unpack, 0, total, "opening the image").await?;
        let text = document(workshop, "index.json").await?;
        let mut chosen = oci::choose(&text, reference)?;
        if let oci::Chosen::Index(index) = &chosen {
            let text = document(workshop, &format!("blobs/sha256/{}", index.hex()?)).await?;
            chosen = oci::choose(&text, None)?;
        }
        let (oci::Chosen::Manifest(found) | oci::Chosen::Index(found)) = chosen;
        let text = document(workshop, &format!("blobs/sha256/{}", found.hex()?)).await?;
        let (config, layers) = oci::manifest(&text)?;
        let config = oci::config(&document(workshop, &format!("blobs/sha256/{}", config.hex()?)).await?)?;
        for line in config.env.unwrap_or_default() {
            let variable: belljar_model::EnvVar = line
                .parse()
                .map_err(|error: belljar_model::ModelError| BuildError::input("image", error.to_string()))?;
            state.env.insert(variable.name().to_owned(), variable.value().to_owned());
        }
        if let Some(user) = config.user.filter(|user| !user.is_empty()) {
            let name = user.split(':').next().unwrap_or_default().chars().take(32).collect::<String>();
            if name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter)) {
                state.env.insert("USER".to_owned(), name);
            }
        }
        state.workdir = config.working_dir.filter(|dir| dir.starts_with('/') && dir.len() <= 1024);
        state.key = next_key(GENERATION, &format!("oci {} {}", found.digest, steps::LAYER));
        if self.known(state, input, total, format!("oci {}", found.digest)).await {
            return Ok(None);
        }
        let tree = format!("{WORK}/tree");
        for layer in layers {
            let file = format!("{WORK}/layout/blobs/sha256/{}", layer.hex()?);
            let line = script(steps::LAYER, &[&tree, &file, layer.hex()?, layer.tar_option()?]);
            self.in_workshop(workshop, &line, 0, total, &format!("unpacking the layer {}", layer.digest))
                .await?;
        }
        self.in_workshop(workshop, &script(steps::FINISH, &[&tree]), 0, total, "finishing the tree").await?;
        Ok(Some(self.squash(workshop, 0, total).await?))
    }

    /// Takes the layer of a template's file that came from elsewhere: it is unpacked and packed anew in a sandbox.
    ///
    /// # Errors
    /// See [`BuildError`]; a layer that is not what the head says is refused.
    pub async fn import<R>(
        mut self,
        header: &BundleHeader,
        mut source: R,
    ) -> Result<Option<Layer>, BuildError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        use tokio::io::AsyncReadExt as _;
        let wrong = |reason: String| BuildError::Bundle { reason };
        let Some(promised) = &header.layer else { return Ok(None) };
        // Written to disk first, so that a file that is cut off or changed is refused before anything looks at it.
        let mut part = self.layers.begin().await?;
        let mut buffer = vec![0u8; 256 << 10];
        let mut bytes = 0u64;
        loop {
            let read = source
                .read(&mut buffer)
                .await
                .map_err(|error| wrong(format!("it cannot be read: {error}")))?;
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            bytes += piece.len() as u64;
            if bytes > promised.bytes {
                return Err(wrong(format!(
                    "its layer is longer than the {} bytes that it says",
                    promised.bytes
                )));
            }
            part.write(piece).await?;
        }
        if bytes != promised.bytes || part.digest() != promised.digest {
            return Err(wrong(format!(
                "its layer is not what it says: {bytes} bytes, SHA-256 {}; it was cut off or changed",
                part.digest()
            )));
        }
        let workshop = self.workshop(&LimitsFile::default(), Vec::new()).await?;
        let made = self.repack(&workshop, part.path()).await;
        let closed = workshop.close().await;
        drop(part);
        let layer = made?;
        closed?;
        Ok(Some(layer))
    }

    async fn repack(&mut self, workshop: &Room, part: &Path) -> Result<Layer, BuildError> {
        let opened = tokio::fs::File::open(part).await;
        let file =
            opened.map_err(|source| BuildError::File { action: "open", path: part.to_owned(), source })?;
        let mut quiet = |_: &str| {};
        let line = format!("exec cat > {WORK}/foreign");
        let log: Log<'_> = &mut quiet;
        let ended = workshop.feed(&line, file, log).await?;
        if !ended.is_good() {
            return Err(failure(ended, 0, 0, "import", "receiving the layer".to_owned()));
        }
        let (foreign, tree) = (format!("{WORK}/foreign"), format!("{WORK}/tree"));
        let line = format!("{}\nrm -f {foreign}", script(steps::UNSQUASH, &[&foreign, &tree]));
        self.in_workshop(workshop, &line, 0, 0, "unpacking the layer").await?;
        self.squash(workshop, 0, 0).await
    }
}

fn failure(ended: Ended, number: usize, total: usize, kind: &'static str, command: String) -> BuildError {
    let Ended { code, how, last_lines } = ended;
    BuildError::Step { number, total, kind, command, how, code, last_lines }
}

fn shown(name: &str, source: Option<&Path>) -> Vec<ShownDir> {
    source.map(|source| ShownDir { source: source.to_owned(), name: name.to_owned() }).into_iter().collect()
}

async fn document(workshop: &Room, name: &str) -> Result<Bytes, BuildError> {
    let path = format!("{WORK}/layout/{name}");
    let read = workshop.sandbox.guest().read_all(Path::new(&path), oci::MAX_DOCUMENT_BYTES).await;
    read.map_err(|error| BuildError::input("image", format!("it has no {name} that can be read: {error}")))
}

/// Writes the files of a `copy` step to their place.
async fn copy_files(room: &Room, copy: &CopyStep, input: &BuildInput) -> Result<(), BuildError> {
    let below = format!("{}/", copy.from);
    for (name, (mode, content)) in &input.files {
        let place = match name.strip_prefix(&below) {
            Some(rest) => format!("{}/{rest}", copy.to),
            None if *name == copy.from => copy.to.clone(),
            None => continue,
        };
        let write = room.sandbox.guest().write(Path::new(&place), *mode, content.clone());
        write.await.map_err(BuildError::guest("copying a file"))?;
    }
    Ok(())
}

/// The policy between steps: a gateway that lets nothing through.
fn nowhere() -> Result<NetworkPolicy, BuildError> {
    let nowhere = NetworkFile::from("whitelist").resolve();
    nowhere.map_err(|error| BuildError::input("build.network", error.to_string()))
}

/// Checks that all is there that the steps need, before anything starts.
fn check_input(definition: &Definition, input: &BuildInput) -> Result<(), BuildError> {
    if let (Base::Debian { .. }, None) = (&definition.base, &input.mirror) {
        return Err(BuildError::input(
            "base",
            "a base has no network, so its packages come from a directory; fill one and name it with --mirror DIR",
        ));
    }
    let from_mirror =
        definition.steps.iter().find(|step| folder(&step.kind).is_some() && !step.has_network());
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
    if let (Base::Oci { .. }, None) = (&definition.base, &input.image) {
        return Err(BuildError::input("image", "the path of the image is missing"));
    }
    for step in &definition.steps {
        if let StepKind::Copy(copy) = &step.kind {
            let below = format!("{}/", copy.from);
            let there = input.files.keys().any(|name| *name == copy.from || name.starts_with(&below));
            if !there {
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

/// The key of what comes after `key` by what `text` says.
fn next_key(key: &str, text: &str) -> String {
    let mut hash = Sha256::new();
    hash.update((key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(text);
    hex::encode(hash.finalize())
}

/// The folder of the mirror with a step's packages, which has the name of the kind, and the script that installs them.
fn folder(kind: &StepKind) -> Option<(&'static str, &'static str)> {
    match kind {
        StepKind::Apt(_) => Some(("apt", steps::APT)),
        StepKind::Pip(_) => Some(("pip", steps::PIP)),
        StepKind::Npm(_) => Some(("npm", steps::NPM)),
        _ => None,
    }
}

/// All that decides what a step makes of what is there. Of a network that is the policy: what came of more is not what comes of
/// less. What registries have at the time is not known beforehand, and `fresh` asks them again.
fn step_text(step: &Step, input: &BuildInput) -> Result<String, BuildError> {
    let kind = &step.kind;
    let mut text = format!("{kind:?}");
    if let Some((folder, script)) = folder(kind) {
        text = format!("{text} {script}");
        if !step.has_network() {
            text = format!("{text} {}", mirror_digest(input.mirror.as_deref(), folder)?);
        }
    }
    if step.has_network() {
        text = format!("{text} {}", step.network.canonical_json());
    }
    if let StepKind::Copy(copy) = kind {
        let below = format!("{}/", copy.from);
        for (name, (mode, content)) in &input.files {
            if *name == copy.from || name.starts_with(&below) {
                text = format!("{text} {name:?} {mode:o} {}", hex::encode(Sha256::digest(content)));
            }
        }
    }
    Ok(format!("{text} {} {}", steps::FINISH, steps::COMPILE))
}

/// What is in a folder of a mirror: names and sizes. Packages of one name and version do not change.
fn mirror_digest(mirror: Option<&Path>, folder: &str) -> Result<String, BuildError> {
    let Some(mirror) = mirror else { return Ok(String::new()) };
    let mut found = BTreeMap::new();
    let mut left = vec![mirror.join(folder)];
    while let Some(dir) = left.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            // The step itself says what is missing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(BuildError::File { action: "list", path: dir, source }),
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                left.push(entry.path());
            }
            found.insert(entry.path(), metadata.len());
            if found.len() > MAX_MIRROR_FILES {
                return Err(BuildError::input(
                    "mirror",
                    format!("it has more than {MAX_MIRROR_FILES} files"),
                ));
            }
        }
    }
    let mut hash = Sha256::new();
    for (path, length) in found {
        let name = path.strip_prefix(mirror).unwrap_or(&path);
        hash.update(format!("{name:?} {length}\n"));
    }
    Ok(hex::encode(hash.finalize()))
}

/// What stands for the machine's own tree: its packages, or its release.
fn host_digest() -> String {
    let text = std::fs::read("/var/lib/dpkg/status").or_else(|_| std::fs::read("/etc/os-release"));
    hex::encode(Sha256::digest(text.unwrap_or_default()))
}
