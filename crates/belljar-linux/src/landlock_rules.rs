//! The Landlock domain of user code (landlock(7)): a second opinion on what the mounts already say, and the wall
//! between user code and the guest that runs beside it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

/// What a domain allows. Everything that this kernel's Landlock knows and that is not named here is denied.
#[derive(Debug, Clone, Default)]
pub struct LandlockRules {
    /// Trees that may be read and executed. Missing ones are passed over: what is not there needs no rule.
    pub read: Vec<PathBuf>,
    /// Trees in which everything is allowed.
    pub write: Vec<PathBuf>,
    /// Whether TCP may be used; where there is a network namespace that one decides.
    pub tcp: bool,
    /// The least ABI that will do, so that nothing weaker is taken for it.
    pub least_abi: u32,
}

/// Why a domain could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The kernel has none, or too old a one.
    #[error(
        "the kernel's Landlock ABI is {found}, and at least {least} is needed; use a kernel with a newer Landlock, and \"landlock\" in its lsm= list"
    )]
    TooOld {
        /// What the kernel has.
        found: u32,
        /// What is needed.
        least: u32,
    },
    /// A rule was refused.
    #[error("cannot make the Landlock ruleset")]
    Ruleset(#[source] RulesetError),
    /// The domain was made and cannot be entered.
    #[error("cannot enter the Landlock domain")]
    Enter(#[source] std::io::Error),
}

impl LandlockRules {
    /// Makes the ruleset. It is enforced with [`crate::restrict_landlock`], as often as wanted.
    ///
    /// # Errors
    /// See [`LandlockError`]; nothing is left out silently.
    pub fn build(&self) -> Result<OwnedFd, LandlockError> {
        let found = crate::kernel::landlock_abi();
        let least = self.least_abi.max(1);
        if found < least {
            return Err(LandlockError::TooOld { found, least });
        }
        // All of what this kernel knows is required; what only newer kernels know cannot be had.
        let abi = ABI::from(i32::try_from(found).unwrap_or(i32::MAX));
        self.build_for(abi).map_err(LandlockError::Ruleset)?.ok_or(LandlockError::TooOld { found, least })
    }

    fn build_for(&self, abi: ABI) -> Result<Option<OwnedFd>, RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))?;
        if !self.tcp && !AccessNet::from_all(abi).is_empty() {
            ruleset = ruleset.handle_access(AccessNet::from_all(abi))?;
        }
        if !Scope::from_all(abi).is_empty() {
            ruleset = ruleset.scope(Scope::from_all(abi))?;
        }
        let mut ruleset = ruleset.create()?;
        for (trees, access) in
            [(&self.read, AccessFs::from_read(abi)), (&self.write, AccessFs::from_all(abi))]
        {
            for path in trees {
                if let Ok(fd) = PathFd::new(path) {
                    let access = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
                    ruleset = ruleset.add_rule(PathBeneath::new(fd, access))?;
                }
            }
        }
        Ok(ruleset.into())
    }

    /// Whether `path` lies in a tree that may be written.
    #[must_use]
    pub fn may_write(&self, path: &Path) -> bool {
        self.write.iter().any(|tree| path.starts_with(tree))
    }
}
