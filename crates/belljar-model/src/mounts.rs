//! Mounts of host directories in a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::error::ModelError;

/// Maximum length in bytes of a path that the kernel accepts, without its final NUL.
const MAX_PATH_BYTES: usize = 4095;

/// Paths that a sandbox needs for itself: nothing may be mounted on or inside of them.
const PROTECTED_TARGETS: [&str; 11] =
    ["/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

const MOUNT_FORM: &str = "SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw, such as /data:/data:ro";

/// Access mode of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub enum MountMode {
    /// Read-only, the default.
    #[default]
    #[serde(rename = "ro")]
    ReadOnly,
    /// Readable and writable.
    #[serde(rename = "rw")]
    ReadWrite,
}

impl MountMode {
    /// Returns the mode as written in a mount: `ro` or `rw`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        }
    }
}

impl fmt::Display for MountMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Mount of a host path in a sandbox.
///
/// Parsed from `SOURCE:TARGET[:ro|rw]`. Paths that contain a colon can only be passed to [`Mount::new`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mount {
    /// Path on the host: absolute, without `..`.
    pub source: PathBuf,
    /// Path in the sandbox: absolute, without `..`.
    pub target: PathBuf,
    /// Access mode.
    pub mode: MountMode,
}

impl Mount {
    /// Creates a mount. Redundant slashes and dots are removed from both paths.
    ///
    /// # Errors
    ///
    /// Fails if a path is not absolute, is `/`, is too long, or contains `..` or NUL; if the target is one that the sandbox
    /// needs for itself, such as `/proc` or `/usr/lib`.
    pub fn new(
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
        mode: MountMode,
    ) -> Result<Self, ModelError> {
        let source = normalise("mount source", source.as_ref())?;
        let target = check_target("mount target", target.as_ref())?;
        Ok(Self { source, target, mode })
    }
}

impl FromStr for Mount {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let mut parts = text.split(':');
        let (source, target, mode, rest) = (parts.next(), parts.next(), parts.next(), parts.next());
        let mode = match (mode, rest) {
            (None | Some("ro"), None) => Some(MountMode::ReadOnly),
            (Some("rw"), None) => Some(MountMode::ReadWrite),
            _ => None,
        };
        match (source, target, mode) {
            (Some(source), Some(target), Some(mode)) => Self::new(source, target, mode),
            _ => Err(ModelError::not_allowed("mount", text, MOUNT_FORM)),
        }
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.source.display(), self.target.display(), self.mode)
    }
}

/// Returns a path at which something may be mounted, without needless slashes and dots.
///
/// # Errors
/// Fails if the path is not absolute, contains `..`, or is protected.
pub(crate) fn check_target(field: &'static str, path: &Path) -> Result<PathBuf, ModelError> {
    let target = normalise(field, path)?;
    if PROTECTED_TARGETS.iter().any(|protected| target.starts_with(protected)) {
        return Err(ModelError::not_allowed(
            field,
            target.to_string_lossy(),
            format!("a path outside of {}", PROTECTED_TARGETS.join(", ")),
        ));
    }
    Ok(target)
}

/// Checks that no mount replaces or hides another.
///
/// A mount inside of another is fine if the outer one comes first.
///
/// # Errors
///
/// Fails if two mounts have the same target, or if one would hide an earlier one.
pub fn check_targets(mounts: &[Mount]) -> Result<(), ModelError> {
    // Paths are ordered by components, so a path is directly followed by those inside of it. Comparing all pairs would take
    // minutes for the maximum number of mounts.
    let mut earlier: BTreeMap<&Path, &Mount> = BTreeMap::new();
    for later in mounts {
        let next = earlier.range::<&Path, _>(later.target.as_path()..).next().map(|(_, mount)| *mount);
        match next {
            Some(same) if same.target == later.target => {
                return Err(ModelError::SameTarget {
                    first: same.source.clone(),
                    second: later.source.clone(),
                    target: later.target.clone(),
                });
            }
            Some(inner) if inner.target.starts_with(&later.target) => {
                return Err(ModelError::HiddenTarget {
                    outer: later.target.clone(),
                    inner: inner.target.clone(),
                });
            }
            _ => {}
        }
        earlier.insert(&later.target, later);
    }
    Ok(())
}

/// Validates a path of a mount and removes redundant slashes and dots.
pub(crate) fn normalise(field: &'static str, path: &Path) -> Result<PathBuf, ModelError> {
    let refuse = |allowed: &str| Err(ModelError::not_allowed(field, path.to_string_lossy(), allowed));
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.first() == Some(&b'~') {
        return refuse("the whole path, which begins with /; ~ is not expanded here");
    }
    if !path.is_absolute() {
        return refuse("an absolute path, which begins with /");
    }
    if bytes.contains(&0) {
        return refuse("a path without a NUL in it");
    }
    if bytes.len() > MAX_PATH_BYTES {
        return refuse("a path of at most 4095 bytes");
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return refuse("a path without .. in it");
    }
    if path.parent().is_none() {
        return refuse("a directory or a file below /, not / itself");
    }
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTECTED: &str = "/proc, /sys, /dev, /etc, /usr, /bin, /sbin, /lib, /lib32, /lib64, /libx32";

    #[test]
    fn mounts_are_parsed() {
        let cases = [
            ("/data:/data", "/data:/data:ro"),
            ("/data:/in:ro", "/data:/in:ro"),
            ("/data:/out:rw", "/data:/out:rw"),
            ("//data/./a/:/in//b/", "/data/a:/in/b:ro"),
            ("/usr/share/dict:/words", "/usr/share/dict:/words:ro"),
            ("/a b:/ü", "/a b:/ü:ro"),
            ("/a:/etcetera", "/a:/etcetera:ro"),
            ("/a/..b:/c..", "/a/..b:/c..:ro"),
        ];
        for (text, expected) in cases {
            let mount: Mount = text.parse().unwrap();
            assert_eq!(mount.to_string(), expected);
            assert_eq!(mount.to_string().parse::<Mount>().unwrap(), mount);
        }
    }

    #[test]
    fn invalid_mounts_are_refused() {
        let form = format!("give {MOUNT_FORM}");
        let outside = format!("give a path outside of {PROTECTED}");
        let cases = [
            ("", "mount: \"\"", form.as_str()),
            ("/data", "mount: \"/data\"", &form),
            ("/data:/data:rx", "mount: \"/data:/data:rx\"", &form),
            ("/data:/data:ro:z", "mount: \"/data:/data:ro:z\"", &form),
            ("data:/data", "mount source: \"data\"", "give an absolute path, which begins with /"),
            (":/data", "mount source: \"\"", "give an absolute path, which begins with /"),
            ("/data:data", "mount target: \"data\"", "give an absolute path, which begins with /"),
            ("/data:", "mount target: \"\"", "give an absolute path, which begins with /"),
            (
                "~/.ssh:/keys",
                "mount source: \"~/.ssh\"",
                "give the whole path, which begins with /; ~ is not expanded here",
            ),
            ("/:/host", "mount source: \"/\"", "give a directory or a file below /, not / itself"),
            ("/./:/host", "mount source: \"/./\"", "give a directory or a file below /, not / itself"),
            ("/data:/", "mount target: \"/\"", "give a directory or a file below /, not / itself"),
            ("/data/../etc:/d", "mount source: \"/data/../etc\"", "give a path without .. in it"),
            ("/data:/d/..", "mount target: \"/d/..\"", "give a path without .. in it"),
            ("/da\0ta:/d", "mount source: \"/da\\0ta\"", "give a path without a NUL in it"),
            ("/data:/proc", "mount target: \"/proc\"", &outside),
            ("/data:/usr//lib/x", "mount target: \"/usr/lib/x\"", &outside),
            ("/data:/etc/./passwd", "mount target: \"/etc/passwd\"", &outside),
            ("/data:/lib64:rw", "mount target: \"/lib64\"", &outside),
        ];
        for (text, field_and_value, allowed) in cases {
            let expected = format!("{field_and_value} is not allowed; {allowed}");
            assert_eq!(text.parse::<Mount>().unwrap_err().to_string(), expected);
        }
        let long = format!("/{}:/d", "a".repeat(MAX_PATH_BYTES));
        assert!(
            long.parse::<Mount>().unwrap_err().to_string().ends_with("give a path of at most 4095 bytes")
        );
    }

    #[test]
    fn conflicting_targets_are_refused() {
        let hidden = "mounts: \"/a\" would hide \"/a/b\", which comes before it; list the outer path first";
        let same = "mounts: \"/x\" and \"/y\" are both mounted on \"/a\"; give each a path of its own";
        let cases: [(&[&str], Option<&str>); 6] = [
            (&[], None),
            (&["/x:/a", "/x:/b"], None),
            (&["/x:/a", "/y:/a/b"], None),
            (&["/x:/ab", "/y:/a"], None),
            (&["/x:/a", "/y:/a/"], Some(same)),
            (&["/x:/a/b", "/z:/c", "/y:/a"], Some(hidden)),
        ];
        for (texts, expected) in cases {
            let mounts: Vec<Mount> = texts.iter().map(|text| text.parse().unwrap()).collect();
            let error = check_targets(&mounts).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected, "{texts:?}");
        }
    }

    #[test]
    fn checking_many_mounts_is_fast() {
        let mount = |number| Mount::new("/s", format!("/t/{number}"), MountMode::ReadOnly).unwrap();
        let mut mounts: Vec<Mount> = (0..100_000).map(mount).collect();
        let begin = std::time::Instant::now();
        check_targets(&mounts).unwrap();
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
        mounts.push(Mount::new("/s", "/t", MountMode::ReadOnly).unwrap());
        assert!(check_targets(&mounts).is_err());
    }
}
