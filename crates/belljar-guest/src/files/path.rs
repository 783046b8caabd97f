//! Paths in requests, and conversion of file errors to protocol errors.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_files::{ErrorKind, FileError, check_path, show, split};
use belljar_proto::{ConnectError, ErrorCode, ErrorDetail, NOT_REGULAR, v1};
use rustix::fs::Mode;
use rustix::io::Errno;

/// Resolves the path in the request field `field`; relative ones start from `home`.
pub(crate) fn resolve(home: &Path, field: &str, bytes: &[u8]) -> Result<PathBuf, ConnectError> {
    check_path(field, bytes).map_err(to_connect)?;
    Ok(home.join(OsStr::from_bytes(bytes)))
}

/// Validates permission bits in a request; 0 means `default`.
pub(crate) fn mode(bits: u32, default: u32) -> Result<Mode, ConnectError> {
    if bits > 0o7777 {
        let message = format!("mode: {bits:o} is not allowed; give permission bits up to 7777 (octal)");
        return Err(ConnectError::invalid_argument(message));
    }
    Ok(Mode::from_raw_mode(if bits == 0 { default } else { bits }))
}

/// Splits the path in a request into directory and name.
pub(super) fn split_named<'a>(field: &str, path: &'a Path) -> Result<(&'a [u8], &'a [u8]), ConnectError> {
    let bytes = path.as_os_str().as_bytes();
    split(bytes).ok_or_else(|| {
        ConnectError::invalid_argument(format!("{field}: {} does not end in a name", show(bytes)))
    })
}

/// Creates the error for a failed system call.
pub(crate) fn failure(action: &str, path: &[u8], errno: Errno) -> ConnectError {
    to_connect(belljar_files::failure(action, path, errno))
}

/// Creates the error for an operation that the existing file or directory does not permit.
pub(super) fn failed_precondition(action: &str, path: &[u8], why: &str) -> ConnectError {
    to_connect(belljar_files::failed_precondition(action, path, why))
}

/// Converts a file error to a protocol error.
pub(crate) fn to_connect(error: FileError) -> ConnectError {
    let code = match error.kind() {
        ErrorKind::Invalid | ErrorKind::OutwardLink => ErrorCode::InvalidArgument,
        ErrorKind::NotFound => ErrorCode::NotFound,
        ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
        ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
        ErrorKind::Exhausted => ErrorCode::ResourceExhausted,
        ErrorKind::FailedPrecondition => ErrorCode::FailedPrecondition,
        ErrorKind::NotRegular => return not_regular(error.into_message()),
        ErrorKind::Internal => ErrorCode::Internal,
    };
    ConnectError::new(code, error.into_message())
}

/// Creates an error with a detail that marks a file as not regular.
pub(super) fn not_regular(message: impl Into<String>) -> ConnectError {
    ConnectError::failed_precondition(message)
        .with_detail(ErrorDetail::from_message(NOT_REGULAR, &v1::NotRegular::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_validated_and_resolved_from_home() {
        let home = Path::new("/home/user");
        let long = vec![b'a'; 4097];
        let cases: [(&[u8], Result<&str, &str>); 6] = [
            (b"a/b", Ok("/home/user/a/b")),
            (b"/etc", Ok("/etc")),
            (b"..", Ok("/home/user/..")),
            (b"", Err("path: it is empty; give a path")),
            (b"a\0b", Err("path: a\\u{0}b contains a NUL byte")),
            (&long, Err("path: it has 4097 bytes; at most 4096 are allowed")),
        ];
        for (input, expected) in cases {
            match (resolve(home, "path", input), expected) {
                (Ok(path), Ok(expected)) => assert_eq!(path, Path::new(expected)),
                (Err(error), Err(expected)) => {
                    assert_eq!(error.code, ErrorCode::InvalidArgument);
                    assert_eq!(error.message.as_deref(), Some(expected));
                }
                (got, expected) => panic!("{got:?} is not {expected:?}"),
            }
        }
    }
}
