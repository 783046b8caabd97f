use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Cidr, UpstreamProxy};

/// What the operator says of networks, whatever the policy of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSetup {
    /// Ranges that are denied in every mode and that sandboxes may reach all the same, if their policies allow it.
    pub exceptions: Vec<Cidr>,
    /// The resolvers that gateways ask, instead of those of the machine's `/etc/resolv.conf`.
    pub resolvers: Vec<SocketAddr>,
    /// The proxy through which gateways connect, instead of directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<UpstreamProxy>,
    /// Whether names are looked up by the proxy. Gateways do not look them up then, and cannot check where they lead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proxy_resolves: bool,
    /// A file of certificates in PEM that gateways trust beside those of the system, where they check hosts themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}
