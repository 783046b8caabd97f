//! The network policy, as a request gives it.

use std::fmt;

use belljar_model::NetworkFile;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

/// A network policy: a mode, or all of it.
#[derive(Debug, ToSchema)]
#[schema(as = Network)]
#[serde(untagged)]
pub(crate) enum NetworkBody {
    /// `disabled`, `whitelist` or `open`.
    #[schema(example = "disabled")]
    Mode(String),
    /// All of it.
    Policy(NetworkPolicyBody),
}

/// A network policy in full.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NetworkPolicy)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkPolicyBody {
    /// `disabled`, `whitelist` or `open`. Where something is allowed it is `whitelist` if not given.
    mode: Option<String>,
    /// Names of presets, such as `pip`.
    presets: Option<Vec<String>>,
    /// What may be reached, each as `HOST`, `HOST:PORT`, `*.SUFFIX` or `CIDR:PORT`.
    allow: Option<Vec<String>>,
    /// What may not, whatever is allowed.
    deny: Option<Vec<String>>,
}

impl NetworkBody {
    pub(crate) fn into_file(self) -> NetworkFile {
        match self {
            Self::Mode(mode) => NetworkFile { mode: Some(mode), ..NetworkFile::default() },
            Self::Policy(NetworkPolicyBody { mode, presets, allow, deny }) => {
                NetworkFile { mode, presets, allow, deny, secrets: None }
            }
        }
    }
}

/// Not derived: an untagged enum says neither what is wrong nor where.
impl<'de> Deserialize<'de> for NetworkBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfBody)
    }
}

struct OfBody;

impl<'de> Visitor<'de> for OfBody {
    type Value = NetworkBody;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a mode or an object")
    }

    fn visit_str<E>(self, mode: &str) -> Result<NetworkBody, E> {
        Ok(NetworkBody::Mode(mode.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NetworkBody, A::Error> {
        NetworkPolicyBody::deserialize(MapAccessDeserializer::new(map)).map(NetworkBody::Policy)
    }
}
