//! Tags that clients give to processes to find them again. They are kept in the server's memory, not
//! in the guest, and are lost when the server stops.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use belljar_engine::v1;
use belljar_model::SandboxId;
use parking_lot::Mutex;

use super::error::Refusal;
use crate::api::Shared;

/// Maximum length of a tag, in bytes.
const MAX_TAG_BYTES: usize = 256;

/// Maximum number of tags of a sandbox's processes; those of the oldest go first, after those that the guest no longer lists.
const MAX_TAGS: usize = 4096;

/// Maximum number of tags of a sandbox's processes while the guest does not list them.
const MAX_UNLISTED_TAGS: usize = 2 * MAX_TAGS;

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

    /// Sets the tag of the process with this id of the guest, and removes the tags of sandboxes that have ended. Reports whether there are too
    /// many of this sandbox now.
    pub(super) fn set(&self, shared: &Shared, sandbox: &SandboxId, process: u64, tag: String) -> bool {
        let mut all = self.0.lock();
        all.retain(|id, _| shared.keeper.state_of(id).is_some());
        insert(all.entry(sandbox.clone()).or_default(), process, tag)
    }

    /// Returns the tag of a process.
    pub(super) fn get(&self, sandbox: &SandboxId, process: u64) -> Option<String> {
        self.0.lock().get(sandbox)?.get(&process).cloned()
    }

    /// Removes the tags of processes that the guest no longer lists, of which it knows `known`, and the oldest of what are too many then.
    pub(super) fn retain(&self, sandbox: &SandboxId, known: &[v1::ProcessInfo]) {
        let mut all = self.0.lock();
        let Some(tags) = all.get_mut(sandbox) else { return };
        let known: BTreeSet<u64> = known.iter().map(|process| process.id).collect();
        // Later ones have been started since it was asked.
        tags.retain(|id, _| known.contains(id) || known.last().is_none_or(|last| id > last));
        while tags.len() > MAX_TAGS {
            tags.pop_first();
        }
    }
}

/// Adds a tag, and removes the oldest ones beyond [`MAX_UNLISTED_TAGS`]. Reports whether there are more than [`MAX_TAGS`].
fn insert(tags: &mut BTreeMap<u64, String>, process: u64, tag: String) -> bool {
    tags.insert(process, tag);
    while tags.len() > MAX_UNLISTED_TAGS {
        tags.pop_first();
    }
    tags.len() > MAX_TAGS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_bounded_without_a_listing() {
        let mut tags = BTreeMap::new();
        let last = MAX_UNLISTED_TAGS as u64 + 3;
        for id in 1..=last {
            assert_eq!(insert(&mut tags, id, id.to_string()), id > MAX_TAGS as u64);
        }
        assert_eq!((tags.len(), tags.first_key_value().map(|(id, _)| *id)), (MAX_UNLISTED_TAGS, Some(4)));
    }

    #[test]
    fn tags_of_running_processes_stay() {
        let (tags, sandbox) = (Tags::default(), SandboxId::from_entropy([1; 20]));
        let known = |ids: &[u64]| {
            ids.iter().map(|id| v1::ProcessInfo { id: *id, ..Default::default() }).collect::<Vec<_>>()
        };
        let last = MAX_TAGS as u64 + 2;
        tags.0.lock().insert(sandbox.clone(), (1..=last).map(|id| (id, id.to_string())).collect());
        tags.retain(&sandbox, &known(&[1, last - 1]));
        let kept = (1..=last).filter(|id| tags.get(&sandbox, *id).is_some()).collect::<Vec<_>>();
        assert_eq!(kept, [1, last - 1, last], "what was started since may run, too");
        // If more run than are kept, the oldest ones lose theirs.
        let all: Vec<u64> = (1..=last).collect();
        tags.0.lock().insert(sandbox.clone(), all.iter().map(|id| (*id, id.to_string())).collect());
        tags.retain(&sandbox, &known(&all));
        assert_eq!((tags.get(&sandbox, 2), tags.get(&sandbox, 3)), (None, Some("3".to_owned())));
    }
}
