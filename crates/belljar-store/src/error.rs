//! What can go wrong with the store.

use std::io;
use std::path::PathBuf;

use sqlx::migrate::MigrateError;

/// What can go wrong with the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address of a store is not understood. It is not shown, as it may hold a password.
    #[error(
        "the address of the store is not understood: {why}; give sqlite:/path/to/belljar.db or postgres://user@host/database"
    )]
    Address {
        /// What is wrong with it.
        why: String,
    },
    /// A file or directory of the store cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was to be done, as in `create`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The database cannot be opened.
    #[error("cannot open the store {url}")]
    Open {
        /// The address, without its password.
        url: String,
        /// Why not.
        #[source]
        source: sqlx::Error,
    },
    /// The tables were made by a newer version of Belljar.
    #[error(
        "the store {url} was written by a newer Belljar: its schema is {found}, and this program knows {known}; use a newer program, or restore a backup from before"
    )]
    SchemaTooNew {
        /// The address, without its password.
        url: String,
        /// The store's schema.
        found: i64,
        /// The newest schema that this program knows.
        known: i64,
    },
    /// The tables cannot be made or brought up to date.
    #[error("cannot bring the tables of the store {url} up to date")]
    Migrate {
        /// The address, without its password.
        url: String,
        /// Why not.
        #[source]
        source: MigrateError,
    },
    /// There is no space for what was to be written. Nothing that was acknowledged is lost.
    #[error("no space to {action}; free some on the disk of the store, then it goes on by itself")]
    Full {
        /// What was to be done.
        action: &'static str,
    },
    /// Others held the database for too long.
    #[error("the store is too busy to {action}; try again")]
    Busy {
        /// What was to be done.
        action: &'static str,
    },
    /// Another sandbox or template of the tenant, which is not gone, has the name.
    #[error("the name {name:?} is taken by another {what}; choose another name, or remove that one")]
    NameTaken {
        /// What bears the name: `sandbox` or `template`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Another server is the keeper of this name.
    #[error(
        "another server that shares this store is called {keeper:?}; servers that share a store need a name each \
         (store.keeper)"
    )]
    KeeperTaken {
        /// The name.
        keeper: String,
    },
    /// There is one with this id already.
    #[error("there is a {what} {id} already")]
    Exists {
        /// What it is, as in `sandbox`.
        what: &'static str,
        /// Its id.
        id: String,
    },
    /// There is none with this id.
    #[error("there is no {what} {id}")]
    NotFound {
        /// What it is, as in `sandbox`.
        what: &'static str,
        /// The id that was looked for.
        id: String,
    },
    /// Somebody else changed the row since it was read.
    #[error("{what} {id} was changed by somebody else since generation {generation} was read; read it again")]
    Conflict {
        /// What it is, as in `sandbox`.
        what: &'static str,
        /// Its id.
        id: String,
        /// The generation that the caller had read.
        generation: i64,
    },
    /// A text holds a NUL character, which no database column takes.
    #[error("{field} holds a NUL character, which cannot be stored; leave it out")]
    Nul {
        /// Which text.
        field: &'static str,
    },
    /// A stored value cannot be what this program wrote.
    #[error("{what} in the store cannot be read: {why}; restore a backup")]
    Corrupt {
        /// The table and the column.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The change is written, but the disk did not confirm that it has it.
    #[error("the disk does not confirm that it has what was written to {}", path.display())]
    Sync {
        /// The file.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// The operation is another program's with this database.
    #[error("{what} of a store in {backend} is not done by Belljar; {instead}")]
    Elsewhere {
        /// The operation.
        what: &'static str,
        /// The database.
        backend: &'static str,
        /// What to use instead.
        instead: &'static str,
    },
    /// The store is sealed, and its key is not where it should be.
    #[error(
        "the store is sealed, and its key is not in {}; put the key file back there from where you keep it (docs/operating/backup.md), or name it with store.key_file", path.display()
    )]
    KeyMissing {
        /// Where the key should be.
        path: PathBuf,
    },
    /// The store is sealed with another key.
    #[error(
        "the store is sealed with another key than the one in {}; put the store's own key file there (with several keepers, that of the first), or name it with store.key_file", path.display()
    )]
    KeyWrong {
        /// Where the key is.
        path: PathBuf,
    },
    /// The file with the key cannot be taken.
    #[error("the store's key cannot be taken from {}: {why}", path.display())]
    KeyRefused {
        /// Where the key should be.
        path: PathBuf,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// The cryptographic library failed.
    #[error("the cryptographic library cannot seal a value")]
    Sealing,
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers")]
    Random(#[source] io::Error),
    /// The database refused a statement.
    #[error("cannot {action}")]
    Statement {
        /// What was to be done.
        action: &'static str,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
}

impl StoreError {
    /// Whether there was no space.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// Whether it is worth to try the same again at once.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }
}

/// Makes an error of what a database said to a statement. `action` says what was to be done, as in `write a sandbox`.
pub(crate) fn failed(action: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| match class(&source) {
        Class::Full => StoreError::Full { action },
        Class::Busy => StoreError::Busy { action },
        Class::Other => StoreError::Statement { action, source },
    }
}

/// Whether a row was refused because there is one with the same value in one of these columns.
pub(crate) fn is_clash(error: &sqlx::Error, constraint: &str, column: &str) -> bool {
    let Some(database) = error.as_database_error() else { return false };
    // SQLite names the columns, and PostgreSQL the index.
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
    // The codes of SQLite are small numbers with what happened in the low byte.
    match code.parse::<u32>() {
        // SQLITE_IOERR_SHMSIZE: the index of the log found no space.
        Ok(4874) => Class::Full,
        Ok(code) if code < 0x1_0000 => match code & 0xff {
            13 => Class::Full,
            5 | 6 => Class::Busy,
            _ => Class::Other,
        },
        _ => Class::Other,
    }
}
