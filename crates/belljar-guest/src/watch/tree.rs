//! Watched directories with their paths, and the translation of the kernel's events.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use belljar_files::{Temporary, open_dir};
use belljar_proto::v1;
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, Dir, FileType, StatxFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Maximum number of directories that one call watches.
pub(super) const MAX_WATCHES: usize = 8192;

/// Number of names read before the task yields.
const SCAN_BATCH: usize = 256;

/// Kernel events that are subscribed to.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF);

/// One event of the kernel.
pub(super) struct Event {
    pub(super) watch: i32,
    pub(super) flags: ReadFlags,
    pub(super) cookie: u32,
    pub(super) name: Option<Vec<u8>>,
}

/// A watched tree. Paths in it are relative to its root, whose path is empty.
pub(super) struct Tree {
    pub(super) inotify: AsyncFd<OwnedFd>,
    root: Vec<u8>,
    recursive: bool,
    watches: HashMap<i32, Vec<u8>>,
    /// Directories still to be read. Each has a watch, which bounds their number.
    scans: VecDeque<Scan>,
    reading: Option<(Dir, Scan)>,
    /// A directory that was moved; the very next event has its new path, or else it left the tree.
    moving: Option<(u32, Vec<u8>)>,
    /// A file that was renamed from its temporary name; the very next event has its final name.
    arriving: Option<(u32, Temporary)>,
    events: VecDeque<v1::WatchEvent>,
    ended: bool,
}

struct Scan {
    path: Vec<u8>,
    report: Report,
}

/// Entries of a scanned directory that are reported as created.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Report {
    /// None: the directory existed before the watch began.
    None,
    /// All: the directory is new.
    All,
    /// Directories that have no watch yet: events were lost.
    Unknown,
}

enum Added {
    New,
    Known,
    /// Not a directory (any more), or not readable by the user.
    No,
}

impl Tree {
    pub(super) fn new(inotify: OwnedFd, root: &[u8], recursive: bool) -> Result<Self, Errno> {
        let watch = inotify::add_watch(&inotify, root, EVENTS | WatchFlags::ONLYDIR)?;
        let mut tree = Self {
            inotify: async_fd(inotify).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?,
            root: root.to_vec(),
            recursive,
            watches: HashMap::from([(watch, Vec::new())]),
            scans: VecDeque::new(),
            reading: None,
            moving: None,
            arriving: None,
            events: VecDeque::new(),
            ended: false,
        };
        tree.scan_later(Vec::new(), Report::None);
        Ok(tree)
    }

    /// Inserts `READY` before all events seen so far.
    pub(super) fn ready(&mut self) {
        let kind = v1::WatchKind::WATCH_KIND_READY.into();
        self.events.push_front(v1::WatchEvent { kind, directory: true, ..Default::default() });
    }

    pub(super) fn next_event(&mut self) -> Option<v1::WatchEvent> {
        self.events.pop_front()
    }

    /// Reports whether the root was removed.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    fn report(&mut self, kind: v1::WatchKind, path: &[u8], directory: bool) {
        let path = bytes::Bytes::copy_from_slice(path);
        let event = v1::WatchEvent { kind: kind.into(), path, directory, ..Default::default() };
        // Many small writes to a file are one change until it is read.
        if kind != v1::WatchKind::WATCH_KIND_CHANGED || self.events.back() != Some(&event) {
            self.events.push_back(event);
        }
    }

    /// Processes one event of the kernel.
    pub(super) fn handle(&mut self, event: Event) -> Result<(), Errno> {
        use v1::WatchKind as Kind;
        let Event { watch, flags, cookie, name } = event;
        let moved = self.moving.take();
        let is_target =
            moved.as_ref().is_some_and(|(from, _)| flags.contains(ReadFlags::MOVED_TO) && *from == cookie);
        let renamed = match moved {
            Some((_, from)) if is_target => Some(from),
            Some((_, from)) => {
                self.forget(&from);
                None
            }
            None => None,
        };
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.report(Kind::WATCH_KIND_OVERFLOW, b"", false);
            let again = |scan: &Scan| scan.path.is_empty() && scan.report == Report::Unknown;
            if !self.scans.iter().any(again) {
                self.scan_later(Vec::new(), Report::Unknown);
            }
            return Ok(());
        }
        let Some(base) = self.watches.get(&watch) else { return Ok(()) };
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
            if base.is_empty() && !self.ended {
                self.report(Kind::WATCH_KIND_REMOVED, b"", true);
                self.ended = true;
            }
            if flags.contains(ReadFlags::IGNORED) {
                self.watches.remove(&watch);
            }
            return Ok(());
        }
        // An event without a name is about the directory itself, which the parent's watch reports.
        let Some(name) = name else { return Ok(()) };
        let path = join(base, &name);
        let directory = flags.contains(ReadFlags::ISDIR);
        let arriving = self.arriving.take().filter(|(from, _)| *from == cookie).map(|(_, replaces)| replaces);
        if let Some(temporary) = Temporary::from_name(&name) {
            // A rename from a temporary name is reported under the final name.
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.arriving = Some((cookie, temporary));
            }
            return Ok(());
        }
        let follow = directory && self.recursive;
        if let Some(arrived) = arriving.filter(|_| flags.contains(ReadFlags::MOVED_TO)) {
            self.report_arrival(path, directory, arrived)?;
        } else if flags.contains(ReadFlags::CREATE) {
            let added = if follow { self.add(&path)? } else { Added::No };
            // A known directory was found, and reported, by reading its parent.
            if !matches!(added, Added::Known) {
                self.report(Kind::WATCH_KIND_CREATED, &path, directory);
            }
            if matches!(added, Added::New) {
                self.scan_later(path, Report::All);
            }
        } else if flags.contains(ReadFlags::MOVED_TO) {
            self.report(Kind::WATCH_KIND_MOVED_TO, &path, directory);
            if follow {
                if let Some(from) = renamed {
                    self.rename(&from, &path);
                }
                if matches!(self.add(&path)?, Added::New) {
                    self.scan_later(path, Report::All);
                }
            }
        } else if flags.contains(ReadFlags::MOVED_FROM) {
            self.report(Kind::WATCH_KIND_MOVED_FROM, &path, directory);
            if follow {
                self.moving = Some((cookie, path));
            }
        } else if flags.contains(ReadFlags::DELETE) {
            self.report(Kind::WATCH_KIND_REMOVED, &path, directory);
        } else {
            self.report(Kind::WATCH_KIND_CHANGED, &path, directory);
        }
        Ok(())
    }

    /// Reports the rename of a temporary name to its final name as the write that it is from outside.
    fn report_arrival(&mut self, path: Vec<u8>, directory: bool, arrived: Temporary) -> Result<(), Errno> {
        use v1::WatchKind as Kind;
        if arrived == Temporary::New {
            self.report(Kind::WATCH_KIND_CREATED, &path, directory);
        }
        if !directory {
            self.report(Kind::WATCH_KIND_CHANGED, &path, false);
        } else if self.recursive && matches!(self.add(&path)?, Added::New) {
            self.scan_later(path, Report::All);
        }
        Ok(())
    }

    fn full_path(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.root.clone() } else { join(&self.root, path) }
    }

    /// Adds a watch for a directory below the root.
    fn add(&mut self, path: &[u8]) -> Result<Added, Errno> {
        let flags = EVENTS | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        let watch = match inotify::add_watch(&self.inotify, self.full_path(path), flags) {
            Ok(watch) => watch,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(Added::No),
            Err(Errno::NAMETOOLONG) => {
                // The path is too long for the kernel: events there are lost, which `OVERFLOW` reports.
                self.report(v1::WatchKind::WATCH_KIND_OVERFLOW, b"", false);
                return Ok(Added::No);
            }
            Err(errno) => return Err(errno),
        };
        match self.watches.get(&watch).cloned() {
            Some(known) => {
                // It may have moved, with the event for that still queued.
                if known != path && !known.is_empty() {
                    self.rename(&known, path);
                }
                Ok(Added::Known)
            }
            None if self.watches.len() >= MAX_WATCHES => Err(Errno::NOSPC),
            None => {
                self.watches.insert(watch, path.to_vec());
                Ok(Added::New)
            }
        }
    }

    /// Updates the paths of a directory and of all directories below it.
    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let scans = self.scans.iter_mut().chain(self.reading.as_mut().map(|(_, scan)| scan));
        for path in self.watches.values_mut().chain(scans.map(|scan| &mut scan.path)) {
            if let Some(rest) = strip_base(path, from) {
                *path = [to, rest].concat();
            }
        }
    }

    /// Stops watching a directory and all directories below it.
    fn forget(&mut self, path: &[u8]) {
        let fd = &self.inotify;
        self.watches.retain(|watch, watched| {
            let gone = strip_base(watched, path).is_some();
            if gone {
                // Fails if the directory was removed, and its watch with it.
                let _ = inotify::remove_watch(fd, *watch);
            }
            !gone
        });
    }

    fn scan_later(&mut self, path: Vec<u8>, report: Report) {
        if self.recursive {
            self.scans.push_back(Scan { path, report });
        }
    }

    /// Continues to read pending directories. Returns false if none is left.
    pub(super) fn scan_some(&mut self) -> Result<bool, Errno> {
        if self.reading.is_none() {
            let Some(scan) = self.scans.pop_front() else { return Ok(false) };
            let follow = scan.path.is_empty();
            match open_dir(CWD, self.full_path(&scan.path), follow).and_then(Dir::new) {
                Ok(dir) => self.reading = Some((dir, scan)),
                // Removed, or moved to where its watch has been moved.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG) => {}
                Err(errno) => return Err(errno),
            }
        }
        for _ in 0..SCAN_BATCH {
            let Some((dir, scan)) = &mut self.reading else { break };
            let Some(entry) = dir.read() else {
                self.reading = None;
                break;
            };
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." || Temporary::from_name(name.to_bytes()).is_some() {
                continue;
            }
            let path = join(&scan.path, name.to_bytes());
            let report = scan.report;
            self.handle_entry(&path, entry.file_type(), report)?;
        }
        Ok(true)
    }

    /// Processes an entry found by reading a directory.
    fn handle_entry(&mut self, path: &[u8], kind: FileType, report: Report) -> Result<(), Errno> {
        let directory = match kind {
            FileType::Unknown => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let stat = rustix::fs::statx(CWD, self.full_path(path), flags, StatxFlags::TYPE);
                stat.is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory)
            }
            kind => kind == FileType::Directory,
        };
        let added = if directory { self.add(path)? } else { Added::No };
        let is_new = match (report, &added) {
            (Report::None, _) | (_, Added::Known) | (Report::Unknown, Added::No) => false,
            (Report::All, _) | (Report::Unknown, Added::New) => true,
        };
        if is_new {
            self.report(v1::WatchKind::WATCH_KIND_CREATED, path, directory);
        }
        match (added, report) {
            (Added::New, Report::None) => self.scan_later(path.to_vec(), Report::None),
            (Added::New, _) => self.scan_later(path.to_vec(), Report::All),
            (Added::Known, Report::Unknown) => self.scan_later(path.to_vec(), Report::Unknown),
            (Added::Known | Added::No, _) => {}
        }
        Ok(())
    }
}

#[expect(
    deprecated,
    reason = "unsound only for types that can change their descriptor, which OwnedFd cannot"
)]
fn async_fd(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}

fn join(base: &[u8], name: &[u8]) -> Vec<u8> {
    if base.is_empty() { name.to_vec() } else { [base, b"/", name].concat() }
}

/// Returns what follows `base` in `path`, if `path` is `base` or below it.
fn strip_base<'a>(path: &'a [u8], base: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
