//! Disks of machines: what changes in the tree is in a file with a file system of its own, which has no name once the sandbox runs and is
//! freed with it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_engine::{CreateRequest, Sandbox};
use belljar_model::{SandboxId, SandboxSpec};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::entry::Entry;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::steps::run_detached;
use crate::templates::Origin;
use crate::volumes::{copy_disk, disk_path, make_disk};

impl Keeper {
    /// Launches a long-lived sandbox on its engine, and a machine with a disk: a copy of the template's, if that is of a machine.
    pub(crate) async fn launch_on(
        &self,
        request: CreateRequest<'_>,
        id: &SandboxId,
        origin: &Origin,
    ) -> Result<Sandbox> {
        let engine = self.engine(request.spec.engine)?;
        if !request.spec.machine {
            return Ok(engine.create(request).await?);
        }
        let config = self.inner.config.now();
        let bytes = request.spec.limits.disk.bytes();
        config.capacity().check_file(bytes)?;
        let copied = origin.archive.clone().filter(|_| origin.has_disk());
        let disk = make_disk(self.disks(), id, &request.spec.limits, copied).await?;
        let spec = SandboxSpec { disk: Some(disk.path().to_owned()), ..request.spec.clone() };
        Ok(engine.create(CreateRequest { spec: &spec, ..request }).await?)
    }

    /// Copies the disk of a machine into a new file, and pauses the machine meanwhile. Returns the bytes that are used, and a digest.
    pub(crate) async fn copy_disk(&self, entry: &Arc<Entry>, to: File, path: &Path) -> Result<(u64, String)> {
        let engine = Arc::clone(self.engine(entry.live().spec.engine)?);
        let (disk, path) = (disk_path(&self.disks(), &entry.id), path.to_owned());
        let (keeper, entry) = (self.clone(), Arc::clone(entry));
        // A caller that disconnects must not leave it paused.
        let (_here, mut gone) = oneshot::channel::<()>();
        let copied = run_detached(&self.inner.tasks, async move {
            let step = entry.step.lock().await;
            // One that has waited in vain copies nothing.
            if gone.try_recv() == Err(TryRecvError::Closed) {
                return Err(KeeperError::Cancelled);
            }
            keeper.freeze_in(&entry, None, &step).await?;
            let copying = move || copy_disk(engine.open_disk(&disk)?, &to, &path);
            let copied = tokio::task::spawn_blocking(copying).await;
            keeper.thaw_in(&entry, None, &step).await?;
            Ok::<_, KeeperError>(copied)
        })
        .await?;
        copied.unwrap_or_else(|error| {
            Err(KeeperError::File { action: "copy", path: PathBuf::new(), source: error.into() })
        })
    }

    fn disks(&self) -> PathBuf {
        self.inner.config.now().state_dir.join("disks")
    }

    /// Removes disks that an interrupted keeper was making.
    pub(crate) async fn sweep_disks(&self) -> Result<()> {
        let path = self.disks();
        match tokio::fs::remove_dir_all(&path).await {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(KeeperError::File { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }
}
