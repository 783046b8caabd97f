//! Files for outputs that are more than memory is to hold, until their answers have been sent.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use belljar_engine::{Collector, OpenSpill, Spill, StoredOutput};
use belljar_model::StreamOutput;
use belljar_store::StoreError;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;

use crate::caller::Caller;
use crate::keeper::{Keeper, Result};

/// Bytes of such files at once: of one key.
const MAX_OF_KEY: u64 = 1 << 30;

/// Of all keys together.
const MAX_OF_ALL: u64 = 4 << 30;

/// What such files may come to take, by key.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    taken: Arc<Mutex<HashMap<String, u64>>>,
    /// Held while an output of a file is read through: one at a time leaves the machine to others.
    reading: Arc<Semaphore>,
}

impl Default for Outputs {
    fn default() -> Self {
        Self { taken: Arc::default(), reading: Arc::new(Semaphore::new(1)) }
    }
}

impl Outputs {
    /// Room for so many bytes, if there is.
    fn take(&self, key: &str, bytes: u64) -> Option<Room> {
        let mut taken = self.taken();
        let all: u64 = taken.values().sum();
        let of_key = taken.get(key).copied().unwrap_or_default();
        if all + bytes > MAX_OF_ALL || of_key + bytes > MAX_OF_KEY {
            return None;
        }
        taken.insert(key.to_owned(), of_key + bytes);
        Some(Room { outputs: self.clone(), key: key.to_owned(), bytes })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.taken.lock()
    }
}

/// Room that a file takes, for as long as this is held.
struct Room {
    outputs: Outputs,
    key: String,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = self.outputs.taken();
        if let Some(bytes) = taken.get_mut(&self.key) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                taken.remove(&self.key);
            }
        }
    }
}

impl Keeper {
    /// What is kept of the outputs of a command that has ended. Files are read through for that, where it holds nobody up.
    pub(crate) async fn kept(&self, stdout: Collector, stderr: Collector) -> (StoredOutput, StoredOutput) {
        if !stdout.has_file() && !stderr.has_file() {
            return (stdout.keep(), stderr.keep());
        }
        // Nobody closes it.
        let _reading = self.inner.outputs.reading.acquire().await;
        let lost = [stdout.total(), stderr.total()]
            .map(|total| StoredOutput::InMemory(StreamOutput::new(&[], &[], total)));
        let kept = tokio::task::spawn_blocking(move || (stdout.keep(), stderr.keep()));
        kept.await.unwrap_or_else(|_| lost.into())
    }

    /// What gives an output of this caller a file, if its key, the server and the disk have room for one.
    pub(crate) fn output_file(&self, caller: &Caller) -> OpenSpill {
        let (outputs, key, config) =
            (self.inner.outputs.clone(), caller.key.clone(), self.inner.config.now());
        Box::new(move |bytes| {
            let room = outputs.take(&key, bytes)?;
            if !has_disk(&config.state_dir, bytes, config.head_room.disk_bytes) {
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
    /// Whether something new may be begun: what is set aside for a full disk is for what ends.
    ///
    /// # Errors
    /// The store's disk is full.
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

    /// Whether the disk has more than its head-room.
    pub(crate) fn has_disk(&self) -> bool {
        let config = self.inner.config.now();
        has_disk(&config.state_dir, 0, config.head_room.disk_bytes)
    }
}

/// Whether so many bytes fit onto the disk and leave its head-room.
fn has_disk(dir: &Path, bytes: u64, head_room: u64) -> bool {
    let Ok(disk) = rustix::fs::statvfs(dir) else { return false };
    disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes.saturating_add(head_room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_comes_back() {
        let outputs = Outputs::default();
        let half = MAX_OF_KEY / 2;
        let first = outputs.take("a", half).unwrap();
        let _second = outputs.take("a", half).unwrap();
        assert!(outputs.take("a", 1).is_none());
        let others: Vec<_> =
            ["b", "c", "d"].iter().map(|key| outputs.take(key, MAX_OF_KEY).unwrap()).collect();
        assert!(outputs.take("e", 1).is_none(), "all together are bounded too");
        drop(first);
        assert!(outputs.take("e", 1).is_some() && outputs.take("a", half).is_some());
        drop(others);
        assert_eq!(outputs.taken().len(), 1);
    }
}
