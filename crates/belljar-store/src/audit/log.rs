//! Public interface of the audit log.

use std::sync::Arc;

use futures::Stream;
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use super::archive::{Archive, ArchiveOptions};
use super::chain::Verification;
use super::error::AuditError;
use super::filter::AuditFilter;
use super::head::Head;
use super::journal::{self, Journal};
use super::journal_file::JournalFile;
use super::mirror::{MirrorOptions, MirrorState};
use super::record::{AuditRecord, NewRecord};
use super::table;
use super::verify::{check_base, check_head};
use super::writer::{Message, Writer};
use crate::database::Database;
use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::Store;
use crate::url::Location;

/// Maximum number of records waiting to be written. Callers beyond it wait.
const QUEUE_LEN: usize = 4096;

/// Records that an export reads at a time.
const EXPORT_PAGE: u32 = 500;

/// Options of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditOptions {
    /// File that mirrors the records, if any.
    pub mirror: Option<MirrorOptions>,
    /// Secret that authenticates the head of the chain. By default, a secret in the store; one that is kept elsewhere also
    /// protects against an attacker who can write the whole database.
    pub secret: Option<[u8; 32]>,
    /// Failures that an acknowledged record survives.
    pub durability: Durability,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self { mirror: None, secret: None, durability: Durability::Power }
    }
}

/// The audit log. Clones share it. It closes when the last clone is dropped, after all pending records are written.
#[derive(Debug, Clone)]
pub struct AuditLog {
    database: Arc<Database>,
    secret: [u8; 32],
    queue: mpsc::Sender<Message>,
    mirror: watch::Receiver<MirrorState>,
    /// Held while records are archived.
    archiving: Arc<Mutex<()>>,
}

impl AuditLog {
    /// Opens the audit log of a store, creates it if there is none, and brings the mirror file up to date. One process at a time
    /// can open the log of a SQLite file: its records are acknowledged from a journal beside the file.
    ///
    /// # Errors
    ///
    /// Returns [`AuditError::Store`], also if another process has the log of a SQLite file open, or [`AuditError::File`].
    pub async fn open(store: &Store, options: AuditOptions) -> Result<Self, AuditError> {
        let database = Arc::clone(&store.database);
        let secret = match options.secret {
            Some(secret) => secret,
            None => store.server_secret().await?,
        };
        table::begin_chain(&database, &secret).await?;
        let journal = open_journal(&database, secret, options.durability).await?;
        note_head(&database, &secret).await;
        let (writer, mirror) =
            Writer::new(Arc::clone(&database), secret, options.durability, options.mirror).await?;
        let queue = match journal {
            Some(journal) => Journal::start(journal, &database, writer, QUEUE_LEN).await?,
            None => {
                let (queue, messages) = mpsc::channel(QUEUE_LEN);
                tokio::spawn(writer.run(messages));
                queue
            }
        };
        Ok(Self { database, secret, queue, mirror, archiving: Arc::default() })
    }

    /// Appends a record, and returns its number once it is stored. Concurrent calls share one transaction.
    ///
    /// The record is appended even if the caller stops waiting. If the connection to the database breaks at the wrong moment, a
    /// record may have been stored although an error is returned, never the other way round.
    ///
    /// # Errors
    ///
    /// Returns [`AuditError::Store`], [`AuditError::HeadForged`] or [`AuditError::Closed`].
    pub async fn append(&self, record: NewRecord) -> Result<i64, AuditError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Append { record: Box::new(record), reply };
        self.queue.send(message).await.map_err(|_| AuditError::Closed)?;
        answer.await.map_err(|_| AuditError::Closed)?
    }

    /// Returns the head of the chain.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn head(&self) -> Result<Head, StoreError> {
        journal::settle(&self.database).await;
        Ok(table::read_ends(&self.database).await?.head())
    }

    /// Returns the base of the chain in the database: the last record that is archived, or [`Head::EMPTY`] if none is.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn base(&self) -> Result<Head, StoreError> {
        Ok(table::read_ends(&self.database).await?.base())
    }

    /// Begins to archive records, once no other caller does.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Busy`] if another server archives to the directory, or [`StoreError::File`].
    pub async fn archive(&self, options: ArchiveOptions) -> Result<Archive, StoreError> {
        let turn = Arc::clone(&self.archiving).lock_owned().await;
        journal::settle(&self.database).await;
        Archive::new(Arc::clone(&self.database), self.secret, options, turn).await
    }

    /// Returns matching records in order: the first ones after record `after`, or else the last ones. Archived records are not
    /// among them: see [`AuditLog::base`].
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Corrupt`] for a record that was changed, or fails if the store cannot be read.
    pub async fn tail(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        journal::settle(&self.database).await;
        let records = table::read_matching(&self.database, filter, after, limit).await?;
        records.into_iter().map(check_record).collect()
    }

    /// Streams records `first` to `last` (to the end, if there is none) as JSON lines, without their newlines. Begins after
    /// [`AuditLog::base`] if that is later. Memory use does not grow with their number.
    ///
    /// # Errors
    ///
    /// Each item may be an error of [`AuditLog::tail`], or [`StoreError::Archived`] if the next record was archived meanwhile.
    pub fn export(
        &self,
        first: i64,
        last: Option<i64>,
    ) -> impl Stream<Item = Result<String, StoreError>> + Send + use<> {
        let last = last.unwrap_or(i64::MAX);
        let state = (Arc::clone(&self.database), first, Vec::new().into_iter());
        futures::stream::try_unfold(state, move |(database, mut next, mut page)| async move {
            let mut record: Option<table::StoredRecord> = page.next();
            if record.is_none() && next <= last {
                journal::settle(&database).await;
                page = table::read_range(&database, next, last, EXPORT_PAGE).await?.into_iter();
                record = page.next();
                let base = table::read_ends(&database).await?.base().seq;
                if next > first && base >= next {
                    return Err(StoreError::Archived { seq: next, base });
                }
            }
            let Some(record) = record else { return Ok(None) };
            next = record.seq.saturating_add(1);
            let line = check_record(record)?.to_line();
            Ok(Some((line, (database, next, page))))
        })
    }

    /// Verifies the records from number `from` up to the head, or from the base if that is later. `known`, a head that was noted
    /// earlier, must be on the chain.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Archived`] if `known` is archived, or fails if the store cannot be read. A broken chain is not an error but a result.
    pub async fn verify(&self, from: i64, known: Option<Head>) -> Result<Verification, StoreError> {
        journal::settle(&self.database).await;
        super::verify::verify(&self.database, &self.secret, from, known).await
    }

    /// Returns the state of the mirror file.
    pub fn mirror(&self) -> MirrorState {
        self.mirror.borrow().clone()
    }

    /// Waits until all records appended before are stored, and mirrored if possible.
    ///
    /// # Errors
    ///
    /// Returns [`AuditError::Closed`].
    pub async fn flush(&self) -> Result<MirrorState, AuditError> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(Message::Flush { reply }).await.map_err(|_| AuditError::Closed)?;
        answer.await.map_err(|_| AuditError::Closed)
    }

    /// Writes all pending records, and closes the log for all clones.
    pub async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Message::Close { reply }).await.is_ok() {
            // If the writer ended without a reply, the log is closed as well.
            drop(answer.await);
            note_head(&self.database, &self.secret).await;
        }
    }
}

/// Notes the head of the chain, so that a later removal of the whole chain is noticed. A chain that is broken at its ends is reported.
async fn note_head(database: &Database, secret: &[u8; 32]) {
    let noting = async {
        let ends = table::read_ends(database).await?;
        match check_base(&ends, secret).and_then(|()| check_head(&ends, secret)) {
            Ok(()) => table::note_head(database, ends.head()).await?,
            Err(broken) => tracing::error!(
                %broken,
                "the audit log was tampered with; run `belljar audit verify`, and restore a backup"
            ),
        }
        Ok::<_, StoreError>(())
    };
    // The log itself works without the note, such as on a full disk.
    if let Err(error) = noting.await {
        tracing::warn!(%error, "cannot note the head of the audit log");
    }
}

/// Opens the journal of a SQLite file.
async fn open_journal(
    database: &Database,
    secret: [u8; 32],
    durability: Durability,
) -> Result<Option<JournalFile>, StoreError> {
    let Location::Sqlite(path) = database.url.location() else { return Ok(None) };
    let (path, owned) = (path.clone(), path.clone());
    let opened = tokio::task::spawn_blocking(move || JournalFile::open(&owned, secret, durability)).await;
    let failed = |error| StoreError::File { action: "open", path, source: std::io::Error::other(error) };
    opened.map_err(failed)?.map(Some)
}

fn check_record(record: table::StoredRecord) -> Result<AuditRecord, StoreError> {
    let seq = record.seq;
    record.check().map_err(|why| StoreError::Corrupt { what: format!("audit record {seq}"), why })
}
