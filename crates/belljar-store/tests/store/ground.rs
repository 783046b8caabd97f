//! A database of its own for each case.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belljar_store::{Store, StoreUrl};

use sqlx::{AnyConnection, Connection as _, Executor as _};

use crate::postgres::Server;

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// An empty place for stores. It goes away at the end, also of a case that fails.
pub(crate) struct Ground {
    pub(crate) backend: Backend,
    pub(crate) dir: tempfile::TempDir,
    url: OnceLock<String>,
}

impl Ground {
    /// Says why, if the machine lacks what it takes.
    pub(crate) fn new(backend: Backend) -> Result<Self, String> {
        if backend == Backend::Postgres {
            server()?;
        }
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { backend, dir, url: OnceLock::new() })
    }

    /// The address as text.
    pub(crate) async fn address(&self) -> String {
        if let Some(url) = self.url.get() {
            return url.clone();
        }
        let url = match self.backend {
            Backend::Sqlite => format!("sqlite:{}", self.file().display()),
            Backend::Postgres => {
                static COUNT: AtomicU32 = AtomicU32::new(0);
                let name = format!("case_{}", COUNT.fetch_add(1, Ordering::SeqCst));
                let server = server().unwrap();
                let mut connection = connect(&server.address("postgres")).await;
                let text = format!("CREATE DATABASE {name}");
                connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(text))).await.unwrap();
                server.address(&name)
            }
        };
        self.url.get_or_init(|| url).clone()
    }

    pub(crate) async fn url(&self) -> StoreUrl {
        self.address().await.parse().unwrap()
    }

    /// Opens the store, as often as it is asked for.
    pub(crate) async fn store(&self) -> Store {
        Store::open(&self.url().await).await.unwrap()
    }

    /// The file of SQLite.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("home/belljar.db")
    }

    /// Bytes as they are written in a statement.
    pub(crate) fn bytes(&self, hex: &str) -> String {
        match self.backend {
            Backend::Sqlite => format!("X'{hex}'"),
            Backend::Postgres => format!("'\\x{hex}'::bytea"),
        }
    }

    /// Carries out statements behind the store's back.
    pub(crate) async fn meddle(&self, text: &str) {
        let mut connection = connect(&self.address().await).await;
        connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(text.to_owned()))).await.unwrap();
        connection.close().await.unwrap();
    }
}

async fn connect(url: &str) -> AnyConnection {
    sqlx::any::install_default_drivers();
    let url = url.replacen("sqlite:/", "sqlite:///", 1);
    let end = Instant::now() + PATIENCE;
    loop {
        match AnyConnection::connect(&url).await {
            Ok(connection) => return connection,
            // A server that has just been started listens some time before it answers (cannot_connect_now).
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some("57P03") && Instant::now() < end =>
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{url}: {error:?}"),
        }
    }
}

/// One server for this process.
fn server() -> Result<&'static Server, String> {
    static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
    SERVER.get_or_init(Server::start).as_ref().map_err(Clone::clone)
}
