//! Details of a record beyond its fixed fields. Values are truncated, and secrets are replaced by a marker.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum length of a text in a record, in bytes. A longer one is cut and marked as such.
pub const MAX_FIELD_BYTES: usize = 1024;

/// Maximum number of details of a record. `dropped_details` counts those beyond it.
pub const MAX_DETAILS: usize = 32;

/// Name of the detail that counts the dropped ones.
const DROPPED: &str = "dropped_details";

/// Placeholder of a secret value, `{"redacted":true}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redacted;

/// Value of a detail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "JsonForm", into = "JsonForm")]
pub enum DetailValue {
    /// A text of at most [`MAX_FIELD_BYTES`].
    Text(String),
    /// A number.
    Number(i64),
    /// A boolean.
    Flag(bool),
    /// A secret value, which is not recorded.
    Redacted,
}

/// JSON form of a value.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonForm {
    Text(String),
    Number(i64),
    Flag(bool),
    Redacted { redacted: bool },
}

impl From<JsonForm> for DetailValue {
    fn from(form: JsonForm) -> Self {
        match form {
            JsonForm::Text(text) => Self::Text(text),
            JsonForm::Number(number) => Self::Number(number),
            JsonForm::Flag(flag) => Self::Flag(flag),
            // A difference, as `false`, is detected when the record is serialized again and compared.
            JsonForm::Redacted { .. } => Self::Redacted,
        }
    }
}

impl From<DetailValue> for JsonForm {
    fn from(value: DetailValue) -> Self {
        match value {
            DetailValue::Text(text) => Self::Text(text),
            DetailValue::Number(number) => Self::Number(number),
            DetailValue::Flag(flag) => Self::Flag(flag),
            DetailValue::Redacted => Self::Redacted { redacted: true },
        }
    }
}

impl From<&str> for DetailValue {
    fn from(text: &str) -> Self {
        Self::Text(truncate(text))
    }
}

impl From<String> for DetailValue {
    fn from(text: String) -> Self {
        Self::Text(truncate(&text))
    }
}

impl From<i64> for DetailValue {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for DetailValue {
    fn from(number: u32) -> Self {
        Self::Number(i64::from(number))
    }
}

/// Saturates at `i64::MAX`.
impl From<u64> for DetailValue {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for DetailValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Redacted> for DetailValue {
    fn from(_: Redacted) -> Self {
        Self::Redacted
    }
}

/// Details of a record by name. Names come from the program; values may come from anybody.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Details(BTreeMap<String, DetailValue>);

impl Details {
    /// Creates empty details.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, replacing one with the same name. Beyond [`MAX_DETAILS`] it is only counted.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<DetailValue>) -> Self {
        if self.0.len() < MAX_DETAILS || self.0.contains_key(name) {
            self.0.insert(name.to_owned(), value.into());
        } else if let DetailValue::Number(count) =
            self.0.entry(DROPPED.to_owned()).or_insert(DetailValue::Number(0))
        {
            *count += 1;
        }
        self
    }

    /// Returns the value with this name.
    pub fn get(&self, name: &str) -> Option<&DetailValue> {
        self.0.get(name)
    }

    /// Iterates over all values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DetailValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// Truncates a text to [`MAX_FIELD_BYTES`], and replaces NUL, which no database accepts.
pub(crate) fn truncate(text: &str) -> String {
    let mark = format!("… [cut: {} bytes]", text.len());
    let text = text.replace('\0', "\u{fffd}");
    if text.len() <= MAX_FIELD_BYTES {
        return text;
    }
    let kept = text.floor_char_boundary(MAX_FIELD_BYTES.saturating_sub(mark.len()));
    format!("{}{mark}", &text[..kept])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_char_boundary_and_marked() {
        assert_eq!(truncate(""), "");
        assert_eq!(truncate("a\0b"), "a\u{fffd}b");
        assert_eq!(truncate(&"x".repeat(1024)), "x".repeat(1024));
        let cut = truncate(&"x".repeat(5000));
        assert_eq!(cut.len(), MAX_FIELD_BYTES);
        assert!(cut.ends_with("x… [cut: 5000 bytes]"), "{cut}");
        for shift in 0..4 {
            let cut = truncate(&format!("{}{}", "x".repeat(shift), "😀".repeat(400)));
            assert!(cut.len() <= MAX_FIELD_BYTES && cut.len() > MAX_FIELD_BYTES - 4, "{}", cut.len());
        }
    }

    #[test]
    fn too_many_details_are_counted() {
        const NAMES: [&str; 35] = {
            let mut names = [""; 35];
            let all = "abcdefghijklmnopqrstuvwxyzABCDEFGHI";
            let mut index = 0;
            while index < names.len() {
                names[index] = all.split_at(index + 1).0;
                index += 1;
            }
            names
        };
        let details = NAMES.iter().fold(Details::new(), |details, name| details.with(name, true));
        assert_eq!(details.iter().count(), MAX_DETAILS + 1);
        assert_eq!(details.get(DROPPED), Some(&DetailValue::Number(3)));
    }

    #[test]
    fn json_round_trip() {
        let details = Details::new()
            .with("path", "a\"b")
            .with("bytes", 12_u32)
            .with("most", u64::MAX)
            .with("background", false)
            .with("token", Redacted);
        let text = serde_json::to_string(&details).unwrap();
        assert_eq!(
            text,
            r#"{"background":false,"bytes":12,"most":9223372036854775807,"path":"a\"b","token":{"redacted":true}}"#
        );
        assert_eq!(serde_json::from_str::<Details>(&text).unwrap(), details);
    }
}
