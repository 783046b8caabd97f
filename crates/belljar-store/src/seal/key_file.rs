//! Key file of a sealed store.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::audit::from_hex;
use crate::error::StoreError;
use crate::files::directory;
use crate::random::random_32;

/// Maximum number of bytes read of a key file.
const MAX_BYTES: u64 = 1024;

/// File with the key that seals the store: 64 hexadecimal digits and a newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    /// Refers to the key at this path, where it is created (mode 0600) when a new store is sealed.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the key, if there is one.
    pub(crate) fn read(&self) -> Result<Option<[u8; 32]>, StoreError> {
        // Non-blocking, so that opening does not hang whatever kind of file it is.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(self.failed("open")(source)),
        };
        let metadata = file.metadata().map_err(self.failed("open"))?;
        if !metadata.is_file() {
            return Err(self.refused("not a regular file; name another one"));
        }
        if metadata.mode() & 0o027 != 0 {
            return Err(self.refused("readable by others or writable by its group; chmod 600 it"));
        }
        let mut text = String::new();
        let read = (&file).take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(self.failed("read"))?;
        let key = from_hex(text.trim_end_matches('\n'));
        let invalid = "it does not contain 64 hexadecimal digits; restore it from your copy";
        key.map(Some).ok_or_else(|| self.refused(invalid))
    }

    /// Creates a key and stores it in the file, atomically and synced to disk. Of several concurrent callers one creates it,
    /// and the others get its key. Returns the key and whether this call created it.
    pub(crate) fn create(&self) -> Result<([u8; 32], bool), StoreError> {
        let key = random_32()?;
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".new-{}", hex::encode(random_32()?)));
        let fresh = PathBuf::from(name);
        let written = write(&fresh, &key).map_err(self.failed("create"));
        // A hard link, as it does not replace an existing file.
        let linked = written.map(|()| std::fs::hard_link(&fresh, &self.path));
        let removed = std::fs::remove_file(&fresh);
        match linked? {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = self.read()?;
                let found = found.ok_or_else(|| self.refused("it was removed meanwhile; start again"))?;
                return Ok((found, false));
            }
            Err(source) => return Err(self.failed("create")(source)),
        }
        removed.map_err(self.failed("create"))?;
        let synced = File::open(directory(&self.path)).and_then(|dir| dir.sync_all());
        synced.map_err(self.failed("sync"))?;
        Ok((key, true))
    }

    /// Removes a key that [`KeyFile::create`] created and that is of no use.
    pub(crate) fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a key that was not used");
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
