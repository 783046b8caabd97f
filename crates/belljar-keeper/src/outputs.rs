//! Temporary files for large outputs, until their answers have been sent.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use belljar_engine::{Collector, OpenSpill, Spill, StoredOutput};
use belljar_model::StreamOutput;
use belljar_store::StoreError;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::Caller;
use crate::keeper::{Keeper, Result};

/// Maximum size of one key's files, in bytes.
const MAX_KEY_BYTES: u64 = 1 << 30;

/// Maximum size of all keys' files, in bytes.
const MAX_TOTAL_BYTES: u64 = 4 << 30;

/// Disk space reserved for such files, by key.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    reserved: Arc<Mutex<HashMap<String, u64>>>,
    /// Limits reading files to one at a time, to leave the machine to others.
    reading: Arc<Semaphore>,
    /// Limits collecting pieces of outputs that are in files to half of the processors, to leave the others to commands with little output.
    collecting: Arc<Semaphore>,
}

impl Default for Outputs {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            reserved: Arc::default(),
            reading: Arc::new(Semaphore::new(1)),
            collecting: Arc::new(Semaphore::new((processors / 2).max(1))),
        }
    }
}

impl Outputs {
    /// Waits for the turn to collect a piece of an output that is in a file.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.collecting).acquire_owned().await.ok()
    }

    /// Reserves disk space, if the limits allow it.
    fn reserve(&self, key: &str, bytes: u64) -> Option<Reservation> {
        let mut reserved = self.reserved();
        let all: u64 = reserved.values().sum();
        let of_key = reserved.get(key).copied().unwrap_or_default();
        if all + bytes > MAX_TOTAL_BYTES || of_key + bytes > MAX_KEY_BYTES {
            return None;
        }
        reserved.insert(key.to_owned(), of_key + bytes);
        Some(Reservation { outputs: self.clone(), key: key.to_owned(), bytes })
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.reserved.lock()
    }
}

/// Disk space of a file, released on drop.
struct Reservation {
    outputs: Outputs,
    key: String,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.outputs.reserved();
        if let Some(bytes) = reserved.get_mut(&self.key) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                reserved.remove(&self.key);
            }
        }
    }
}

impl Keeper {
    /// Finishes the outputs of a command that has ended. Reads files on a blocking thread.
    pub(crate) async fn finish_outputs(
        &self,
        stdout: Collector,
        stderr: Collector,
    ) -> (StoredOutput, StoredOutput) {
        if !stdout.has_file() && !stderr.has_file() {
            return (stdout.keep(), stderr.keep());
        }
        // The semaphore is never closed.
        let _reading = self.inner.outputs.reading.acquire().await;
        let lost = [stdout.total(), stderr.total()]
            .map(|total| StoredOutput::InMemory(StreamOutput::new(&[], &[], total)));
        let kept = tokio::task::spawn_blocking(move || (stdout.keep(), stderr.keep()));
        kept.await.unwrap_or_else(|_| lost.into())
    }

    /// Returns a function that creates a file for an output of this caller, if its key, the server and the disk have space.
    pub(crate) fn output_file(&self, caller: &Caller) -> OpenSpill {
        let (outputs, key, config) =
            (self.inner.outputs.clone(), caller.key.clone(), self.inner.config.now());
        Box::new(move |bytes| {
            let room = outputs.reserve(&key, bytes)?;
            // Less of an output can be kept in memory instead.
            if !has_disk(&config.state_dir, bytes, config.head_room.disk_bytes.saturating_mul(2)) {
                return None;
            }
            match tempfile::tempfile_in(&config.state_dir) {
                Ok(file) => Some(Spill { file, room: Box::new(room) }),
                Err(error) => {
                    tracing::warn!(%error, "cannot make a file for an output; less of it is kept");
                    None
                }
            }
        })
    }
}

impl Keeper {
    /// Checks that the store's reserve is intact, so that a new action may begin: the reserve of a full disk is for stopping sandboxes.
    ///
    /// # Errors
    /// Fails if the store's disk is full.
    pub(crate) async fn check_reserve(&self, action: &'static str) -> Result<()> {
        let store = &self.inner.store;
        if store.is_reserve_released() {
            store.restore_reserve().await;
            if store.is_reserve_released() {
                return Err(StoreError::Full { action }.into());
            }
        }
        Ok(())
    }

    /// Reports whether the disk has more than its headroom.
    pub(crate) fn has_disk(&self) -> bool {
        let config = self.inner.config.now();
        has_disk(&config.state_dir, 0, config.head_room.disk_bytes)
    }
}

/// Reports whether `bytes` fit onto the disk besides its headroom.
fn has_disk(dir: &Path, bytes: u64, head_room: u64) -> bool {
    let Ok(disk) = rustix::fs::statvfs(dir) else { return false };
    disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes.saturating_add(head_room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_bounded_and_released() {
        let outputs = Outputs::default();
        let half = MAX_KEY_BYTES / 2;
        let first = outputs.reserve("a", half).unwrap();
        let _second = outputs.reserve("a", half).unwrap();
        assert!(outputs.reserve("a", 1).is_none());
        let others: Vec<_> =
            ["b", "c", "d"].iter().map(|key| outputs.reserve(key, MAX_KEY_BYTES).unwrap()).collect();
        assert!(outputs.reserve("e", 1).is_none(), "all together are bounded too");
        drop(first);
        assert!(outputs.reserve("e", 1).is_some() && outputs.reserve("a", half).is_some());
        drop(others);
        assert_eq!(outputs.reserved().len(), 1);
    }
}
