//! How values of unknown origin are shown in a message.

use std::path::Path;

/// The most characters of a value that a message shows.
const MAX_SHOWN_CHARS: usize = 100;

/// Quotes a value, escapes what a terminal would act on, and cuts what is too long to read.
pub(crate) fn shown(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN_CHARS) {
        None => format!("{value:?}"),
        Some((cut, _)) => format!("{:?}… ({} bytes)", &value[..cut], value.len()),
    }
}

/// Shows a path as [`shown`] shows a value.
pub(crate) fn shown_path(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

/// Gives a type serde by way of its `Display` and `FromStr`.
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
    fn values_are_escaped_and_cut() {
        assert_eq!(shown("256m"), "\"256m\"");
        assert_eq!(shown("\u{1b}[31m\0\n"), "\"\\u{1b}[31m\\0\\n\"");
        assert_eq!(shown(&"é".repeat(200)), format!("\"{}\"… (400 bytes)", "é".repeat(100)));
    }
}
