//! Mount policies.

use std::path::{Component, Path, PathBuf};

use belljar_model::{Mount, MountMode, MountPolicy};

use crate::data::{check_text, text};
use crate::values::is_plain;

/// Checks a policy. Lines of `r`, `w` or `f` and a path are rules, `h` and a path is a home; the last line is the requested
/// mount, as `SOURCE[:rw]`.
pub(crate) fn mount_policy(data: &[u8]) {
    let text = text(data);
    let mut lines: Vec<&str> = text.lines().collect();
    let request = lines.pop().unwrap_or_default();
    let (source, mode) = match request.strip_suffix(":rw") {
        Some(source) => (source, MountMode::ReadWrite),
        None => (request, MountMode::ReadOnly),
    };
    let homes: Vec<PathBuf> =
        lines.iter().filter_map(|line| line.strip_prefix('h')).map(PathBuf::from).collect();
    let mut policy = MountPolicy::new(&homes);
    let (mut readable, mut writable): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
    for line in &lines {
        let Some((kind, path)) = line.split_at_checked(1) else { continue };
        let path = PathBuf::from(path);
        let added = match kind {
            "r" => policy.allow_read(path.clone()),
            "w" => policy.allow_write(path.clone()),
            "f" => policy.forbid(path.clone()),
            _ => continue,
        };
        match added {
            Ok(()) => {
                assert!(is_plain(&normalize(&path)), "{path:?} is a rule");
                match kind {
                    "r" => readable.push(normalize(&path)),
                    "w" => writable.push(normalize(&path)),
                    _ => {}
                }
            }
            Err(error) => check_text(&error.to_string()),
        }
    }
    for path in policy.forbidden() {
        assert!(path.is_absolute() && path.parent().is_some(), "{path:?}");
    }
    let Ok(requested) = Mount::new(source, "/in", mode) else { return };
    let canonical = requested.source.clone();
    match policy.check(&requested, &canonical) {
        Ok(()) => {
            // The rules in their simplest form: by the components of paths.
            assert!(is_plain(&canonical), "{canonical:?}");
            let matches = |rules: &[PathBuf]| rules.iter().any(|rule| starts_with(&canonical, rule));
            assert!(
                matches(&writable) || (mode == MountMode::ReadOnly && matches(&readable)),
                "{canonical:?}"
            );
            for rule in policy.forbidden() {
                assert!(!starts_with(&canonical, rule) && !starts_with(rule, &canonical), "{rule:?}");
            }
        }
        Err(refusal) => check_text(&refusal.to_string()),
    }
}

fn normalize(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Reports whether `path` is in `rule`, by their components.
fn starts_with(path: &Path, rule: &Path) -> bool {
    let parts = |path: &Path| -> Vec<std::ffi::OsString> {
        path.components()
            .filter(|part| *part != Component::CurDir)
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    parts(path).starts_with(&parts(rule))
}
