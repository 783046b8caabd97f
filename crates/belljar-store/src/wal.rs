//! Explicit syncs of SQLite's write-ahead log, which do not block other writers.
//!
//! With `synchronous=NORMAL` SQLite does not wait for the disk when it commits. Syncing its log afterwards gives the guarantee
//! of `synchronous=FULL` to the one caller that needs it. Concurrent callers share one sync.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::StoreError;
use crate::files::directory;

/// Write-ahead log of a SQLite file.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    requested: AtomicU64,
    /// The holder of the lock syncs for all requests made by then.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Last request that the disk has confirmed.
    confirmed: u64,
    /// Kept open, so that a lack of descriptors cannot prevent a sync.
    file: Arc<File>,
}

impl Wal {
    /// Opens the log of a database that has been written to.
    pub(crate) fn open(database: &Path) -> Result<Self, StoreError> {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        let path = PathBuf::from(path);
        let file = File::open(&path);
        let file = file.map_err(|source| StoreError::File { action: "open", path: path.clone(), source })?;
        // The directory entries must survive a power failure too.
        let dir = directory(database);
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|source| StoreError::Sync { path: dir.to_owned(), source })?;
        let state = State { confirmed: 0, file: Arc::new(file) };
        Ok(Self { path, requested: AtomicU64::new(0), state: Mutex::new(state) })
    }

    /// Waits until the disk has confirmed everything committed before the call.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        let request = self.requested.fetch_add(1, Ordering::SeqCst) + 1;
        let mut state = self.state.lock().await;
        if state.confirmed >= request {
            return Ok(());
        }
        let covered = self.requested.load(Ordering::SeqCst);
        let (file, path) = (Arc::clone(&state.file), self.path.clone());
        let synced = tokio::task::spawn_blocking(move || sync_current(file, &path)).await;
        let failed = |source| StoreError::Sync { path: self.path.clone(), source };
        state.file = synced.map_err(io::Error::other).and_then(|file| file).map_err(failed)?;
        state.confirmed = covered;
        Ok(())
    }
}

/// Syncs the log, and returns its file, which is another one if SQLite has started a new log.
fn sync_current(file: Arc<File>, path: &Path) -> io::Result<Arc<File>> {
    let open = file.metadata()?;
    let file = match std::fs::metadata(path) {
        Ok(named) if (named.dev(), named.ino()) == (open.dev(), open.ino()) => file,
        Ok(_) => {
            File::open(directory(path))?.sync_all()?;
            Arc::new(File::open(path)?)
        }
        // The last connection removed it when it closed, after a checkpoint of everything into the database.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(file),
        Err(error) => return Err(error),
    };
    file.sync_data()?;
    Ok(file)
}
