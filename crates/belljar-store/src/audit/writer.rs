//! The only task that writes records to the database: all that are pending go in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{Any, Transaction};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::error::AuditError;
use super::head::Head;
use super::journal_file::{Chained, JournalFile};
use super::mirror::{Mirror, MirrorOptions, MirrorState};
use super::record::{AuditRecord, NewRecord};
use super::table::{self, StoredHead};
use crate::database::Database;
use crate::durability::Durability;
use crate::error::failed;

/// Maximum number of records in one transaction.
const MAX_GROUP: usize = 256;

/// Maximum number of records in one statement without a transaction around it. Each number is a statement that stays prepared.
const MAX_APPENDED: usize = 16;

/// Number of journalled records that are stored without waiting for more.
const STORED_TOGETHER: usize = 64;

/// Time that journalled records wait for others, to be stored with them.
const STORE_DELAY: Duration = Duration::from_millis(20);

/// Interval between attempts to store records or to catch up a mirror file, if no record comes.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) type Reply = oneshot::Sender<Result<i64, AuditError>>;

/// Request to the task, or to the [journal](super::journal) in front of it.
#[derive(Debug)]
pub(crate) enum Message {
    Append {
        record: Box<NewRecord>,
        reply: Reply,
    },
    /// Stores records that the journal has.
    Journalled(Vec<Chained>),
    /// Stores all pending records, if requested so that they survive a power failure, and replies with the head.
    Store {
        durably: bool,
        reply: oneshot::Sender<Result<Head, AuditError>>,
    },
    Flush {
        reply: oneshot::Sender<MirrorState>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

pub(crate) struct Writer {
    database: Arc<Database>,
    secret: [u8; 32],
    durability: Durability,
    mirror: Mirror,
    /// Head that this task wrote last.
    last: Option<StoredHead>,
    /// Journalled records that are to be stored.
    pending: Vec<Chained>,
    /// When they are stored at the latest.
    due: Option<Instant>,
    /// Whether they could not be stored. The journal acknowledges no more records then.
    is_stalled: Arc<AtomicBool>,
    /// Locked while the task runs, if there is no space for a journal.
    unused_journal: Option<JournalFile>,
}

impl Writer {
    pub(crate) async fn new(
        database: Arc<Database>,
        secret: [u8; 32],
        durability: Durability,
        options: Option<MirrorOptions>,
    ) -> Result<(Self, watch::Receiver<MirrorState>), AuditError> {
        let (mirror, state) = Mirror::open(Arc::clone(&database), options).await?;
        let writer = Self {
            database,
            secret,
            durability,
            mirror,
            last: None,
            pending: Vec::new(),
            due: None,
            is_stalled: Arc::default(),
            unused_journal: None,
        };
        Ok((writer, state))
    }

    /// Stores records of an earlier process. Those that cannot be stored now stay pending.
    pub(crate) async fn recover(&mut self, records: Vec<Chained>) -> Result<Head, AuditError> {
        self.pending = records;
        self.store(true).await
    }

    /// Keeps the lock of a journal that is not used.
    pub(crate) fn keep_locked(&mut self, journal: JournalFile) {
        self.unused_journal = Some(journal);
    }

    /// Returns a flag that is set while journalled records cannot be stored.
    pub(crate) fn stalled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_stalled)
    }

    /// Runs until the last sender is dropped.
    pub(crate) async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut closed = None;
        let mut next = None;
        loop {
            let message = match next.take() {
                Some(message) => Some(message),
                None => self.receive(&mut messages).await,
            };
            let Some(message) = message else { break };
            // The receiver of a reply may be gone.
            match message {
                Message::Append { record, reply } => {
                    let (group, other) = gather(record, reply, &mut messages);
                    next = other;
                    self.write(group).await;
                }
                Message::Journalled(records) => {
                    self.pending.extend(records);
                    let due = *self.due.get_or_insert_with(|| Instant::now() + STORE_DELAY);
                    if self.pending.len() >= STORED_TOGETHER || due <= Instant::now() {
                        // A failure is logged, and retried.
                        drop(self.store_pending().await);
                    }
                }
                Message::Store { durably, reply } => drop(reply.send(self.store(durably).await)),
                Message::Flush { reply } => {
                    drop(self.store_pending().await);
                    self.mirror.catch_up().await;
                    drop(reply.send(self.mirror.state()));
                }
                Message::Close { reply } => {
                    messages.close();
                    closed = Some(reply);
                }
            }
        }
        drop(self.store_pending().await);
        drop(self);
        if let Some(reply) = closed {
            let _ = reply.send(());
        }
    }

    /// Receives the next message. Meanwhile stores pending records when they are due, and retries what failed.
    async fn receive(&mut self, messages: &mut mpsc::Receiver<Message>) -> Option<Message> {
        loop {
            let due = match self.due {
                Some(due) => due,
                None if self.mirror.is_behind() => Instant::now() + RETRY_INTERVAL,
                None => return messages.recv().await,
            };
            match timeout_at(due, messages.recv()).await {
                Ok(message) => return message,
                Err(_) => {
                    drop(self.store_pending().await);
                    if self.mirror.is_behind() {
                        self.mirror.catch_up().await;
                    }
                }
            }
        }
    }

    /// Writes records that no journal has, and acknowledges them.
    async fn write(&mut self, group: Vec<(Box<NewRecord>, Reply)>) {
        let (records, replies): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        match self.commit(&records).await {
            Ok(written) => {
                for ((record, _), reply) in written.iter().zip(replies) {
                    drop(reply.send(Ok(record.seq)));
                }
                self.mirror.add(written.into_iter().map(|(record, _)| record).collect()).await;
            }
            Err(error) => {
                tracing::error!(records = records.len(), %error, "audit records were not kept");
                refuse(replies, &error);
            }
        }
    }

    /// Writes records and the head atomically.
    async fn commit(&mut self, records: &[Box<NewRecord>]) -> Result<Vec<Chained>, AuditError> {
        self.store_pending().await?;
        let (transaction, head) = self.begin().await?;
        let written = chain(head, records);
        self.finish(transaction, &written).await?;
        if self.durability == Durability::Power {
            self.database.sync().await?;
        }
        Ok(written)
    }

    /// Stores all pending records, and returns the head.
    async fn store(&mut self, durably: bool) -> Result<Head, AuditError> {
        self.store_pending().await?;
        if durably {
            self.database.sync().await?;
        }
        match &self.last {
            Some(last) => Ok(last.head),
            None => self.begin().await.map(|(_, head)| head),
        }
    }

    async fn store_pending(&mut self) -> Result<(), AuditError> {
        while !self.pending.is_empty() {
            let group: Vec<_> = self.pending.drain(..self.pending.len().min(MAX_GROUP)).collect();
            if let Err(error) = self.insert(&group).await {
                self.pending.splice(0..0, group);
                self.due = Some(Instant::now() + RETRY_INTERVAL);
                if !self.is_stalled.swap(true, Ordering::SeqCst) {
                    let records = self.pending.len();
                    tracing::error!(records, %error, "audit records are in the journal only; no more are accepted");
                }
                return Err(error);
            }
            self.mirror.add(group.into_iter().map(|(record, _)| record).collect()).await;
        }
        self.due = None;
        if self.is_stalled.swap(false, Ordering::SeqCst) {
            tracing::warn!("the audit log is complete again");
        }
        Ok(())
    }

    /// Inserts journalled records.
    async fn insert(&mut self, records: &[Chained]) -> Result<(), AuditError> {
        if records.len() <= MAX_APPENDED
            && let Some(last) = self.last.take()
        {
            let appended = table::append(&self.database, last, records, &self.secret).await;
            self.last = appended.map_err(failed("write an audit record"))?;
            if self.last.is_some() {
                return Ok(());
            }
        }
        let (transaction, head) = self.begin().await?;
        if records.first().is_some_and(|(first, _)| first.before() != head) {
            return Err(AuditError::HeadForged { seq: head.seq });
        }
        self.finish(transaction, records).await
    }

    /// Begins a transaction, and returns the head, which is locked until it ends.
    async fn begin(&self) -> Result<(Transaction<'static, Any>, Head), AuditError> {
        let mut transaction = self.database.begin("write audit records").await?;
        match table::lock_head(&self.database, &mut transaction).await? {
            Some(stored) if stored.head.is_authentic(&self.secret, &stored.mac) => {
                Ok((transaction, stored.head))
            }
            // A forged head must not be confirmed by writing a new one over it.
            other => Err(AuditError::HeadForged { seq: other.map_or(0, |stored| stored.head.seq) }),
        }
    }

    /// Writes records that follow the head, and makes the last of them the head.
    async fn finish(
        &mut self,
        mut transaction: Transaction<'static, Any>,
        records: &[Chained],
    ) -> Result<(), AuditError> {
        // After a failure the head is unknown and is read again.
        self.last = None;
        table::add(&mut transaction, records, &self.secret).await?;
        self.database.commit(transaction).await.map_err(failed("write audit records"))?;
        self.last = records.last().map(|(record, _)| {
            let head = record.head();
            StoredHead { head, mac: head.mac(&self.secret) }
        });
        Ok(())
    }
}

/// Returns the records as they follow `head`.
pub(crate) fn chain(mut head: Head, records: &[Box<NewRecord>]) -> Vec<Chained> {
    let chained = records.iter().map(|record| {
        let chained = AuditRecord::after(head, record);
        head = chained.0.head();
        chained
    });
    chained.collect()
}

/// Takes the pending records, up to a request that has to come after them, which is returned too.
pub(crate) fn gather(
    record: Box<NewRecord>,
    reply: Reply,
    messages: &mut mpsc::Receiver<Message>,
) -> (Vec<(Box<NewRecord>, Reply)>, Option<Message>) {
    let mut group = vec![(record, reply)];
    while group.len() < MAX_GROUP {
        match messages.try_recv() {
            Ok(Message::Append { record, reply }) => group.push((record, reply)),
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}

/// Answers callers whose records were not kept.
pub(crate) fn refuse(replies: impl IntoIterator<Item = Reply>, error: &AuditError) {
    for reply in replies {
        drop(reply.send(Err(error.clone())));
    }
}
