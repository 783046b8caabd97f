//! Files created, changed or removed by an execution.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::encoding::Encoding;

/// Path of a file, which on Linux may be any bytes but NUL.
///
/// Its JSON form is `{"path","path_encoding"}`, flattened into the enclosing object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Creates a path from its bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the path for the host's file system.
    pub fn to_path_buf(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.0))
    }
}

impl From<&Path> for FilePath {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

/// Serde of a path with arbitrary bytes.
pub(crate) mod as_bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        FilePath::from(path).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        FilePath::deserialize(deserializer).map(|path| path.to_path_buf())
    }
}

/// Serde of a list of such paths.
pub(crate) mod all_as_bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| FilePath::from(path.as_path())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<FilePath>::deserialize(deserializer)?;
        Ok(paths.iter().map(FilePath::to_path_buf).collect())
    }
}

/// File created, changed or removed by an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Path relative to the directory that the code started in.
    #[serde(flatten)]
    pub path: FilePath,
    /// Kind of change.
    pub kind: ChangeKind,
    /// Size afterwards, in bytes; 0 if removed.
    pub size: u64,
}

/// Kind of change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The file did not exist before.
    Created,
    /// The file existed before, with another content.
    Changed,
    /// The file no longer exists.
    Removed,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    path: String,
    path_encoding: Encoding,
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (path_encoding, path) = Encoding::encode(&self.0);
        Wire { path, path_encoding }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let bytes = wire.path_encoding.decode(&wire.path);
        bytes.map(Self).ok_or_else(|| D::Error::custom("path is not valid base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_round_trip_to_the_byte() {
        let cases: [(&[u8], ChangeKind, &str); 3] = [
            (
                b"out/a b.csv",
                ChangeKind::Created,
                r#"{"path":"out/a b.csv","path_encoding":"utf-8","kind":"created","size":5}"#,
            ),
            (
                b"new\nline",
                ChangeKind::Changed,
                r#"{"path":"new\nline","path_encoding":"utf-8","kind":"changed","size":5}"#,
            ),
            (
                b"\xff\xfe",
                ChangeKind::Removed,
                r#"{"path":"//4=","path_encoding":"base64","kind":"removed","size":5}"#,
            ),
        ];
        for (path, kind, json) in cases {
            let change = FileChange { path: FilePath::new(path), kind, size: 5 };
            assert_eq!(serde_json::to_string(&change).unwrap(), json);
            assert_eq!(serde_json::from_str::<FileChange>(json).unwrap(), change);
        }
    }
}
