//! Mirrors the audit log to a file. The database is authoritative: the file receives committed records, with a delay if it has
//! to, and its state is reported.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use super::canonical;
use super::error::AuditError;
use super::head::Head;
use super::mirror_file::{MirrorFile, Opened, Written};
use super::record::AuditRecord;
use super::table;
use crate::database::Database;

/// Records that are copied at a time.
const PAGE: u32 = 500;

/// Options of the mirror file, which repeats the records as JSON lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorOptions {
    /// Path of the file. Older files are beside it, named after their first record as in `audit-00000000000000000001.jsonl`.
    pub path: PathBuf,
    /// Size in bytes from which on the file is rotated.
    pub max_bytes: u64,
    /// Number of older files to keep. Records of removed files are still in the database.
    pub keep: usize,
}

impl MirrorOptions {
    /// Returns options for a file of at most 64 MiB, and 16 older ones.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), max_bytes: 64 << 20, keep: 16 }
    }
}

/// State of the mirror file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirrorState {
    /// There is no mirror file.
    Off,
    /// The file has every record that this process appended, and all before.
    Current {
        /// Number of the last record.
        seq: i64,
    },
    /// The file could not be written. Writing is retried until it succeeds.
    Behind {
        /// Number of the first record that it lacks.
        next: i64,
        /// Reason.
        reason: String,
    },
    /// Another process writes the file.
    Elsewhere,
}

pub(crate) struct Mirror {
    database: Arc<Database>,
    options: Option<MirrorOptions>,
    file: Option<MirrorFile>,
    /// Next record for the file, once known.
    next: Option<i64>,
    state: watch::Sender<MirrorState>,
}

impl Mirror {
    pub(crate) async fn open(
        database: Arc<Database>,
        options: Option<MirrorOptions>,
    ) -> Result<(Self, watch::Receiver<MirrorState>), AuditError> {
        let (state, receiver) = watch::channel(MirrorState::Off);
        let mut mirror = Self { database, options, file: None, next: None, state };
        if let Some(options) = &mirror.options {
            let path = options.path.clone();
            mirror.open_file().await.map_err(|source| AuditError::File {
                action: "open",
                path,
                source: Arc::new(source),
            })?;
            mirror.catch_up().await;
        }
        Ok((mirror, receiver))
    }

    pub(crate) fn state(&self) -> MirrorState {
        self.state.borrow().clone()
    }

    pub(crate) fn is_behind(&self) -> bool {
        matches!(*self.state.borrow(), MirrorState::Behind { .. } | MirrorState::Elsewhere)
    }

    /// Appends records that have been committed.
    pub(crate) async fn add(&mut self, records: Vec<AuditRecord>) {
        let first = records.first().map(|record| record.seq);
        if self.file.is_none() || first != self.next {
            // Another keeper appended some in between, or the disk was full for a while.
            return self.catch_up().await;
        }
        if self.write(&records).await.is_err() {
            // If the file was moved away, this writes to a new one. Otherwise it reports the cause.
            self.catch_up().await;
        }
    }

    /// Copies the records that the file lacks.
    pub(crate) async fn catch_up(&mut self) {
        if self.options.is_none() {
            return;
        }
        let result = self.copy().await;
        let state = match result {
            Ok(true) => MirrorState::Current { seq: self.next.unwrap_or(1) - 1 },
            Ok(false) => MirrorState::Elsewhere,
            Err(reason) => MirrorState::Behind { next: self.next.unwrap_or(1), reason },
        };
        self.set_state(state);
    }

    /// Returns whether the file belongs to this process. Fails with the reason if it cannot be written.
    async fn copy(&mut self) -> Result<bool, String> {
        // A second attempt, in case the file was moved away meanwhile.
        for _ in 0..2 {
            if self.file.is_none() {
                self.open_file().await.map_err(|error| error.to_string())?;
            }
            if self.file.is_none() {
                return Ok(false);
            }
            match self.copy_to_open_file().await {
                Ok(()) => return Ok(true),
                Err(None) => {}
                Err(Some(reason)) => return Err(reason),
            }
        }
        Err("the file keeps being moved away".to_owned())
    }

    /// Copies records to the open file. An error without a reason means that the file is no longer in its place.
    async fn copy_to_open_file(&mut self) -> Result<(), Option<String>> {
        loop {
            let next = match self.next {
                Some(next) => next,
                None => self.find_next().await.map_err(Some)?,
            };
            self.next = Some(next);
            let page = table::read_range(&self.database, next, i64::MAX, PAGE).await;
            let page = page.map_err(|error| Some(error.to_string()))?;
            let (Some(first), Some(last)) = (page.first(), page.last()) else { return Ok(()) };
            let (first, last) = (first.seq, last.seq);
            if first > next {
                self.skip_archived(next).await.map_err(Some)?;
            }
            let mut records = Vec::with_capacity(page.len());
            for record in page {
                let seq = record.seq;
                match record.check() {
                    Ok(record) => records.push(record),
                    // The file continues without the record, and shows the gap.
                    Err(why) => tracing::error!(seq, why, "an audit record was changed in the database"),
                }
            }
            self.write(&records).await?;
            self.next = Some(last + 1);
        }
    }

    /// Starts a new file if the database lacks records from `next` on because they are archived, so that each file is without gaps.
    async fn skip_archived(&mut self, next: i64) -> Result<(), String> {
        let base = table::read_ends(&self.database).await.map_err(|error| error.to_string())?.base().seq;
        let Some(file) = self.file.as_mut().filter(|_| base >= next) else { return Ok(()) };
        if next > 1 {
            tracing::warn!(
                file = %file.path().display(),
                first = next,
                last = base,
                "audit records were archived before they were in the audit file; a new one is started after them"
            );
        }
        if file.is_empty() { Ok(()) } else { file.rotate().map_err(|error| error.to_string()) }
    }

    /// Finds the record after the end of the file. A file that does not belong to this chain is put aside.
    async fn find_next(&mut self) -> Result<i64, String> {
        let Some(file) = &mut self.file else { return Ok(1) };
        let Some(end) = file.end() else {
            return Ok(1);
        };
        let found = table::read_range(&self.database, end.seq, end.seq, 1)
            .await
            .map_err(|error| error.to_string())?;
        let ends = table::read_ends(&self.database).await.map_err(|error| error.to_string())?;
        let (head, base) = (ends.head(), ends.base());
        // Archived records cannot be compared; a file that ends with one is not continued but followed by a new one.
        let is_archived = (1..base.seq).contains(&end.seq) || (base != Head::EMPTY && end == base);
        if is_archived || found.first().is_some_and(|record| record.hash == end.hash) {
            return Ok(end.seq + 1);
        }
        tracing::warn!(
            file = %file.path().display(),
            file_ends_at = end.seq,
            database_ends_at = head.seq,
            "the audit file belongs to another database; it is put aside, and a new one is started"
        );
        file.put_aside().map_err(|error| error.to_string())?;
        // After a restore the file has more than the database, and the common records are in the file put aside.
        Ok(if end.seq > head.seq { head.seq + 1 } else { 1 })
    }

    async fn open_file(&mut self) -> std::io::Result<()> {
        let Some(options) = self.options.clone() else { return Ok(()) };
        let opened = tokio::task::spawn_blocking(move || MirrorFile::open(options));
        match opened.await.map_err(std::io::Error::other)?? {
            Opened::File(file) => {
                // A new file continues where the one before ended.
                if !file.is_empty() {
                    self.next = None;
                }
                self.file = Some(file);
            }
            Opened::LockedElsewhere => self.file = None,
        }
        Ok(())
    }

    /// Appends records. An error without a reason means that the file is no longer in its place.
    async fn write(&mut self, records: &[AuditRecord]) -> Result<(), Option<String>> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(()) };
        let (first, last) = (first.seq, last.head());
        let mut bytes = Vec::with_capacity(records.len() * 1024);
        for record in records {
            bytes.extend_from_slice(canonical::serialize_line(record).as_bytes());
            bytes.push(b'\n');
        }
        let Some(mut file) = self.file.take() else { return Err(None) };
        let written = tokio::task::spawn_blocking(move || {
            let result = file.append(first, last, &bytes);
            (file, result)
        });
        let (file, result) = written.await.map_err(|error| Some(error.to_string()))?;
        match result {
            Written::Done => {
                self.file = Some(file);
                self.next = Some(last.seq + 1);
                self.set_state(MirrorState::Current { seq: last.seq });
                Ok(())
            }
            Written::Displaced => Err(None),
            Written::Failed(error) => {
                self.file = Some(file);
                Err(Some(error.to_string()))
            }
        }
    }

    fn set_state(&self, new: MirrorState) {
        self.state.send_if_modified(|state| {
            if *state == new {
                return false;
            }
            match (&new, &*state) {
                // Logged once, not with every retry.
                (MirrorState::Behind { next, reason }, MirrorState::Current { .. } | MirrorState::Off) => {
                    tracing::error!(
                        next,
                        reason,
                        "the audit file cannot be written; records are in the database only"
                    );
                }
                (MirrorState::Current { seq }, MirrorState::Behind { .. }) => {
                    tracing::warn!(seq, "the audit file is complete again");
                }
                _ => {}
            }
            *state = new;
            true
        });
    }
}
