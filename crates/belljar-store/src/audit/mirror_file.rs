//! Mirror file, and its rotated predecessors.

use std::fs::{File, Permissions, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::canonical::{MAX_LINE_BYTES, parse_line};
use super::head::Head;
use super::mirror::MirrorOptions;
use crate::files::{directory, private_file};

/// Bytes by which a file may exceed its limit before rotation is attempted again.
const RETRY_BYTES: u64 = 1 << 20;

pub(crate) struct MirrorFile {
    options: MirrorOptions,
    /// Locked while it is open.
    file: File,
    /// Length in bytes up to the end of the last complete line.
    len: u64,
    /// Number of the first record in the file.
    first: Option<i64>,
    end: End,
    rotate_at: u64,
    /// Whether there may be a partial line after `len`.
    has_partial_line: bool,
}

/// Last record, as far as it is known.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// There is no record.
    Empty,
    /// In this file, or in the previous one if this one is empty.
    At(Head),
    /// The last line is not a record.
    Foreign,
}

pub(crate) enum Opened {
    File(MirrorFile),
    LockedElsewhere,
}

pub(crate) enum Written {
    Done,
    /// The file is no longer in its place. Nothing was written.
    Displaced,
    /// Nothing was written, or a partial write was undone.
    Failed(io::Error),
}

impl MirrorFile {
    /// Opens the file, creates it if necessary, and truncates a partial last line.
    pub(crate) fn open(options: MirrorOptions) -> io::Result<Opened> {
        let Some(file) = open_locked(&options.path)? else { return Ok(Opened::LockedElsewhere) };
        let mut opened = Self {
            rotate_at: options.max_bytes,
            options,
            file,
            len: 0,
            first: None,
            end: End::Empty,
            has_partial_line: false,
        };
        opened.read_ends()?;
        Ok(Opened::File(opened))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.options.path
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the last record of this file, or of the previous one if this one is empty. If the last line is not a record,
    /// returns a head that matches no database.
    pub(crate) fn end(&self) -> Option<Head> {
        match self.end {
            End::Empty => None,
            End::At(head) => Some(head),
            End::Foreign => Some(Head { seq: 0, hash: [0; 32] }),
        }
    }

    /// Appends complete lines with the records from `first` to `last`. Rotates the file first if it is too long.
    pub(crate) fn append(&mut self, first: i64, last: Head, lines: &[u8]) -> Written {
        match self.is_in_place() {
            Ok(true) => {}
            Ok(false) => return Written::Displaced,
            Err(error) => return Written::Failed(error),
        }
        if self.len >= self.rotate_at
            && let Err(error) = self.rotate()
        {
            tracing::error!(file = %self.path().display(), %error, "cannot rotate the audit file; the old one keeps growing");
            self.rotate_at = self.len + RETRY_BYTES;
        }
        if let Err(error) = self.write(lines) {
            return Written::Failed(error);
        }
        self.first.get_or_insert(first);
        self.end = End::At(last);
        Written::Done
    }

    /// Renames a file that belongs to another database, and starts a new one.
    pub(crate) fn put_aside(&mut self) -> io::Result<()> {
        if self.is_empty() {
            self.end = End::Empty;
            return Ok(());
        }
        let name = |number: u32| format!("{}-put-aside-{number}", self.stem());
        let target = self.unused_path(&name)?;
        self.replace(&target)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.has_partial_line {
            self.file.set_len(self.len)?;
        }
        self.has_partial_line = true;
        match self.file.write_all(lines) {
            Ok(()) => {
                self.len += u64::try_from(lines.len()).unwrap_or(u64::MAX);
                self.has_partial_line = false;
                Ok(())
            }
            Err(error) => {
                // If this fails too, it is retried before the next write.
                self.has_partial_line = self.file.set_len(self.len).is_err();
                Err(error)
            }
        }
    }

    /// Renames the file after its first record, starts a new one, and removes the oldest ones beyond the limit.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        let first = self.first.unwrap_or(0);
        let name = |number: u32| match number {
            0 => format!("{}-{first:020}", self.stem()),
            _ => format!("{}-{first:020}-{number}", self.stem()),
        };
        let target = self.unused_path(&name)?;
        self.replace(&target)?;
        for old in self.rotated_files()?.iter().rev().skip(self.options.keep) {
            std::fs::remove_file(old)?;
        }
        Ok(())
    }

    /// Renames the file and starts a new one. If that fails, continues with this one in its place.
    fn replace(&mut self, target: &Path) -> io::Result<()> {
        std::fs::rename(self.path(), target)?;
        let fresh =
            open_locked(self.path()).and_then(|file| file.ok_or_else(|| io::ErrorKind::ResourceBusy.into()));
        match fresh {
            Ok(file) => {
                self.file = file;
                self.len = 0;
                self.first = None;
                self.rotate_at = self.options.max_bytes;
                self.has_partial_line = false;
                Ok(())
            }
            Err(error) => {
                std::fs::rename(target, self.path())?;
                Err(error)
            }
        }
    }

    /// Reports whether the path still refers to the open file, which may have been removed or moved away.
    fn is_in_place(&self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match std::fs::symlink_metadata(self.path()) {
            Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read_ends(&mut self) -> io::Result<()> {
        let (len, end) = read_last_line(&mut self.file)?;
        if len < self.file.metadata()?.len() {
            self.file.set_len(len)?;
        }
        self.len = len;
        self.end = end;
        if len > 0 {
            self.first = read_first_line(&mut self.file)?;
        } else if let Some(before) = self.rotated_files()?.last() {
            self.end = read_last_line(&mut File::open(before)?)?.1;
        }
        Ok(())
    }

    /// Returns the rotated files, oldest first.
    fn rotated_files(&self) -> io::Result<Vec<PathBuf>> {
        let prefix = format!("{}-", self.stem());
        let suffix = self.suffix();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory(self.path()))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let middle =
                name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(&suffix)).unwrap_or_default();
            // Files of archived records, which are never removed here, have shorter numbers.
            let (first, number) = middle.split_once('-').unwrap_or((middle, "0"));
            let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if first.len() == 20 && is_number(first) && is_number(number) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Returns an unused path beside the file.
    fn unused_path(&self, name: &dyn Fn(u32) -> String) -> io::Result<PathBuf> {
        for number in 0..=u32::MAX {
            let path = directory(self.path()).join(format!("{}{}", name(number), self.suffix()));
            if !path.try_exists()? {
                return Ok(path);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn stem(&self) -> String {
        self.path().file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn suffix(&self) -> String {
        self.path()
            .extension()
            .map(|extension| format!(".{}", extension.to_string_lossy()))
            .unwrap_or_default()
    }
}

/// Opens and locks the file. Returns `None` if another process has locked it.
fn open_locked(path: &Path) -> io::Result<Option<File>> {
    let file = private_file(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(Some(file))
}

/// Returns the length up to the end of the last complete line, and what that line is.
pub(crate) fn read_last_line(file: &mut File) -> io::Result<(u64, End)> {
    let total = file.metadata()?.len();
    let window = u64::try_from(2 * MAX_LINE_BYTES).unwrap_or(u64::MAX).min(total);
    let start = total - window;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(window).read_to_end(&mut bytes)?;
    let Some(newline) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        // A partial first line. Data longer than any line is foreign and is not truncated.
        return Ok(if start == 0 { (0, End::Empty) } else { (total, End::Foreign) });
    };
    let len = start + u64::try_from(newline + 1).unwrap_or(window);
    let line = &bytes[..newline];
    let line = line.iter().rposition(|byte| *byte == b'\n').map_or(line, |before| &line[before + 1..]);
    let record = std::str::from_utf8(line).ok().and_then(|line| parse_line(line).ok());
    Ok((len, record.map_or(End::Foreign, |record| End::At(record.head()))))
}

/// Returns the number of the first record.
fn read_first_line(file: &mut File) -> io::Result<Option<i64>> {
    file.seek(SeekFrom::Start(0))?;
    let mut line = Vec::new();
    let bound = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
    BufReader::new(file.take(bound)).read_until(b'\n', &mut line)?;
    let text = std::str::from_utf8(&line).unwrap_or_default();
    Ok(parse_line(text.trim_end_matches('\n')).ok().map(|record| record.seq))
}
