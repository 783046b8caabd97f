//! The store as a whole.

use std::path::Path;
use std::sync::Arc;

use crate::database::Database;
use crate::durability::Durability;
use crate::error::{StoreError, failed};
use crate::held_name::{self, HeldName};
use crate::idempotency::Idempotency;
use crate::keys::Keys;
use crate::meta::Meta;
use crate::ports::Ports;
use crate::reserve::Reserve;
use crate::sandboxes::Sandboxes;
use crate::seal::{self, KeyFile, Sealer};
use crate::templates::Templates;
use crate::url::StoreUrl;

/// What must outlive the server, in SQLite or PostgreSQL. A clone is the same store.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) database: Arc<Database>,
    sealer: Arc<Sealer>,
}

impl Store {
    /// Opens a store, makes it if there is none, and brings its tables up to date. Ordinary rows survive the death of the
    /// process; keys, settings and the audit trail a loss of power. What may be secret is sealed with the key in the file, which
    /// is made if neither it nor the store is there.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`], [`StoreError::File`], [`StoreError::SchemaTooNew`], [`StoreError::Migrate`];
    /// [`StoreError::KeyMissing`], [`StoreError::KeyWrong`], [`StoreError::KeyRefused`].
    pub async fn open(url: &StoreUrl, key: &KeyFile) -> Result<Self, StoreError> {
        Self::open_with(url, Durability::Process, key).await
    }

    /// Opens a store, and says what its ordinary rows survive.
    ///
    /// # Errors
    ///
    /// Those of [`Store::open`].
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

    /// A store that ends with this process, for tests.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] and [`StoreError::Migrate`].
    pub async fn in_memory() -> Result<Self, StoreError> {
        let database = Database::open(&StoreUrl::memory(), Durability::Process).await?;
        let sealer = seal::establish_in_memory(&database).await?;
        Ok(Self { database: Arc::new(database), sealer: Arc::new(sealer) })
    }

    /// Where it is.
    pub fn url(&self) -> &StoreUrl {
        &self.database.url
    }

    /// The records of sandboxes.
    pub fn sandboxes(&self) -> Sandboxes<'_> {
        Sandboxes { database: &self.database, sealer: &self.sealer }
    }

    /// The keys with which callers prove who they are.
    pub fn keys(&self) -> Keys<'_> {
        Keys { database: &self.database }
    }

    /// What sandboxes are made from.
    pub fn templates(&self) -> Templates<'_> {
        Templates { database: &self.database, sealer: &self.sealer }
    }

    /// Requests that callers may repeat.
    pub fn idempotency(&self) -> Idempotency<'_> {
        Idempotency { database: &self.database, sealer: &self.sealer }
    }

    /// Ports of sandboxes that may be reached from outside.
    pub fn ports(&self) -> Ports<'_> {
        Ports { database: &self.database }
    }

    /// Small things that are there once.
    pub fn meta(&self) -> Meta<'_> {
        Meta { database: &self.database }
    }

    /// 32 random bytes, made once for all who share the store.
    ///
    /// # Errors
    ///
    /// Those of [`Meta::server_secret`].
    pub async fn server_secret(&self) -> Result<[u8; 32], StoreError> {
        self.meta().server_secret().await
    }

    /// Takes a keeper's name, so that no other server that shares the store has it too. In SQLite nobody shares.
    ///
    /// # Errors
    ///
    /// [`StoreError::KeeperTaken`] when another server still has it after some seconds, and those of reading.
    pub async fn hold_name(&self, keeper: &str) -> Result<HeldName, StoreError> {
        held_name::hold(&self.database, keeper).await
    }

    /// Whether the room that was set aside for a full disk has been given away: only what ends something is to be written then. Of
    /// PostgreSQL's disk nothing is.
    pub fn is_reserve_out(&self) -> bool {
        self.database.reserve().is_some_and(Reserve::is_out)
    }

    /// Gives away what is set aside for a full disk, and says whether there was something.
    pub async fn release_reserve(&self) -> bool {
        self.with_reserve(Reserve::release).await
    }

    /// Sets room aside again, if there is some.
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

    /// Gives back to the disk what records that are gone have left free, a part of it at a time.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub async fn shrink(&self) -> Result<(), StoreError> {
        self.database.shrink().await.map_err(failed("shrink the store"))
    }

    /// Asks the database for an answer, which shows that it is there.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.database.read_one("reach the store", sqlx::query("SELECT 1 AS one")).await.map(|_| ())
    }

    /// Copies a SQLite store into a new file (0600), as it is at one instant, while it is in use. The copy holds the server's
    /// secret and the hashes of keys.
    ///
    /// # Errors
    ///
    /// [`StoreError::File`], also if the file is there already; [`StoreError::Full`]; [`StoreError::Elsewhere`] with
    /// PostgreSQL, where `pg_dump` does it.
    pub async fn backup(&self, to: &Path) -> Result<(), StoreError> {
        crate::backup::backup(&self.database, to).await
    }

    /// Ends all connections, once what is under way has been done. Nothing can be asked afterwards, of any clone.
    pub async fn close(&self) {
        self.database.close().await;
    }
}
