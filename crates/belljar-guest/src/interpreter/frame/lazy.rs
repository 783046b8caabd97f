//! Parts of a message that are read without making a tree of them.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{MAX_CUT_BYTES, MAX_FORMS, short};

/// The first forms of a result, as they came, and how many there are beside them.
#[derive(Default)]
pub(super) struct FirstForms<'a> {
    pub(super) forms: Vec<(String, &'a RawValue)>,
    pub(super) left_out: usize,
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
                    // The last of the same name counts, as it does wherever JSON is read.
                    if let Some(form) = first.forms.iter_mut().find(|form| form.0 == mime) {
                        form.1 = value;
                    } else if first.forms.len() < MAX_FORMS {
                        first.forms.push((mime, value));
                    } else {
                        first.left_out += 1;
                    }
                }
                Ok(first)
            }
        }

        deserializer.deserialize_map(Forms)
    }
}

/// The first sentences of what was cut, shortened.
#[derive(Default)]
pub(super) struct FirstTexts(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for FirstTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = FirstTexts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("sentences")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut texts = Vec::new();
                while texts.len() < MAX_FORMS {
                    let Some(text) = seq.next_element::<String>()? else { return Ok(FirstTexts(texts)) };
                    texts.push(short(text, MAX_CUT_BYTES));
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstTexts(texts))
            }
        }

        deserializer.deserialize_seq(Texts)
    }
}

/// JSON that any reader can make values of: not too deep, no half characters, no numbers that are out of range.
pub(super) struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Checked;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Checked, E> {
                Ok(Checked)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
                Ok(Checked)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
                Ok(Checked)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
                Ok(Checked)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
                Ok(Checked)
            }

            fn visit_str<E>(self, _: &str) -> Result<Checked, E> {
                Ok(Checked)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Checked, A::Error> {
                while seq.next_element::<Checked>()?.is_some() {}
                Ok(Checked)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Checked, A::Error> {
                while map.next_entry::<Checked, Checked>()?.is_some() {}
                Ok(Checked)
            }
        }

        deserializer.deserialize_any(Any)
    }
}
