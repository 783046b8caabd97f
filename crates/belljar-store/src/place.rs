//! The files of a SQLite store: only their owner reads them.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::StoreError;

/// How long another process may take to bring the tables up to date.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked whether the other has done.
const PAUSE: Duration = Duration::from_millis(20);

/// Makes the directory (0700, if there is none) and the file (0600), and takes others' rights to the file away.
///
/// SQLite gives the files beside it the same mode. A directory that is there already stays as it is: it may be shared.
pub(crate) fn prepare(path: &Path) -> Result<(), StoreError> {
    let dir = directory(path);
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::File { action, path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("create", dir))?;
    let file = private_file(path).map_err(failed("open", path))?;
    if file.metadata().map_err(failed("look at", path))?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(failed("take others' rights from", path))?;
    }
    Ok(())
}

/// Opens a file for appending, and makes it with mode 0600 if there is none.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Keeps other processes from bringing the tables up to date at the same time, until the file is dropped.
pub(crate) fn lock_directory(path: &Path) -> Result<File, StoreError> {
    let dir = directory(path);
    let failed = |source| StoreError::File { action: "lock", path: dir.to_owned(), source };
    let file = File::open(dir).map_err(failed)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < end => sleep(PAUSE),
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(StoreError::Busy { action: "open the store" });
            }
            Err(std::fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
