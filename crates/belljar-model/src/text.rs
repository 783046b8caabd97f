//! Display of untrusted values in messages.

use std::path::Path;

/// Maximum number of characters of a value shown in a message.
const MAX_SHOWN_CHARS: usize = 100;

/// Quotes a value, escapes control characters, and truncates it.
pub(crate) fn quote(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN_CHARS) {
        None => format!("{value:?}"),
        Some((cut, _)) => format!("{:?}… ({} bytes)", &value[..cut], value.len()),
    }
}

/// Quotes a path like [`quote`].
pub(crate) fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

/// Implements serde for a type by its `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_truncated() {
        assert_eq!(quote("256m"), "\"256m\"");
        assert_eq!(quote("\u{1b}[31m\0\n"), "\"\\u{1b}[31m\\0\\n\"");
        assert_eq!(quote(&"é".repeat(200)), format!("\"{}\"… (400 bytes)", "é".repeat(100)));
    }
}
