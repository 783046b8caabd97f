//! Leases of user ids on the host: each sandbox of an administrator runs as one that no other has, for as long as it lives.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use belljar_engine::EngineError;
use belljar_linux::MACHINE_IDS;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// First id: above the ranges of adduser(8), systemd and subuid(5).
const FIRST: u32 = 1_900_000_000;

/// Number of ids of sandboxes that have one each.
const COUNT: u32 = 65_536;

/// First id of those of machines.
const FIRST_OF_MACHINES: u32 = FIRST + COUNT;

/// Number of machines that there are ids for.
const MACHINES: u32 = (u32::MAX - FIRST_OF_MACHINES) / MACHINE_IDS;

/// Maximum number of ids to try.
const MAX_ATTEMPTS: u32 = 4_096;

/// Directory of the lock files. They stay; a lease is a lock on one byte of one of them.
const DIR: &str = "/run/belljar";

/// Ids whose locks are in one file: the kernel looks at all locks of a file for each.
const IDS_OF_FILE: u32 = 256;

/// Leased id. The lock lasts as long as any copy of the descriptor, so the kernel releases it when all holders are dead.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) uid: u32,
    pub(crate) lock: OwnedFd,
}

impl Lease {
    /// Leases a free id, starting at a random one, so that a released id is not reused soon.
    pub(crate) fn take(random: u32) -> Result<Self, EngineError> {
        Self::take_of(random, COUNT, 0, |slot| FIRST + slot)
    }

    /// Leases [`MACHINE_IDS`] free ids, of which [`Lease::uid`] is the first.
    pub(crate) fn take_range(random: u32) -> Result<Self, EngineError> {
        Self::take_of(random, MACHINES, COUNT, |slot| FIRST_OF_MACHINES + slot * MACHINE_IDS)
    }

    /// Leases one of `count` slots, whose bytes begin at `first_byte`.
    fn take_of(
        random: u32,
        count: u32,
        first_byte: u32,
        uid: impl Fn(u32) -> u32,
    ) -> Result<Self, EngineError> {
        let mut opened = None;
        for attempt in 0..MAX_ATTEMPTS {
            let slot = random.wrapping_add(attempt) % count;
            let byte = first_byte + slot;
            let number = byte / IDS_OF_FILE;
            let file = match opened.take_if(|(of, _)| *of == number) {
                Some((_, file)) => file,
                None => open_file(number)?,
            };
            match belljar_linux::lock_byte(file.as_fd(), i64::from(byte)) {
                Ok(()) => return Ok(Self { uid: uid(slot), lock: file }),
                Err(Errno::AGAIN | Errno::ACCESS) => opened = Some((number, file)),
                Err(errno) => {
                    return Err(EngineError::Launch {
                        step: format!("lock a user id in {DIR}"),
                        source: errno.into(),
                    });
                }
            }
        }
        Err(EngineError::Layer {
            layer: "a user id of its own".into(),
            reason: format!("all of the ids from {} on that were tried are in use", uid(0)),
            fix: "wait until a sandbox has ended".to_owned(),
        })
    }
}

fn open_file(number: u32) -> Result<OwnedFd, EngineError> {
    let file = Path::new(DIR).join(format!("uids-{number}"));
    let opening = || {
        match rustix::fs::mkdir(DIR, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::open(&file, flags, Mode::RUSR | Mode::WUSR)
    };
    opening().map_err(|errno| EngineError::Layer {
        layer: "a user id of its own".into(),
        reason: format!("{} cannot be opened: {errno}", file.display()),
        fix: format!("make {DIR} a directory that only root may write"),
    })
}
