//! Files on their way in: found and checked before anything starts, opened when their turn comes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use belljar_engine::InputFile;
use rustix::fs::OFlags;
use tokio::io::{AsyncRead, ReadBuf};

use crate::input::{InputError, kind_name, open_regular};
use crate::message::Quit;

/// How deep a directory that is put in may be.
const MAX_DEPTH: usize = 64;

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
            self.add_dir(&source, &target, 0)
        } else {
            self.add_file(source, target)
        }
    }

    fn add_dir(&mut self, source: &Path, target: &Path, depth: usize) -> Result<(), Quit> {
        if depth > MAX_DEPTH {
            return Err(
                anyhow::anyhow!("file: {source:?} lies more than {MAX_DEPTH} directories deep").into()
            );
        }
        self.dirs.push(target.to_owned());
        let read = |error| InputError::Read { what: "file", path: source.to_owned(), source: error };
        for entry in std::fs::read_dir(source).map_err(read)? {
            let entry = entry.map_err(read)?;
            let target = target.join(entry.file_name());
            if entry.file_type().map_err(read)?.is_dir() {
                self.add_dir(&entry.path(), &target, depth + 1)?;
            } else {
                self.add_file(entry.path(), target)?;
            }
        }
        Ok(())
    }

    fn add_file(&mut self, source: PathBuf, target: PathBuf) -> Result<(), Quit> {
        let read = |error| InputError::Read { what: "file", path: source.clone(), source: error };
        let metadata = std::fs::symlink_metadata(&source).map_err(read)?;
        if let Some(kind) = kind_name(&metadata) {
            return Err(InputError::NotAFile { what: "file", path: source, kind }.into());
        }
        // Whether it can be read is known only after an attempt. Many files are not held open all at once.
        drop(open_regular("file", &source)?);
        let mode = if metadata.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
        self.files.push(HostFile { source, target, mode, content: None });
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
    content: Option<File>,
}

impl AsyncRead for HostFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.content.is_none() {
            let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
            self.content = Some(File::options().read(true).custom_flags(flags).open(&self.source)?);
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
}
