//! Evaluates the policy directly. The compiler does not use this, so that each can be tested against the other.

use std::fmt;

use super::arch::Arch;
use super::errno::FilterErrno;
use super::policy::{Condition, Policy, Profile, SeccompError};

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The call runs.
    Allow,
    /// The call does not run and returns this error.
    Errno(FilterErrno),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allow"),
            Self::Errno(errno) => errno.fmt(f),
        }
    }
}

/// Outcome of a call, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<'policy> {
    /// The outcome.
    pub action: Action,
    /// The call's name, if the policy lists it.
    pub call: Option<&'static str>,
    /// The reason, as the policy states it.
    pub why: &'policy str,
}

/// Returns the built-in policy's verdict on the call `number` of this architecture with these six arguments.
///
/// # Errors
/// As [`Policy::builtin`].
pub fn explain(
    profile: Profile,
    number: u32,
    arguments: &[u64; 6],
) -> Result<Verdict<'static>, &'static SeccompError> {
    Ok(Policy::builtin(profile)?.verdict(Arch::NATIVE, number, arguments))
}

impl Policy {
    /// Returns the verdict on the call `number` of `arch` with these six arguments, made through the native entry of
    /// `arch`. Every other entry (i386, x32, 32-bit Arm) gets the outcome of an unlisted call.
    #[must_use]
    pub fn verdict(&self, arch: Arch, number: u32, arguments: &[u64; 6]) -> Verdict<'_> {
        let Some((call, entry)) = self.entry(arch, number) else {
            let action = Action::Errno(self.unlisted);
            return Verdict { action, call: None, why: "the policy does not list this call" };
        };
        for rule in &entry.rules {
            if rule.conditions.iter().all(|condition| condition.holds(arguments)) {
                return Verdict { action: rule.then, call: Some(call), why: &rule.why };
            }
        }
        Verdict { action: entry.otherwise, call: Some(call), why: &entry.why }
    }
}

impl Condition {
    fn holds(&self, arguments: &[u64; 6]) -> bool {
        let argument = arguments[usize::from(self.argument)];
        let seen = if self.wide { argument } else { argument & 0xffff_ffff };
        self.values.contains(&(seen & self.mask)) != self.negated
    }
}
