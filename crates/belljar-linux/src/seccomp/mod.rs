//! The seccomp filter: an allow-list kept as data, and a compiler to classic BPF.
//!
//! ```text
//! policy/seccomp.toml ──parse──► Policy ──compile──► Program ──► generated_*.rs   (checked in, tested equal)
//!                                  │                                   │
//!                               explain                             program()     (what a launch installs)
//! ```
//!
//! A launch parses nothing: it uses the checked-in array. The tests recompile the policy, compare, and run the result in
//! an interpreter against a direct evaluation of the policy.

mod arch;
mod compile;
mod errno;
mod evaluate;
mod policy;
mod program;
mod source;

mod calls_aarch64;
mod calls_x86_64;

// The other architecture's arrays are compiled only in tests, which compare them too.
#[cfg(any(test, target_arch = "aarch64"))]
mod generated_aarch64;
#[cfg(any(test, target_arch = "x86_64"))]
mod generated_x86_64;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod interpreter;
#[cfg(test)]
mod tests;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("there is no seccomp policy for this architecture");

pub use arch::Arch;
pub use compile::compile;
pub use errno::FilterErrno;
pub use evaluate::{Action, Verdict, explain};
pub use policy::{Policy, Profile, SeccompError};
pub use program::{Instruction, Program, program};
