//! Jails a process that handles input from untrusted code but runs none of that code.

use std::os::fd::AsFd as _;

use rustix::io::Errno;

use crate::landlock_rules::{LandlockError, LandlockRules};
use crate::seccomp::{self, Profile};
use crate::{kernel, rlimit};

/// Maximum number of open descriptors of a jailed process: two for each connection, and some spare.
const MAX_OPEN_FILES: u64 = 1024;

/// Maximum writable memory of a jailed process, in bytes.
pub const MAX_DATA_BYTES: u64 = 128 << 20;

/// Error from jailing a process.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// The Landlock domain could not be built.
    #[error(transparent)]
    Landlock(#[from] LandlockError),
    /// The kernel refused a step.
    #[error("cannot {step}: {errno}")]
    Step {
        /// The step that failed.
        step: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// What a jailed process may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It connects to other hosts over TCP.
    Network,
    /// It has the descriptors that it was started with, and can get no other: no file, no socket, no pipe.
    Nothing,
}

/// Jails this single-threaded process permanently: it becomes `user` if one is given (which takes privileges), has no
/// capabilities and can gain none, opens no files, and makes only the system calls of [`Profile::Gateway`].
///
/// # Errors
/// Fails at the first step that the kernel refuses; the process must not go on then.
pub fn enter_jail(user: Option<u32>, reach: Reach) -> Result<(), JailError> {
    fn at(step: &'static str) -> impl Fn(Errno) -> JailError {
        move |errno| JailError::Step { step, errno }
    }
    let domain =
        LandlockRules { tcp: reach == Reach::Network, least_abi: 1, ..LandlockRules::default() }.build()?;
    kernel::leave_session_keyring().map_err(at("leave the session keyring"))?;
    if let Some(user) = user {
        for capability in 0..64 {
            match kernel::drop_bounding(capability) {
                Ok(()) => {}
                Err(Errno::INVAL) => break,
                Err(errno) => return Err(at("drop a capability from the bounding set")(errno)),
            }
        }
        kernel::set_ids(user, user, true).map_err(at("switch to another user"))?;
    }
    kernel::set_capabilities(0).map_err(at("drop capabilities"))?;
    kernel::set_dumpable(false).map_err(at("make the process non-dumpable"))?;
    for (resource, value) in [
        // It does not affect descriptors that are open already.
        (rlimit::RLIMIT_NOFILE, if reach == Reach::Network { MAX_OPEN_FILES } else { 0 }),
        (rlimit::RLIMIT_DATA, MAX_DATA_BYTES),
        (rlimit::RLIMIT_NPROC, 0),
        (rlimit::RLIMIT_FSIZE, 0),
        (rlimit::RLIMIT_MEMLOCK, 0),
        // A limit of 1 also prevents a core dump from being piped to a helper, which 0 does not (core(5)).
        (rlimit::RLIMIT_CORE, 1),
    ] {
        let (_, hard) = kernel::get_rlimit(resource).map_err(at("read a resource limit"))?;
        let value = value.min(hard);
        kernel::set_rlimit(resource, value, value).map_err(at("set a resource limit"))?;
    }
    rustix::thread::set_no_new_privs(true).map_err(at("set no-new-privileges"))?;
    kernel::restrict_landlock(domain.as_fd()).map_err(at("enter the Landlock domain"))?;
    drop(domain);
    kernel::install_seccomp(seccomp::program(Profile::Gateway)).map_err(at("install the system call filter"))
}
