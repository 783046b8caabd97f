//! Connections to the database.
//!
//! A SQLite file has one connection for writing, so that writers queue in this process instead of hitting a lock, and a few for
//! reading. PostgreSQL has one pool for both.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sqlx::any::{AnyArguments, AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, AnyPool, Connection as _, Transaction};

use crate::audit::JournalQueue;
use crate::checkpoint::Checkpointer;
use crate::durability::Durability;
use crate::error::{StoreError, failed};
use crate::reader::Reader;
use crate::reserve::Reserve;
use crate::url::{Location, StoreUrl};
use crate::wal::Wal;
use crate::{files, schema};

/// Number of reading connections to a SQLite file.
const SQLITE_READERS: u32 = 4;

/// Maximum number of connections of one keeper to PostgreSQL.
const POSTGRES_CONNECTIONS: u32 = 16;

/// Maximum time that a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
}

/// Statement with its bound values.
pub(crate) type Statement<'q> = Query<'q, Any, AnyArguments>;

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) backend: Backend,
    pub(crate) url: StoreUrl,
    writer: AnyPool,
    reader: AnyPool,
    /// Set if commits are not synced anyway.
    wal: Option<Wal>,
    /// Set for a SQLite file.
    reserve: Option<Reserve>,
    /// Set for a SQLite file until the database is closed.
    checkpointer: Mutex<Option<Checkpointer>>,
    /// Journal of the audit log, if it has one and is open.
    pub(crate) journal: Mutex<Option<JournalQueue>>,
}

impl Database {
    pub(crate) async fn open(url: &StoreUrl, durability: Durability) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        match url.location() {
            Location::Memory => Self::in_memory(url).await,
            Location::Sqlite(path) => {
                let path = path.clone();
                let lock = tokio::task::spawn_blocking({
                    let path = path.clone();
                    move || files::prepare(&path).and_then(|()| files::lock(&path))
                });
                let lock = lock.await.map_err(|error| StoreError::File {
                    action: "open",
                    path: path.clone(),
                    source: std::io::Error::other(error),
                })??;
                let database = Self::sqlite(url, durability).await?;
                drop(lock);
                let wal = match durability {
                    Durability::Process => Some(Wal::open(&path)?),
                    Durability::Power => None,
                };
                Ok(Self { wal, reserve: Some(Reserve::for_database(&path)), ..database })
            }
            Location::Postgres(_) => Self::postgres(url).await,
        }
    }

    async fn in_memory(url: &StoreUrl) -> Result<Self, StoreError> {
        let pool = connect_pool(sqlite_pool(1, "PRAGMA foreign_keys = ON"), url).await?;
        migrate(&pool, url).await?;
        Ok(Self {
            backend: Backend::Sqlite,
            url: url.clone(),
            reader: pool.clone(),
            writer: pool,
            wal: None,
            reserve: None,
            checkpointer: Mutex::default(),
            journal: Mutex::default(),
        })
    }

    async fn sqlite(url: &StoreUrl, durability: Durability) -> Result<Self, StoreError> {
        let write = match durability {
            Durability::Process => {
                "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; \
                 PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY; \
                 PRAGMA journal_size_limit = 67108864; PRAGMA wal_autocheckpoint = 4096"
            }
            Durability::Power => {
                "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                 PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY; \
                 PRAGMA journal_size_limit = 67108864; PRAGMA wal_autocheckpoint = 4096"
            }
        };
        let read = "PRAGMA busy_timeout = 10000; PRAGMA query_only = ON; PRAGMA trusted_schema = OFF; \
                    PRAGMA temp_store = MEMORY";
        let writer = connect_pool(replace_if_in_transaction(sqlite_pool(1, write)), url).await?;
        enable_incremental_vacuum(&writer, url).await?;
        migrate(&writer, url).await?;
        let reader = connect_pool(sqlite_pool(SQLITE_READERS, read), url).await?;
        let checkpointer = Checkpointer::start(&url.options()?).await;
        let checkpointer =
            checkpointer.map_err(|source| StoreError::Open { url: url.to_string(), source })?;
        let checkpointer = Mutex::new(Some(checkpointer));
        Ok(Self {
            backend: Backend::Sqlite,
            url: url.clone(),
            writer,
            reader,
            wal: None,
            reserve: None,
            checkpointer,
            journal: Mutex::default(),
        })
    }

    async fn postgres(url: &StoreUrl) -> Result<Self, StoreError> {
        // Timeouts, as another keeper may have stopped in the middle of a transaction.
        let setup = "SET application_name = 'belljar'; SET lock_timeout = '10s'; SET statement_timeout = '60s'; \
                     SET idle_in_transaction_session_timeout = '30s'";
        let options =
            AnyPoolOptions::new().max_connections(POSTGRES_CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT);
        let address = url.options()?;
        // On a separate connection, which waits for as long as another keeper needs for the migration.
        let opened = AnyConnection::connect_with(&address).await;
        let mut connection = opened.map_err(|source| StoreError::Open { url: url.to_string(), source })?;
        schema::migrate(&mut connection, Backend::Postgres, &url.to_string()).await?;
        // An error on close has no consequence.
        drop(connection.close().await);
        let pool = connect_pool(with_setup(options, setup), url).await?;
        Ok(Self {
            backend: Backend::Postgres,
            url: url.clone(),
            reader: pool.clone(),
            writer: pool,
            wal: None,
            reserve: None,
            checkpointer: Mutex::default(),
            journal: Mutex::default(),
        })
    }

    /// Executes a statement that changes something, and returns the number of affected rows.
    pub(crate) async fn write(&self, statement: Statement<'_>) -> Result<u64, sqlx::Error> {
        let affected = statement.execute(&self.writer).await?.rows_affected();
        self.note_change();
        Ok(affected)
    }

    /// Reads all rows.
    pub(crate) async fn read(
        &self,
        action: &'static str,
        statement: Statement<'_>,
    ) -> Result<Vec<AnyRow>, StoreError> {
        statement.fetch_all(&self.reader).await.map_err(failed(action))
    }

    /// Reads one row, if there is one.
    pub(crate) async fn read_one(
        &self,
        action: &'static str,
        statement: Statement<'_>,
    ) -> Result<Option<AnyRow>, StoreError> {
        statement.fetch_optional(&self.reader).await.map_err(failed(action))
    }

    /// Commits a transaction.
    pub(crate) async fn commit(&self, transaction: Transaction<'static, Any>) -> Result<(), sqlx::Error> {
        transaction.commit().await?;
        self.note_change();
        Ok(())
    }

    fn note_change(&self) {
        if let Some(checkpointer) = &*self.checkpointer() {
            checkpointer.note_change();
        }
    }

    fn checkpointer(&self) -> MutexGuard<'_, Option<Checkpointer>> {
        // A panic while it was held left it consistent.
        self.checkpointer.lock()
    }

    /// Begins a transaction for writing.
    pub(crate) async fn begin(&self, action: &'static str) -> Result<Transaction<'static, Any>, StoreError> {
        let transaction = match self.backend {
            // Otherwise it would begin as a read transaction, and the upgrade to a write lock could fail later.
            Backend::Sqlite => self.writer.begin_with("BEGIN IMMEDIATE").await,
            Backend::Postgres => self.writer.begin().await,
        };
        transaction.map_err(failed(action))
    }

    /// Waits until all acknowledged writes so far survive a power failure.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        match &self.wal {
            Some(wal) => wal.sync().await,
            None => Ok(()),
        }
    }

    /// Returns the disk space that is reserved for a full disk.
    pub(crate) fn reserve(&self) -> Option<&Reserve> {
        self.reserve.as_ref()
    }

    /// Returns free pages of deleted rows to the disk, a bounded number per call.
    pub(crate) async fn shrink(&self) -> Result<(), sqlx::Error> {
        if self.backend == Backend::Sqlite {
            sqlx::raw_sql("PRAGMA incremental_vacuum(4096)").execute(&self.writer).await?;
            self.note_change();
        }
        Ok(())
    }

    /// Writes a consistent snapshot into another SQLite file.
    pub(crate) async fn copy_into(&self, path: &str) -> Result<(), sqlx::Error> {
        // On a separate connection: it may take long, and neither readers nor the writer wait for it.
        let address = self.url.options().map_err(|error| sqlx::Error::Configuration(error.into()))?;
        if *self.url.location() == Location::Memory {
            return sqlx::query("VACUUM INTO $1").bind(path).execute(&self.writer).await.map(|_| ());
        }
        copy_into(&address, path).await
    }

    pub(crate) async fn close(&self) {
        let checkpointer = self.checkpointer().take();
        if let Some(checkpointer) = checkpointer {
            checkpointer.stop().await;
        }
        self.reader.close().await;
        self.writer.close().await;
    }
}

/// Copies the SQLite database at an address into a file that is missing or empty, as a consistent snapshot.
pub(crate) async fn copy_into(address: &AnyConnectOptions, path: &str) -> Result<(), sqlx::Error> {
    let mut connection = AnyConnection::connect_with(address).await?;
    let result = sqlx::query("VACUUM INTO $1").bind(path).execute(&mut connection).await;
    connection.close().await?;
    result.map(|_| ())
}

fn sqlite_pool(connections: u32, setup: &'static str) -> AnyPoolOptions {
    let options = AnyPoolOptions::new()
        .max_connections(connections)
        .min_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // A file stays reachable. Connections stay open, so that a lack of descriptors cannot prevent opening them later.
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false);
    with_setup(options, setup)
}

/// Replaces an idle SQLite connection whose driver still assumes an open transaction.
///
/// When the disk is full, SQLite rolls a transaction back by itself, unknown to the driver: the driver's own rollback fails, and
/// the connection would stay in the old transaction forever.
fn replace_if_in_transaction(options: AnyPoolOptions) -> AnyPoolOptions {
    options.before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
}

/// Executes the setup statements on every new connection.
fn with_setup(options: AnyPoolOptions, setup: &'static str) -> AnyPoolOptions {
    options.after_connect(move |connection, _| {
        Box::pin(async move { sqlx::raw_sql(setup).execute(connection).await.map(|_| ()) })
    })
}

async fn connect_pool(options: AnyPoolOptions, url: &StoreUrl) -> Result<AnyPool, StoreError> {
    let address: AnyConnectOptions = url.options()?;
    let address = sqlx::ConnectOptions::disable_statement_logging(address);
    options.connect_with(address).await.map_err(|source| StoreError::Open { url: url.to_string(), source })
}

/// Enables incremental vacuum, so that the file can shrink while it is in use. A file created without it is rewritten once; if
/// there is no room for that, at a later start.
async fn enable_incremental_vacuum(pool: &AnyPool, url: &StoreUrl) -> Result<(), StoreError> {
    const INCREMENTAL: i64 = 2;
    let open = |source| StoreError::Open { url: url.to_string(), source };
    let row = sqlx::query("SELECT auto_vacuum AS mode FROM pragma_auto_vacuum");
    let row = row.fetch_one(pool).await.map_err(open)?;
    let row = Reader { table: "sqlite_schema", row: &row };
    if row.number("mode")? == INCREMENTAL {
        return Ok(());
    }
    let set = sqlx::raw_sql("PRAGMA auto_vacuum = INCREMENTAL; VACUUM").execute(pool).await;
    if let Err(error) = set {
        tracing::warn!(%error, "cannot enable incremental vacuum: the store's file does not shrink until a later start");
    }
    Ok(())
}

async fn migrate(pool: &AnyPool, url: &StoreUrl) -> Result<(), StoreError> {
    let acquired = pool.acquire().await;
    let mut connection = acquired.map_err(|source| StoreError::Open { url: url.to_string(), source })?;
    schema::migrate(&mut connection, Backend::Sqlite, &url.to_string()).await
}
