//! Which files a run has made, changed and removed: two looks at the home directory, compared.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_model::{ChangeKind, FileChange, FilePath};
use belljar_proto::v1;
use bytes::Bytes;

use crate::client::{GuestClient, GuestError};

/// How deep below the home directory files are looked for.
const DEPTH: u32 = 16;

/// How many files a look takes in, and how many changes a result lists.
const MOST: usize = 10_000;

/// What tells a file from a changed one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    size: u64,
    modified_ns: i64,
    changed_ns: i64,
    inode: u64,
}

/// One look.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    files: BTreeMap<Bytes, Mark>,
    complete: bool,
}

impl Snapshot {
    /// Looks at everything below `home`.
    pub(crate) async fn take(guest: &GuestClient, home: &Path) -> Result<Self, GuestError> {
        let (entries, next) =
            guest.list(home, DEPTH, u32::try_from(MOST).unwrap_or(u32::MAX), Bytes::new()).await?;
        let files = entries
            .into_iter()
            .filter(|entry| entry.kind.as_known() != Some(v1::FileKind::FILE_KIND_DIRECTORY))
            .map(|entry| {
                let mark = Mark {
                    size: entry.size,
                    modified_ns: entry.modified_ns,
                    changed_ns: entry.changed_ns,
                    inode: entry.inode,
                };
                (entry.path, mark)
            })
            .take(MOST)
            .collect();
        Ok(Self { files, complete: next.is_none() })
    }

    /// What has happened between this look and `after`, and whether that may not be all.
    pub(crate) fn changes(&self, after: &Self) -> (Vec<FileChange>, bool) {
        let mut changes = Vec::new();
        for (path, mark) in &after.files {
            let kind = match self.files.get(path) {
                None => ChangeKind::Created,
                Some(before) if before != mark => ChangeKind::Changed,
                Some(_) => continue,
            };
            changes.push(FileChange { path: FilePath::new(path.to_vec()), kind, size: mark.size });
        }
        for path in self.files.keys().filter(|path| after.complete && !after.files.contains_key(*path)) {
            changes.push(FileChange {
                path: FilePath::new(path.to_vec()),
                kind: ChangeKind::Removed,
                size: 0,
            });
        }
        let is_cut = changes.len() > MOST;
        changes.truncate(MOST);
        (changes, is_cut || !(self.complete && after.complete))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(names: impl Iterator<Item = usize>) -> Snapshot {
        let mark = Mark { size: 1, modified_ns: 0, changed_ns: 0, inode: 0 };
        let files = names.map(|name| (Bytes::from(name.to_string()), mark.clone())).collect();
        Snapshot { files, complete: true }
    }

    #[test]
    fn a_list_of_changes_has_an_end() {
        let (changes, is_cut) = snapshot(0..5_000).changes(&snapshot(5_000..10_000));
        assert_eq!((changes.len(), is_cut), (MOST, false));
        let (changes, is_cut) = snapshot(0..5_001).changes(&snapshot(5_001..10_002));
        assert_eq!((changes.len(), is_cut), (MOST, true));
    }
}
