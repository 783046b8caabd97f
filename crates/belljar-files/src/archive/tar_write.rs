//! The records of a tar, in GNU's form: names of any bytes and any length, files with holes.

use rustix::fs::Statx;
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::padding;
use super::sparse::Segment;

/// What a header says of its entry.
pub(super) struct Record<'a> {
    pub(super) kind: EntryType,
    pub(super) name: &'a [u8],
    /// Where a link leads.
    pub(super) target: &'a [u8],
    pub(super) stat: &'a Statx,
    /// Bytes that follow it.
    pub(super) size: u64,
    /// The parts that follow, of a file with holes.
    pub(super) segments: Option<&'a [Segment]>,
}

/// The name of a record that holds a name too long for a header.
const LONG_NAME: &[u8] = b"././@LongLink";

/// The name of an entry, or the target of a link, as long as a header holds.
const NAME_BYTES: usize = 100;

/// Appends the headers of an entry.
pub(super) fn append_record(out: &mut Vec<u8>, record: &Record<'_>) {
    if record.target.len() > NAME_BYTES {
        append_long(out, EntryType::GNULongLink, record.target);
    }
    if record.name.len() > NAME_BYTES {
        append_long(out, EntryType::GNULongName, record.name);
    }
    let mut header = Header::new_gnu();
    header.set_entry_type(record.kind);
    header.set_size(record.size);
    // Without set-user-ID and the like: whoever unpacks it elsewhere shall not be caught by them.
    header.set_mode(u32::from(record.stat.stx_mode) & 0o1777);
    header.set_uid(record.stat.stx_uid.into());
    header.set_gid(record.stat.stx_gid.into());
    header.set_mtime(u64::try_from(record.stat.stx_mtime.tv_sec).unwrap_or(0));
    let mut rest: &[Segment] = &[];
    if let Some(gnu) = header.as_gnu_mut() {
        copy_name(&mut gnu.name, record.name);
        copy_name(&mut gnu.linkname, record.target);
        if let Some(segments) = record.segments {
            gnu.set_real_size(record.stat.stx_size);
            rest = set_segments(&mut gnu.sparse, segments);
            gnu.set_is_extended(!rest.is_empty());
        }
    }
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    while !rest.is_empty() {
        let mut more = GnuExtSparseHeader::new();
        rest = set_segments(&mut more.sparse, rest);
        more.set_is_extended(!rest.is_empty());
        out.extend_from_slice(more.as_bytes());
    }
}

/// Appends the end of an archive.
pub(super) fn append_end(out: &mut Vec<u8>) {
    out.resize(out.len() + 2 * super::BLOCK, 0);
}

fn append_long(out: &mut Vec<u8>, kind: EntryType, text: &[u8]) {
    let length = text.len() as u64 + 1;
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(length);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    if let Some(gnu) = header.as_gnu_mut() {
        copy_name(&mut gnu.name, LONG_NAME);
    }
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(text);
    out.push(0);
    out.resize(out.len() + padding(length), 0);
}

fn copy_name(field: &mut [u8; NAME_BYTES], text: &[u8]) {
    let length = text.len().min(NAME_BYTES);
    field[..length].copy_from_slice(&text[..length]);
}

/// Fills a header's places; hands back the segments that did not fit.
fn set_segments<'a>(places: &mut [GnuSparseHeader], segments: &'a [Segment]) -> &'a [Segment] {
    let fitting = places.len().min(segments.len());
    for (place, segment) in places.iter_mut().zip(segments) {
        place.set_offset(segment.offset);
        place.set_length(segment.length);
    }
    &segments[fitting..]
}
