//! Preallocated file that holds audit records until the database has them on disk.
//!
//! The file has two segments, which are written in turn. A segment is a sequence of frames: the length of the body (4 bytes,
//! little-endian), the MAC of the head that the record makes (32 bytes), and the body (see [`canonical`]). It ends before the first
//! frame that is not authentic or does not follow the one before, as a reused segment still holds older frames after the new ones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::canonical::{self, MAX_LINE_BYTES};
use super::record::AuditRecord;
use crate::durability::Durability;
use crate::error::StoreError;
use crate::files::{self, directory};

/// Size of a segment in bytes: room for some thousand records.
pub(crate) const SEGMENT_BYTES: u64 = 1 << 20;

const SEGMENTS: u64 = 2;

/// Free space on the disk, in bytes, without which no journal is allocated.
const MIN_FREE_BYTES: u64 = 16 << 20;

/// Time to wait for a server that is ending.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Unit of direct writes in bytes: a multiple of the logical block size of common disks (open(2), `O_DIRECT`).
const BLOCK_BYTES: usize = 4096;

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(BLOCK_BYTES as u64));

const LEN_BYTES: usize = 4;
const MAC_BYTES: usize = 32;

// The longest record fits into a segment.
const _: () = assert!((MAX_LINE_BYTES + LEN_BYTES + MAC_BYTES) as u64 <= SEGMENT_BYTES);

/// A record of the chain, with its canonical form.
pub(crate) type Chained = (AuditRecord, String);

#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    /// Locked while it is open: no other process appends to the audit log of the database.
    file: File,
    /// The same file, for writes past the page cache that return once they are durable, which takes less time than to write and
    /// then to flush. `None` if the file system has no such writes, or records need not survive a power failure.
    direct: Option<File>,
    secret: [u8; 32],
    durability: Durability,
    segment: u64,
    /// Offset in bytes in the segment.
    offset: u64,
    /// What the block that contains this offset holds before it.
    block: Vec<u8>,
}

impl JournalFile {
    /// Opens and locks the journal of a SQLite file. Its space is not allocated yet.
    ///
    /// # Errors
    /// Returns [`StoreError::Busy`] if another process has it open after some seconds, or [`StoreError::File`].
    pub(crate) fn open(
        database: &Path,
        secret: [u8; 32],
        durability: Durability,
    ) -> Result<Self, StoreError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".audit");
        let path = PathBuf::from(path);
        let file = open_file(&path).map_err(|source| StoreError::File {
            action: "open",
            path: path.clone(),
            source,
        })?;
        files::lock_file(&file, &path, LOCK_TIMEOUT, "open the audit log, which another server has open")?;
        let direct = open_direct(&path, durability);
        Ok(Self { path, file, direct, secret, durability, segment: 0, offset: 0, block: Vec::new() })
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reports whether the space is allocated.
    pub(crate) fn is_allocated(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == SEGMENTS * SEGMENT_BYTES)
    }

    /// Allocates the space. Returns false if the disk has too little.
    pub(crate) fn allocate(&mut self) -> io::Result<bool> {
        if self.is_allocated()? {
            return Ok(true);
        }
        let disk = rustix::fs::fstatvfs(&self.file)?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < MIN_FREE_BYTES {
            return Ok(false);
        }
        // Written, not only allocated: otherwise each first write to a block would change the file's metadata too.
        let zeros = vec![0; usize::try_from(SEGMENT_BYTES).unwrap_or_default()];
        for segment in 0..SEGMENTS {
            self.file.write_all_at(&zeros, segment * SEGMENT_BYTES)?;
        }
        self.file.sync_all()?;
        File::open(directory(&self.path))?.sync_all()?;
        Ok(true)
    }

    /// Reads all records in order.
    pub(crate) fn read(&self) -> io::Result<Vec<Chained>> {
        let mut runs = Vec::new();
        for segment in 0..SEGMENTS {
            runs.push(self.read_segment(segment)?);
        }
        runs.retain(|run| !run.is_empty());
        runs.sort_by_key(|run| run.first().map(|(record, _)| record.seq));
        Ok(runs.into_iter().flatten().collect())
    }

    fn read_segment(&self, segment: u64) -> io::Result<Vec<Chained>> {
        let mut bytes = vec![0; usize::try_from(SEGMENT_BYTES).unwrap_or_default()];
        let mut len = 0;
        while len < bytes.len() {
            match self.file.read_at(&mut bytes[len..], segment * SEGMENT_BYTES + len as u64)? {
                0 => break,
                read => len += read,
            }
        }
        let mut rest = &bytes[..len];
        let mut records: Vec<Chained> = Vec::new();
        while let Some((frame, after)) = self.parse(rest) {
            if records.last().is_some_and(|(last, _)| last.head() != frame.0.before()) {
                break;
            }
            records.push(frame);
            rest = after;
        }
        Ok(records)
    }

    /// Splits the first frame off, if it is authentic.
    fn parse<'a>(&self, bytes: &'a [u8]) -> Option<(Chained, &'a [u8])> {
        let (len, rest) = bytes.split_first_chunk::<LEN_BYTES>()?;
        let (mac, rest) = rest.split_at_checked(MAC_BYTES)?;
        let (body, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
        let body = std::str::from_utf8(body).ok()?;
        let record = canonical::parse_body(body, canonical::digest(body)).ok()?;
        record.head().is_authentic(&self.secret, mac).then(|| ((record, body.to_owned()), rest))
    }

    /// Appends records that fit into the segment, and returns once they are durable. After an error the same place is written again.
    pub(crate) fn append(&mut self, records: &[Chained]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(records.len() * 1024);
        for (record, body) in records {
            // A body is shorter than MAX_LINE_BYTES.
            bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(&record.head().mac(&self.secret));
            bytes.extend_from_slice(body.as_bytes());
        }
        if !self.append_direct(&bytes)? {
            self.file.write_all_at(&bytes, self.segment * SEGMENT_BYTES + self.offset)?;
            if self.durability == Durability::Power {
                self.file.sync_data()?;
            }
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Writes whole blocks: what the first one holds already, the bytes, and zeros. Returns false if that is not possible here.
    fn append_direct(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let Some(direct) = &self.direct else { return Ok(false) };
        let len = self.block.len() + bytes.len();
        let mut memory = vec![0; len.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES];
        let begin = memory.as_ptr().align_offset(BLOCK_BYTES);
        let Some(blocks) = memory.get_mut(begin..begin.saturating_add(len.next_multiple_of(BLOCK_BYTES)))
        else {
            return Ok(false);
        };
        blocks[..self.block.len()].copy_from_slice(&self.block);
        blocks[self.block.len()..len].copy_from_slice(bytes);
        let place = self.segment * SEGMENT_BYTES + self.offset - self.block.len() as u64;
        match direct.write_all_at(blocks, place) {
            Ok(()) => {}
            // The file system or the disk accepts no such writes, or only of larger blocks.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.direct = None;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.block = blocks[len / BLOCK_BYTES * BLOCK_BYTES..len].to_vec();
        Ok(true)
    }

    /// Returns the number of leading records that fit into the rest of the segment.
    pub(crate) fn fitting(&self, records: &[Chained]) -> usize {
        let mut free = SEGMENT_BYTES - self.offset;
        let fits = |(_, body): &&Chained| {
            let frame = (LEN_BYTES + MAC_BYTES + body.len()) as u64;
            let fits = frame <= free;
            free = free.saturating_sub(frame);
            fits
        };
        records.iter().take_while(fits).count()
    }

    /// Continues in the other segment, whose records are overwritten.
    pub(crate) fn switch(&mut self) {
        self.segment = (self.segment + 1) % SEGMENTS;
        self.offset = 0;
        self.block.clear();
    }

    /// Removes all records.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        for segment in 0..SEGMENTS {
            self.file.write_all_at(&[0; LEN_BYTES], segment * SEGMENT_BYTES)?;
        }
        self.file.sync_data()
    }

    /// Renames the file, and starts another one. Returns the new name.
    pub(crate) fn put_aside(&mut self) -> io::Result<PathBuf> {
        let name = |number: u32| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(format!("-put-aside-{number}"));
            PathBuf::from(name)
        };
        let unused = (0..).map(name).find(|path| !path.exists());
        let target = unused.ok_or_else(|| io::Error::other("no name is free"))?;
        std::fs::rename(&self.path, &target)?;
        let file = open_file(&self.path)?;
        file.lock()?;
        self.file = file;
        self.direct = open_direct(&self.path, self.durability);
        Ok(target)
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn open_direct(path: &Path, durability: Durability) -> Option<File> {
    let flags = OFlags::DIRECT | OFlags::DSYNC;
    let open = || OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(path).ok();
    (durability == Durability::Power).then(open)?
}

#[cfg(test)]
#[path = "journal_file_tests.rs"]
mod tests;
