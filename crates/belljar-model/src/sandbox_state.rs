//! Lifecycle of a sandbox.
//!
//! ```text
//!                 ┌────── pause ──────►┐
//!  Creating ──► Running              Paused
//!     │           └◄───── resume ──────┘ │
//!     │           │                      │
//!     └──────────►┴─────► Stopping ◄─────┘      kill, deadline, end of the guest, failed start
//!                            │
//!                            ▼
//!                          Gone
//! ```
//!
//! The keeper records the intended state before it acts. After a crash it makes the sandbox match the record: a `Creating`
//! sandbox is undone, a `Running` one is thawed, a `Paused` one is frozen, a `Stopping` one is ended.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// Lifecycle state of a sandbox.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = State, rename_all = "snake_case"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SandboxState {
    /// Being created.
    Creating,
    /// Ready for use.
    Running,
    /// Frozen, with its timeout suspended. Memory and files are kept.
    Paused,
    /// Being removed.
    Stopping,
    /// Removed, except for its record.
    Gone,
}

impl SandboxState {
    /// All states, in the order of the lifecycle.
    pub const ALL: [Self; 5] = [Self::Creating, Self::Running, Self::Paused, Self::Stopping, Self::Gone];

    /// Returns the name: `creating`, `running`, `paused`, `stopping` or `gone`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Gone => "gone",
        }
    }

    /// Reports whether a sandbox may change from this state to `next` in one step.
    pub const fn can_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Creating, Self::Running | Self::Stopping)
                | (Self::Running, Self::Paused | Self::Stopping)
                | (Self::Paused, Self::Running | Self::Stopping)
                | (Self::Stopping, Self::Gone)
        )
    }
}

impl FromStr for SandboxState {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            ModelError::not_allowed("state", text, "creating, running, paused, stopping or gone")
        })
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(SandboxState);

#[cfg(test)]
mod tests {
    use super::SandboxState::{self, Creating, Gone, Paused, Running, Stopping};

    #[test]
    fn names_round_trip() {
        for state in SandboxState::ALL {
            assert_eq!(state.to_string().parse::<SandboxState>().unwrap(), state);
        }
        assert!("Running".parse::<SandboxState>().is_err());
    }

    #[test]
    fn only_documented_transitions_are_allowed() {
        let allowed = [
            (Creating, Running),
            (Creating, Stopping),
            (Running, Paused),
            (Running, Stopping),
            (Paused, Running),
            (Paused, Stopping),
            (Stopping, Gone),
        ];
        for from in SandboxState::ALL {
            for to in SandboxState::ALL {
                assert_eq!(from.can_become(to), allowed.contains(&(from, to)), "{from} to {to}");
            }
        }
    }
}
