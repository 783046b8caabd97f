//! Paths as they come in requests, and errors of files as those of the protocol.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_files::{ErrorKind, FileError, check_path, show, split};
use belljar_proto::{ConnectError, ErrorCode, ErrorDetail, NOT_REGULAR, v1};
use rustix::fs::Mode;
use rustix::io::Errno;

/// The path that the request's `field` holds; relative ones start from `home`.
pub(crate) fn resolve(home: &Path, field: &str, bytes: &[u8]) -> Result<PathBuf, ConnectError> {
    check_path(field, bytes).map_err(to_connect)?;
    Ok(home.join(OsStr::from_bytes(bytes)))
}

/// Permission bits that a request gave, or `default` where it gave none.
pub(crate) fn mode(bits: u32, default: u32) -> Result<Mode, ConnectError> {
    if bits > 0o7777 {
        let message = format!("mode: {bits:o} is not allowed; give permission bits up to 7777 (octal)");
        return Err(ConnectError::invalid_argument(message));
    }
    Ok(Mode::from_raw_mode(if bits == 0 { default } else { bits }))
}

/// Splits the path of a request into the directory and the name in it.
pub(super) fn split_named<'a>(field: &str, path: &'a Path) -> Result<(&'a [u8], &'a [u8]), ConnectError> {
    let bytes = path.as_os_str().as_bytes();
    split(bytes).ok_or_else(|| {
        ConnectError::invalid_argument(format!("{field}: {} does not end in a name", show(bytes)))
    })
}

/// Returns the error for a call that the kernel refused.
pub(crate) fn failure(action: &str, path: &[u8], errno: Errno) -> ConnectError {
    to_connect(belljar_files::failure(action, path, errno))
}

/// Returns the error for a call that does not fit what is there.
pub(super) fn unfit(action: &str, path: &[u8], why: &str) -> ConnectError {
    to_connect(belljar_files::unfit(action, path, why))
}

/// Returns an error of files as one of the protocol.
pub(crate) fn to_connect(error: FileError) -> ConnectError {
    let code = match error.kind() {
        ErrorKind::Invalid | ErrorKind::OutwardLink => ErrorCode::InvalidArgument,
        ErrorKind::NotFound => ErrorCode::NotFound,
        ErrorKind::AlreadyExists => ErrorCode::AlreadyExists,
        ErrorKind::PermissionDenied => ErrorCode::PermissionDenied,
        ErrorKind::Exhausted => ErrorCode::ResourceExhausted,
        ErrorKind::Unfit => ErrorCode::FailedPrecondition,
        ErrorKind::NotRegular => return not_regular(error.into_message()),
        ErrorKind::Internal => ErrorCode::Internal,
    };
    ConnectError::new(code, error.into_message())
}

/// Returns an error that says by a detail that something is not a regular file.
pub(super) fn not_regular(message: impl Into<String>) -> ConnectError {
    ConnectError::failed_precondition(message)
        .with_detail(ErrorDetail::from_message(NOT_REGULAR, &v1::NotRegular::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_checked_and_start_from_home() {
        let home = Path::new("/home/user");
        let long = vec![b'a'; 4097];
        let cases: [(&[u8], Result<&str, &str>); 6] = [
            (b"a/b", Ok("/home/user/a/b")),
            (b"/etc", Ok("/etc")),
            (b"..", Ok("/home/user/..")),
            (b"", Err("path: it is empty; give a path")),
            (b"a\0b", Err("path: a\\u{0}b holds a NUL byte, which no path may")),
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
