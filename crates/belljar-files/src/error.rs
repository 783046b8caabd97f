//! What fails with files and archives, in sentences for people.

use rustix::io::Errno;

use crate::path::show;

/// Why something cannot be done with a file or an archive: one line, without anything that a terminal acts on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FileError {
    kind: ErrorKind,
    message: String,
}

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request or the archive is not one that can be taken.
    Invalid,
    /// A symbolic link of an archive leads out of the directory, or may ([`UnpackOptions::links_may_lead_out`](crate::UnpackOptions)).
    OutwardLink,
    /// There is no such file or directory.
    NotFound,
    /// Something is there already.
    AlreadyExists,
    /// The caller may not do it.
    PermissionDenied,
    /// The disk, memory, descriptors or a limit of the request are used up.
    Exhausted,
    /// What is there does not fit the call.
    Unfit,
    /// What is there is not a regular file.
    NotRegular,
    /// Anything else that the kernel says.
    Internal,
}

impl FileError {
    /// Makes an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A request that cannot be taken.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Returns what kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the sentence.
    #[must_use]
    pub fn into_message(self) -> String {
        self.message
    }
}

/// Returns the error for a call that the kernel refused: `cannot ACTION PATH: reason`.
#[must_use]
pub fn failure(action: &str, path: &[u8], errno: Errno) -> FileError {
    use ErrorKind as Kind;
    let (kind, why) = match errno {
        Errno::NOENT => (Kind::NotFound, "no such file or directory"),
        Errno::EXIST => (Kind::AlreadyExists, "it exists already"),
        Errno::ACCESS | Errno::PERM => (Kind::PermissionDenied, "permission denied"),
        Errno::ROFS => (Kind::PermissionDenied, "the file system is read-only"),
        Errno::NOSPC | Errno::DQUOT => (Kind::Exhausted, "the disk is full"),
        Errno::FBIG => (Kind::Exhausted, "the file would become too large"),
        Errno::MFILE | Errno::NFILE => (Kind::Exhausted, "too many files are open"),
        Errno::NOMEM => (Kind::Exhausted, "no memory is left"),
        Errno::NOTDIR => (Kind::Unfit, "it, or a part of its path, is not a directory"),
        Errno::ISDIR => (Kind::NotRegular, "it is a directory"),
        Errno::LOOP => (Kind::Unfit, "it is a symbolic link, or its path has too many of them"),
        Errno::NXIO | Errno::NODEV => (Kind::NotRegular, "not a regular file"),
        Errno::NOTEMPTY => (Kind::Unfit, "the directory is not empty"),
        Errno::XDEV => (Kind::Unfit, "the two paths are on different file systems; copy it, then remove it"),
        Errno::BUSY => (Kind::Unfit, "it is in use or something is mounted there"),
        Errno::TXTBSY => (Kind::Unfit, "it is a program that runs"),
        Errno::AGAIN => (Kind::Unfit, "another program holds a lease on it"),
        Errno::NAMETOOLONG => (Kind::Invalid, "its path or its name is too long"),
        Errno::INVAL => (Kind::Invalid, "the kernel does not allow it"),
        other => {
            return FileError::new(Kind::Internal, format!("cannot {action} {}: {other}", show(path)));
        }
    };
    FileError::new(kind, format!("cannot {action} {}: {why}", show(path)))
}

/// Returns the error for a call that does not fit what is there.
#[must_use]
pub fn unfit(action: &str, path: &[u8], why: &str) -> FileError {
    FileError::new(ErrorKind::Unfit, format!("cannot {action} {}: {why}", show(path)))
}
