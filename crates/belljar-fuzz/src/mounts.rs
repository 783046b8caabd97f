//! What may be mounted.

use std::path::{Component, Path, PathBuf};

use belljar_model::{Mount, MountMode, MountPolicy};

use crate::data::{check_words, text};
use crate::values::is_plain;

/// Lines: `r`, `w` or `f` and a path are rules, `h` and a path is a home; the last line is asked for, as `SOURCE[:rw]`.
pub(crate) fn mount_policy(data: &[u8]) {
    let text = text(data);
    let mut lines: Vec<&str> = text.lines().collect();
    let asked = lines.pop().unwrap_or_default();
    let (source, mode) = match asked.strip_suffix(":rw") {
        Some(source) => (source, MountMode::ReadWrite),
        None => (asked, MountMode::ReadOnly),
    };
    let homes: Vec<PathBuf> =
        lines.iter().filter_map(|line| line.strip_prefix('h')).map(PathBuf::from).collect();
    let mut policy = MountPolicy::new(&homes);
    let (mut readable, mut writable): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for line in &lines {
        let Some((kind, path)) = line.split_at_checked(1) else { continue };
        let path = PathBuf::from(path);
        let taken = match kind {
            "r" => policy.allow_read(path.clone()),
            "w" => policy.allow_write(path.clone()),
            "f" => policy.forbid(path.clone()),
            _ => continue,
        };
        match taken {
            Ok(()) => {
                assert!(is_plain(&plain(&path)), "{path:?} is a rule");
                match kind {
                    "r" => readable.push(plain(&path)),
                    "w" => writable.push(plain(&path)),
                    _ => {}
                }
            }
            Err(error) => check_words(&error.to_string()),
        }
    }
    for path in policy.forbidden() {
        assert!(path.is_absolute() && path.parent().is_some(), "{path:?}");
    }
    let Ok(asked) = Mount::new(source, "/in", mode) else { return };
    let canonical = asked.source.clone();
    match policy.check(&asked, &canonical) {
        Ok(()) => {
            // The rules, in their plainest form: by the parts of paths.
            assert!(is_plain(&canonical), "{canonical:?}");
            let holds = |rules: &[PathBuf]| rules.iter().any(|rule| starts_with(&canonical, rule));
            assert!(holds(&writable) || (mode == MountMode::ReadOnly && holds(&readable)), "{canonical:?}");
            for rule in policy.forbidden() {
                assert!(!starts_with(&canonical, rule) && !starts_with(rule, &canonical), "{rule:?}");
            }
        }
        Err(refusal) => check_words(&refusal.to_string()),
    }
}

fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Whether one path lies in the other, by their parts.
fn starts_with(path: &Path, rule: &Path) -> bool {
    let parts = |path: &Path| -> Vec<std::ffi::OsString> {
        path.components()
            .filter(|part| *part != Component::CurDir)
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    parts(path).starts_with(&parts(rule))
}
