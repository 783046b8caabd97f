//! The files of a SQLite store: only their owner reads them.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
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
///
/// A file that is there is not opened: if this process has it open as a database already, closing another descriptor of it
/// would give away that database's locks.
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
            .map_err(failed("take others' rights from", path))?;
    }
    Ok(())
}

/// Opens a file for appending, and makes it with mode 0600 if there is none.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Keeps others from bringing the tables up to date at the same time, until the file is dropped.
pub(crate) fn lock(database: &Path) -> Result<File, StoreError> {
    let mut path = database.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let failed = |source| StoreError::File { action: "lock", path: path.clone(), source };
    let file = private_file(&path).map_err(failed)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < end => sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy { action: "open the store" }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}
