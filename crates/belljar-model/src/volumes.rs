//! Volumes of a sandbox: files that outlive it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::id::SandboxId;
use crate::mounts::{Mount, MountMode, check_target, check_targets};
use crate::node::{Fields, Node};
use crate::text::serde_as_text;

/// The id of a volume, in the form of a sandbox's id. The two never collide.
pub type VolumeId = SandboxId;

/// Maximum number of volumes of one sandbox.
pub const MAX_VOLUMES: usize = 16;

/// Minimum size of a volume in bytes: 16 MiB, of which the file system takes a quarter.
pub const MIN_VOLUME_BYTES: u64 = 16 << 20;

/// Maximum size of a volume in bytes: 16 TiB.
pub const MAX_VOLUME_BYTES: u64 = 16 << 40;

/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 128;

const VOLUME_FORM: &str = "NAME:PATH, NAME:PATH:ro or NAME:PATH:rw, such as data:/mnt/data";

/// A volume's name: 1 to 128 of `a` to `z`, `A` to `Z`, `0` to `9`, `_` and `-`, and not of the form of an id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);

impl VolumeName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let fits = (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(letters);
        if !fits || text.parse::<VolumeId>().is_ok() {
            let allowed = "1 to 128 letters, digits, _ and -, not of the form of an id, such as data";
            return Err(ModelError::not_allowed("volume name", text, allowed));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_as_text!(VolumeName);

/// A volume for a sandbox as given in a file, a request or by flags, before validation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = VolumeMount))]
pub struct VolumeFile {
    /// The volume, by its name or id.
    #[cfg_attr(feature = "schema", schema(example = "data"))]
    pub name: String,
    /// Absolute path in the sandbox.
    #[cfg_attr(feature = "schema", schema(example = "/mnt/data"))]
    pub path: String,
    /// `rw` or `ro`. `rw` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^r[ow]$", example = "rw"))]
    pub mode: Option<String>,
}

impl VolumeFile {
    pub(crate) fn list(node: Node) -> Result<Vec<Self>, ModelError> {
        let Node::List(items) = node else {
            let (key, expected) = ("volumes".to_owned(), "a list of tables with name and path");
            return Err(ModelError::WrongType { key, found: node.name(), expected });
        };
        items.into_iter().enumerate().map(|(index, item)| Self::from_node(index, item)).collect()
    }

    fn from_node(index: usize, node: Node) -> Result<Self, ModelError> {
        let mut fields = Fields::open(format!("volumes[{index}]"), node)?;
        let (name, path) = (fields.required_text("name")?, fields.required_text("path")?);
        let volume = Self { name, path, mode: fields.text("mode")? };
        fields.finish()?;
        Ok(volume)
    }

    /// Checks name, path and mode.
    ///
    /// # Errors
    ///
    /// Fails if one of them is invalid.
    pub fn resolve(self) -> Result<VolumeMount, ModelError> {
        // A volume can be given by id as well.
        if self.name.parse::<VolumeId>().is_err() {
            self.name.parse::<VolumeName>()?;
        }
        let mode = match self.mode.as_deref() {
            None | Some("rw") => MountMode::ReadWrite,
            Some("ro") => MountMode::ReadOnly,
            Some(other) => return Err(ModelError::not_allowed("volume mode", other, "ro or rw")),
        };
        Ok(VolumeMount {
            path: check_target("volume path", Path::new(&self.path))?,
            name: self.name,
            mode,
            image: None,
        })
    }
}

impl FromStr for VolumeFile {
    type Err = ModelError;

    /// Parses `NAME:PATH[:ro|rw]`.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        let mut parts = text.split(':').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(path), mode, None) => Ok(Self { name, path, mode }),
            _ => Err(ModelError::not_allowed("volume", text, VOLUME_FORM)),
        }
    }
}

/// A volume of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    /// The volume, by its name or id.
    pub name: String,
    /// The path in the sandbox: absolute, without `..`.
    #[serde(with = "crate::files::as_bytes")]
    pub path: PathBuf,
    /// Access mode.
    pub mode: MountMode,
    /// The volume's file, set by the keeper after lookup.
    pub image: Option<VolumeImage>,
}

/// The location of a volume's file system. Never part of a caller's input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeImage {
    /// The volume.
    pub id: VolumeId,
    /// The absolute path of a file with an ext4 file system.
    #[serde(with = "crate::files::as_bytes")]
    pub path: PathBuf,
}

/// Checks that no volume shares a path with or hides another one or a mount, and that none is nested. Volumes come after mounts.
///
/// # Errors
///
/// Fails if there are too many, if a path is invalid, or as [`check_targets`] does.
pub(crate) fn check_volumes(mounts: &[Mount], volumes: &[VolumeMount]) -> Result<(), ModelError> {
    if volumes.len() > MAX_VOLUMES {
        let allowed = format!("at most {MAX_VOLUMES}");
        return Err(ModelError::not_allowed("volumes", volumes.len().to_string(), allowed));
    }
    for volume in volumes {
        check_target("volume path", &volume.path)?;
        let path = volume.image.as_ref().map(|image| &image.path);
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            return Err(ModelError::not_allowed("volume image", path.to_string_lossy(), "an absolute path"));
        }
    }
    // The outer volume need not have a directory for the inner one.
    let is_inner =
        |path: &Path| volumes.iter().any(|outer| path != outer.path && path.starts_with(&outer.path));
    if let Some(inner) = volumes.iter().find(|volume| is_inner(&volume.path)) {
        let allowed = "a path that is not in another volume";
        return Err(ModelError::not_allowed("volume path", inner.path.to_string_lossy(), allowed));
    }
    let placed = |volume: &VolumeMount| Mount {
        source: PathBuf::from(&volume.name),
        target: volume.path.clone(),
        mode: volume.mode,
    };
    let all: Vec<Mount> = mounts.iter().cloned().chain(volumes.iter().map(placed)).collect();
    check_targets(&all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SandboxSpec;
    use crate::spec_file::SpecFile;
    use crate::tree::Tree;

    #[test]
    fn volume_names_are_validated() {
        let longest = "a".repeat(128);
        for valid in ["data", "A-b_9", "-", "test-mount-0b0c7c2e-8a3d-4a59-a1a7-0d4f2f6f4f6b", &longest] {
            assert_eq!(valid.parse::<VolumeName>().unwrap().as_str(), valid);
        }
        for invalid in ["", "a b", "a/b", "..", "ü", "a\n", "abcdefghij0123456789", &"a".repeat(129)] {
            let error = invalid.parse::<VolumeName>().unwrap_err().to_string();
            assert!(error.starts_with("volume name: "), "{error}");
        }
    }

    #[test]
    fn volumes_are_read_from_flags_and_files() {
        let mount = |text: &str| text.parse::<VolumeFile>().unwrap().resolve().unwrap();
        assert_eq!(mount("data:/mnt/data").mode, MountMode::ReadWrite);
        assert_eq!(mount("data:/mnt//data/:ro").mode, MountMode::ReadOnly);
        assert_eq!(mount("data:/mnt//data/:ro").path, Path::new("/mnt/data"));
        let json = r#"{"volumes": [{"name": "data", "path": "/mnt/data"}, {"name": "b", "path": "/b", "mode": "ro"}]}"#;
        let spec = SpecFile::from_json(json).unwrap().resolve().unwrap();
        assert_eq!(spec.volumes, [mount("data:/mnt/data"), mount("b:/b:ro")]);
        let toml = "[[volumes]]\nname = \"data\"\npath = \"/mnt/data\"\n";
        let merged =
            SpecFile::from_toml(toml).unwrap().merge(SpecFile::from_json(r#"{"volumes": []}"#).unwrap());
        assert_eq!(merged.resolve().unwrap().volumes, [mount("data:/mnt/data")]);
    }

    #[test]
    fn invalid_volumes_are_refused() {
        let cases = [
            (r#"{"volumes": "a:/b"}"#, "\"volumes\": a text is not allowed"),
            (r#"{"volumes": [{"path": "/a"}]}"#, "\"volumes[0].name\": this key is missing"),
            (r#"{"volumes": [{"name": "a"}]}"#, "\"volumes[0].path\": this key is missing"),
            (r#"{"volumes": [{"name": "a", "path": "/a", "size": 1}]}"#, "\"volumes[0].size\": unknown key"),
            (r#"{"volumes": [{"name": "a b", "path": "/a"}]}"#, "volume name: \"a b\" is not allowed"),
            (r#"{"volumes": [{"name": "a", "path": "a"}]}"#, "volume path: \"a\" is not allowed"),
            (r#"{"volumes": [{"name": "a", "path": "/a/../b"}]}"#, "volume path: \"/a/../b\" is not allowed"),
            (r#"{"volumes": [{"name": "a", "path": "/usr/a"}]}"#, "volume path: \"/usr/a\" is not allowed"),
            (
                r#"{"volumes": [{"name": "a", "path": "/a", "mode": "rx"}]}"#,
                "volume mode: \"rx\" is not allowed",
            ),
            (
                r#"{"volumes": [{"name": "a", "path": "/a"}, {"name": "b", "path": "/a"}]}"#,
                "mounts: \"a\" and \"b\" are both mounted on \"/a\"",
            ),
            (
                r#"{"mounts": ["/s:/a/b"], "volumes": [{"name": "a", "path": "/a"}]}"#,
                "mounts: \"/a\" would hide \"/a/b\"",
            ),
            (
                r#"{"volumes": [{"name": "b", "path": "/a/b/c"}, {"name": "a", "path": "/a"}]}"#,
                "volume path: \"/a/b/c\" is not allowed; give a path that is not in another volume",
            ),
        ];
        for (json, expected) in cases {
            let refused = SpecFile::from_json(json).and_then(SpecFile::resolve).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
        for text in ["", "data", "data:/a:ro:z"] {
            let refused = text.parse::<VolumeFile>().unwrap_err().to_string();
            assert!(refused.starts_with("volume: "), "{refused}");
        }
        let many: Vec<String> =
            (0..=MAX_VOLUMES).map(|n| format!(r#"{{"name":"v{n}","path":"/v/{n}"}}"#)).collect();
        let json = format!(r#"{{"volumes": [{}]}}"#, many.join(","));
        let refused = SpecFile::from_json(&json).unwrap().resolve().unwrap_err().to_string();
        assert!(refused.starts_with("volumes: \"17\" is not allowed; give at most 16"), "{refused}");
    }

    #[test]
    fn volume_is_validated_after_transfer() {
        let mut spec =
            SpecFile::from_json(r#"{"volumes": [{"name": "a", "path": "/a"}]}"#).unwrap().resolve().unwrap();
        let id: VolumeId = "abcdefghij0123456789".parse().unwrap();
        spec.volumes[0].image = Some(VolumeImage { id, path: PathBuf::from("/state/a.img") });
        let sent = |spec: &SandboxSpec| {
            serde_json::from_str::<SandboxSpec>(&serde_json::to_string(spec).unwrap())
                .map_err(|error| error.to_string())
        };
        assert_eq!(sent(&spec).as_ref(), Ok(&spec));
        let mut hides = spec.clone();
        hides.volumes[0].path = PathBuf::from("/usr/a");
        assert!(sent(&hides).unwrap_err().starts_with("volume path: "));
        spec.volumes[0].image.as_mut().unwrap().path = PathBuf::from("a.img");
        assert!(sent(&spec).unwrap_err().starts_with("volume image: "));
        let bare = SandboxSpec { tree: Tree::Bare, ..SandboxSpec::default() };
        assert_eq!(sent(&bare), Ok(bare));
    }
}
