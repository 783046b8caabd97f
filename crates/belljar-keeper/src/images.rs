//! Images, as bases of templates. One of a registry is pulled into a layout directory, which is removed once its layer is built; after a
//! failure it stays until the next pull, which goes on with it. One in a file is imported into such a directory, which is always removed.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_image::{
    BuildEvent, BuildInput, Builder, Definition, ImageFile, ImageFileLimits, ImageSettings, check_input,
    is_unpacked, read_image_file,
};
use belljar_model::{Cidr, ImageReference, ImageRegistry, SpecFile, TreeBase};
use belljar_registry::{Credentials, PullLimits, RegistryClient, RegistryError, RegistryHosts};
use belljar_store::{RegistryLoginRow, SecretValue, TemplateKind};
use bytes::{Buf as _, Bytes, BytesMut};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::action::{IMAGE_COLLECT, IMAGE_EXPORT, IMAGE_IMPORT, IMAGE_LOGIN, IMAGE_LOGINS, IMAGE_LOGOUT};
use crate::build_queue::TemplateBuild;
use crate::built::built_record;
use crate::caller::Caller;
use crate::collect::{Leftover, to_leftovers};
use crate::error::{KeeperError, chain};
use crate::exports::{ExportedImage, MAX_EXPORTS};
use crate::json;
use crate::keeper::{Keeper, Result};
use crate::templates::{DEFAULT_TEMPLATE, check_new_name};

/// Suggested delay before another export.
const EXPORT_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Maximum number of layers of an image, as many as Docker makes.
const MAX_LAYERS: usize = 128;

/// Interval between two reports of how far a pull is.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Time to wait if a registry accepts no more requests and does not say for how long.
const LIMITED_RETRY: Duration = Duration::from_secs(60);

/// Time to wait at most that a registry may ask for.
const MAX_LIMITED_RETRY: Duration = Duration::from_secs(24 * 3600);

/// Beginning of the names of templates that are pulled images.
pub const IMAGE_PREFIX: &str = "image-";

/// Beginning of what a request names in the place of a template to start from an image of the engine's own store, before the image's
/// name. It is that of a definition's base.
pub const ENGINE_IMAGE_PREFIX: &str = "image:";

/// Maximum number of characters of an image's name in that of its template.
const MAX_SLUG: usize = 40;

/// Number of hexadecimal digits that tell apart images whose names differ only in what is left out.
const DIGITS: usize = 10;

/// Size of the pieces in which an image in a file is passed on, and how many of them wait.
const PIECE_BYTES: usize = 256 << 10;
const PIECES: usize = 4;

/// Maximum length of the name of an account at a registry, and of its password, in bytes. Tokens of some registries have 4 KiB.
const MAX_ACCOUNT: usize = 256;
const MAX_PASSWORD: usize = 16 << 10;

/// An account at a registry, without its password.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RegistryLogin {
    /// The registry: a host, with a port if it has one.
    #[schema(example = "ghcr.io")]
    pub registry: String,
    /// Name of the account.
    pub user: String,
    /// Time at which it was stored.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

impl From<RegistryLoginRow> for RegistryLogin {
    fn from(row: RegistryLoginRow) -> Self {
        Self { registry: row.registry, user: row.account, created_at: row.created_at }
    }
}

/// Where images come from.
#[derive(Debug, Clone, Default)]
pub struct ImagesConfig {
    /// Registries from which images may be pulled.
    pub registries: Vec<ImageRegistry>,
    /// Ranges to which registries may refer although they are not public.
    pub exceptions: Vec<Cidr>,
    /// PEM file of certificates that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum size of an image, compressed, in bytes.
    pub max_bytes: u64,
}

impl Keeper {
    /// Pulls an image, and returns its layout directory. Only while this server builds nothing else.
    pub(crate) async fn pull_image(
        &self,
        caller: &Caller,
        reference: &ImageReference,
        fresh: bool,
        tell: &(dyn Fn(BuildEvent) + Sync),
    ) -> Result<PathBuf> {
        let config = self.inner.config.now();
        let max_bytes = config.images.max_bytes;
        let client = config.images.client().map_err(refused)?;
        let login = self.inner.store.registry_logins().get(&caller.tenant, reference.registry()).await?;
        let credentials =
            login.map(|(row, password)| Credentials { user: row.account, password: password.0 });
        let credentials = credentials.as_ref();
        let say = |line: String| tell(BuildEvent::Log { number: 0, line });
        say(format!("looking up {reference}"));
        let resolved = client.resolve(reference, credentials).await.map_err(refused)?;
        let all = config.state_dir.join("templates").join("images");
        let dir = all.join(resolved.digest.trim_start_matches("sha256:"));
        keep_only(&all, &dir).await?;
        let is_unpacked = !fresh && is_unpacked(&self.layers(), &resolved.digest).await;
        if !is_unpacked {
            self.check_lasting(caller, resolved.bytes()).await?;
        }
        let said = Mutex::new(Instant::now());
        let limits = PullLimits { max_bytes, max_layers: MAX_LAYERS };
        let progress = |progress: belljar_registry::Progress| {
            let mut last = said.lock();
            if last.elapsed() >= REPORT_INTERVAL {
                *last = Instant::now();
                say(format!("pulled {} of {} MiB", progress.bytes >> 20, progress.total_bytes >> 20));
            }
        };
        let pulled = match is_unpacked {
            true => client.pull_settings(reference, &resolved, credentials, &dir).await,
            false => client.pull(reference, &resolved, credentials, &dir, limits, &progress).await,
        };
        pulled.map_err(refused)?;
        say(format!("{reference} is {}", resolved.digest));
        Ok(dir)
    }

    /// Removes the layout of an image.
    pub(crate) async fn forget_image(&self, dir: PathBuf) {
        if let Err(error) = tokio::fs::remove_dir_all(&dir).await {
            tracing::warn!(dir = %dir.display(), %error, "cannot remove a pulled image");
        }
    }

    /// Imports an image from a file: a tar of `docker save` or of an image layout, of `length` bytes if that is known. Its name is `name`,
    /// or the one that the file gives it. Returns once the file is read; its layers are unpacked as those of a pull are, after the builds
    /// before it.
    ///
    /// # Errors
    /// Needs the role admin. Fails for a file that is no image for this machine, or whose parts are not what it says.
    pub async fn import_image<R>(
        &self,
        caller: &Caller,
        name: Option<ImageReference>,
        length: Option<u64>,
        source: R,
    ) -> Result<TemplateBuild>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.require(caller, IMAGE_IMPORT)?;
        let received = self.receive_image(caller, name.clone(), length, source).await;
        let queued = match received {
            Ok((dir, file)) => self.queue_import(caller, name, dir, file).await,
            Err(error) => Err(error),
        };
        if queued.is_err() {
            self.audit(caller, IMAGE_IMPORT, None, &queued, Vec::new()).await?;
        }
        queued
    }

    async fn receive_image<R>(
        &self,
        caller: &Caller,
        name: Option<ImageReference>,
        length: Option<u64>,
        mut source: R,
    ) -> Result<(TempDir, ImageFile)>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.builder_engine()?;
        self.check_lasting(caller, length.unwrap_or(0)).await?;
        let config = self.inner.config.now();
        let all = self.imports_dir();
        tokio::fs::create_dir_all(&all).await.map_err(file_failed("create", &all))?;
        let dir = tempfile::Builder::new().prefix("import-").tempdir_in(&all);
        let dir = dir.map_err(file_failed("create a directory in", &all))?;
        let (sender, pieces) = mpsc::channel(PIECES);
        // Until this future ends, or its caller is gone.
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        // The directory goes with the reading, which may outlast this future.
        let reading = tokio::task::spawn_blocking(move || {
            let full = Mutex::new(None);
            let has_room = |bytes| match config.capacity().check_file(bytes) {
                Ok(()) => is_wanted.strong_count() > 0,
                Err(error) => {
                    *full.lock() = Some(error);
                    false
                }
            };
            let limits = ImageFileLimits { max_bytes: config.images.max_bytes, max_layers: MAX_LAYERS };
            let pieces = Pieces { pieces, rest: Bytes::new() };
            let read = read_image_file(pieces, dir.path(), name.as_ref(), limits, &has_room);
            match (read, full.into_inner()) {
                (_, Some(full)) => Err(full),
                (Ok(file), None) => Ok((dir, file)),
                (Err(error), None) => Err(KeeperError::from(error)),
            }
        });
        loop {
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            let read = source.read_buf(&mut piece).await;
            let is_last = !matches!(read, Ok(count) if count > 0);
            let sent = match read {
                Ok(0) => Ok(()),
                Ok(_) => sender.send(Ok(piece.freeze())).await,
                Err(error) => sender.send(Err(error)).await,
            };
            if is_last || sent.is_err() {
                break;
            }
        }
        drop(sender);
        let read = reading.await.unwrap_or(Err(KeeperError::ShuttingDown));
        drop(wanted);
        read
    }

    async fn queue_import(
        &self,
        caller: &Caller,
        name: Option<ImageReference>,
        dir: TempDir,
        file: ImageFile,
    ) -> Result<TemplateBuild> {
        let image = name.or_else(|| file.names.into_iter().next());
        let image = image.ok_or_else(|| {
            KeeperError::field("name", "the file gives the image none; give one such as app:1.0")
        })?;
        let template = image_template(&image);
        check_new_name(&template, Some(&image))?;
        self.check_name(caller, &template).await?;
        let text = format!("name = \"{template}\"\ndescription = \"{image}\"\nbase = \"image:{image}\"\n");
        let definition = Definition::parse(&text).map_err(belljar_image::BuildError::from)?;
        let input = BuildInput { image: Some(dir.path().to_owned()), ..BuildInput::default() };
        check_input(&definition, &input)?;
        self.queue_build(caller, IMAGE_IMPORT, template, definition, input, Some(dir))
    }

    /// Exports a built template as an image: a tar of an image layout, with a single layer.
    ///
    /// # Errors
    /// Returns [`KeeperError::NotFound`]; fails for a template without a tree of its own, while a template is built, and while others that were
    /// exported are not read.
    pub async fn export_image(&self, caller: &Caller, id: &str) -> Result<ExportedImage> {
        self.transact(IMAGE_EXPORT, caller, id, move |keeper, caller, id| async move {
            let exported = keeper.pack_image(&caller, &id).await;
            let details = vec![("template", id.chars().take(64).collect::<String>())];
            keeper.audit(&caller, IMAGE_EXPORT, None, &exported, details).await?;
            exported
        })
        .await
    }

    async fn pack_image(&self, caller: &Caller, id: &str) -> Result<ExportedImage> {
        let no_tree =
            || KeeperError::field("template", "only built templates with a tree of their own are images");
        if id == DEFAULT_TEMPLATE {
            return Err(no_tree());
        }
        let row = self.template_row(caller, id).await?;
        let built = built_record(&row)?
            .filter(|built| row.kind == TemplateKind::Built && built.base == TreeBase::Own);
        let built = built.ok_or_else(no_tree)?;
        let engine = self.builder_engine()?;
        let place = self.inner.exports.begin(&caller.tenant).ok_or(KeeperError::RateLimited {
            what: "exports of images",
            waiting: MAX_EXPORTS,
            retry_after: EXPORT_RETRY_AFTER,
        })?;
        let _build_lock = self.lock_build()?;
        let config = self.inner.config.now();
        let full = Mutex::new(None);
        let has_room =
            |bytes| config.capacity().check_file(bytes).map_err(|error| *full.lock() = Some(error)).is_ok();
        let name = row.name.clone().unwrap_or(row.id.clone());
        let settings = ImageSettings {
            name: row
                .note
                .parse()
                .ok()
                .filter(|_| name.starts_with(IMAGE_PREFIX))
                .or_else(|| name.parse().ok()),
            env: SpecFile::from_json(&row.spec)?.env.unwrap_or_default(),
            workdir: built.workdir.clone(),
        };
        let layers = self.layers();
        let builder = Builder {
            engine: engine.as_ref(),
            layers: &layers,
            owner: &caller.tenant,
            grade: self.grade()?,
            tell: &mut |_| {},
        };
        let exported = builder.export_image(&built.layers, &settings, &has_room).await;
        match full.into_inner() {
            Some(full) => Err(full),
            None => {
                let image = exported.map_err(|error| KeeperError::from(error).for_caller(caller))?;
                Ok(ExportedImage { name, image, place })
            }
        }
    }

    fn imports_dir(&self) -> PathBuf {
        self.inner.config.now().state_dir.join("templates").join("imports")
    }

    /// Removes what imports of an earlier server have left.
    pub(crate) async fn sweep_imports(&self) -> Result<()> {
        let dir = self.imports_dir();
        match tokio::fs::remove_dir_all(&dir).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_failed("remove", &dir)(error)),
            _ => Ok(()),
        }
    }

    /// Removes what no sandbox, template or tag needs of images: layers, also those that only cached steps have, and what pulls that failed
    /// have left. Or only lists it.
    ///
    /// # Errors
    /// Needs the role admin. Returns [`KeeperError::Building`] while a template is built; fails if the store or the disk fails.
    pub async fn collect_images(&self, caller: &Caller, dry_run: bool) -> Result<Vec<Leftover>> {
        self.transact(IMAGE_COLLECT, caller, "", move |keeper, caller, _| async move {
            let collected = keeper.sweep_images(dry_run).await;
            if !dry_run {
                let sum = |value: fn(&Leftover) -> u64| {
                    collected.as_ref().map_or(0, |all| all.iter().map(value).sum::<u64>()).to_string()
                };
                let details = vec![("removed", sum(|one| one.count)), ("bytes", sum(|one| one.bytes))];
                keeper.audit(&caller, IMAGE_COLLECT, None, &collected, details).await?;
            }
            collected
        })
        .await
    }

    async fn sweep_images(&self, dry_run: bool) -> Result<Vec<Leftover>> {
        let _build_lock = self.lock_build()?;
        let swept = self.sweep_unused_layers(None, dry_run).await?;
        let mut leftovers: Vec<Leftover> = to_leftovers(swept).collect();
        let all = self.inner.config.now().state_dir.join("templates").join("images");
        let swept = tokio::task::spawn_blocking(move || sweep_pulls(&all, dry_run)).await;
        leftovers.extend(swept.unwrap_or_else(|_| Ok(Vec::new()))?);
        Ok(leftovers)
    }

    /// Stores an account at a registry for the caller's tenant, once the registry has accepted it.
    ///
    /// # Errors
    /// Needs the role admin. Fails for a registry that is not allowed, cannot be reached or refuses the account.
    pub async fn log_in(
        &self,
        caller: &Caller,
        registry: &str,
        user: String,
        password: SecretValue,
    ) -> Result<RegistryLogin> {
        self.transact(IMAGE_LOGIN, caller, registry, move |keeper, caller, registry| async move {
            let stored = keeper.store_login(&caller, &registry, &user, password).await;
            let text = |text: &str| text.chars().take(MAX_ACCOUNT).collect::<String>();
            let details = vec![("registry", text(&registry)), ("account", text(&user))];
            keeper.audit(&caller, IMAGE_LOGIN, None, &stored, details).await?;
            stored
        })
        .await
    }

    async fn store_login(
        &self,
        caller: &Caller,
        registry: &str,
        user: &str,
        password: SecretValue,
    ) -> Result<RegistryLogin> {
        let registry = registry_name(registry)?;
        // A colon separates it from the password (RFC 7617).
        let is_user = (1..=MAX_ACCOUNT).contains(&user.len())
            && !user.contains(':')
            && !user.chars().any(char::is_control);
        if !is_user {
            let reason = format!("give 1 to {MAX_ACCOUNT} bytes without control characters and colons");
            return Err(KeeperError::field("user", reason));
        }
        let is_password =
            (1..=MAX_PASSWORD).contains(&password.0.len()) && !password.0.chars().any(char::is_control);
        if !is_password {
            let reason = format!("give 1 to {MAX_PASSWORD} bytes without control characters");
            return Err(KeeperError::field("password", reason));
        }
        let client =
            self.inner.config.now().images.client().map_err(|error| refused_login("registry", error))?;
        let credentials = Credentials { user: user.to_owned(), password: password.0.clone() };
        let checked = client.check_login(&registry, &credentials).await;
        checked.map_err(|error| {
            let is_refused = matches!(error, RegistryError::Login { .. });
            refused_login(if is_refused { "password" } else { "registry" }, error)
        })?;
        let row = RegistryLoginRow {
            tenant: caller.tenant.clone(),
            registry,
            account: user.to_owned(),
            key_id: caller.key.clone(),
            created_at: Timestamp::now(),
        };
        self.inner.store.registry_logins().put(&row, &password).await?;
        Ok(row.into())
    }

    /// Lists the accounts of the caller's tenant at registries, without their passwords.
    ///
    /// # Errors
    /// Needs the role admin; fails if the store fails.
    pub async fn logins(&self, caller: &Caller) -> Result<Vec<RegistryLogin>> {
        self.require(caller, IMAGE_LOGINS)?;
        let rows = self.inner.store.registry_logins().list(&caller.tenant).await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// Removes the account of the caller's tenant at a registry.
    ///
    /// # Errors
    /// Needs the role admin. Returns [`KeeperError::NotFound`] if there is none.
    pub async fn log_out(&self, caller: &Caller, registry: &str) -> Result<()> {
        self.transact(IMAGE_LOGOUT, caller, registry, move |keeper, caller, registry| async move {
            let removed = keeper.remove_login(&caller, &registry).await;
            let details = vec![("registry", registry.chars().take(MAX_ACCOUNT).collect())];
            keeper.audit(&caller, IMAGE_LOGOUT, None, &removed, details).await?;
            removed
        })
        .await
    }

    async fn remove_login(&self, caller: &Caller, registry: &str) -> Result<()> {
        let registry = registry_name(registry)?;
        match self.inner.store.registry_logins().remove(&caller.tenant, &registry).await? {
            true => Ok(()),
            false => Err(KeeperError::NotFound { what: "account at", id: registry }),
        }
    }
}

impl ImagesConfig {
    fn client(&self) -> std::result::Result<RegistryClient, RegistryError> {
        let Self { registries, exceptions, ca_file, .. } = self.clone();
        RegistryClient::new(RegistryHosts { registries, exceptions }, ca_file.as_deref())
    }
}

/// Reads a registry's name as names of images have it.
fn registry_name(text: &str) -> Result<String> {
    let name = text.to_ascii_lowercase();
    // Other names of the same registry, which no image has.
    if ["index.docker.io", "registry-1.docker.io"].contains(&name.as_str()) {
        return Ok("docker.io".to_owned());
    }
    let is_host = ImageReference::is_host(&name) && (name.contains(['.', ':']) || name == "localhost");
    if !is_host {
        let shown: String = text.chars().take(100).collect();
        let reason =
            format!("{shown:?} is not allowed; give a host such as ghcr.io or registry.corp.example:5000");
        return Err(KeeperError::field("registry", reason));
    }
    Ok(name)
}

fn refused_login(field: &'static str, error: RegistryError) -> KeeperError {
    match error {
        RegistryError::NotAllowed { .. } => KeeperError::Policy { field, reason: error.to_string() },
        error => KeeperError::field(field, chain(&error)),
    }
}

fn file_failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeeperError {
    let path = path.to_owned();
    move |source| KeeperError::File { action, path, source }
}

/// The pieces of a file that arrives, read by a thread that may block.
struct Pieces {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece?,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        self.rest.split_to(count).copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Removes the layouts of pulls that failed, or only lists them.
fn sweep_pulls(all: &Path, dry_run: bool) -> Result<Vec<Leftover>> {
    let mut leftovers = Vec::new();
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let path = entry.path();
        let blobs = std::fs::read_dir(path.join("blobs/sha256")).into_iter().flatten().flatten();
        let bytes = blobs.filter_map(|blob| Some(blob.metadata().ok()?.len())).sum();
        if !dry_run {
            std::fs::remove_dir_all(&path).map_err(file_failed("remove", &path))?;
        }
        leftovers.push(Leftover { kind: "pull".into(), path: Some(path), bytes, count: 1 });
    }
    leftovers.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(leftovers)
}

/// Removes what earlier pulls have left, except for this image.
async fn keep_only(all: &Path, dir: &Path) -> Result<()> {
    let failed = |source| KeeperError::File {
        action: "remove the files of earlier pulls in",
        path: all.to_owned(),
        source,
    };
    let mut entries = match tokio::fs::read_dir(all).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        if entry.path() != dir {
            tokio::fs::remove_dir_all(entry.path()).await.map_err(failed)?;
        }
    }
    Ok(())
}

fn refused(error: RegistryError) -> KeeperError {
    match error {
        RegistryError::NotAllowed { .. } => KeeperError::Policy { field: "base", reason: error.to_string() },
        RegistryError::Limited { after, .. } => KeeperError::Full {
            what: error.to_string(),
            retry_after: after.map_or(LIMITED_RETRY, Duration::from_secs).min(MAX_LIMITED_RETRY),
        },
        RegistryError::File { path, source } => KeeperError::File { action: "write", path, source },
        error => KeeperError::field("base", chain(&error)),
    }
}

/// Returns the name of the template of an image: letters of the image's name, and digits of its digest.
#[must_use]
pub fn image_template(image: &ImageReference) -> String {
    let full = image.to_string();
    let last = full.rsplit('/').next().unwrap_or_default().split('@').next().unwrap_or_default();
    let mut slug = String::new();
    for letter in last.chars().take(MAX_SLUG) {
        let plain = letter.to_ascii_lowercase();
        let fits = plain.is_ascii_lowercase() || plain.is_ascii_digit();
        if fits || !slug.ends_with('-') {
            slug.push(if fits { plain } else { '-' });
        }
    }
    let digits = hex::encode(Sha256::digest(&full));
    format!("{IMAGE_PREFIX}{}-{}", slug.trim_matches('-'), digits.get(..DIGITS).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_templates_follow_from_those_of_images() {
        let name = |text: &str| image_template(&text.parse().unwrap());
        assert_eq!(name("python:3.12-slim"), name("docker.io/library/python:3.12-slim"));
        assert!(name("python:3.12-slim").starts_with("image-python-3-12-slim-"));
        assert_ne!(name("python:3.12-slim"), name("python:3-12-slim"));
        assert_ne!(name("ghcr.io/a/python"), name("ghcr.io/b/python"));
        let digest = format!("ghcr.io/org/a@sha256:{}", "0".repeat(64));
        for text in
            ["python", "ghcr.io/org/__", "ghcr.io/a_b/c.d", &digest, &format!("a:{}", "t".repeat(128))]
        {
            let Ok(image) = text.parse() else { continue };
            let name = image_template(&image);
            assert!(name.len() <= 63 && name.parse::<crate::request::SandboxName>().is_ok(), "{name}");
        }
    }
    #[test]
    fn nobody_takes_the_name_of_an_image_or_of_the_default() {
        use crate::templates::check_new_name;
        let image: ImageReference = "python:3.12".parse().unwrap();
        let name = image_template(&image);
        assert!(check_new_name(&name, Some(&image)).is_ok() && check_new_name("images", None).is_ok());
        let other = "alpine".parse().unwrap();
        for (name, image) in
            [(name.as_str(), None), (&name, Some(&other)), ("image-x", None), ("default", None)]
        {
            assert!(matches!(check_new_name(name, image), Err(KeeperError::Field { .. })), "{name}");
        }
    }

    #[test]
    fn registries_are_named_as_images_name_them() {
        let name = |text: &str| registry_name(text).map_err(|error| error.to_string());
        for (text, expected) in [
            ("GHCR.io", "ghcr.io"),
            ("127.0.0.1:5000", "127.0.0.1:5000"),
            ("index.docker.io", "docker.io"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(name(text).unwrap(), expected);
        }
        for text in ["", "ghcr", "https://ghcr.io", "ghcr.io/org", "a b.c"] {
            let error = name(text).unwrap_err();
            assert!(error.starts_with("registry: ") && error.contains("give a host"), "{error}");
        }
    }

    #[test]
    fn registries_cannot_make_callers_wait_for_days() {
        let waits = |after| match refused(RegistryError::Limited { registry: "r".to_owned(), after }) {
            KeeperError::Full { retry_after, .. } => retry_after,
            other => panic!("{other}"),
        };
        assert_eq!(waits(Some(17)), Duration::from_secs(17));
        assert_eq!((waits(None), waits(Some(u64::MAX))), (LIMITED_RETRY, MAX_LIMITED_RETRY));
    }
}
