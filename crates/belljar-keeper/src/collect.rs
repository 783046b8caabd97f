//! Collection of leftovers that are no longer in use.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_image::Swept;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::action::SERVER_COLLECT;
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};

/// A resource that is no longer in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leftover {
    /// Its kind: `archive`, `record`, `answer`, `upload`, `volume`, `step`, `layer` or `pull`.
    pub kind: Cow<'static, str>,
    /// Path, if it is a file.
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Size on disk, in bytes; 0 if unknown.
    pub bytes: u64,
    /// Number of items.
    pub count: u64,
}

/// Archives in use without a record in the store: those being written, and those of forks being created.
#[derive(Debug, Clone, Default)]
pub(crate) struct Archives(Arc<Mutex<BTreeSet<PathBuf>>>);

/// Marks an archive as in use until dropped.
#[derive(Debug)]
pub(crate) struct ArchiveInUse {
    archives: Archives,
    path: PathBuf,
}

impl Archives {
    pub(crate) fn begin(&self, path: &Path) -> ArchiveInUse {
        self.0.lock().insert(path.to_owned());
        ArchiveInUse { archives: self.clone(), path: path.to_owned() }
    }

    fn now(&self) -> BTreeSet<PathBuf> {
        self.0.lock().clone()
    }
}

impl Drop for ArchiveInUse {
    fn drop(&mut self) {
        self.archives.0.lock().remove(&self.path);
    }
}

/// Returns what was swept of templates' layers.
pub(crate) fn to_leftovers(swept: Swept) -> impl Iterator<Item = Leftover> {
    let steps =
        (swept.steps > 0).then(|| Leftover { kind: "step".into(), path: None, bytes: 0, count: swept.steps });
    let layer = |(path, bytes)| Leftover { kind: "layer".into(), path: Some(path), bytes, count: 1 };
    steps.into_iter().chain(swept.layers.into_iter().map(layer))
}

impl Keeper {
    /// Removes leftovers, or only lists them. Files in use or of other programs are not touched.
    ///
    /// # Errors
    /// Returns [`KeeperError::Forbidden`] unless the caller is an administrator; fails if the store or the disk fails.
    pub async fn collect(&self, caller: &Caller, dry_run: bool) -> Result<Vec<Leftover>> {
        self.transact(SERVER_COLLECT, caller, "", move |keeper, caller, _| async move {
            let collected = keeper.collect_all(dry_run).await;
            if !dry_run {
                let removed =
                    collected.as_ref().map_or(0, |all| all.iter().map(|one| one.count).sum::<u64>());
                keeper
                    .audit(&caller, SERVER_COLLECT, None, &collected, vec![("removed", removed.to_string())])
                    .await?;
            }
            collected
        })
        .await
    }

    async fn collect_all(&self, dry_run: bool) -> Result<Vec<Leftover>> {
        let mut leftovers = self.find_leftover_archives().await?;
        if !dry_run {
            for leftover in &leftovers {
                self.remove_archive(leftover).await?;
            }
        }
        let (store, now) = (&self.inner.store, Timestamp::now());
        let keep_gone: Duration = self.inner.config.now().keep_gone;
        let before = now.checked_sub(keep_gone).unwrap_or(Timestamp::MIN);
        let (records, answers) = if dry_run {
            (store.sandboxes().count_before(before).await?, store.idempotency().count_expired(now).await?)
        } else {
            (store.sandboxes().forget_before(before).await?, store.idempotency().forget_expired(now).await?)
        };
        for (kind, count) in [("record", records), ("answer", answers)] {
            if count > 0 {
                leftovers.push(Leftover { kind: kind.into(), path: None, bytes: 0, count });
            }
        }
        leftovers.extend(self.sweep_uploads(true, dry_run)?);
        leftovers.extend(self.sweep_volumes(dry_run).await?);
        leftovers.extend(to_leftovers(self.sweep_layers(dry_run).await?));
        Ok(leftovers)
    }

    /// Removes archives left by an interrupted keeper.
    pub(crate) async fn sweep_archives(&self) -> Result<()> {
        for leftover in self.find_leftover_archives().await? {
            self.remove_archive(&leftover).await?;
        }
        Ok(())
    }

    /// Returns archives that belong to no template. Lists the directory before the archives in use: one written meanwhile is in
    /// use or has a record.
    async fn find_leftover_archives(&self) -> Result<Vec<Leftover>> {
        let dir = self.inner.config.now().state_dir.join("templates");
        let failed = |source| KeeperError::File { action: "read", path: dir.clone(), source };
        let mut entries = match tokio::fs::read_dir(&dir).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(failed(source)),
        };
        let mut found = Vec::new();
        while let Some(entry) = entries.next_entry().await.map_err(failed)? {
            found.push(entry.path());
        }
        let in_use = self.inner.archives.now();
        let rows = self.inner.store.templates().list(None).await?;
        let known: BTreeSet<_> = rows.iter().map(|row| self.archive_path(&row.id)).collect();
        let mut leftovers = Vec::new();
        for path in found {
            let metadata = match tokio::fs::symlink_metadata(&path).await {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(source) => return Err(KeeperError::File { action: "open", path, source }),
            };
            // The keeper creates no directories here.
            if !in_use.contains(&path) && !known.contains(&path) && metadata.is_file() {
                let bytes = metadata.len();
                leftovers.push(Leftover { kind: "archive".into(), path: Some(path), bytes, count: 1 });
            }
        }
        leftovers.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(leftovers)
    }

    async fn remove_archive(&self, leftover: &Leftover) -> Result<()> {
        let Some(path) = &leftover.path else { return Ok(()) };
        match tokio::fs::remove_file(path).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(KeeperError::File { action: "remove", path: path.clone(), source: error })
            }
            _ => Ok(()),
        }
    }
}
