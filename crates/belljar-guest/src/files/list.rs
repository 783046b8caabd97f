//! Listing a tree, page by page, in the order of the paths' bytes. Memory is bounded by the page, not by what is there:
//! of all names after the cursor only the smallest are kept.

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

/// The most levels below the listed directory.
const MAX_DEPTH: u32 = 64;

/// The most entries in one answer.
const MAX_ENTRIES: u32 = 10_000;

/// The most bytes of one answer; an answer with longer paths has fewer entries. It must fit into one message.
const MAX_BYTES: usize = 2 << 20;

/// What an entry takes beside its path and target, in bytes.
const ENTRY_BYTES: usize = 80;

/// How many names are looked at before other work gets its turn.
const LOOK_AT_ONCE: usize = 512;

/// Lists one page.
pub(super) async fn list(home: &Path, request: &v1::ListRequest) -> Result<v1::ListResponse, ConnectError> {
    let path = resolve(home, "path", &request.path)?;
    let depth = bounded("depth", request.depth, MAX_DEPTH, 1)?;
    let limit = bounded("limit", request.limit, MAX_ENTRIES, MAX_ENTRIES)?;
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

fn bounded(field: &str, value: u32, most: u32, default: u32) -> Result<usize, ConnectError> {
    if value > most {
        let message = format!("{field}: {value} is not allowed; at most {most} is");
        return Err(ConnectError::invalid_argument(message));
    }
    let value = if value == 0 { default } else { value };
    Ok(usize::try_from(value).unwrap_or(usize::MAX))
}

/// The smallest paths after a cursor.
struct Page<'a> {
    limit: usize,
    /// Which extended attributes are told.
    attributes: &'a str,
    after: &'a [u8],
    kept: BTreeMap<Vec<u8>, v1::Entry>,
    bytes: usize,
    /// The smallest path that did not fit. This and all after it belong to later pages.
    bound: Option<Vec<u8>>,
}

impl Page<'_> {
    fn wants(&self, path: &[u8]) -> bool {
        path > self.after && self.bound.as_ref().is_none_or(|bound| path < bound.as_slice())
    }

    /// Whether anything below the directory can be on this page. All of it sorts between `path/` and `path0`, which is
    /// the byte after the slash.
    fn may_hold(&self, path: &[u8]) -> bool {
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
            // A directory that changes meanwhile may name an entry twice.
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

/// Goes through the tree with as many open directories as it is levels deep.
async fn walk(root: Dir, depth: usize, page: &mut Page<'_>) -> Result<(), Errno> {
    // Each with the path of its entries' parent, with a slash behind it.
    let mut open = vec![(root, Vec::new())];
    let mut looked = 0usize;
    while let Some((dir, prefix)) = open.last_mut() {
        let Some(entry) = dir.read() else {
            open.pop();
            continue;
        };
        looked += 1;
        if looked.is_multiple_of(LOOK_AT_ONCE) {
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
        let wanted = page.wants(&path);
        if wanted || unknown {
            match entry_at(dir.fd()?, name, &path, Link::Itself) {
                Ok(mut entry) => {
                    is_dir = entry.kind == v1::FileKind::FILE_KIND_DIRECTORY;
                    if wanted {
                        attributes::tell(dir.fd()?, name, Link::Itself, page.attributes, &mut entry)?;
                        page.add(path.clone(), entry);
                    }
                }
                // It has gone since.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            }
        }
        if is_dir && open.len() < depth && page.may_hold(&path) {
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
        // Closed to the user, or no directory any more: the entry itself is all there is to list.
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(errno),
    }
}
