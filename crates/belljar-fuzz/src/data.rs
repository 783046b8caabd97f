//! Values out of the bytes of a fuzzer.

/// Bytes that are taken from the front. What is missing at the end is zero.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    /// At most `most` bytes.
    pub(crate) fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Bytes with their length in front.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.take(length)
    }
}

/// Bytes as text; what is not UTF-8 is replaced, as in text that a program reads.
pub(crate) fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// Checks that a message for people names one of `fields`, is of bounded length, and holds nothing that a terminal acts
/// on.
pub(crate) fn check_refusal(message: &str, fields: &[&str]) {
    assert!(fields.iter().any(|field| message.contains(field)), "{message:?} names none of {fields:?}");
    check_words(message);
}

/// The same of a message that need not name a field.
pub(crate) fn check_words(message: &str) {
    assert!(message.chars().count() <= 4096, "{} characters", message.chars().count());
    assert!(!message.chars().any(char::is_control), "{message:?}");
}
