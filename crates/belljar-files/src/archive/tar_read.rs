//! Reading a tar as it comes, piece by piece. What two readers could understand differently is an error: a checksum that
//! does not hold, a record that is there twice, a size that is told in two ways.

use crate::error::{ErrorKind, FileError};
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::meter::Meter;
use super::sparse::{MAX_SEGMENTS, Segment};
use super::stage::{Attributes, File, Stage};
use super::{BLOCK, bad, padding};
use crate::path::show;
use crate::walk::MAX_PATH_BYTES;

/// The longest record of names and attributes, in bytes: two names of the longest kind, and some room.
const MAX_RECORD_BYTES: u64 = 2 * (MAX_PATH_BYTES as u64) + 64 * 1024;

/// The largest size that a header's field holds as digits. A larger one is told by a record.
const MAX_DIGITS: u64 = 0o777_7777_7777;

/// A tar that is being read.
#[derive(Default)]
pub(super) struct TarReader {
    state: State,
    /// The beginning of a block whose rest has not come.
    block: Vec<u8>,
    /// What records have said of the next entry.
    extra: Extra,
}

#[derive(Default)]
enum State {
    /// A header comes.
    #[default]
    Header,
    /// The first of the two empty blocks at the end has come.
    HalfEnd,
    /// Everything has come.
    End,
    /// A record's content comes.
    Record { kind: RecordKind, left: u64, padding: usize, content: Vec<u8> },
    /// More of a list of a file's parts comes.
    Parts(Box<SparseFile>),
    /// A file's content comes.
    Content(Content),
    /// Nothing of interest comes.
    Skip { left: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordKind {
    Name,
    Target,
    Pax,
    /// For all that follow.
    PaxGlobal,
    /// Of no meaning here.
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
    /// `None` when the entry has no place.
    file: Option<File>,
    parts: std::vec::IntoIter<Segment>,
    now: Segment,
    padding: usize,
    /// Of a file with holes.
    real_size: Option<u64>,
}

impl TarReader {
    /// Takes the next bytes of the archive.
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
                    content.extend_from_slice(cut(&mut data, left));
                    if *left == 0 && cut_padding(&mut data, padding) {
                        self.end_record()?;
                    }
                }
                State::Skip { left } => {
                    cut(&mut data, left);
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

    /// Says whether the archive is whole, when no more comes.
    pub(super) fn end(self) -> Result<(), FileError> {
        match self.state {
            State::End => Ok(()),
            _ => Err(bad("it ends before its end mark")),
        }
    }

    fn next_block(&mut self, data: &mut &[u8]) -> Option<[u8; BLOCK]> {
        let mut missing = (BLOCK - self.block.len()) as u64;
        self.block.extend_from_slice(cut(data, &mut missing));
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
            State::HalfEnd => Err(bad("an empty block is in its middle")),
            _ if block.iter().all(|byte| *byte == 0) => {
                if self.extra.is_any() {
                    return Err(bad("a record of a name or attributes has no entry behind it"));
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
        check_sum(header)?;
        meter.entry()?;
        let told = header.entry_size().map_err(|_| bad("a size is no number"))?;
        if told > i64::MAX as u64 {
            return Err(bad("a size is larger than any file"));
        }
        let kind = header.entry_type();
        if let Some(kind) = record_kind(kind) {
            if told > MAX_RECORD_BYTES {
                return Err(bad(format!("a record of names has {told} bytes")));
            }
            meter.bytes(told)?;
            if kind == RecordKind::Ignored {
                self.state = skip(told);
                return Ok(());
            }
            let content = Vec::new();
            self.state = State::Record { kind, left: told, padding: padding(told), content };
            if told == 0 {
                return self.end_record();
            }
            return Ok(());
        }
        let extra = std::mem::take(&mut self.extra);
        let size = match extra.size {
            Some(size) if size != told && size <= MAX_DIGITS => {
                return Err(bad(format!("an entry's size is told as {told} and as {size}")));
            }
            Some(size) => size,
            None => told,
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
        let attributes =
            Attributes { mode: header.mode().map_err(|_| bad("a mode is no number"))?, modified };
        let kind = header.entry_type();
        let is_old_dir = kind.is_file() && raw.ends_with(b"/");
        let target = || {
            extra.target.clone().or_else(|| Some(header.link_name_bytes()?.into_owned())).unwrap_or_default()
        };
        let has_content = (kind.is_file() || kind.is_contiguous()) && !is_old_dir || kind.is_gnu_sparse();
        // Of a directory's size it is not agreed whether that many bytes follow.
        if !has_content && size > 0 {
            return Err(bad(format!("{} has content, which no entry of its kind has", show(&raw))));
        }
        self.state = State::Header;
        if has_content {
            meter.bytes(size)?;
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
                return Err(bad(format!("{} is a device", show(&raw))));
            }
            (EntryType::Fifo, _) => meter.skipped += 1,
            (EntryType::Symlink, Some(name)) => {
                stage.symbolic_link(&name, target(), attributes)?;
                meter.entries += 1;
            }
            (EntryType::Link, Some(name)) => {
                let of = target();
                let Some(of) = stage.entry_name(&of)? else {
                    return Err(bad(format!("the hard link {} is to nothing", show(&raw))));
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
                return Err(bad(format!("{} is of the kind '{kind}', which is not supported", show(&raw))));
            }
        }
        Ok(())
    }

    /// Takes over what a record says of the entry behind it.
    fn end_record(&mut self) -> Result<(), FileError> {
        let State::Record { kind, content, .. } = std::mem::take(&mut self.state) else { return Ok(()) };
        let twice = |what| Err(bad(format!("the {what} of an entry is told twice")));
        match kind {
            RecordKind::Name if self.extra.name.is_some() => twice("name"),
            RecordKind::Name => {
                self.extra.name = Some(until_nul(content));
                Ok(())
            }
            RecordKind::Target if self.extra.target.is_some() => twice("target"),
            RecordKind::Target => {
                self.extra.target = Some(until_nul(content));
                Ok(())
            }
            RecordKind::Pax if self.extra.has_pax => twice("set of attributes"),
            RecordKind::Pax => {
                self.extra.has_pax = true;
                self.extra.take_pax(&content)
            }
            RecordKind::PaxGlobal => {
                let mut global = Extra::default();
                global.take_pax(&content)?;
                if global.name.is_some() || global.target.is_some() || global.size.is_some() {
                    return Err(bad("a name or a size is told for all entries"));
                }
                Ok(())
            }
            RecordKind::Ignored => Ok(()),
        }
    }
}

impl Extra {
    fn is_any(&self) -> bool {
        self.has_pax || self.name.is_some() || self.target.is_some()
    }

    fn take_pax(&mut self, content: &[u8]) -> Result<(), FileError> {
        let mut seen = std::collections::HashSet::new();
        let mut rest = content;
        while !rest.is_empty() {
            let (key, value, after) = pax_record(rest).ok_or_else(|| bad("a set of attributes is broken"))?;
            rest = after;
            if !seen.insert(key) {
                return Err(bad(format!("the attribute {} is told twice for one entry", show(key))));
            }
            self.take_attribute(key, value)?;
        }
        Ok(())
    }

    fn take_attribute(&mut self, key: &[u8], value: &[u8]) -> Result<(), FileError> {
        let wrong = || bad(format!("the attribute {} is {}", show(key), show(value)));
        match key {
            // An empty value takes the attribute back.
            _ if value.is_empty() => {}
            b"path" if self.name.is_some() => return Err(bad("the name of an entry is told twice")),
            b"path" => self.name = Some(value.to_vec()),
            b"linkpath" if self.target.is_some() => {
                return Err(bad("the target of an entry is told twice"));
            }
            b"linkpath" => self.target = Some(value.to_vec()),
            b"size" => {
                let digits = value.iter().all(u8::is_ascii_digit);
                let size = std::str::from_utf8(value).ok().filter(|_| digits);
                let size: i64 = size.and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
                self.size = u64::try_from(size).ok();
            }
            b"mtime" => self.modified = Some(time(value).ok_or_else(wrong)?),
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(bad(
                    "it has files with holes in the form of PAX, which is not supported; make it with --format=gnu",
                ));
            }
            // Owners, extended attributes, access lists: the sandbox has its own.
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
        let gnu = header.as_gnu().ok_or_else(|| bad("a file with holes is not in GNU's form"))?;
        file.real_size = gnu.real_size().map_err(|_| bad("a size is no number"))?;
        if i64::try_from(file.real_size).is_err() {
            return Err(bad("a size is larger than any file"));
        }
        file.add(&gnu.sparse)?;
        Ok(file)
    }

    fn add(&mut self, places: &[GnuSparseHeader]) -> Result<(), FileError> {
        let wrong = || bad("the parts of a file with holes do not fit");
        for place in places.iter().filter(|place| !place.is_empty()) {
            let offset = place.offset().map_err(|_| wrong())?;
            let length = place.length().map_err(|_| wrong())?;
            let least = self.parts.last().map_or(0, |part| part.offset + part.length);
            let end = offset.checked_add(length).ok_or_else(wrong)?;
            if offset < least || end > self.real_size || self.parts.len() > MAX_SEGMENTS {
                return Err(wrong());
            }
            self.parts.push(Segment { offset, length });
        }
        Ok(())
    }

    /// Makes the file, when all is known of it.
    fn begin(self, stage: &mut Stage) -> Result<State, FileError> {
        if self.parts.iter().map(|part| part.length).sum::<u64>() != self.size {
            return Err(bad("the parts of a file with holes do not add up to its size"));
        }
        if self.real_size > stage.max_file_bytes() {
            let (name, most) = (show(self.name.as_deref().unwrap_or_default()), stage.max_file_bytes());
            return Err(FileError::new(
                ErrorKind::Exhausted,
                format!("the file {name} has {} bytes; at most {most} are allowed", self.real_size),
            ));
        }
        let file = match &self.name {
            Some(name) => Some(stage.file(name, self.attributes)?),
            None => None,
        };
        let mut parts = self.parts.into_iter();
        let now = parts.next().unwrap_or(Segment { offset: 0, length: 0 });
        let real_size = (self.real_size != self.size).then_some(self.real_size);
        let mut content = Content { file, parts, now, padding: padding(self.size), real_size };
        // One without content is whole at once.
        Ok(if content.take(&mut [].as_slice())? { State::Header } else { State::Content(content) })
    }
}

impl Content {
    /// Says true when the file is whole.
    fn take(&mut self, data: &mut &[u8]) -> Result<bool, FileError> {
        loop {
            if self.now.length == 0 {
                let Some(next) = self.parts.next() else { break };
                self.now = next;
                continue;
            }
            if data.is_empty() {
                return Ok(false);
            }
            let piece = cut(data, &mut self.now.length);
            if let Some(file) = &self.file {
                file.write(piece, self.now.offset)?;
            }
            self.now.offset += piece.len() as u64;
        }
        if let Some(file) = self.file.take() {
            file.finish(self.real_size)?;
        }
        Ok(cut_padding(data, &mut self.padding))
    }
}

fn record_kind(kind: EntryType) -> Option<RecordKind> {
    Some(match kind {
        EntryType::GNULongName => RecordKind::Name,
        EntryType::GNULongLink => RecordKind::Target,
        EntryType::XHeader => RecordKind::Pax,
        EntryType::XGlobalHeader => RecordKind::PaxGlobal,
        // The name of the volume.
        kind if kind.as_byte() == b'V' => RecordKind::Ignored,
        _ => return None,
    })
}

fn skip(size: u64) -> State {
    match size {
        0 => State::Header,
        size => State::Skip { left: size + padding(size) as u64 },
    }
}

fn check_sum(header: &Header) -> Result<(), FileError> {
    let bytes = header.as_bytes();
    let field = 148..156;
    let sum: u32 = bytes
        .iter()
        .enumerate()
        .map(|(index, byte)| if field.contains(&index) { u32::from(b' ') } else { u32::from(*byte) })
        .sum();
    match header.cksum() {
        Ok(told) if told == sum => Ok(()),
        _ => Err(bad("it is no tar, or broken: a header's checksum does not hold")),
    }
}

/// The device 0:0 hides a file of a lower layer, which a sandbox's files do not have.
fn is_whiteout(header: &Header) -> bool {
    header.entry_type() == EntryType::Char
        && header.device_major().ok().flatten().unwrap_or(0) == 0
        && header.device_minor().ok().flatten().unwrap_or(0) == 0
}

/// Takes at most `left` bytes, and counts them off.
fn cut<'a>(data: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
    let (piece, rest) = data.split_at(length);
    *data = rest;
    *left -= length as u64;
    piece
}

/// Says true when all of the padding has come.
fn cut_padding(data: &mut &[u8], padding: &mut usize) -> bool {
    let length = (*padding).min(data.len());
    *data = &data[length..];
    *padding -= length;
    *padding == 0
}

fn until_nul(mut content: Vec<u8>) -> Vec<u8> {
    let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
    content.truncate(end);
    content
}

/// A record `LENGTH KEY=VALUE\n`, and what follows it.
fn pax_record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(20).position(|byte| *byte == b' ')?;
    let digits = data.get(..space).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &data[length..]))
}

/// Seconds since 1970 with a fraction, as PAX has them.
fn time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    // Before 1970 the fraction counts backwards.
    match (whole.starts_with('-'), nanoseconds) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        _ => Some((seconds, nanoseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_records_are_read_by_their_length() {
        assert_eq!(pax_record(b"8 path=a\n"), None, "one byte short");
        assert_eq!(pax_record(b"9 path=a\n"), Some((b"path".as_slice(), b"a".as_slice(), b"".as_slice())));
        let newline = pax_record(b"12 path=a\nb\n10 x=1234\n").unwrap();
        assert_eq!(newline.1, b"a\nb");
        for broken in
            [b"".as_slice(), b"10", b"10 path\n", b"-1 a=b\n", b"99999999999999999999 a=b\n", b"3 a=b\n"]
        {
            assert_eq!(pax_record(broken), None, "{}", broken.escape_ascii());
        }
    }

    #[test]
    fn times_have_fractions() {
        assert_eq!(time(b"1.5"), Some((1, 500_000_000)));
        assert_eq!(time(b"1700000000"), Some((1_700_000_000, 0)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"1.1234567899"), Some((1, 123_456_789)));
        assert_eq!(time(b"x"), None);
        assert_eq!(time(b"1.x"), None);
    }
}
