//! Separate database for each case.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belljar_store::{KeyFile, Store, StoreUrl};

use sqlx::{AnyConnection, Connection as _, Executor as _};

use crate::postgres::Server;

/// Maximum time for a server to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        })
    }
}

/// Empty directory and database for stores, removed at the end, even if the case fails.
pub(crate) struct Fixture {
    pub(crate) backend: Backend,
    pub(crate) dir: tempfile::TempDir,
    keys: tempfile::TempDir,
    url: OnceLock<String>,
}

impl Fixture {
    /// Fails with the reason if the machine lacks something.
    pub(crate) fn new(backend: Backend) -> Result<Self, String> {
        if backend == Backend::Postgres {
            server()?;
        }
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let keys = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { backend, dir, keys, url: OnceLock::new() })
    }

    /// Returns the address as text.
    pub(crate) async fn address(&self) -> String {
        if let Some(url) = self.url.get() {
            return url.clone();
        }
        let url = match self.backend {
            Backend::Sqlite => format!("sqlite:{}", self.file().display()),
            Backend::Postgres => new_database("").await,
        };
        self.url.get_or_init(|| url).clone()
    }

    pub(crate) async fn url(&self) -> StoreUrl {
        self.address().await.parse().unwrap()
    }

    /// Opens the store; may be called repeatedly.
    pub(crate) async fn store(&self) -> Store {
        Store::open(&self.url().await, &self.key()).await.unwrap()
    }

    /// Returns the store's key file.
    pub(crate) fn key(&self) -> KeyFile {
        KeyFile::at(self.keys.path().join("store.key"))
    }

    /// Returns SQLite's file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("home/belljar.db")
    }

    /// Returns an SQL literal of bytes.
    pub(crate) fn bytes(&self, hex: &str) -> String {
        match self.backend {
            Backend::Sqlite => format!("X'{hex}'"),
            Backend::Postgres => format!("'\\x{hex}'::bytea"),
        }
    }

    /// Executes statements bypassing the store.
    pub(crate) async fn run_sql(&self, text: &str) {
        self.try_run_sql(text).await.unwrap();
    }

    pub(crate) async fn try_run_sql(&self, text: &str) -> Result<(), sqlx::Error> {
        run_sql_at(&self.address().await, text).await
    }

    /// Returns a copy of the database, which must not be open.
    pub(crate) async fn copy(&self) -> Self {
        let copy = Self::new(self.backend).unwrap();
        fs::copy(self.key().path(), copy.key().path()).unwrap();
        match self.backend {
            Backend::Sqlite => {
                fs::create_dir_all(copy.file().parent().unwrap()).unwrap();
                fs::copy(self.file(), copy.file()).unwrap();
            }
            Backend::Postgres => {
                let from = self.address().await;
                let from = from.split(['/', '?']).nth(3).unwrap();
                copy.url.set(new_database(&format!(" TEMPLATE {from}")).await).unwrap();
            }
        }
        copy
    }
}

pub(crate) async fn run_sql_at(address: &str, text: &str) -> Result<(), sqlx::Error> {
    let mut connection = connect(address).await;
    let result = connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(text.to_owned()))).await;
    connection.close().await?;
    result.map(|_| ())
}

/// Creates a database on the server, and returns its address.
async fn new_database(options: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("case_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
    let server = server().unwrap();
    let mut connection = connect(&server.address("postgres")).await;
    let text = format!("CREATE DATABASE {name}{options}");
    connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(text))).await.unwrap();
    server.address(&name)
}

async fn connect(url: &str) -> AnyConnection {
    sqlx::any::install_default_drivers();
    let url = url.replacen("sqlite:/", "sqlite:///", 1);
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match AnyConnection::connect(&url).await {
            Ok(connection) => return connection,
            // A server that is starting listens before it answers (cannot_connect_now).
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some("57P03") && Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{url}: {error:?}"),
        }
    }
}

/// Returns the server shared by the cases.
fn server() -> Result<&'static Server, String> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    SERVER.get_or_init(Server::shared).as_ref().map_err(Clone::clone)
}
