//! Lists a tree page by page, in byte order of the paths. Memory is bounded by the page, not by the tree: of all names
//! after the cursor, only the smallest are kept.

use std::collections::BTreeMap;
use std::path::Path;

use belljar_files::open_dir;
use belljar_proto::{ConnectError, v1};
use bytes::Bytes;
use rustix::fs::{CWD, Dir, FileType};
use rustix::io::Errno;

use super::attributes;
use super::entry::{Link, entry_at};
use super::path::{failure, resolve};

/// Maximum depth below the listed directory.
const MAX_DEPTH: u32 = 64;

/// Maximum number of entries in one response.
const MAX_ENTRIES: u32 = 10_000;

/// Maximum size of one response in bytes, so that it fits into one message; with longer paths, a response has fewer
/// entries.
const MAX_BYTES: usize = 2 << 20;

/// Size of an entry without its path and target, in bytes.
const ENTRY_BYTES: usize = 80;

/// Number of names read before the task yields.
const READ_BATCH: usize = 512;

/// Lists one page.
pub(super) async fn list(home: &Path, request: &v1::ListRequest) -> Result<v1::ListResponse, ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let depth = check_limit("depth", request.depth, MAX_DEPTH, 1)?;
    let limit = check_limit("limit", request.limit, MAX_ENTRIES, MAX_ENTRIES)?;
    let mut page = Page {
        limit,
        attributes: &request.attributes,
        after: &request.after,
        kept: BTreeMap::new(),
        bytes: 0,
        bound: None,
    };
    let fail = |errno| failure("list", &request.path, errno);
    let root = open_dir(CWD, &path, true).and_then(Dir::new).map_err(fail)?;
    walk(root, depth, &mut page).await.map_err(fail)?;

    let next = match (&page.bound, page.kept.last_key_value()) {
        (Some(_), Some((last, _))) => Bytes::copy_from_slice(last),
        _ => Bytes::new(),
    };
    Ok(v1::ListResponse { entries: page.kept.into_values().collect(), next, ..Default::default() })
}

fn check_limit(field: &str, value: u32, max: u32, default: u32) -> Result<usize, ConnectError> {
    if value > max {
        let message = format!("{field}: {value} is not allowed; at most {max} is");
        return Err(ConnectError::invalid_argument(message));
    }
    let value = if value == 0 { default } else { value };
    Ok(usize::try_from(value).unwrap_or(usize::MAX))
}

/// The smallest paths after a cursor.
struct Page<'a> {
    limit: usize,
    /// Name prefix of the extended attributes to return.
    attributes: &'a str,
    after: &'a [u8],
    kept: BTreeMap<Vec<u8>, v1::Entry>,
    bytes: usize,
    /// The smallest path that did not fit. This and all later ones belong to later pages.
    bound: Option<Vec<u8>>,
}

impl Page<'_> {
    fn includes(&self, path: &[u8]) -> bool {
        path > self.after && self.bound.as_ref().is_none_or(|bound| path < bound.as_slice())
    }

    /// Reports whether this page can contain anything below the directory. All of it sorts between `path/` and `path0`,
    /// because `0` is the byte after the slash.
    fn may_contain_below(&self, path: &[u8]) -> bool {
        let mut edge = path.to_vec();
        edge.push(b'0');
        if self.after >= edge.as_slice() {
            return false;
        }
        edge.pop();
        edge.push(b'/');
        self.bound.as_ref().is_none_or(|bound| edge < *bound)
    }

    fn add(&mut self, path: Vec<u8>, entry: v1::Entry) {
        self.bytes += cost(path.len(), &entry);
        let length = path.len();
        if let Some(old) = self.kept.insert(path, entry) {
            // A directory that changes meanwhile may list an entry twice.
            self.bytes -= cost(length, &old);
        }
        while self.kept.len() > self.limit || (self.bytes > MAX_BYTES && self.kept.len() > 1) {
            let Some((path, entry)) = self.kept.pop_last() else { break };
            self.bytes -= cost(path.len(), &entry);
            self.bound = Some(path);
        }
    }
}

fn cost(path_bytes: usize, entry: &v1::Entry) -> usize {
    let attributes = entry.attributes.iter().map(|(name, value)| name.len() + value.len() + ENTRY_BYTES);
    path_bytes + entry.symlink_target.len() + attributes.sum::<usize>() + ENTRY_BYTES
}

/// Walks the tree with one open directory per level.
async fn walk(root: Dir, depth: usize, page: &mut Page<'_>) -> Result<(), Errno> {
    // Each with the path prefix of its entries, which ends in a slash.
    let mut open = vec![(root, Vec::new())];
    let mut visited = 0usize;
    while let Some((dir, prefix)) = open.last_mut() {
        let Some(entry) = dir.read() else {
            open.pop();
            continue;
        };
        visited += 1;
        if visited.is_multiple_of(READ_BATCH) {
            tokio::task::yield_now().await;
        }
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let path = [prefix.as_slice(), name.to_bytes()].concat();
        let mut is_dir = entry.file_type() == FileType::Directory;
        let unknown = entry.file_type() == FileType::Unknown;
        let is_included = page.includes(&path);
        if is_included || unknown {
            match entry_at(dir.fd()?, name, &path, Link::NoFollow) {
                Ok(mut entry) => {
                    is_dir = entry.kind == v1::FileKind::FILE_KIND_DIRECTORY;
                    if is_included {
                        attributes::add_to_entry(
                            dir.fd()?,
                            name,
                            Link::NoFollow,
                            page.attributes,
                            &mut entry,
                        )?;
                        page.add(path.clone(), entry);
                    }
                }
                // It was removed meanwhile.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            }
        }
        if is_dir && open.len() < depth && page.may_contain_below(&path) {
            descend(&mut open, name, path)?;
        }
    }
    Ok(())
}

fn descend(open: &mut Vec<(Dir, Vec<u8>)>, name: &std::ffi::CStr, mut path: Vec<u8>) -> Result<(), Errno> {
    let Some((dir, _)) = open.last() else { return Ok(()) };
    match open_dir(dir.fd()?, name, false).and_then(Dir::new) {
        Ok(child) => {
            path.push(b'/');
            open.push((child, path));
            Ok(())
        }
        // Not readable by the user, or no longer a directory: only the entry itself is listed.
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(errno),
    }
}
