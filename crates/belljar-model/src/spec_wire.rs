//! Wire form of a specification between processes on the same machine: every value in full, validated again on receipt.
//!
//! Unlike the form that people write ([`SpecFile`](crate::SpecFile)), paths are arbitrary bytes, and nothing is left out.

use serde::{Deserialize, Serialize};

use crate::checks::{Approval, Screening};
use crate::engine::EngineName;
use crate::env::EnvVar;
use crate::error::ModelError;
use crate::files::FilePath;
use crate::image_reference::ImageReferenceError;
use crate::limits::{Limits, LimitsGrade};
use crate::mount_policy::MountPolicy;
use crate::mounts::{Mount, MountMode};
use crate::network::NetworkPolicy;
use crate::spec::{Hostname, SandboxSpec, check_user};
use crate::tree::{TemplateTree, Tree};
use crate::volumes::{VolumeMount, check_volumes};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpecWire {
    engine: EngineName,
    limits: Limits,
    grade: LimitsGrade,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    machine: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk: Option<FilePath>,
    network: NetworkPolicy,
    mounts: Vec<MountWire>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<VolumeMount>,
    env: Vec<(String, String)>,
    hostname: Hostname,
    interactive: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    screening: Screening,
    #[serde(default, skip_serializing_if = "is_default")]
    approval: Approval,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tree: Option<Box<TemplateTree>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    bare_tree: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MountWire {
    source: FilePath,
    target: FilePath,
    mode: MountMode,
}

impl From<SandboxSpec> for SpecWire {
    fn from(spec: SandboxSpec) -> Self {
        let mounts = spec.mounts.iter().map(|mount| MountWire {
            source: FilePath::from(mount.source.as_path()),
            target: FilePath::from(mount.target.as_path()),
            mode: mount.mode,
        });
        let env = spec.env.iter().map(|variable| (variable.name().to_owned(), variable.value().to_owned()));
        Self {
            engine: spec.engine,
            limits: spec.limits,
            grade: spec.grade,
            machine: spec.machine,
            user: spec.user,
            disk: spec.disk.as_deref().map(FilePath::from),
            network: spec.network,
            mounts: mounts.collect(),
            volumes: spec.volumes,
            env: env.collect(),
            hostname: spec.hostname,
            interactive: spec.interactive,
            screening: spec.screening,
            approval: spec.approval,
            bare_tree: spec.tree == Tree::Bare,
            image: match &spec.tree {
                Tree::Image(image) => Some(image.to_string()),
                _ => None,
            },
            tree: match spec.tree {
                Tree::Host | Tree::Bare | Tree::Image(_) => None,
                Tree::Template(tree) => Some(tree),
            },
        }
    }
}

impl TryFrom<SpecWire> for SandboxSpec {
    type Error = ModelError;

    fn try_from(wire: SpecWire) -> Result<Self, ModelError> {
        let mount =
            |mount: MountWire| Mount::new(mount.source.to_path_buf(), mount.target.to_path_buf(), mount.mode);
        let mounts = wire.mounts.into_iter().map(mount).collect::<Result<Vec<_>, _>>()?;
        check_volumes(&mounts, &wire.volumes)?;
        wire.network.check_available()?;
        wire.screening.check_available()?;
        wire.approval.check_available()?;
        let mut names = std::collections::BTreeSet::new();
        let variable = |(name, value): (String, String)| {
            if !names.insert(name.clone()) {
                return Err(ModelError::DuplicateKey { key: format!("env.{name}") });
            }
            EnvVar::new(name, value)
        };
        let env = wire.env.into_iter().map(variable).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            engine: wire.engine,
            limits: wire.limits,
            grade: wire.grade,
            machine: wire.machine,
            user: wire.user.map(|user| check_user(user, wire.machine)).transpose()?.flatten(),
            disk: wire.disk.map(|disk| disk.to_path_buf()),
            network: wire.network,
            mounts,
            volumes: wire.volumes,
            env,
            hostname: wire.hostname,
            interactive: wire.interactive,
            screening: wire.screening,
            approval: wire.approval,
            tree: match (wire.tree, wire.image) {
                (None, None) if wire.bare_tree => Tree::Bare,
                (None, None) => Tree::Host,
                (None, Some(image)) => Tree::Image(image.parse().map_err(|error: ImageReferenceError| {
                    ModelError::not_allowed("tree.image", image, error.to_string())
                })?),
                (Some(tree), _) => {
                    tree.check()?;
                    Tree::Template(tree)
                }
            },
        })
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyWire {
    read: Vec<FilePath>,
    write: Vec<FilePath>,
    forbidden: Vec<FilePath>,
}

impl From<MountPolicy> for PolicyWire {
    fn from(policy: MountPolicy) -> Self {
        let paths =
            |paths: &[std::path::PathBuf]| paths.iter().map(|path| FilePath::from(path.as_path())).collect();
        let (read, write, forbidden) = policy.parts();
        Self { read: paths(read), write: paths(write), forbidden: paths(forbidden) }
    }
}

impl TryFrom<PolicyWire> for MountPolicy {
    type Error = ModelError;

    fn try_from(wire: PolicyWire) -> Result<Self, ModelError> {
        // The built-in forbidden paths are forbidden whatever was received.
        let mut policy = Self::new(&[]);
        for path in wire.forbidden.iter().map(FilePath::to_path_buf) {
            if !policy.forbidden().contains(&path) {
                policy.forbid(path)?;
            }
        }
        wire.read.iter().try_for_each(|path| policy.allow_read(path.to_path_buf()))?;
        wire.write.iter().try_for_each(|path| policy.allow_write(path.to_path_buf()))?;
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::PathBuf;

    fn spec() -> SandboxSpec {
        let odd = PathBuf::from(OsStr::from_bytes(b"/data/a:b\xff"));
        SandboxSpec {
            engine: EngineName::known("process"),
            grade: LimitsGrade::Watched,
            mounts: vec![
                Mount::new("/data", "/data", MountMode::ReadOnly).unwrap(),
                Mount::new(odd, "/data/in:ner", MountMode::ReadWrite).unwrap(),
            ],
            env: vec![EnvVar::new("A", "1").unwrap(), EnvVar::new("B", "two\nlines=").unwrap()],
            hostname: "box".parse().unwrap(),
            interactive: true,
            machine: true,
            user: Some("root".to_owned()),
            disk: Some("/disks/a".into()),
            ..SandboxSpec::default()
        }
    }

    #[test]
    fn specification_round_trip() {
        for spec in [spec(), SandboxSpec::default()] {
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<SandboxSpec>(&json).unwrap(), spec, "{json}");
        }
    }

    #[test]
    fn received_specification_is_validated() {
        let json = serde_json::to_string(&spec()).unwrap();
        let cases = [
            ("\"process\"", "\"No\""),
            ("512 MiB", "1 MiB"),
            ("\"box\"", "\"-box\""),
            ("\"root\"", "\"no:user\""),
            ("\"machine\":true,", ""),
            ("\"A\"", "\"A=\""),
            ("\"A\"", "\"B\""),
            ("\"/data/in:ner\"", "\"/data\""),
            ("\"/data/in:ner\"", "\"/proc/self\""),
            ("\"/data/in:ner\"", "\"/data/../etc\""),
            ("\"/data/in:ner\"", "\"data\""),
            ("\"interactive\"", "\"more\":1,\"interactive\""),
            ("\"interactive\":true", "\"interactive\":1"),
            ("\"interactive\"", "\"screening\":\"of\",\"interactive\""),
            ("\"interactive\"", "\"screening\":\"refuse\",\"interactive\""),
            ("\"interactive\"", "\"approval\":\"always\",\"interactive\""),
            ("\"rw\"", "\"rx\""),
            ("\"disabled\"", "\"on\""),
            ("\"disabled\"", "{\"mode\":\"disabled\",\"more\":1}"),
            ("\"disabled\"", "{\"allow\":[\"127.1\"]}"),
        ];
        for (from, to) in cases {
            let changed = json.replacen(from, to, 1);
            assert_ne!(changed, json, "{from}");
            assert!(serde_json::from_str::<SandboxSpec>(&changed).is_err(), "{changed}");
        }
    }

    #[test]
    fn policy_round_trip_keeps_built_in_rules() {
        let mut policy = MountPolicy::new(&[PathBuf::from("/home/me")]);
        policy.allow_read("/data".into()).unwrap();
        policy.allow_write(PathBuf::from(OsStr::from_bytes(b"/out\xff"))).unwrap();
        policy.forbid("/data/secret".into()).unwrap();
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<MountPolicy>(&json).unwrap(), policy);
        let bare = r#"{"read":[{"path":"/etc","path_encoding":"utf-8"}],"write":[],"forbidden":[]}"#;
        let policy: MountPolicy = serde_json::from_str(bare).unwrap();
        assert!(policy.forbidden().contains(&PathBuf::from("/etc/shadow")));
        for bad in [bare.replace("/etc", "/"), bare.replace("/etc", "etc"), bare.replace("read", "reed")] {
            assert!(serde_json::from_str::<MountPolicy>(&bad).is_err(), "{bad}");
        }
    }
}
