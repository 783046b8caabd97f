//! Display of untrusted values in messages.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::str::FromStr;

use serde::de::{Error, Visitor};

use crate::error::ModelError;

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

/// Reports whether a character changes the direction of the text around it, and so can disguise a line (UAX 9, 2.1 to 2.6).
#[must_use]
pub fn is_directional(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Serializes a type by its `Display`.
macro_rules! serialize_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
pub(crate) use serialize_as_text;

/// Implements serde for a type by its `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($type:ty) => {
        $crate::text::serialize_as_text!($type);

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Implements serde for a type by its `Display` and `FromStr`. A number is read like its text.
macro_rules! serde_as_scalar {
    ($type:ty) => {
        $crate::text::serialize_as_text!($type);

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::text::ScalarVisitor(std::marker::PhantomData))
            }
        }
    };
}
pub(crate) use serde_as_scalar;

/// A text, or a number as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar(pub String);

impl FromStr for Scalar {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_as_scalar!(Scalar);

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for Scalar {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};

        let number = ObjectBuilder::new().schema_type(Type::Number);
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("A number with its unit, such as `256m`, where there are units."));
        utoipa::openapi::RefOr::T(Schema::OneOf(OneOfBuilder::new().item(number).item(text).build()))
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for Scalar {}

/// Visitor of a text or a number.
pub(crate) struct ScalarVisitor<T>(pub(crate) PhantomData<T>);

impl<T: FromStr<Err = ModelError>> ScalarVisitor<T> {
    fn parse<E: Error>(text: &str) -> Result<T, E> {
        text.parse().map_err(|error| match error {
            // The reader names the field.
            ModelError::NotAllowed { value, allowed, .. } => {
                E::custom(format_args!("{} is not allowed; give {allowed}", quote(&value)))
            }
            other => E::custom(other),
        })
    }
}

impl<T: FromStr<Err = ModelError>> Visitor<'_> for ScalarVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number or a text")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        Self::parse(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        Self::parse(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        Self::parse(&number.to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Self::parse(text)
    }
}

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
