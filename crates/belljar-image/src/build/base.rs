//! The base of a template: the machine's own tree, another template, a Debian tree or an OCI image.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_model::TreeBase;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::key::{GENERATION, host_digest, mirror_digest, next_key};
use super::{
    BuildEvent, BuildInput, Builder, HOME, IMAGE_NAME, MIRROR_NAME, State, WORK, show_dir, step_error,
};
use crate::definition::{Base, Definition, StepKind};
use crate::error::BuildError;
use crate::layers::{Layer, Layers, NewLayer, digest_of};
use crate::oci;
use crate::sandbox::BuildSandbox;
use crate::steps::{self, script};

/// Limit of the list of an image's owners, in bytes: more than half a million files that are not root's.
const MAX_OWNERS_BYTES: usize = 64 << 20;
/// That list, where a tree is packed.
const OWNERS: &str = "/opt/template/owners";

impl Builder<'_> {
    /// Prepares the base of the template.
    pub(super) async fn prepare_base(
        &mut self,
        definition: &Definition,
        input: &BuildInput,
    ) -> Result<State, BuildError> {
        let total = definition.steps.len();
        let mut state = State {
            base: TreeBase::Own,
            layers: Vec::new(),
            key: String::new(),
            env: BTreeMap::new(),
            workdir: None,
            image: None,
            is_new: false,
        };
        match (&definition.base, &input.base) {
            (Base::Host, _) => {
                state.base = TreeBase::Host;
                state.key = next_key(GENERATION, &format!("host {}", host_digest()));
            }
            (Base::Template(name), None) => {
                return Err(BuildError::input("base", format!("there is no template {name}")));
            }
            // An image that was imported is there as a template.
            (Base::Template(_) | Base::Image(_), Some(base)) => {
                state.base = base.base;
                state.env = base.spec.env.clone().unwrap_or_default();
                state.workdir = base.start.workdir.clone();
                state.layers.clone_from(&base.layers);
                let digest = digest_of(&base.layers);
                let settings = format!("{:?} {:?}", state.env, state.workdir);
                let text = format!("template {} {digest} {settings}", base.base.as_str());
                state.key = next_key(GENERATION, &text);
            }
            (Base::Debian { suite }, _) => {
                let mirror = input.mirror.as_deref();
                let scripts = format!("{} {} {}", steps::DEBIAN, steps::CONFIGURE, steps::FINISH);
                // Files of one name and size in two mirrors need not be the same.
                let mirror_key = mirror_digest(mirror, "apt")?;
                let text = format!("debian {suite} {scripts} {} {mirror_key}", self.owner);
                state.key = next_key(GENERATION, &text);
                let summary = format!("debian {suite}");
                if self.find_cached_base(&mut state, input, total, summary).await {
                    return Ok(state);
                }
                let workshop =
                    self.open_workshop(&definition.build, show_dir(MIRROR_NAME, mirror, false)).await?;
                let result = self.extract_debian(&workshop, suite, total).await;
                let closed = workshop.close().await;
                state.layers = vec![result?];
                closed?;
                let sandbox = self.open_step_sandbox(definition, input, &state, None).await?;
                let result = self.configure_debian(&sandbox, &state, definition, total).await;
                self.finish_base(sandbox, result, &mut state).await?;
            }
            (Base::Oci { .. } | Base::Image(_), _) => {
                let reference = match &definition.base {
                    Base::Oci { reference, .. } => reference.as_deref(),
                    // Its layout has this image alone.
                    _ => None,
                };
                // A layout in a directory is the caller's; others the server has pulled or received.
                let is_own = !matches!(definition.base, Base::Oci { .. });
                let workshop = self
                    .open_workshop(&definition.build, show_dir(IMAGE_NAME, input.image.as_deref(), is_own))
                    .await?;
                let result = self.unpack_image(&workshop, reference, is_own, input, &mut state, total).await;
                let closed = workshop.close().await;
                let unpacked = result?;
                closed?;
                if let Some(unpacked) = unpacked {
                    let workshop = self.open_workshop(&definition.build, Vec::new()).await?;
                    let result = self.squash_image(&workshop, unpacked, total).await;
                    self.finish_base(workshop, result.map(|layer| vec![layer]), &mut state).await?;
                }
            }
        }
        Ok(state)
    }

    /// Looks up the base in the cache, emits its `Step` event, and reports whether it was found.
    async fn find_cached_base(
        &mut self,
        state: &mut State,
        input: &BuildInput,
        total: usize,
        summary: String,
    ) -> bool {
        let cached = if input.fresh { None } else { self.layers.find_cached(&state.key).await };
        let is_cached = cached.is_some();
        (self.tell)(BuildEvent::Step { number: 0, total, kind: "base", summary, cached: is_cached });
        state.layers = cached.unwrap_or_default();
        is_cached
    }

    /// Closes the sandbox of a base, and records the resulting layers in the cache.
    async fn finish_base(
        &mut self,
        workshop: BuildSandbox,
        result: Result<Vec<Layer>, BuildError>,
        state: &mut State,
    ) -> Result<(), BuildError> {
        let closed = workshop.close().await;
        let layers = result?;
        closed?;
        state.is_new = true;
        self.finish_layers(state, layers, 0).await
    }

    /// Extracts the packages of a Debian tree without running any of their scripts.
    async fn extract_debian(
        &mut self,
        workshop: &BuildSandbox,
        suite: &str,
        total: usize,
    ) -> Result<Layer, BuildError> {
        let tree = format!("{WORK}/tree");
        let line = script(steps::DEBIAN, &[&tree, suite]);
        self.run_in_workshop(workshop, &line, 0, total, "making a Debian tree").await?;
        self.squash(workshop, "", 0, total).await
    }

    /// Configures the packages of a Debian tree inside the tree itself.
    async fn configure_debian(
        &mut self,
        sandbox: &BuildSandbox,
        state: &State,
        definition: &Definition,
        total: usize,
    ) -> Result<Vec<Layer>, BuildError> {
        self.run_in_workshop(sandbox, steps::CONFIGURE, 0, total, "installing the packages of a Debian tree")
            .await?;
        let kind = StepKind::Apt(Vec::new());
        self.pack_layer(sandbox, state, definition, &kind, 0).await
    }

    /// Unpacks an OCI image; `None` if the base is cached. What the image could do to the workshop ends with it: another one packs the tree.
    async fn unpack_image(
        &mut self,
        workshop: &BuildSandbox,
        reference: Option<&str>,
        is_own: bool,
        input: &BuildInput,
        state: &mut State,
        total: usize,
    ) -> Result<Option<Unpacked>, BuildError> {
        let image = format!("{HOME}/{IMAGE_NAME}");
        let unpack = format!(
            "mkdir {WORK}/tree && if [ -d {image} ]; then ln -s {image} {WORK}/layout; else mkdir {WORK}/layout && \
             tar -x --no-same-owner -f {image} -C {WORK}/layout; fi"
        );
        self.run_in_workshop(workshop, &unpack, 0, total, "opening the image").await?;
        let text = read_document(workshop, "index.json").await?;
        let mut chosen = oci::choose(&text, reference)?;
        if let oci::Chosen::Index(index) = &chosen {
            let text = read_blob(workshop, index.hex()?).await?;
            chosen = oci::choose(&text, None)?;
        }
        let (oci::Chosen::Manifest(found) | oci::Chosen::Index(found)) = chosen;
        let text = read_blob(workshop, found.hex()?).await?;
        let (config, layers) = oci::parse_manifest(&text)?;
        let config = oci::parse_config(&read_blob(workshop, config.hex()?).await?)?;
        state.image = Some(config.describe(&found.digest, &layers));
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
        state.key = image_key(&found.digest);
        if self.find_cached_base(state, input, total, format!("oci {}", found.digest)).await {
            return Ok(None);
        }
        let tree = format!("{WORK}/tree");
        let spool = self.layers.begin().await?;
        // No image can know the name, which is random, and so none has an entry that leads there.
        let own = format!("{WORK}/{}", spool.path().file_name().unwrap_or_default().display());
        workshop.make_dir(&own).await?;
        let copy = if is_own { "" } else { "copy" };
        for layer in layers {
            let file = format!("{WORK}/layout/blobs/sha256/{}", layer.hex()?);
            let line = script(steps::LAYER, &[&tree, &file, layer.hex()?, layer.tar_option()?, &own, copy]);
            self.run_in_workshop(workshop, &line, 0, total, &format!("unpacking the layer {}", layer.digest))
                .await?;
        }
        // What cannot be read would be left out.
        let line = format!("{}\nchmod -R a+rX {tree}", script(steps::FINISH, &[&tree]));
        self.run_in_workshop(workshop, &line, 0, total, "finishing the tree").await?;
        let owners = Path::new(&own).join("owners");
        let owners = workshop.sandbox.guest().read_all(&owners, MAX_OWNERS_BYTES).await;
        let owners = owners.map_err(BuildError::guest("reading the owners of the image's files"))?;
        Ok(Some(Unpacked { tar: workshop.spool(&tree, spool).await?, owners }))
    }

    /// Packs an unpacked image into a layer, in a workshop that it has not touched.
    async fn squash_image(
        &mut self,
        workshop: &BuildSandbox,
        unpacked: Unpacked,
        total: usize,
    ) -> Result<Layer, BuildError> {
        let path = unpacked.tar.path();
        let tar = tokio::fs::File::open(path).await;
        let tar = tar.map_err(|source| BuildError::File { action: "open", path: path.to_owned(), source })?;
        self.extract_tar(workshop, tar, 0, total).await?;
        let line = format!("exec cat >{OWNERS}");
        let result = workshop.feed(&line, std::io::Cursor::new(unpacked.owners), &mut |_| {}).await?;
        match result.is_success() {
            true => self.squash(workshop, OWNERS, 0, total).await,
            false => Err(step_error(result, 0, total, "base", "packing the tree".to_owned())),
        }
    }
}

/// An image whose layers lie over one another.
struct Unpacked {
    /// A tar of its tree, which is removed when this is dropped.
    tar: NewLayer,
    /// Lines of a mode, a user, a group and a path, of files that are not root's or have set-user-ID, set-group-ID or sticky bits.
    owners: Bytes,
}

/// Returns the key under which the layer of an image is cached, by the digest of its manifest.
fn image_key(digest: &str) -> String {
    next_key(GENERATION, &format!("oci {digest} {}", steps::LAYER))
}

/// Reports whether the layer of an image is there, so that only its manifest and its configuration are needed.
pub async fn is_unpacked(layers: &Layers, digest: &str) -> bool {
    layers.find_cached(&image_key(digest)).await.is_some()
}

/// Reads a document that is named by its digest, which is what the tree is cached under.
async fn read_blob(workshop: &BuildSandbox, hex: &str) -> Result<Bytes, BuildError> {
    let name = format!("blobs/sha256/{hex}");
    let content = read_document(workshop, &name).await?;
    match hex::encode(Sha256::digest(&content)) == hex {
        true => Ok(content),
        false => Err(BuildError::input("image", format!("{name} is not what its digest says"))),
    }
}

async fn read_document(workshop: &BuildSandbox, name: &str) -> Result<Bytes, BuildError> {
    let path = format!("{WORK}/layout/{name}");
    let read = workshop.sandbox.guest().read_all(Path::new(&path), oci::MAX_DOCUMENT_BYTES).await;
    read.map_err(|error| BuildError::input("image", format!("cannot read {name}: {error}")))
}
