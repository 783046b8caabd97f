//! Moves the oldest records from the database to files.
//!
//! ```text
//!  write    records ──► audit.partial, on disk ──► read back and verified ──► audit-FIRST-LAST.jsonl
//!  remove   one transaction: its last record becomes the base, the records up to it are removed
//! ```
//!
//! A crash in between leaves a complete file, and all records in the database. The next archive removes them without writing the
//! file again.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::OwnedMutexGuard;

use super::canonical::serialize_line;
use super::chain::{Broken, Chain, Fault};
use super::export::is_segment;
use super::head::Head;
use super::mirror_file::{End, read_last_line};
use super::table;
use super::verify::{check_base, check_head};
use crate::database::Database;
use crate::error::StoreError;
use crate::files::{blocking, directory, lock_file, private_file};

/// Records that are read at a time.
const PAGE: u32 = 500;

/// File that is being written.
const PARTIAL: &str = "audit.partial";

/// File that is locked meanwhile.
const LOCK: &str = "audit.lock";

/// Operation, for errors.
const ACTION: &str = "archive audit records";

/// Where records are archived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveOptions {
    /// Directory of the files. It is created (0700) if it does not exist; the directory that it is in must.
    pub dir: PathBuf,
    /// Maximum number of records in a file.
    pub max_records: u32,
    /// Size of a file in bytes, after which it has no further record.
    pub max_bytes: u64,
}

impl ArchiveOptions {
    /// Returns options for files of at most 50,000 records and about 64 MiB.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), max_records: 50_000, max_bytes: 64 << 20 }
    }
}

/// Records to archive. The last record of the log always stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveUntil {
    /// All up to this number.
    Record(i64),
    /// All before the first one that is not older than this.
    Before(Timestamp),
}

/// A file of archived records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Path of the file.
    pub path: PathBuf,
    /// Number of its first record.
    pub first: i64,
    /// Its last record.
    pub last: Head,
}

/// Error of archiving. The records are still in the database.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The store or a file failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chain was tampered with. Archiving it would hide that.
    #[error("the audit log is broken at {0}; nothing was archived")]
    Broken(Broken),
}

/// Moves records to files. One exists at a time for each log and each directory.
#[derive(Debug)]
pub struct Archive {
    database: Arc<Database>,
    secret: [u8; 32],
    options: ArchiveOptions,
    _turn: OwnedMutexGuard<()>,
    /// Locked while it is open.
    _lock: File,
}

impl Archive {
    /// Creates the directory if necessary, and locks it.
    pub(crate) async fn new(
        database: Arc<Database>,
        secret: [u8; 32],
        options: ArchiveOptions,
        turn: OwnedMutexGuard<()>,
    ) -> Result<Self, StoreError> {
        let lock = in_background(&options.dir, |dir| {
            match DirBuilder::new().mode(0o700).create(dir) {
                // Its entry must survive a power failure too.
                Ok(()) => File::open(directory(dir))?.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            private_file(&dir.join(LOCK))
        })
        .await?;
        lock_file(&lock, &options.dir.join(LOCK), Duration::ZERO, ACTION)?;
        Ok(Self { database, secret, options, _turn: turn, _lock: lock })
    }

    /// Returns the number of the last record to archive.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub async fn last(&self, until: ArchiveUntil) -> Result<i64, StoreError> {
        let last = match until {
            ArchiveUntil::Record(seq) => seq,
            ArchiveUntil::Before(time) => table::last_before(&self.database, time).await?,
        };
        // Of those that there are now: archiving adds records of its own.
        Ok(last.min(table::read_ends(&self.database).await?.head().seq - 1))
    }

    /// Writes the oldest records up to number `through` to a file, as many as it may have. When this returns, the file is complete
    /// and on disk, and the records are still in the database: [`Archive::remove`] comes next. Returns `None` if there are none.
    ///
    /// A file that an interrupted archive left is returned instead, if it has the same records as the database; one that has
    /// other records, as after a restored backup, is renamed.
    ///
    /// # Errors
    ///
    /// Returns [`ArchiveError::Broken`] if the base, the head or one of the records is not as this server wrote it;
    /// [`StoreError::Busy`] if another server archived meanwhile; [`StoreError::File`] or [`StoreError::Full`].
    pub async fn write(&self, through: i64) -> Result<Option<Segment>, ArchiveError> {
        let ends = table::read_ends(&self.database).await?;
        let check = check_base(&ends, &self.secret).and_then(|()| check_head(&ends, &self.secret));
        check.map_err(ArchiveError::Broken)?;
        let (base, head) = (ends.base(), ends.head());
        let mut limit = through.min(head.seq - 1);
        if limit <= base.seq {
            return Ok(None);
        }
        for found in in_background(&self.options.dir, move |dir| list(dir, base.seq)).await? {
            let is_next = found.first == base.seq + 1;
            if !self.is_stored(&found).await? || (is_next && !found.is_intact(base).await?) {
                in_background(&found.path, put_aside).await?;
            } else if is_next && found.last.seq < head.seq {
                return Ok(Some(found));
            } else {
                limit = limit.min(found.first - 1);
                break;
            }
        }
        if limit <= base.seq {
            return Ok(None);
        }
        match self.write_after(base, limit).await {
            // Records that were archived meanwhile seem to be missing.
            Err(ArchiveError::Broken(_)) if table::read_ends(&self.database).await?.base() != base => {
                Err(StoreError::Busy { action: ACTION }.into())
            }
            written => written.map(Some),
        }
    }

    /// Removes the records of a file from the database, in one transaction that makes the last of them the base of the chain. This
    /// survives a power failure.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Busy`] if another server archived the records, or if they are not all there any more;
    /// [`ArchiveError::Broken`] if the base is not as this server wrote it.
    pub async fn remove(&self, segment: &Segment) -> Result<(), ArchiveError> {
        let ends = table::read_ends(&self.database).await?;
        check_base(&ends, &self.secret).map_err(ArchiveError::Broken)?;
        let follows = ends.base().seq == segment.first - 1;
        if follows && table::cut(&self.database, ends.base.as_ref(), segment.last, &self.secret).await? {
            Ok(())
        } else {
            Err(StoreError::Busy { action: ACTION }.into())
        }
    }

    /// Reports whether the database has the last record of a file, and the next one follows it.
    async fn is_stored(&self, segment: &Segment) -> Result<bool, StoreError> {
        let last = segment.last;
        let stored = table::read_range(&self.database, last.seq, last.seq + 1, 2).await?;
        let mut stored = stored.into_iter();
        let is_there = stored.next().is_some_and(|record| (record.seq, record.hash) == (last.seq, last.hash));
        Ok(is_there && stored.all(|next| next.check().is_ok_and(|next| next.prev == last.hash)))
    }

    /// Writes the records after `base` up to number `limit`, as many as a file may have.
    async fn write_after(&self, base: Head, limit: i64) -> Result<Segment, ArchiveError> {
        let dir = &self.options.dir;
        let broken = |seq, fault| Err(ArchiveError::Broken(Broken { seq, fault }));
        let mut partial = in_background(dir, Partial::create).await?;
        let mut chain = Chain::new(base.seq, Some(base.hash), Vec::new());
        let limit = limit.min(base.seq.saturating_add(i64::from(self.options.max_records).max(1)));
        let (mut last, mut bytes, mut is_last) = (base, 0, false);
        while !is_last {
            // The record after the last one is read too: it shows that the last one was not replaced.
            let page = table::read_range(&self.database, last.seq + 1, limit + 1, PAGE).await?;
            if page.is_empty() {
                return broken(last.seq + 1, Fault::Truncated { last: limit + 1 });
            }
            let mut lines = Vec::new();
            for stored in page {
                let record = match stored.check() {
                    Ok(record) => record,
                    Err(why) => return broken(last.seq + 1, Fault::Changed { why }),
                };
                chain.push(Ok(record.clone())).map_err(ArchiveError::Broken)?;
                is_last = last.seq == limit || bytes >= self.options.max_bytes;
                if is_last {
                    break;
                }
                let line = serialize_line(&record);
                bytes += u64::try_from(line.len()).unwrap_or(u64::MAX);
                lines.extend_from_slice(line.as_bytes());
                lines.push(b'\n');
                last = record.head();
            }
            partial = in_background(dir, move |_| partial.append(&lines)).await?;
        }
        let first = base.seq + 1;
        let segment = Segment { path: dir.join(file_name(first, last.seq)), first, last };
        let path = segment.path.clone();
        in_background(dir, move |_| partial.finish(&path, base, last)).await?;
        Ok(segment)
    }
}

impl Segment {
    /// Verifies the file, whose first record must follow `base`.
    async fn is_intact(&self, base: Head) -> Result<bool, StoreError> {
        let last = self.last;
        let verify = move |path: &Path| is_segment(BufReader::new(File::open(path)?), base, last);
        in_background(&self.path, verify).await
    }
}

/// File that is being written. It is removed if it is not finished.
struct Partial {
    path: PathBuf,
    file: File,
    is_finished: bool,
}

impl Partial {
    fn create(dir: &Path) -> io::Result<Self> {
        let path = dir.join(PARTIAL);
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).clone();
        Ok(Self { file: options.open(&path)?, path, is_finished: false })
    }

    fn append(mut self, lines: &[u8]) -> io::Result<Self> {
        self.file.write_all(lines)?;
        Ok(self)
    }

    /// Waits until the file is on disk, reads it back, and gives it its name.
    fn finish(mut self, path: &Path, before: Head, last: Head) -> io::Result<()> {
        self.file.sync_all()?;
        self.file.seek(SeekFrom::Start(0))?;
        if !is_segment(BufReader::new(&self.file), before, last)? {
            return Err(io::Error::other("it was not read back as it was written"));
        }
        if path.try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        std::fs::rename(&self.path, path)?;
        self.is_finished = true;
        File::open(directory(path))?.sync_all()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_finished {
            // Otherwise the next archive replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Twelve digits, so that the files are in order when they are listed.
fn file_name(first: i64, last: i64) -> String {
    format!("audit-{first:012}-{last:012}.jsonl")
}

/// Returns the first and the last record of an archived file, according to its name.
pub(super) fn parse_name(path: &Path) -> Option<(i64, i64)> {
    let (first, last) = name(path).strip_prefix("audit-")?.strip_suffix(".jsonl")?.split_once('-')?;
    let number = |text: &str| {
        let fits = text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| fits)
    };
    let (first, last) = (number(first)?, number(last)?);
    (1 <= first && first <= last).then_some((first, last))
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// Returns the files with records after the base, in order. The last record of a damaged one matches no database.
fn list(dir: &Path, base: i64) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let Some((first, seq)) = parse_name(&path).filter(|(first, _)| *first > base) else { continue };
        let last = match read_last_line(&mut File::open(&path)?)? {
            (_, End::At(head)) if head.seq == seq => head,
            _ => Head { seq, hash: [0; 32] },
        };
        found.push(Segment { path, first, last });
    }
    found.sort_by_key(|segment| segment.first);
    Ok(found)
}

/// Renames a file whose records are not those of the database.
fn put_aside(path: &Path) -> io::Result<()> {
    let target = |number: u32| path.with_file_name(format!("{}.put-aside-{number}", name(path)));
    let unused = (0..).map(target).find(|target| !target.exists());
    let target = unused.ok_or_else(|| io::Error::other("no name is free"))?;
    std::fs::rename(path, &target)?;
    tracing::error!(
        file = %target.display(),
        "archived audit records are not those of the database, perhaps because a backup was restored; the file is put aside"
    );
    File::open(directory(path))?.sync_all()
}

async fn in_background<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    blocking(path, "archive audit records to", work).await.map_err(|error| match error {
        StoreError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            StoreError::Full { action: ACTION }
        }
        error => error,
    })
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
