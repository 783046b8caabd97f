//! Derives values from the fuzzer's bytes.

/// A reader that takes bytes from the front. Missing bytes at the end read as zero.
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

    /// Takes at most `max` bytes.
    pub(crate) fn take(&mut self, max: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(max.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Takes bytes that are prefixed by their length.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.take(length)
    }
}

/// Decodes bytes as text, with invalid UTF-8 replaced.
pub(crate) fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// Checks that a message for users names one of `fields`, has bounded length, and contains no control characters.
pub(crate) fn check_refusal(message: &str, fields: &[&str]) {
    assert!(fields.iter().any(|field| message.contains(field)), "{message:?} names none of {fields:?}");
    check_text(message);
}

/// Checks that a message for users has bounded length and contains no control characters.
pub(crate) fn check_text(message: &str) {
    assert!(message.chars().count() <= 4096, "{} characters", message.chars().count());
    assert!(!message.chars().any(char::is_control), "{message:?}");
}
