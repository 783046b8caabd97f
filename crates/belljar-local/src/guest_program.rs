//! Program of the guest: a small one of the same build beside this program, or else this program itself.
//!
//! It is opened once, and that open file is run. Before each launch its build id is read from that same file, as a file can be
//! overwritten in place.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use belljar_engine::EngineError;
use belljar_guest_config::{BUILD_ID, GUEST_PROGRAM};
use belljar_linux::{GuestExe, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};
use rustix::fs::{Mode, OFlags};
use rustix::mount::OpenTreeFlags;

use crate::host_tree::c_string;

/// This program. The link refers to it even if its file has been replaced.
const OWN: &str = "/proc/self/exe";

/// Way in which the guest's program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunFrom {
    /// From its descriptor, if no mount can be created for it.
    File,
    /// From a read-only mount created by this process.
    Mount,
    /// From a read-only mount that the sandbox's first process creates from its path.
    OwnMount,
}

static BESIDE: OnceLock<GuestChoice> = OnceLock::new();

/// The guest's program, or the reason why this program is the guest.
#[derive(Debug)]
pub(crate) struct GuestChoice {
    program: Result<Program, String>,
    /// Whether there is no fallback.
    is_required: bool,
}

impl GuestChoice {
    /// Returns the program beside this one, looked up once.
    pub(crate) fn beside() -> &'static Self {
        BESIDE.get_or_init(|| Self { program: Program::beside(), is_required: false })
    }

    /// Returns the program at this path, without a fallback.
    pub(crate) fn at(path: &Path) -> Self {
        let program = Program::open(path).map_err(|why| format!("{}: {why}", path.display()));
        Self { program, is_required: true }
    }

    /// Returns the program's path. Fails with the reason why this program is the guest, or why the required program cannot be
    /// used.
    pub(crate) fn path(&self) -> Result<&Path, String> {
        let program = self.program.as_ref().map_err(String::clone)?;
        program.check().map(|()| program.path.as_path())
    }

    /// Returns the program for a launch.
    pub(crate) fn exe(&self, from: RunFrom) -> Result<GuestExe, EngineError> {
        let opened = EngineError::launch("open the guest's program for the sandbox");
        let exe =
            match self.program.as_ref().map_err(String::clone).and_then(|program| program.check_for(from)) {
                Ok(program) => program.exe(from),
                Err(why) if self.is_required => Err(std::io::Error::other(why)),
                Err(_) => Program::own().and_then(|own| own.exe(from)),
            };
        exe.map_err(opened)
    }
}

/// Reports whether there is a guest's program of this build beside this program, for a program that is none itself: from then on there is no
/// fallback. Must be called before any launch.
#[must_use]
pub fn has_guest() -> bool {
    let beside = BESIDE.get_or_init(|| GuestChoice { program: Program::beside(), is_required: true });
    beside.path().is_ok()
}

/// Checks that a program beside this one is writable only by those who could also change this program.
///
/// # Errors
/// Who else could.
pub fn check_beside(path: &Path) -> Result<(), String> {
    let metadata = |path: &Path| std::fs::metadata(path).map_err(|error| error.to_string());
    check_writers(&metadata(path)?, &metadata(Path::new(OWN))?)
}

fn check_writers(program: &Metadata, own: &Metadata) -> Result<(), String> {
    if program.uid() != own.uid() && program.uid() != 0 {
        return Err(format!("it belongs to user {}, and this program to user {}", program.uid(), own.uid()));
    }
    if program.mode() & 0o002 != 0 {
        return Err("everybody may write it".to_owned());
    }
    let is_same_group = program.gid() == own.gid() && own.mode() & 0o020 != 0;
    if program.mode() & 0o020 != 0 && !is_same_group {
        return Err("its group may write it, and this program not".to_owned());
    }
    Ok(())
}

/// Open program.
#[derive(Debug)]
struct Program {
    file: File,
    /// Path when it was opened, without links.
    path: PathBuf,
}

impl Program {
    fn own() -> std::io::Result<Self> {
        Ok(Self { file: File::open(OWN)?, path: std::fs::read_link(OWN)? })
    }

    fn beside() -> Result<Self, String> {
        let own = std::fs::read_link(OWN).map_err(|error| error.to_string())?;
        let path = own.with_file_name(GUEST_PROGRAM);
        Self::open(&path).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn open(path: &Path) -> Result<Self, String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| errno.to_string())?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let program = Self { file: file.into(), path: path.map_err(|error| error.to_string())? };
        program.check()?;
        Ok(program)
    }

    /// Checks that the program is complete, of this build, and writable only by those who could also change this program.
    fn check(&self) -> Result<(), String> {
        let metadata = self.file.metadata().map_err(|error| error.to_string())?;
        let own = std::fs::metadata(OWN).map_err(|error| error.to_string())?;
        if !metadata.is_file() {
            return Err("it is no file".to_owned());
        }
        check_writers(&metadata, &own)?;
        if metadata.mode() & 0o111 == 0 {
            return Err("it may not be executed".to_owned());
        }
        let id = build_id(&self.file, metadata.len())?;
        if id != BUILD_ID {
            return Err(format!("it is of the build {id}, and this program of the build {BUILD_ID}"));
        }
        Ok(())
    }

    /// Performs [`Self::check`], and checks that the program can be run in this way.
    fn check_for(&self, from: RunFrom) -> Result<&Self, String> {
        self.check()?;
        if from == RunFrom::OwnMount {
            let is_same =
                |here: &Metadata, there: &Metadata| (here.dev(), here.ino()) == (there.dev(), there.ino());
            let found = self.file.metadata().and_then(|here| Ok(is_same(&here, &self.path.metadata()?)));
            if !found.map_err(|error| error.to_string())? {
                return Err("another file lies in its place".to_owned());
            }
        }
        Ok(self)
    }

    fn exe(&self, from: RunFrom) -> std::io::Result<GuestExe> {
        match from {
            RunFrom::File => Ok(GuestExe::Fd(self.file.try_clone()?.into())),
            RunFrom::Mount => {
                // Nothing else uses this mount, so that no writable descriptor of the program can be obtained through `/proc`
                // (CVE-2019-5736).
                let flags = OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_EMPTY_PATH;
                let tree = rustix::mount::open_tree(&self.file, c"", flags)?;
                let attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
                belljar_linux::mount_setattr(std::os::fd::AsFd::as_fd(&tree), attributes, 0, false, None)?;
                Ok(GuestExe::Fd(tree))
            }
            RunFrom::OwnMount => {
                let metadata = self.file.metadata()?;
                let path = c_string(self.path.as_os_str());
                Ok(GuestExe::Checked { path, device: metadata.dev(), inode: metadata.ino() })
            }
        }
    }
}

/// Bytes read at the start of a program: its headers, and in most files its notes.
const HEAD_BYTES: usize = 4096;

/// Types of a loaded segment and of one with notes (elf(5)).
const PT_LOAD: u64 = 1;
const PT_NOTE: u64 = 4;

/// Type and name of the note with the build id, which a linker writes.
const NT_GNU_BUILD_ID: u64 = 3;
const GNU: &[u8] = b"GNU\0";

/// Returns the build id of a program, in hexadecimal digits. Fails also if the program is truncated.
fn build_id(file: &File, len: u64) -> Result<String, String> {
    let mut head = [0u8; HEAD_BYTES];
    let count = file.read_at(&mut head, 0).map_err(|error| error.to_string())?;
    let head = Fields(head.get(..count).unwrap_or_default());
    let not_elf = || "it is no program of 64 bits".to_owned();
    if !head.0.starts_with(b"\x7fELF\x02\x01") {
        return Err(not_elf());
    }
    let header = || Some((head.int(32, 8)?, head.int(40, 8)?, head.int(54, 2)?, head.int(56, 2)?));
    let (segments, sections, segment_size, segment_count) = header().ok_or_else(not_elf)?;
    let section_bytes = head.int(58, 2).unwrap_or(0) * head.int(60, 2).unwrap_or(0);
    let mut end = sections.saturating_add(section_bytes);
    let mut id = None;
    for index in 0..segment_count {
        let at = segments.saturating_add(index * segment_size);
        let segment = || {
            let at = usize::try_from(at).ok()?;
            Some((head.int(at, 4)?, head.int(at.checked_add(8)?, 8)?, head.int(at.checked_add(32)?, 8)?))
        };
        let (kind, offset, size) = segment().ok_or_else(not_elf)?;
        match kind {
            PT_LOAD => end = end.max(offset.saturating_add(size)),
            PT_NOTE if id.is_none() => id = find_build_id(file, offset, size),
            _ => {}
        }
    }
    if end > len {
        return Err(format!("it is cut short: it has {len} of {end} bytes"));
    }
    id.map(hex::encode).ok_or_else(|| "it has no build id".to_owned())
}

/// Returns the build id in a segment with notes, if it is there.
fn find_build_id(file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
    let mut notes = vec![0u8; usize::try_from(size).ok().filter(|size| *size <= HEAD_BYTES)?];
    file.read_exact_at(&mut notes, offset).ok()?;
    let mut notes = notes.as_slice();
    while !notes.is_empty() {
        let fields = Fields(notes);
        let [name, description] = [fields.int(0, 4)?, fields.int(4, 4)?].map(|len| usize::try_from(len).ok());
        let (name, description) = (name?, description?);
        let begin = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = begin.checked_add(description)?;
        if fields.int(8, 4)? == NT_GNU_BUILD_ID && notes.get(12..12 + name)? == GNU {
            return notes.get(begin..end).map(<[u8]>::to_vec);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// Reader of little-endian numbers.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// Returns the number of `len` bytes, at most 8, at this offset.
    fn int(&self, at: usize, len: usize) -> Option<u64> {
        let bytes = self.0.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}
