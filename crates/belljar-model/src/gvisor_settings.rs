//! Settings of the engine `gvisor`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Settings of the engine `gvisor`, determined by the operator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GvisorSettings {
    /// The program `runsc`. Without one, that of the search path.
    pub runsc: Option<PathBuf>,
    /// How it intercepts system calls.
    pub platform: GvisorPlatform,
}

/// How gVisor intercepts the system calls of programs (gVisor's documentation, "Platforms").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GvisorPlatform {
    /// By seccomp and signals: the faster one of the two that need no virtualization.
    #[default]
    Systrap,
    /// By ptrace(2), where systrap does not work.
    Ptrace,
}

impl GvisorPlatform {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Systrap, Self::Ptrace];

    /// Returns the name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Systrap => "systrap",
            Self::Ptrace => "ptrace",
        }
    }
}

impl fmt::Display for GvisorPlatform {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for GvisorPlatform {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|platform| platform.as_str() == text).ok_or(())
    }
}
