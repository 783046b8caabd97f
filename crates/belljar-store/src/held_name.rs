//! A keeper's name in a store that several share. Two keepers of one name would take each other's sandboxes for lost.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sqlx::{AnyConnection, Connection as _, Row as _};

use crate::database::{Backend, Database};
use crate::error::{StoreError, failed};

/// What is done, for errors.
const HOLD: &str = "hold the keeper's name";

/// How long a server that was killed a moment ago may still have the name.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is tried meanwhile.
const AGAIN: Duration = Duration::from_millis(100);

/// A machine that is gone without a word loses the name after a minute. Without this its connection would live for hours.
const SETUP: &str = "SET application_name = 'belljar name'; SET tcp_keepalives_idle = 30; \
                     SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3";

/// The name is this process's until this is dropped, or the database is started anew.
#[derive(Debug)]
pub struct HeldName {
    /// The database holds the name for as long as the connection is open.
    _connection: Option<AnyConnection>,
}

/// Takes the name, or says that somebody has it.
pub(crate) async fn hold(database: &Database, keeper: &str) -> Result<HeldName, StoreError> {
    if database.backend == Backend::Sqlite {
        return Ok(HeldName { _connection: None });
    }
    let address = database.url.options()?;
    let opened = AnyConnection::connect_with(&address).await;
    let mut connection =
        opened.map_err(|source| StoreError::Open { url: database.url.to_string(), source })?;
    sqlx::raw_sql(SETUP).execute(&mut connection).await.map_err(failed(HOLD))?;
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let asked = sqlx::query("SELECT pg_try_advisory_lock($1) AS held").bind(number(keeper));
        let row = asked.fetch_one(&mut connection).await.map_err(failed(HOLD))?;
        if row.try_get("held").map_err(failed(HOLD))? {
            return Ok(HeldName { _connection: Some(connection) });
        }
        if tokio::time::Instant::now() >= until {
            return Err(StoreError::KeeperTaken { keeper: keeper.to_owned() });
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The database knows its locks by number.
fn number(keeper: &str) -> i64 {
    let digest = Sha256::new().chain_update("belljar keeper ").chain_update(keeper).finalize();
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | i64::from(*byte))
}
