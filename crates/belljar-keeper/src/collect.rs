//! What is left over, and in nobody's use.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::action::SERVER_COLLECT;
use crate::caller::Caller;
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};
use crate::steps::run_detached;

/// Something that nobody uses any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Leftover {
    /// What it is: `archive`, `record`, `answer`, `upload`, `volume`, `step` or `layer`.
    pub kind: Cow<'static, str>,
    /// A file's path.
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// What it takes of a disk, in bytes; 0 where that is not known.
    pub bytes: u64,
    /// How many of them.
    pub count: u64,
}

/// Archives that are being written, or used by forks that are being made. The store knows nothing of them yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Archives(Arc<Mutex<BTreeSet<PathBuf>>>);

/// An archive is in use for as long as this is held.
#[derive(Debug)]
pub(crate) struct Busy {
    archives: Archives,
    path: PathBuf,
}

impl Archives {
    pub(crate) fn begin(&self, path: &Path) -> Busy {
        self.0.lock().insert(path.to_owned());
        Busy { archives: self.clone(), path: path.to_owned() }
    }

    fn now(&self) -> BTreeSet<PathBuf> {
        self.0.lock().clone()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.archives.0.lock().remove(&self.path);
    }
}

impl Keeper {
    /// Removes what is left over, or only says what that would be. What is in use, or not the keeper's, is never touched.
    ///
    /// # Errors
    /// [`KeeperError::Forbidden`] for who is no administrator; the store or the disk failed.
    pub async fn collect(&self, caller: &Caller, dry_run: bool) -> Result<Vec<Leftover>> {
        let (keeper, caller) = (self.clone(), caller.clone());
        run_detached(&self.inner.tasks, async move { keeper.collect_inner(&caller, dry_run).await }).await
    }

    async fn collect_inner(&self, caller: &Caller, dry_run: bool) -> Result<Vec<Leftover>> {
        self.require(caller, SERVER_COLLECT)?;
        let collected = self.collect_all(dry_run).await;
        if !dry_run {
            let removed = collected.as_ref().map_or(0, |all| all.iter().map(|one| one.count).sum::<u64>());
            self.audit(caller, SERVER_COLLECT, None, &collected, vec![("removed", removed.to_string())])
                .await?;
        }
        collected
    }

    async fn collect_all(&self, dry_run: bool) -> Result<Vec<Leftover>> {
        let mut leftovers = self.left_archives().await?;
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
        let swept = self.sweep_layers(dry_run).await?;
        if swept.steps > 0 {
            leftovers.push(Leftover { kind: "step".into(), path: None, bytes: 0, count: swept.steps });
        }
        let layer = |(path, bytes)| Leftover { kind: "layer".into(), path: Some(path), bytes, count: 1 };
        leftovers.extend(swept.layers.into_iter().map(layer));
        Ok(leftovers)
    }

    /// Removes what a keeper that was cut off has left of archives.
    pub(crate) async fn sweep_archives(&self) -> Result<()> {
        for leftover in self.left_archives().await? {
            self.remove_archive(&leftover).await?;
        }
        Ok(())
    }

    /// Archives that belong to no template. The directory is listed first: what is being written then is known as such until
    /// the store has it.
    async fn left_archives(&self) -> Result<Vec<Leftover>> {
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
        let busy = self.inner.archives.now();
        let rows = self.inner.store.templates().list(None).await?;
        let known: BTreeSet<_> = rows.iter().map(|row| self.archive_path(&row.id)).collect();
        let mut leftovers = Vec::new();
        for path in found {
            let metadata = match tokio::fs::symlink_metadata(&path).await {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(source) => return Err(KeeperError::File { action: "open", path, source }),
            };
            // A directory is none of the keeper's.
            if !busy.contains(&path) && !known.contains(&path) && metadata.is_file() {
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
