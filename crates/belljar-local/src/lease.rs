//! Outside user ids: each sandbox of an administrator runs as one that nobody else has, for as long as it lives.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use belljar_engine::EngineError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The first of the ids: above what adduser(8), systemd and subuid(5) give out.
const FIRST: u32 = 1_900_000_000;

/// How many there are.
const COUNT: u32 = 65_536;

/// How many are tried before it is said that there are none.
const TRIES: u32 = 4_096;

/// Where they are locked. The file stays; what counts is who holds a lock on which byte of it.
const DIR: &str = "/run/belljar";

/// A leased id. The lock lives as long as any copy of the descriptor, so the kernel takes it back from the dead.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) uid: u32,
    pub(crate) lock: OwnedFd,
}

impl Lease {
    /// Takes an id that is free, from a random place on, so that a used one is not used again soon.
    pub(crate) fn take(random: u32) -> Result<Self, EngineError> {
        let file = open_file().map_err(|errno| EngineError::Layer {
            layer: "a user id of its own".into(),
            reason: format!("{DIR}/uids cannot be opened: {errno}"),
            fix: format!("make {DIR} a directory that only root may write"),
        })?;
        for attempt in 0..TRIES {
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
