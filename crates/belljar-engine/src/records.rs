//! What a server records of its sandboxes, to take them over after a restart: a file for each, readable by its user only.

use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use belljar_model::SandboxId;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// File with the id of the server.
const SERVER_ID: &str = "id";

/// The records of a server, each of a sandbox.
#[derive(Debug)]
pub struct Records<R> {
    dir: PathBuf,
    kind: PhantomData<fn() -> R>,
}

impl<R> Clone for Records<R> {
    fn clone(&self) -> Self {
        Self { dir: self.dir.clone(), kind: PhantomData }
    }
}

impl<R: Serialize + DeserializeOwned> Records<R> {
    /// Opens the records in a directory, which is made if it is missing.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn open(dir: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned(), kind: PhantomData })
    }

    /// Returns the id of this server among those that use a daemon. It is random: other machines have servers with the same directory.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn server_id(&self, random: &str) -> io::Result<String> {
        let path = self.dir.join(SERVER_ID);
        match std::fs::read_to_string(&path) {
            Ok(id) if !id.is_empty() => Ok(id),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                self.write(&path, random.as_bytes())?;
                Ok(random.to_owned())
            }
        }
    }

    /// Returns the sandboxes that have records.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn all(&self) -> io::Result<Vec<SandboxId>> {
        let names =
            std::fs::read_dir(&self.dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Writes the record of a sandbox, in place of an earlier one.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn put(&self, id: &SandboxId, record: &R) -> io::Result<()> {
        self.write(&self.path(id), &serde_json::to_vec(record)?)
    }

    /// Replaces a file as a whole.
    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let part = path.with_extension("part");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(content)?;
        std::fs::rename(part, path)
    }

    /// Returns the record of a sandbox, if there is one that can be read.
    #[must_use]
    pub fn get(&self, id: &SandboxId) -> Option<R> {
        serde_json::from_slice(&std::fs::read(self.path(id)).ok()?).ok()
    }

    /// Removes the record of a sandbox, if there is one.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_their_writer() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().join("docker")).unwrap();
        assert_eq!(records.server_id("one").unwrap(), "one");
        let id = SandboxId::from_entropy([1; SandboxId::LEN]);
        records.put(&id, &"first".to_owned()).unwrap();
        records.put(&id, &"second".to_owned()).unwrap();
        let records = Records::<String>::open(&dir.path().join("docker")).unwrap();
        assert_eq!(records.server_id("two").unwrap(), "one");
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&id));
        assert_eq!(records.get(&id).as_deref(), Some("second"));
        records.remove(&id).unwrap();
        records.remove(&id).unwrap();
        assert!(records.get(&id).is_none());
    }
}
