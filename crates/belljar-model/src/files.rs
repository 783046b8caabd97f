//! Files that an execution made, changed or removed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::encoding::Encoding;

/// The path of a file, which on Linux is any bytes but NUL.
///
/// In JSON it is `{"path","path_encoding"}`, part of what it stands in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    /// Makes a path of its bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The path's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same path for the host's file system.
    pub fn to_path_buf(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.0))
    }
}

impl From<&Path> for FilePath {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

/// Serde for a path in which any bytes may be.
pub(crate) mod as_bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        FilePath::from(path).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        FilePath::deserialize(deserializer).map(|path| path.to_path_buf())
    }
}

/// Serde for a list of such paths.
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

/// One file that an execution made, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The file, relative to the directory that the code started in.
    #[serde(flatten)]
    pub path: FilePath,
    /// What happened to it.
    pub kind: ChangeKind,
    /// Its size afterwards, in bytes; 0 when it is gone.
    pub size: u64,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was not there before.
    Created,
    /// It was there before, with another content.
    Changed,
    /// It is not there any more.
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
    fn paths_are_kept_to_the_byte() {
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
