//! The audit trail as callers see it.

use std::sync::Arc;

use futures::Stream;
use tokio::sync::{mpsc, oneshot, watch};

use super::chain::Verification;
use super::error::AuditError;
use super::filter::AuditFilter;
use super::head::Head;
use super::mirror::{MirrorOptions, MirrorState};
use super::record::{AuditRecord, NewRecord};
use super::table;
use super::writer::{Message, Writer};
use crate::database::Database;
use crate::durability::Durability;
use crate::error::StoreError;
use crate::store::Store;

/// Records that may wait to be written. Beyond, callers wait.
const QUEUE: usize = 4096;

/// Records that an export reads at once.
const EXPORT_PAGE: u32 = 500;

/// How the audit is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditOptions {
    /// The file that repeats the records, if there is to be one.
    pub mirror: Option<MirrorOptions>,
    /// What vouches for the end of the chain. Without it, it is the store's own secret; one that is kept elsewhere
    /// also holds against somebody who can write the whole database.
    pub secret: Option<[u8; 32]>,
    /// What an acknowledged record survives.
    pub durability: Durability,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self { mirror: None, secret: None, durability: Durability::Power }
    }
}

/// The audit trail. A clone is the same. It ends when the last clone is dropped, after everything that was asked for is
/// written.
#[derive(Debug, Clone)]
pub struct AuditLog {
    database: Arc<Database>,
    secret: [u8; 32],
    queue: mpsc::Sender<Message>,
    mirror: watch::Receiver<MirrorState>,
}

impl AuditLog {
    /// Opens the audit trail of a store, begins it if there is none, and brings the file beside it up to date.
    ///
    /// # Errors
    ///
    /// [`AuditError::Store`] and [`AuditError::File`].
    pub async fn open(store: &Store, options: AuditOptions) -> Result<Self, AuditError> {
        let database = Arc::clone(&store.database);
        let secret = match options.secret {
            Some(secret) => secret,
            None => store.server_secret().await?,
        };
        table::begin_chain(&database, &secret).await?;
        let (queue, messages) = mpsc::channel(QUEUE);
        let (writer, mirror) =
            Writer::new(Arc::clone(&database), secret, options.durability, options.mirror).await?;
        tokio::spawn(writer.run(messages));
        Ok(Self { database, secret, queue, mirror })
    }

    /// Adds a record, and returns its number once it is kept. Many at once share the cost.
    ///
    /// A record is added even if the caller stops waiting. If the connection to the database breaks at the wrong instant, a
    /// record may have been kept although an error says otherwise, never the other way round.
    ///
    /// # Errors
    ///
    /// [`AuditError::Store`], [`AuditError::HeadForged`], [`AuditError::Closed`].
    pub async fn append(&self, record: NewRecord) -> Result<i64, AuditError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Append { record: Box::new(record), reply };
        self.queue.send(message).await.map_err(|_| AuditError::Closed)?;
        answer.await.map_err(|_| AuditError::Closed)?
    }

    /// The end of the chain.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub async fn head(&self) -> Result<Head, StoreError> {
        let (stored, _) = table::head_and_last(&self.database).await?;
        Ok(stored.map_or(Head::EMPTY, |stored| stored.head))
    }

    /// Records that fit, in order: the first ones after a record, or else the last ones of all.
    ///
    /// # Errors
    ///
    /// Those of reading; [`StoreError::Corrupt`] for a record that is not what was written.
    pub async fn tail(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let records = table::matching(&self.database, filter, after, limit).await?;
        records.into_iter().map(intact).collect()
    }

    /// Records `first` to `last` (to the end, if there is none) as JSON lines, without their ends. Memory use does not grow
    /// with their number.
    ///
    /// # Errors
    ///
    /// Each item may be one of those of [`AuditLog::tail`].
    pub fn export(
        &self,
        first: i64,
        last: Option<i64>,
    ) -> impl Stream<Item = Result<String, StoreError>> + Send + use<> {
        let database = Arc::clone(&self.database);
        let last = last.unwrap_or(i64::MAX);
        let state = (database, first, Vec::new().into_iter());
        futures::stream::try_unfold(state, move |(database, mut next, mut page)| async move {
            let mut record: Option<table::StoredRecord> = page.next();
            if record.is_none() && next <= last {
                page = table::range(&database, next, last, EXPORT_PAGE).await?.into_iter();
                record = page.next();
            }
            let Some(record) = record else { return Ok(None) };
            next = record.seq.saturating_add(1);
            let line = intact(record)?.to_line();
            Ok(Some((line, (database, next, page))))
        })
    }

    /// Verifies the records from one number on, up to the head. A head that was noted earlier must be on the chain.
    ///
    /// # Errors
    ///
    /// Those of reading. That the chain is broken is no error, but an answer.
    pub async fn verify(&self, from: i64, known: Option<Head>) -> Result<Verification, StoreError> {
        super::verify::verify(&self.database, &self.secret, from, known).await
    }

    /// How the file beside the database stands.
    pub fn mirror(&self) -> MirrorState {
        self.mirror.borrow().clone()
    }

    /// Waits until everything that was asked for before is written, in the file too if it can be.
    ///
    /// # Errors
    ///
    /// [`AuditError::Closed`].
    pub async fn flush(&self) -> Result<MirrorState, AuditError> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(Message::Flush { reply }).await.map_err(|_| AuditError::Closed)?;
        answer.await.map_err(|_| AuditError::Closed)
    }

    /// Writes what was asked for, and ends the log for all clones.
    pub async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.queue.send(Message::Close { reply }).await.is_ok() {
            // If it ends otherwise, it has ended too.
            drop(answer.await);
        }
    }
}

fn intact(record: table::StoredRecord) -> Result<AuditRecord, StoreError> {
    let seq = record.seq;
    record.check().map_err(|why| StoreError::Corrupt { what: format!("audit record {seq}"), why })
}
