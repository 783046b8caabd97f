//! The modes of a network policy.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::nearest::{choice, nearest};
use crate::text::serde_as_text;

/// The part of the network that a sandbox can reach, in increasing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum NetworkMode {
    /// Only the sandbox itself: the only interface is loopback. The default.
    #[default]
    Disabled,
    /// The hosts that presets and allow rules name, and nothing else.
    Whitelist,
    /// Every public host that no deny rule names.
    Open,
}

impl NetworkMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Disabled, Self::Whitelist, Self::Open];

    /// Returns the mode's name: `disabled`, `whitelist` or `open`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Whitelist => "whitelist",
            Self::Open => "open",
        }
    }

    pub(super) fn parse(field: &'static str, text: &str) -> Result<Self, ModelError> {
        match text {
            "disabled" => Ok(Self::Disabled),
            "whitelist" => Ok(Self::Whitelist),
            "open" => Ok(Self::Open),
            _ => {
                let known = Self::ALL.map(Self::as_str);
                let allowed = match Self::meant(text) {
                    None => "disabled, whitelist or open".to_owned(),
                    meant => choice(meant, &known),
                };
                Err(ModelError::not_allowed(field, text, allowed))
            }
        }
    }

    /// Returns the mode that a word is likely to mean: other programs' words for it, or one that is misspelt.
    fn meant(text: &str) -> Option<&'static str> {
        let mode = match text.to_ascii_lowercase().as_str() {
            "off" | "none" | "no" | "false" => Self::Disabled,
            "allow" | "allowlist" | "restricted" => Self::Whitelist,
            "all" | "bridge" | "full" | "host" | "internet" | "public" => Self::Open,
            _ => return nearest(text, Self::ALL.map(Self::as_str)),
        };
        Some(mode.as_str())
    }
}

impl FromStr for NetworkMode {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::parse("network", text)
    }
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(NetworkMode);
