//! What a record says beyond its fixed fields. Every value has a bound, and what is secret has a mark in its place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most bytes of a text in a record. A longer one is cut, and says so.
pub const MAX_FIELD_BYTES: usize = 1024;

/// The most details of a record. `dropped_details` counts what was too many.
pub const MAX_DETAILS: usize = 32;

/// The name under which it is counted what was too many.
const DROPPED: &str = "dropped_details";

/// Stands in the place of a value that is secret, as `{"redacted":true}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redacted;

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Form", into = "Form")]
pub enum DetailValue {
    /// A text of at most [`MAX_FIELD_BYTES`].
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
    /// There was a value, and it is secret.
    Redacted,
}

/// How a value looks in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Number(i64),
    Flag(bool),
    Redacted { redacted: bool },
}

impl From<Form> for DetailValue {
    fn from(form: Form) -> Self {
        match form {
            Form::Text(text) => Self::Text(text),
            Form::Number(number) => Self::Number(number),
            Form::Flag(flag) => Self::Flag(flag),
            // A form that differs from what was meant is found when it is written again and compared.
            Form::Redacted { .. } => Self::Redacted,
        }
    }
}

impl From<DetailValue> for Form {
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
        Self::Text(bounded(text))
    }
}

impl From<String> for DetailValue {
    fn from(text: String) -> Self {
        Self::Text(bounded(&text))
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

/// A number beyond `i64::MAX` becomes that.
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

/// What a record says beyond its fixed fields, by name. Names are the program's own; values may be anybody's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Details(BTreeMap<String, DetailValue>);

impl Details {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, in place of one with the same name. Beyond [`MAX_DETAILS`] it is only counted.
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

    /// The value with this name.
    pub fn get(&self, name: &str) -> Option<&DetailValue> {
        self.0.get(name)
    }

    /// All values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DetailValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// A text that fits into a record: cut if it is too long, and without NUL, which no database takes.
pub(crate) fn bounded(text: &str) -> String {
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
    fn texts_are_cut_at_a_character_and_say_so() {
        assert_eq!(bounded(""), "");
        assert_eq!(bounded("a\0b"), "a\u{fffd}b");
        assert_eq!(bounded(&"x".repeat(1024)), "x".repeat(1024));
        let cut = bounded(&"x".repeat(5000));
        assert_eq!(cut.len(), MAX_FIELD_BYTES);
        assert!(cut.ends_with("x… [cut: 5000 bytes]"), "{cut}");
        for shift in 0..4 {
            let cut = bounded(&format!("{}{}", "x".repeat(shift), "😀".repeat(400)));
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
    fn values_look_like_json() {
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
