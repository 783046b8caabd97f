//! The file with the key.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::audit::from_hex;
use crate::error::StoreError;
use crate::place::directory;
use crate::random::random_32;

/// The most that is read of a file that may be a key, in bytes.
const MAX_BYTES: u64 = 1024;

/// The file with the key that the store is sealed with: 64 hexadecimal digits and a newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    /// The key is in this file, or is put there (mode 0600) when a new store is sealed.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key, if there is one.
    pub(crate) fn read(&self) -> Result<Option<[u8; 32]>, StoreError> {
        // Whatever lies there, to open it takes no time.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed("open")(source)),
        };
        let metadata = file.metadata().map_err(self.failed("open"))?;
        if !metadata.is_file() {
            return Err(self.refused("it is no ordinary file; name another one"));
        }
        if metadata.mode() & 0o027 != 0 {
            return Err(self.refused("others may read it, or its group may write it; chmod 600 it"));
        }
        let mut text = String::new();
        let read = (&file).take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(self.failed("read"))?;
        let key = from_hex(text.trim_end_matches('\n'));
        let whole = "it does not hold 64 hexadecimal digits; restore it from where you keep it";
        key.map(Some).ok_or_else(|| self.refused(whole))
    }

    /// Makes a key and keeps it in the file. It is whole there and on the disk, or not at all. Of several who do so at once,
    /// one is first, and the others get its key. Says whether it was this one.
    pub(crate) fn make(&self) -> Result<([u8; 32], bool), StoreError> {
        let key = random_32()?;
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".new-{}", hex::encode(random_32()?)));
        let fresh = PathBuf::from(name);
        let written = write(&fresh, &key).map_err(self.failed("create"));
        // A link, as it replaces nothing.
        let linked = written.map(|()| std::fs::hard_link(&fresh, &self.path));
        let removed = std::fs::remove_file(&fresh);
        match linked? {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = self.read()?;
                let found =
                    found.ok_or_else(|| self.refused("somebody removed it meanwhile; start again"))?;
                return Ok((found, false));
            }
            Err(source) => return Err(self.failed("create")(source)),
        }
        removed.map_err(self.failed("create"))?;
        let synced = File::open(directory(&self.path)).and_then(|dir| dir.sync_all());
        synced.map_err(self.failed("sync"))?;
        Ok((key, true))
    }

    /// Removes what [`KeyFile::make`] has made and is of no use.
    pub(crate) fn take_back(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a key that opens nothing");
        }
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> StoreError + use<> {
        let path = self.path.clone();
        move |source| StoreError::File { action, path, source }
    }

    fn refused(&self, why: &'static str) -> StoreError {
        StoreError::KeyRefused { path: self.path.clone(), why }
    }
}

fn write(path: &Path, key: &[u8; 32]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{}\n", hex::encode(key)).as_bytes())?;
    file.sync_all()
}
