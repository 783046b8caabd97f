//! Backup of a store that is in use.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::audit;
use crate::database::{Backend, Database};
use crate::error::{StoreError, failed};
use crate::files::{blocking, directory};

/// Copies a SQLite store into a new file (0600) as a consistent snapshot. The file is synced to disk on return.
pub(crate) async fn backup(database: &Database, to: &Path) -> Result<(), StoreError> {
    if database.backend == Backend::Postgres {
        return Err(StoreError::Elsewhere {
            what: "a backup",
            backend: "PostgreSQL",
            instead: "use pg_dump",
        });
    }
    let Some(text) = to.to_str() else {
        let source = io::Error::new(io::ErrorKind::InvalidFilename, "the path is not UTF-8");
        return Err(StoreError::File { action: "create", path: to.to_owned(), source });
    };
    // SQLite writes into an existing empty file and keeps its mode.
    blocking(to, "create", |path| {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(|_| ())
    })
    .await?;
    audit::settle(database).await;
    let result = match database.copy_into(text).await.map_err(failed("write a backup")) {
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
