//! What a server records of its sandboxes, to take them over after a restart.

use std::time::{Duration, SystemTime};

use belljar_model::Isolation;
use serde::{Deserialize, Serialize};

/// The records of a server.
pub(crate) type Records = belljar_engine::Records<Record>;

/// Record of one sandbox.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The secret of its guest.
    pub(crate) secret: String,
    pub(crate) isolation: Isolation,
    /// Its user inside.
    pub(crate) user: u32,
    /// When it ends.
    pub(crate) deadline: Option<SystemTime>,
}

impl Record {
    /// Returns the time until the deadline.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        Some(self.deadline?.duration_since(SystemTime::now()).unwrap_or_default())
    }
}
