//! Files.

use std::fmt;

use belljar_engine::v1;
use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use utoipa::PartialSchema;
use utoipa::ToSchema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::{time, to_text};

/// Permission bits, written in octal such as `0644`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u32);

impl Mode {
    fn parse(text: &str) -> Option<Self> {
        let octal = (1..=5).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| octal && *mode <= 0o7777)?;
        Some(Self(mode))
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refused =
            || D::Error::custom(format_args!("{text:?} is not allowed; give a mode in octal, such as 0644"));
        Self::parse(&text).ok_or_else(refused)
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04o}", self.0)
    }
}

impl PartialSchema for Mode {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^[0-7]{1,5}$"))
            .description(Some("Permission bits in octal."))
            .examples([serde_json::json!("0644")]);
        RefOr::T(Schema::Object(text.build()))
    }
}

impl ToSchema for Mode {}

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

impl From<v1::FileKind> for FileKind {
    fn from(kind: v1::FileKind) -> Self {
        match kind {
            v1::FileKind::FILE_KIND_UNSPECIFIED | v1::FileKind::FILE_KIND_FILE => Self::File,
            v1::FileKind::FILE_KIND_DIRECTORY => Self::Directory,
            v1::FileKind::FILE_KIND_SYMLINK => Self::Symlink,
            v1::FileKind::FILE_KIND_FIFO => Self::Fifo,
            v1::FileKind::FILE_KIND_SOCKET => Self::Socket,
            v1::FileKind::FILE_KIND_DEVICE => Self::Device,
        }
    }
}

/// A file, directory or other entry.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileEntry {
    /// As requested, or relative to the listed directory.
    #[schema(example = "out/data.csv")]
    path: String,
    /// The path in base64, when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    /// Its type.
    kind: FileKind,
    /// Its length.
    bytes: u64,
    /// Permission bits in octal.
    mode: Mode,
    /// Time of the last modification.
    #[schema(format = DateTime)]
    modified_at: String,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
}

impl From<v1::Entry> for FileEntry {
    fn from(entry: v1::Entry) -> Self {
        let (path, path_base64) = to_text(&entry.path);
        let kind = FileKind::from(entry.kind.as_known().unwrap_or_default());
        let symlink_target = (kind == FileKind::Symlink).then(|| to_text(&entry.symlink_target).0);
        Self {
            path,
            path_base64,
            kind,
            bytes: entry.size,
            mode: Mode(entry.mode & 0o7777),
            modified_at: time(modified_time(&entry)),
            symlink_target,
        }
    }
}

/// Returns the time of the last modification. An invalid time, which the guest may send, becomes the epoch.
pub(crate) fn modified_time(entry: &v1::Entry) -> Timestamp {
    Timestamp::from_nanosecond(entry.modified_ns.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_parsed() {
        let cases = [
            ("0644", Some(0o644)),
            ("755", Some(0o755)),
            ("07777", Some(0o7777)),
            ("17777", None),
            ("", None),
            ("8", None),
            ("+644", None),
            ("0o644", None),
            ("u+x", None),
            ("000000644", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Mode::parse(text).map(|mode| mode.0), expected, "{text:?}");
        }
        assert_eq!(Mode(0o644).to_string(), "0644");
        assert_eq!(Mode(0o4755).to_string(), "4755");
    }

    #[test]
    fn names_of_arbitrary_bytes_round_trip() {
        let entry = v1::Entry { path: bytes::Bytes::from_static(b"a\xff"), ..Default::default() };
        let json = serde_json::to_value(FileEntry::from(entry)).unwrap();
        assert_eq!((json["path"].as_str(), json["path_base64"].as_str()), (Some("a\u{fffd}"), Some("Yf8=")));
        assert_eq!(json["modified_at"], "1970-01-01T00:00:00.000000Z");
    }
}
