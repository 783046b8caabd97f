//! Ceilings of network policies.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::ModelError;
use crate::network::file::NetworkFile;
use crate::network::matcher::Matcher;
use crate::network::mode::NetworkMode;
use crate::network::policy::NetworkPolicy;
use crate::network::preset::Preset;

/// Ceiling of the network policies of sandboxes: of a key, or of a server.
///
/// Written as a mode (`whitelist`: any host, as long as policies name it), or as a table with `presets` and `allow`: policies of
/// mode `whitelist` whose hosts are all among these. The default bounds nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "NetworkFile")]
pub struct NetworkCeiling {
    mode: NetworkMode,
    within: Option<NetworkPolicy>,
}

impl Default for NetworkCeiling {
    fn default() -> Self {
        NetworkMode::Open.into()
    }
}

impl From<NetworkMode> for NetworkCeiling {
    fn from(mode: NetworkMode) -> Self {
        Self { mode, within: None }
    }
}

impl NetworkCeiling {
    /// Reports whether nothing is within the ceiling.
    pub fn is_empty(&self) -> bool {
        let allows = |within: &NetworkPolicy| !(within.presets().is_empty() && within.allow().is_empty());
        self.mode == NetworkMode::Disabled || self.within.as_ref().is_some_and(|within| !allows(within))
    }

    /// Checks that everything that a policy may reach is within the ceiling.
    ///
    /// # Errors
    ///
    /// Returns the part that exceeds it and what is allowed, as the end of a sentence.
    pub fn check(&self, policy: &NetworkPolicy) -> Result<(), String> {
        if policy.mode() > self.mode {
            return Err(format!("mode {}; give at most {}", policy.mode(), self.mode));
        }
        let Some(within) = &self.within else { return Ok(()) };
        let matcher = Matcher::new(within, &[]);
        let preset = policy.presets().iter().filter_map(|name| Preset::find(name)).find_map(|preset| {
            let beyond =
                preset.hosts().iter().flat_map(|host| host.rules()).find_map(|rule| matcher.beyond(&rule))?;
            Some(format!("preset {} ({beyond})", preset.name()))
        });
        let rule = || policy.allow().iter().find_map(|rule| matcher.beyond(rule));
        match preset.or_else(rule) {
            Some(beyond) => Err(format!("{beyond}; within are {}", matcher.summary())),
            None => Ok(()),
        }
    }
}

/// The form as a table, for errors that name its keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    presets: Option<Vec<String>>,
    allow: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for NetworkCeiling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfCeiling;
        impl<'de> Visitor<'de> for OfCeiling {
            type Value = NetworkFile;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a mode, or presets and allow")
            }

            fn visit_str<E>(self, mode: &str) -> Result<NetworkFile, E> {
                Ok(mode.to_owned().into())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NetworkFile, A::Error> {
                let Table { presets, allow } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(NetworkFile { presets, allow, ..NetworkFile::default() })
            }
        }
        deserializer.deserialize_any(OfCeiling)?.try_into().map_err(D::Error::custom)
    }
}

impl TryFrom<NetworkFile> for NetworkCeiling {
    type Error = ModelError;

    fn try_from(file: NetworkFile) -> Result<Self, ModelError> {
        let is_mode_alone = file.is_mode_alone();
        let policy = file.resolve()?;
        if is_mode_alone {
            return Ok(policy.mode().into());
        }
        let refuse = |field, value: Option<String>| match value {
            Some(value) => Err(ModelError::not_allowed(
                field,
                value,
                "a mode alone, or presets and allow: a ceiling has no more",
            )),
            None => Ok(()),
        };
        refuse("network.deny", policy.deny().first().map(ToString::to_string))?;
        refuse("network.requests", policy.requests().keys().next().map(ToString::to_string))?;
        refuse("network.secrets", policy.secrets().keys().next().cloned())?;
        refuse("network.tls", policy.tls().keys().next().map(ToString::to_string))?;
        refuse("network.headers", policy.headers().first().map(|set| set.host().to_string()))?;
        let other = Some(policy.mode()).filter(|mode| *mode != NetworkMode::Whitelist);
        refuse("network.mode", other.map(|mode| mode.to_string()))?;
        Ok(Self { mode: NetworkMode::Whitelist, within: Some(policy) })
    }
}

impl From<NetworkCeiling> for NetworkFile {
    fn from(ceiling: NetworkCeiling) -> Self {
        match &ceiling.within {
            Some(policy) => Self {
                // A table is of one mode.
                mode: None,
                // Without any rule it would be a mode alone, which bounds less.
                presets: Some(policy.presets().iter().map(|name| (*name).to_owned()).collect()),
                ..policy.into()
            },
            None => ceiling.mode.to_string().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> NetworkPolicy {
        serde_json::from_str(text).unwrap()
    }

    fn ceiling(text: &str) -> NetworkCeiling {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn parts_of_policies_beyond_the_ceiling_are_named() {
        let lists =
            r#"{"presets": ["pip"], "allow": ["api.example", "*.corp.example:*", "192.0.2.0/24:443"]}"#;
        for (most, policies, beyond) in [
            (r#""open""#, &[r#""open""#, r#"{"allow": ["x.example"]}"#, r#""disabled""#][..], None),
            (
                r#""whitelist""#,
                &[r#"{"allow": ["*.example:*"]}"#, r#"{"presets": ["npm"]}"#, r#""whitelist""#],
                None,
            ),
            (r#""whitelist""#, &[r#""open""#], Some("mode open; give at most whitelist")),
            (r#""disabled""#, &[r#""whitelist""#, r#"{"presets": []}"#], Some("at most disabled")),
            (
                r#"{"presets": []}"#,
                &[r#""whitelist""#, r#"{"deny": ["a.example"], "mode": "whitelist"}"#],
                None,
            ),
            (r#"{"presets": []}"#, &[r#"{"allow": ["a.example"]}"#], Some("a.example; within are nothing")),
            (
                lists,
                &[
                    r#"{"presets": ["pip"]}"#,
                    r#"{"allow": ["pypi.org:443"]}"#,
                    r#"{"allow": ["api.example", "API.example:80", "api.example:443"]}"#,
                    r#"{"allow": ["a.corp.example", "*.b.corp.example:22", "*.corp.example"]}"#,
                    r#"{"allow": ["192.0.2.0/24:443", "192.0.2.7/32:443"]}"#,
                ],
                None,
            ),
            (lists, &[r#"{"allow": ["corp.example"]}"#], Some("corp.example; within are the preset pip, ")),
            (
                lists,
                &[r#"{"allow": ["api.example:22"]}"#, r#"{"allow": ["api.example:*"]}"#],
                Some("api.example:"),
            ),
            (lists, &[r#"{"allow": ["*.api.example"]}"#, r#"{"allow": ["*.example"]}"#], Some("*.")),
            (
                lists,
                &[r#"{"allow": ["pypi.org"]}"#],
                Some("pypi.org:80, though pypi.org:443 is within; within are"),
            ),
            (
                lists,
                &[r#"{"allow": ["192.0.0.0/16:443"]}"#, r#"{"allow": ["192.0.2.0/24:80"]}"#],
                Some("192.0."),
            ),
            (lists, &[r#"{"presets": ["npm", "pip"]}"#], Some("preset npm (")),
            (lists, &[r#""open""#], Some("mode open")),
        ] {
            for text in policies {
                let checked = ceiling(most).check(&policy(text));
                match beyond {
                    None => assert_eq!(checked, Ok(()), "{text} under {most}"),
                    Some(said) => assert!(checked.unwrap_err().contains(said), "{text} under {most}"),
                }
            }
        }
    }

    #[test]
    fn ceiling_round_trip() {
        for text in
            [r#""whitelist""#, r#"{"presets": []}"#, r#"{"presets": ["pip"], "allow": ["a.example:22"]}"#]
        {
            let read = ceiling(text);
            let written = serde_json::to_string(&read).unwrap();
            assert_eq!(ceiling(&written), read, "{written}");
        }
        for text in [
            r#"{"deny": ["a.example"]}"#,
            r#"{"mode": "open", "deny": ["a.example"]}"#,
            r#"{"mode": "disabled", "presets": []}"#,
            r#"{"presets": ["pop"]}"#,
            r#""all""#,
        ] {
            assert!(serde_json::from_str::<NetworkCeiling>(text).is_err(), "{text}");
        }
    }
}
