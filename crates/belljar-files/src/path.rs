//! Paths as arbitrary bytes.

use crate::error::FileError;

/// Maximum length of a path in a request, in bytes: the kernel accepts no longer one (`PATH_MAX`).
const MAX_PATH_BYTES: usize = 4096;

/// Maximum length of a path in an error message, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// Checks the path in the request field `field`.
///
/// # Errors
/// Fails if the path is empty, too long, or contains a NUL byte.
pub fn check_path(field: &str, path: &[u8]) -> Result<(), FileError> {
    let wrong = |why: String| Err(FileError::invalid(format!("{field}: {why}")));
    if path.is_empty() {
        return wrong("it is empty; give a path".to_owned());
    }
    if path.len() > MAX_PATH_BYTES {
        return wrong(format!("it has {} bytes; at most {MAX_PATH_BYTES} are allowed", path.len()));
    }
    if path.contains(&0) {
        return wrong(format!("{} contains a NUL byte", show(path)));
    }
    Ok(())
}

/// Splits a path into the directory and the name in it; `None` if the path does not end in a name (`/`, `.`, `..`).
#[must_use]
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let path = path.get(..end)?;
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (b"/".as_slice(), path.get(1..)?),
        Some(slash) => (path.get(..slash)?, path.get(slash + 1..)?),
        None => (b".".as_slice(), path),
    };
    (name != b"." && name != b"..").then_some((parent, name))
}

/// Returns a path as printable text: one line, of bounded length.
#[must_use]
pub fn show(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    let mut shown = String::new();
    for (index, char) in text.chars().enumerate() {
        if index == MAX_SHOWN_CHARS {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_returns_directory_and_name() {
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
    fn show_escapes_and_truncates() {
        assert_eq!(show(b"a\nb"), "a\\nb");
        assert_eq!(show("ü".as_bytes()), "ü");
        assert_eq!(show(&vec![b'a'; 4000]).chars().count(), MAX_SHOWN_CHARS + 1);
    }
}
