//! Maps with arbitrary keys, without duplicates.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use belljar_model::EnvVar;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::problem::Problem;

/// A map with arbitrary, unique keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UniqueMap<V>(pub(crate) BTreeMap<String, V>);

impl<V> Default for UniqueMap<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Table<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a table of keys and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
                let mut values = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value()?;
                    if values.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
                    }
                    values.insert(key, value);
                }
                Ok(UniqueMap(values))
            }
        }

        deserializer.deserialize_map(Table(PhantomData))
    }
}

/// Checks environment variables of a request.
pub(crate) fn parse_env(env: Option<UniqueMap<String>>) -> Result<BTreeMap<String, String>, Problem> {
    let env = env.unwrap_or_default().0;
    for (name, value) in &env {
        EnvVar::new(name, value)?;
    }
    Ok(env)
}
