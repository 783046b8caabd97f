//! Verdict on one connection, with its reason.

use std::fmt;
use std::net::Ipv4Addr;

use crate::network::ranges::DeniedRange;
use crate::network::rule::Rule;

/// The verdict on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the connection is allowed.
    pub allowed: bool,
    /// The rule or mode that decided.
    pub by: DecidedBy,
    /// One sentence for the user or model that tried it: what happened and how to change it.
    pub reason: String,
}

impl Decision {
    /// Denies an address that the gateway has identified as one of its own machine's.
    pub fn deny_own_address(address: Ipv4Addr) -> Self {
        Self {
            allowed: false,
            by: DecidedBy::OwnAddress,
            reason: format!(
                "{address} is denied in every mode, as it is an address of the machine that the sandbox runs on; only the \
                 operator's configuration can make an exception"
            ),
        }
    }

    /// Denies a connection whose first bytes are for another name than the one that it was opened to.
    pub fn deny_other_name(reason: String) -> Self {
        Self { allowed: false, by: DecidedBy::OtherName, reason }
    }

    /// Denies a connection that used a secret or a header which the policy no longer has.
    pub fn deny_secret(what: &str) -> Self {
        let reason = format!("the network policy no longer has {what}, which this connection used");
        Self { allowed: false, by: DecidedBy::Secret, reason }
    }

    /// Denies a request that the host's rules do not allow.
    pub fn deny_request(reason: String) -> Self {
        Self { allowed: false, by: DecidedBy::Requests, reason }
    }
}

/// The rule or mode that decided about a connection. `Display` writes it as one short text, for logs.
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
    /// The address is one of the machine that the sandbox runs on.
    OwnAddress,
    /// The connection is for another name than the one that it was opened to.
    OtherName,
    /// The rules for requests to the host deny it.
    Requests,
    /// It used a secret that the policy no longer has.
    Secret,
    /// Mode `disabled` denies it.
    Disabled,
    /// No rule allows it.
    NoRule,
}

/// Begin of the text of decisions that no policy can change.
pub(crate) const ALWAYS_DENIED_TEXT: &str = "always denied: ";

impl fmt::Display for DecidedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preset { preset, host } => write!(f, "preset {preset}: {host}"),
            Self::Allow(rule) => write!(f, "allow: {rule}"),
            Self::Open => f.write_str("mode open"),
            Self::Deny(rule) => write!(f, "deny: {rule}"),
            Self::AlwaysDenied(range) => write!(f, "{ALWAYS_DENIED_TEXT}{range}"),
            Self::MetadataName => write!(f, "{ALWAYS_DENIED_TEXT}metadata service"),
            Self::OwnAddress => write!(f, "{ALWAYS_DENIED_TEXT}this machine"),
            Self::OtherName => write!(f, "{ALWAYS_DENIED_TEXT}another name"),
            Self::Requests => f.write_str("not in the requests of this host"),
            Self::Secret => f.write_str("a secret was removed"),
            Self::Disabled => f.write_str("mode disabled"),
            Self::NoRule => f.write_str("not in the allow list"),
        }
    }
}
