//! What a process gives up that handles what untrusted code sends, and runs none of it.

use std::os::fd::AsFd as _;

use rustix::io::Errno;

use crate::landlock_rules::{LandlockError, LandlockRules};
use crate::seccomp::{self, Profile};
use crate::{kernel, rlimit};

/// The most open descriptors of a jailed process: two for each of its connections, and some.
const OPEN_FILES: u64 = 1024;

/// The most memory that it may write to, in bytes.
const DATA: u64 = 128 << 20;

/// Why a process could not be jailed.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// The Landlock domain.
    #[error(transparent)]
    Landlock(#[from] LandlockError),
    /// The kernel refused a step.
    #[error("cannot {step}: {errno}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// Jails this process for good, which has one thread: it becomes `user`, if one is given and it may, has no capability and
/// can gain none, opens no file, and makes no system call but those of [`Profile::Gateway`].
///
/// # Errors
/// The first wall that could not be built; the process must not go on then.
pub fn enter_jail(user: Option<u32>) -> Result<(), JailError> {
    fn at(step: &'static str) -> impl Fn(Errno) -> JailError {
        move |errno| JailError::Step { step, errno }
    }
    let domain = LandlockRules { tcp: true, least_abi: 1, ..LandlockRules::default() }.build()?;
    kernel::leave_session_keyring().map_err(at("leave the session's keyring"))?;
    if let Some(user) = user {
        for capability in 0..64 {
            match kernel::drop_bounding(capability) {
                Ok(()) => {}
                Err(Errno::INVAL) => break,
                Err(errno) => return Err(at("empty the bounding set of capabilities")(errno)),
            }
        }
        kernel::set_ids(user, user, true).map_err(at("become another user"))?;
    }
    kernel::set_capabilities(0).map_err(at("give up capabilities"))?;
    kernel::set_dumpable(false).map_err(at("close its memory to others"))?;
    for (resource, value) in [
        (rlimit::RLIMIT_NOFILE, OPEN_FILES),
        (rlimit::RLIMIT_DATA, DATA),
        (rlimit::RLIMIT_NPROC, 0),
        (rlimit::RLIMIT_FSIZE, 0),
        (rlimit::RLIMIT_MEMLOCK, 0),
        // A limit of 1 also keeps a core from being piped to a helper, which 0 does not (core(5)).
        (rlimit::RLIMIT_CORE, 1),
    ] {
        let (_, hard) = kernel::get_rlimit(resource).map_err(at("read its limits"))?;
        let value = value.min(hard);
        kernel::set_rlimit(resource, value, value).map_err(at("limit itself"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(at("give up new privileges"))?;
    kernel::restrict_landlock(domain.as_fd()).map_err(at("enter its Landlock domain"))?;
    drop(domain);
    kernel::install_seccomp(seccomp::program(Profile::Gateway)).map_err(at("install the system call filter"))
}
