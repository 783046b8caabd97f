//! Parts of a message that are parsed without building a tree of values.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{MAX_CUT_BYTES, MAX_FORMS, truncate};

/// The first forms of a result, unparsed, and the number of further ones.
#[derive(Default)]
pub(super) struct FirstForms<'a> {
    pub(super) forms: Vec<(String, &'a RawValue)>,
    pub(super) omitted: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for FirstForms<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = FirstForms<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("forms by their MIME type")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut first = FirstForms::default();
                while let Some((mime, value)) = map.next_entry::<String, &'de RawValue>()? {
                    // The last of several with the same name wins, as usual in JSON.
                    if let Some(form) = first.forms.iter_mut().find(|form| form.0 == mime) {
                        form.1 = value;
                    } else if first.forms.len() < MAX_FORMS {
                        first.forms.push((mime, value));
                    } else {
                        first.omitted += 1;
                    }
                }
                Ok(first)
            }
        }

        deserializer.deserialize_map(Forms)
    }
}

/// The first notes on what was cut, truncated.
#[derive(Default)]
pub(super) struct FirstTexts(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for FirstTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = FirstTexts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while texts.len() < MAX_FORMS {
                    let Some(text) = seq.next_element::<String>()? else { return Ok(FirstTexts(texts)) };
                    texts.push(truncate(text, MAX_CUT_BYTES));
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstTexts(texts))
            }
        }

        deserializer.deserialize_seq(Texts)
    }
}

/// JSON that any parser accepts: limited depth, no lone surrogates, no numbers out of range.
pub(super) struct ValidJson;

impl<'de> Deserialize<'de> for ValidJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = ValidJson;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<ValidJson, E> {
                Ok(ValidJson)
            }

            fn visit_bool<E>(self, _: bool) -> Result<ValidJson, E> {
                Ok(ValidJson)
            }

            fn visit_i64<E>(self, _: i64) -> Result<ValidJson, E> {
                Ok(ValidJson)
            }

            fn visit_u64<E>(self, _: u64) -> Result<ValidJson, E> {
                Ok(ValidJson)
            }

            fn visit_f64<E>(self, _: f64) -> Result<ValidJson, E> {
                Ok(ValidJson)
            }

            fn visit_str<E>(self, _: &str) -> Result<ValidJson, E> {
                Ok(ValidJson)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ValidJson, A::Error> {
                while seq.next_element::<ValidJson>()?.is_some() {}
                Ok(ValidJson)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ValidJson, A::Error> {
                while map.next_entry::<ValidJson, ValidJson>()?.is_some() {}
                Ok(ValidJson)
            }
        }

        deserializer.deserialize_any(Any)
    }
}
