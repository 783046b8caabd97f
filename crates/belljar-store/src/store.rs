//! Entry point of the store.

use std::path::Path;
use std::sync::Arc;

use crate::approvals::Approvals;
use crate::database::Database;
use crate::durability::Durability;
use crate::error::{StoreError, failed};
use crate::idempotency::Idempotency;
use crate::keys::Keys;
use crate::meta::Meta;
use crate::name_lock::{self, NameLock};
use crate::ports::Ports;
use crate::registry_logins::RegistryLogins;
use crate::reserve::Reserve;
use crate::sandboxes::Sandboxes;
use crate::seal::{self, KeyFile, Sealer};
use crate::secrets::Secrets;
use crate::sessions::Sessions;
use crate::templates::Templates;
use crate::tools::Tools;
use crate::url::StoreUrl;
use crate::volumes::Volumes;

/// Persistent state of a server, in SQLite or PostgreSQL. Clones share the same store.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) database: Arc<Database>,
    sealer: Arc<Sealer>,
}

impl Store {
    /// Opens a store, creates it if necessary, and migrates its tables. Ordinary rows survive a crash of the process; keys,
    /// settings and the audit log a power failure. Values that may be secret are sealed with the key in the file, which is
    /// created if neither it nor the store exists.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Open`], [`StoreError::File`], [`StoreError::SchemaTooNew`] or [`StoreError::Migrate`];
    /// [`StoreError::KeyMissing`], [`StoreError::KeyWrong`] or [`StoreError::KeyRefused`].
    pub async fn open(url: &StoreUrl, key: &KeyFile) -> Result<Self, StoreError> {
        Self::open_with(url, Durability::Process, key).await
    }

    /// Opens a store with the given durability of ordinary rows.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::open`].
    pub async fn open_with(
        url: &StoreUrl,
        durability: Durability,
        key: &KeyFile,
    ) -> Result<Self, StoreError> {
        let database = Database::open(url, durability).await?;
        match seal::establish(&database, key).await {
            Ok(sealer) => Ok(Self { database: Arc::new(database), sealer: Arc::new(sealer) }),
            Err(error) => {
                database.close().await;
                Err(error)
            }
        }
    }

    /// Opens a store in memory, for tests.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Open`] or [`StoreError::Migrate`].
    pub async fn in_memory() -> Result<Self, StoreError> {
        let database = Database::open(&StoreUrl::memory(), Durability::Process).await?;
        let sealer = seal::establish_in_memory(&database).await?;
        Ok(Self { database: Arc::new(database), sealer: Arc::new(sealer) })
    }

    /// Returns the address.
    pub fn url(&self) -> &StoreUrl {
        &self.database.url
    }

    /// Returns the table of sandboxes.
    pub fn sandboxes(&self) -> Sandboxes<'_> {
        Sandboxes { database: &self.database, sealer: &self.sealer }
    }

    /// Returns the table of API keys.
    pub fn keys(&self) -> Keys<'_> {
        Keys { database: &self.database }
    }

    /// Returns the table of templates.
    pub fn templates(&self) -> Templates<'_> {
        Templates { database: &self.database, sealer: &self.sealer }
    }

    /// Returns the table of volumes.
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes { database: &self.database }
    }

    /// Returns the table of idempotent requests.
    pub fn idempotency(&self) -> Idempotency<'_> {
        Idempotency { database: &self.database, sealer: &self.sealer }
    }

    /// Returns the table of secrets of tenants.
    pub fn secrets(&self) -> Secrets<'_> {
        Secrets { database: &self.database, sealer: &self.sealer }
    }

    /// Returns the table of accounts of tenants at registries.
    pub fn registry_logins(&self) -> RegistryLogins<'_> {
        RegistryLogins { database: &self.database, sealer: &self.sealer }
    }

    /// Returns the table of tools of tenants.
    pub fn tools(&self) -> Tools<'_> {
        Tools { database: &self.database, sealer: &self.sealer }
    }

    /// Returns the table of approvals of calls.
    pub fn approvals(&self) -> Approvals<'_> {
        Approvals { database: &self.database, sealer: &self.sealer }
    }

    /// Returns the table of sessions of browsers.
    pub fn sessions(&self) -> Sessions<'_> {
        Sessions { database: &self.database }
    }

    /// Returns the table of published ports.
    pub fn ports(&self) -> Ports<'_> {
        Ports { database: &self.database }
    }

    /// Returns the table of settings.
    pub fn meta(&self) -> Meta<'_> {
        Meta { database: &self.database }
    }

    /// Returns the server's secret: 32 random bytes, shared by all servers of the store.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Meta::server_secret`].
    pub async fn server_secret(&self) -> Result<[u8; 32], StoreError> {
        self.meta().server_secret().await
    }

    /// Locks a keeper's name, so that no other server that shares the store can use it. Does nothing for SQLite, which is not
    /// shared.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::KeeperTaken`] if another server still has it after some seconds, or fails if the store cannot be
    /// read.
    pub async fn lock_name(&self, keeper: &str) -> Result<NameLock, StoreError> {
        name_lock::lock(&self.database, keeper).await
    }

    /// Reports whether the space reserved for a full disk has been released: then only records that end something may be
    /// written. Always false for PostgreSQL.
    pub fn is_reserve_released(&self) -> bool {
        self.database.reserve().is_some_and(Reserve::is_released)
    }

    /// Releases the space reserved for a full disk, and returns whether there was some.
    pub async fn release_reserve(&self) -> bool {
        self.with_reserve(Reserve::release).await
    }

    /// Reserves space for a full disk again, if there is enough.
    pub async fn restore_reserve(&self) {
        let restored = self.with_reserve(|reserve| {
            reserve.restore();
            true
        });
        restored.await;
    }

    async fn with_reserve(&self, act: impl FnOnce(&Reserve) -> bool + Send + 'static) -> bool {
        let database = Arc::clone(&self.database);
        let done = tokio::task::spawn_blocking(move || database.reserve().is_some_and(act));
        done.await.unwrap_or_default()
    }

    /// Returns free pages of deleted records to the disk, a bounded number per call.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be written.
    pub async fn shrink(&self) -> Result<(), StoreError> {
        self.database.shrink().await.map_err(failed("shrink the store"))
    }

    /// Checks that the database answers.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.database.read_one("reach the store", sqlx::query("SELECT 1 AS one")).await.map(|_| ())
    }

    /// Copies a SQLite store that is in use into a new file (0600) as a consistent snapshot. The copy holds the server's secret
    /// and the hashes of keys.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::File`], also if the file already exists; [`StoreError::Full`]; [`StoreError::Elsewhere`] for
    /// PostgreSQL, where `pg_dump` does it.
    pub async fn backup(&self, to: &Path) -> Result<(), StoreError> {
        crate::backup::backup(&self.database, to).await
    }

    /// Closes all connections, once operations in flight are done. All clones are unusable afterwards.
    pub async fn close(&self) {
        self.database.close().await;
    }
}
