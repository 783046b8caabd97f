//! Ids of sandboxes.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Id of a sandbox: a letter and 19 letters or digits, `[a-z][a-z0-9]{19}`.
///
/// Valid as a DNS label, a file name and a cgroup name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(String);

impl SandboxId {
    /// Length of an id, in bytes.
    pub const LEN: usize = 20;

    /// Creates an id from random bytes, which the caller provides.
    ///
    /// Each byte selects one character by its remainder. Some characters are therefore slightly more likely than others, which
    /// leaves at least 99 of the 103 bits that 20 uniform choices would have.
    pub fn from_entropy(bytes: [u8; Self::LEN]) -> Self {
        let character = |(index, byte): (usize, u8)| {
            let choices = if index == 0 { 26 } else { 36 };
            char::from(LETTERS[usize::from(byte) % choices])
        };
        Self(bytes.into_iter().enumerate().map(character).collect())
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SandboxId {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let fits = text.len() == Self::LEN
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && text.bytes().all(|byte| LETTERS.contains(&byte));
        if !fits {
            return Err(ModelError::not_allowed(
                "id",
                text,
                "20 characters from a to z and 0 to 9, the first one a letter",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

serde_as_text!(SandboxId);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_validated() {
        let cases = [
            ("abcdefghij0123456789", true),
            ("a0000000000000000000", true),
            ("", false),
            ("0bcdefghij0123456789", false),
            ("Abcdefghij0123456789", false),
            ("abcdefghij012345678", false),
            ("abcdefghij01234567890", false),
            ("abcdefghij-123456789", false),
            ("abcdefghij/../456789", false),
            ("abcdefghij012345678\n", false),
            ("abcdefghij01234567é", false),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<SandboxId>().is_ok(), expected, "{text:?}");
        }
        assert_eq!(
            "x".parse::<SandboxId>().unwrap_err().to_string(),
            "id: \"x\" is not allowed; give 20 characters from a to z and 0 to 9, the first one a letter"
        );
    }

    #[test]
    fn serde_validates() {
        let id = SandboxId::from_entropy([7; 20]);
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"hhhhhhhhhhhhhhhhhhhh\"");
        assert_eq!(serde_json::from_str::<SandboxId>("\"hhhhhhhhhhhhhhhhhhhh\"").unwrap(), id);
        assert!(serde_json::from_str::<SandboxId>("\"../../etc\"").is_err());
    }

    proptest! {
        #[test]
        fn any_entropy_gives_a_valid_id(bytes: [u8; 20]) {
            let id = SandboxId::from_entropy(bytes);
            prop_assert_eq!(id.as_str().parse::<SandboxId>().unwrap(), id);
        }
    }
}
