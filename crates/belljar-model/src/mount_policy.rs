//! Policy of which host paths may be mounted.

use std::path::{Component, Path, PathBuf};

use crate::error::ModelError;
use crate::mounts::{Mount, MountMode, normalise};
use crate::text::quote_path;

/// Paths that no sandbox may see, on any host.
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

/// Paths in a home directory that no sandbox may see: keys, tokens and passwords.
pub const FORBIDDEN_IN_HOME: [&str; 8] =
    [".ssh", ".aws", ".gnupg", ".config", ".kube", ".docker", ".netrc", ".git-credentials"];

/// Policy of which host paths may be mounted, and how.
///
/// Nothing is allowed until it is named. A forbidden path takes precedence over every allowed one. Paths are compared by
/// components, never by characters: `/data` does not contain `/database`.
///
/// All paths given here should be free of symlinks, as they are compared with a resolved path.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "crate::spec_wire::PolicyWire", into = "crate::spec_wire::PolicyWire")]
pub struct MountPolicy {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    forbidden: Vec<PathBuf>,
}

/// Reason why a host path is not mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum MountRefusal {
    /// The root of the host was requested.
    #[error("cannot mount {}: it is the root of the host; name a directory below it", quote_path(.source_path))]
    Root {
        /// Path as requested.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
    },

    /// The path is not absolute or contains `..`, so it cannot be compared.
    #[error("cannot mount {}: {} is not an absolute path without ..", quote_path(.source_path), quote_path(.resolved))]
    NotCanonical {
        /// Path as requested.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// Path that it was resolved to.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
    },

    /// The path is forbidden, or inside of a forbidden one.
    #[error(
        "cannot mount {}{}: {} is forbidden",
        quote_path(.source_path), describe_target(.source_path, .resolved), quote_path(.rule)
    )]
    Forbidden {
        /// Path as requested.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// Resolved path.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// Forbidden path.
        #[serde(with = "crate::files::as_bytes")]
        rule: PathBuf,
    },

    /// The path contains a forbidden one, which would be mounted with it.
    #[error(
        "cannot mount {}{}: it contains {}, which is forbidden; name a directory that does not",
        quote_path(.source_path), describe_target(.source_path, .resolved), quote_path(.rule)
    )]
    HoldsForbidden {
        /// Path as requested.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// Resolved path.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// Forbidden path.
        #[serde(with = "crate::files::as_bytes")]
        rule: PathBuf,
    },

    /// The path is not inside of an allowed one.
    #[error(
        "cannot mount {}{}: it is not in an allowed path; allowed: {}",
        quote_path(.source_path), describe_target(.source_path, .resolved), list_paths(.allowed)
    )]
    NotAllowed {
        /// Path as requested.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// Resolved path.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// Paths that may be mounted in the requested mode.
        #[serde(with = "crate::files::all_as_bytes")]
        allowed: Vec<PathBuf>,
    },

    /// Writing was requested, and only reading is allowed.
    #[error(
        "cannot mount {}{} for writing: {} is allowed for reading only; mount it with :ro",
        quote_path(.source_path), describe_target(.source_path, .resolved), quote_path(.rule)
    )]
    ReadOnly {
        /// Path as requested.
        #[serde(with = "crate::files::as_bytes")]
        source_path: PathBuf,
        /// Resolved path.
        #[serde(with = "crate::files::as_bytes")]
        resolved: PathBuf,
        /// Path that is allowed for reading.
        #[serde(with = "crate::files::as_bytes")]
        rule: PathBuf,
    },
}

impl MountPolicy {
    /// Creates a policy that allows nothing.
    ///
    /// It forbids paths that no sandbox may see (`/etc/shadow`, `/root`, `/proc`, sockets of container daemons and the like)
    /// and the keys and tokens in each of `homes` (`.ssh`, `.aws`, `.config` and the like). A home that is not absolute is
    /// ignored: no mounted path can be inside of it. If a home or something in it is a symlink, the caller also passes or
    /// [forbids](Self::forbid) its target; see [`forbidden`](Self::forbidden).
    pub fn new(homes: &[PathBuf]) -> Self {
        let in_homes = homes
            .iter()
            .filter(|home| home.is_absolute())
            .flat_map(|home| FORBIDDEN_IN_HOME.iter().map(move |name| home.join(name)));
        let forbidden = FORBIDDEN.iter().map(PathBuf::from).chain(in_homes).collect();
        Self { read: Vec::new(), write: Vec::new(), forbidden }
    }

    /// Allows a path and everything inside of it to be mounted for reading.
    ///
    /// # Errors
    ///
    /// Fails if the path is `/`, is not absolute, is too long, or has `..` or a NUL in it.
    pub fn allow_read(&mut self, path: PathBuf) -> Result<(), ModelError> {
        self.read.push(normalise("allowed path", &path)?);
        Ok(())
    }

    /// Allows a path and everything inside of it to be mounted for reading and writing.
    ///
    /// # Errors
    ///
    /// Fails if the path is `/`, is not absolute, is too long, or has `..` or a NUL in it.
    pub fn allow_write(&mut self, path: PathBuf) -> Result<(), ModelError> {
        self.write.push(normalise("allowed path", &path)?);
        Ok(())
    }

    /// Forbids a path, everything inside of it, and every path that contains it. Takes precedence over allowed paths.
    ///
    /// # Errors
    ///
    /// Fails if the path is `/`, is not absolute, is too long, or has `..` or a NUL in it.
    pub fn forbid(&mut self, path: PathBuf) -> Result<(), ModelError> {
        self.forbidden.push(normalise("forbidden path", &path)?);
        Ok(())
    }

    /// Returns the forbidden paths, so that a caller can also forbid their targets as symlinks.
    pub fn forbidden(&self) -> &[PathBuf] {
        &self.forbidden
    }

    /// Returns the readable, writable and forbidden paths.
    pub(crate) fn parts(&self) -> (&[PathBuf], &[PathBuf], &[PathBuf]) {
        (&self.read, &self.write, &self.forbidden)
    }

    /// Checks a mount. `canonical` is its source after the caller resolved all symlinks.
    ///
    /// # Errors
    ///
    /// Fails if the path is `/`; if it is, is inside of, or contains a forbidden path, or was requested by a name that is or is
    /// inside of one; if it is not inside of an allowed path; if writing was requested where only reading is allowed. The
    /// refusal names the rule.
    pub fn check(&self, requested: &Mount, canonical: &Path) -> Result<(), MountRefusal> {
        let source_path = || requested.source.clone();
        let resolved = || canonical.to_path_buf();
        let is_canonical = |path: &Path| {
            path.is_absolute() && path.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
        };
        for path in [&requested.source, canonical] {
            if !is_canonical(path) {
                return Err(MountRefusal::NotCanonical {
                    source_path: source_path(),
                    resolved: path.to_path_buf(),
                });
            }
            if path.parent().is_none() {
                return Err(MountRefusal::Root { source_path: source_path() });
            }
        }

        let touched = |rule: &&PathBuf| canonical.starts_with(rule) || requested.source.starts_with(rule);
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
        match (self.read.iter().find(holds), requested.mode) {
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

/// Returns the part of a refusal that shows the target of a symlink.
fn describe_target(source: &Path, resolved: &Path) -> String {
    if source == resolved { String::new() } else { format!(", which leads to {}", quote_path(resolved)) }
}

/// Lists the allowed paths of a refusal; the first few suffice.
fn list_paths(paths: &[PathBuf]) -> String {
    const MAX_LISTED: usize = 8;
    if paths.is_empty() {
        return "none; the operator allows some in [sandboxes.mounts] of a server's configuration, and for belljar run in \
                /etc/belljar/policy.toml, or the policy that is named"
            .to_owned();
    }
    let mut texts: Vec<String> = paths.iter().take(MAX_LISTED).map(|path| quote_path(path)).collect();
    if paths.len() > MAX_LISTED {
        texts.push(format!("{} more", paths.len() - MAX_LISTED));
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
    fn mount_decisions() {
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
                &format!("cannot mount \"/srv/outer\": it is not in an allowed path; allowed: {readable}"),
            ),
            (
                "/srv",
                Rw,
                "/srv",
                &format!("cannot mount \"/srv\": it is not in an allowed path; allowed: {writable}"),
            ),
            (
                "/database",
                Ro,
                "/database",
                &format!("cannot mount \"/database\": it is not in an allowed path; allowed: {readable}"),
            ),
            ("/link", Ro, "/data/a", "ok"),
            (
                "/data/link",
                Ro,
                "/opt/x",
                &format!(
                    "cannot mount \"/data/link\", which leads to \"/opt/x\": it is not in an allowed path; allowed: {readable}"
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
            (
                "/data/a",
                Ro,
                "data/a",
                "cannot mount \"/data/a\": \"data/a\" is not an absolute path without ..",
            ),
            (
                "/data/a",
                Ro,
                "/data/../root",
                "cannot mount \"/data/a\": \"/data/../root\" is not an absolute path without ..",
            ),
            (
                "/data/../root",
                Ro,
                "/data/a",
                "cannot mount \"/data/../root\": \"/data/../root\" is not an absolute path without ..",
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
                    "cannot mount {source:?}: it contains {rule:?}, which is forbidden; name a directory that does not"
                ),
            };
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let refusal = MountPolicy::new(&[]).check(&mount("/data", MountMode::ReadOnly), Path::new("/data"));
        assert_eq!(
            refusal.unwrap_err().to_string(),
            "cannot mount \"/data\": it is not in an allowed path; allowed: none; the operator allows some in \
             [sandboxes.mounts] of a server's configuration, and for belljar run in /etc/belljar/policy.toml, or the policy that is named"
        );
    }

    #[test]
    fn promised_paths_are_forbidden() {
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
                let requested = Mount { source: path.clone(), target: "/in".into(), mode };
                let refusal = policy.check(&requested, &path).unwrap_err();
                assert!(
                    matches!(&refusal, MountRefusal::Forbidden { rule, .. } if *rule == path),
                    "{refusal}"
                );
            }
        }
    }

    #[test]
    fn rules_are_validated() {
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
        fn paths_are_compared_by_components(allowed in path(), forbidden in path(), requested in path()) {
            let parts = |path: &Path| path.components().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
            let (allowed_parts, forbidden_parts, requested_parts) = (parts(&allowed), parts(&forbidden), parts(&requested));
            let expected = requested_parts.starts_with(&allowed_parts)
                && !requested_parts.starts_with(&forbidden_parts)
                && !forbidden_parts.starts_with(&requested_parts);

            let mut policy = MountPolicy::new(&[]);
            policy.allow_read(allowed.clone()).unwrap();
            policy.forbid(forbidden).unwrap();
            let mut requested = Mount { source: requested.clone(), target: "/in".into(), mode: MountMode::ReadOnly };
            prop_assert_eq!(policy.check(&requested, &requested.source).is_ok(), expected);

            requested.mode = MountMode::ReadWrite;
            prop_assert!(policy.check(&requested, &requested.source).is_err());
            policy.allow_write(allowed).unwrap();
            prop_assert_eq!(policy.check(&requested, &requested.source).is_ok(), expected);
        }
    }
}
