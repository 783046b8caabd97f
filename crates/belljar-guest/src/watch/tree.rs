//! Which directories are watched under which paths, and what the kernel's events mean for them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use belljar_files::{Temporary, open_dir};
use belljar_proto::v1;
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, Dir, FileType, StatxFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// The most directories that one call watches.
pub(super) const MAX_WATCHES: usize = 8192;

/// How many names are read before other work gets its turn.
const SCAN_AT_ONCE: usize = 256;

/// What is reported.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF);

/// One event as the kernel gives it.
pub(super) struct Event {
    pub(super) watch: i32,
    pub(super) flags: ReadFlags,
    pub(super) cookie: u32,
    pub(super) name: Option<Vec<u8>>,
}

/// A watched tree. Paths in it are relative to its root, whose own is empty.
pub(super) struct Tree {
    pub(super) inotify: AsyncFd<OwnedFd>,
    root: Vec<u8>,
    recursive: bool,
    watches: HashMap<i32, Vec<u8>>,
    /// Directories that are still to be read. Each has a watch, which bounds their number.
    scans: VecDeque<Scan>,
    reading: Option<(Dir, Scan)>,
    /// A directory that left its place; where it went is in the very next event, or it is out of the tree.
    moving: Option<(u32, Vec<u8>)>,
    /// A file that left its temporary name; its own is in the very next event.
    arriving: Option<(u32, Temporary)>,
    events: VecDeque<v1::WatchEvent>,
    ended: bool,
}

struct Scan {
    path: Vec<u8>,
    report: Report,
}

/// What of a directory's names is news.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Report {
    /// Nothing: it was there before the watch began.
    Nothing,
    /// Everything: the directory is new.
    All,
    /// Directories that have no watch yet: events were lost.
    Unknown,
}

enum Added {
    New,
    Known,
    /// It is no directory (any more), or closed to the user.
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
        tree.scan_later(Vec::new(), Report::Nothing);
        Ok(tree)
    }

    /// Puts `READY` before everything that has been seen meanwhile.
    pub(super) fn ready(&mut self) {
        let kind = v1::WatchKind::WATCH_KIND_READY.into();
        self.events.push_front(v1::WatchEvent { kind, directory: true, ..Default::default() });
    }

    pub(super) fn next_event(&mut self) -> Option<v1::WatchEvent> {
        self.events.pop_front()
    }

    /// The root is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    fn report(&mut self, kind: v1::WatchKind, path: &[u8], directory: bool) {
        let path = bytes::Bytes::copy_from_slice(path);
        let event = v1::WatchEvent { kind: kind.into(), path, directory, ..Default::default() };
        // A file that is written in small pieces is one change as long as nobody has read of it.
        if kind != v1::WatchKind::WATCH_KIND_CHANGED || self.events.back() != Some(&event) {
            self.events.push_back(event);
        }
    }

    /// Takes in one event of the kernel.
    pub(super) fn take(&mut self, event: Event) -> Result<(), Errno> {
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
        // Without a name it is about the directory itself, which its parent's watch reports.
        let Some(name) = name else { return Ok(()) };
        let path = join(base, &name);
        let directory = flags.contains(ReadFlags::ISDIR);
        let arriving = self.arriving.take().filter(|(from, _)| *from == cookie).map(|(_, replaces)| replaces);
        if let Some(temporary) = Temporary::named(&name) {
            // What leaves such a name is news under the next one.
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.arriving = Some((cookie, temporary));
            }
            return Ok(());
        }
        let follow = directory && self.recursive;
        if let Some(arrived) = arriving.filter(|_| flags.contains(ReadFlags::MOVED_TO)) {
            self.arrive(path, directory, arrived)?;
        } else if flags.contains(ReadFlags::CREATE) {
            let added = if follow { self.add(&path)? } else { Added::No };
            // A directory that is known was found, and reported, by reading the one above it.
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

    /// Takes in what was written under a temporary name and has its own now: that is how writing it looks from outside.
    fn arrive(&mut self, path: Vec<u8>, directory: bool, arrived: Temporary) -> Result<(), Errno> {
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

    fn full(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.root.clone() } else { join(&self.root, path) }
    }

    /// Watches a directory below the root.
    fn add(&mut self, path: &[u8]) -> Result<Added, Errno> {
        let flags = EVENTS | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        let watch = match inotify::add_watch(&self.inotify, self.full(path), flags) {
            Ok(watch) => watch,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(Added::No),
            Err(Errno::NAMETOOLONG) => {
                // Too deep for the kernel: what happens there is lost, and that is what is said.
                self.report(v1::WatchKind::WATCH_KIND_OVERFLOW, b"", false);
                return Ok(Added::No);
            }
            Err(errno) => return Err(errno),
        };
        match self.watches.get(&watch).cloned() {
            Some(known) => {
                // It can have moved, with the event for that still to come.
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

    /// Changes the paths of a directory and of all below it.
    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let scans = self.scans.iter_mut().chain(self.reading.as_mut().map(|(_, scan)| scan));
        for path in self.watches.values_mut().chain(scans.map(|scan| &mut scan.path)) {
            if let Some(rest) = below(path, from) {
                *path = [to, rest].concat();
            }
        }
    }

    /// Stops watching a directory and all below it.
    fn forget(&mut self, path: &[u8]) {
        let fd = &self.inotify;
        self.watches.retain(|watch, watched| {
            let gone = below(watched, path).is_some();
            if gone {
                // It fails when the directory has been removed, and its watch with it.
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

    /// Reads on in directories that are still to be read. False when there is nothing left to do.
    pub(super) fn scan_some(&mut self) -> Result<bool, Errno> {
        if self.reading.is_none() {
            let Some(scan) = self.scans.pop_front() else { return Ok(false) };
            let follow = scan.path.is_empty();
            match open_dir(CWD, self.full(&scan.path), follow).and_then(Dir::new) {
                Ok(dir) => self.reading = Some((dir, scan)),
                // It has gone, or moved where its watch has been moved to.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG) => {}
                Err(errno) => return Err(errno),
            }
        }
        for _ in 0..SCAN_AT_ONCE {
            let Some((dir, scan)) = &mut self.reading else { break };
            let Some(entry) = dir.read() else {
                self.reading = None;
                break;
            };
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." || Temporary::named(name.to_bytes()).is_some() {
                continue;
            }
            let path = join(&scan.path, name.to_bytes());
            let report = scan.report;
            self.found(&path, entry.file_type(), report)?;
        }
        Ok(true)
    }

    /// Takes in a name that reading a directory has brought.
    fn found(&mut self, path: &[u8], kind: FileType, report: Report) -> Result<(), Errno> {
        let directory = match kind {
            FileType::Unknown => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let stat = rustix::fs::statx(CWD, self.full(path), flags, StatxFlags::TYPE);
                stat.is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory)
            }
            kind => kind == FileType::Directory,
        };
        let added = if directory { self.add(path)? } else { Added::No };
        let news = match (report, &added) {
            (Report::Nothing, _) | (_, Added::Known) | (Report::Unknown, Added::No) => false,
            (Report::All, _) | (Report::Unknown, Added::New) => true,
        };
        if news {
            self.report(v1::WatchKind::WATCH_KIND_CREATED, path, directory);
        }
        match (added, report) {
            (Added::New, Report::Nothing) => self.scan_later(path.to_vec(), Report::Nothing),
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

/// What follows `base` in `path`, when `path` is it or below it.
fn below<'a>(path: &'a [u8], base: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
