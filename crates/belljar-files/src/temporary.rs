//! Temporary names of files and directories that are not complete yet.

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

/// Prefix of all temporary names.
const PREFIX: &str = ".belljar-";

/// Suffix of temporary names whose file will replace another one. Watchers of the directory recognize a replacement by it.
const REPLACEMENT_SUFFIX: &str = "~";

/// Kind of a temporary name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temporary {
    /// The final name does not exist yet.
    New,
    /// The final name exists and will be replaced.
    Replacement,
}

impl Temporary {
    /// Generates a random name.
    pub fn generate_name(self) -> Result<Vec<u8>, Errno> {
        let mut random = [0u8; 8];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
        let suffix = if self == Self::Replacement { REPLACEMENT_SUFFIX } else { "" };
        Ok(format!("{PREFIX}{:016x}{suffix}", u64::from_ne_bytes(random)).into_bytes())
    }

    /// Returns the kind of a temporary name, or `None` for any other name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let (digits, suffix) = name.strip_prefix(PREFIX.as_bytes())?.split_at_checked(16)?;
        if !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        match suffix {
            b"" => Some(Self::New),
            suffix if suffix == REPLACEMENT_SUFFIX.as_bytes() => Some(Self::Replacement),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_recognized() {
        for kind in [Temporary::New, Temporary::Replacement] {
            assert_eq!(Temporary::from_name(&kind.generate_name().unwrap()), Some(kind));
        }
        for other in [
            "",
            ".belljar-",
            ".belljar-0123456789abcde",
            ".belljar-0123456789abcdef0",
            ".belljar-0123456789abcdeF",
            ".belljar-0123456789abcdef~~",
            "belljar-0123456789abcdef",
        ] {
            assert_eq!(Temporary::from_name(other.as_bytes()), None, "{other}");
        }
    }
}
