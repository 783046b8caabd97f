//! The verdict on one connection, and why.

use std::fmt;

use crate::network::ranges::DeniedRange;
use crate::network::rule::Rule;

/// The verdict on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the connection is allowed.
    pub allowed: bool,
    /// The rule or mode that decided.
    pub by: DecidedBy,
    /// One sentence for whoever tried it, a model included: what happened and how it can be changed.
    pub reason: String,
}

/// The rule or mode that decided about a connection. `Display` gives it as one short text, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecidedBy {
    /// A host of a preset allows it.
    Preset {
        /// The preset's name.
        preset: &'static str,
        /// The preset's host with its port.
        host: Rule,
    },
    /// A rule of the allow list allows it.
    Allow(Rule),
    /// Mode `open` allows it.
    Open,
    /// A rule of the deny list denies it.
    Deny(Rule),
    /// The address is in a range that is denied in every mode.
    AlwaysDenied(&'static DeniedRange),
    /// The name is that of a cloud's metadata service.
    MetadataName,
    /// Mode `disabled` denies it.
    Disabled,
    /// Nothing allows it.
    NoRule,
}

impl fmt::Display for DecidedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preset { preset, host } => write!(f, "preset {preset}: {host}"),
            Self::Allow(rule) => write!(f, "allow: {rule}"),
            Self::Open => f.write_str("mode open"),
            Self::Deny(rule) => write!(f, "deny: {rule}"),
            Self::AlwaysDenied(range) => write!(f, "always denied: {range}"),
            Self::MetadataName => f.write_str("always denied: metadata service"),
            Self::Disabled => f.write_str("mode disabled"),
            Self::NoRule => f.write_str("not in the allow list"),
        }
    }
}
