//! The cells that were typed, in a file of the user: one JSON text a line, the latest last.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::input::kind_name;

/// Maximum size of the file in bytes. A longer one was not written by this program, and is not used.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Maximum length of a cell that is kept, in bytes.
const MAX_CELL_BYTES: usize = 16 << 10;

/// Maximum number of cells that are read.
const MAX_CELLS: usize = 1000;

/// Rights of the file: the user's own.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Reason why a history file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum HistoryError {
    /// The file cannot be opened, read or written.
    #[error("history: cannot use {path:?}")]
    Use { path: PathBuf, source: io::Error },
    /// The path is something else.
    #[error("history: {path:?} is {kind}, and is not used")]
    NotAFile { path: PathBuf, kind: &'static str },
    /// The file belongs to somebody else.
    #[error("history: {path:?} belongs to another user, and is not used")]
    OtherUser { path: PathBuf },
    /// The file is too long.
    #[error(
        "history: {path:?} has more than {MAX_FILE_BYTES} bytes, and is not used; remove it to begin anew"
    )]
    TooLong { path: PathBuf },
}

/// The history of this user.
#[derive(Debug, Default)]
pub(super) struct History {
    cells: Vec<String>,
    file: Option<(PathBuf, File)>,
}

/// Returns the path of the history: in `BELLJAR_HOME`, else in the directory for the state of programs. `None` without a home.
pub(super) fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = || match set("XDG_STATE_HOME").filter(|path| path.is_absolute()) {
        Some(dir) => Some(dir),
        None => set("HOME").map(|home| home.join(".local/state")),
    };
    let dir = set("BELLJAR_HOME").or_else(|| state().map(|dir| dir.join("belljar")))?;
    Some(dir.join("code-history"))
}

impl History {
    /// Opens the file, and creates it if it does not exist. No link is followed.
    pub(super) fn open(path: &Path) -> Result<Self, HistoryError> {
        let failed = |source| HistoryError::Use { path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        }
        let flags = OFlags::RDWR
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, MODE).map_err(|errno| match errno {
            rustix::io::Errno::LOOP => {
                HistoryError::NotAFile { path: path.to_owned(), kind: "a symbolic link" }
            }
            errno => failed(errno.into()),
        });
        let mut file = File::from(opened?);
        let metadata = file.metadata().map_err(failed)?;
        if let Some(kind) = kind_name(&metadata) {
            return Err(HistoryError::NotAFile { path: path.to_owned(), kind });
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(HistoryError::OtherUser { path: path.to_owned() });
        }
        let mut content = Vec::new();
        (&mut file).take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut content).map_err(failed)?;
        if content.len() > MAX_FILE_BYTES {
            return Err(HistoryError::TooLong { path: path.to_owned() });
        }
        rustix::fs::fchmod(&file, MODE).map_err(|errno| failed(errno.into()))?;
        // A line that another program has damaged is skipped.
        let lines = content.split(|byte| *byte == b'\n');
        let mut cells: Vec<String> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        cells.drain(..cells.len().saturating_sub(MAX_CELLS));
        Ok(Self { cells, file: Some((path.to_owned(), file)) })
    }

    /// The cells, the latest last.
    pub(super) fn cells(&self) -> &[String] {
        &self.cells
    }

    /// Adds a cell, unless it repeats the last one, is very long or begins with a space.
    pub(super) fn add(&mut self, cell: &str) -> Result<(), HistoryError> {
        let is_repeated = self.cells.last().is_some_and(|last| last == cell);
        if is_repeated || cell.len() > MAX_CELL_BYTES || cell.starts_with(' ') {
            return Ok(());
        }
        self.cells.push(cell.to_owned());
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        write(file, &self.cells)
            .map_err(|source| HistoryError::Use { path: path.clone(), source })
            .inspect_err(|_| self.file = None)
    }
}

/// Appends the last cell. A file that would get too long is replaced by the latest half of what it may have.
fn write(file: &mut File, cells: &[String]) -> io::Result<()> {
    let line = |cell: &String| serde_json::to_string(cell).map(|text| text + "\n");
    let last = cells.last().map(line).transpose()?.unwrap_or_default();
    let has = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if has.saturating_add(last.len()) <= MAX_FILE_BYTES {
        return file.write_all(last.as_bytes());
    }
    let (mut kept, mut bytes) = (Vec::new(), 0);
    for cell in cells.iter().rev() {
        let text = line(cell)?;
        bytes += text.len();
        if bytes > MAX_FILE_BYTES / 2 {
            break;
        }
        kept.push(text);
    }
    kept.reverse();
    file.set_len(0)?;
    file.write_all(kept.concat().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn path_prefers_the_home() {
        let find = |pairs: &[(&str, &str)]| {
            let variable =
                |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            path(variable).map(|path| path.display().to_string())
        };
        let home = ("HOME", "/home/a");
        assert_eq!(find(&[home]).as_deref(), Some("/home/a/.local/state/belljar/code-history"));
        assert_eq!(find(&[home, ("XDG_STATE_HOME", "/s")]).as_deref(), Some("/s/belljar/code-history"));
        assert_eq!(
            find(&[home, ("XDG_STATE_HOME", "s")]).as_deref(),
            Some("/home/a/.local/state/belljar/code-history")
        );
        assert_eq!(find(&[home, ("BELLJAR_HOME", "/b")]).as_deref(), Some("/b/code-history"));
        assert_eq!(find(&[("BELLJAR_HOME", "")]), None);
    }

    #[test]
    fn cells_are_kept_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/code-history");
        let mut history = History::open(&path).unwrap();
        for cell in ["x = 1", "def f():\n    return 'ü'\n", " secret", "x", "x"] {
            history.add(cell).unwrap();
        }
        history.add(&"x".repeat(MAX_CELL_BYTES + 1)).unwrap();
        let kept = ["x = 1", "def f():\n    return 'ü'\n", "x"];
        assert_eq!(history.cells(), kept);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(History::open(&path).unwrap().cells(), kept);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    }

    #[test]
    fn file_stays_within_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("code-history");
        let mut history = History::open(&path).unwrap();
        for number in 0..100 {
            history.add(&format!("{number}{}", "x".repeat(15 << 10))).unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() <= MAX_FILE_BYTES as u64);
        }
        let cells = History::open(&path).unwrap().cells().to_vec();
        assert!(cells.len() > 30 && cells.last().unwrap().starts_with("99x"), "{}", cells.len());
    }

    #[test]
    fn other_files_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refused = |path: &Path| History::open(path).unwrap_err().to_string();
        std::fs::write(at("long"), vec![b'x'; MAX_FILE_BYTES + 1]).unwrap();
        assert!(refused(&at("long")).contains("more than 1048576 bytes"), "{}", refused(&at("long")));
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        assert!(refused(&at("link")).contains("a symbolic link"), "{}", refused(&at("link")));
        assert!(!at("target").exists());
        std::fs::create_dir(at("dir")).unwrap();
        refused(&at("dir"));
        std::fs::write(at("damaged"), "\"a\"\nnot JSON\n\"b\"\n\"c").unwrap();
        assert_eq!(History::open(&at("damaged")).unwrap().cells(), ["a", "b"]);
        if rustix::process::geteuid().is_root() {
            std::fs::write(at("other"), "").unwrap();
            std::os::unix::fs::chown(at("other"), Some(65534), None).unwrap();
            assert!(refused(&at("other")).contains("another user"), "{}", refused(&at("other")));
        }
    }
}
