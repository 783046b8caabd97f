//! Errors of operations on files and archives, as messages for users.

use rustix::io::Errno;

use crate::path::show;

/// A failed operation on a file or an archive: a message of one line, without control characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FileError {
    kind: ErrorKind,
    message: String,
}

/// Category of a [`FileError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request or the archive is invalid.
    Invalid,
    /// A symbolic link in an archive leads, or may lead, out of the directory
    /// ([`UnpackOptions::links_may_lead_out`](crate::UnpackOptions)).
    OutwardLink,
    /// There is no such file or directory.
    NotFound,
    /// A file or directory already exists.
    AlreadyExists,
    /// The caller lacks the permission.
    PermissionDenied,
    /// The disk, memory, descriptors or a limit of the request is exhausted.
    Exhausted,
    /// The existing file or directory does not permit the operation.
    FailedPrecondition,
    /// The existing file is not a regular file.
    NotRegular,
    /// Any other error of the kernel.
    Internal,
}

impl FileError {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Creates an error for an invalid request.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Returns the category.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the message.
    #[must_use]
    pub fn into_message(self) -> String {
        self.message
    }
}

/// Creates the error for a failed system call: `cannot ACTION PATH: reason`.
#[must_use]
pub fn failure(action: &str, path: &[u8], errno: Errno) -> FileError {
    use ErrorKind as Kind;
    let (kind, why) = match errno {
        Errno::NOENT => (Kind::NotFound, "no such file or directory"),
        Errno::EXIST => (Kind::AlreadyExists, "already exists"),
        Errno::ACCESS | Errno::PERM => (Kind::PermissionDenied, "permission denied"),
        Errno::ROFS => (Kind::PermissionDenied, "the file system is read-only"),
        Errno::NOSPC | Errno::DQUOT => (Kind::Exhausted, "the disk is full"),
        Errno::FBIG => (Kind::Exhausted, "the file would become too large"),
        Errno::MFILE | Errno::NFILE => (Kind::Exhausted, "too many files are open"),
        Errno::NOMEM => (Kind::Exhausted, "out of memory; files of a sandbox count against its limit memory"),
        Errno::NOTDIR => (Kind::FailedPrecondition, "the path or a part of it is not a directory"),
        Errno::ISDIR => (Kind::NotRegular, "is a directory"),
        Errno::LOOP => (Kind::FailedPrecondition, "is a symbolic link, or its path has too many of them"),
        Errno::NXIO | Errno::NODEV => (Kind::NotRegular, "not a regular file"),
        Errno::NOTEMPTY => (Kind::FailedPrecondition, "the directory is not empty"),
        Errno::XDEV => {
            (Kind::FailedPrecondition, "the two paths are on different file systems; copy, then remove")
        }
        Errno::BUSY => (Kind::FailedPrecondition, "in use, or a mount point"),
        Errno::TXTBSY => (Kind::FailedPrecondition, "the program is running"),
        Errno::AGAIN => (Kind::FailedPrecondition, "another program holds a lease on it"),
        Errno::NAMETOOLONG => (Kind::Invalid, "path or name too long"),
        Errno::INVAL => (Kind::Invalid, "invalid argument"),
        other => {
            return FileError::new(Kind::Internal, format!("cannot {action} {}: {other}", show(path)));
        }
    };
    FileError::new(kind, format!("cannot {action} {}: {why}", show(path)))
}

/// Creates the error for an operation that the existing file or directory does not permit.
#[must_use]
pub fn failed_precondition(action: &str, path: &[u8], why: &str) -> FileError {
    FileError::new(ErrorKind::FailedPrecondition, format!("cannot {action} {}: {why}", show(path)))
}
