//! What a server records of its sandboxes, to take them over after a restart: a file for each, readable by its user only.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use belljar_model::{Isolation, SandboxId};
use serde::{Deserialize, Serialize};

/// File with the id of the server.
const SERVER_ID: &str = "id";

/// Record of one sandbox.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The secret of its guest.
    pub(crate) secret: String,
    pub(crate) isolation: Isolation,
    /// Its user inside.
    pub(crate) user: u32,
    /// When it ends.
    pub(crate) deadline: Option<SystemTime>,
}

impl Record {
    /// Returns the time until the deadline.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        Some(self.deadline?.duration_since(SystemTime::now()).unwrap_or_default())
    }
}

/// The records of a server.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    /// Opens the records in a directory.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Returns the id of this server among those that use a daemon. It is random: other machines have servers with the same directory.
    pub(crate) fn server_id(&self, random: &str) -> io::Result<String> {
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
    pub(crate) fn all(&self) -> io::Result<Vec<SandboxId>> {
        let names =
            std::fs::read_dir(&self.dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    pub(crate) fn put(&self, id: &SandboxId, record: &Record) -> io::Result<()> {
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

    pub(crate) fn get(&self, id: &SandboxId) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(self.path(id)).ok()?).ok()
    }

    pub(crate) fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_model::{EngineName, LimitsGrade};

    use super::*;

    #[test]
    fn records_outlive_their_writer() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(&dir.path().join("docker")).unwrap();
        assert_eq!(records.server_id("one").unwrap(), "one");
        let id = SandboxId::from_entropy([1; SandboxId::LEN]);
        let isolation = Isolation {
            engine: EngineName::known("docker"),
            grade: LimitsGrade::Cgroup,
            tree: "image".to_owned(),
            layers: Vec::new(),
        };
        let deadline = Some(SystemTime::now() + Duration::from_secs(60));
        records.put(&id, &Record { secret: "s".to_owned(), isolation, user: 7, deadline }).unwrap();
        let records = Records::open(&dir.path().join("docker")).unwrap();
        assert_eq!(records.server_id("two").unwrap(), "one");
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&id));
        let record = records.get(&id).unwrap();
        assert_eq!((record.secret.as_str(), record.user), ("s", 7));
        assert!(record.time_left().unwrap() > Duration::from_secs(50));
        records.remove(&id).unwrap();
        records.remove(&id).unwrap();
        assert!(records.get(&id).is_none());
    }
}
