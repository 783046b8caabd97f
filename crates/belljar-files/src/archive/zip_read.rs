//! Reading a zip from a file, by its list of entries at the end. One entry is in memory at a time, so a list of any length
//! takes no memory. What the list and an entry's own header say differently is an error.

use std::os::fd::OwnedFd;

use flate2::{Crc, Decompress, FlushDecompress, Status};
use rustix::buffer::spare_capacity;
use rustix::io::{pread, retry_on_intr};

use super::bad;
use super::meter::Meter;
use super::names::MAX_TARGET_BYTES;
use super::stage::{Attributes, Stage};
use crate::error::{FileError, failure};
use crate::path::show;

/// What is read at once, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// The end record: without its comment, and with the longest.
const END_BYTES: u64 = 22;
const END_BYTES_MOST: u64 = END_BYTES + 0xffff;

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
    let list = source.find_list()?;
    let mut at = list.begin;
    let mut compressed = 0u64;
    let mut content = 0u64;
    for _ in 0..list.entries {
        meter.entry()?;
        let (entry, next) = source.entry(at, list.end)?;
        at = next;
        // Entries that share their bytes are how a small archive becomes a large one.
        compressed = compressed.saturating_add(entry.compressed);
        if compressed > list.begin {
            return Err(bad("its entries overlap"));
        }
        content = content.saturating_add(entry.size);
        meter.ratio(length, content)?;
        meter.bytes(entry.size)?;
        unpack_entry(&source, &entry, list.begin, stage, meter).await?;
        tokio::task::yield_now().await;
    }
    if at != list.end {
        return Err(bad("its list holds more than the entries it tells of"));
    }
    Ok(())
}

async fn unpack_entry(
    source: &Source<'_>,
    entry: &Entry,
    most: u64,
    stage: &mut Stage,
    meter: &mut Meter,
) -> Result<(), FileError> {
    const KIND: u32 = 0o170_000;
    let Some(name) = stage.entry_name(&entry.name)? else { return Ok(()) };
    let is_dir = entry.name.ends_with(b"/");
    let mode = entry.mode.unwrap_or(if is_dir { 0o755 } else { 0o644 });
    let attributes = Attributes { mode: mode & 0o7777, modified: entry.modified };
    let mut content = Inflating::new(source, entry, most)?;
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
                return Err(bad(format!("the symbolic link {} has a target that cannot be", show(&name))));
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
        0o020_000 | 0o060_000 => return Err(bad(format!("{} is a device", show(&entry.name)))),
        _ => return Err(bad(format!("{} is of a kind that its name does not fit", show(&entry.name)))),
    }
    meter.entries += 1;
    Ok(())
}

struct Source<'a> {
    file: &'a OwnedFd,
    length: u64,
}

/// Where the list of entries is.
struct List {
    begin: u64,
    end: u64,
    entries: u64,
}

/// An entry as the list tells it.
struct Entry {
    name: Vec<u8>,
    is_deflated: bool,
    flags: u16,
    crc: u32,
    compressed: u64,
    size: u64,
    /// Where its own header is.
    header: u64,
    /// Kind and permission bits, where it was made on Unix.
    mode: Option<u32>,
    modified: Option<(i64, u32)>,
}

fn broken() -> FileError {
    bad("it is no zip, or broken: its list of entries does not fit")
}

impl Source<'_> {
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, FileError> {
        if offset.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(broken());
        }
        let mut data = Vec::with_capacity(length);
        while data.len() < length {
            let at = offset + data.len() as u64;
            let read = retry_on_intr(|| pread(self.file, spare_capacity(&mut data), at))
                .map_err(|errno| failure("unpack", b"the archive", errno))?;
            if read == 0 {
                return Err(broken());
            }
        }
        data.truncate(length);
        Ok(data)
    }

    fn find_list(&self) -> Result<List, FileError> {
        let length = self.length.min(END_BYTES_MOST);
        let begin = self.length - length;
        let tail = self.read(begin, usize::try_from(length).unwrap_or(0))?;
        let last = tail.len().checked_sub(22).ok_or_else(broken)?;
        let is_end = |at: &usize| {
            let record = Fields(&tail[*at..]);
            record.u32(0) == Some(0x0605_4b50)
                && record.u16(20).map(usize::from) == Some(tail.len() - at - 22)
        };
        let at = (0..=last).rev().find(is_end).ok_or_else(broken)?;
        let record = Fields(&tail[at..]);
        let end = begin + at as u64;
        let short = |offset| record.u16(offset).ok_or_else(broken);
        let long = |offset| record.u32(offset).ok_or_else(broken);
        let (disk, here, entries) = (short(4)?, short(8)?, short(10)?);
        let (bytes, offset) = (long(12)?, long(16)?);
        let list = if here == u16::MAX || entries == u16::MAX || bytes == u32::MAX || offset == u32::MAX {
            self.find_large_list(end)?
        } else {
            if disk != 0 || here != entries {
                return Err(bad("it has several volumes"));
            }
            let begin = u64::from(offset);
            List { begin, end: begin + u64::from(bytes), entries: entries.into() }
        };
        // What stands before or between is of no use to anybody honest, and other readers may see other entries there.
        if list.end > end || (list.end != end && list.end + LOCATOR_BYTES + 56 > end) {
            return Err(broken());
        }
        Ok(list)
    }

    /// The list of an archive with more than 65,535 entries or 4 GiB.
    fn find_large_list(&self, end: u64) -> Result<List, FileError> {
        let locator_at = end.checked_sub(LOCATOR_BYTES).ok_or_else(broken)?;
        let locator = self.read(locator_at, 20)?;
        let locator = Fields(&locator);
        if locator.u32(0) != Some(0x0706_4b50) {
            return Err(broken());
        }
        let at = locator.u64(8).ok_or_else(broken)?;
        let record = self.read(at, 56)?;
        let record = Fields(&record);
        let long = |offset| record.u64(offset).ok_or_else(broken);
        if record.u32(0) != Some(0x0606_4b50) || long(24)? != long(32)? {
            return Err(broken());
        }
        let begin = long(48)?;
        let list_end = begin.checked_add(long(40)?).ok_or_else(broken)?;
        if list_end != at {
            return Err(broken());
        }
        Ok(List { begin, end: list_end, entries: long(32)? })
    }

    /// The entry of the list at `at`, and where the next one is.
    fn entry(&self, at: u64, end: u64) -> Result<(Entry, u64), FileError> {
        let fixed = self.read(at, ENTRY_BYTES)?;
        let fixed = Fields(&fixed);
        let short = |offset| fixed.u16(offset).ok_or_else(broken);
        let long = |offset| fixed.u32(offset).ok_or_else(broken);
        if long(0)? != 0x0201_4b50 {
            return Err(broken());
        }
        let lengths = [short(28)?, short(30)?, short(32)?].map(usize::from);
        let next = at + (ENTRY_BYTES + lengths.iter().sum::<usize>()) as u64;
        if next > end {
            return Err(broken());
        }
        let rest = self.read(at + ENTRY_BYTES as u64, lengths[0] + lengths[1])?;
        let (name, extra) = rest.split_at(lengths[0]);
        let (method, flags) = (short(10)?, short(8)?);
        let show = || show(name);
        if flags & 1 != 0 {
            return Err(bad(format!("{} is encrypted", show())));
        }
        let is_deflated = match method {
            0 => false,
            8 => true,
            other => {
                return Err(bad(format!(
                    "{} is compressed by method {other}, which is not supported; deflate is",
                    show()
                )));
            }
        };
        let mut large = Large::find(extra)?;
        let size = large.or(long(24)?)?;
        let compressed = large.or(long(20)?)?;
        let header = large.or(long(42)?)?;
        if !is_deflated && size != compressed {
            return Err(bad(format!("{} has two sizes", show())));
        }
        let is_unix = short(4)? >> 8 == 3;
        let mode = Some(long(38)? >> 16).filter(|mode| is_unix && *mode != 0);
        let modified = modified(short(14)?, short(12)?);
        let crc = long(16)?;
        let name = name.to_vec();
        Ok((Entry { name, is_deflated, flags, crc, compressed, size, header, mode, modified }, next))
    }
}

/// The sizes that did not fit into 32 bits, in their order.
struct Large<'a>(&'a [u8]);

impl<'a> Large<'a> {
    fn find(mut extra: &'a [u8]) -> Result<Self, FileError> {
        let mut found = None;
        while let Some((id, length)) = Fields(extra).u16(0).zip(Fields(extra).u16(2)) {
            let content = extra.get(4..4 + usize::from(length)).ok_or_else(broken)?;
            extra = &extra[4 + usize::from(length)..];
            if id == 1 && found.replace(content).is_some() {
                return Err(bad("the sizes of an entry are told twice"));
            }
        }
        Ok(Self(found.unwrap_or_default()))
    }

    fn or(&mut self, short: u32) -> Result<u64, FileError> {
        if short != u32::MAX {
            return Ok(short.into());
        }
        let value = Fields(self.0).u64(0).ok_or_else(broken)?;
        self.0 = &self.0[8..];
        Ok(value)
    }
}

/// Numbers in the order of bytes that a zip has them in.
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

/// The content of an entry, checked against what the list says of it.
struct Inflating<'a> {
    source: &'a Source<'a>,
    entry: &'a Entry,
    /// Where the next compressed bytes are, and where they end.
    at: u64,
    end: u64,
    inflate: Option<Decompress>,
    input: Vec<u8>,
    used: usize,
    output: Vec<u8>,
    crc: Crc,
    is_done: bool,
}

impl<'a> Inflating<'a> {
    fn new(source: &'a Source<'a>, entry: &'a Entry, most: u64) -> Result<Self, FileError> {
        let differs = || bad(format!("the list and the header of {} differ", show(&entry.name)));
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
        let extra = fields.u16(28).map(u64::from).ok_or_else(broken)?;
        let name_at = entry.header + LOCAL_BYTES as u64;
        if source.read(name_at, entry.name.len())? != entry.name {
            return Err(differs());
        }
        let at = name_at + entry.name.len() as u64 + extra;
        let end = at.checked_add(entry.compressed).filter(|end| *end <= most).ok_or_else(broken)?;
        Ok(Self {
            source,
            entry,
            at,
            end,
            inflate: entry.is_deflated.then(|| Decompress::new(false)),
            input: Vec::new(),
            used: 0,
            output: Vec::with_capacity(PIECE_BYTES),
            crc: Crc::new(),
            is_done: false,
        })
    }

    /// The next bytes; `None` at the end, when all of it was found right.
    fn next(&mut self) -> Result<Option<&[u8]>, FileError> {
        self.output.clear();
        while self.output.is_empty() && !self.is_done {
            self.fill()?;
        }
        self.crc.update(&self.output);
        let so_far = u64::from(self.crc.amount());
        if self.is_done && self.output.is_empty() {
            if self.crc.sum() != self.entry.crc || so_far != self.entry.size & 0xffff_ffff {
                return Err(bad(format!("the content of {} is broken", show(&self.entry.name))));
            }
            return Ok(None);
        }
        Ok(Some(&self.output))
    }

    fn fill(&mut self) -> Result<(), FileError> {
        if self.used == self.input.len() && self.at < self.end {
            let length = usize::try_from(self.end - self.at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
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
        let broken = || bad(format!("the content of {} is broken", show(&self.entry.name)));
        let before = inflate.total_in();
        let rest = &self.input[self.used..];
        let status =
            inflate.decompress_vec(rest, &mut self.output, FlushDecompress::None).map_err(|_| broken())?;
        let taken = usize::try_from(inflate.total_in() - before).unwrap_or(0);
        self.used += taken;
        if inflate.total_out() > self.entry.size {
            return Err(bad(format!("{} is longer than it tells", show(&self.entry.name))));
        }
        match status {
            Status::StreamEnd if self.at < self.end || self.used < self.input.len() => return Err(broken()),
            Status::StreamEnd => self.is_done = true,
            // It wants more, and there is none.
            _ if taken == 0 && self.output.is_empty() && self.at == self.end => return Err(broken()),
            _ => {}
        }
        Ok(())
    }
}

/// Seconds since 1970 of a DOS date and time, taken as UTC; `None` where there is none.
fn modified(date: u16, time: u16) -> Option<(i64, u32)> {
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
    fn dates_become_seconds() {
        let date = |year: u16, month: u16, day: u16| (year - 1980) << 9 | month << 5 | day;
        assert_eq!(modified(date(1980, 1, 1), 0), Some((315_532_800, 0)));
        assert_eq!(modified(date(2000, 2, 29), 0), Some((951_782_400, 0)));
        assert_eq!(modified(date(2024, 12, 31), 23 << 11 | 59 << 5 | 29), Some((1_735_689_598, 0)));
        assert_eq!(modified(0, 0), None);
    }
}
