//! Tags that clients give to processes to find them again. They are kept in the server's memory, not
//! in the guest, and are lost when the server stops.

use std::collections::{BTreeMap, HashMap};

use belljar_engine::v1;
use belljar_model::SandboxId;
use parking_lot::Mutex;

use super::error::Refusal;
use crate::api::Shared;

/// Maximum length of a tag, in bytes.
const MAX_TAG_BYTES: usize = 256;

/// Maximum number of tags of a sandbox's processes; those of the oldest go first.
const MAX_TAGS: usize = 4096;

/// The tags of all sandboxes' processes.
#[derive(Default)]
pub(super) struct Tags(Mutex<HashMap<SandboxId, BTreeMap<u64, String>>>);

impl Tags {
    /// Validates a tag before a process is started for it.
    pub(super) fn check(tag: &str) -> Result<(), Refusal> {
        if tag.len() > MAX_TAG_BYTES {
            return Err(Refusal::invalid(format!("tag: it is longer than {MAX_TAG_BYTES} bytes")));
        }
        Ok(())
    }

    /// Sets the tag of the process with this id of the guest. Removes the tags of sandboxes that have ended.
    pub(super) fn set(&self, shared: &Shared, sandbox: &SandboxId, process: u64, tag: String) {
        let mut all = self.0.lock();
        all.retain(|id, _| shared.keeper.state_of(id).is_some());
        let tags = all.entry(sandbox.clone()).or_default();
        tags.insert(process, tag);
        if tags.len() > MAX_TAGS {
            tags.pop_first();
        }
    }

    /// Returns the tag of a process.
    pub(super) fn get(&self, sandbox: &SandboxId, process: u64) -> Option<String> {
        self.0.lock().get(sandbox)?.get(&process).cloned()
    }

    /// Removes the tags of processes that the guest no longer lists.
    pub(super) fn retain(&self, sandbox: &SandboxId, known: &[v1::ProcessInfo]) {
        if let Some(tags) = self.0.lock().get_mut(sandbox) {
            tags.retain(|id, _| known.iter().any(|process| process.id == *id));
        }
    }
}
