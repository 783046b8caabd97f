//! Exclusive lock on a keeper's name in a shared store. Two keepers with the same name would treat each other's sandboxes as
//! lost.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sqlx::{AnyConnection, Connection as _, Row as _};

use crate::database::{Backend, Database};
use crate::error::{StoreError, failed};

/// Operation, for errors.
const ACTION: &str = "lock the keeper's name";

/// Maximum time to wait for the name, which a server killed a moment ago may still hold.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Keepalives, so that a machine that vanished loses the name after a minute. Without them its connection would stay for hours.
const SETUP: &str = "SET application_name = 'belljar name'; SET tcp_keepalives_idle = 30; \
                     SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3";

/// Lock on a keeper's name, held until this is dropped or the database restarts.
#[derive(Debug)]
pub struct NameLock {
    /// The database holds the lock for as long as the connection is open.
    _connection: Option<AnyConnection>,
}

/// Locks the name. Fails with [`StoreError::KeeperTaken`] if another server holds it.
pub(crate) async fn lock(database: &Database, keeper: &str) -> Result<NameLock, StoreError> {
    if database.backend == Backend::Sqlite {
        return Ok(NameLock { _connection: None });
    }
    let address = database.url.options()?;
    let opened = AnyConnection::connect_with(&address).await;
    let mut connection =
        opened.map_err(|source| StoreError::Open { url: database.url.to_string(), source })?;
    sqlx::raw_sql(SETUP).execute(&mut connection).await.map_err(failed(ACTION))?;
    let deadline = tokio::time::Instant::now() + LOCK_TIMEOUT;
    loop {
        let query = sqlx::query("SELECT pg_try_advisory_lock($1) AS held").bind(lock_number(keeper));
        let row = query.fetch_one(&mut connection).await.map_err(failed(ACTION))?;
        if row.try_get("held").map_err(failed(ACTION))? {
            return Ok(NameLock { _connection: Some(connection) });
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(StoreError::KeeperTaken { keeper: keeper.to_owned() });
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Returns the number of the name's advisory lock.
fn lock_number(keeper: &str) -> i64 {
    let digest = Sha256::new().chain_update("belljar keeper ").chain_update(keeper).finalize();
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | i64::from(*byte))
}
