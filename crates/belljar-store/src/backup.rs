//! Copies of a store that is in use.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::audit;
use crate::database::{self, Backend, Database};
use crate::error::{StoreError, failed};
use crate::files::{blocking, directory};
use crate::url::{Location, StoreUrl};

/// Copies a SQLite store into a new file (0600) as a consistent snapshot. The file is synced to disk on return.
pub(crate) async fn backup(database: &Database, to: &Path) -> Result<(), StoreError> {
    if database.backend == Backend::Postgres {
        return Err(StoreError::Elsewhere {
            what: "a backup",
            backend: "PostgreSQL",
            instead: "use pg_dump",
        });
    }
    audit::settle(database).await;
    write(to, |text| async move { database.copy_into(&text).await }).await
}

/// Copies the database of a server, which may be in use by it, into a new file (0600), as a consistent snapshot. The database may be of another
/// version. The file is synced to disk on return.
///
/// # Errors
///
/// Returns [`StoreError::Elsewhere`] for a store in PostgreSQL, or fails if the file exists, or if the database cannot be read.
pub async fn copy_database(from: &StoreUrl, to: &Path) -> Result<(), StoreError> {
    let Location::Sqlite(_) = from.location() else {
        return Err(StoreError::Elsewhere {
            what: "a backup",
            backend: "PostgreSQL",
            instead: "use pg_dump",
        });
    };
    let address = from.options()?;
    sqlx::any::install_default_drivers();
    write(to, |text| async move { database::copy_into(&address, &text).await }).await
}

/// Lets `copy` write a new file, whose path it gets.
async fn write<F>(to: &Path, copy: impl FnOnce(String) -> F) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), sqlx::Error>>,
{
    let Some(text) = to.to_str() else {
        let source = io::Error::new(io::ErrorKind::InvalidFilename, "the path is not UTF-8");
        return Err(StoreError::File { action: "create", path: to.to_owned(), source });
    };
    // SQLite writes into an existing empty file and keeps its mode.
    blocking(to, "create", |path| {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(|_| ())
    })
    .await?;
    let result = match copy(text.to_owned()).await.map_err(failed("write a backup")) {
        Ok(()) => {
            blocking(to, "sync", |path| {
                File::open(path)?.sync_all()?;
                File::open(directory(path))?.sync_all()
            })
            .await
        }
        Err(error) => Err(error),
    };
    if result.is_err() {
        // A partial backup is removed. The original error is returned either way.
        drop(blocking(to, "remove", |path| std::fs::remove_file(path)).await);
    }
    result
}
