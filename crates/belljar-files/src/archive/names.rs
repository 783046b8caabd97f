//! Validation of names and link targets in archives.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use crate::error::{ErrorKind, FileError};

use super::invalid_archive;
use crate::path::show;
use crate::walk::MAX_PATH_BYTES;

/// Maximum number of components in a name.
const MAX_COMPONENTS: usize = 20_000;

/// Maximum length of a symbolic link's target, in bytes: the kernel accepts no longer one.
pub(super) const MAX_TARGET_BYTES: usize = 4095;

/// Returns `path` relative to `base`, without `.` components; empty for the base itself.
pub(super) fn relative_name(base: &Path, path: &[u8]) -> Result<Vec<u8>, FileError> {
    let given = Path::new(std::ffi::OsStr::from_bytes(path));
    let outside = || {
        FileError::invalid(format!(
            "paths: {} is not below {}",
            show(path),
            show(base.as_os_str().as_bytes())
        ))
    };
    let relative = if given.is_absolute() {
        // Ignores `.` and doubled slashes, because components are compared.
        given.strip_prefix(base).map_err(|_| outside())?
    } else {
        given
    };
    let mut parts: Vec<&[u8]> = Vec::new();
    for component in relative.components() {
        match component {
            Component::Normal(part) => parts.push(part.as_bytes()),
            Component::CurDir => {}
            _ => return Err(outside()),
        }
    }
    Ok(parts.join(b"/".as_slice()))
}

/// Returns the name of an entry as a path below the target directory: plain components between single slashes. Empty if
/// no component is left.
pub(super) fn entry_name(name: &[u8], strip: usize) -> Result<Vec<u8>, FileError> {
    if name.starts_with(b"/") {
        return Err(invalid_archive(format!("the name {} is absolute", show(name))));
    }
    if name.len() > MAX_PATH_BYTES {
        return Err(invalid_archive(format!("a name is longer than {MAX_PATH_BYTES} bytes")));
    }
    if name.contains(&0) {
        return Err(invalid_archive(format!("the name {} contains a NUL byte", show(name))));
    }
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                return Err(invalid_archive(format!("the name {} leads upwards with \"..\"", show(name))));
            }
            part => parts.push(part),
        }
    }
    if parts.len() > MAX_COMPONENTS {
        return Err(invalid_archive(format!("a name has more than {MAX_COMPONENTS} components")));
    }
    Ok(parts.get(strip..).unwrap_or_default().join(b"/".as_slice()))
}

/// Refuses the target of the symbolic link `name` if it leads out of the directory, or could through another link. So
/// `..` is only allowed at its beginning, where the directory it leads to is known.
pub(super) fn check_target(name: &[u8], target: &[u8], may_lead_out: bool) -> Result<(), FileError> {
    let refused =
        |why: &str| invalid_archive(format!("the symbolic link {} to {} {why}", show(name), show(target)));
    if target.is_empty() || target.contains(&0) || target.len() > MAX_TARGET_BYTES {
        return Err(refused("has an invalid target"));
    }
    if may_lead_out {
        return Ok(());
    }
    let outward = |why| Err(FileError::new(ErrorKind::OutwardLink, refused(why).into_message()));
    if target.starts_with(b"/") {
        return outward("is absolute");
    }
    let mut levels = name.iter().filter(|byte| **byte == b'/').count();
    let mut is_down = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if is_down => return outward("goes down and up again, which may lead out"),
            b".." if levels == 0 => return outward("leads out of the directory"),
            b".." => levels -= 1,
            _ => is_down = true,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized_or_refused() {
        let cases: [(&str, usize, Result<&str, &str>); 12] = [
            ("a/b", 0, Ok("a/b")),
            ("./a//b/", 0, Ok("a/b")),
            ("a/b/c", 1, Ok("b/c")),
            ("a", 1, Ok("")),
            ("a", 9, Ok("")),
            (".", 0, Ok("")),
            ("", 0, Ok("")),
            ("...", 0, Ok("...")),
            ("/a", 0, Err("absolute")),
            ("..", 0, Err("\"..\"")),
            ("a/../b", 0, Err("\"..\"")),
            ("x/../a", 2, Err("\"..\"")),
        ];
        for (name, strip, expected) in cases {
            match (entry_name(name.as_bytes(), strip), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected.as_bytes(), "{name}"),
                (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{name}"),
                (got, _) => panic!("{name}: {got:?}"),
            }
        }
    }

    #[test]
    fn link_targets_outside_the_directory_are_refused() {
        let inside =
            [("a", "b"), ("a", "b/c"), ("d/a", "../b"), ("d/e/a", "../../b"), ("a", "./b//c"), ("d/a", "..")];
        for (name, target) in inside {
            assert!(check_target(name.as_bytes(), target.as_bytes(), false).is_ok(), "{name} -> {target}");
        }
        let outside = [
            ("a", "/b"),
            ("a", ".."),
            ("a", "../a"),
            ("d/a", "../../b"),
            ("a", "b/../c"),
            ("a", ""),
            ("a", "x\0"),
        ];
        for (name, target) in outside {
            assert!(check_target(name.as_bytes(), target.as_bytes(), false).is_err(), "{name} -> {target}");
        }
        assert!(check_target(b"a", b"/usr/bin/python3", true).is_ok());
        assert!(check_target(b"a", b"", true).is_err());
    }

    #[test]
    fn paths_outside_the_base_are_refused() {
        let base = Path::new("/home/user");
        let name =
            |path: &str| relative_name(base, path.as_bytes()).map(|name| String::from_utf8(name).unwrap());
        assert_eq!(name("./a//b/").unwrap(), "a/b");
        assert_eq!(name("/home/user/a").unwrap(), "a");
        assert_eq!(name("/home/user/").unwrap(), "");
        assert_eq!(name(".").unwrap(), "");
        for path in ["/etc", "..", "a/../b", "/home/users", "/home/user/../x"] {
            assert!(name(path).is_err(), "{path}");
        }
    }
}
