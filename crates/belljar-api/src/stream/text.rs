//! Chunks of an output stream as text.

use belljar_engine::v1;
use belljar_model::{Chunk, Chunks};
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
}
