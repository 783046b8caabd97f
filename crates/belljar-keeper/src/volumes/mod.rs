//! Volumes: files of a tenant that outlive sandboxes and can be mounted in several of them at the same time.
//!
//! ```text
//! DIR/volumes/<id>.img    the file system of a volume
//! DIR/volumes/<id>.part   the same while the volume is being created or removed
//! ```
//!
//! All disk space of a volume is reserved when it is created, so writes never take more.

mod content;
mod image;
mod uses;

pub(crate) use image::{copy_disk, disk_path, make_disk};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_engine::{Engine, EngineError};
use belljar_model::{
    MAX_VOLUME_BYTES, MIN_VOLUME_BYTES, ModelError, Role, SandboxId, SandboxSpec, VolumeId, VolumeImage,
    VolumeName,
};
use belljar_store::{ServiceWall, StoreError, VolumeRow};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub(crate) use content::{Contents, explain};
pub(crate) use uses::{Hold, Uses};

use crate::action::{VOLUME_CREATE, VOLUME_GET, VOLUME_LIST, VOLUME_REMOVE, VOLUME_TOKEN};
use crate::caller::Caller;
use crate::collect::Leftover;
use crate::create::new_id;
use crate::entry::Entry;
use crate::error::KeeperError;
use crate::head_room::Purpose;
use crate::json;
use crate::keeper::{Keeper, Result};
use crate::token::{Scope, Token};

/// The home directory in the sandboxes of every engine with volumes.
pub(crate) const HOME: &str = "/home/user";

/// Block size of the file system, of which sizes are multiples.
const BLOCK_BYTES: u64 = 4096;

/// The operator's settings for volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumesConfig {
    /// Default size of a volume, in bytes.
    pub size_bytes: u64,
    /// Maximum number of volumes of a tenant.
    pub max_count: u32,
    /// Maximum sum of the sizes of a tenant's volumes, in bytes.
    pub max_bytes: u64,
}

impl Default for VolumesConfig {
    /// 1 GiB each; 100 volumes and 64 GiB of a tenant.
    fn default() -> Self {
        Self { size_bytes: 1 << 30, max_count: 100, max_bytes: 64 << 30 }
    }
}

/// A request for a new volume.
#[derive(Debug, Clone)]
pub struct NewVolume {
    /// Name, unique in the tenant.
    pub name: String,
    /// Size in bytes; the operator's default if absent.
    pub bytes: Option<u64>,
}

/// A volume with the sandboxes that use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Volume)]
pub struct VolumeInfo {
    /// Id, `[a-z][a-z0-9]{19}`.
    #[schema(value_type = String)]
    pub id: VolumeId,
    /// Name, unique in the tenant.
    pub name: String,
    /// Size in bytes, of which the file system needs a part.
    pub bytes: u64,
    /// Owning tenant.
    pub tenant: String,
    /// Creation time.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Sandboxes that mount it now.
    #[schema(value_type = Vec<String>)]
    pub sandboxes: Vec<SandboxId>,
}

/// The keeper's in-memory state of volumes.
#[derive(Default)]
pub(crate) struct Volumes {
    uses: Uses,
    contents: Contents,
    /// Serializes creation, so that quotas hold.
    making: tokio::sync::Mutex<()>,
}

impl Keeper {
    fn volumes_dir(&self) -> PathBuf {
        self.inner.config.now().state_dir.join("volumes")
    }

    fn volume_path(&self, id: &VolumeId) -> PathBuf {
        self.volumes_dir().join(format!("{id}.img"))
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// Fails if the name is taken, or if a quota or the machine's headroom would be exceeded. Leaves nothing behind then.
    pub async fn create_volume(&self, caller: &Caller, request: NewVolume) -> Result<VolumeInfo> {
        self.transact(VOLUME_CREATE, caller, "", move |keeper, caller, _| async move {
            keeper.check_reserve("make a volume").await?;
            let made = keeper.make_volume(&caller, &request).await;
            let mut details = vec![("name", request.name)];
            if let Ok(row) = &made {
                details.extend([("volume", row.id.to_string()), ("bytes", row.bytes.to_string())]);
            }
            keeper.audit(&caller, VOLUME_CREATE, None, &made, details).await?;
            made.map(|row| keeper.volume_info(row))
        })
        .await
    }

    async fn make_volume(&self, caller: &Caller, request: &NewVolume) -> Result<VolumeRow> {
        let name: VolumeName = request.name.parse().map_err(|error| match error {
            ModelError::NotAllowed { allowed, .. } => {
                KeeperError::field("name", format!("it is not allowed; give {allowed}"))
            }
            error => error.into(),
        })?;
        let config = self.inner.config.now();
        let bytes = request.bytes.unwrap_or(config.volumes.size_bytes);
        if !(MIN_VOLUME_BYTES..=MAX_VOLUME_BYTES).contains(&bytes) {
            let reason = format!(
                "{bytes} bytes are not allowed; give {MIN_VOLUME_BYTES} (16 MiB) to {MAX_VOLUME_BYTES} (16 TiB)"
            );
            return Err(KeeperError::field("size", reason));
        }
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        self.find_volume_engine()?;
        let _making = self.inner.volumes.making.lock().await;
        let taken =
            |name: &str| KeeperError::NameTaken { name: name.to_owned(), owner: "a volume".to_owned() };
        let volumes = self.inner.store.volumes();
        if volumes.get(Some(&caller.tenant), name.as_str()).await?.is_some() {
            return Err(taken(name.as_str()));
        }
        check_quotas(caller, &config.volumes, &volumes.list(Some(&caller.tenant)).await?, bytes)?;
        self.check_lasting(caller, bytes).await?;
        let row = VolumeRow {
            id: new_id()?,
            tenant: caller.tenant.clone(),
            key_id: caller.key.clone(),
            keeper: config.name.clone(),
            name: name.to_string(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            created_at: Timestamp::now(),
        };
        let file = image::make(&self.volumes_dir(), &row.id, bytes).await?;
        // Other writers may have used up the disk meanwhile.
        config.capacity().check(Purpose::Start)?;
        // Until the file has its final name the volume has a record and cannot be used.
        let Some(_closed) = self.inner.volumes.uses.close(&row.id) else {
            return Err(missing(row.id.as_str()));
        };
        match volumes.insert(&row).await {
            Err(StoreError::NameTaken { name, .. }) => return Err(taken(&name)),
            inserted => inserted?,
        }
        if let Err(error) = file.finish().await {
            volumes.remove(&row.id).await?;
            return Err(error);
        }
        Ok(row)
    }

    /// Returns an engine that mounts volumes.
    fn find_volume_engine(&self) -> Result<&Arc<dyn Engine>> {
        let engines = &self.inner.engines;
        engines.offered().find(|engine| engine.capabilities().volumes).ok_or_else(|| {
            let engine = engines.default_engine().map(|engine| engine.name()).unwrap_or_default();
            let reason = "volumes need the engine local of a server that runs as root; GET /v1/engines lists the capabilities of each engine".into();
            EngineError::Unsupported { what: "volumes".into(), engine, reason }.into()
        })
    }

    fn volume_info(&self, row: VolumeRow) -> VolumeInfo {
        let entries = self.entries();
        let has = |entry: &&Arc<Entry>| {
            let live = entry.live();
            live.spec
                .volumes
                .iter()
                .any(|volume| volume.image.as_ref().is_some_and(|image| image.id == row.id))
        };
        let mut sandboxes: Vec<SandboxId> =
            entries.iter().filter(has).map(|entry| entry.id.clone()).collect();
        sandboxes.sort();
        VolumeInfo {
            id: row.id,
            name: row.name,
            bytes: u64::try_from(row.bytes).unwrap_or(0),
            tenant: row.tenant,
            created_at: row.created_at,
            sandboxes,
        }
    }

    /// Lists the volumes of the caller's tenant, or all for administrators.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn volumes(&self, caller: &Caller) -> Result<Vec<VolumeInfo>> {
        self.require(caller, VOLUME_LIST)?;
        let tenant = (caller.role != Role::Admin).then_some(caller.tenant.as_str());
        let rows = self.inner.store.volumes().list(tenant).await?;
        Ok(rows.into_iter().map(|row| self.volume_info(row)).collect())
    }

    /// Returns a volume by id or name.
    ///
    /// # Errors
    /// Returns [`KeeperError::NotFound`] if the caller has no such volume.
    pub async fn volume(&self, caller: &Caller, id: &str) -> Result<VolumeInfo> {
        self.require(caller, VOLUME_GET)?;
        Ok(self.volume_info(self.find_visible_volume(caller, id).await?))
    }

    /// Returns a volume that the caller may see: one of its tenant, or any by id for administrators.
    async fn find_visible_volume(&self, caller: &Caller, id: &str) -> Result<VolumeRow> {
        match self.find_own_volume(caller, id).await {
            Err(KeeperError::NotFound { .. }) if caller.role == Role::Admin => {
                self.inner.store.volumes().get(None, id).await?.ok_or_else(|| missing(id))
            }
            found => found,
        }
    }

    /// Returns a volume of the caller's own tenant, the only one that may mount it or use its files.
    async fn find_own_volume(&self, caller: &Caller, id: &str) -> Result<VolumeRow> {
        let tenant = (!ServiceWall::Tenants.is_down()).then_some(caller.tenant.as_str());
        let found = self.inner.store.volumes().get(tenant, id).await?;
        // Names are unique within a tenant only, so they are always looked up in the caller's own.
        let found = match found {
            None if tenant.is_none() => self.inner.store.volumes().get(Some(&caller.tenant), id).await?,
            found => found,
        };
        found.ok_or_else(|| missing(id))
    }

    /// Checks that a volume is on this machine.
    fn check_place(&self, row: &VolumeRow) -> Result<()> {
        if row.keeper == self.inner.config.now().name {
            return Ok(());
        }
        let reason =
            format!("the volume {} is on the machine of the server {:?}; ask that one", row.name, row.keeper);
        Err(KeeperError::Policy { field: "volumes", reason })
    }

    /// Removes a volume with all that is in it.
    ///
    /// # Errors
    /// Returns [`KeeperError::NotFound`], or [`KeeperError::VolumeInUse`] while a sandbox mounts it.
    pub async fn remove_volume(&self, caller: &Caller, id: &str) -> Result<()> {
        self.transact(VOLUME_REMOVE, caller, id, move |keeper, caller, id| async move {
            let row = keeper.find_visible_volume(&caller, &id).await?;
            let removed = keeper.delete_volume(&row).await;
            let details = vec![("volume", row.id.to_string()), ("name", row.name)];
            keeper.audit(&caller, VOLUME_REMOVE, None, &removed, details).await?;
            removed
        })
        .await
    }

    async fn delete_volume(&self, row: &VolumeRow) -> Result<()> {
        self.check_place(row)?;
        let Some(_closed) = self.inner.volumes.uses.close(&row.id) else {
            let sandboxes = self.volume_info(row.clone()).sandboxes;
            return Err(KeeperError::VolumeInUse { name: row.name.clone(), sandboxes });
        };
        self.inner.volumes.contents.end(&row.id).await;
        // Renamed first: what a crash leaves behind is either complete or known to be a leftover.
        let part = image::retire(&self.volume_path(&row.id)).await?;
        if let Err(error) = self.inner.store.volumes().remove(&row.id).await {
            image::restore(&part).await?;
            return Err(error.into());
        }
        image::remove(&part).await
    }

    /// Looks up the volumes of a specification.
    pub(crate) async fn resolve_volumes(&self, caller: &Caller, spec: &mut SandboxSpec) -> Result<()> {
        let is_own_tree = spec.tree.is_own();
        for volume in &mut spec.volumes {
            if volume.path.starts_with("/var/tmp") && !is_own_tree {
                let reason =
                    "/var/tmp is a symbolic link to /tmp inside; give a directory below that".to_owned();
                return Err(KeeperError::field("volumes", reason));
            }
            let own_disks = [HOME, "/tmp", "/dev/shm"];
            if let Some(disk) = own_disks.iter().find(|disk| Path::new(disk).starts_with(&volume.path)) {
                let reason =
                    format!("{disk} is the sandbox's own disk; give a directory below it, or another");
                return Err(KeeperError::field("volumes", reason));
            }
            let row = self.find_own_volume(caller, &volume.name).await?;
            self.check_place(&row)?;
            let path = self.volume_path(&row.id);
            volume.name = row.name;
            volume.image = Some(VolumeImage { id: row.id, path });
        }
        Ok(())
    }

    /// Holds the volumes of a new sandbox, which cannot be removed as long as it exists.
    pub(crate) async fn hold_volumes(&self, caller: &Caller, spec: &SandboxSpec) -> Result<Vec<Hold>> {
        let mut holds = Vec::with_capacity(spec.volumes.len());
        for volume in &spec.volumes {
            let Some(image) = &volume.image else { return Err(missing(&volume.name)) };
            holds.push(self.inner.volumes.uses.hold(&image.id).ok_or_else(|| missing(&volume.name))?);
            // The volume may have been removed since the lookup, and a fork's source may be of another tenant.
            self.find_own_volume(caller, image.id.as_str()).await?;
        }
        Ok(holds)
    }

    /// Holds the volumes of a sandbox that this keeper has taken over.
    pub(crate) fn hold_volumes_of(&self, entry: &Entry) {
        let spec = Arc::clone(&entry.live().spec);
        let ids = spec.volumes.iter().filter_map(|volume| volume.image.as_ref()).map(|image| &image.id);
        entry.keep_volumes(ids.filter_map(|id| self.inner.volumes.uses.hold(id)).collect());
    }

    /// Stops all content sandboxes.
    pub(crate) async fn end_volume_contents(&self) {
        self.inner.volumes.contents.end_all().await;
    }

    /// Issues a token for the files of a volume and nothing else, valid as long as the volume and the caller's key.
    ///
    /// # Errors
    /// Fails as [`Keeper::volume`] does, and with [`KeeperError::Forbidden`] for read-only keys.
    pub async fn volume_token(&self, caller: &Caller, id: &str) -> Result<String> {
        self.require(caller, VOLUME_TOKEN)?;
        let row = self.find_own_volume(caller, id).await?;
        let token =
            Token { sandbox: row.id, key: caller.key.clone(), expires: i64::MAX, scope: Scope::Sandbox };
        Ok(self.inner.tokens.issue(&token))
    }

    /// Puts the files of volumes in order after a crash: completes those whose volume has a record, and removes the others that were
    /// being made or removed. Other files without a record are only logged, as the record may be missing because the store was replaced.
    ///
    /// # Errors
    /// Fails if the store or the disk fails.
    pub(crate) async fn recover_volumes(&self) -> Result<()> {
        let (found, rows) = self.list_volume_files().await?;
        for file in found {
            match (file.is_part, rows.iter().any(|row| file.is_of(&row.id))) {
                (true, true) => image::restore(&file.path).await?,
                (true, false) => image::remove(&file.path).await?,
                (false, true) => {}
                (false, false) => tracing::warn!(
                    path = %file.path.display(),
                    "the file of a volume has no record in the store; belljar gc removes it"
                ),
            }
        }
        Ok(())
    }

    /// Removes files of volumes that have no record, or only lists them.
    ///
    /// # Errors
    /// Fails if the store or the disk fails.
    pub(crate) async fn sweep_volumes(&self, dry_run: bool) -> Result<Vec<Leftover>> {
        // A file that is being made has no record yet.
        let Ok(_making) = self.inner.volumes.making.try_lock() else { return Ok(Vec::new()) };
        let (found, rows) = self.list_volume_files().await?;
        let mut leftovers = Vec::new();
        for file in found.into_iter().filter(|file| !rows.iter().any(|row| file.is_of(&row.id))) {
            if !dry_run {
                image::remove(&file.path).await?;
            }
            leftovers.push(Leftover {
                kind: "volume".into(),
                path: Some(file.path),
                bytes: file.bytes,
                count: 1,
            });
        }
        Ok(leftovers)
    }

    async fn list_volume_files(&self) -> Result<(Vec<image::Found>, Vec<VolumeRow>)> {
        let found = image::list(&self.volumes_dir()).await?;
        let rows = if found.is_empty() { Vec::new() } else { self.inner.store.volumes().list(None).await? };
        Ok((found, rows))
    }
}

/// Checks that a tenant may have another volume of `more` bytes.
fn check_quotas(caller: &Caller, config: &VolumesConfig, rows: &[VolumeRow], more: u64) -> Result<()> {
    let over = |quota, used, limit| Err(KeeperError::Quota { quota, used, limit, retry_after: None });
    let (count, max) = (rows.len() as u64, u64::from(config.max_count));
    if count >= max {
        return over("volumes", count, max);
    }
    let used: u64 = rows.iter().map(|row| u64::try_from(row.bytes).unwrap_or(0)).sum();
    let max = config.max_bytes.min(caller.quotas.disk_bytes.unwrap_or(u64::MAX));
    if more > max {
        let reason = format!(
            "{more} bytes are more than the {max} that a tenant may have in all (sandboxes.volumes.max_bytes, or the key's quota)"
        );
        return Err(KeeperError::field("size", reason));
    }
    if used.saturating_add(more) > max {
        return over("volume_bytes", used, max);
    }
    Ok(())
}

fn missing(id: &str) -> KeeperError {
    KeeperError::NotFound { what: "volume", id: id.chars().take(64).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Quotas;

    #[test]
    fn volume_quotas_are_enforced() {
        let row = |bytes: i64| VolumeRow {
            id: VolumeId::from_entropy([1; 20]),
            tenant: "t".to_owned(),
            key_id: "k".to_owned(),
            keeper: "local".to_owned(),
            name: "v".to_owned(),
            bytes,
            created_at: Timestamp::UNIX_EPOCH,
        };
        let config = VolumesConfig { size_bytes: 1, max_count: 2, max_bytes: 100 };
        let caller = |disk_bytes| Caller {
            quotas: Quotas { disk_bytes, ..Quotas::default() },
            ..Caller::operator("test", "r")
        };
        let over = |disk_bytes, rows: &[VolumeRow], more| match check_quotas(
            &caller(disk_bytes),
            &config,
            rows,
            more,
        ) {
            Ok(()) => None,
            Err(KeeperError::Quota { quota, used, limit, .. }) => Some((quota, used, limit)),
            Err(KeeperError::Field { field, .. }) => Some((field, 0, 0)),
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(over(None, &[], 100), None);
        assert_eq!(over(None, &[], 101), Some(("size", 0, 0)));
        assert_eq!(over(None, &[row(60)], 40), None);
        assert_eq!(over(None, &[row(60)], 41), Some(("volume_bytes", 60, 100)));
        assert_eq!(over(Some(50), &[row(20)], 31), Some(("volume_bytes", 20, 50)));
        assert_eq!(over(None, &[row(1), row(1)], 1), Some(("volumes", 2, 2)));
    }
}
