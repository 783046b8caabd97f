//! Configuration of a gateway, and its control messages.

use belljar_model::{NetworkPolicy, NetworkSetup};
use serde::{Deserialize, Serialize};

use crate::authority::Authority;

/// Message to a gateway over the control socket: the attached file contains the configuration as JSON. The attached socket has
/// one message, with the sockets of the sandbox's network, that each gateway of the sandbox reads and leaves there for the next.
pub const SETUP: u8 = b'p';

/// Message to a gateway over the control socket: the attached socket is a connection of the host, for one request of
/// [`crate::set_policy`] or [`crate::log`].
pub const CONNECTION: u8 = b'c';

/// Message of a gateway over the control socket: jailed, and ready for its sockets. Any other message is the reason why it could not
/// start.
pub const STARTED: u8 = b's';

/// Configuration of a gateway, determined by the operator and the sandbox's creator, and never by code in the sandbox.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The sandbox's policy.
    pub policy: NetworkPolicy,
    /// The operator's network setup.
    pub setup: NetworkSetup,
    /// The certificate authority of the sandbox, if the gateway terminates TLS to some hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<Authority>,
    /// Number of gateways that the sandbox had before this one, which have ended unexpectedly.
    #[serde(default)]
    pub generation: u32,
    /// The user and group id to switch to, if it is started by an administrator.
    pub user: Option<u32>,
    /// Fix the sizes of the buffers of its connections, as no control group limits their memory.
    pub fixed_buffers: bool,
    /// Walls that a test disables.
    #[cfg(feature = "mutation")]
    pub without: Vec<String>,
}

impl GatewayConfig {
    /// Reports whether a test has disabled this wall; never in a release.
    pub(crate) fn is_without(&self, wall: &str) -> bool {
        #[cfg(feature = "mutation")]
        return self.without.iter().any(|name| name == wall);
        #[cfg(not(feature = "mutation"))]
        {
            let _ = wall;
            false
        }
    }
}
