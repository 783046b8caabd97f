//! Streaming tar reader. Anything that two readers could interpret differently is an error: a checksum that does not
//! match, a duplicate record, contradictory sizes.

use crate::error::{ErrorKind, FileError};
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::meter::Meter;
use super::sparse::{MAX_SEGMENTS, Segment};
use super::stage::{Attributes, File, Stage};
use super::{BLOCK, invalid_archive, padding};
use crate::path::show;
use crate::walk::MAX_PATH_BYTES;

/// Maximum size of a record of names and attributes, in bytes: two names of maximum length, and some room.
const MAX_RECORD_BYTES: u64 = 2 * (MAX_PATH_BYTES as u64) + 64 * 1024;

/// Largest size that fits a header's field as digits. A larger one has a record of its own.
const MAX_DIGITS_SIZE: u64 = 0o777_7777_7777;

/// State of a tar being read.
#[derive(Default)]
pub(super) struct TarReader {
    state: State,
    /// Beginning of a block that is not complete yet.
    block: Vec<u8>,
    /// Attributes of the next entry, from records before it.
    extra: Extra,
}

#[derive(Default)]
enum State {
    /// Expects a header.
    #[default]
    Header,
    /// The first of the two empty blocks at the end was read.
    HalfEnd,
    /// The archive is complete.
    End,
    /// Expects a record's content.
    Record { kind: RecordKind, left: u64, padding: usize, content: Vec<u8> },
    /// Expects the rest of a sparse file's segment list.
    Parts(Box<SparseFile>),
    /// Expects a file's content.
    Content(Content),
    /// Skips content.
    Skip { left: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordKind {
    Name,
    Target,
    Pax,
    /// For all entries that follow.
    PaxGlobal,
    /// Has no effect.
    Ignored,
}

#[derive(Default)]
struct Extra {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    modified: Option<(i64, u32)>,
    has_pax: bool,
}

struct SparseFile {
    name: Option<Vec<u8>>,
    attributes: Attributes,
    size: u64,
    real_size: u64,
    parts: Vec<Segment>,
}

struct Content {
    /// `None` if the entry is left out.
    file: Option<File>,
    parts: std::vec::IntoIter<Segment>,
    current: Segment,
    padding: usize,
    /// Full size of a sparse file.
    real_size: Option<u64>,
}

impl TarReader {
    /// Consumes the next bytes of the archive.
    pub(super) fn take(
        &mut self,
        mut data: &[u8],
        stage: &mut Stage,
        meter: &mut Meter,
    ) -> Result<(), FileError> {
        while !data.is_empty() {
            match &mut self.state {
                State::End => return Ok(()),
                State::Header | State::HalfEnd | State::Parts(_) => {
                    let Some(block) = self.next_block(&mut data) else { return Ok(()) };
                    self.take_block(&block, stage, meter)?;
                }
                State::Record { left, padding, content, .. } => {
                    content.extend_from_slice(split_off(&mut data, left));
                    if *left == 0 && skip_padding(&mut data, padding) {
                        self.end_record()?;
                    }
                }
                State::Skip { left } => {
                    split_off(&mut data, left);
                    if *left == 0 {
                        self.state = State::Header;
                    }
                }
                State::Content(content) => {
                    if content.take(&mut data)? {
                        self.state = State::Header;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks at the end of the input that the archive is complete.
    pub(super) fn end(self) -> Result<(), FileError> {
        match self.state {
            State::End => Ok(()),
            _ => Err(invalid_archive("the end mark is missing")),
        }
    }

    fn next_block(&mut self, data: &mut &[u8]) -> Option<[u8; BLOCK]> {
        let mut missing = (BLOCK - self.block.len()) as u64;
        self.block.extend_from_slice(split_off(data, &mut missing));
        let block = self.block.as_slice().try_into().ok()?;
        self.block.clear();
        Some(block)
    }

    fn take_block(
        &mut self,
        block: &[u8; BLOCK],
        stage: &mut Stage,
        meter: &mut Meter,
    ) -> Result<(), FileError> {
        match std::mem::take(&mut self.state) {
            State::Parts(mut file) => {
                let mut more = GnuExtSparseHeader::new();
                more.as_mut_bytes().copy_from_slice(block);
                file.add(&more.sparse)?;
                if more.isextended[0] != 0 {
                    self.state = State::Parts(file);
                } else {
                    self.state = file.begin(stage)?;
                }
                Ok(())
            }
            State::HalfEnd if block.iter().all(|byte| *byte == 0) => {
                self.state = State::End;
                Ok(())
            }
            State::HalfEnd => Err(invalid_archive("an empty block in the middle")),
            _ if block.iter().all(|byte| *byte == 0) => {
                if self.extra.has_any() {
                    return Err(invalid_archive("a record of a name or attributes has no entry after it"));
                }
                self.state = State::HalfEnd;
                Ok(())
            }
            _ => self.take_header(Header::from_byte_slice(block), stage, meter),
        }
    }

    fn take_header(
        &mut self,
        header: &Header,
        stage: &mut Stage,
        meter: &mut Meter,
    ) -> Result<(), FileError> {
        check_checksum(header)?;
        meter.count_entry()?;
        let header_size = header.entry_size().map_err(|_| invalid_archive("a size is not a number"))?;
        if header_size > i64::MAX as u64 {
            return Err(invalid_archive("a size is larger than any file"));
        }
        let kind = header.entry_type();
        if let Some(kind) = record_kind(kind) {
            if header_size > MAX_RECORD_BYTES {
                return Err(invalid_archive(format!("a record of names has {header_size} bytes")));
            }
            meter.count_bytes(header_size)?;
            if kind == RecordKind::Ignored {
                self.state = skip_state(header_size);
                return Ok(());
            }
            let content = Vec::new();
            self.state = State::Record { kind, left: header_size, padding: padding(header_size), content };
            if header_size == 0 {
                return self.end_record();
            }
            return Ok(());
        }
        let extra = std::mem::take(&mut self.extra);
        let size = match extra.size {
            Some(size) if size != header_size && size <= MAX_DIGITS_SIZE => {
                return Err(invalid_archive(format!("an entry's size is both {header_size} and {size}")));
            }
            Some(size) => size,
            None => header_size,
        };
        self.take_entry(header, extra, size, stage, meter)
    }

    fn take_entry(
        &mut self,
        header: &Header,
        extra: Extra,
        size: u64,
        stage: &mut Stage,
        meter: &mut Meter,
    ) -> Result<(), FileError> {
        let raw = extra.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let name = stage.entry_name(&raw)?;
        let modified = extra.modified.or_else(|| Some((i64::try_from(header.mtime().ok()?).ok()?, 0)));
        let attributes = Attributes {
            mode: header.mode().map_err(|_| invalid_archive("a mode is not a number"))?,
            modified,
        };
        let kind = header.entry_type();
        let is_old_dir = kind.is_file() && raw.ends_with(b"/");
        let target = || {
            extra.target.clone().or_else(|| Some(header.link_name_bytes()?.into_owned())).unwrap_or_default()
        };
        let has_content = (kind.is_file() || kind.is_contiguous()) && !is_old_dir || kind.is_gnu_sparse();
        // Tar implementations disagree on whether content follows a directory with a size.
        if !has_content && size > 0 {
            return Err(invalid_archive(format!(
                "{} has content, which its type does not allow",
                show(&raw)
            )));
        }
        self.state = State::Header;
        if has_content {
            meter.count_bytes(size)?;
            meter.bytes += size;
            meter.entries += u64::from(name.is_some());
            let file = SparseFile::new(header, name, attributes, size)?;
            let is_extended =
                kind.is_gnu_sparse() && header.as_gnu().is_some_and(tar::GnuHeader::is_extended);
            self.state = if is_extended { State::Parts(Box::new(file)) } else { file.begin(stage)? };
            return Ok(());
        }
        match (kind, name) {
            (EntryType::Char | EntryType::Block, _) if is_whiteout(header) => meter.skipped += 1,
            (EntryType::Char | EntryType::Block, _) => {
                return Err(invalid_archive(format!("{} is a device", show(&raw))));
            }
            (EntryType::Fifo, _) => meter.skipped += 1,
            (EntryType::Symlink, Some(name)) => {
                stage.symbolic_link(&name, target(), attributes)?;
                meter.entries += 1;
            }
            (EntryType::Link, Some(name)) => {
                let of = target();
                let Some(of) = stage.entry_name(&of)? else {
                    return Err(invalid_archive(format!("the hard link {} has no target", show(&raw))));
                };
                stage.hard_link(&name, &of)?;
                meter.entries += 1;
            }
            (_, Some(name)) if kind.is_dir() || is_old_dir => {
                stage.directory(&name, attributes)?;
                meter.entries += 1;
            }
            (EntryType::Symlink | EntryType::Link | EntryType::Directory, None) => {}
            _ if is_old_dir => {}
            (kind, _) => {
                let kind = char::from(kind.as_byte()).escape_default();
                return Err(invalid_archive(format!("{} has the unsupported type '{kind}'", show(&raw))));
            }
        }
        Ok(())
    }

    /// Applies a complete record to the entry that follows it.
    fn end_record(&mut self) -> Result<(), FileError> {
        let State::Record { kind, content, .. } = std::mem::take(&mut self.state) else { return Ok(()) };
        let duplicate = |what| Err(invalid_archive(format!("the {what} of an entry is given twice")));
        match kind {
            RecordKind::Name if self.extra.name.is_some() => duplicate("name"),
            RecordKind::Name => {
                self.extra.name = Some(truncate_at_nul(content));
                Ok(())
            }
            RecordKind::Target if self.extra.target.is_some() => duplicate("target"),
            RecordKind::Target => {
                self.extra.target = Some(truncate_at_nul(content));
                Ok(())
            }
            RecordKind::Pax if self.extra.has_pax => duplicate("set of attributes"),
            RecordKind::Pax => {
                self.extra.has_pax = true;
                self.extra.take_pax(&content)
            }
            RecordKind::PaxGlobal => {
                let mut global = Extra::default();
                global.take_pax(&content)?;
                if global.name.is_some() || global.target.is_some() || global.size.is_some() {
                    return Err(invalid_archive("a name or a size is set for all entries"));
                }
                Ok(())
            }
            RecordKind::Ignored => Ok(()),
        }
    }
}

impl Extra {
    fn has_any(&self) -> bool {
        self.has_pax || self.name.is_some() || self.target.is_some()
    }

    fn take_pax(&mut self, content: &[u8]) -> Result<(), FileError> {
        let mut seen = std::collections::HashSet::new();
        let mut rest = content;
        while !rest.is_empty() {
            let (key, value, after) =
                parse_pax_record(rest).ok_or_else(|| invalid_archive("a set of attributes is malformed"))?;
            rest = after;
            if !seen.insert(key) {
                return Err(invalid_archive(format!(
                    "the attribute {} is given twice for one entry",
                    show(key)
                )));
            }
            self.take_attribute(key, value)?;
        }
        Ok(())
    }

    fn take_attribute(&mut self, key: &[u8], value: &[u8]) -> Result<(), FileError> {
        let invalid = || invalid_archive(format!("the attribute {} is {}", show(key), show(value)));
        match key {
            // An empty value resets the attribute.
            _ if value.is_empty() => {}
            b"path" if self.name.is_some() => {
                return Err(invalid_archive("the name of an entry is given twice"));
            }
            b"path" => self.name = Some(value.to_vec()),
            b"linkpath" if self.target.is_some() => {
                return Err(invalid_archive("the target of an entry is given twice"));
            }
            b"linkpath" => self.target = Some(value.to_vec()),
            b"size" => {
                let digits = value.iter().all(u8::is_ascii_digit);
                let size = std::str::from_utf8(value).ok().filter(|_| digits);
                let size: i64 = size.and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
                self.size = u64::try_from(size).ok();
            }
            b"mtime" => self.modified = Some(parse_time(value).ok_or_else(invalid)?),
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(invalid_archive(
                    "sparse files in PAX format are not supported; create the archive with --format=gnu",
                ));
            }
            // Owners, extended attributes and access lists are those of the sandbox.
            _ => {}
        }
        Ok(())
    }
}

impl SparseFile {
    fn new(
        header: &Header,
        name: Option<Vec<u8>>,
        attributes: Attributes,
        size: u64,
    ) -> Result<Self, FileError> {
        let mut file = Self { name, attributes, size, real_size: size, parts: Vec::new() };
        if !header.entry_type().is_gnu_sparse() {
            file.parts.push(Segment { offset: 0, length: size });
            return Ok(file);
        }
        let gnu = header.as_gnu().ok_or_else(|| invalid_archive("a sparse file is not in GNU format"))?;
        file.real_size = gnu.real_size().map_err(|_| invalid_archive("a size is not a number"))?;
        if i64::try_from(file.real_size).is_err() {
            return Err(invalid_archive("a size is larger than any file"));
        }
        file.add(&gnu.sparse)?;
        Ok(file)
    }

    fn add(&mut self, segments: &[GnuSparseHeader]) -> Result<(), FileError> {
        let invalid = || invalid_archive("the segments of a sparse file are inconsistent");
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            let offset = segment.offset().map_err(|_| invalid())?;
            let length = segment.length().map_err(|_| invalid())?;
            let min_offset = self.parts.last().map_or(0, |part| part.offset + part.length);
            let end = offset.checked_add(length).ok_or_else(invalid)?;
            if offset < min_offset || end > self.real_size || self.parts.len() > MAX_SEGMENTS {
                return Err(invalid());
            }
            self.parts.push(Segment { offset, length });
        }
        Ok(())
    }

    /// Creates the file, once its segments are complete.
    fn begin(self, stage: &mut Stage) -> Result<State, FileError> {
        if self.parts.iter().map(|part| part.length).sum::<u64>() != self.size {
            return Err(invalid_archive("the segments of a sparse file do not add up to its size"));
        }
        if self.real_size > stage.max_file_bytes() {
            let (name, limit) = (show(self.name.as_deref().unwrap_or_default()), stage.max_file_bytes());
            return Err(FileError::new(
                ErrorKind::Exhausted,
                format!("the file {name} has {} bytes; at most {limit} are allowed", self.real_size),
            ));
        }
        let file = match &self.name {
            Some(name) => Some(stage.file(name, self.attributes)?),
            None => None,
        };
        let mut parts = self.parts.into_iter();
        let current = parts.next().unwrap_or(Segment { offset: 0, length: 0 });
        let real_size = (self.real_size != self.size).then_some(self.real_size);
        let mut content = Content { file, parts, current, padding: padding(self.size), real_size };
        // An empty file is complete at once.
        Ok(if content.take(&mut [].as_slice())? { State::Header } else { State::Content(content) })
    }
}

impl Content {
    /// Consumes content; returns true once the file is complete.
    fn take(&mut self, data: &mut &[u8]) -> Result<bool, FileError> {
        loop {
            if self.current.length == 0 {
                let Some(next) = self.parts.next() else { break };
                self.current = next;
                continue;
            }
            if data.is_empty() {
                return Ok(false);
            }
            let piece = split_off(data, &mut self.current.length);
            if let Some(file) = &self.file {
                file.write(piece, self.current.offset)?;
            }
            self.current.offset += piece.len() as u64;
        }
        if let Some(file) = self.file.take() {
            file.finish(self.real_size)?;
        }
        Ok(skip_padding(data, &mut self.padding))
    }
}

fn record_kind(kind: EntryType) -> Option<RecordKind> {
    Some(match kind {
        EntryType::GNULongName => RecordKind::Name,
        EntryType::GNULongLink => RecordKind::Target,
        EntryType::XHeader => RecordKind::Pax,
        EntryType::XGlobalHeader => RecordKind::PaxGlobal,
        // The volume label.
        kind if kind.as_byte() == b'V' => RecordKind::Ignored,
        _ => return None,
    })
}

fn skip_state(size: u64) -> State {
    match size {
        0 => State::Header,
        size => State::Skip { left: size + padding(size) as u64 },
    }
}

fn check_checksum(header: &Header) -> Result<(), FileError> {
    let bytes = header.as_bytes();
    let field = 148..156;
    let sum: u32 = bytes
        .iter()
        .enumerate()
        .map(|(index, byte)| if field.contains(&index) { u32::from(b' ') } else { u32::from(*byte) })
        .sum();
    match header.cksum() {
        Ok(stored) if stored == sum => Ok(()),
        _ => Err(invalid_archive("not a tar, or corrupt: header checksum mismatch")),
    }
}

/// Reports whether the entry is a whiteout: the device 0:0, which hides a file of a lower layer. A sandbox's files have
/// no layers.
fn is_whiteout(header: &Header) -> bool {
    header.entry_type() == EntryType::Char
        && header.device_major().ok().flatten().unwrap_or(0) == 0
        && header.device_minor().ok().flatten().unwrap_or(0) == 0
}

/// Splits at most `left` bytes off `data` and decrements `left`.
fn split_off<'a>(data: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
    let (piece, rest) = data.split_at(length);
    *data = rest;
    *left -= length as u64;
    piece
}

/// Skips padding; returns true once all of it was read.
fn skip_padding(data: &mut &[u8], padding: &mut usize) -> bool {
    let length = (*padding).min(data.len());
    *data = &data[length..];
    *padding -= length;
    *padding == 0
}

fn truncate_at_nul(mut content: Vec<u8>) -> Vec<u8> {
    let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
    content.truncate(end);
    content
}

/// Parses a record `LENGTH KEY=VALUE\n`; returns key, value and the rest.
fn parse_pax_record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(20).position(|byte| *byte == b' ')?;
    let digits = data.get(..space).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &data[length..]))
}

/// Parses seconds since 1970 with a fraction, as in PAX records.
fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    // Before 1970, the fraction counts backwards.
    match (whole.starts_with('-'), nanoseconds) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        _ => Some((seconds, nanoseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_records_are_parsed_by_length() {
        assert_eq!(parse_pax_record(b"8 path=a\n"), None, "one byte short");
        assert_eq!(
            parse_pax_record(b"9 path=a\n"),
            Some((b"path".as_slice(), b"a".as_slice(), b"".as_slice()))
        );
        let newline = parse_pax_record(b"12 path=a\nb\n10 x=1234\n").unwrap();
        assert_eq!(newline.1, b"a\nb");
        for broken in
            [b"".as_slice(), b"10", b"10 path\n", b"-1 a=b\n", b"99999999999999999999 a=b\n", b"3 a=b\n"]
        {
            assert_eq!(parse_pax_record(broken), None, "{}", broken.escape_ascii());
        }
    }

    #[test]
    fn times_are_parsed_with_fractions() {
        assert_eq!(parse_time(b"1.5"), Some((1, 500_000_000)));
        assert_eq!(parse_time(b"1700000000"), Some((1_700_000_000, 0)));
        assert_eq!(parse_time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parse_time(b"1.1234567899"), Some((1, 123_456_789)));
        assert_eq!(parse_time(b"x"), None);
        assert_eq!(parse_time(b"1.x"), None);
    }
}
