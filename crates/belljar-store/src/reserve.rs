//! Reserved space on the store's disk, so that the records needed to end a sandbox can be written even when the disk is full.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;

use crate::ServiceWall;

/// Size of the reserve in bytes: enough for some thousand records and the database's log of them.
const RESERVE_BYTES: u64 = 8 << 20;

/// File beside the database that reserves space on its disk.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    exists: AtomicBool,
    /// Whether it was released, and there is no space yet to create it again.
    is_released: AtomicBool,
}

impl Reserve {
    /// Creates the reserve of a database, if the disk has space for it.
    pub(crate) fn for_database(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push(".reserve");
        let reserve = Self {
            path: PathBuf::from(path),
            exists: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
        };
        reserve.restore();
        if !reserve.exists.load(Ordering::Relaxed) {
            tracing::warn!(
                path = %reserve.path.display(),
                "no space to reserve for a full disk: once it is full, sandboxes cannot be ended until space is freed"
            );
        }
        reserve
    }

    /// Reports whether the reserve was released.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    /// Releases the reserve. Returns whether there was one.
    pub(crate) fn release(&self) -> bool {
        let existed = !ServiceWall::Reserve.is_down() && self.exists.swap(false, Ordering::Relaxed);
        if existed && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot release the space reserved for a full disk");
            return false;
        }
        self.is_released.fetch_or(existed, Ordering::Relaxed);
        existed
    }

    /// Creates the reserve again if the disk has space for twice its size.
    pub(crate) fn restore(&self) {
        if self.exists.load(Ordering::Relaxed) {
            return;
        }
        match self.create() {
            Ok(exists) => {
                self.exists.store(exists, Ordering::Relaxed);
                self.is_released.fetch_and(!exists, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::debug!(%error, path = %self.path.display(), "cannot reserve space for a full disk");
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }

    fn create(&self) -> io::Result<bool> {
        let file = crate::files::private_file(&self.path)?;
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
