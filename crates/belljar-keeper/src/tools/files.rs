//! Files that a call has written.

use std::collections::BTreeMap;

use belljar_engine::v1;
use bytes::Bytes;

use crate::caller::Caller;
use crate::keeper::{Keeper, Result};

/// Maximum number of files in the result of a call, and maximum bytes of all their contents.
/// Source: docs/spec.md; held by `tools::written_files_are_returned` of the API's tests (that they are bounded).
const MAX_RESULT_FILES: (usize, u64) = (16, 1 << 20);

/// Depth and number of entries to which a home is searched for written files.
const SEARCHED: (u32, u32) = (8, 10_000);

/// A file that a call has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Path below the home directory.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its content, if all fit into the result.
    pub content: Option<Bytes>,
}

/// Lengths and times of change of files, by path.
type Files = BTreeMap<String, (u64, i64)>;

impl Keeper {
    /// Returns the files that are not as they were `before`, and whether there are more of them.
    pub(super) async fn written_files(
        &self,
        caller: &Caller,
        sandbox: &str,
        before: &Files,
    ) -> (Vec<WrittenFile>, bool) {
        // Code may have ended the sandbox; then nothing is left of its files.
        let after = self.regular_files(caller, sandbox).await.unwrap_or_default();
        let written = after.into_iter().filter(|(path, found)| before.get(path) != Some(found));
        let mut written: Vec<_> = written.map(|(path, (size, _))| (path, size)).collect();
        let more_files = written.len() > MAX_RESULT_FILES.0;
        written.truncate(MAX_RESULT_FILES.0);
        let mut files = Vec::new();
        let mut left = MAX_RESULT_FILES.1;
        for (path, size) in written {
            let content = if size <= left { self.content(caller, sandbox, &path, size).await } else { None };
            left -= content.as_ref().map_or(0, |content| content.len() as u64).min(left);
            files.push(WrittenFile { path, size, content });
        }
        (files, more_files)
    }

    /// Returns the regular files below the home directory that are not hidden, with their lengths and times of change.
    pub(super) async fn regular_files(&self, caller: &Caller, sandbox: &str) -> Result<Files> {
        let (depth, limit) = SEARCHED;
        let request = v1::ListRequest { path: Bytes::from_static(b"."), depth, limit, ..Default::default() };
        let entries = self.perform(caller, sandbox, request).await?.entries.into_iter();
        let file = |entry: v1::Entry| {
            let is_file = entry.kind.as_known() == Some(v1::FileKind::FILE_KIND_FILE);
            let path = String::from_utf8(entry.path.to_vec()).ok()?;
            let is_shown = is_file && !path.split('/').any(|part| part.starts_with('.'));
            is_shown.then_some((path, (entry.size, entry.modified_ns)))
        };
        Ok(entries.filter_map(file).collect())
    }

    /// Returns the content of a file, if it can be read and has not grown.
    async fn content(&self, caller: &Caller, sandbox: &str, path: &str, size: u64) -> Option<Bytes> {
        let path = Bytes::copy_from_slice(path.as_bytes());
        let request = v1::ReadRequest { path, length: size, ..Default::default() };
        let mut download = self.begin(caller, sandbox, request).await.ok()?;
        let mut content = Vec::new();
        while let Some(piece) = download.next().await.ok()? {
            content.extend_from_slice(&piece);
            if content.len() as u64 > size {
                return None;
            }
        }
        Some(content.into())
    }
}
