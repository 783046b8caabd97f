//! Errors of the store.

use std::io;
use std::path::PathBuf;

use sqlx::migrate::MigrateError;

/// Error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address of the store is invalid. It is not shown, as it may hold a password.
    #[error("invalid store address: {why}; use sqlite:/path/to/belljar.db or postgres://user@host/database")]
    Address {
        /// Reason.
        why: String,
    },
    /// A file or directory of the store cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Operation that failed, as in `create`.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The database cannot be opened.
    #[error("cannot open the store {url}")]
    Open {
        /// Address without its password.
        url: String,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// The tables were made by a newer version of Belljar.
    #[error(
        "the store {url} was written by a newer Belljar: its schema is {found}, and this program knows {known}; use a newer program, or restore a backup from before"
    )]
    SchemaTooNew {
        /// Address without its password.
        url: String,
        /// Schema version of the store.
        found: i64,
        /// Newest schema version that this program knows.
        known: i64,
    },
    /// The tables cannot be migrated.
    #[error("cannot bring the tables of the store {url} up to date")]
    Migrate {
        /// Address without its password.
        url: String,
        /// Cause.
        #[source]
        source: MigrateError,
    },
    /// The disk is full. Nothing that was acknowledged is lost.
    #[error("no space to {action}; free some on the store's disk, and it resumes by itself")]
    Full {
        /// Operation that failed.
        action: &'static str,
    },
    /// The database was locked by others for too long.
    #[error("the store is too busy to {action}; try again")]
    Busy {
        /// Operation that failed.
        action: &'static str,
    },
    /// Another live sandbox or template of the tenant has the name.
    #[error("the name {name:?} is taken by another {what}; choose another name, or remove that one")]
    NameTaken {
        /// Kind of object with the name: `sandbox` or `template`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Another server uses this keeper name.
    #[error(
        "another server that shares this store is called {keeper:?}; servers that share a store need a name each \
         (store.keeper)"
    )]
    KeeperTaken {
        /// The name.
        keeper: String,
    },
    /// An object with this id already exists.
    #[error("{what} {id} already exists")]
    Exists {
        /// Kind of object, as in `sandbox`.
        what: &'static str,
        /// Id of the object.
        id: String,
    },
    /// No object has this id.
    #[error("{what} {id} not found")]
    NotFound {
        /// Kind of object, as in `sandbox`.
        what: &'static str,
        /// Id that was requested.
        id: String,
    },
    /// The row was changed concurrently since it was read.
    #[error("{what} {id} was changed since generation {generation} was read; read it again")]
    Conflict {
        /// Kind of object, as in `sandbox`.
        what: &'static str,
        /// Id of the object.
        id: String,
        /// Generation that the caller had read.
        generation: i64,
    },
    /// A text contains a NUL character, which no database column accepts.
    #[error("{field} contains a NUL character, which cannot be stored; remove it")]
    Nul {
        /// Name of the text.
        field: &'static str,
    },
    /// A stored value is not what this program wrote.
    #[error("{what} in the store cannot be read: {why}; restore a backup")]
    Corrupt {
        /// Table and column.
        what: String,
        /// Reason.
        why: String,
    },
    /// The change is written, but the disk did not confirm it.
    #[error("the disk did not confirm what was written to {}", path.display())]
    Sync {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The audit record is archived.
    #[error(
        "record {seq} of the audit log is archived: the database has it from record {} on; verify the archived files (`belljar audit verify FILE...`)", base.saturating_add(1)
    )]
    Archived {
        /// The record.
        seq: i64,
        /// Last archived record.
        base: i64,
    },
    /// The operation is left to another program for this database.
    #[error("{what} of a store in {backend} is not done by Belljar; {instead}")]
    Elsewhere {
        /// Operation.
        what: &'static str,
        /// Name of the database.
        backend: &'static str,
        /// Alternative to use.
        instead: &'static str,
    },
    /// The store is sealed, and its key file is missing.
    #[error(
        "the store is sealed, and its key is not in {}; put the key file back there from where you keep it, or name it with store.key_file", path.display()
    )]
    KeyMissing {
        /// Expected path of the key.
        path: PathBuf,
    },
    /// The store is sealed with another key.
    #[error(
        "the store is sealed with another key than the one in {}; put the store's own key file there (with several keepers, that of the first), or name it with store.key_file", path.display()
    )]
    KeyWrong {
        /// Path of the key.
        path: PathBuf,
    },
    /// The key file cannot be used.
    #[error("cannot use the store's key file {}: {why}", path.display())]
    KeyRefused {
        /// Path of the key.
        path: PathBuf,
        /// Reason, and what to do.
        why: &'static str,
    },
    /// The cryptographic library failed.
    #[error("the cryptographic library failed to seal a value")]
    Sealing,
    /// The operating system provided no random numbers.
    #[error("cannot get random numbers from the operating system")]
    Random(#[source] io::Error),
    /// The database refused a statement.
    #[error("cannot {action}")]
    Statement {
        /// Operation that failed.
        action: &'static str,
        /// Error of the database.
        #[source]
        source: sqlx::Error,
    },
}

impl StoreError {
    /// Reports whether the disk is full.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Reports whether an immediate retry is worthwhile.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }
}

/// Returns a function that converts a database error. `action` is the operation that failed, as in `write a sandbox`.
pub(crate) fn failed(action: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| match class(&source) {
        Class::Full => StoreError::Full { action },
        Class::Busy => StoreError::Busy { action },
        Class::Other => StoreError::Statement { action, source },
    }
}

/// Reports whether a row violates the unique constraint of this name or column.
pub(crate) fn is_clash(error: &sqlx::Error, constraint: &str, column: &str) -> bool {
    let Some(database) = error.as_database_error() else { return false };
    // SQLite reports the columns, and PostgreSQL the index.
    database.is_unique_violation()
        && (database.constraint() == Some(constraint) || database.message().contains(column))
}

enum Class {
    Full,
    Busy,
    Other,
}

fn class(error: &sqlx::Error) -> Class {
    let code = match error {
        sqlx::Error::PoolTimedOut => return Class::Busy,
        sqlx::Error::Database(database) => database.code().unwrap_or_default().into_owned(),
        _ => return Class::Other,
    };
    match code.as_str() {
        // disk_full of PostgreSQL.
        "53100" => return Class::Full,
        // too_many_connections, lock_not_available, query_canceled by a timeout, deadlock_detected, serialization_failure.
        "53300" | "55P03" | "57014" | "40P01" | "40001" => return Class::Busy,
        _ => {}
    }
    // SQLite's codes are small numbers with the primary code in the low byte.
    match code.parse::<u32>() {
        // SQLITE_IOERR_SHMSIZE: no space for the index of the write-ahead log.
        Ok(4874) => Class::Full,
        Ok(code) if code < 0x1_0000 => match code & 0xff {
            13 => Class::Full,
            5 | 6 => Class::Busy,
            _ => Class::Other,
        },
        _ => Class::Other,
    }
}
