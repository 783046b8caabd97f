//! Packing trees into a tar, as a stream. A tree that changes meanwhile, or cannot be read in places, still gives a whole
//! archive: what was announced comes, and what is missing is counted.

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
use rustix::fs::{CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::{Errno, pread, retry_on_intr};
use tar::EntryType;

use super::sparse::{Segment, Unknown, segments};
use super::tar_write::{Record, append_end, append_record};
use super::{READ_BYTES, names, padding};
use crate::dir::{ITSELF, kind, open_dir, stat_open};
use crate::error::{FileError, failure};
use crate::glob::Glob;
use crate::path::{check_path, show};
use crate::walk::{Found, Walk};

/// The most paths in a request.
const MAX_PATHS: usize = 1000;

/// The most patterns in a request.
const MAX_EXCLUDES: usize = 100;

/// The longest piece that is handed out, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// What may be remembered of files with several names, in bytes. Later ones are packed once for each name.
const LINKS_BYTES: usize = 16 << 20;

/// What is packed, and how.
#[derive(Debug, Clone, Default)]
pub struct PackOptions {
    /// Where to begin, below the base; the whole base if empty. At most 1,000.
    pub paths: Vec<Bytes>,
    /// Patterns of what is left out. At most 100.
    pub exclude: Vec<Bytes>,
    /// Compress by gzip.
    pub gzip: bool,
    /// Do not go into other file systems.
    pub one_file_system: bool,
}

/// What was packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackSummary {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What could not be read, or is none that an archive holds, such as sockets.
    pub skipped: u64,
    /// Files that changed while they were read.
    pub changed: u64,
}

/// The places to begin at, each of which is there.
fn roots(base: &Path, paths: &[Bytes]) -> Result<VecDeque<Root>, FileError> {
    if paths.len() > MAX_PATHS {
        return Err(FileError::invalid(format!("paths: at most {MAX_PATHS} are allowed")));
    }
    let whole_base = [Bytes::from_static(b".")];
    let paths = if paths.is_empty() { whole_base.as_slice() } else { paths };
    let mut roots: VecDeque<Root> = VecDeque::new();
    for path in paths {
        check_path("paths", path)?;
        let shown = names::below(base, path)?;
        let place = base.join(std::ffi::OsStr::from_bytes(&shown));
        let stat = rustix::fs::statx(CWD, &place, ITSELF, StatxFlags::TYPE);
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

/// A place to begin at.
struct Root {
    place: PathBuf,
    /// Its name in the archive.
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
            // Into memory, which does not fail.
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

/// A tree on its way into a tar. No symbolic link in it is followed.
pub struct Packer {
    roots: VecDeque<Root>,
    walk: Option<Walk>,
    body: Option<Body>,
    exclude: Vec<Glob>,
    one_file_system: bool,
    /// The first name of each file that has several.
    linked: HashMap<(u32, u32, u64), Vec<u8>>,
    linked_bytes: usize,
    out: Output,
    /// What goes out next.
    ready: Bytes,
    summary: PackSummary,
    is_packed: bool,
}

/// A file whose content is being packed.
struct Body {
    file: OwnedFd,
    before: Statx,
    segments: std::vec::IntoIter<Segment>,
    now: Segment,
    /// Bytes of the whole content, for the zeros behind it.
    size: u64,
    changed: bool,
}

impl Packer {
    /// Begins to pack what is below a directory, by names relative to it.
    ///
    /// # Errors
    /// `options` are not allowed; a place to begin at cannot be read.
    pub fn begin(base: &Path, options: &PackOptions) -> Result<Self, FileError> {
        if options.exclude.len() > MAX_EXCLUDES {
            return Err(FileError::invalid(format!("exclude: at most {MAX_EXCLUDES} are allowed")));
        }
        let exclude = options.exclude.iter().map(|pattern| {
            Glob::new(pattern).map_err(|why| FileError::invalid(format!("exclude: {}: {why}", show(pattern))))
        });
        Ok(Self {
            roots: roots(base, &options.paths)?,
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
                return Some(self.ready.split_to(self.ready.len().min(PIECE_BYTES)));
            }
            if self.is_packed {
                return None;
            }
            // A large tree must not keep the guest from its other work.
            tokio::task::yield_now().await;
            self.work().await;
            let pending = self.out.pending();
            if pending.len() >= READ_BYTES || self.is_packed {
                self.ready = std::mem::take(pending).into();
            }
        }
    }

    /// Returns what has been packed so far; at the end, all of it.
    #[must_use]
    pub fn summary(&self) -> PackSummary {
        self.summary
    }

    /// A step of bounded length.
    async fn work(&mut self) {
        if let Some(body) = self.body.take() {
            self.copy(body);
        } else if let Some(walk) = &mut self.walk {
            match walk.step() {
                Found::Nothing => {}
                Found::Other(name) => self.pack_other(&name).await,
                Found::Directory => self.pack_directory(),
                Found::Closed(name) => self.pack_closed(&name),
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
        if let Some(walk) = &mut self.walk {
            walk.enter();
        }
    }

    /// A directory that may not be read is there all the same.
    fn pack_closed(&mut self, name: &CStr) {
        let Some(walk) = &self.walk else { return };
        if self.is_excluded(walk.path()) {
            return;
        }
        self.summary.skipped += 1;
        let stat = walk.dir().map(|dir| rustix::fs::statx(dir, name, ITSELF, StatxFlags::BASIC_STATS));
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
        let packed = match rustix::fs::statx(dir, name, ITSELF, StatxFlags::BASIC_STATS) {
            Ok(stat) => match kind(&stat) {
                FileType::RegularFile => self.pack_file(dir, name, shown).await,
                FileType::Symlink => rustix::fs::readlinkat(dir, name, Vec::new()).map(|target| {
                    self.record(EntryType::Symlink, shown, target.to_bytes(), &stat, 0, None);
                    true
                }),
                _ => Ok(false),
            },
            Err(errno) => Err(errno),
        };
        if !packed.unwrap_or(false) {
            self.summary.skipped += 1;
        }
    }

    /// Says false when the file is none that can be packed.
    async fn pack_file(&mut self, dir: BorrowedFd<'_>, name: &CStr, shown: &[u8]) -> Result<bool, Errno> {
        // It may have become something that blocks whoever opens it.
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
            if self.linked_bytes + shown.len() <= LINKS_BYTES {
                self.linked_bytes += shown.len();
                self.linked.insert(identity, shown.to_vec());
            }
        }
        let whole = Segment { offset: 0, length: stat.stx_size };
        let parts = if stat.stx_blocks.saturating_mul(512) < stat.stx_size {
            match segments(&file, stat.stx_size).await {
                Ok(parts) => parts,
                Err(Unknown::NotTold) => vec![whole],
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
        let now = segments.next().unwrap_or(Segment { offset: 0, length: 0 });
        self.body = Some(Body { file, before: stat, segments, now, size, changed: false });
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

    /// Copies the next piece of a file.
    fn copy(&mut self, mut body: Body) {
        while body.now.length == 0 {
            let Some(next) = body.segments.next() else {
                self.out.write(&vec![0; padding(body.size)]);
                if body.changed || body.has_changed() {
                    self.summary.changed += 1;
                }
                return;
            };
            body.now = next;
        }
        let want = usize::try_from(body.now.length).unwrap_or(READ_BYTES).min(READ_BYTES);
        let mut data = Vec::with_capacity(want);
        if retry_on_intr(|| pread(&body.file, spare_capacity(&mut data), body.now.offset)).is_err() {
            data.clear();
        }
        data.truncate(want);
        if data.is_empty() {
            // It has become shorter, or cannot be read here.
            body.changed = true;
            data.resize(want, 0);
        }
        self.out.write(&data);
        body.now.offset += data.len() as u64;
        body.now.length -= data.len() as u64;
        self.body = Some(body);
    }
}

impl Body {
    fn has_changed(&self) -> bool {
        let Ok(now) = stat_open(&self.file) else { return true };
        let times = |stat: &Statx| [stat.stx_mtime, stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        now.stx_size != self.before.stx_size || times(&now) != times(&self.before)
    }
}

/// A symbolic link of the host on its way into a tar.
#[derive(Debug)]
pub struct LinkEntry {
    /// Its name, relative to the directory that is unpacked into.
    pub name: PathBuf,
    /// Where it leads, as it is written in it.
    pub target: PathBuf,
    /// Its times.
    pub stat: Statx,
}

/// Packs symbolic links into a tar. They are not followed.
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
