//! Paths as they come in requests, and the sentences for what fails with them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use belljar_proto::{ConnectError, ErrorCode, ErrorDetail, NOT_REGULAR, v1};
use rustix::fs::Mode;
use rustix::io::Errno;

/// The longest path that a request may hold, in bytes: the kernel takes none that is longer.
const MAX_PATH_BYTES: usize = 4096;

/// How much of a path an error shows, in characters.
const SHOWN_CHARS: usize = 200;

/// The path that the request's `field` holds; relative ones start from `home`.
pub(crate) fn resolve(home: &Path, field: &str, bytes: &[u8]) -> Result<PathBuf, ConnectError> {
    let wrong = |why: String| Err(ConnectError::invalid_argument(format!("{field}: {why}")));
    if bytes.is_empty() {
        return wrong("it is empty; give a path".to_owned());
    }
    if bytes.len() > MAX_PATH_BYTES {
        return wrong(format!("it has {} bytes; at most {MAX_PATH_BYTES} are allowed", bytes.len()));
    }
    if bytes.contains(&0) {
        return wrong(format!("{} holds a NUL byte, which no path may", show(bytes)));
    }
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

/// The directory and the name in it. `None` when the path ends in no name (`/`, `.`, `..`).
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let path = path.get(..end)?;
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/".as_slice(), path.get(1..)?),
        Some(slash) => (path.get(..slash)?, path.get(slash + 1..)?),
        None => (b".".as_slice(), path),
    };
    (name != b"." && name != b"..").then_some((parent, name))
}

/// The same for the path of a request.
pub(super) fn split_named<'a>(field: &str, path: &'a Path) -> Result<(&'a [u8], &'a [u8]), ConnectError> {
    let bytes = path.as_os_str().as_bytes();
    split(bytes).ok_or_else(|| {
        ConnectError::invalid_argument(format!("{field}: {} does not end in a name", show(bytes)))
    })
}

/// A path as text for people: one line, of bounded length.
pub(crate) fn show(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let mut shown = String::new();
    for (index, char) in text.chars().enumerate() {
        if index == SHOWN_CHARS {
            shown.push('…');
            break;
        }
        if char.is_control() {
            shown.extend(char.escape_default());
        } else {
            shown.push(char);
        }
    }
    shown
}

/// The error for a call that the kernel refused.
pub(crate) fn failure(action: &str, path: &[u8], errno: Errno) -> ConnectError {
    use ErrorCode as Code;
    let (code, why) = match errno {
        Errno::NOENT => (Code::NotFound, "no such file or directory"),
        Errno::EXIST => (Code::AlreadyExists, "it exists already"),
        Errno::ACCESS | Errno::PERM => (Code::PermissionDenied, "permission denied"),
        Errno::ROFS => (Code::PermissionDenied, "the file system is read-only"),
        Errno::NOSPC | Errno::DQUOT => (Code::ResourceExhausted, "the disk is full"),
        Errno::FBIG => (Code::ResourceExhausted, "the file would become too large"),
        Errno::MFILE | Errno::NFILE => (Code::ResourceExhausted, "too many files are open"),
        Errno::NOMEM => (Code::ResourceExhausted, "no memory is left"),
        Errno::NOTDIR => (Code::FailedPrecondition, "it, or a part of its path, is not a directory"),
        Errno::ISDIR => (Code::FailedPrecondition, "it is a directory"),
        Errno::LOOP => (Code::FailedPrecondition, "it is a symbolic link, or its path has too many of them"),
        Errno::NXIO | Errno::NODEV => (Code::FailedPrecondition, "not a regular file"),
        Errno::NOTEMPTY => (Code::FailedPrecondition, "the directory is not empty"),
        Errno::XDEV => {
            (Code::FailedPrecondition, "the two paths are on different file systems; copy it, then remove it")
        }
        Errno::BUSY => (Code::FailedPrecondition, "it is in use or something is mounted there"),
        Errno::TXTBSY => (Code::FailedPrecondition, "it is a program that runs"),
        Errno::AGAIN => (Code::FailedPrecondition, "another program holds a lease on it"),
        Errno::NAMETOOLONG => (Code::InvalidArgument, "its path or its name is too long"),
        Errno::INVAL => (Code::InvalidArgument, "the kernel does not allow it"),
        other => {
            return ConnectError::internal(format!("cannot {action} {}: {other}", show(path)));
        }
    };
    let error = ConnectError::new(code, format!("cannot {action} {}: {why}", show(path)));
    match errno {
        Errno::ISDIR | Errno::NXIO | Errno::NODEV => not_regular(error),
        _ => error,
    }
}

/// Says so in a way that does not hang on the words.
pub(super) fn not_regular(error: ConnectError) -> ConnectError {
    error.with_detail(ErrorDetail::from_message(NOT_REGULAR, &v1::NotRegular::default()))
}

/// The error for a call that does not fit what is there.
pub(super) fn unfit(action: &str, path: &[u8], why: &str) -> ConnectError {
    ConnectError::failed_precondition(format!("cannot {action} {}: {why}", show(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_checked_and_start_from_home() {
        let home = Path::new("/home/user");
        let long = vec![b'a'; MAX_PATH_BYTES + 1];
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

    #[test]
    fn paths_split_into_directory_and_name() {
        type Parts = Option<(&'static [u8], &'static [u8])>;
        let cases: [(&[u8], Parts); 8] = [
            (b"/a/b", Some((b"/a", b"b"))),
            (b"/a//b//", Some((b"/a/", b"b"))),
            (b"/a", Some((b"/", b"a"))),
            (b"a", Some((b".", b"a"))),
            (b"/", None),
            (b"", None),
            (b"/a/..", None),
            (b"/a/./", None),
        ];
        for (input, expected) in cases {
            assert_eq!(split(input), expected, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn paths_are_shown_on_one_short_line() {
        assert_eq!(show(b"a\nb"), "a\\nb");
        assert_eq!(show("ü".as_bytes()), "ü");
        assert_eq!(show(&vec![b'a'; 4000]).chars().count(), SHOWN_CHARS + 1);
    }
}
