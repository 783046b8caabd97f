//! Room on the store's disk that is set aside, so that what has to be written to end a sandbox finds some on a disk that is full.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;

use crate::ServiceWall;

/// How much is set aside: some thousand records, and the log of a database for them.
const RESERVE_BYTES: u64 = 8 << 20;

/// A file beside the database that holds nothing.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    is_there: AtomicBool,
    /// It was given away, and there is no room for another one yet.
    is_out: AtomicBool,
}

impl Reserve {
    /// Sets it aside for a database, if the disk has room for it.
    pub(crate) fn beside(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push(".reserve");
        let reserve = Self {
            path: PathBuf::from(path),
            is_there: AtomicBool::new(false),
            is_out: AtomicBool::new(false),
        };
        reserve.restore();
        if !reserve.is_there.load(Ordering::Relaxed) {
            tracing::warn!(
                path = %reserve.path.display(),
                "there is no room to set aside for a full disk: once it is full, sandboxes cannot be ended until it is not"
            );
        }
        reserve
    }

    /// Whether it was given away.
    pub(crate) fn is_out(&self) -> bool {
        self.is_out.load(Ordering::Relaxed)
    }

    /// Gives it away. Says whether there was one.
    pub(crate) fn release(&self) -> bool {
        let was_there = !ServiceWall::Reserve.is_down() && self.is_there.swap(false, Ordering::Relaxed);
        if was_there && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot give up what was set aside for a full disk");
            return false;
        }
        self.is_out.fetch_or(was_there, Ordering::Relaxed);
        was_there
    }

    /// Sets it aside again, where there is room for it and as much again.
    pub(crate) fn restore(&self) {
        if self.is_there.load(Ordering::Relaxed) {
            return;
        }
        match self.make() {
            Ok(is_there) => {
                self.is_there.store(is_there, Ordering::Relaxed);
                self.is_out.fetch_and(!is_there, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::debug!(%error, path = %self.path.display(), "cannot set anything aside for a full disk");
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }

    fn make(&self) -> io::Result<bool> {
        let file = crate::place::private_file(&self.path)?;
        if file.metadata()?.len() < RESERVE_BYTES {
            let disk = rustix::fs::fstatvfs(&file)?;
            if disk.f_bavail.saturating_mul(disk.f_frsize) < 2 * RESERVE_BYTES {
                std::fs::remove_file(&self.path)?;
                return Ok(false);
            }
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?;
        }
        Ok(true)
    }
}
