//! Reads a zip from a file by its central directory. One entry is in memory at a time, so a directory of any length
//! takes no memory. A contradiction between the directory and a local header is an error.

use std::os::fd::OwnedFd;

use flate2::{Crc, Decompress, FlushDecompress, Status};
use rustix::buffer::spare_capacity;
use rustix::io::{pread, retry_on_intr};

use super::invalid_archive;
use super::meter::Meter;
use super::names::MAX_TARGET_BYTES;
use super::stage::{Attributes, Stage};
use crate::error::{FileError, failure};
use crate::path::show;

/// Maximum size of one read, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Size of the end record in bytes, without a comment and with the longest one.
const END_BYTES: u64 = 22;
const MAX_END_BYTES: u64 = END_BYTES + 0xffff;

const LOCATOR_BYTES: u64 = 20;
const ENTRY_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;

/// Unpacks the archive in `file`, which has `length` bytes.
pub(super) async fn unpack(
    file: &OwnedFd,
    length: u64,
    stage: &mut Stage,
    meter: &mut Meter,
) -> Result<(), FileError> {
    let source = Source { file, length };
    let directory = source.find_directory()?;
    let mut at = directory.begin;
    let mut compressed = 0u64;
    let mut content = 0u64;
    for _ in 0..directory.entries {
        meter.count_entry()?;
        let (entry, next) = source.entry(at, directory.end)?;
        at = next;
        // Entries that share their bytes would let a small archive become a large one.
        compressed = compressed.saturating_add(entry.compressed);
        if compressed > directory.begin {
            return Err(invalid_archive("entries overlap"));
        }
        content = content.saturating_add(entry.size);
        meter.check_ratio(length, content)?;
        meter.count_bytes(entry.size)?;
        unpack_entry(&source, &entry, directory.begin, stage, meter).await?;
        tokio::task::yield_now().await;
    }
    if at != directory.end {
        return Err(invalid_archive("the central directory is longer than its entry count"));
    }
    Ok(())
}

async fn unpack_entry(
    source: &Source<'_>,
    entry: &Entry,
    max_offset: u64,
    stage: &mut Stage,
    meter: &mut Meter,
) -> Result<(), FileError> {
    const KIND: u32 = 0o170_000;
    let Some(name) = stage.entry_name(&entry.name)? else { return Ok(()) };
    let is_dir = entry.name.ends_with(b"/");
    let mode = entry.mode.unwrap_or(if is_dir { 0o755 } else { 0o644 });
    let attributes = Attributes { mode: mode & 0o7777, modified: entry.modified };
    let mut content = EntryReader::new(source, entry, max_offset)?;
    match mode & KIND {
        0o040_000 | 0 if is_dir => stage.directory(&name, attributes)?,
        0o100_000 | 0 if !is_dir => {
            let file = stage.file(&name, attributes)?;
            let mut offset = 0;
            while let Some(piece) = content.next()? {
                file.write(piece, offset)?;
                offset += piece.len() as u64;
                tokio::task::yield_now().await;
            }
            file.finish(None)?;
            meter.bytes += entry.size;
        }
        0o120_000 if !is_dir => {
            if entry.size > MAX_TARGET_BYTES as u64 {
                return Err(invalid_archive(format!(
                    "the symbolic link {} has an invalid target",
                    show(&name)
                )));
            }
            let mut target = Vec::new();
            while let Some(piece) = content.next()? {
                target.extend_from_slice(piece);
            }
            stage.symbolic_link(&name, target, attributes)?;
        }
        0o010_000 | 0o140_000 => {
            meter.skipped += 1;
            return Ok(());
        }
        0o020_000 | 0o060_000 => return Err(invalid_archive(format!("{} is a device", show(&entry.name)))),
        _ => return Err(invalid_archive(format!("the type of {} contradicts its name", show(&entry.name)))),
    }
    meter.entries += 1;
    Ok(())
}

struct Source<'a> {
    file: &'a OwnedFd,
    length: u64,
}

/// Location of the central directory.
struct CentralDirectory {
    begin: u64,
    end: u64,
    entries: u64,
}

/// An entry of the central directory.
struct Entry {
    name: Vec<u8>,
    is_deflated: bool,
    flags: u16,
    crc: u32,
    compressed: u64,
    size: u64,
    /// Offset of the local header.
    header: u64,
    /// File type and permission bits, if the archive was created on Unix.
    mode: Option<u32>,
    modified: Option<(i64, u32)>,
}

fn broken_directory() -> FileError {
    invalid_archive("not a zip, or corrupt: the central directory is inconsistent")
}

impl Source<'_> {
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, FileError> {
        if offset.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(broken_directory());
        }
        let mut data = Vec::with_capacity(length);
        while data.len() < length {
            let at = offset + data.len() as u64;
            let read = retry_on_intr(|| pread(self.file, spare_capacity(&mut data), at))
                .map_err(|errno| failure("unpack", b"the archive", errno))?;
            if read == 0 {
                return Err(broken_directory());
            }
        }
        data.truncate(length);
        Ok(data)
    }

    fn find_directory(&self) -> Result<CentralDirectory, FileError> {
        let length = self.length.min(MAX_END_BYTES);
        let begin = self.length - length;
        let tail = self.read(begin, usize::try_from(length).unwrap_or(0))?;
        let last = tail.len().checked_sub(22).ok_or_else(broken_directory)?;
        let is_end = |at: &usize| {
            let record = Fields(&tail[*at..]);
            record.u32(0) == Some(0x0605_4b50)
                && record.u16(20).map(usize::from) == Some(tail.len() - at - 22)
        };
        let at = (0..=last).rev().find(is_end).ok_or_else(broken_directory)?;
        let record = Fields(&tail[at..]);
        let end = begin + at as u64;
        let short = |offset| record.u16(offset).ok_or_else(broken_directory);
        let long = |offset| record.u32(offset).ok_or_else(broken_directory);
        let (disk, here, entries) = (short(4)?, short(8)?, short(10)?);
        let (bytes, offset) = (long(12)?, long(16)?);
        let directory = if here == u16::MAX || entries == u16::MAX || bytes == u32::MAX || offset == u32::MAX
        {
            self.find_zip64_directory(end)?
        } else {
            if disk != 0 || here != entries {
                return Err(invalid_archive("archives of several volumes are not supported"));
            }
            let begin = u64::from(offset);
            CentralDirectory { begin, end: begin + u64::from(bytes), entries: entries.into() }
        };
        // Valid archives have nothing before or in between, and other readers may see other entries there.
        if directory.end > end || (directory.end != end && directory.end + LOCATOR_BYTES + 56 > end) {
            return Err(broken_directory());
        }
        Ok(directory)
    }

    /// Returns the directory of an archive with more than 65,535 entries or 4 GiB.
    fn find_zip64_directory(&self, end: u64) -> Result<CentralDirectory, FileError> {
        let locator_at = end.checked_sub(LOCATOR_BYTES).ok_or_else(broken_directory)?;
        let locator = self.read(locator_at, 20)?;
        let locator = Fields(&locator);
        if locator.u32(0) != Some(0x0706_4b50) {
            return Err(broken_directory());
        }
        let at = locator.u64(8).ok_or_else(broken_directory)?;
        let record = self.read(at, 56)?;
        let record = Fields(&record);
        let long = |offset| record.u64(offset).ok_or_else(broken_directory);
        if record.u32(0) != Some(0x0606_4b50) || long(24)? != long(32)? {
            return Err(broken_directory());
        }
        let begin = long(48)?;
        let directory_end = begin.checked_add(long(40)?).ok_or_else(broken_directory)?;
        if directory_end != at {
            return Err(broken_directory());
        }
        Ok(CentralDirectory { begin, end: directory_end, entries: long(32)? })
    }

    /// Returns the directory entry at `at` and the offset of the next one.
    fn entry(&self, at: u64, end: u64) -> Result<(Entry, u64), FileError> {
        let fixed = self.read(at, ENTRY_BYTES)?;
        let fixed = Fields(&fixed);
        let short = |offset| fixed.u16(offset).ok_or_else(broken_directory);
        let long = |offset| fixed.u32(offset).ok_or_else(broken_directory);
        if long(0)? != 0x0201_4b50 {
            return Err(broken_directory());
        }
        let lengths = [short(28)?, short(30)?, short(32)?].map(usize::from);
        let next = at + (ENTRY_BYTES + lengths.iter().sum::<usize>()) as u64;
        if next > end {
            return Err(broken_directory());
        }
        let rest = self.read(at + ENTRY_BYTES as u64, lengths[0] + lengths[1])?;
        let (name, extra) = rest.split_at(lengths[0]);
        let (method, flags) = (short(10)?, short(8)?);
        let show = || show(name);
        if flags & 1 != 0 {
            return Err(invalid_archive(format!("{} is encrypted", show())));
        }
        let is_deflated = match method {
            0 => false,
            8 => true,
            other => {
                return Err(invalid_archive(format!(
                    "{} is compressed by the unsupported method {other}; use deflate",
                    show()
                )));
            }
        };
        let mut zip64 = Zip64Sizes::find(extra)?;
        let size = zip64.or(long(24)?)?;
        let compressed = zip64.or(long(20)?)?;
        let header = zip64.or(long(42)?)?;
        if !is_deflated && size != compressed {
            return Err(invalid_archive(format!("{} has contradictory sizes", show())));
        }
        let is_unix = short(4)? >> 8 == 3;
        let mode = Some(long(38)? >> 16).filter(|mode| is_unix && *mode != 0);
        let modified = parse_dos_time(short(14)?, short(12)?);
        let crc = long(16)?;
        let name = name.to_vec();
        Ok((Entry { name, is_deflated, flags, crc, compressed, size, header, mode, modified }, next))
    }
}

/// Values of the ZIP64 extra field: sizes that do not fit into 32 bits, in order.
struct Zip64Sizes<'a>(&'a [u8]);

impl<'a> Zip64Sizes<'a> {
    fn find(mut extra: &'a [u8]) -> Result<Self, FileError> {
        let mut found = None;
        while let Some((id, length)) = Fields(extra).u16(0).zip(Fields(extra).u16(2)) {
            let content = extra.get(4..4 + usize::from(length)).ok_or_else(broken_directory)?;
            extra = &extra[4 + usize::from(length)..];
            if id == 1 && found.replace(content).is_some() {
                return Err(invalid_archive("the sizes of an entry are given twice"));
            }
        }
        Ok(Self(found.unwrap_or_default()))
    }

    fn or(&mut self, short: u32) -> Result<u64, FileError> {
        if short != u32::MAX {
            return Ok(short.into());
        }
        let value = Fields(self.0).u64(0).ok_or_else(broken_directory)?;
        self.0 = &self.0[8..];
        Ok(value)
    }
}

/// Little-endian fields of a record.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, offset: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.get(offset..offset + 2)?.try_into().ok()?))
    }

    fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.get(offset..offset + 4)?.try_into().ok()?))
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.get(offset..offset + 8)?.try_into().ok()?))
    }
}

/// Reads the content of an entry and checks it against the directory.
struct EntryReader<'a> {
    source: &'a Source<'a>,
    entry: &'a Entry,
    /// Offsets of the next compressed byte and of the end.
    at: u64,
    end: u64,
    inflate: Option<Decompress>,
    input: Vec<u8>,
    used: usize,
    output: Vec<u8>,
    crc: Crc,
    is_done: bool,
}

impl<'a> EntryReader<'a> {
    fn new(source: &'a Source<'a>, entry: &'a Entry, max_offset: u64) -> Result<Self, FileError> {
        let differs = || {
            invalid_archive(format!(
                "the central directory and the local header of {} differ",
                show(&entry.name)
            ))
        };
        let header = source.read(entry.header, LOCAL_BYTES)?;
        let fields = Fields(&header);
        let method = if entry.is_deflated { 8 } else { 0 };
        if fields.u32(0) != Some(0x0403_4b50)
            || fields.u16(6) != Some(entry.flags)
            || fields.u16(8) != Some(method)
            || fields.u16(26).map(usize::from) != Some(entry.name.len())
        {
            return Err(differs());
        }
        let extra = fields.u16(28).map(u64::from).ok_or_else(broken_directory)?;
        let name_at = entry.header + LOCAL_BYTES as u64;
        if source.read(name_at, entry.name.len())? != entry.name {
            return Err(differs());
        }
        let at = name_at + entry.name.len() as u64 + extra;
        let end =
            at.checked_add(entry.compressed).filter(|end| *end <= max_offset).ok_or_else(broken_directory)?;
        Ok(Self {
            source,
            entry,
            at,
            end,
            inflate: entry.is_deflated.then(|| Decompress::new(false)),
            input: Vec::new(),
            used: 0,
            output: Vec::with_capacity(CHUNK_BYTES),
            crc: Crc::new(),
            is_done: false,
        })
    }

    /// Returns the next bytes; `None` at the end, after the checksum and the size matched.
    fn next(&mut self) -> Result<Option<&[u8]>, FileError> {
        self.output.clear();
        while self.output.is_empty() && !self.is_done {
            self.fill()?;
        }
        self.crc.update(&self.output);
        let so_far = u64::from(self.crc.amount());
        if self.is_done && self.output.is_empty() {
            if self.crc.sum() != self.entry.crc || so_far != self.entry.size & 0xffff_ffff {
                return Err(invalid_archive(format!("the content of {} is corrupt", show(&self.entry.name))));
            }
            return Ok(None);
        }
        Ok(Some(&self.output))
    }

    fn fill(&mut self) -> Result<(), FileError> {
        if self.used == self.input.len() && self.at < self.end {
            let length = usize::try_from(self.end - self.at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            self.input = self.source.read(self.at, length)?;
            self.at += length as u64;
            self.used = 0;
        }
        let Some(inflate) = &mut self.inflate else {
            self.output = std::mem::take(&mut self.input);
            self.used = 0;
            self.is_done = self.output.is_empty();
            return Ok(());
        };
        let corrupt = || invalid_archive(format!("the content of {} is corrupt", show(&self.entry.name)));
        let before = inflate.total_in();
        let rest = &self.input[self.used..];
        let status =
            inflate.decompress_vec(rest, &mut self.output, FlushDecompress::None).map_err(|_| corrupt())?;
        let consumed = usize::try_from(inflate.total_in() - before).unwrap_or(0);
        self.used += consumed;
        if inflate.total_out() > self.entry.size {
            return Err(invalid_archive(format!(
                "{} is longer than its recorded size",
                show(&self.entry.name)
            )));
        }
        match status {
            Status::StreamEnd if self.at < self.end || self.used < self.input.len() => return Err(corrupt()),
            Status::StreamEnd => self.is_done = true,
            // The decompressor expects more input, and there is none.
            _ if consumed == 0 && self.output.is_empty() && self.at == self.end => return Err(corrupt()),
            _ => {}
        }
        Ok(())
    }
}

/// Converts a DOS date and time, taken as UTC, to seconds since 1970; `None` if the date is invalid.
fn parse_dos_time(date: u16, time: u16) -> Option<(i64, u32)> {
    let (year, month, day) = (i64::from(date >> 9) + 1980, i64::from(date >> 5 & 15), i64::from(date & 31));
    if !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    // Days of the Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let (hour, minute, second) = (i64::from(time >> 11), i64::from(time >> 5 & 63), i64::from(time & 31) * 2);
    Some((days * 86_400 + hour * 3600 + minute * 60 + second, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dos_dates_are_converted() {
        let date = |year: u16, month: u16, day: u16| (year - 1980) << 9 | month << 5 | day;
        assert_eq!(parse_dos_time(date(1980, 1, 1), 0), Some((315_532_800, 0)));
        assert_eq!(parse_dos_time(date(2000, 2, 29), 0), Some((951_782_400, 0)));
        assert_eq!(parse_dos_time(date(2024, 12, 31), 23 << 11 | 59 << 5 | 29), Some((1_735_689_598, 0)));
        assert_eq!(parse_dos_time(0, 0), None);
    }
}
