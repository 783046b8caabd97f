//! Paths and entries in the format of E2B's daemon.

use std::collections::BTreeMap;

use belljar_engine::v1;
use belljar_keeper::{Caller, Entered, KeeperError};
use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;

use super::E2b;
use super::access::USER;
use super::error::Refusal;

/// Prefix of the extended attributes that hold a file's metadata.
pub(super) const METADATA: &str = "e2b.";

/// Home directory in the sandbox.
pub(super) const HOME: &str = "/home/user";

/// Makes a client's path absolute: relative paths and `~` start in the home directory. Does not access the file system.
pub(super) fn absolute(path: &str) -> String {
    let path = match path.strip_prefix('~') {
        Some("") => HOME.to_owned(),
        Some(rest) if rest.starts_with('/') => format!("{HOME}{rest}"),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{HOME}/{path}"),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Returns the absolute path that a symbolic link names.
fn link_target(link: &str, target: &str) -> String {
    let directory = link.rsplit_once('/').map_or("", |(directory, _)| directory);
    if target.starts_with('/') { absolute(target) } else { absolute(&format!("{directory}/{target}")) }
}

/// Returns the last part of a path.
pub(super) fn name(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/")
}

/// A file, directory or other entry.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryInfo {
    name: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    path: String,
    /// A string, like all 64-bit numbers in protobuf's JSON.
    size: String,
    mode: u32,
    permissions: String,
    /// The user for entries below the home directory; empty for others.
    owner: &'static str,
    group: &'static str,
    modified_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_symlink: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

pub(super) const DIRECTORY: &str = "FILE_TYPE_DIRECTORY";

fn kind_of(kind: v1::FileKind) -> &'static str {
    match kind {
        v1::FileKind::FILE_KIND_FILE => "FILE_TYPE_FILE",
        v1::FileKind::FILE_KIND_DIRECTORY => DIRECTORY,
        v1::FileKind::FILE_KIND_SYMLINK => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_UNSPECIFIED",
    }
}

/// Returns the metadata of a file. Values that are not UTF-8 are left out.
fn metadata_of(entry: &v1::Entry) -> BTreeMap<String, String> {
    let pairs = entry.attributes.iter().filter_map(|(name, value)| {
        Some((name.strip_prefix(METADATA)?.to_owned(), std::str::from_utf8(value).ok()?.to_owned()))
    });
    pairs.collect()
}

/// Formats permission bits like `ls`.
fn permissions(kind: v1::FileKind, mode: u32) -> String {
    let first = match kind {
        v1::FileKind::FILE_KIND_DIRECTORY => 'd',
        v1::FileKind::FILE_KIND_SYMLINK => 'L',
        _ => '-',
    };
    let bits = (0..9).rev().map(|bit| match (mode >> bit) & 1 {
        0 => '-',
        _ => *['x', 'w', 'r'].get(bit % 3).unwrap_or(&'-'),
    });
    std::iter::once(first).chain(bits).collect()
}

impl EntryInfo {
    /// Describes the entry at an absolute path. `target` is the target of a symbolic link, if it exists.
    pub(super) fn new(path: String, entry: &v1::Entry, target: Option<&v1::Entry>) -> Self {
        let kind = entry.kind.as_known().unwrap_or_default();
        let is_symlink = kind == v1::FileKind::FILE_KIND_SYMLINK;
        let resolved = target.map_or(kind, |target| target.kind.as_known().unwrap_or_default());
        let owner = if path.starts_with(HOME) { USER } else { "" };
        let symlink_target =
            is_symlink.then(|| link_target(&path, &String::from_utf8_lossy(&entry.symlink_target)));
        let modified = Timestamp::from_nanosecond(i128::from(entry.modified_ns)).unwrap_or_default();
        Self {
            name: name(&path).to_owned(),
            kind: kind_of(resolved),
            path,
            size: target.unwrap_or(entry).size.to_string(),
            mode: entry.mode & 0o777,
            permissions: permissions(kind, entry.mode),
            owner,
            group: owner,
            modified_time: modified,
            symlink_target,
            is_symlink,
            metadata: metadata_of(target.unwrap_or(entry)),
        }
    }
}

/// A call by a caller to a sandbox.
pub(super) struct SandboxCall<'a> {
    pub(super) shared: &'a E2b,
    pub(super) caller: &'a Caller,
    pub(super) entered: &'a Entered,
}

impl SandboxCall<'_> {
    /// Performs an operation in the sandbox.
    pub(super) async fn perform<O: belljar_keeper::operation::Operation>(
        &self,
        operation: O,
    ) -> Result<O::Response, Refusal> {
        let done = self.shared.keeper.perform_in(self.caller, self.entered, operation).await;
        done.map_err(|error| self.refusal(error))
    }

    pub(super) fn refusal(&self, error: KeeperError) -> Refusal {
        Refusal::from_keeper(self.entered.id().as_str(), error)
    }

    /// Returns the entry at an absolute path.
    pub(super) async fn entry(&self, path: &str) -> Result<EntryInfo, Refusal> {
        let entry = self.perform(stat(path, false)).await?;
        self.describe(path.to_owned(), &entry).await
    }

    /// Describes an entry; a symbolic link with its target.
    pub(super) async fn describe(&self, path: String, entry: &v1::Entry) -> Result<EntryInfo, Refusal> {
        let is_link = entry.kind.as_known() == Some(v1::FileKind::FILE_KIND_SYMLINK);
        // A broken link is described without a target.
        let target = if is_link { self.perform(stat(&path, true)).await.ok() } else { None };
        Ok(EntryInfo::new(path, entry, target.as_ref()))
    }
}

pub(super) fn stat(path: &str, follow: bool) -> v1::StatRequest {
    let path = Bytes::copy_from_slice(path.as_bytes());
    v1::StatRequest { path, follow, attributes: METADATA.to_owned(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute() {
        for (path, expected) in [
            ("a.txt", "/home/user/a.txt"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("~a", "/home/user/~a"),
            ("/tmp//x/../y/.", "/tmp/y"),
            ("../../..", "/"),
            ("", "/home/user"),
        ] {
            assert_eq!(absolute(path), expected, "{path}");
        }
        assert_eq!((name("/a/b"), name("/")), ("b", "/"));
        for (link, target, expected) in [
            ("/home/user/l", "a.txt", "/home/user/a.txt"),
            ("/home/user/d/l", "../~", "/home/user/~"),
            ("/l", "tmp", "/tmp"),
            ("/l", "/tmp/./x", "/tmp/x"),
        ] {
            assert_eq!(link_target(link, target), expected, "{link} -> {target}");
        }
    }

    #[test]
    fn permissions_are_shown_as_text() {
        assert_eq!(permissions(v1::FileKind::FILE_KIND_FILE, 0o100_644), "-rw-r--r--");
        assert_eq!(permissions(v1::FileKind::FILE_KIND_DIRECTORY, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(v1::FileKind::FILE_KIND_SYMLINK, 0o777), "Lrwxrwxrwx");
    }
}
