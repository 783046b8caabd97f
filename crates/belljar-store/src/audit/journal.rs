//! Thread that acknowledges records once they are in the journal on disk. The [writer](super::writer) stores them afterwards.
//!
//! A record is in the journal until the database has it on disk. If records cannot be stored, no more are acknowledged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use super::error::AuditError;
use super::head::Head;
use super::journal_file::{Chained, JournalFile};
use super::record::NewRecord;
use super::table;
use super::writer::{Message, Reply, Writer, chain, gather, refuse};
use crate::database::Database;

/// Number of groups of records that may wait for the writer.
const QUEUE_LEN: usize = 256;

/// Queue of the journal, which does not keep it open.
pub(crate) type JournalQueue = mpsc::WeakSender<Message>;

/// Waits until the database has all records that the journal has acknowledged. If it cannot take them, reads find those that it has.
pub(crate) async fn settle(database: &Database) {
    let queue = database.journal.lock().as_ref().and_then(JournalQueue::upgrade);
    if let Some(queue) = queue {
        let (reply, answer) = oneshot::channel();
        if queue.send(Message::Store { durably: false, reply }).await.is_ok() {
            drop(answer.await);
        }
    }
}

pub(crate) struct Journal {
    file: JournalFile,
    writer: mpsc::Sender<Message>,
    /// Whether the writer cannot store records.
    is_stalled: Arc<AtomicBool>,
    /// Head of the chain, unless it could not be authenticated yet.
    head: Option<Head>,
    /// Confirms that what the other segment holds is in the database, if that is not known yet.
    other_segment: Option<oneshot::Receiver<Result<Head, AuditError>>>,
}

impl Journal {
    /// Starts the writer, and in front of it the journal if the disk has space for one. Returns the queue of requests.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or the thread cannot be started.
    pub(crate) async fn start(
        mut file: JournalFile,
        database: &Database,
        mut writer: Writer,
        queue_len: usize,
    ) -> Result<mpsc::Sender<Message>, AuditError> {
        let path = file.path().to_owned();
        let failed = |action| {
            let path = path.clone();
            move |source| AuditError::File { action, path, source: Arc::new(source) }
        };
        let missing = find_missing(&mut file, database).await?;
        let recovered = missing.len();
        let head = match writer.recover(missing).await {
            Ok(head) => Some(head),
            Err(error) => {
                tracing::error!(%error, journal = %path.display(), "the audit log accepts no records yet");
                None
            }
        };
        if recovered > 0 {
            tracing::info!(
                records = recovered,
                "audit records of an earlier server were taken from its journal"
            );
        }
        // Records that are not stored yet must not be overwritten by an allocation.
        let is_usable = match head {
            Some(_) => file.allocate(),
            None => file.is_allocated(),
        };
        let (queue, messages) = mpsc::channel(queue_len);
        match is_usable {
            Ok(true) => {}
            unusable => {
                let reason = unusable
                    .err()
                    .map_or_else(|| "the disk is nearly full".to_owned(), |error| error.to_string());
                tracing::warn!(
                    reason,
                    journal = %path.display(),
                    "there is no journal of the audit log: each record waits for the database, which takes longer"
                );
                writer.keep_locked(file);
                tokio::spawn(writer.run(messages));
                return Ok(queue);
            }
        }
        let (to_writer, from_journal) = mpsc::channel(QUEUE_LEN);
        let journal =
            Self { file, writer: to_writer, is_stalled: writer.stalled(), head, other_segment: None };
        let spawned = thread::Builder::new().name("audit".to_owned()).spawn(move || journal.run(messages));
        spawned.map_err(failed("start a thread for"))?;
        tokio::spawn(writer.run(from_journal));
        *database.journal.lock() = Some(queue.downgrade());
        Ok(queue)
    }

    /// Runs until the last sender is dropped.
    fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        let mut closed = None;
        let mut next = None;
        while let Some(message) = next.take().or_else(|| messages.blocking_recv()) {
            match message {
                Message::Append { record, reply } => {
                    let (group, other) = gather(record, reply, &mut messages);
                    next = other;
                    self.append(group);
                }
                Message::Close { reply } => {
                    messages.close();
                    closed = Some(reply);
                }
                // If the writer has ended, the sender of the reply is dropped, which the caller notices.
                other => drop(self.writer.blocking_send(other)),
            }
        }
        // Otherwise the records are taken from the journal at the next start.
        if self.store().is_ok()
            && let Err(error) = self.file.clear()
        {
            tracing::warn!(%error, journal = %self.file.path().display(), "cannot clear the journal of the audit log");
        }
        let (reply, ended) = oneshot::channel();
        if self.writer.blocking_send(Message::Close { reply }).is_ok() {
            drop(ended.blocking_recv());
        }
        // Unlocks the file.
        drop(self);
        if let Some(reply) = closed {
            let _ = reply.send(());
        }
    }

    /// Writes records, acknowledges them, and passes them on to the writer.
    fn append(&mut self, group: Vec<(Box<NewRecord>, Reply)>) {
        let (records, replies): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let mut replies = replies.into_iter();
        let refuse_rest = |replies, error: AuditError| {
            tracing::error!(%error, "audit records were not kept");
            refuse(replies, &error);
        };
        let head = match self.head {
            Some(head) if !self.is_stalled.load(Ordering::SeqCst) => Ok(head),
            _ => self.store(),
        };
        let mut rest = match head {
            Ok(head) => chain(head, &records),
            Err(error) => return refuse_rest(replies, error),
        };
        while !rest.is_empty() {
            let written = match self.write(&mut rest) {
                Ok(written) => written,
                Err(error) => return refuse_rest(replies, error),
            };
            for ((record, _), reply) in written.iter().zip(&mut replies) {
                self.head = Some(record.head());
                // A caller that stopped waiting has dropped the receiver.
                drop(reply.send(Ok(record.seq)));
            }
            // If the writer has ended, they are taken from the journal at the next start.
            drop(self.writer.blocking_send(Message::Journalled(written)));
        }
    }

    /// Writes as many records as fit into a segment, and returns them.
    fn write(&mut self, rest: &mut Vec<Chained>) -> Result<Vec<Chained>, AuditError> {
        let mut count = self.file.fitting(rest);
        if count == 0 {
            self.switch()?;
            count = self.file.fitting(rest);
        }
        let (path, failed) = (self.file.path().to_owned(), |path, source: io::Error| AuditError::File {
            action: "write to",
            path,
            source: Arc::new(source),
        });
        self.file.append(&rest[..count]).map_err(|source| failed(path, source))?;
        Ok(rest.drain(..count).collect())
    }

    /// Continues in the other segment, once the database has its records on disk.
    fn switch(&mut self) -> Result<(), AuditError> {
        if let Some(confirmed) = self.other_segment.take()
            && !matches!(confirmed.blocking_recv(), Ok(Ok(_)))
        {
            // It failed when it was requested; perhaps it succeeds now. If not, it stays unconfirmed for the next record.
            let (_, unconfirmed) = oneshot::channel();
            self.other_segment = Some(unconfirmed);
            self.store()?;
        }
        self.other_segment = Some(self.request_store()?);
        self.file.switch();
        Ok(())
    }

    /// Waits until the database has all records on disk, and returns the head.
    fn store(&self) -> Result<Head, AuditError> {
        self.request_store()?.blocking_recv().map_err(|_| AuditError::Closed)?
    }

    fn request_store(&self) -> Result<oneshot::Receiver<Result<Head, AuditError>>, AuditError> {
        let (reply, answer) = oneshot::channel();
        let request = Message::Store { durably: true, reply };
        self.writer.blocking_send(request).map_err(|_| AuditError::Closed)?;
        Ok(answer)
    }
}

/// Returns the records of the journal that the database lacks. A journal that does not continue the database is put aside.
async fn find_missing(file: &mut JournalFile, database: &Database) -> Result<Vec<Chained>, AuditError> {
    let path = file.path().to_owned();
    let failed = |action| {
        let path = path.clone();
        move |source| AuditError::File { action, path, source: Arc::new(source) }
    };
    let mut records = file.read().map_err(failed("read"))?;
    let ends = table::read_ends(database).await?;
    let (head, base) = (ends.head(), ends.base());
    let missing = records.split_off(records.partition_point(|(record, _)| record.seq <= head.seq));
    let is_same = match records.last() {
        None => true,
        // Archived: the database has nothing to compare it with, and what follows must continue the head.
        Some((last, _)) if last.seq < base.seq => true,
        Some((last, _)) if last.seq == base.seq => last.hash == base.hash,
        Some((last, _)) => {
            let found = table::read_range(database, last.seq, last.seq, 1).await?;
            found.first().is_some_and(|found| found.hash == last.hash)
        }
    };
    let mut end = head;
    let follows =
        missing.iter().all(|(record, _)| std::mem::replace(&mut end, record.head()) == record.before());
    if is_same && follows {
        return Ok(missing);
    }
    let target = file.put_aside().map_err(failed("put aside"))?;
    tracing::error!(
        journal = %target.display(),
        records = records.len() + missing.len(),
        database_ends_at = head.seq,
        "the journal of the audit log belongs to another state of the database, perhaps because a backup was restored; it is put aside"
    );
    Ok(Vec::new())
}
