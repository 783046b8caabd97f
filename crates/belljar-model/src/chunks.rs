//! Chunks of an output stream as text: a character that is split between two chunks is joined again.

/// Joins the chunks of one stream so that none ends within a character.
#[derive(Debug, Default)]
pub struct Chunks {
    /// Offset of the bytes that are held back.
    offset: u64,
    /// The beginning of a character.
    held: Vec<u8>,
}

/// Bytes of a stream, and their offset in it. A gap means that bytes were dropped.
pub type Chunk = (u64, Vec<u8>);

impl Chunks {
    /// Appends bytes, and returns those that are complete: at most two chunks, since bytes may be missing between them.
    pub fn push(&mut self, offset: u64, data: &[u8]) -> Vec<Chunk> {
        let mut out = Vec::new();
        if self.end() != offset {
            out.extend(self.finish());
            self.offset = offset;
        }
        self.held.extend_from_slice(data);
        out.extend(self.take(split_character_len(&self.held)));
        out
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(&mut self) -> Option<Chunk> {
        self.take(0)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(count(&self.held))
    }

    /// Takes all but the last `keep` bytes.
    fn take(&mut self, keep: usize) -> Option<Chunk> {
        let rest = self.held.split_off(self.held.len().saturating_sub(keep));
        let taken = std::mem::replace(&mut self.held, rest);
        let offset = self.offset;
        self.offset = offset.saturating_add(count(&taken));
        (!taken.is_empty()).then_some((offset, taken))
    }
}

fn count(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
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

    #[test]
    fn split_characters_are_joined() {
        let mut chunks = Chunks::default();
        assert_eq!(chunks.push(0, b"a\xc3"), [(0, b"a".to_vec())]);
        assert_eq!(chunks.push(2, b"\xbc"), [(1, "ü".into())]);
        assert_eq!(chunks.push(3, b"\xff"), [(3, b"\xff".to_vec())]);
        assert_eq!(chunks.push(4, b"\xe2\x82"), []);
        // Bytes in between are missing: the character will never be complete.
        assert_eq!(chunks.push(10, b"x"), [(4, b"\xe2\x82".to_vec()), (10, b"x".to_vec())]);
        assert_eq!(chunks.push(11, b"\xf0\x9f"), []);
        assert_eq!(chunks.finish(), Some((11, b"\xf0\x9f".to_vec())));
        assert_eq!(chunks.finish(), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_lost(pieces: Vec<Vec<u8>>) {
            let mut chunks = Chunks::default();
            let (mut offset, mut out) = (0, Vec::new());
            for piece in &pieces {
                out.extend(chunks.push(offset, piece));
                offset += count(piece);
            }
            out.extend(chunks.finish());
            let mut whole = Vec::new();
            for (at, piece) in out {
                assert_eq!(at, count(&whole));
                whole.extend(piece);
            }
            proptest::prop_assert_eq!(whole, pieces.concat());
        }

        #[test]
        fn text_stays_text(text: String, sizes in proptest::collection::vec(1usize..4, 0..64)) {
            let mut chunks = Chunks::default();
            let (mut rest, mut offset) = (text.as_bytes(), 0);
            for size in sizes {
                let (piece, later) = rest.split_at(size.min(rest.len()));
                for (_, joined) in chunks.push(offset, piece) {
                    proptest::prop_assert!(std::str::from_utf8(&joined).is_ok());
                }
                offset += count(piece);
                rest = later;
            }
        }
    }
}
