//! Built templates: building a layer from a definition, and importing and exporting templates as files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_engine::{Engine, EngineError, ProcessEvent, Sandbox, v1};
use belljar_image::{
    Base, BaseTemplate, BuildEvent, BuildInput, Builder, Built, BundleHeader, Definition, Layer, Layers,
    MAX_HEADER_BYTES, Swept, bytes_of, check_input, digest_of, parse_header, write_header,
};
use belljar_model::{
    ImageInfo, ImageReference, SpecFile, TemplateStart, TemplateTree, Tree, TreeBase, one_or_several,
};
use belljar_store::{StoreError, TemplateKind, TemplateRow};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::action::{Action, TEMPLATE_BUILD, TEMPLATE_BUILD_FILE, TEMPLATE_EXPORT, TEMPLATE_IMPORT};
use crate::build_queue::{QueuedBuild, TemplateBuild};
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::head_room::Purpose;
use crate::images::image_template;
use crate::info::{TemplateInfo, TemplateStep};
use crate::keeper::{Keeper, Result};
use crate::keys::ended_while_waiting;
use crate::query::network_details;
use crate::request::SandboxName;
use crate::tags::new_template_id;
use crate::templates::{DEFAULT_TEMPLATE, Origin, check_new_name, template_info};

/// Maximum size in bytes of the files sent with a build.
pub const MAX_BUILD_FILE_BYTES: usize = 8 << 20;

/// Maximum size of all imported layers, in bytes.
const MAX_IMPORT_BYTES: u64 = 16 << 30;

/// Time within which a sandbox's `ready` command must succeed.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Delay between attempts of the `ready` command.
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// Stored properties of a built template besides its specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuiltRecord {
    pub(crate) base: TreeBase,
    /// The lowest first.
    #[serde(default, alias = "layer", deserialize_with = "one_or_several")]
    pub(crate) layers: Vec<Layer>,
    #[serde(default)]
    pub(crate) start: Option<String>,
    #[serde(default)]
    pub(crate) ready: Option<String>,
    #[serde(default)]
    pub(crate) warm: Vec<String>,
    #[serde(default)]
    pub(crate) workdir: Option<String>,
    /// The step-by-step build that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) build: Option<String>,
    /// Name of the template that its file is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    /// Its file's steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) steps: Vec<TemplateStep>,
    /// The image that its file is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<ImageInfo>,
}

impl BuiltRecord {
    /// Returns the record of an unchanged tree on `base`.
    pub(crate) fn unchanged(base: TreeBase) -> Self {
        let (start, ready, workdir, build, parent) = (None, None, None, None, None);
        let (layers, warm, steps, image) = (Vec::new(), Vec::new(), Vec::new(), None);
        Self { base, layers, start, ready, warm, workdir, build, parent, steps, image }
    }
}

/// A request to build a template.
#[derive(Debug, Clone, Default)]
pub struct BuildTemplate {
    /// Text of the definition file.
    pub definition: String,
    /// Name, if different from the one in the definition.
    pub name: Option<SandboxName>,
    /// A directory of packages on the server's machine; for administrators.
    pub mirror: Option<PathBuf>,
    /// An OCI image on the server's machine; for administrators.
    pub image: Option<PathBuf>,
    /// Files of `copy` steps, with their permission bits.
    pub files: BTreeMap<String, (u32, Bytes)>,
    /// Whether to run all steps instead of using cached results.
    pub fresh: bool,
}

/// A template to be written to a file.
#[derive(Debug)]
pub struct Exported {
    /// The header.
    pub head: Vec<u8>,
    /// The layers after the header, as open files with their sizes.
    pub layers: Vec<(std::fs::File, u64)>,
    /// The template's name.
    pub name: String,
}

impl Origin {
    /// Returns the tree of a sandbox of this template and tenant.
    pub(crate) fn tree(&self, layers: &Layers, tenant: &str) -> Tree {
        if let Some(image) = &self.image {
            return Tree::Image(image.clone());
        }
        let Some(built) = &self.built else { return Tree::Host };
        let is_plain = built.layers.is_empty() && built.start.is_none() && built.workdir.is_none();
        if built.base == TreeBase::Host && is_plain && built.build.is_some() {
            // An unchanged tree works with any engine.
            return Tree::Host;
        }
        let owner = tenant.to_owned();
        Tree::Template(Box::new(TemplateTree {
            base: built.base,
            layers: layers.tree(&built.layers),
            owner,
            build: None,
            warm: built.warm.clone(),
            start: TemplateStart {
                command: built.start.clone(),
                ready: built.ready.clone(),
                workdir: built.workdir.clone(),
            },
        }))
    }
}

impl Keeper {
    /// Returns the store of layers of built templates.
    pub(crate) fn layers(&self) -> Layers {
        let config = self.inner.config.now();
        let room_bytes = config.head_room.disk_for_lasting_data();
        Layers::new(config.state_dir.join("templates").join("layers")).leaving(room_bytes)
    }

    /// Starts to build a template, after the builds before it. The build continues if the returned handle is dropped.
    ///
    /// # Errors
    /// Fails if the request is invalid. Later errors are part of the result.
    pub async fn build_template(&self, caller: &Caller, request: BuildTemplate) -> Result<TemplateBuild> {
        self.require(caller, TEMPLATE_BUILD_FILE)?;
        self.check_build(&request)?;
        let definition = Definition::parse(&request.definition).map_err(belljar_image::BuildError::from)?;
        self.check_networks(caller, &definition)?;
        let name = request.name.as_ref().map_or(definition.name.as_str(), SandboxName::as_str).to_owned();
        let image = match &definition.base {
            Base::Image(image) => Some(image),
            _ => None,
        };
        check_new_name(&name, image)?;
        self.check_name(caller, &name).await?;
        let base = self.base_template(caller, &definition, &name).await?;
        let BuildTemplate { mirror, image, files, fresh, .. } = request;
        // An image by its name is pulled.
        let image = image.filter(|_| matches!(definition.base, Base::Oci { .. }));
        let input = BuildInput { mirror, image, base, files, fresh };
        check_input(&definition, &input)?;
        self.queue_build(caller, TEMPLATE_BUILD, name, definition, input, None)
    }

    /// Puts a build into the queue, and records its end as `action`. The layout of an imported image is removed then.
    pub(crate) fn queue_build(
        &self,
        caller: &Caller,
        action: Action,
        name: String,
        definition: Definition,
        input: BuildInput,
        imported: Option<TempDir>,
    ) -> Result<TemplateBuild> {
        let (build, follower) = self.inner.build_queue.add(caller, &name)?;
        let (keeper, caller) = (self.clone(), caller.clone());
        self.inner.tasks.spawn(async move {
            let queue = &keeper.inner.build_queue;
            let standing = caller.standing();
            let turn = tokio::select! {
                biased;
                turn = queue.wait_for_turn(&build, &keeper.inner.building) => Ok(turn),
                () = keeper.wait_for_key_end(&standing) => Err(ended_while_waiting()),
            };
            let (lock, may_begin) = match turn {
                Ok(Some(lock)) => (Some(lock), keeper.check_key_still(&caller).await),
                Ok(None) => (None, Err(KeeperError::Cancelled)),
                Err(ended) => (None, Err(ended)),
            };
            let result = match may_begin {
                Ok(()) => keeper.run_queued(&caller, &name, &definition, input, &build).await,
                Err(error) => Err(error),
            };
            let mut details = vec![("name", name), ("build", build.id.clone())];
            let policies =
                definition.steps.iter().filter(|step| step.has_network()).map(|step| &step.network);
            details.extend(network_details(policies));
            if let Ok(info) = &result {
                details.push(("template", info.id.clone()));
                details.push(("sha256", info.digest.clone()));
            }
            drop(imported);
            let result = match keeper.audit(&caller, action, None, &result, details).await {
                Ok(()) => result,
                Err(error) => Err(error),
            };
            if lock.is_some()
                && let Err(error) = keeper.sweep_layers_locked(false).await
            {
                tracing::warn!(error = %crate::error::chain(&error), "cannot remove old layers");
            }
            // Released first, as a client may start its next build when it gets the result.
            drop(lock);
            queue.end(&build, result);
        });
        Ok(follower)
    }

    /// Runs a build whose turn it is, until it ends or is cancelled. Dropping it ends its sandboxes.
    async fn run_queued(
        &self,
        caller: &Caller,
        name: &str,
        definition: &Definition,
        mut input: BuildInput,
        build: &QueuedBuild,
    ) -> Result<TemplateInfo> {
        let is_import = input.image.is_some() && matches!(definition.base, Base::Image(_));
        let building = async {
            // While it waited, its base may have been built, or removed.
            input.base = self.base_template(caller, definition, name).await?;
            self.pull_and_build(caller, definition, &mut input, build).await
        };
        let built = tokio::select! {
            biased;
            () = build.cancelled.cancelled() => Err(KeeperError::Cancelled),
            built = building => built,
        };
        let mut built = built?;
        if let Some(image) = &mut built.image {
            image.imported = is_import;
        }
        self.store_built(caller, name, definition, built).await
    }

    fn check_build(&self, request: &BuildTemplate) -> Result<()> {
        self.builder_engine()?;
        for (field, path) in [("mirror", &request.mirror), ("image", &request.image)] {
            let Some(path) = path else { continue };
            if !path.is_absolute() || !path.exists() {
                return Err(KeeperError::field(
                    field,
                    format!("{} not found on the server's machine; give an absolute path", path.display()),
                ));
            }
        }
        let bytes: usize = request.files.iter().map(|(name, (_, content))| name.len() + content.len()).sum();
        if bytes > MAX_BUILD_FILE_BYTES {
            let reason =
                format!("they have {bytes} bytes; at most {MAX_BUILD_FILE_BYTES} may come with a build");
            return Err(KeeperError::field("files", reason));
        }
        self.inner.config.now().capacity().check(Purpose::Lasting)
    }

    /// Checks that the network policies of steps are within the caller's ceilings.
    fn check_networks(&self, caller: &Caller, definition: &Definition) -> Result<()> {
        let can = self.builder_engine()?.capabilities().network;
        for step in definition.steps.iter().filter(|step| step.has_network()) {
            if !can.iter().any(|mode| mode == step.network.as_str()) {
                let reason = format!(
                    "step {}: the engine that builds templates has no network that a policy could be applied to",
                    step.number
                );
                return Err(KeeperError::field("network", reason));
            }
            self.check_network(caller, &step.network)?;
        }
        Ok(())
    }

    /// Returns the engine that builds templates.
    pub(crate) fn builder_engine(&self) -> Result<&Arc<dyn Engine>> {
        let with_trees = || self.inner.engines.offered().filter(|engine| engine.capabilities().own_tree);
        // Layers are mounted as volumes are.
        with_trees().find(|engine| engine.capabilities().volumes).ok_or_else(|| {
            if with_trees().next().is_some() {
                let reason = "only a server that runs as root can mount the tree of an image or of a template that is built; run belljar \
                              serve as root, or use the template default and snapshots";
                return KeeperError::Policy { field: "template", reason: reason.to_owned() };
            }
            let names = self.inner.engines.names();
            let reason = format!(
                "no engine of this server ({names}) can give a template a tree of its own; add local"
            );
            KeeperError::Policy { field: "engine", reason }
        })
    }

    /// Locks out other builds: each takes memory for all of its files.
    pub(crate) fn lock_build(&self) -> Result<tokio::sync::OwnedMutexGuard<()>> {
        Arc::clone(&self.inner.building).try_lock_owned().map_err(|_| KeeperError::Building)
    }

    /// Checks a name for a built template. Returns the built template of that name, which is replaced; any other kind is an error.
    pub(crate) async fn check_name(&self, caller: &Caller, name: &str) -> Result<Option<TemplateRow>> {
        let found = self.inner.store.templates().get(&caller.tenant, name).await?;
        let found = found.filter(|row| row.tenant == caller.tenant && row.name.as_deref() == Some(name));
        match found {
            Some(row) if row.kind != TemplateKind::Built => Err(KeeperError::field(
                "name",
                format!("{name:?} is the name of a {}; give another", row.kind),
            )),
            found => Ok(found),
        }
    }

    /// Returns the built template on which a definition is based.
    async fn base_template(
        &self,
        caller: &Caller,
        definition: &Definition,
        name: &str,
    ) -> Result<Option<BaseTemplate>> {
        let base = match &definition.base {
            Base::Template(base) => base,
            Base::Image(image) => return self.imported_image(caller, image, name).await,
            Base::Host | Base::Debian { .. } | Base::Oci { .. } => return Ok(None),
        };
        if base == name || *base == definition.name {
            return Err(KeeperError::field("base", format!("the template {base} would start from itself")));
        }
        let missing =
            || KeeperError::field("base", format!("built template {base} not found; build it first"));
        let row = self.inner.store.templates().get(&caller.tenant, base).await?.ok_or_else(missing)?;
        let built = built_record(&row)?.filter(|_| row.kind == TemplateKind::Built).ok_or_else(missing)?;
        to_base(&row, built).map(Some)
    }

    /// Returns the template of an image that was imported under this name, as the base of the template `name`. Others are looked up at
    /// their registry.
    async fn imported_image(
        &self,
        caller: &Caller,
        image: &ImageReference,
        name: &str,
    ) -> Result<Option<BaseTemplate>> {
        let template = image_template(image);
        let found = match template == name {
            // What replaces it comes from elsewhere.
            true => None,
            false => self.inner.store.templates().get(&caller.tenant, &template).await?,
        };
        let Some(row) = found else { return Ok(None) };
        let imported =
            built_record(&row)?.filter(|built| built.image.as_ref().is_some_and(|image| image.imported));
        imported.map(|built| to_base(&row, built)).transpose()
    }

    /// Builds, after pulling the image of the base if it is one.
    async fn pull_and_build(
        &self,
        caller: &Caller,
        definition: &Definition,
        input: &mut BuildInput,
        build: &QueuedBuild,
    ) -> Result<Built> {
        let Base::Image(reference) = &definition.base else {
            return self.build(caller, definition, input, build).await;
        };
        if input.image.is_some() || input.base.is_some() {
            return self.build(caller, definition, input, build).await;
        }
        let dir = self.pull_image(caller, reference, input.fresh, &|event| build.report(event)).await?;
        input.image = Some(dir.clone());
        let built = self.build(caller, definition, input, build).await?;
        self.forget_image(dir).await;
        Ok(built)
    }

    async fn build(
        &self,
        caller: &Caller,
        definition: &Definition,
        input: &BuildInput,
        build: &QueuedBuild,
    ) -> Result<Built> {
        let layers = self.layers();
        let mut tell = |event: BuildEvent| build.report(event);
        let builder = Builder {
            engine: self.builder_engine()?.as_ref(),
            layers: &layers,
            owner: &caller.tenant,
            grade: self.grade()?,
            tell: &mut tell,
        };
        builder.build(definition, input).await.map_err(|error| KeeperError::from(error).for_caller(caller))
    }

    async fn store_built(
        &self,
        caller: &Caller,
        name: &str,
        definition: &Definition,
        built: Built,
    ) -> Result<TemplateInfo> {
        let record = BuiltRecord {
            base: built.base,
            layers: built.layers,
            start: built.start.command,
            ready: built.start.ready,
            warm: built.warm,
            workdir: built.start.workdir,
            build: None,
            parent: match &definition.base {
                Base::Template(name) => Some(name.clone()),
                Base::Host | Base::Debian { .. } | Base::Oci { .. } | Base::Image(_) => None,
            },
            steps: definition.steps.iter().map(TemplateStep::from).collect(),
            image: built.image,
        };
        self.insert_built(caller, name, &definition.description, built.spec, record).await
    }

    async fn insert_built(
        &self,
        caller: &Caller,
        name: &str,
        note: &str,
        spec: SpecFile,
        record: BuiltRecord,
    ) -> Result<TemplateInfo> {
        // Only valid specifications are stored.
        spec.clone().resolve()?;
        let json = |value: serde_json::Result<String>| {
            value.map_err(|error| KeeperError::field("template", error.to_string()))
        };
        let row = TemplateRow {
            id: new_template_id()?,
            tenant: caller.tenant.clone(),
            key_id: caller.key.clone(),
            name: Some(name.to_owned()),
            kind: TemplateKind::Built,
            source_sandbox: None,
            digest: digest_of(&record.layers),
            bytes: i64::try_from(bytes_of(&record.layers)).unwrap_or(i64::MAX),
            spec: json(serde_json::to_string(&spec))?,
            created_at: Timestamp::now(),
            note: note.to_owned(),
            built: json(serde_json::to_string(&record))?,
        };
        if let Some(old) = self.check_name(caller, name).await? {
            match self.inner.store.templates().remove(&old.id).await {
                Err(StoreError::NotFound { .. }) | Ok(()) => self.inner.pools.discard(&old.id),
                Err(error) => return Err(error.into()),
            }
        }
        self.inner.store.templates().insert(&row).await?;
        Ok(template_info(&row))
    }

    /// Exports a built template as one file.
    ///
    /// # Errors
    /// Returns [`KeeperError::NotFound`]; fails for a template that was not built.
    pub async fn export_template(&self, caller: &Caller, id: &str) -> Result<Exported> {
        self.require(caller, TEMPLATE_EXPORT)?;
        let exported = self.export(caller, id).await;
        let details = vec![("template", id.chars().take(64).collect::<String>())];
        self.audit(caller, TEMPLATE_EXPORT, None, &exported, details).await?;
        exported
    }

    async fn export(&self, caller: &Caller, id: &str) -> Result<Exported> {
        let not_built = || KeeperError::field("template", "only templates that were built can be exported");
        if id == DEFAULT_TEMPLATE {
            return Err(not_built());
        }
        let row = self.template_row(caller, id).await?;
        let built = built_record(&row)?.filter(|_| row.kind == TemplateKind::Built).ok_or_else(not_built)?;
        let name = row.name.unwrap_or(row.id);
        let open = |layer: &Layer| {
            let path = self.layers().path(&layer.digest);
            let file = std::fs::File::open(&path);
            let failed = |source| KeeperError::File { action: "open", path, source };
            Ok((file.map_err(failed)?, layer.bytes))
        };
        let layers = built.layers.iter().map(open).collect::<Result<_>>()?;
        let head = write_header(&BundleHeader {
            name: name.clone(),
            description: row.note,
            base: built.base,
            layers: built.layers,
            spec: SpecFile::from_json(&row.spec)?,
            start: built.start,
            ready: built.ready,
            workdir: built.workdir,
            warm: built.warm,
        })?;
        Ok(Exported { head, layers, name })
    }

    /// Imports a template from a file. Its layers are unpacked and packed again in sandboxes.
    ///
    /// # Errors
    /// Fails if the file is invalid, truncated or altered, or the name is taken by something else.
    pub async fn import_template<R>(
        &self,
        caller: &Caller,
        name: Option<SandboxName>,
        source: R,
    ) -> Result<TemplateInfo>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.require(caller, TEMPLATE_IMPORT)?;
        let imported = self.import(caller, name, source).await;
        let mut details = Vec::new();
        if let Ok(info) = &imported {
            details.push(("template", info.id.clone()));
            details.push(("sha256", info.digest.clone()));
        }
        self.audit(caller, TEMPLATE_IMPORT, None, &imported, details).await?;
        imported
    }

    async fn import<R>(
        &self,
        caller: &Caller,
        name: Option<SandboxName>,
        mut source: R,
    ) -> Result<TemplateInfo>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.builder_engine()?;
        self.check_lasting(caller, 0).await?;
        let mut begin = Vec::new();
        let (header, length) = loop {
            if let Some(found) = parse_header(&begin)? {
                break found;
            }
            let read = (&mut source).take(MAX_HEADER_BYTES as u64).read_buf(&mut begin).await;
            let cut_off = |reason: String| KeeperError::field("bundle", reason);
            if read.map_err(|error| cut_off(format!("it cannot be read: {error}")))? == 0 {
                return Err(cut_off("it ends before its head does".to_owned()));
            }
        };
        let name = match name {
            Some(name) => name.to_string(),
            None => header.name.parse::<SandboxName>()?.to_string(),
        };
        check_new_name(&name, None)?;
        self.check_name(caller, &name).await?;
        if bytes_of(&header.layers) > MAX_IMPORT_BYTES {
            return Err(KeeperError::field("bundle", "its layers are larger than 16 GiB"));
        }
        if header.spec.mounts.is_some() || header.spec.engine.is_some() || header.spec.grade.is_some() {
            return Err(KeeperError::field(
                "bundle",
                "it asks for mounts, an engine or a grade, which no template may",
            ));
        }
        header.spec.clone().resolve()?;
        let _build_lock = self.lock_build()?;
        let rest = std::io::Cursor::new(begin.split_off(length)).chain(source);
        let layers = self.layers();
        let mut ignore = |_: BuildEvent| {};
        let builder = Builder {
            engine: self.builder_engine()?.as_ref(),
            layers: &layers,
            owner: &caller.tenant,
            grade: self.grade()?,
            tell: &mut ignore,
        };
        let imported = builder.import(&header, rest).await;
        let layers = imported.map_err(|error| KeeperError::from(error).for_caller(caller))?;
        let BundleHeader { description, base, spec, start, ready, warm, workdir, .. } = header;
        let record = BuiltRecord { layers, start, ready, warm, workdir, ..BuiltRecord::unchanged(base) };
        let note: String = description.chars().filter(|letter| !letter.is_control()).take(256).collect();
        self.insert_built(caller, &name, &note, spec, record).await
    }

    /// Removes unused layers and steps that have not been used for long, or only lists them. Does nothing while a template is built.
    pub(crate) async fn sweep_layers(&self, dry_run: bool) -> Result<Swept> {
        // The layers of a running build have no record yet.
        let Ok(_build_lock) = self.lock_build() else { return Ok(Swept::default()) };
        self.sweep_layers_locked(dry_run).await
    }

    async fn sweep_layers_locked(&self, dry_run: bool) -> Result<Swept> {
        let keep_steps = self.inner.config.now().keep_steps;
        self.sweep_unused_layers(Some(keep_steps), dry_run).await
    }

    /// Removes layers that no template and no sandbox uses, as [`Layers::sweep`] does. Only while nothing is built.
    pub(crate) async fn sweep_unused_layers(
        &self,
        keep_steps: Option<Duration>,
        dry_run: bool,
    ) -> Result<Swept> {
        let mut used = std::collections::BTreeSet::new();
        for row in self.inner.store.templates().list(None).await? {
            used.extend(
                built_record(&row)?.into_iter().flat_map(|built| built.layers).map(|layer| layer.digest),
            );
        }
        for entry in self.entries() {
            if let Some(tree) = entry.live().spec.tree.template() {
                used.extend(tree.layers.iter().map(|layer| layer.digest.clone()));
            }
        }
        let layers = self.layers();
        let swept = tokio::task::spawn_blocking(move || layers.sweep(&used, keep_steps, dry_run)).await;
        match swept {
            Ok(swept) => Ok(swept?),
            Err(_) => Ok(Swept::default()),
        }
    }

    /// Starts the template's services in a sandbox, and waits until they are ready.
    pub(crate) async fn start_services(&self, origin: &Origin, sandbox: &Sandbox) -> Result<()> {
        let Some(services) = Services::from_origin(origin, sandbox) else { return Ok(()) };
        match services.start().await? {
            Some(_) => services.wait_until_ready().await,
            None => Ok(()),
        }
    }
}

/// The services that a template starts in each sandbox.
pub(crate) struct Services<'a> {
    name: &'a str,
    built: &'a BuiltRecord,
    env: Vec<v1::EnvVar>,
    sandbox: &'a Sandbox,
}

impl<'a> Services<'a> {
    /// Returns the services of a template, if it was built.
    pub(crate) fn from_origin(origin: &'a Origin, sandbox: &'a Sandbox) -> Option<Self> {
        let built = origin.built.as_ref()?;
        let env = origin.spec.env.as_ref().map(variables).unwrap_or_default();
        Some(Self { name: &origin.name, built, env, sandbox })
    }

    /// Starts the command `start`, if any, and returns its process number.
    pub(crate) async fn start(&self) -> Result<Option<u64>> {
        let Some(start) = &self.built.start else { return Ok(None) };
        let request = v1::StartRequest { detach: true, ..self.request(start) };
        let started = self.sandbox.guest().start(request).await.map_err(EngineError::Guest)?;
        Ok(Some(started.id))
    }

    /// Waits until the command `ready`, if any, has succeeded.
    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        let Some(ready) = &self.built.ready else { return Ok(()) };
        let begin = Instant::now();
        loop {
            let left = READY_TIMEOUT.saturating_sub(begin.elapsed());
            let timeout_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            if timeout_ms == 0 {
                let (template, seconds) = (self.name.to_owned(), READY_TIMEOUT.as_secs());
                return Err(KeeperError::NotReady { template, seconds });
            }
            let request = v1::StartRequest { kill_rest: true, timeout_ms, ..self.request(ready) };
            let mut execution = self.sandbox.guest().start(request).await.map_err(EngineError::Guest)?;
            while let Some(event) = execution.next().await.map_err(EngineError::Guest)? {
                if let ProcessEvent::Exited(exited) = event
                    && exited.signal == 0
                    && exited.code == 0
                {
                    return Ok(());
                }
            }
            tokio::time::sleep(READY_INTERVAL).await;
        }
    }

    fn request(&self, line: &str) -> v1::StartRequest {
        v1::StartRequest {
            shell: Bytes::copy_from_slice(line.as_bytes()),
            cwd: self.built.workdir.clone().unwrap_or_default().into_bytes().into(),
            env: self.env.clone(),
            ..Default::default()
        }
    }
}

/// Returns a built template as the base of another.
fn to_base(row: &TemplateRow, built: BuiltRecord) -> Result<BaseTemplate> {
    Ok(BaseTemplate {
        base: built.base,
        layers: built.layers,
        spec: SpecFile::from_json(&row.spec)?,
        start: TemplateStart { command: built.start, ready: built.ready, workdir: built.workdir },
        warm: built.warm,
    })
}

/// Parses the record of a built template, or of a snapshot of one of its sandboxes.
pub(crate) fn built_record(row: &TemplateRow) -> Result<Option<BuiltRecord>> {
    if row.built.is_empty() {
        return Ok(None);
    }
    let parsed = serde_json::from_str(&row.built);
    parsed.map(Some).map_err(|source| KeeperError::Record { what: format!("template {}", row.id), source })
}

/// Converts variables to the guest's form.
pub(crate) fn variables(env: &BTreeMap<String, String>) -> Vec<v1::EnvVar> {
    let variable = |(name, value): (&String, &String)| v1::EnvVar {
        name: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ..Default::default()
    };
    env.iter().map(variable).collect()
}
