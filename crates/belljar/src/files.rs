//! Files on their way in: found and checked before anything starts, opened when their turn comes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_engine::{GuestClient, GuestError, InputFile, v1};
use belljar_files::{LinkEntry, pack_links};
use belljar_model::ByteSize;
use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;
use tokio::io::{AsyncRead, ReadBuf};

use crate::input::{InputError, kind_of};
use crate::message::Quit;

/// How deep a directory that is put in may be.
const MAX_DEPTH: usize = 64;

/// How a directory is opened to see what is in it.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How a file is opened: it may turn out to be anything.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Splits `SRC[:DEST]` at its last colon. A name with a colon in it is given with one more at its end.
pub(crate) fn split_pair(pair: &OsStr) -> (PathBuf, Option<PathBuf>) {
    let bytes = pair.as_bytes();
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    match bytes.iter().rposition(|byte| *byte == b':') {
        None => (path(bytes), None),
        Some(at) => {
            let target = &bytes[at + 1..];
            (path(&bytes[..at]), (!target.is_empty()).then(|| path(target)))
        }
    }
}

/// The files that were asked for, each with its place in the sandbox.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    files: Vec<HostFile>,
    /// Directories, which may be empty.
    dirs: Vec<PathBuf>,
    /// Symbolic links by the place of the directory that they came with.
    links: BTreeMap<PathBuf, Vec<LinkEntry>>,
    /// Bytes of all files.
    bytes: u64,
}

/// The script of a run, which takes a place in the sandbox besides the files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script<'a> {
    /// Its place.
    pub(crate) place: &'a Path,
    /// Where it was read from, if from a file.
    pub(crate) path: Option<&'a Path>,
}

/// Where a directory that is put in lies, and where it goes.
struct Tree<'a> {
    source: &'a Path,
    /// Empty for the home directory itself.
    target: &'a Path,
}

impl Inputs {
    /// Finds and checks everything that `pairs` name.
    pub(crate) fn find(pairs: &[OsString], script: Option<Script<'_>>) -> Result<Self, Quit> {
        let mut inputs = Self::default();
        for pair in pairs {
            inputs.add(pair)?;
        }
        if let Some(metadata) = script.and_then(|script| script.path).and_then(|path| path.metadata().ok()) {
            // A directory may have the script in it, which comes anyway.
            let identity = (metadata.dev(), metadata.ino());
            let place = script.map(|script| script.place);
            inputs.files.retain(|file| file.identity != identity || Some(file.target.as_path()) != place);
        }
        let links =
            inputs.links.iter().flat_map(|(base, links)| links.iter().map(|link| base.join(&link.name)));
        let files = inputs.files.iter().map(|file| file.target.clone());
        let script = script.map(|script| script.place.to_owned());
        let mut targets: Vec<PathBuf> = files.chain(links).chain(script).collect();
        targets.sort_unstable();
        if let Some(pair) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
            let twice = &pair[0];
            return Err(
                anyhow::anyhow!("file: {twice:?} is given twice; give each file a place of its own").into()
            );
        }
        Ok(inputs)
    }

    fn add(&mut self, pair: &OsStr) -> Result<(), Quit> {
        let (given, target) = split_pair(pair);
        let read = |error| InputError::Read { what: "file", path: given.clone(), source: error };
        let source = std::fs::canonicalize(&given).map_err(read)?;
        let is_dir = std::fs::metadata(&source).map_err(read)?.is_dir();
        let target = match target {
            // Only what is in the directory is meant.
            None if is_dir && is_content(given.as_os_str()) => PathBuf::new(),
            Some(target)
                if target.file_name().is_none() || !target.as_os_str().as_bytes().ends_with(b"/") =>
            {
                plain(&target)?
            }
            into => {
                // A link goes in under its own name.
                let name = given.file_name().ok_or_else(|| {
                    anyhow::anyhow!("file: {source:?} has no name; give it one after a colon")
                })?;
                plain(&into.unwrap_or_default().join(name))?
            }
        };
        if is_dir {
            let dir = rustix::fs::open(&source, DIRECTORY, Mode::empty());
            let dir = dir.map_err(|errno| read(errno.into()))?;
            self.add_dir(&dir, &Tree { source: &source, target: &target }, Path::new(""), 0)
        } else {
            self.add_file(CWD, source.as_os_str(), source.clone(), target)
        }
    }

    /// Adds everything in the directory `below` of a tree. No path is resolved again on the way: what lies there may be in
    /// the hands of a sandbox to which it is mounted, and become a link at any time.
    fn add_dir(&mut self, dir: &OwnedFd, tree: &Tree<'_>, below: &Path, depth: usize) -> Result<(), Quit> {
        let source = tree.source.join(below);
        if depth > MAX_DEPTH {
            return Err(
                anyhow::anyhow!("file: {source:?} lies more than {MAX_DEPTH} directories deep").into()
            );
        }
        let target = tree.target.join(below);
        if target != Path::new("") {
            self.dirs.push(target);
        }
        let failed = |path: &Path, errno: Errno| InputError::Read {
            what: "file",
            path: path.to_owned(),
            source: errno.into(),
        };
        let mut entries = Dir::read_from(dir).map_err(|errno| failed(&source, errno))?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(|errno| failed(&source, errno))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let (source, below) = (source.join(name), below.join(name));
            let failed = |errno| failed(&source, errno);
            let stat = rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
            let stat = stat.map_err(failed)?;
            match FileType::from_raw_mode(stat.stx_mode.into()) {
                FileType::Directory => {
                    let open = rustix::fs::openat(dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
                    self.add_dir(&open.map_err(failed)?, tree, &below, depth + 1)?;
                }
                // It stays a link, and leads to what has that name in the sandbox.
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(failed)?;
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    let links = self.links.entry(tree.target.to_owned()).or_default();
                    links.push(LinkEntry { name: below, target, stat });
                }
                _ => self.add_file(dir.as_fd(), name, source, tree.target.join(below))?,
            }
        }
        Ok(())
    }

    /// Adds the file `name` of `dir`, which is called `source` for people.
    fn add_file(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        source: PathBuf,
        target: PathBuf,
    ) -> Result<(), Quit> {
        let read =
            |errno: Errno| InputError::Read { what: "file", path: source.clone(), source: errno.into() };
        let check = |stat: &Stat| match kind_of(FileType::from_raw_mode(stat.st_mode)) {
            Some(kind) => Err(InputError::NotAFile { what: "file", path: source.clone(), kind }),
            None => Ok(()),
        };
        // A device may do something when it is opened, so what it is is asked before.
        check(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(read)?)?;
        // Whether it can be read is known only after an attempt. Many files are not held open all at once.
        let file = rustix::fs::openat(dir, name, FILE, Mode::empty()).map_err(read)?;
        let stat = rustix::fs::fstat(&file).map_err(read)?;
        check(&stat)?;
        let mode = if stat.st_mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let identity = (stat.st_dev, stat.st_ino);
        self.bytes = self.bytes.saturating_add(u64::try_from(stat.st_size).unwrap_or(0));
        self.files.push(HostFile { source, target, mode, identity, content: None });
        Ok(())
    }

    /// Refuses files that cannot fit: what lies in the home directory counts as memory of the sandbox.
    pub(crate) fn check_size(&self, memory: u64) -> Result<(), Quit> {
        if self.bytes < memory {
            return Ok(());
        }
        let (bytes, memory) = (ByteSize::new(self.bytes), ByteSize::new(memory));
        Err(anyhow::anyhow!(
            "file: the files have {bytes}, and the sandbox keeps them in its memory, whose limit is {memory}; raise it with \
             --memory, or show them inside with --mount"
        )
        .into())
    }

    /// Makes the directories and the links.
    pub(crate) async fn prepare(&mut self, guest: &GuestClient) -> Result<(), GuestError> {
        for dir in std::mem::take(&mut self.dirs) {
            guest.make_dir(&dir, true).await?;
        }
        for (base, links) in std::mem::take(&mut self.links) {
            let base = if base == Path::new("") { PathBuf::from(".") } else { base };
            guest.unpack(unpack_open(base.as_os_str()), std::io::Cursor::new(pack_links(&links))).await?;
        }
        Ok(())
    }

    /// The files as a run takes them.
    pub(crate) fn into_files(self) -> Vec<InputFile> {
        let input = |file: HostFile| InputFile {
            target: file.target.clone(),
            mode: file.mode,
            content: Box::new(file),
        };
        self.files.into_iter().map(input).collect()
    }
}

/// How an archive of this machine is unpacked inside.
pub(crate) fn unpack_open(path: &OsStr) -> v1::UnpackOpen {
    v1::UnpackOpen {
        path: Bytes::copy_from_slice(path.as_bytes()),
        overwrite: true,
        // They are never followed, and what they lead to is the sandbox's own.
        links_may_lead_out: true,
        limits: v1::UnpackLimits { max_bytes: u64::MAX, max_entries: u64::MAX, ..Default::default() }.into(),
        ..Default::default()
    }
}

/// Whether what is in a directory is meant, and not the directory.
pub(crate) fn is_content(path: &OsStr) -> bool {
    let bytes = path.as_bytes();
    matches!(bytes, b"." | b"..") || bytes.ends_with(b"/.") || bytes.ends_with(b"/..")
}

/// A place in a sandbox: below the home directory, or absolute, and never by way of `..`.
pub(crate) fn plain(target: &Path) -> Result<PathBuf, Quit> {
    let plain: PathBuf = target.components().filter(|part| *part != Component::CurDir).collect();
    let climbs = plain.components().any(|part| part == Component::ParentDir);
    if climbs || plain.file_name().is_none() {
        return Err(anyhow::anyhow!("invalid destination {target:?}; give a path without .. in it").into());
    }
    Ok(plain)
}

/// A file of the host that is opened when it is read from.
#[derive(Debug)]
struct HostFile {
    source: PathBuf,
    target: PathBuf,
    mode: u32,
    /// Device and inode of the file that was checked.
    identity: (u64, u64),
    content: Option<File>,
}

impl HostFile {
    /// Opens the file that was checked, and no other that has come into its place or into that of a directory above it.
    fn open(&self) -> io::Result<File> {
        let file = rustix::fs::open(&self.source, FILE, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if (stat.st_dev, stat.st_ino) != self.identity {
            return Err(io::Error::other(format!("{:?} was replaced while it was put in", self.source)));
        }
        Ok(file.into())
    }
}

impl AsyncRead for HostFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.content.is_none() {
            self.content = Some(self.open()?);
        }
        if let Some(file) = &mut self.content {
            let count = file.read(buffer.initialize_unfilled())?;
            buffer.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_at_the_last_colon() {
        for (pair, source, target) in [
            ("a.csv", "a.csv", None),
            ("a.csv:b/c.csv", "a.csv", Some("b/c.csv")),
            ("a:b:", "a:b", None),
            ("a:b:c", "a:b", Some("c")),
            ("a b:ü", "a b", Some("ü")),
        ] {
            assert_eq!(split_pair(OsStr::new(pair)), (source.into(), target.map(PathBuf::from)), "{pair}");
        }
    }

    #[test]
    fn places_do_not_climb() {
        for (target, expected) in [
            ("a", Some("a")),
            ("./a//b/", Some("a/b")),
            ("/tmp/x", Some("/tmp/x")),
            ("../a", None),
            ("a/../b", None),
            ("a/..", None),
            (".", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(plain(Path::new(target)).ok(), expected.map(PathBuf::from), "{target}");
        }
    }

    #[test]
    fn only_the_file_that_was_checked_is_opened() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["tree", "tree/sub", "secret"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("tree/sub/file"), "own").unwrap();
        std::fs::write(at("secret/file"), "secret").unwrap();
        let inputs = Inputs::find(&[at("tree").into()], None).ok().unwrap();
        inputs.files[0].open().unwrap();
        std::fs::rename(at("tree/sub"), at("tree/old")).unwrap();
        symlink(at("secret"), at("tree/sub")).unwrap();
        let error = inputs.files[0].open().unwrap_err().to_string();
        assert!(error.contains("was replaced"), "{error}");
        // A link in it is none that is followed.
        let inputs = Inputs::find(&[at("tree").into()], None).ok().unwrap();
        assert_eq!(inputs.files.len(), 1);
        assert_eq!(inputs.links[Path::new("tree")][0].target, at("secret"));
    }

    #[test]
    fn a_dot_at_the_end_means_the_content() {
        for (path, expected) in [
            (".", true),
            ("a/.", true),
            ("..", true),
            ("a", false),
            ("a/", false),
            ("/", false),
            ("a.", false),
        ] {
            assert_eq!(is_content(OsStr::new(path)), expected, "{path}");
        }
    }
}
