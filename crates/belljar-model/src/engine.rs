//! Names of engines. The engines themselves and their capabilities are registered elsewhere.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// Maximum length of a name, in bytes.
const MAX_LEN: usize = 31;

const ALLOWED: &str = "1 to 31 characters from a to z, 0 to 9 and -, the first one a letter, such as local";

/// Name of an engine, which isolates sandboxes: 1 to 31 characters of a to z, 0 to 9 and hyphens, the first a letter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineName {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl EngineName {
    /// Linux namespaces on this machine: the default.
    pub const LOCAL: Self = Self::known("local");

    /// Creates a name that is known at compile time.
    ///
    /// # Panics
    /// Panics if the text is not a valid name. In a constant this is a compile error.
    #[must_use]
    pub const fn known(name: &str) -> Self {
        let Some(name) = Self::parse(name.as_bytes()) else { panic!("invalid engine name") };
        name
    }

    const fn parse(name: &[u8]) -> Option<Self> {
        if name.is_empty() || name.len() > MAX_LEN {
            return None;
        }
        let (mut bytes, mut len) = ([0; MAX_LEN], 0);
        while len < name.len() {
            if !is_allowed(name[len], len == 0) {
                return None;
            }
            bytes[len] = name[len];
            len += 1;
        }
        Some(Self { bytes, len })
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // The bytes are always ASCII.
        self.bytes.get(..self.len).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default()
    }
}

const fn is_allowed(byte: u8, is_first: bool) -> bool {
    byte.is_ascii_lowercase() || !is_first && (byte.is_ascii_digit() || byte == b'-')
}

impl Default for EngineName {
    fn default() -> Self {
        Self::LOCAL
    }
}

impl FromStr for EngineName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::parse(text.as_bytes()).ok_or_else(|| ModelError::not_allowed("engine", text, ALLOWED))
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

serde_as_text!(EngineName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated() {
        let longest = "a".repeat(MAX_LEN);
        for good in ["local", "a", "gvisor-2", &longest] {
            let name: EngineName = good.parse().unwrap();
            assert_eq!((name.as_str(), name.to_string().as_str()), (good, good));
            assert_eq!(serde_json::to_value(name).unwrap(), good);
            assert_eq!(EngineName::known(good), name);
        }
        let too_long = "a".repeat(MAX_LEN + 1);
        for bad in ["", "LOCAL", "2a", "-a", "a b", "a_b", "é", "a\0", &too_long] {
            let error = bad.parse::<EngineName>().unwrap_err().to_string();
            assert!(error.starts_with("engine: "), "{error}");
        }
        assert_eq!(EngineName::default().as_str(), "local");
    }
}
