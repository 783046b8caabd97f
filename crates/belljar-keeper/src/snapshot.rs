//! Copies of a sandbox's files: snapshots, stored as templates, and forks, new sandboxes with the same files.
//!
//! The home directory is copied as far as the sandbox's own code could read it. The sandbox's guest packs it, and the new sandbox's
//! guest unpacks it; the host stores the bytes without parsing them. Of a machine, the disk is copied as it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar_engine::{EngineError, Sandbox, v1};
use belljar_image::Layer;
use belljar_model::{Approval, EnvVar, NetworkFile, SandboxSpec, Screening, SpecFile, Tree, TreeLayer};
use belljar_store::{StoreError, TemplateKind, TemplateRow};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use crate::action::{SANDBOX_FORK, SANDBOX_SNAPSHOT};
use crate::built::BuiltRecord;
use crate::caller::Caller;
use crate::collect::ArchiveInUse;
use crate::create::{LaunchPlan, fill_random};
use crate::error::KeeperError;
use crate::head_room::Purpose;
use crate::info::{SandboxInfo, TemplateInfo};
use crate::keeper::{Entered, Keeper, Result};
use crate::request::{ForkRequest, Lifetime, PortSettings, SnapshotRequest};
use crate::steps::step;
use crate::tags::new_template_id;
use crate::templates::{Origin, check_new_name, template_info};

/// Maximum number of sandboxes of one fork.
pub const MAX_FORKS: u32 = 20;

/// Maximum length of a note, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// Maximum overhead of an archive over its files, in bytes: names and headers of a sandbox full of empty files.
const ARCHIVE_OVERHEAD_BYTES: u64 = 256 << 20;

/// An archive on disk, removed on drop unless `kept` is set.
pub(crate) struct Archive {
    /// Protects the file until the store has its record, or it has been removed.
    _in_use: ArchiveInUse,
    path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) digest: String,
    pub(crate) kept: bool,
}

impl Drop for Archive {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Forks that are being created. Their creation continues if this is dropped.
pub struct Forks {
    ready: mpsc::UnboundedReceiver<Result<SandboxInfo>>,
}

impl Forks {
    /// Waits for the next fork or its error; returns `None` after the last.
    pub async fn next(&mut self) -> Option<Result<SandboxInfo>> {
        self.ready.recv().await
    }

    /// Waits for all forks.
    pub async fn all(mut self) -> Vec<Result<SandboxInfo>> {
        let mut all = Vec::new();
        while let Some(fork) = self.next().await {
            all.push(fork);
        }
        all
    }
}

/// Common properties of the forks of a sandbox. The archive is removed after the last one.
struct ForkSource {
    spec: SandboxSpec,
    lifetime: Lifetime,
    labels: BTreeMap<String, String>,
    template: String,
    archive: Archive,
    ports: PortSettings,
}

impl ForkSource {
    fn plan_launch(&self) -> LaunchPlan {
        let pair = |variable: &EnvVar| (variable.name().to_owned(), variable.value().to_owned());
        let env = self.spec.env.iter().map(pair);
        LaunchPlan {
            spec: self.spec.clone(),
            lifetime: self.lifetime.clone(),
            name: None,
            labels: self.labels.clone(),
            files: Vec::new(),
            origin: Origin {
                id: String::new(),
                name: self.template.clone(),
                spec: SpecFile {
                    env: Some(env.collect()),
                    machine: Some(self.spec.machine),
                    user: self.spec.user.clone(),
                    ..SpecFile::default()
                },
                archive: Some(self.archive.path.clone()),
                // Never pooled: no further copies will be created.
                bytes: u64::MAX,
                built: record_of(&self.spec.tree),
                image: None,
            },
            idempotency: None,
            for_build: false,
            ports: self.ports.clone(),
            accepted: Box::new(|_| {}),
        }
    }
}

impl Keeper {
    /// Stores the sandbox's files as a template. The sandbox keeps running: the copy of a file that changes meanwhile may be
    /// inconsistent.
    ///
    /// # Errors
    /// As [`Keeper::enter`]; fails if the name is taken, or if the engine has no snapshots. Nothing is left behind then.
    pub async fn snapshot(
        &self,
        caller: &Caller,
        id: &str,
        request: SnapshotRequest,
    ) -> Result<TemplateInfo> {
        self.transact(SANDBOX_SNAPSHOT, caller, id, move |keeper, caller, id| async move {
            if request.note.as_ref().is_some_and(|note| note.len() > MAX_NOTE_BYTES) {
                return Err(KeeperError::field(
                    "note",
                    format!("at most {MAX_NOTE_BYTES} bytes are allowed"),
                ));
            }
            if let Some(name) = &request.name {
                check_new_name(name.as_str(), None)?;
            }
            if let Some(name) = &request.name {
                keeper.check_unclaimed(&caller, name.as_str()).await?;
            }
            let entered = keeper.enter(&caller, &id).await?;
            let engine = keeper.engine(entered.spec().engine)?;
            if !engine.capabilities().snapshot {
                let reason =
                    "its files belong to an image of the engine's store, which a template does not have; a fork copies it";
                let (what, reason) = ("a snapshot".into(), reason.into());
                return Err(EngineError::Unsupported { what, engine: engine.name(), reason }.into());
            }
            let kept = keeper.store_snapshot(&caller, &entered, request).await;
            let mut details = Vec::new();
            if let Ok(row) = &kept {
                details.push(("template", row.id.clone()));
                details.push(("sha256", row.digest.clone()));
            }
            keeper.audit(&caller, SANDBOX_SNAPSHOT, Some(entered.id()), &kept, details).await?;
            let row = kept?;
            entered.entry.note("snapshot", None, row.id.clone());
            Ok(template_info(&row))
        })
        .await
    }

    async fn store_snapshot(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: SnapshotRequest,
    ) -> Result<TemplateRow> {
        let id = new_template_id()?;
        let path = self.archive_path(&id);
        self.check_lasting(caller, 0).await?;
        let mut archive = self.pack(entered, path).await?;
        self.check_lasting(caller, 0).await?;
        let row = TemplateRow {
            id,
            tenant: caller.tenant.clone(),
            key_id: caller.key.clone(),
            name: request.name.map(|name| name.to_string()),
            kind: TemplateKind::Snapshot,
            source_sandbox: Some(entered.id().clone()),
            digest: archive.digest.clone(),
            bytes: i64::try_from(archive.bytes).unwrap_or(i64::MAX),
            spec: template_spec(entered)?,
            created_at: Timestamp::now(),
            note: request.note.unwrap_or_default(),
            built: built_json(&entered.spec().tree)?,
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

    /// Copies the sandbox's files into new sandboxes, each with its own id, timeout and process tree. Interpreters, processes and
    /// connections are not copied. All are created even if the returned handle is dropped.
    ///
    /// # Errors
    /// As [`Keeper::enter`]. Errors of single forks are reported by [`Forks::next`].
    pub async fn fork(&self, caller: &Caller, id: &str, request: ForkRequest) -> Result<Forks> {
        self.require(caller, SANDBOX_FORK)?;
        if !(1..=MAX_FORKS).contains(&request.count) {
            let reason = format!("{} is not allowed; give 1 to {MAX_FORKS}", request.count);
            return Err(KeeperError::field("count", reason));
        }
        let entered = self.enter(caller, id).await?;
        let count = request.count;
        let source = match self.prepare_fork(caller, &entered, request).await {
            Ok(source) => source,
            failed => {
                self.audit(caller, SANDBOX_FORK, Some(entered.id()), &failed, Vec::new()).await?;
                failed?
            }
        };
        let (ready, forks) = mpsc::unbounded_channel();
        let (keeper, caller) = (self.clone(), caller.clone());
        let making = step!("keeper.fork", sandbox = %entered.id());
        let all = async move {
            let mut copies: FuturesUnordered<_> =
                (0..count).map(|_| keeper.copy(&caller, &entered, &source)).collect();
            while let Some(copy) = copies.next().await {
                let _ = ready.send(copy);
            }
        };
        self.inner.tasks.spawn(all.instrument(making));
        Ok(Forks { ready: forks })
    }

    /// Creates one fork, and records it in the audit log before it is reported.
    async fn copy(&self, caller: &Caller, entered: &Entered, source: &ForkSource) -> Result<SandboxInfo> {
        let made = self.create_from_plan(caller, source.plan_launch()).await;
        let made = made.map(|entry| entry.info());
        let mut details = Vec::new();
        if let Ok(info) = &made {
            details.push(("copy", info.id.to_string()));
        }
        self.audit(caller, SANDBOX_FORK, Some(entered.id()), &made, details).await?;
        made
    }

    /// Prepares the common properties of the forks.
    async fn prepare_fork(
        &self,
        caller: &Caller,
        entered: &Entered,
        request: ForkRequest,
    ) -> Result<ForkSource> {
        self.check_offered(entered.spec())?;
        self.check_network(caller, &entered.spec().network)?;
        self.check_stored_secrets(caller, &caller.tenant, &entered.spec().network).await?;
        let (template, mut lifetime, labels, ports) = {
            let live = entered.entry.live();
            let settings = &live.settings;
            (
                live.row.template.clone(),
                settings.lifetime.clone(),
                live.row.labels.clone(),
                settings.ports.clone(),
            )
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
        let path = self.archive_path(&format!("fork_{}", hex::encode(random)));
        let archive = self.pack(entered, path).await?;
        let labels = labels.into_iter().chain(request.labels.into_inner()).collect();
        Ok(ForkSource { spec, lifetime, labels, template, archive, ports })
    }

    /// Checks that the machine has more than its headroom of each resource.
    fn check_disk(&self) -> Result<()> {
        self.inner.config.now().capacity().check(Purpose::Start)
    }

    /// Packs the home directory into a file, or copies the disk of a machine.
    pub(crate) async fn pack(&self, entered: &Entered, path: PathBuf) -> Result<Archive> {
        self.check_disk()?;
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| KeeperError::File { action, path, source }
        };
        if let Some(dir) = path.parent() {
            tokio::fs::create_dir_all(dir).await.map_err(failed("make", dir))?;
        }
        let busy = self.inner.archives.begin(&path);
        let mut options = tokio::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&path).await.map_err(failed("make", &path))?;
        let mut archive = Archive { _in_use: busy, path, bytes: 0, digest: String::new(), kept: false };
        if entered.spec().machine {
            let file = file.into_std().await;
            (archive.bytes, archive.digest) = self.copy_disk(&entered.entry, file, &archive.path).await?;
            return Ok(archive);
        }
        let limits = &entered.spec().limits;
        let max_bytes = limits.disk.bytes().saturating_add(ARCHIVE_OVERHEAD_BYTES);
        let request = v1::PackRequest {
            format: v1::ArchiveFormat::ARCHIVE_FORMAT_TAR.into(),
            // File systems mounted in the home directory do not belong to it.
            one_file_system: true,
            ..Default::default()
        };
        let mut hash = Sha256::new();
        let mut pieces = match entered.guest().pack(request, max_bytes).await {
            Ok(pieces) => pieces,
            Err(error) => return Err(entered.explain(error).await),
        };
        loop {
            let piece: Bytes = match pieces.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) => return Err(entered.explain(error).await),
            };
            if archive.bytes >> 22 != (archive.bytes + piece.len() as u64) >> 22 {
                // Other writers may have used up the disk meanwhile.
                self.check_disk()?;
            }
            archive.bytes += piece.len() as u64;
            hash.update(&piece);
            file.write_all(&piece).await.map_err(failed("write", &archive.path))?;
        }
        file.sync_all().await.map_err(failed("write", &archive.path))?;
        archive.digest = hex::encode(hash.finalize());
        Ok(archive)
    }

    /// Unpacks a template's files in a new sandbox, and starts its services.
    pub(crate) async fn unpack(&self, origin: &Origin, sandbox: &Sandbox) -> Result<()> {
        self.unpack_archive(origin, sandbox).await?;
        self.start_services(origin, sandbox).await
    }

    async fn unpack_archive(&self, origin: &Origin, sandbox: &Sandbox) -> Result<()> {
        // A machine has been launched with a copy of the disk.
        let Some(path) = origin.archive.as_ref().filter(|_| !origin.has_disk()) else { return Ok(()) };
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
}

/// Returns the record of the sandbox's tree, as JSON, so that sandboxes of the snapshot get the same.
fn built_json(tree: &Tree) -> Result<String> {
    let Some(record) = record_of(tree) else { return Ok(String::new()) };
    serde_json::to_string(&record).map_err(|error| KeeperError::field("template", error.to_string()))
}

/// Returns the record of a built tree.
pub(crate) fn record_of(tree: &Tree) -> Option<BuiltRecord> {
    let tree = tree.template()?;
    let layer = |layer: &TreeLayer| Layer {
        digest: layer.digest.clone(),
        bytes: std::fs::metadata(&layer.path).map_or(0, |metadata| metadata.len()),
    };
    Some(BuiltRecord {
        layers: tree.layers.iter().map(layer).collect(),
        start: tree.start.command.clone(),
        ready: tree.start.ready.clone(),
        warm: tree.warm.clone(),
        workdir: tree.start.workdir.clone(),
        ..BuiltRecord::unchanged(tree.base)
    })
}

/// Returns the template's specification as JSON: the sandbox's own, without mounts and volumes.
fn template_spec(entered: &Entered) -> Result<String> {
    serde_json::to_string(&spec_file(entered)).map_err(|error| KeeperError::field("spec", error.to_string()))
}

/// Returns the sandbox's specification for a template, without mounts, volumes and secrets.
pub(crate) fn spec_file(entered: &Entered) -> SpecFile {
    let spec = entered.spec();
    let text = |value: &dyn std::fmt::Display| Some(value.to_string());
    SpecFile {
        engine: text(&spec.engine),
        grade: text(&spec.grade),
        // Without secrets: a template may be used by others.
        network: Some(NetworkFile { secrets: None, headers: None, ..(&spec.network).into() }),
        hostname: text(&spec.hostname),
        // Left out while default, so that earlier versions can read the template.
        screening: Some(spec.screening).filter(|one| *one != Screening::default()),
        approval: Some(spec.approval).filter(|one| *one != Approval::default()),
        machine: Some(spec.machine).filter(|is_machine| *is_machine),
        user: spec.user.clone(),
        env: Some(spec.env.iter().map(|one| (one.name().to_owned(), one.value().to_owned())).collect()),
        limits: (&spec.limits).into(),
        ..SpecFile::default()
    }
}
