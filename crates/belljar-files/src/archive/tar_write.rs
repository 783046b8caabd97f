//! Writes tar headers in GNU format: names of arbitrary bytes and any length, sparse files.

use rustix::fs::Statx;
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::padding;
use super::sparse::Segment;

/// Header fields of an entry.
pub(super) struct Record<'a> {
    pub(super) kind: EntryType,
    pub(super) name: &'a [u8],
    /// Target of a link.
    pub(super) target: &'a [u8],
    pub(super) stat: &'a Statx,
    /// Size of the content that follows, in bytes.
    pub(super) size: u64,
    /// Data segments of a sparse file.
    pub(super) segments: Option<&'a [Segment]>,
}

/// Name of a record that holds a name too long for a header.
const LONG_NAME: &[u8] = b"././@LongLink";

/// Length of the name and link target fields in a header, in bytes.
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
    // Drops set-user-ID and set-group-ID, so that they do no harm where the archive is unpacked.
    header.set_mode(u32::from(record.stat.stx_mode) & 0o1777);
    header.set_uid(record.stat.stx_uid.into());
    header.set_gid(record.stat.stx_gid.into());
    header.set_mtime(u64::try_from(record.stat.stx_mtime.tv_sec).unwrap_or(0));
    let mut rest: &[Segment] = &[];
    if let Some(gnu) = header.as_gnu_mut() {
        copy_name(&mut gnu.name, record.name);
        copy_name(&mut gnu.linkname, record.target);
        if record.kind == EntryType::Char {
            // The only device that is packed.
            gnu.set_device_major(0);
            gnu.set_device_minor(0);
        }
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

/// Appends the end mark of an archive.
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

/// Fills a header's segment list; returns the segments that did not fit.
fn set_segments<'a>(fields: &mut [GnuSparseHeader], segments: &'a [Segment]) -> &'a [Segment] {
    let fitting = fields.len().min(segments.len());
    for (field, segment) in fields.iter_mut().zip(segments) {
        field.set_offset(segment.offset);
        field.set_length(segment.length);
    }
    &segments[fitting..]
}
