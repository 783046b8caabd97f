//! The architectures that a filter can be compiled for, and their system call tables.

use super::{calls_aarch64, calls_x86_64};

/// An architecture that a filter can be compiled for. Both are little-endian and 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    /// 64-bit x86, without the x32 and i386 entries.
    X86_64,
    /// 64-bit Arm, without the 32-bit entry.
    Aarch64,
}

impl Arch {
    /// Every architecture.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The architecture that this code was compiled for.
    pub const NATIVE: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// Returns the name as Rust and the kernel's `uname` spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns the `AUDIT_ARCH_*` value that the kernel puts into `seccomp_data.arch` (linux/audit.h).
    #[must_use]
    pub fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xC000_003E,
            Self::Aarch64 => 0xC000_00B7,
        }
    }

    /// Returns each call's number and name, in order of number. Numbers are at most 1023.
    #[must_use]
    pub fn calls(self) -> &'static [(u32, &'static str)] {
        match self {
            Self::X86_64 => calls_x86_64::CALLS,
            Self::Aarch64 => calls_aarch64::CALLS,
        }
    }

    /// Returns the number of the call `name`, if this architecture has it.
    #[must_use]
    pub fn number(self, name: &str) -> Option<u32> {
        self.calls().iter().find(|(_, call)| *call == name).map(|(number, _)| *number)
    }

    /// Returns the name of the call `number`, if this architecture has it.
    #[must_use]
    pub fn call(self, number: u32) -> Option<&'static str> {
        let index = self.calls().binary_search_by_key(&number, |(call, _)| *call).ok()?;
        self.calls().get(index).map(|(_, name)| *name)
    }

    /// Returns the architecture named `name`, as [`Arch::name`] spells it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }
}
