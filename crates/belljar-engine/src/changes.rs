//! Files that a run has created, changed and removed, by comparing two snapshots of the home directory.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_model::{ChangeKind, FileChange, FilePath};
use belljar_proto::v1;
use bytes::Bytes;

use crate::client::{GuestClient, GuestError};

/// Maximum depth of files below the home directory.
const MAX_DEPTH: u32 = 16;

/// Maximum number of files in a snapshot, and of changes in a result.
const MAX_FILES: usize = 10_000;

/// Attributes by which a changed file is recognized.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fingerprint {
    size: u64,
    modified_ns: i64,
    changed_ns: i64,
    inode: u64,
}

/// The files at one time.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    files: BTreeMap<Bytes, Fingerprint>,
    complete: bool,
}

impl Snapshot {
    /// Lists everything below `home`.
    pub(crate) async fn take(guest: &GuestClient, home: &Path) -> Result<Self, GuestError> {
        let (entries, next) =
            guest.list(home, MAX_DEPTH, u32::try_from(MAX_FILES).unwrap_or(u32::MAX), Bytes::new()).await?;
        let files = entries
            .into_iter()
            .filter(|entry| entry.kind.as_known() != Some(v1::FileKind::FILE_KIND_DIRECTORY))
            .map(|entry| {
                let fingerprint = Fingerprint {
                    size: entry.size,
                    modified_ns: entry.modified_ns,
                    changed_ns: entry.changed_ns,
                    inode: entry.inode,
                };
                (entry.path, fingerprint)
            })
            .take(MAX_FILES)
            .collect();
        Ok(Self { files, complete: next.is_none() })
    }

    /// Returns the changes between this snapshot and `after`, and whether the list may be incomplete.
    pub(crate) fn changes(&self, after: &Self) -> (Vec<FileChange>, bool) {
        let mut changes = Vec::new();
        for (path, fingerprint) in &after.files {
            let kind = match self.files.get(path) {
                None => ChangeKind::Created,
                Some(before) if before != fingerprint => ChangeKind::Changed,
                Some(_) => continue,
            };
            changes.push(FileChange { path: FilePath::new(path.to_vec()), kind, size: fingerprint.size });
        }
        for path in self.files.keys().filter(|path| after.complete && !after.files.contains_key(*path)) {
            changes.push(FileChange {
                path: FilePath::new(path.to_vec()),
                kind: ChangeKind::Removed,
                size: 0,
            });
        }
        let is_cut = changes.len() > MAX_FILES;
        changes.truncate(MAX_FILES);
        (changes, is_cut || !(self.complete && after.complete))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(names: impl Iterator<Item = usize>) -> Snapshot {
        let fingerprint = Fingerprint { size: 1, modified_ns: 0, changed_ns: 0, inode: 0 };
        let files = names.map(|name| (Bytes::from(name.to_string()), fingerprint.clone())).collect();
        Snapshot { files, complete: true }
    }

    #[test]
    fn list_of_changes_is_bounded() {
        let (changes, is_cut) = snapshot(0..5_000).changes(&snapshot(5_000..10_000));
        assert_eq!((changes.len(), is_cut), (MAX_FILES, false));
        let (changes, is_cut) = snapshot(0..5_001).changes(&snapshot(5_001..10_002));
        assert_eq!((changes.len(), is_cut), (MAX_FILES, true));
    }
}
