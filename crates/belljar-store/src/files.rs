//! Files of a SQLite store, which only their owner may read.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::StoreError;

/// Maximum time to wait for another process that migrates the tables.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between attempts to lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Creates the directory (0700) and the file (0600) if they do not exist, and removes other users' permissions from the file.
///
/// SQLite gives its other files the same mode. An existing directory keeps its mode, as it may be shared.
///
/// An existing file is not opened: if this process has it open as a database already, closing another descriptor of it would
/// release that database's locks.
pub(crate) fn prepare(path: &Path) -> Result<(), StoreError> {
    let dir = directory(path);
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::File { action, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("create", dir))?;
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("create", path)(error)),
    }
    if std::fs::metadata(path).map_err(failed("open", path))?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(failed("change the permissions of", path))?;
    }
    Ok(())
}

/// Opens a file for appending, and creates it with mode 0600 if it does not exist.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Keeps other processes from migrating the tables, until the returned file is dropped.
pub(crate) fn lock(database: &Path) -> Result<File, StoreError> {
    let mut path = database.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let failed = |source| StoreError::File { action: "lock", path: path.clone(), source };
    let file = private_file(&path).map_err(failed)?;
    lock_file(&file, &path, LOCK_TIMEOUT, "open the store")?;
    Ok(file)
}

/// Locks a file, once no other process has it locked.
///
/// # Errors
/// Returns [`StoreError::Busy`] after the timeout, or [`StoreError::File`].
pub(crate) fn lock_file(
    file: &File,
    path: &Path,
    timeout: Duration,
    action: &'static str,
) -> Result<(), StoreError> {
    let deadline = Instant::now() + timeout;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(LOCK_RETRY_INTERVAL),
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy { action }),
            Err(TryLockError::Error(source)) => {
                return Err(StoreError::File { action: "lock", path: path.to_owned(), source });
            }
        }
    }
}

pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Does something with a path on a thread where it may block. `action` is what it does, as in `create`.
///
/// # Errors
/// Returns [`StoreError::File`].
pub(crate) async fn blocking<T: Send + 'static>(
    path: &Path,
    action: &'static str,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let path: PathBuf = path.to_owned();
    let owned = path.clone();
    let result = tokio::task::spawn_blocking(move || work(&owned)).await.map_err(io::Error::other);
    result.and_then(|result| result).map_err(|source| StoreError::File { action, path, source })
}
