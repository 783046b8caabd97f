//! Files to copy into a sandbox: found and checked before anything starts, and opened when they are read.

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
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;
use tokio::io::{AsyncRead, ReadBuf};

use crate::input::{InputError, kind_of};
use crate::message::Quit;

/// Maximum depth of a directory that is copied in.
const MAX_DEPTH: usize = 64;

/// Flags to open a directory for listing.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Flags to open a file, which may turn out to be of any type.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Splits `SRC[:DEST]` at its last colon. A source with a colon in its name needs another one at its end.
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

/// Opens what lies below a directory: a file or a directory for reading, anything else only to look at it. Nothing leads out of the
/// directory, and no link is followed on the way.
///
/// # Errors
/// Fails with the kernel's reason, or says that a link leads there.
pub(crate) fn open_below(dir: &Path, name: &str) -> io::Result<File> {
    let base = rustix::fs::open(dir, DIRECTORY, Mode::empty())?;
    let open = |flags: OFlags| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&base, name, flags, Mode::empty(), resolve).map_err(|errno| match errno {
            Errno::LOOP => io::Error::other("a symbolic link leads there, and links are not followed"),
            errno => errno.into(),
        })
    };
    // Opening a device may have side effects, so the type is looked at first.
    let found = open(OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
    Ok(match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::RegularFile => open(FILE)?.into(),
        FileType::Directory => open(DIRECTORY)?.into(),
        _ => found.into(),
    })
}

/// Returns the names in an open directory.
///
/// # Errors
/// Fails with the kernel's reason, or for a name that is not UTF-8.
pub(crate) fn names_in(dir: &File) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let text = std::str::from_utf8(name);
            let text =
                text.map_err(|_| io::Error::other(format!("{:?} is not UTF-8", OsStr::from_bytes(name))))?;
            names.push(text.to_owned());
        }
    }
    Ok(names)
}

/// Files to copy in, each with its destination in the sandbox.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    files: Vec<HostFile>,
    /// Directories, which may be empty.
    dirs: Vec<PathBuf>,
    /// Symbolic links, by the destination of the directory that contains them.
    links: BTreeMap<PathBuf, Vec<LinkEntry>>,
    /// Total size of all files, in bytes.
    bytes: u64,
}

/// The script of a run, which is copied in besides the files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script<'a> {
    /// Its destination.
    pub(crate) place: &'a Path,
    /// The file that it was read from, if any.
    pub(crate) path: Option<&'a Path>,
}

/// Source and destination of a directory that is copied in.
struct Tree<'a> {
    source: &'a Path,
    /// Empty for the home directory itself.
    target: &'a Path,
}

impl Inputs {
    /// Reports whether there is nothing to put in.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.dirs.is_empty() && self.links.is_empty()
    }

    /// Finds and checks everything that `pairs` name.
    pub(crate) fn find(pairs: &[OsString], script: Option<Script<'_>>) -> Result<Self, Quit> {
        let mut inputs = Self::default();
        for pair in pairs {
            inputs.add(pair)?;
        }
        if let Some(metadata) = script.and_then(|script| script.path).and_then(|path| path.metadata().ok()) {
            // A directory may contain the script, which is copied anyway.
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
            // Only the directory's content is copied.
            None if is_dir && is_content(given.as_os_str()) => PathBuf::new(),
            Some(target)
                if target.file_name().is_none() || !target.as_os_str().as_bytes().ends_with(b"/") =>
            {
                checked_path(&target)?
            }
            into => {
                // A link is copied under its own name.
                let name = given.file_name().ok_or_else(|| {
                    anyhow::anyhow!("file: {source:?} has no name; give it one after a colon")
                })?;
                checked_path(&into.unwrap_or_default().join(name))?
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

    /// Adds the content of the directory `below` of a tree. No path is resolved a second time: a sandbox to which the directory is
    /// mounted could replace parts of it by links at any time.
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
                // It stays a link, which is resolved in the sandbox.
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

    /// Adds the file `name` of `dir`. `source` is its path for messages.
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
        // Opening a device may have side effects, so its type is checked first.
        check(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(read)?)?;
        // Opening it shows whether it can be read. It is closed again: there may be too many files to keep all open.
        let file = rustix::fs::openat(dir, name, FILE, Mode::empty()).map_err(read)?;
        let stat = rustix::fs::fstat(&file).map_err(read)?;
        check(&stat)?;
        let mode = if stat.st_mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let identity = (stat.st_dev, stat.st_ino);
        self.bytes = self.bytes.saturating_add(u64::try_from(stat.st_size).unwrap_or(0));
        self.files.push(HostFile { source, target, mode, identity, content: None });
        Ok(())
    }

    /// Refuses files that cannot fit: the content of the home directory counts as memory of the sandbox.
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

    /// Creates the directories and the links.
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

    /// Converts the files to the inputs of a run.
    pub(crate) fn into_files(self) -> Vec<InputFile> {
        let input = |file: HostFile| InputFile {
            target: file.target.clone(),
            mode: file.mode,
            content: Box::new(file),
        };
        self.files.into_iter().map(input).collect()
    }
}

/// Returns the options to unpack an archive of this machine in a sandbox.
pub(crate) fn unpack_open(path: &OsStr) -> v1::UnpackOpen {
    v1::UnpackOpen {
        path: Bytes::copy_from_slice(path.as_bytes()),
        overwrite: true,
        // Links are never followed while unpacking, and their targets belong to the sandbox.
        links_may_lead_out: true,
        limits: v1::UnpackLimits { max_bytes: u64::MAX, max_entries: u64::MAX, ..Default::default() }.into(),
        ..Default::default()
    }
}

/// Reports whether a path means the content of a directory, and not the directory.
pub(crate) fn is_content(path: &OsStr) -> bool {
    let bytes = path.as_bytes();
    matches!(bytes, b"." | b"..") || bytes.ends_with(b"/.") || bytes.ends_with(b"/..")
}

/// Checks a path in a sandbox, which is relative to the home directory or absolute, and must not contain `..`.
pub(crate) fn checked_path(target: &Path) -> Result<PathBuf, Quit> {
    let path: PathBuf = target.components().filter(|part| *part != Component::CurDir).collect();
    let climbs = path.components().any(|part| part == Component::ParentDir);
    if climbs || path.file_name().is_none() {
        return Err(anyhow::anyhow!("invalid destination {target:?}; give a path without .. in it").into());
    }
    Ok(path)
}

/// A file of the host that is opened when it is first read.
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
    /// Opens the file. Fails if it, or a directory above it, was replaced after the check.
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
    fn destinations_must_not_contain_parent_directories() {
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
            assert_eq!(checked_path(Path::new(target)).ok(), expected.map(PathBuf::from), "{target}");
        }
    }

    #[test]
    fn replaced_file_is_refused() {
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
        // Links in the directory are not followed.
        let inputs = Inputs::find(&[at("tree").into()], None).ok().unwrap();
        assert_eq!(inputs.files.len(), 1);
        assert_eq!(inputs.links[Path::new("tree")][0].target, at("secret"));
    }

    #[test]
    fn what_lies_below_is_opened_without_links() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let (context, outside) = (dir.path().join("context"), dir.path().join("outside"));
        for made in [&context, &outside, &context.join("sub")] {
            std::fs::create_dir(made).unwrap();
        }
        std::fs::write(outside.join("secret"), "secret").unwrap();
        std::fs::write(context.join("sub/file"), "own").unwrap();
        symlink(&outside, context.join("absolute")).unwrap();
        symlink("../outside", context.join("sub/relative")).unwrap();
        symlink("sub", context.join("inner")).unwrap();
        for name in ["sub/file", "sub/../sub/file", "./sub//file"] {
            let file = open_below(&context, name).unwrap();
            assert_eq!(io::read_to_string(file).unwrap(), "own", "{name}");
        }
        assert!(open_below(&context, "sub").unwrap().metadata().unwrap().is_dir());
        assert!(open_below(&context, "inner").unwrap().metadata().unwrap().is_symlink());
        for name in
            ["absolute/secret", "sub/relative/secret", "inner/file", "../outside/secret", "/etc/passwd", "no"]
        {
            assert!(open_below(&context, name).is_err(), "{name}");
        }
    }

    #[test]
    fn trailing_dot_means_the_content() {
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
