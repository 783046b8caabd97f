//! Packs trees into a tar stream. A tree that changes meanwhile, or is partly unreadable, still gives a complete
//! archive: announced content is always delivered, and missing entries are counted.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::{Errno, pread, retry_on_intr};
use tar::EntryType;

use super::sparse::{Segment, Unknown, find_segments};
use super::tar_write::{Record, append_end, append_record};
use super::{READ_BYTES, names, padding};
use crate::dir::{NO_FOLLOW, kind, open_dir, stat_open};
use crate::error::{FileError, failure};
use crate::glob::Glob;
use crate::path::{check_path, show};
use crate::walk::{Found, Walk};

/// Maximum number of paths in a request.
const MAX_PATHS: usize = 1000;

/// Maximum number of patterns in a request.
const MAX_EXCLUDES: usize = 100;

/// Maximum size of a returned chunk, in bytes.
const MAX_CHUNK_BYTES: usize = 256 * 1024;

/// Memory for the paths of files with several hard links, in bytes. Beyond it, a file is packed once for each of its names.
const MAX_LINK_BYTES: usize = 16 << 20;

/// Options for packing a tree.
#[derive(Debug, Clone, Default)]
pub struct PackOptions {
    /// Paths to pack, below the base; the whole base if empty. At most 1,000.
    pub paths: Vec<Bytes>,
    /// Patterns of paths to leave out. At most 100.
    pub exclude: Vec<Bytes>,
    /// Compress with gzip.
    pub gzip: bool,
    /// Stay on the file system of the base.
    pub one_file_system: bool,
    /// The lower directory of an overlay of which the base is the upper one. What the overlay has removed is packed as a character device
    /// with the number 0, as overlayfs marks it.
    pub lower: Option<PathBuf>,
}

/// Result of packing a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackSummary {
    /// Number of packed files, directories and links.
    pub entries: u64,
    /// File content, in bytes.
    pub bytes: u64,
    /// Number of entries that could not be read, or that an archive cannot hold, such as sockets.
    pub skipped: u64,
    /// Number of files that changed while they were read.
    pub changed: u64,
}

/// Returns the roots to pack. Fails if one does not exist.
fn find_roots(base: &Path, paths: &[Bytes]) -> Result<VecDeque<Root>, FileError> {
    if paths.len() > MAX_PATHS {
        return Err(FileError::invalid(format!("paths: at most {MAX_PATHS} are allowed")));
    }
    let whole_base = [Bytes::from_static(b".")];
    let paths = if paths.is_empty() { whole_base.as_slice() } else { paths };
    let mut roots: VecDeque<Root> = VecDeque::new();
    for path in paths {
        check_path("paths", path)?;
        let shown = names::relative_name(base, path)?;
        let place = base.join(std::ffi::OsStr::from_bytes(&shown));
        let stat = rustix::fs::statx(CWD, &place, NO_FOLLOW, StatxFlags::TYPE);
        // The base itself may be reached by a link.
        let is_dir = shown.is_empty() || stat.as_ref().is_ok_and(|stat| kind(stat) == FileType::Directory);
        stat.map_err(|errno| failure("pack", path, errno))?;
        if is_dir {
            open_dir(CWD, &place, shown.is_empty()).map_err(|errno| failure("pack", path, errno))?;
        }
        if roots.iter().all(|root| root.shown != shown) {
            roots.push_back(Root { place, shown, is_dir });
        }
    }
    Ok(roots)
}

/// A path that the request names.
struct Root {
    place: PathBuf,
    /// Name in the archive.
    shown: Vec<u8>,
    is_dir: bool,
}

enum Output {
    Plain(Vec<u8>),
    Gzip(Box<GzEncoder<Vec<u8>>>),
}

impl Output {
    fn write(&mut self, data: &[u8]) {
        match self {
            Self::Plain(out) => out.extend_from_slice(data),
            // Writing into memory does not fail.
            Self::Gzip(out) => drop(out.write_all(data)),
        }
    }

    fn pending(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Plain(out) => out,
            Self::Gzip(out) => out.get_mut(),
        }
    }

    fn end(&mut self) {
        if let Self::Gzip(out) = self {
            let _ = out.try_finish();
        }
    }
}

/// Packs a tree into a tar. Does not follow symbolic links in it.
pub struct Packer {
    roots: VecDeque<Root>,
    walk: Option<Walk>,
    body: Option<Body>,
    exclude: Vec<Glob>,
    one_file_system: bool,
    lower: Option<OwnedFd>,
    /// The last directory that hides all of the lower one of its path, and whether there is one.
    opaque: Option<(Vec<u8>, bool)>,
    /// The first packed name of each file with several hard links.
    linked: HashMap<(u32, u32, u64), Vec<u8>>,
    linked_bytes: usize,
    out: Output,
    /// Bytes to return next.
    ready: Bytes,
    summary: PackSummary,
    is_packed: bool,
}

/// A file whose content is being packed.
struct Body {
    file: OwnedFd,
    before: Statx,
    segments: std::vec::IntoIter<Segment>,
    current: Segment,
    /// Size of the whole content in bytes, for the padding behind it.
    size: u64,
    changed: bool,
}

impl Packer {
    /// Starts packing the tree below a directory, with names relative to it.
    ///
    /// # Errors
    /// Fails if `options` are invalid or a path to pack cannot be read.
    pub fn begin(base: &Path, options: &PackOptions) -> Result<Self, FileError> {
        if options.exclude.len() > MAX_EXCLUDES {
            return Err(FileError::invalid(format!("exclude: at most {MAX_EXCLUDES} are allowed")));
        }
        let exclude = options.exclude.iter().map(|pattern| {
            Glob::new(pattern).map_err(|why| FileError::invalid(format!("exclude: {}: {why}", show(pattern))))
        });
        let lower = options.lower.as_ref().map(|lower| {
            let opened = open_dir(CWD, lower, true);
            opened.map_err(|errno| failure("pack", lower.as_os_str().as_bytes(), errno))
        });
        Ok(Self {
            lower: lower.transpose()?,
            opaque: None,
            roots: find_roots(base, &options.paths)?,
            walk: None,
            body: None,
            exclude: exclude.collect::<Result<_, _>>()?,
            one_file_system: options.one_file_system,
            linked: HashMap::new(),
            linked_bytes: 0,
            out: match options.gzip {
                true => Output::Gzip(Box::new(GzEncoder::new(Vec::new(), Compression::fast()))),
                false => Output::Plain(Vec::new()),
            },
            ready: Bytes::new(),
            summary: PackSummary::default(),
            is_packed: false,
        })
    }

    /// Returns the next bytes of the archive, at most 256 KiB; `None` at its end.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.ready.is_empty() {
                return Some(self.ready.split_to(self.ready.len().min(MAX_CHUNK_BYTES)));
            }
            if self.is_packed {
                return None;
            }
            // Lets other tasks of the guest run while a large tree is packed.
            tokio::task::yield_now().await;
            self.step().await;
            let pending = self.out.pending();
            if pending.len() >= READ_BYTES || self.is_packed {
                self.ready = std::mem::take(pending).into();
            }
        }
    }

    /// Returns the counts so far; at the end, the totals.
    #[must_use]
    pub fn summary(&self) -> PackSummary {
        self.summary
    }

    /// Takes one step of bounded duration.
    async fn step(&mut self) {
        if let Some(body) = self.body.take() {
            self.copy(body);
        } else if let Some(walk) = &mut self.walk {
            match walk.step() {
                Found::Nothing => {}
                Found::Other(name) => self.pack_other(&name).await,
                Found::Directory => self.pack_directory(),
                Found::Unreadable(name) => self.pack_unreadable(&name),
                Found::End => {
                    self.summary.skipped += walk.missed;
                    self.walk = None;
                }
            }
        } else if let Some(root) = self.roots.pop_front() {
            if self.begin_root(root).await.is_err() {
                self.summary.skipped += 1;
            }
        } else {
            let mut end = Vec::new();
            append_end(&mut end);
            self.out.write(&end);
            self.out.end();
            self.is_packed = true;
        }
    }

    async fn begin_root(&mut self, root: Root) -> Result<(), Errno> {
        if self.is_excluded(&root.shown) {
            return Ok(());
        }
        if root.is_dir {
            let dir = open_dir(CWD, &root.place, root.shown.is_empty())?;
            let mut prefix = root.shown;
            if !prefix.is_empty() {
                prefix.push(b'/');
                self.record(EntryType::Directory, &prefix, b"", &stat_open(&dir)?, 0, None);
            }
            self.walk = Some(Walk::new(dir, &prefix, self.one_file_system)?);
            return Ok(());
        }
        let parent = root.place.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(parent, flags, Mode::empty())?;
        let name = root.place.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        self.pack_entry(parent.as_fd(), &name, &root.shown).await;
        Ok(())
    }

    fn is_excluded(&self, path: &[u8]) -> bool {
        !path.is_empty() && self.exclude.iter().any(|glob| glob.matches(path))
    }

    fn pack_directory(&mut self) {
        let Some(walk) = &self.walk else { return };
        if self.is_excluded(walk.path()) {
            return;
        }
        let Some(stat) = walk.found_dir().and_then(|dir| stat_open(dir).ok()) else { return };
        let name = [walk.path(), b"/"].concat();
        self.record(EntryType::Directory, &name, b"", &stat, 0, None);
        if self.lower.is_some() && self.pack_hidden(&name, &stat).is_err() {
            self.summary.skipped += 1;
        }
        if let Some(walk) = &mut self.walk {
            walk.enter();
        }
    }

    /// Packs the removal of what an opaque directory hides in the lower one of its path. `path` ends with a slash.
    fn pack_hidden(&mut self, path: &[u8], stat: &Statx) -> Result<(), Errno> {
        let (Some(lower), Some(dir)) = (&self.lower, self.walk.as_ref().and_then(Walk::found_dir)) else {
            return Ok(());
        };
        let above = self.opaque.as_ref().filter(|(above, _)| path.starts_with(above));
        if above.map_or_else(|| !is_opaque(dir), |(_, hides)| !hides) {
            return Ok(());
        }
        let hidden = match open_below(lower, path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            hidden => Some(hidden?),
        };
        if above.is_none() {
            self.opaque = Some((path.to_vec(), hidden.is_some()));
        }
        let Some(hidden) = hidden else { return Ok(()) };
        let mut removed = Vec::new();
        for entry in Dir::read_from(&hidden)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_dots = name == c"." || name == c"..";
            let kept = rustix::fs::statx(dir, name, NO_FOLLOW, StatxFlags::TYPE);
            if !is_dots && kept.err() == Some(Errno::NOENT) {
                removed.push([path, name.to_bytes()].concat());
            }
        }
        removed.sort_unstable();
        for name in removed.iter().filter(|name| !self.is_excluded(name)).cloned().collect::<Vec<_>>() {
            self.record(EntryType::Char, &name, b"", stat, 0, None);
        }
        Ok(())
    }

    /// Packs a directory without read permission, as an empty one.
    fn pack_unreadable(&mut self, name: &CStr) {
        let Some(walk) = &self.walk else { return };
        if self.is_excluded(walk.path()) {
            return;
        }
        self.summary.skipped += 1;
        let stat = walk.dir().map(|dir| rustix::fs::statx(dir, name, NO_FOLLOW, StatxFlags::BASIC_STATS));
        if let Some(Ok(stat)) = stat {
            let name = [walk.path(), b"/"].concat();
            self.record(EntryType::Directory, &name, b"", &stat, 0, None);
        }
    }

    async fn pack_other(&mut self, name: &CStr) {
        let Some(walk) = self.walk.take() else { return };
        if let (Some(dir), false) = (walk.dir(), self.is_excluded(walk.path())) {
            self.pack_entry(dir, name, walk.path()).await;
        }
        self.walk = Some(walk);
    }

    async fn pack_entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, shown: &[u8]) {
        let packed = match rustix::fs::statx(dir, name, NO_FOLLOW, StatxFlags::BASIC_STATS) {
            Ok(stat) => match kind(&stat) {
                FileType::RegularFile => self.pack_file(dir, name, shown).await,
                FileType::Symlink => rustix::fs::readlinkat(dir, name, Vec::new()).map(|target| {
                    self.record(EntryType::Symlink, shown, target.to_bytes(), &stat, 0, None);
                    true
                }),
                FileType::CharacterDevice
                    if self.lower.is_some() && (stat.stx_rdev_major, stat.stx_rdev_minor) == (0, 0) =>
                {
                    self.record(EntryType::Char, shown, b"", &stat, 0, None);
                    Ok(true)
                }
                _ => Ok(false),
            },
            Err(errno) => Err(errno),
        };
        if !packed.unwrap_or(false) {
            self.summary.skipped += 1;
        }
    }

    /// Returns false if the file cannot be packed.
    async fn pack_file(&mut self, dir: BorrowedFd<'_>, name: &CStr, shown: &[u8]) -> Result<bool, Errno> {
        // `NONBLOCK`: the file may have been replaced by one whose `open` blocks, such as a FIFO.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        let stat = stat_open(&file)?;
        if kind(&stat) != FileType::RegularFile {
            return Ok(false);
        }
        if stat.stx_nlink > 1 {
            let identity = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
            if let Some(first) = self.linked.get(&identity).cloned() {
                self.record(EntryType::Link, shown, &first, &stat, 0, None);
                return Ok(true);
            }
            if self.linked_bytes + shown.len() <= MAX_LINK_BYTES {
                self.linked_bytes += shown.len();
                self.linked.insert(identity, shown.to_vec());
            }
        }
        let whole = Segment { offset: 0, length: stat.stx_size };
        let parts = if stat.stx_blocks.saturating_mul(512) < stat.stx_size {
            match find_segments(&file, stat.stx_size).await {
                Ok(parts) => parts,
                Err(Unknown::Unavailable) => vec![whole],
                Err(Unknown::TooMany) => return Ok(false),
            }
        } else {
            vec![whole]
        };
        let size = parts.iter().map(|part| part.length).sum();
        if parts == [whole] {
            self.record(EntryType::Regular, shown, b"", &stat, size, None);
        } else {
            self.record(EntryType::GNUSparse, shown, b"", &stat, size, Some(&parts));
        }
        self.summary.bytes += size;
        let mut segments = parts.into_iter();
        let current = segments.next().unwrap_or(Segment { offset: 0, length: 0 });
        self.body = Some(Body { file, before: stat, segments, current, size, changed: false });
        Ok(true)
    }

    fn record(
        &mut self,
        kind: EntryType,
        name: &[u8],
        target: &[u8],
        stat: &Statx,
        size: u64,
        segments: Option<&[Segment]>,
    ) {
        let mut records = Vec::new();
        append_record(&mut records, &Record { kind, name, target, stat, size, segments });
        self.out.write(&records);
        self.summary.entries += 1;
    }

    /// Copies the next chunk of a file.
    fn copy(&mut self, mut body: Body) {
        while body.current.length == 0 {
            let Some(next) = body.segments.next() else {
                self.out.write(&vec![0; padding(body.size)]);
                if body.changed || body.has_changed() {
                    self.summary.changed += 1;
                }
                return;
            };
            body.current = next;
        }
        let length = usize::try_from(body.current.length).unwrap_or(READ_BYTES).min(READ_BYTES);
        let mut data = Vec::with_capacity(length);
        if retry_on_intr(|| pread(&body.file, spare_capacity(&mut data), body.current.offset)).is_err() {
            data.clear();
        }
        data.truncate(length);
        if data.is_empty() {
            // The file was truncated, or this part cannot be read.
            body.changed = true;
            data.resize(length, 0);
        }
        self.out.write(&data);
        body.current.offset += data.len() as u64;
        body.current.length -= data.len() as u64;
        self.body = Some(body);
    }
}

/// Reports whether overlayfs has marked a directory such that it hides the lower one of its path.
fn is_opaque(dir: BorrowedFd<'_>) -> bool {
    let mut value = [0u8; 1];
    rustix::fs::fgetxattr(dir, c"user.overlay.opaque", &mut value) == Ok(1) && value == *b"y"
}

/// Opens a directory below another, of whose path no part is a link. The path ends with a slash, and may be longer than the kernel takes
/// at once.
fn open_below(dir: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut open = dir.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        open = open_dir(open.as_fd(), name, false)?;
    }
    Ok(open)
}

impl Body {
    fn has_changed(&self) -> bool {
        let Ok(now) = stat_open(&self.file) else { return true };
        let times = |stat: &Statx| [stat.stx_mtime, stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        now.stx_size != self.before.stx_size || times(&now) != times(&self.before)
    }
}

/// A symbolic link of the host, to be packed into a tar.
#[derive(Debug)]
pub struct LinkEntry {
    /// Name, relative to the directory that the archive is unpacked into.
    pub name: PathBuf,
    /// Target of the link, unresolved.
    pub target: PathBuf,
    /// Attributes of the link, for its times.
    pub stat: Statx,
}

/// Packs symbolic links into a tar, without following them.
#[must_use]
pub fn pack_links<'a>(links: impl IntoIterator<Item = &'a LinkEntry>) -> Bytes {
    let mut out = Vec::new();
    for link in links {
        let (name, target) = (link.name.as_os_str().as_bytes(), link.target.as_os_str().as_bytes());
        let kind = EntryType::Symlink;
        append_record(&mut out, &Record { kind, name, target, stat: &link.stat, size: 0, segments: None });
    }
    append_end(&mut out);
    out.into()
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Packer").field("summary", &self.summary).finish_non_exhaustive()
    }
}
