//! Archiving of the audit log.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belljar_store::{
    ArchiveError, ArchiveOptions, ArchiveUntil, AuditFilter, AuditRecord, Segment, StoreError,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::action::AUDIT_ARCHIVE;
use crate::caller::Caller;
use crate::error::{KeeperError, chain};
use crate::info::AuditHead;
use crate::keeper::{Keeper, Result};
use crate::steps::run_detached;

/// Interval at which the keeper archives by itself.
const ARCHIVE_INTERVAL: Duration = Duration::from_secs(3600);

/// Interval at which it is checked whether the keeper is closing.
const TICK: Duration = Duration::from_secs(10);

/// Time that records stay longer than configured, so that a file has the records of a day and not of an hour.
const MAX_SLACK: Duration = Duration::from_secs(24 * 3600);

/// A file with archived records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArchivedFile {
    /// Its path on the server's machine.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Number of its first record.
    pub first: i64,
    /// Its last record.
    pub last: AuditHead,
}

impl From<Segment> for ArchivedFile {
    fn from(segment: Segment) -> Self {
        Self { path: segment.path, first: segment.first, last: segment.last.into() }
    }
}

impl Keeper {
    /// Moves the oldest records of the audit log to files, and returns the files. The last record always stays. Each file is on
    /// record before its records are removed from the store.
    ///
    /// # Errors
    /// Returns [`KeeperError::Forbidden`] unless the caller is an administrator, [`KeeperError::AuditBroken`] if the log was tampered
    /// with; fails if the store or the disk fails. What was not archived is still in the store.
    pub async fn audit_archive(&self, caller: &Caller, until: ArchiveUntil) -> Result<Vec<ArchivedFile>> {
        self.require(caller, AUDIT_ARCHIVE)?;
        let (keeper, caller) = (self.clone(), caller.clone());
        let archiving = async move {
            let archived = keeper.archive(&caller, until).await;
            if archived.is_err() {
                keeper.audit(&caller, AUDIT_ARCHIVE, None, &archived, Vec::new()).await?;
            }
            archived
        };
        run_detached(&self.inner.tasks, archiving).await
    }

    async fn archive(&self, caller: &Caller, until: ArchiveUntil) -> Result<Vec<ArchivedFile>> {
        let options = ArchiveOptions::new(self.inner.config.now().archive_dir.clone());
        let archive = self.inner.audit.archive(options).await?;
        let last = archive.last(until).await?;
        let mut files = Vec::new();
        while let Some(segment) = archive.write(last).await? {
            let details = vec![
                ("first", segment.first.to_string()),
                ("last", segment.last.seq.to_string()),
                ("head", segment.last.to_string()),
            ];
            self.audit(caller, AUDIT_ARCHIVE, None, &Ok(()), details).await?;
            archive.remove(&segment).await?;
            tracing::info!(
                file = %segment.path.display(),
                first = segment.first,
                last = segment.last.seq,
                "audit records were archived"
            );
            files.push(segment.into());
        }
        Ok(files)
    }

    /// Returns the next records of an export after number `after`, and the number up to which there are no others.
    ///
    /// # Errors
    /// Needs the role admin. Returns [`StoreError::Archived`] if some of them may have been archived meanwhile.
    pub async fn audit_records_on(
        &self,
        caller: &Caller,
        filter: &AuditFilter,
        after: i64,
        limit: u32,
    ) -> Result<(Vec<AuditRecord>, i64)> {
        let head = self.audit_head(caller).await?.seq;
        let page = self.audit_records(caller, filter, Some(after), limit).await?;
        let base = self.audit_base(caller).await?.seq;
        if base > after {
            return Err(StoreError::Archived { seq: after + 1, base }.into());
        }
        let last = page.last().map_or(after, |record| record.seq);
        let is_full = u32::try_from(page.len()).is_ok_and(|len| len >= limit);
        let end = if is_full { last } else { last.max(head) };
        Ok((page, end))
    }

    /// Archives records of a configured age once an hour.
    pub(crate) fn spawn_archiving(&self) {
        let keeper = self.clone();
        tokio::spawn(async move {
            let mut waited = ARCHIVE_INTERVAL;
            while !keeper.inner.closing.load(Ordering::Relaxed) {
                if waited >= ARCHIVE_INTERVAL {
                    waited = Duration::ZERO;
                    if let Err(error) = keeper.archive_old().await {
                        tracing::error!(error = %chain(&error), "cannot archive the audit log; retrying in an hour");
                    }
                }
                tokio::time::sleep(TICK).await;
                waited += TICK;
            }
        });
    }

    /// Archives records of the configured age, if the first one is even older.
    async fn archive_old(&self) -> Result<()> {
        let Some(age) = self.inner.config.now().archive_after else { return Ok(()) };
        let before = |age: Duration| Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN);
        let first = self.inner.audit.tail(&AuditFilter::default(), Some(0), 1).await?.pop();
        if first.is_some_and(|first| first.at < before(age.saturating_add(age.min(MAX_SLACK)))) {
            let caller = Caller::operator("server", "archive_after");
            self.audit_archive(&caller, ArchiveUntil::Before(before(age))).await?;
        }
        Ok(())
    }
}

impl From<ArchiveError> for KeeperError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Store(error) => Self::Store(error),
            ArchiveError::Broken(broken) => Self::AuditBroken(broken),
        }
    }
}
