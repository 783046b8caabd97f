//! The first messages on a connection that a guest accepts itself, on a Unix socket: it has inherited nothing from its host.
//!
//! ```text
//!  host ── Hello {generation, secret, config} ──► guest, on the first connection
//!       ◄── Welcome {generation} ──────────────── once its walls are up; then HTTP/2
//!  host ── Hello {generation, secret} ──────────► on each further connection
//! ```

use serde::{Deserialize, Serialize};

use crate::config::GuestConfig;

/// Generation of the protocol between host and guest, with the format of [`GuestConfig`]. A guest is configured by a host of its
/// own generation. A running guest is never replaced, so a later host adapts to it; only a feature that the guest lacks fails, early
/// and by name.
pub const GENERATION: u32 = 1;

/// First message of a host.
#[derive(Serialize, Deserialize)]
pub struct Hello {
    /// The host's generation.
    pub generation: u32,
    /// Random text that the host has chosen for the sandbox. Code inside may reach the socket, but does not know it.
    pub secret: String,
    /// The configuration, on the first connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<GuestConfig>,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Hello").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Answer of a guest.
#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The guest's generation.
    pub generation: u32,
    /// Reason why it closes the connection now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl Welcome {
    /// Accepts the connection.
    #[must_use]
    pub const fn accept() -> Self {
        Self { generation: GENERATION, refusal: None }
    }

    /// Refuses the connection.
    #[must_use]
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self { generation: GENERATION, refusal: Some(reason.into()) }
    }
}
