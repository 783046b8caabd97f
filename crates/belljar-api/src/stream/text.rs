//! Chunks of an output stream as text: a character that is split between two chunks is joined again.

use belljar_engine::v1;
use bytes::{Bytes, BytesMut};
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

/// Bytes held back from each stream: the beginning of a character.
#[derive(Default)]
pub(crate) struct Pieces {
    held: [HeldBytes; 3],
}

#[derive(Default)]
struct HeldBytes {
    offset: u64,
    bytes: BytesMut,
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
        let Some((held, name)) = self.held.get_mut(index).zip(NAMES.get(index)) else { return Vec::new() };
        let mut out = Vec::new();
        if held.end() != offset {
            out.extend(held.take(0));
            held.offset = offset;
        }
        held.bytes.extend_from_slice(data);
        out.extend(held.take(split_character_len(&held.bytes)));
        out.into_iter().map(|piece| (*name, piece)).collect()
    }

    /// Returns the rest at the end of the stream.
    pub(crate) fn finish(&mut self) -> Vec<(&'static str, Piece)> {
        let rest = self.held.iter_mut().zip(NAMES);
        rest.filter_map(|(held, name)| held.take(0).map(|piece| (name, piece))).collect()
    }
}

impl HeldBytes {
    fn end(&self) -> u64 {
        self.offset.saturating_add(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }

    /// Takes all but the last `keep` bytes.
    fn take(&mut self, keep: usize) -> Option<Piece> {
        let piece = self.bytes.split_to(self.bytes.len().saturating_sub(keep));
        if piece.is_empty() {
            return None;
        }
        let offset = self.offset;
        self.offset = offset.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        Some(Piece { offset, bytes: EncodedBytes::new(&piece) })
    }
}

/// Returns the number of bytes at the end that begin a character, if everything before them is UTF-8.
fn split_character_len(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(pieces: &mut Pieces, offset: u64, data: &'static [u8]) -> Vec<(u64, &'static str, String)> {
        let out = pieces.push(v1::Stream::STREAM_STDOUT, offset, &Bytes::from_static(data));
        out.into_iter().map(|(_, piece)| (piece.offset, piece.bytes.encoding, piece.bytes.data)).collect()
    }

    #[test]
    fn split_characters_are_joined() {
        let mut pieces = Pieces::default();
        assert_eq!(push(&mut pieces, 0, b"a\xc3"), [(0, "utf-8", "a".to_owned())]);
        assert_eq!(push(&mut pieces, 2, b"\xbc"), [(1, "utf-8", "ü".to_owned())]);
        assert_eq!(push(&mut pieces, 3, b"\xff"), [(3, "base64", "/w==".to_owned())]);
        assert_eq!(push(&mut pieces, 4, b"\xe2\x82"), []);
        // Bytes in between are missing: the character will never be complete.
        let jumped = [(4, "base64", "4oI=".to_owned()), (10, "utf-8", "x".to_owned())];
        assert_eq!(push(&mut pieces, 10, b"x"), jumped);
        assert_eq!(push(&mut pieces, 11, b"\xf0\x9f"), []);
        let rest = pieces.finish();
        assert_eq!(rest.len(), 1);
        assert_eq!((rest[0].0, rest[0].1.offset), ("stdout", 11));
        assert!(pieces.finish().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_lost(pieces: Vec<Vec<u8>>) {
            use base64::Engine as _;
            let mut state = Pieces::default();
            let (mut offset, mut out) = (0, Vec::new());
            for piece in &pieces {
                out.extend(state.push(v1::Stream::STREAM_STDERR, offset, &Bytes::copy_from_slice(piece)));
                offset += u64::try_from(piece.len()).unwrap();
            }
            out.extend(state.finish());
            let mut whole = Vec::new();
            for (name, piece) in out {
                assert_eq!((name, piece.offset), ("stderr", u64::try_from(whole.len()).unwrap()));
                match piece.bytes.encoding {
                    "utf-8" => whole.extend(piece.bytes.data.into_bytes()),
                    _ => whole.extend(base64::engine::general_purpose::STANDARD.decode(piece.bytes.data).unwrap()),
                }
            }
            proptest::prop_assert_eq!(whole, pieces.concat());
        }
    }
}
