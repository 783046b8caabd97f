//! The policy in memory, and its profiles.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::arch::Arch;
use super::errno::FilterErrno;
use super::evaluate::Action;
use super::source;

/// Error that refuses a policy or a program.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The text is not a policy's TOML.
    #[error("cannot read the seccomp policy")]
    Syntax {
        /// The position, and what was expected there.
        #[source]
        source: toml::de::Error,
    },
    /// The policy can be parsed, but is invalid.
    #[error("invalid seccomp policy at {place}: {reason}")]
    Policy {
        /// The call or the table.
        place: String,
        /// The mistake, and what is allowed.
        reason: String,
    },
    /// The kernel would not accept the program.
    #[error("invalid seccomp program at instruction {at}: {reason}")]
    Program {
        /// The instruction, counted from 0.
        at: usize,
        /// The mistake.
        reason: &'static str,
    },
}

/// A built-in policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// The calls that general programs need.
    Default,
    /// [`Profile::Default`] without the calls that recent kernel exploits used. A few programs get slower.
    Hardened,
    /// [`Profile::Default`] without sockets except stream and packet pairs, without memory that is resident nowhere,
    /// and without calls that reach the host's IPC objects and the user's other files and processes, for an engine
    /// without namespaces.
    NoNetwork,
    /// [`Profile::Default`] without memory that is resident nowhere, for an engine that watches memory and has no
    /// control group to limit it.
    Watched,
    /// [`Profile::Default`], but calls that change a file's owner do nothing and return success: packages are unpacked with
    /// only one user id. For builds of templates.
    Build,
    /// [`Profile::Default`] with the calls that set modes with set-user-ID bits, and `chroot`. For machines, whose root is root of the
    /// sandbox's user namespace.
    Machine,
    /// [`Profile::Default`] with the calls by which a process enters a sandbox. For the parent of warm interpreters, which
    /// runs no user code; each child also installs the sandbox's own filter before it runs any.
    Warm,
    /// The few calls that a network's gateway needs, which runs no user code.
    Gateway,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 8] = [
        Self::Default,
        Self::Hardened,
        Self::NoNetwork,
        Self::Watched,
        Self::Build,
        Self::Machine,
        Self::Warm,
        Self::Gateway,
    ];

    /// Returns the name in the policy, in the configuration and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Hardened => "hardened",
            Self::NoNetwork => "no_network",
            Self::Watched => "watched",
            Self::Build => "build",
            Self::Machine => "machine",
            Self::Warm => "warm",
            Self::Gateway => "gateway",
        }
    }
}

/// A filter policy: the outcome of each call. Validated when it is parsed.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(super) unlisted: FilterErrno,
    pub(super) entries: BTreeMap<String, Entry>,
}

/// The policy for one call: the first rule that holds decides, else `otherwise`.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The only architecture that has the call, or both.
    pub(super) only: Option<Arch>,
    pub(super) rules: Vec<Rule>,
    pub(super) otherwise: Action,
    pub(super) why: String,
}

/// One rule: it holds if all of its conditions hold. There is at least one.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) conditions: Vec<Condition>,
    pub(super) then: Action,
    pub(super) why: String,
}

/// A condition on one argument: `argument & mask` is one of `values`, or with `negated` none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// 0 to 5.
    pub(super) argument: u8,
    /// Compare all 64 bits, not only the low 32. If false, `mask` and `values` are below 2^32.
    pub(super) wide: bool,
    pub(super) mask: u64,
    /// At least one; none has a bit outside `mask`.
    pub(super) values: Vec<u64>,
    pub(super) negated: bool,
}

impl Policy {
    /// Parses the policy `text` with the restrictions of `profile`.
    ///
    /// # Errors
    /// Returns [`SeccompError::Syntax`] or [`SeccompError::Policy`].
    pub fn parse(text: &str, profile: Profile) -> Result<Self, SeccompError> {
        source::parse(text, profile)
    }

    /// Returns the built-in policy, parsed once on first use: a launch does not need it.
    ///
    /// # Errors
    /// Never fails in a build that passed its tests.
    pub fn builtin(profile: Profile) -> Result<&'static Self, &'static SeccompError> {
        type Parsed = LazyLock<Result<Policy, SeccompError>>;
        const TEXT: &str = include_str!("../../policy/seccomp.toml");
        static DEFAULT: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::Default));
        static HARDENED: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::Hardened));
        static NO_NETWORK: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::NoNetwork));
        static WATCHED: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::Watched));
        static BUILD: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::Build));
        static MACHINE: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::Machine));
        static WARM: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::Warm));
        static GATEWAY: Parsed = LazyLock::new(|| Policy::parse(TEXT, Profile::Gateway));
        match profile {
            Profile::Default => DEFAULT.as_ref(),
            Profile::Hardened => HARDENED.as_ref(),
            Profile::NoNetwork => NO_NETWORK.as_ref(),
            Profile::Watched => WATCHED.as_ref(),
            Profile::Build => BUILD.as_ref(),
            Profile::Machine => MACHINE.as_ref(),
            Profile::Warm => WARM.as_ref(),
            Profile::Gateway => GATEWAY.as_ref(),
        }
    }

    /// Returns name and entry of the call `number` of `arch`, if the policy lists it.
    pub(super) fn entry(&self, arch: Arch, number: u32) -> Option<(&'static str, &Entry)> {
        let call = arch.call(number)?;
        let entry = self.entries.get(call)?;
        (entry.only.is_none_or(|only| only == arch)).then_some((call, entry))
    }
}
