//! The connections to the database, of whichever kind.
//!
//! A SQLite file has one connection that writes, so that writers queue in this process instead of meeting a lock, and a few
//! that read. PostgreSQL has one pool for both.

use std::time::Duration;

use sqlx::any::{AnyArguments, AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyPool, Connection as _, Transaction};

use crate::durability::Durability;
use crate::error::{StoreError, failed};
use crate::url::{Place, StoreUrl};
use crate::wal::Wal;
use crate::{place, schema};

/// Connections that read a SQLite file at once.
const SQLITE_READERS: u32 = 4;

/// Connections of one keeper to PostgreSQL.
const POSTGRES_CONNECTIONS: u32 = 16;

/// How long a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Which database it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
}

/// A statement with its values.
pub(crate) type Statement<'q> = Query<'q, Any, AnyArguments>;

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) backend: Backend,
    pub(crate) url: StoreUrl,
    writer: AnyPool,
    reader: AnyPool,
    /// There is one if rows are not synced anyway.
    wal: Option<Wal>,
}

impl Database {
    pub(crate) async fn open(url: &StoreUrl, durability: Durability) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        match url.place() {
            Place::Memory => Self::in_memory(url).await,
            Place::Sqlite(path) => {
                let path = path.clone();
                let lock = tokio::task::spawn_blocking({
                    let path = path.clone();
                    move || place::prepare(&path).and_then(|()| place::lock_directory(&path))
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
                Ok(Self { wal, ..database })
            }
            Place::Postgres(_) => Self::postgres(url).await,
        }
    }

    async fn in_memory(url: &StoreUrl) -> Result<Self, StoreError> {
        let pool = pool(sqlite_pool(1, "PRAGMA foreign_keys = ON"), url).await?;
        migrate(&pool, Backend::Sqlite, url).await?;
        Ok(Self { backend: Backend::Sqlite, url: url.clone(), reader: pool.clone(), writer: pool, wal: None })
    }

    async fn sqlite(url: &StoreUrl, durability: Durability) -> Result<Self, StoreError> {
        let write = match durability {
            Durability::Process => {
                "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; \
                 PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA journal_size_limit = 67108864"
            }
            Durability::Power => {
                "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                 PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA journal_size_limit = 67108864"
            }
        };
        let read = "PRAGMA busy_timeout = 10000; PRAGMA query_only = ON; PRAGMA trusted_schema = OFF";
        let writer = pool(sqlite_pool(1, write), url).await?;
        migrate(&writer, Backend::Sqlite, url).await?;
        let reader = pool(sqlite_pool(SQLITE_READERS, read), url).await?;
        Ok(Self { backend: Backend::Sqlite, url: url.clone(), writer, reader, wal: None })
    }

    async fn postgres(url: &StoreUrl) -> Result<Self, StoreError> {
        // Nobody waits for ever for a keeper that stopped in the middle of something.
        let setup = "SET application_name = 'belljar'; SET lock_timeout = '10s'; SET statement_timeout = '60s'; \
                     SET idle_in_transaction_session_timeout = '30s'";
        let options =
            AnyPoolOptions::new().max_connections(POSTGRES_CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT);
        let pool = pool(prepared(options, setup), url).await?;
        migrate(&pool, Backend::Postgres, url).await?;
        Ok(Self {
            backend: Backend::Postgres,
            url: url.clone(),
            reader: pool.clone(),
            writer: pool,
            wal: None,
        })
    }

    /// Carries out a statement that changes something, and says how many rows it touched.
    pub(crate) async fn write(&self, statement: Statement<'_>) -> Result<u64, sqlx::Error> {
        Ok(statement.execute(&self.writer).await?.rows_affected())
    }

    /// Reads every row.
    pub(crate) async fn read(
        &self,
        action: &'static str,
        statement: Statement<'_>,
    ) -> Result<Vec<AnyRow>, StoreError> {
        statement.fetch_all(&self.reader).await.map_err(failed(action))
    }

    /// Reads the row, if there is one.
    pub(crate) async fn read_one(
        &self,
        action: &'static str,
        statement: Statement<'_>,
    ) -> Result<Option<AnyRow>, StoreError> {
        statement.fetch_optional(&self.reader).await.map_err(failed(action))
    }

    /// Begins to write several rows, all or none.
    pub(crate) async fn begin(&self, action: &'static str) -> Result<Transaction<'static, Any>, StoreError> {
        let transaction = match self.backend {
            // Otherwise it would begin as a reader, and could fail to become a writer in the middle.
            Backend::Sqlite => self.writer.begin_with("BEGIN IMMEDIATE").await,
            Backend::Postgres => self.writer.begin().await,
        };
        transaction.map_err(failed(action))
    }

    /// Returns once what was acknowledged so far survives a loss of power.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        match &self.wal {
            Some(wal) => wal.sync().await,
            None => Ok(()),
        }
    }

    /// Writes what is there at one instant into another SQLite file.
    pub(crate) async fn copy_into(&self, path: &str) -> Result<(), sqlx::Error> {
        // A connection of its own: it may take long, and neither readers nor the writer wait for it.
        let address = self.url.options().map_err(|error| sqlx::Error::Configuration(error.into()))?;
        if *self.url.place() == Place::Memory {
            return sqlx::query("VACUUM INTO $1").bind(path).execute(&self.writer).await.map(|_| ());
        }
        let mut connection = sqlx::AnyConnection::connect_with(&address).await?;
        let result = sqlx::query("VACUUM INTO $1").bind(path).execute(&mut connection).await;
        connection.close().await?;
        result.map(|_| ())
    }

    pub(crate) async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }
}

fn sqlite_pool(connections: u32, setup: &'static str) -> AnyPoolOptions {
    let options = AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // A file does not go away. Opened once, no lack of descriptors stands in the way later.
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false);
    prepared(options, setup)
}

/// Has every new connection begin with these statements.
fn prepared(options: AnyPoolOptions, setup: &'static str) -> AnyPoolOptions {
    options.after_connect(move |connection, _| {
        Box::pin(async move { sqlx::raw_sql(setup).execute(connection).await.map(|_| ()) })
    })
}

async fn pool(options: AnyPoolOptions, url: &StoreUrl) -> Result<AnyPool, StoreError> {
    let address: AnyConnectOptions = url.options()?;
    let address = sqlx::ConnectOptions::disable_statement_logging(address);
    options.connect_with(address).await.map_err(|source| StoreError::Open { url: url.to_string(), source })
}

async fn migrate(pool: &AnyPool, backend: Backend, url: &StoreUrl) -> Result<(), StoreError> {
    let mut connection =
        pool.acquire().await.map_err(|source| StoreError::Open { url: url.to_string(), source })?;
    let result = schema::migrate(&mut connection, backend, &url.to_string()).await;
    if result.is_err() {
        // It may hold a lock that only its end gives back. That it ends badly adds nothing.
        drop(connection.detach().close().await);
    }
    result
}
