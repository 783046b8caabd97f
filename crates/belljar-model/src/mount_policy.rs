//! Which paths of the host may be mounted at all.

use std::path::{Component, Path, PathBuf};

use crate::error::ModelError;
use crate::mounts::{Mount, MountMode, normalise};
use crate::text::shown_path;

/// What no sandbox may see, on any host.
const FORBIDDEN: [&str; 22] = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/passwd",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/root",
    "/proc",
    "/sys",
    "/dev",
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd",
    "/run/podman",
    "/run/user",
    "/run/dbus",
    "/run/systemd",
    "/run/crio",
    "/boot",
    "/etc/ssh",
    "/etc/kubernetes",
    "/var/lib/docker",
    "/var/lib/kubelet",
];

/// What no sandbox may see in a home directory: keys, tokens and passwords.
pub const FORBIDDEN_IN_HOME: [&str; 8] =
    [".ssh", ".aws", ".gnupg", ".config", ".kube", ".docker", ".netrc", ".git-credentials"];

/// Which paths of the host may be mounted, and how.
///
/// Nothing is allowed until it is named. A forbidden path wins over every allowed one. Paths are compared by
/// their parts, never letter by letter: `/data` does not hold `/database`.
///
/// All paths given here should be free of symlinks, since they are compared with a path that is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "crate::spec_wire::PolicyWire", into = "crate::spec_wire::PolicyWire")]
pub struct MountPolicy {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    forbidden: Vec<PathBuf>,
}

/// Why a path of the host is not mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum MountRefusal {
    /// The whole host was asked for.
    #[error("cannot mount {}: it is the root of the host; name a directory below it", shown_path(.source_path))]
    Root {
        /// The path as it was asked for.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
    },

    /// The path is not absolute, or has `..` in it, so it cannot be compared.
    #[error("cannot mount {}: {} is not a whole path, free of ..", shown_path(.source_path), shown_path(.resolved))]
    NotCanonical {
        /// The path as it was asked for.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// The path that it was said to lead to.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
    },

    /// The path is a forbidden one, or lies in one.
    #[error(
        "cannot mount {}{}: {} is forbidden",
        shown_path(.source_path), leads_to(.source_path, .resolved), shown_path(.rule)
    )]
    Forbidden {
        /// The path as it was asked for.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// The path that it leads to.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// The forbidden path.
        #[serde(with = "crate::files::as_bytes")]
        rule: PathBuf,
    },

    /// The path holds a forbidden one, which would be mounted with it.
    #[error(
        "cannot mount {}{}: it holds {}, which is forbidden; name a directory that does not",
        shown_path(.source_path), leads_to(.source_path, .resolved), shown_path(.rule)
    )]
    HoldsForbidden {
        /// The path as it was asked for.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// The path that it leads to.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// The forbidden path.
        #[serde(with = "crate::files::as_bytes")]
        rule: PathBuf,
    },

    /// No allowed path holds it.
    #[error(
        "cannot mount {}{}: it lies in no allowed path; allowed are {}",
        shown_path(.source_path), leads_to(.source_path, .resolved), listed(.allowed)
    )]
    NotAllowed {
        /// The path as it was asked for.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// The path that it leads to.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// The paths that may be mounted in the mode that was asked for.
        #[serde(with = "crate::files::all_as_bytes")]
        allowed: Vec<PathBuf>,
    },

    /// It was asked for writing, and only reading is allowed.
    #[error(
        "cannot mount {}{} for writing: {} is allowed for reading only; mount it with :ro",
        shown_path(.source_path), leads_to(.source_path, .resolved), shown_path(.rule)
    )]
    ReadOnly {
        /// The path as it was asked for.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// The path that it leads to.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// The path that is allowed for reading.
        #[serde(with = "crate::files::as_bytes")]
        rule: PathBuf,
    },
}

impl MountPolicy {
    /// Makes a policy that allows nothing.
    ///
    /// It forbids what no host may show (`/etc/shadow`, `/root`, `/proc`, sockets of container daemons and the
    /// like) and the keys and tokens in each of `homes` (`.ssh`, `.aws`, `.config` and the like). A home that
    /// is not absolute is left out: no mounted path can lie in it. Where a home or something in it is a
    /// symlink, the caller also passes or [forbids](Self::forbid) the place it leads to; see
    /// [`forbidden`](Self::forbidden).
    pub fn new(homes: &[PathBuf]) -> Self {
        let in_homes = homes
            .iter()
            .filter(|home| home.is_absolute())
            .flat_map(|home| FORBIDDEN_IN_HOME.iter().map(move |name| home.join(name)));
        let forbidden = FORBIDDEN.iter().map(PathBuf::from).chain(in_homes).collect();
        Self { read: Vec::new(), write: Vec::new(), forbidden }
    }

    /// Allows a path, and all inside of it, to be mounted for reading.
    ///
    /// # Errors
    ///
    /// When the path is `/`, is not absolute, is too long, or has `..` or a NUL in it.
    pub fn allow_read(&mut self, path: PathBuf) -> Result<(), ModelError> {
        self.read.push(normalise("allowed path", &path)?);
        Ok(())
    }

    /// Allows a path, and all inside of it, to be mounted for reading and for writing.
    ///
    /// # Errors
    ///
    /// When the path is `/`, is not absolute, is too long, or has `..` or a NUL in it.
    pub fn allow_write(&mut self, path: PathBuf) -> Result<(), ModelError> {
        self.write.push(normalise("allowed path", &path)?);
        Ok(())
    }

    /// Forbids a path, all inside of it, and everything that holds it. This wins over what is allowed.
    ///
    /// # Errors
    ///
    /// When the path is `/`, is not absolute, is too long, or has `..` or a NUL in it.
    pub fn forbid(&mut self, path: PathBuf) -> Result<(), ModelError> {
        self.forbidden.push(normalise("forbidden path", &path)?);
        Ok(())
    }

    /// The forbidden paths, so that a caller can forbid also what they lead to as symlinks.
    pub fn forbidden(&self) -> &[PathBuf] {
        &self.forbidden
    }

    /// What may be read, what may be written, what is forbidden.
    pub(crate) fn parts(&self) -> (&[PathBuf], &[PathBuf], &[PathBuf]) {
        (&self.read, &self.write, &self.forbidden)
    }

    /// Decides on a mount. `canonical` is its source after the caller resolved all symlinks.
    ///
    /// # Errors
    ///
    /// When the path is `/`; when it is, lies in, or holds a forbidden path, or was asked for by a name that
    /// is or lies in one; when no allowed path holds it; when it was asked for writing where only reading is
    /// allowed. The refusal names the rule.
    pub fn check(&self, asked: &Mount, canonical: &Path) -> Result<(), MountRefusal> {
        let source_path = || asked.source.clone();
        let resolved = || canonical.to_path_buf();
        let whole = |path: &Path| {
            path.is_absolute() && path.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
        };
        for path in [&asked.source, canonical] {
            if !whole(path) {
                return Err(MountRefusal::NotCanonical {
                    source_path: source_path(),
                    resolved: path.to_path_buf(),
                });
            }
            if path.parent().is_none() {
                return Err(MountRefusal::Root { source_path: source_path() });
            }
        }

        let touched = |rule: &&PathBuf| canonical.starts_with(rule) || asked.source.starts_with(rule);
        if let Some(rule) = self.forbidden.iter().find(touched) {
            return Err(MountRefusal::Forbidden {
                source_path: source_path(),
                resolved: resolved(),
                rule: rule.clone(),
            });
        }
        if let Some(rule) = self.forbidden.iter().find(|rule| rule.starts_with(canonical)) {
            return Err(MountRefusal::HoldsForbidden {
                source_path: source_path(),
                resolved: resolved(),
                rule: rule.clone(),
            });
        }

        let holds = |rule: &&PathBuf| canonical.starts_with(rule);
        if self.write.iter().any(|rule| holds(&rule)) {
            return Ok(());
        }
        match (self.read.iter().find(holds), asked.mode) {
            (Some(_), MountMode::ReadOnly) => Ok(()),
            (Some(rule), MountMode::ReadWrite) => Err(MountRefusal::ReadOnly {
                source_path: source_path(),
                resolved: resolved(),
                rule: rule.clone(),
            }),
            (None, mode) => {
                let readable = self.read.iter().filter(|_| mode == MountMode::ReadOnly);
                Err(MountRefusal::NotAllowed {
                    source_path: source_path(),
                    resolved: resolved(),
                    allowed: readable.chain(&self.write).cloned().collect(),
                })
            }
        }
    }
}

/// The part of a refusal that says where a symlink leads.
fn leads_to(source: &Path, resolved: &Path) -> String {
    if source == resolved { String::new() } else { format!(", which leads to {}", shown_path(resolved)) }
}

/// Allowed paths in a refusal; the first few are enough to see the rule.
fn listed(paths: &[PathBuf]) -> String {
    const MOST: usize = 8;
    if paths.is_empty() {
        return "none".to_owned();
    }
    let mut texts: Vec<String> = paths.iter().take(MOST).map(|path| shown_path(path)).collect();
    if paths.len() > MOST {
        texts.push(format!("{} more", paths.len() - MOST));
    }
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy() -> MountPolicy {
        let mut policy = MountPolicy::new(&["/home/ann".into(), "not/absolute".into()]);
        policy.allow_read("/data".into()).unwrap();
        policy.allow_read("/home/ann".into()).unwrap();
        policy.allow_read("/etc".into()).unwrap();
        policy.allow_write("/srv/out/".into()).unwrap();
        policy.allow_write("/data/w".into()).unwrap();
        policy.forbid("/data/secret".into()).unwrap();
        policy
    }

    fn mount(source: &str, mode: MountMode) -> Mount {
        Mount { source: source.into(), target: "/in".into(), mode }
    }

    #[test]
    fn mounts_are_decided() {
        use MountMode::{ReadOnly as Ro, ReadWrite as Rw};
        let readable = "\"/data\", \"/home/ann\", \"/etc\", \"/srv/out\", \"/data/w\"";
        let writable = "\"/srv/out\", \"/data/w\"";
        let cases = [
            ("/data", Ro, "/data", "HOLDS /data/secret"),
            ("/data/a", Ro, "/data/a", "ok"),
            (
                "/data/a",
                Rw,
                "/data/a",
                "cannot mount \"/data/a\" for writing: \"/data\" is allowed for reading only; mount it with :ro",
            ),
            ("/data/w/x", Rw, "/data/w/x", "ok"),
            ("/data/w/x", Ro, "/data/w/x", "ok"),
            ("/srv/out", Rw, "/srv/out", "ok"),
            (
                "/srv/outer",
                Ro,
                "/srv/outer",
                &format!("cannot mount \"/srv/outer\": it lies in no allowed path; allowed are {readable}"),
            ),
            (
                "/srv",
                Rw,
                "/srv",
                &format!("cannot mount \"/srv\": it lies in no allowed path; allowed are {writable}"),
            ),
            (
                "/database",
                Ro,
                "/database",
                &format!("cannot mount \"/database\": it lies in no allowed path; allowed are {readable}"),
            ),
            ("/link", Ro, "/data/a", "ok"),
            (
                "/data/link",
                Ro,
                "/opt/x",
                &format!(
                    "cannot mount \"/data/link\", which leads to \"/opt/x\": it lies in no allowed path; allowed are {readable}"
                ),
            ),
            (
                "/data/link",
                Ro,
                "/home/ann/.ssh",
                "cannot mount \"/data/link\", which leads to \"/home/ann/.ssh\": \"/home/ann/.ssh\" is forbidden",
            ),
            (
                "/data/link",
                Ro,
                "/",
                "cannot mount \"/data/link\": it is the root of the host; name a directory below it",
            ),
            ("/", Ro, "/", "cannot mount \"/\": it is the root of the host; name a directory below it"),
            ("/home/ann", Ro, "/home/ann", "HOLDS /home/ann/.ssh"),
            ("/home/ann/.sshd", Ro, "/home/ann/.sshd", "ok"),
            (
                "/home/ann/.ssh/id",
                Ro,
                "/home/ann/.ssh/id",
                "cannot mount \"/home/ann/.ssh/id\": \"/home/ann/.ssh\" is forbidden",
            ),
            (
                "/home/ann/.ssh",
                Ro,
                "/data/keys",
                "cannot mount \"/home/ann/.ssh\", which leads to \"/data/keys\": \"/home/ann/.ssh\" is forbidden",
            ),
            ("/etc/hosts", Ro, "/etc/hosts", "ok"),
            ("/etc/shadow", Ro, "/etc/shadow", "cannot mount \"/etc/shadow\": \"/etc/shadow\" is forbidden"),
            ("/etc", Ro, "/etc", "HOLDS /etc/shadow"),
            ("/proc/1/root", Ro, "/proc/1/root", "cannot mount \"/proc/1/root\": \"/proc\" is forbidden"),
            (
                "/data/secret",
                Ro,
                "/data/secret",
                "cannot mount \"/data/secret\": \"/data/secret\" is forbidden",
            ),
            ("/run", Ro, "/run", "HOLDS /run/docker.sock"),
            ("/data/a", Ro, "data/a", "cannot mount \"/data/a\": \"data/a\" is not a whole path, free of .."),
            (
                "/data/a",
                Ro,
                "/data/../root",
                "cannot mount \"/data/a\": \"/data/../root\" is not a whole path, free of ..",
            ),
            (
                "/data/../root",
                Ro,
                "/data/a",
                "cannot mount \"/data/../root\": \"/data/../root\" is not a whole path, free of ..",
            ),
        ];
        for (source, mode, canonical, expected) in cases {
            let found = match policy().check(&mount(source, mode), Path::new(canonical)) {
                Ok(()) => "ok".to_owned(),
                Err(refusal) => refusal.to_string(),
            };
            let expected = match expected.strip_prefix("HOLDS ") {
                None => expected.to_owned(),
                Some(rule) => format!(
                    "cannot mount {source:?}: it holds {rule:?}, which is forbidden; name a directory that does not"
                ),
            };
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn nothing_is_allowed_at_first() {
        let refusal = MountPolicy::new(&[]).check(&mount("/data", MountMode::ReadOnly), Path::new("/data"));
        assert_eq!(
            refusal.unwrap_err().to_string(),
            "cannot mount \"/data\": it lies in no allowed path; allowed are none"
        );
    }

    #[test]
    fn every_promised_path_is_forbidden() {
        let mut policy = MountPolicy::new(&["/home/ann".into(), "/home/ben".into()]);
        policy.allow_write("/home".into()).unwrap();
        policy.allow_write("/etc".into()).unwrap();
        let promised = FORBIDDEN.iter().map(PathBuf::from).chain(
            ["/home/ann", "/home/ben"]
                .iter()
                .flat_map(|home| FORBIDDEN_IN_HOME.iter().map(|name| Path::new(home).join(name))),
        );
        for path in promised {
            for mode in [MountMode::ReadOnly, MountMode::ReadWrite] {
                let asked = Mount { source: path.clone(), target: "/in".into(), mode };
                let refusal = policy.check(&asked, &path).unwrap_err();
                assert!(
                    matches!(&refusal, MountRefusal::Forbidden { rule, .. } if *rule == path),
                    "{refusal}"
                );
            }
        }
    }

    #[test]
    fn rules_are_checked() {
        let mut policy = MountPolicy::new(&[]);
        for bad in ["/", "data", "", "/a/../b", "/a\0b", "~/x"] {
            assert!(policy.allow_read(bad.into()).is_err(), "{bad:?}");
            assert!(policy.allow_write(bad.into()).is_err(), "{bad:?}");
            assert!(policy.forbid(bad.into()).is_err(), "{bad:?}");
        }
        assert_eq!(policy, MountPolicy::new(&[]));
    }

    fn path() -> impl Strategy<Value = PathBuf> {
        proptest::collection::vec("[ab]{1,2}", 1..5)
            .prop_map(|parts| PathBuf::from("/").join(parts.join("/")))
    }

    proptest! {
        #[test]
        fn paths_are_compared_by_their_parts(allowed in path(), forbidden in path(), asked in path()) {
            let parts = |path: &Path| path.components().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
            let (allowed_parts, forbidden_parts, asked_parts) = (parts(&allowed), parts(&forbidden), parts(&asked));
            let expected = asked_parts.starts_with(&allowed_parts)
                && !asked_parts.starts_with(&forbidden_parts)
                && !forbidden_parts.starts_with(&asked_parts);

            let mut policy = MountPolicy::new(&[]);
            policy.allow_read(allowed.clone()).unwrap();
            policy.forbid(forbidden).unwrap();
            let mut asked = Mount { source: asked.clone(), target: "/in".into(), mode: MountMode::ReadOnly };
            prop_assert_eq!(policy.check(&asked, &asked.source).is_ok(), expected);

            asked.mode = MountMode::ReadWrite;
            prop_assert!(policy.check(&asked, &asked.source).is_err());
            policy.allow_write(allowed).unwrap();
            prop_assert_eq!(policy.check(&asked, &asked.source).is_ok(), expected);
        }
    }
}
