//! The only task that appends records: all that are pending go in one transaction.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Any, Transaction};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::error::AuditError;
use super::mirror::{Mirror, MirrorOptions, MirrorState};
use super::record::{AuditRecord, NewRecord};
use super::table::{self, StoredHead};
use crate::database::{Backend, Database};
use crate::durability::Durability;
use crate::error::failed;

/// Maximum number of records in one transaction.
const MAX_GROUP: usize = 256;

/// Interval between attempts to catch up a mirror file that is behind, if no record comes.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

type Reply = oneshot::Sender<Result<i64, AuditError>>;

/// Request to the task.
#[derive(Debug)]
pub(crate) enum Message {
    Append { record: Box<NewRecord>, reply: Reply },
    Flush { reply: oneshot::Sender<MirrorState> },
    Close { reply: oneshot::Sender<()> },
}

pub(crate) struct Writer {
    database: Arc<Database>,
    secret: [u8; 32],
    durability: Durability,
    mirror: Mirror,
    /// Head that this task wrote last.
    last: Option<StoredHead>,
}

/// Request that ends a group.
enum GroupEnd {
    Continue,
    Flush(oneshot::Sender<MirrorState>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    pub(crate) async fn new(
        database: Arc<Database>,
        secret: [u8; 32],
        durability: Durability,
        options: Option<MirrorOptions>,
    ) -> Result<(Self, watch::Receiver<MirrorState>), AuditError> {
        let (mirror, state) = Mirror::open(Arc::clone(&database), options).await?;
        Ok((Self { database, secret, durability, mirror, last: None }, state))
    }

    /// Runs until the last sender is dropped.
    pub(crate) async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        loop {
            let first = if self.mirror.is_behind() {
                match timeout(RETRY_INTERVAL, messages.recv()).await {
                    Ok(first) => first,
                    Err(_) => {
                        self.mirror.catch_up().await;
                        continue;
                    }
                }
            } else {
                messages.recv().await
            };
            let Some(first) = first else { return };
            let (group, end) = gather(first, &mut messages);
            self.write(group).await;
            match end {
                GroupEnd::Continue => {}
                // The receiver of the reply may be gone.
                GroupEnd::Flush(reply) => {
                    self.mirror.catch_up().await;
                    drop(reply.send(self.mirror.state()));
                }
                GroupEnd::Close(reply) => {
                    messages.close();
                    while let Some(message) = messages.recv().await {
                        let (group, _) = gather(message, &mut messages);
                        self.write(group).await;
                    }
                    drop(self);
                    let _ = reply.send(());
                    return;
                }
            }
        }
    }

    async fn write(&mut self, group: Vec<(Box<NewRecord>, Reply)>) {
        if group.is_empty() {
            return;
        }
        let (records, replies): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        match self.commit(&records).await {
            Ok(written) => {
                for ((record, _), reply) in written.iter().zip(replies) {
                    // A caller that stopped waiting has dropped the receiver.
                    drop(reply.send(Ok(record.seq)));
                }
                self.mirror.add(written.into_iter().map(|(record, _)| record).collect()).await;
            }
            Err(error) => {
                tracing::error!(records = records.len(), %error, "audit records were not kept");
                for reply in replies {
                    drop(reply.send(Err(error.clone())));
                }
            }
        }
    }

    /// Writes records and the head atomically.
    async fn commit(&mut self, records: &[Box<NewRecord>]) -> Result<Vec<(AuditRecord, String)>, AuditError> {
        let written = match self.add_one(records).await? {
            Some(written) => written,
            None => self.add_all(records).await?,
        };
        // After a failure the head is unknown and is read again.
        self.last = written.last().map(|(record, _)| {
            let head = record.head();
            StoredHead { head, mac: head.mac(&self.secret) }
        });
        if self.durability == Durability::Power {
            self.database.sync().await?;
        }
        Ok(written)
    }

    /// Appends a single record after the head that this task wrote last: one statement instead of five. Writes nothing if there
    /// is more than one record, or if another keeper has written meanwhile.
    async fn add_one(
        &mut self,
        records: &[Box<NewRecord>],
    ) -> Result<Option<Vec<(AuditRecord, String)>>, AuditError> {
        let (Backend::Sqlite, [record]) = (self.database.backend, records) else { return Ok(None) };
        let Some(last) = self.last.take() else { return Ok(None) };
        let written = AuditRecord::after(last.head, record);
        let mac = written.0.head().mac(&self.secret);
        let added = table::add_one(&self.database, &last, &written, mac).await;
        Ok(added.map_err(failed("write an audit record"))?.then(|| vec![written]))
    }

    async fn add_all(&self, records: &[Box<NewRecord>]) -> Result<Vec<(AuditRecord, String)>, AuditError> {
        let mut transaction = self.database.begin("write audit records").await?;
        let written = match self.add(&mut transaction, records).await {
            Ok(written) => written,
            Err(error) => {
                // Whatever the rollback returns, the transaction is not committed.
                drop(transaction.rollback().await);
                return Err(error);
            }
        };
        self.database.commit(transaction).await.map_err(failed("write audit records"))?;
        Ok(written)
    }

    async fn add(
        &self,
        transaction: &mut Transaction<'static, Any>,
        records: &[Box<NewRecord>],
    ) -> Result<Vec<(AuditRecord, String)>, AuditError> {
        let stored = table::lock_head(&self.database, transaction).await?;
        let stored = match stored {
            Some(stored) if stored.head.is_authentic(&self.secret, &stored.mac) => stored,
            // A forged head must not be confirmed by writing a new one over it.
            other => return Err(AuditError::HeadForged { seq: other.map_or(0, |stored| stored.head.seq) }),
        };
        let mut head = stored.head;
        let mut written = Vec::with_capacity(records.len());
        for record in records {
            let (record, body) = AuditRecord::after(head, record);
            head = record.head();
            written.push((record, body));
        }
        table::add(transaction, &written, &self.secret).await?;
        Ok(written)
    }
}

/// Takes the pending records, up to a request that has to come after them.
fn gather(
    first: Message,
    messages: &mut mpsc::Receiver<Message>,
) -> (Vec<(Box<NewRecord>, Reply)>, GroupEnd) {
    let mut group = Vec::new();
    let mut next = Some(first);
    loop {
        match next {
            Some(Message::Append { record, reply }) => group.push((record, reply)),
            Some(Message::Flush { reply }) => return (group, GroupEnd::Flush(reply)),
            Some(Message::Close { reply }) => return (group, GroupEnd::Close(reply)),
            None => return (group, GroupEnd::Continue),
        }
        next = if group.len() < MAX_GROUP { messages.try_recv().ok() } else { None };
    }
}
