//! Files on their way in: found and checked before anything starts, opened when their turn comes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_engine::InputFile;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
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
    pub(crate) dirs: Vec<PathBuf>,
}

impl Inputs {
    /// Finds and checks everything that `pairs` name. `taken` is a place that is taken already.
    pub(crate) fn find(pairs: &[OsString], taken: Option<&Path>) -> Result<Self, Quit> {
        let mut inputs = Self::default();
        for pair in pairs {
            inputs.add(pair)?;
        }
        let mut targets: Vec<&Path> =
            inputs.files.iter().map(|file| file.target.as_path()).chain(taken).collect();
        targets.sort_unstable();
        if let Some(pair) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
            let twice = pair[0];
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
        // A link goes in under its own name, `.` under that of the directory.
        let name = given.file_name().or(source.file_name());
        let target = match target.as_deref().or(name.map(Path::new)) {
            Some(target) => plain(target)?,
            None => {
                return Err(anyhow::anyhow!("file: {source:?} has no name; give it one after a colon").into());
            }
        };
        if std::fs::metadata(&source).map_err(read)?.is_dir() {
            let dir = rustix::fs::open(&source, DIRECTORY, Mode::empty());
            self.add_dir(&dir.map_err(|errno| read(errno.into()))?, &source, &target, 0)
        } else {
            self.add_file(CWD, source.as_os_str(), source.clone(), target)
        }
    }

    /// Adds everything in a directory. No path is resolved again on the way: what lies there may be in the hands of a
    /// sandbox to which it is mounted, and become a link at any time.
    fn add_dir(&mut self, dir: &OwnedFd, source: &Path, target: &Path, depth: usize) -> Result<(), Quit> {
        if depth > MAX_DEPTH {
            return Err(
                anyhow::anyhow!("file: {source:?} lies more than {MAX_DEPTH} directories deep").into()
            );
        }
        self.dirs.push(target.to_owned());
        let failed = |path: &Path, errno: Errno| InputError::Read {
            what: "file",
            path: path.to_owned(),
            source: errno.into(),
        };
        let mut entries = Dir::read_from(dir).map_err(|errno| failed(source, errno))?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(|errno| failed(source, errno))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let (source, target) = (source.join(name), target.join(name));
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| failed(&source, errno))?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let below = rustix::fs::openat(dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
                    .map_err(|errno| failed(&source, errno))?;
                self.add_dir(&below, &source, &target, depth + 1)?;
            } else {
                self.add_file(dir.as_fd(), name, source, target)?;
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
        self.files.push(HostFile { source, target, mode, identity, content: None });
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

/// A place in a sandbox: below the home directory, or absolute, and never by way of `..`.
pub(crate) fn plain(target: &Path) -> Result<PathBuf, Quit> {
    let plain: PathBuf = target.components().filter(|part| *part != Component::CurDir).collect();
    let climbs = plain.components().any(|part| part == Component::ParentDir);
    if climbs || plain.file_name().is_none() {
        return Err(anyhow::anyhow!("{target:?} is no place for a file; give a path without .. in it").into());
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
        assert!(Inputs::find(&[at("tree").into()], None).is_err(), "a link in it is refused");
    }
}
