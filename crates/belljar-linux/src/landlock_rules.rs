//! The Landlock domain of user code (landlock(7)): a second layer behind the mounts, and the boundary between user code and
//! the guest that runs beside it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};

/// The accesses that a domain allows. All others that this kernel's Landlock can control are denied.
#[derive(Debug, Clone, Default)]
pub struct LandlockRules {
    /// Trees that may be read and executed. Missing ones are skipped, as they need no rule.
    pub read: Vec<PathBuf>,
    /// Trees in which everything is allowed.
    pub write: Vec<PathBuf>,
    /// True if TCP may be used; with a network namespace, that decides instead.
    pub tcp: bool,
    /// Minimum ABI that the kernel must have, so that no weaker domain is accepted.
    pub least_abi: u32,
}

/// Error from creating a domain.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The kernel has no Landlock, or too old a version.
    #[error(
        "the kernel's Landlock ABI is {found}, and at least {least} is needed; use a kernel with a newer Landlock, and \"landlock\" in its lsm= list"
    )]
    TooOld {
        /// The kernel's ABI.
        found: u32,
        /// The minimum ABI.
        least: u32,
    },
    /// A rule was refused.
    #[error("cannot make the Landlock ruleset")]
    Ruleset(#[source] RulesetError),
    /// The domain was made but cannot be entered.
    #[error("cannot enter the Landlock domain")]
    Enter(#[source] std::io::Error),
}

impl LandlockRules {
    /// Makes the ruleset, which [`crate::restrict_landlock`] enforces any number of times.
    ///
    /// # Errors
    /// See [`LandlockError`]; no rule is dropped silently.
    pub fn build(&self) -> Result<OwnedFd, LandlockError> {
        let found = crate::kernel::landlock_abi();
        let least = self.least_abi.max(1);
        if found < least {
            return Err(LandlockError::TooOld { found, least });
        }
        // Everything that this kernel supports is required; features of newer kernels are not available.
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
                // What a link leads to has its own rule, or none: the tree may be anybody's.
                if access == AccessFs::from_all(abi) && path.is_symlink() {
                    continue;
                }
                if let Ok(fd) = PathFd::new(path) {
                    let access = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
                    ruleset = ruleset.add_rule(PathBeneath::new(fd, access))?;
                }
            }
        }
        Ok(ruleset.into())
    }

    /// Reports whether `path` is in a writable tree.
    #[must_use]
    pub fn may_write(&self, path: &Path) -> bool {
        self.write.iter().any(|tree| path.starts_with(tree))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn links_in_place_of_writable_trees_open_nothing() {
        if crate::kernel::landlock_abi() == 0 {
            return println!("SKIPPED landlock: this kernel has none");
        }
        let dir = tempfile::tempdir().unwrap();
        let [own, foreign, link] = ["own", "foreign", "link"].map(|name| dir.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::symlink(&foreign, &link).unwrap();
        let read = vec![dir.path().to_owned()];
        let rules = LandlockRules { read, write: vec![own.clone(), link.clone()], tcp: true, least_abi: 1 };
        let ruleset = rules.build().unwrap();
        // A domain is that of one thread.
        let tried = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            crate::restrict_landlock(ruleset.as_fd()).unwrap();
            [own, foreign, link].map(|dir| std::fs::write(dir.join("file"), "").map_err(|error| error.kind()))
        });
        let denied = Err(std::io::ErrorKind::PermissionDenied);
        assert_eq!(tried.join().unwrap(), [Ok(()), denied, denied]);
    }
}
