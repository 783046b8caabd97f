//! Chunks of an output stream as text.

use std::ops::Range;

use belljar_engine::v1;
use belljar_model::{Chunk, Chunks, StreamOutput};
use bytes::Bytes;
use serde::Serialize;

use crate::rest::types::EncodedBytes;

/// A chunk of an output stream.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Piece {
    /// Offset in the stream. A gap means that bytes were dropped.
    pub(crate) offset: u64,
    #[serde(flatten)]
    pub(crate) bytes: EncodedBytes,
}

impl From<Chunk> for Piece {
    fn from((offset, bytes): Chunk) -> Self {
        Self { offset, bytes: EncodedBytes::new(&bytes) }
    }
}

/// The streams of an execution.
#[derive(Default)]
pub(crate) struct Pieces {
    streams: [Chunks; 3],
}

/// Names of streams, as in events.
const NAMES: [&str; 3] = ["stdout", "stderr", "terminal"];

fn index(stream: v1::Stream) -> usize {
    match stream {
        v1::Stream::STREAM_STDERR => 1,
        v1::Stream::STREAM_TERMINAL => 2,
        v1::Stream::STREAM_UNSPECIFIED | v1::Stream::STREAM_STDOUT => 0,
    }
}

impl Pieces {
    /// Appends bytes, and returns the complete text: at most two chunks, since bytes may be missing between them.
    pub(crate) fn push(
        &mut self,
        stream: v1::Stream,
        offset: u64,
        data: &Bytes,
    ) -> Vec<(&'static str, Piece)> {
        let index = index(stream);
        let Some((chunks, name)) = self.streams.get_mut(index).zip(NAMES.get(index)) else {
            return Vec::new();
        };
        chunks.push(offset, data).into_iter().map(|chunk| (*name, chunk.into())).collect()
    }

    /// Returns the rest at the end of the stream.
    pub(crate) fn finish(&mut self) -> Vec<(&'static str, Piece)> {
        let rest = self.streams.iter_mut().zip(NAMES);
        rest.filter_map(|(chunks, name)| Some((name, chunks.finish()?.into()))).collect()
    }
}

/// What was kept of a stream, by offset in the whole stream: its head and its tail.
pub(crate) struct KeptOutput {
    bytes: Vec<u8>,
    head: u64,
    tail_at: u64,
    /// Length of the whole stream, in bytes.
    pub(crate) total: u64,
}

impl From<&StreamOutput> for KeptOutput {
    fn from(output: &StreamOutput) -> Self {
        Self {
            bytes: output.decode().unwrap_or_default(),
            head: output.kept_head_bytes,
            tail_at: output.total_bytes.saturating_sub(output.kept_tail_bytes),
            total: output.total_bytes,
        }
    }
}

impl KeptOutput {
    /// Returns what was kept of a part of the stream, with the offsets: of the head, and of the tail.
    pub(crate) fn parts(&self, part: &Range<u64>) -> [(u64, &[u8]); 2] {
        let (from, to) = (part.start.min(self.head), part.end.min(self.head));
        let (tail_from, tail_to) = (part.start.max(self.tail_at), part.end.max(self.tail_at));
        let skipped = self.tail_at.saturating_sub(self.head);
        [(from, self.slice(from, to)), (tail_from, self.slice(tail_from - skipped, tail_to - skipped))]
    }

    /// Returns a part of the stream as text; of omitted bytes, their number is in between.
    pub(crate) fn text(&self, part: Range<u64>) -> String {
        let [(_, head), (_, tail)] = self.parts(&part);
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
        match part.end.min(self.tail_at).saturating_sub(part.start.max(self.head)) {
            0 => format!("{head}{tail}"),
            omitted => format!("{head}\n[{omitted} bytes left out]\n{tail}"),
        }
    }

    fn slice(&self, from: u64, to: u64) -> &[u8] {
        let index = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        self.bytes.get(index(from)..index(to)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_joined_apart() {
        let mut pieces = Pieces::default();
        let mut push = |stream, offset, data: &'static [u8]| {
            let out = pieces.push(stream, offset, &Bytes::from_static(data));
            let show = |(name, piece): (&'static str, Piece)| (name, piece.offset, piece.bytes.data);
            out.into_iter().map(show).collect::<Vec<_>>()
        };
        assert_eq!(push(v1::Stream::STREAM_STDOUT, 0, b"a\xc3"), [("stdout", 0, "a".to_owned())]);
        assert_eq!(push(v1::Stream::STREAM_STDERR, 0, b"\xff"), [("stderr", 0, "/w==".to_owned())]);
        assert_eq!(push(v1::Stream::STREAM_STDOUT, 2, b"\xbc\xe2"), [("stdout", 1, "ü".to_owned())]);
        let rest = pieces.finish();
        assert_eq!((rest.len(), rest[0].0, rest[0].1.offset), (1, "stdout", 3));
        assert!(pieces.finish().is_empty());
    }

    #[test]
    fn parts_of_what_was_kept_have_their_offsets() {
        let whole = KeptOutput::from(&StreamOutput::new(b"abcd", b"", 4));
        assert_eq!(
            (whole.text(0..4), whole.text(1..3), whole.text(4..4)),
            ("abcd".into(), "bc".into(), "".into())
        );
        let kept = KeptOutput::from(&StreamOutput::new(b"abc", b"xyz", 10));
        assert_eq!(kept.text(0..10), "abc\n[4 bytes left out]\nxyz");
        assert_eq!((kept.text(0..2), kept.text(2..5)), ("ab".into(), "c\n[2 bytes left out]\n".into()));
        assert_eq!((kept.text(5..9), kept.text(8..10)), ("\n[2 bytes left out]\nxy".into(), "yz".into()));
        assert_eq!(kept.parts(&(2..9)), [(2, b"c".as_slice()), (7, b"xy")]);
        // A stream that is not what it says.
        let kept = KeptOutput { bytes: Vec::new(), head: 3, tail_at: 7, total: 10 };
        assert_eq!(kept.parts(&(0..10)), [(0, b"".as_slice()), (7, b"")]);
    }
}
