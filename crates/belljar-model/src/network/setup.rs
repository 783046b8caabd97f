use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Cidr, UpstreamProxy};

/// The operator's network configuration, which applies to every sandbox regardless of its policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSetup {
    /// Exceptions from the always denied ranges: sandboxes may reach these if their policies allow it.
    pub exceptions: Vec<Cidr>,
    /// The resolvers that gateways query, instead of those in the machine's `/etc/resolv.conf`.
    pub resolvers: Vec<SocketAddr>,
    /// The proxy through which gateways connect, instead of directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<UpstreamProxy>,
    /// Whether the proxy resolves names. Gateways do not resolve them then, and cannot check their addresses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proxy_resolves: bool,
    /// A PEM file of certificates that gateways trust in addition to those of the system, when they verify hosts themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}
