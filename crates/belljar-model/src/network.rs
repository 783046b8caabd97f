//! What a sandbox may reach.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// What a sandbox may reach over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum NetworkPolicy {
    /// Nothing but itself: there is no interface but loopback. The default.
    #[default]
    Disabled,
}

impl NetworkPolicy {
    /// The policy's name: `disabled`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
        }
    }
}

impl FromStr for NetworkPolicy {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "disabled" => Ok(Self::Disabled),
            "whitelist" | "open" => Err(ModelError::NotInThisVersion {
                field: "network",
                value: text.to_owned(),
                allowed: "disabled",
            }),
            _ => Err(ModelError::not_allowed("network", text, "disabled")),
        }
    }
}

impl fmt::Display for NetworkPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(NetworkPolicy);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_disabled_is_in_this_version() {
        let cases = [
            ("disabled", Ok(NetworkPolicy::Disabled)),
            ("whitelist", Err("network: \"whitelist\" is not in this version; give disabled")),
            ("open", Err("network: \"open\" is not in this version; give disabled")),
            ("on", Err("network: \"on\" is not allowed; give disabled")),
            ("", Err("network: \"\" is not allowed; give disabled")),
        ];
        for (text, expected) in cases {
            let policy = text.parse::<NetworkPolicy>().map_err(|error| error.to_string());
            assert_eq!(policy, expected.map_err(str::to_owned));
        }
        assert_eq!(serde_json::to_string(&NetworkPolicy::default()).unwrap(), "\"disabled\"");
    }
}
