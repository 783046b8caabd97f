//! Leases of user ids on the host: each sandbox of an administrator runs as one that no other has, for as long as it lives.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use belljar_engine::EngineError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// First id: above the ranges of adduser(8), systemd and subuid(5).
const FIRST: u32 = 1_900_000_000;

/// Number of ids.
const COUNT: u32 = 65_536;

/// Maximum number of ids to try.
const MAX_ATTEMPTS: u32 = 4_096;

/// Directory of the lock file. The file stays; a lease is a lock on one byte of it.
const DIR: &str = "/run/belljar";

/// Leased id. The lock lasts as long as any copy of the descriptor, so the kernel releases it when all holders are dead.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) uid: u32,
    pub(crate) lock: OwnedFd,
}

impl Lease {
    /// Leases a free id, starting at a random one, so that a released id is not reused soon.
    pub(crate) fn take(random: u32) -> Result<Self, EngineError> {
        let file = open_file().map_err(|errno| EngineError::Layer {
            layer: "a user id of its own".into(),
            reason: format!("{DIR}/uids cannot be opened: {errno}"),
            fix: format!("make {DIR} a directory that only root may write"),
        })?;
        for attempt in 0..MAX_ATTEMPTS {
            let slot = random.wrapping_add(attempt) % COUNT;
            match belljar_linux::lock_byte(file.as_fd(), i64::from(slot)) {
                Ok(()) => return Ok(Self { uid: FIRST + slot, lock: file }),
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(errno) => {
                    return Err(EngineError::Launch {
                        step: format!("lock a user id in {DIR}/uids"),
                        source: errno.into(),
                    });
                }
            }
        }
        Err(EngineError::Layer {
            layer: "a user id of its own".into(),
            reason: format!("all of the ids {FIRST} to {} that were tried are in use", FIRST + COUNT - 1),
            fix: "wait until a sandbox has ended".to_owned(),
        })
    }
}

fn open_file() -> Result<OwnedFd, Errno> {
    let dir = Path::new(DIR);
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(dir.join("uids"), flags, Mode::RUSR | Mode::WUSR)
}
