//! Asks the disk to confirm what SQLite has written, without holding up other writers.
//!
//! With `synchronous=NORMAL` SQLite does not wait for the disk when it commits. Syncing its log afterwards gives what
//! `synchronous=FULL` would have given, for the one caller that wants it. Callers who come together share one sync.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::StoreError;

/// The log of a SQLite file.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    /// Opened once, so that no lack of descriptors stands in the way later. SQLite keeps the log while it is open.
    file: Arc<File>,
    asked: AtomicU64,
    /// Whoever holds it syncs, for all who had asked by then. It holds up to which request the disk has confirmed.
    confirmed: Mutex<u64>,
}

impl Wal {
    /// Opens the log of a database that has been written to.
    pub(crate) fn open(database: &Path) -> Result<Self, StoreError> {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        let path = PathBuf::from(path);
        let open = |path: &Path| {
            File::open(path).map_err(|source| StoreError::File {
                action: "open",
                path: path.to_owned(),
                source,
            })
        };
        let file = Arc::new(open(&path)?);
        // The names of the files are to survive a loss of power too.
        let dir = crate::place::directory(database);
        open(dir)?.sync_all().map_err(|source| StoreError::Sync { path: dir.to_owned(), source })?;
        Ok(Self { path, file, asked: AtomicU64::new(0), confirmed: Mutex::new(0) })
    }

    /// Returns once the disk has what was committed before the call.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        let request = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut confirmed = self.confirmed.lock().await;
        if *confirmed >= request {
            return Ok(());
        }
        let covered = self.asked.load(Ordering::SeqCst);
        let file = Arc::clone(&self.file);
        let failed = |source| StoreError::Sync { path: self.path.clone(), source };
        match tokio::task::spawn_blocking(move || file.sync_data()).await {
            Ok(result) => result.map_err(failed)?,
            Err(error) => return Err(failed(std::io::Error::other(error))),
        }
        *confirmed = covered;
        Ok(())
    }
}
