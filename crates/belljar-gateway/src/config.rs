//! What a gateway is started with.

use belljar_model::{NetworkPolicy, NetworkSetup};
use serde::{Deserialize, Serialize};

use crate::authority::Authority;

/// The byte that says over the control socket that the configuration comes: a file that holds it as JSON.
pub const SETUP: u8 = b'p';

/// The byte that says that a connection of the host comes, for one request of [`crate::set_policy`] or
/// [`crate::log`].
pub const CONNECTION: u8 = b'c';

/// Message of a gateway over the control socket: jailed, and ready for its sockets. Any other message is the reason why it could not
/// start.
pub const STARTED: u8 = b's';

/// What one gateway does: by the operator and by whoever made the sandbox, never by what runs inside.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The sandbox's policy.
    pub policy: NetworkPolicy,
    /// What the operator says.
    pub setup: NetworkSetup,
    /// The certificate authority of the sandbox, if TLS to some hosts is ended by the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<Authority>,
    /// The user and group id to become, where it is started by an administrator.
    pub user: Option<u32>,
    /// Walls that a test takes away.
    #[cfg(feature = "mutation")]
    pub without: Vec<String>,
}

impl GatewayConfig {
    /// Whether a test has taken this wall away: never in a release.
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
