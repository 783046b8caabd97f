//! Locations of the service's files.

use std::ffi::OsString;
use std::path::PathBuf;

/// The system's configuration.
const SYSTEM_FILE: &str = "/etc/belljar/belljar.toml";

/// The home of the system's own service.
const SYSTEM_HOME: &str = "/var/lib/belljar";

/// Returns the service's home: `$BELLJAR_HOME`; else `/var/lib/belljar` for root, `$XDG_DATA_HOME/belljar` or
/// `~/.local/share/belljar` for others. Returns `None` if no variable names it. `$BELLJAR_HOME` may be relative; relative
/// paths in the other variables are ignored.
pub fn home_dir(variable: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Option<PathBuf> {
    let path = |name| variable(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let absolute = |name| path(name).filter(|path| path.is_absolute());
    if let Some(home) = path("BELLJAR_HOME") {
        return Some(home);
    }
    if is_root {
        return Some(PathBuf::from(SYSTEM_HOME));
    }
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")))?;
    Some(data.join("belljar"))
}

/// Returns the candidates for the file if no flag and no variable names one; the first existing one is used.
#[must_use]
pub fn config_candidates(home: &std::path::Path) -> [PathBuf; 2] {
    [home.join("belljar.toml"), PathBuf::from(SYSTEM_FILE)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_resolved() {
        type Case<'a> = (&'a [(&'a str, &'a str)], bool, Option<&'a str>);
        let cases: [Case<'_>; 9] = [
            (&[("BELLJAR_HOME", "jar"), ("HOME", "/h")], false, Some("jar")),
            (&[("BELLJAR_HOME", "/srv/jar"), ("HOME", "/h")], true, Some("/srv/jar")),
            (&[("BELLJAR_HOME", "/srv/jar"), ("HOME", "/h")], false, Some("/srv/jar")),
            (&[("HOME", "/h")], true, Some("/var/lib/belljar")),
            (&[("HOME", "/h")], false, Some("/h/.local/share/belljar")),
            (&[("HOME", "/h"), ("XDG_DATA_HOME", "/d")], false, Some("/d/belljar")),
            (&[("HOME", "/h"), ("XDG_DATA_HOME", "d")], false, Some("/h/.local/share/belljar")),
            (&[("HOME", "")], false, None),
            (&[], false, None),
        ];
        for (variables, is_root, expected) in cases {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
            };
            assert_eq!(home_dir(variable, is_root), expected.map(PathBuf::from), "{variables:?}");
        }
    }
}
