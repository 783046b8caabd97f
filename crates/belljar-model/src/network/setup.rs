use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Cidr;

/// What the operator says of networks, whatever the policy of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSetup {
    /// Ranges that are denied in every mode and that sandboxes may reach all the same, if their policies allow it.
    pub exceptions: Vec<Cidr>,
    /// The resolvers that gateways ask, instead of those of the machine's `/etc/resolv.conf`.
    pub resolvers: Vec<SocketAddr>,
}
