//! Asks the disk to confirm what SQLite has written, without holding up other writers.
//!
//! With `synchronous=NORMAL` SQLite does not wait for the disk when it commits. Syncing its log afterwards gives what
//! `synchronous=FULL` would have given, for the one caller that wants it. Callers who come together share one sync.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::error::StoreError;
use crate::place::directory;

/// The log of a SQLite file.
#[derive(Debug)]
pub(crate) struct Wal {
    path: PathBuf,
    asked: AtomicU64,
    /// Whoever holds it syncs, for all who had asked by then.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Up to which request the disk has confirmed.
    confirmed: u64,
    /// Kept open, so that a lack of descriptors is not in the way.
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
        // The names of the files are to survive a loss of power too.
        let dir = directory(database);
        File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|source| StoreError::Sync { path: dir.to_owned(), source })?;
        let state = State { confirmed: 0, file: Arc::new(file) };
        Ok(Self { path, asked: AtomicU64::new(0), state: Mutex::new(state) })
    }

    /// Returns once the disk has what was committed before the call.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        let request = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut state = self.state.lock().await;
        if state.confirmed >= request {
            return Ok(());
        }
        let covered = self.asked.load(Ordering::SeqCst);
        let (file, path) = (Arc::clone(&state.file), self.path.clone());
        let synced = tokio::task::spawn_blocking(move || sync_current(file, &path)).await;
        let failed = |source| StoreError::Sync { path: self.path.clone(), source };
        state.file = synced.map_err(io::Error::other).and_then(|file| file).map_err(failed)?;
        state.confirmed = covered;
        Ok(())
    }
}

/// Syncs the log, and gives back its file, which is another one if SQLite has begun a new log.
fn sync_current(file: Arc<File>, path: &Path) -> io::Result<Arc<File>> {
    let open = file.metadata()?;
    let file = match std::fs::metadata(path) {
        Ok(named) if (named.dev(), named.ino()) == (open.dev(), open.ino()) => file,
        Ok(_) => {
            File::open(directory(path))?.sync_all()?;
            Arc::new(File::open(path)?)
        }
        // The last connection took it along when it closed, after it had synced everything into the database.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(file),
        Err(error) => return Err(error),
    };
    file.sync_data()?;
    Ok(file)
}
