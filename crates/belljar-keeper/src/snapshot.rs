//! Copies of a sandbox's files: kept as a template, or put into new sandboxes at once.
//!
//! What is copied is the home directory, as its own code could read it, packed inside the sandbox by its guest. The host
//! keeps the bytes and never looks into them; they are unpacked inside of the new sandbox, by the new one's guest.

use std::path::{Path, PathBuf};

use belljar_engine::{EngineError, Sandbox, v1};
use belljar_model::{LimitsFile, Role, SpecFile};
use belljar_store::{StoreError, TemplateKind, TemplateRow};
use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::caller::Caller;
use crate::create::{Order, fill_random};
use crate::error::KeeperError;
use crate::exec::hex;
use crate::head_room::Left;
use crate::info::{SandboxInfo, TemplateInfo};
use crate::keeper::{Entered, Keeper, Result};
use crate::request::{ForkRequest, SnapshotRequest};
use crate::templates::{DEFAULT_TEMPLATE, Origin, template_info};

/// The most sandboxes of one fork.
pub const MAX_FORKS: u32 = 20;

/// The longest note, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// How much more than its files an archive may have: names and headers of a sandbox full of empty files.
const ARCHIVE_OVERHEAD_BYTES: u64 = 256 << 20;

/// An archive on disk; it is removed when this is dropped, unless it is kept.
struct Archive {
    path: PathBuf,
    bytes: u64,
    digest: String,
    kept: bool,
}

impl Drop for Archive {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Keeper {
    /// Keeps the sandbox's files as a template. It goes on meanwhile: a file that changes while it is copied may be copied
    /// half old and half new.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; a name that is taken is refused. Nothing is left of it then.
    pub async fn snapshot(
        &self,
        caller: &Caller,
        id: &str,
        request: SnapshotRequest,
    ) -> Result<TemplateInfo> {
        self.require(caller, Role::User, "making a snapshot")?;
        if request.note.as_ref().is_some_and(|note| note.len() > MAX_NOTE_BYTES) {
            return Err(KeeperError::field("note", format!("at most {MAX_NOTE_BYTES} bytes are allowed")));
        }
        if request.name.as_ref().is_some_and(|name| name.as_str() == DEFAULT_TEMPLATE) {
            return Err(KeeperError::field(
                "name",
                "default is the template that comes with Belljar; give another",
            ));
        }
        let entered = self.enter(caller, id).await?;
        let kept = self.keep(caller, &entered, request).await;
        let mut details = Vec::new();
        if let Ok(row) = &kept {
            details.push(("template", row.id.clone()));
            details.push(("sha256", row.digest.clone()));
        }
        self.audit(caller, "sandbox.snapshot", Some(entered.id()), &kept, details).await?;
        let row = kept?;
        entered.entry.note("snapshot", None, row.id.clone());
        Ok(template_info(&row))
    }

    async fn keep(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: SnapshotRequest,
    ) -> Result<TemplateRow> {
        let mut random = [0u8; 10];
        fill_random(&mut random)?;
        let id = format!("tpl_{}", hex(&random));
        let path = self.archive_path(&id);
        let mut archive = self.pack(entered, path).await?;
        let row = TemplateRow {
            id,
            tenant: caller.tenant.clone(),
            name: request.name.map(|name| name.to_string()),
            kind: TemplateKind::Snapshot,
            source_sandbox: Some(entered.id().clone()),
            digest: archive.digest.clone(),
            bytes: i64::try_from(archive.bytes).unwrap_or(i64::MAX),
            spec: template_spec(entered)?,
            created_at: Timestamp::now(),
            note: request.note.unwrap_or_default(),
        };
        match self.inner.store.templates().insert(&row).await {
            Err(StoreError::NameTaken { name, .. }) => Err(KeeperError::field(
                "name",
                format!("{name:?} is the name of another template; give another"),
            )),
            inserted => {
                inserted?;
                archive.kept = true;
                Ok(row)
            }
        }
    }

    /// Copies the sandbox's files into new sandboxes, each with an id, a life and a process tree of its own. Interpreters,
    /// processes and connections are not copied.
    ///
    /// # Errors
    /// As [`Keeper::enter`]. Those that could not be made are told one by one.
    pub async fn fork(
        &self,
        caller: &Caller,
        id: &str,
        request: ForkRequest,
    ) -> Result<Vec<Result<SandboxInfo>>> {
        self.require(caller, Role::User, "forking a sandbox")?;
        if !(1..=MAX_FORKS).contains(&request.count) {
            let reason = format!("{} is not allowed; give 1 to {MAX_FORKS}", request.count);
            return Err(KeeperError::field("count", reason));
        }
        let entered = self.enter(caller, id).await?;
        let forked = self.fork_entered(caller, &entered, request).await;
        let made = forked.as_ref().map(|forks| forks.iter().filter(|fork| fork.is_ok()).count());
        let details = vec![("made", made.unwrap_or(0).to_string())];
        self.audit(caller, "sandbox.fork", Some(entered.id()), &forked, details).await?;
        forked
    }

    async fn fork_entered(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: ForkRequest,
    ) -> Result<Vec<Result<SandboxInfo>>> {
        let (template, mut lifetime, labels) = {
            let live = entered.entry.live();
            (live.row.template.clone(), live.settings.lifetime.clone(), live.row.labels.clone())
        };
        if let Some(timeout) = request.timeout {
            lifetime.timeout = self.checked_lifetime(timeout)?;
        }
        let mut spec = entered.spec().clone();
        for (name, value) in request.env {
            spec.env.retain(|variable| variable.name() != name);
            spec.env.push(belljar_model::EnvVar::new(name, value)?);
        }
        let mut random = [0u8; 10];
        fill_random(&mut random)?;
        let path = self.archive_path(&format!("fork_{}", hex(&random)));
        let archive = self.pack(entered, path).await?;
        let labels: std::collections::BTreeMap<_, _> =
            labels.into_iter().chain(request.labels.into_inner()).collect();
        let fork = || {
            let order = Order {
                spec: spec.clone(),
                lifetime: lifetime.clone(),
                name: None,
                labels: labels.clone(),
                files: Vec::new(),
                origin: Origin {
                    name: template.clone(),
                    spec: SpecFile::default(),
                    archive: Some(archive.path.clone()),
                },
                idempotency: None,
            };
            async { self.make(caller, order).await.map(|entry| entry.info()) }
        };
        Ok(futures::future::join_all((0..request.count).map(|_| fork())).await)
    }

    /// Packs the home directory into a file.
    async fn pack(&self, entered: &Entered, path: PathBuf) -> Result<Archive> {
        Left::look(&self.inner.config.now().state_dir).check(&self.inner.config.now().head_room)?;
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| KeeperError::File { action, path, source }
        };
        if let Some(dir) = path.parent() {
            tokio::fs::create_dir_all(dir).await.map_err(failed("make", dir))?;
        }
        let mut options = tokio::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&path).await.map_err(failed("make", &path))?;
        let mut archive = Archive { path, bytes: 0, digest: String::new(), kept: false };
        let limits = &entered.spec().limits;
        let most = limits.disk.bytes().saturating_add(ARCHIVE_OVERHEAD_BYTES);
        let request =
            v1::PackRequest { format: v1::ArchiveFormat::ARCHIVE_FORMAT_TAR.into(), ..Default::default() };
        let mut hash = Sha256::new();
        let mut pieces = match entered.guest().pack(request, most).await {
            Ok(pieces) => pieces,
            Err(error) => return Err(entered.explain(error).await),
        };
        loop {
            let piece: Bytes = match pieces.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => return Err(entered.explain(error).await),
            };
            archive.bytes += piece.len() as u64;
            hash.update(&piece);
            file.write_all(&piece).await.map_err(failed("write", &archive.path))?;
        }
        file.sync_all().await.map_err(failed("write", &archive.path))?;
        archive.digest = hex(&hash.finalize());
        Ok(archive)
    }

    /// Puts a template's files into a new sandbox.
    pub(crate) async fn unpack(&self, origin: &Origin, sandbox: &Sandbox) -> Result<()> {
        let Some(path) = &origin.archive else { return Ok(()) };
        let file = tokio::fs::File::open(path).await.map_err(|source| KeeperError::File {
            action: "read",
            path: path.clone(),
            source,
        })?;
        let open = v1::UnpackOpen {
            path: Bytes::from_static(b"."),
            format: v1::ArchiveFormat::ARCHIVE_FORMAT_TAR.into(),
            overwrite: true,
            links_may_lead_out: true,
            ..Default::default()
        };
        match sandbox.guest().unpack(open, file).await {
            Ok(_) => Ok(()),
            Err(error) => Err(sandbox.explain(EngineError::Guest(error)).await.into()),
        }
    }

    /// Removes what a keeper that was cut off has left of archives.
    pub(crate) async fn sweep_archives(&self) -> Result<()> {
        let dir = self.inner.config.now().state_dir.join("templates");
        let failed = |source| KeeperError::File { action: "read", path: dir.clone(), source };
        let mut entries = match tokio::fs::read_dir(&dir).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(failed(source)),
        };
        let rows = self.inner.store.templates().list(None).await?;
        let known: std::collections::BTreeSet<_> = rows.iter().map(|row| row.id.as_str()).collect();
        while let Some(entry) = entries.next_entry().await.map_err(failed)? {
            let path = entry.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if !known.contains(id) {
                tokio::fs::remove_file(&path).await.map_err(|source| KeeperError::File {
                    action: "remove",
                    path: path.clone(),
                    source,
                })?;
            }
        }
        Ok(())
    }
}

/// What the template says of walls and limits: what the sandbox had, but for the host's directories.
fn template_spec(entered: &Entered) -> Result<String> {
    let spec = entered.spec();
    let limits = &spec.limits;
    let text = |value: &dyn std::fmt::Display| Some(value.to_string());
    let file = SpecFile {
        engine: text(&spec.engine),
        grade: text(&spec.grade),
        network: text(&spec.network),
        hostname: text(&spec.hostname),
        env: Some(spec.env.iter().map(|one| (one.name().to_owned(), one.value().to_owned())).collect()),
        limits: LimitsFile {
            memory: text(&limits.memory),
            cpus: text(&limits.cpus),
            timeout: text(&limits.timeout),
            pids: text(&limits.pids),
            tmp: text(&limits.tmp),
            disk: text(&limits.disk),
            inodes: text(&limits.inodes),
            output: text(&limits.output),
            log: text(&limits.log),
            open_files: text(&limits.open_files),
        },
        ..SpecFile::default()
    };
    serde_json::to_string(&file).map_err(|error| KeeperError::field("spec", error.to_string()))
}
