//! Names under which something is written until it is whole.

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

/// What all of them begin with.
const PREFIX: &str = ".belljar-";

/// What the names of those end with that are to replace something. Whoever watches the directory can tell by it.
const REPLACEMENT: &str = "~";

/// What is written under such a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temporary {
    /// There is nothing under the name that it is to have.
    New,
    /// It is to be in the place of something.
    Replacement,
}

impl Temporary {
    /// A fresh name.
    pub fn name(self) -> Result<Vec<u8>, Errno> {
        let mut random = [0u8; 8];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
        let end = if self == Self::Replacement { REPLACEMENT } else { "" };
        Ok(format!("{PREFIX}{:016x}{end}", u64::from_ne_bytes(random)).into_bytes())
    }

    /// What is written under this name, if it is one of these.
    pub fn named(name: &[u8]) -> Option<Self> {
        let (digits, end) = name.strip_prefix(PREFIX.as_bytes())?.split_at_checked(16)?;
        if !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        match end {
            b"" => Some(Self::New),
            end if end == REPLACEMENT.as_bytes() => Some(Self::Replacement),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_others() {
        for kind in [Temporary::New, Temporary::Replacement] {
            assert_eq!(Temporary::named(&kind.name().unwrap()), Some(kind));
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
            assert_eq!(Temporary::named(other.as_bytes()), None, "{other}");
        }
    }
}
