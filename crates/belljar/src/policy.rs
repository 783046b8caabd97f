//! The policy for mounts and networks. It is the operator's file if there is one; otherwise the user at the command line
//! implicitly allows the mounts that they name. Forbidden paths stay forbidden either way.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belljar_model::{Mount, MountMode, MountPolicy, NetworkSetup};
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::input::read_text;
use crate::message::Quit;

/// Default path of the operator's policy.
const SYSTEM_POLICY: &str = "/etc/belljar/policy.toml";

/// Maximum length of a policy file, in bytes.
const MAX_POLICY_BYTES: u64 = 1 << 20;

/// A policy file.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    read: Vec<PathBuf>,
    #[serde(default)]
    write: Vec<PathBuf>,
    #[serde(default)]
    forbidden: Vec<PathBuf>,
    #[serde(default)]
    network: NetworkSetup,
}

/// Returns the policy for `mounts`, of which all from `first_own` on were named by the user at the command line.
pub(crate) fn policy(named: Option<&Path>, mounts: &[Mount], first_own: usize) -> Result<MountPolicy, Quit> {
    if mounts.is_empty() && named.is_none() {
        return Ok(MountPolicy::new(&[]));
    }
    let mut policy = MountPolicy::new(&homes());
    match policy_file(named)? {
        Some(path) => read_policy(&path, &mut policy)?,
        None => {
            for mount in mounts.iter().skip(first_own) {
                grant(mount, &mut policy)?;
            }
        }
    }
    forbid_what_is_always(&mut policy)?;
    Ok(policy)
}

/// Forbids what no policy can allow: other users' secrets, and the targets of forbidden links.
pub(crate) fn forbid_what_is_always(policy: &mut MountPolicy) -> Result<(), Quit> {
    forbid_other_homes(policy)?;
    forbid_link_targets(policy)
}

/// Returns the policy file in effect, if any: the flag's, else the environment's, else the system's.
fn policy_file(named: Option<&Path>) -> Result<Option<PathBuf>, Quit> {
    if let Some(path) = named {
        return Ok(Some(path.to_owned()));
    }
    if let Some(path) = std::env::var_os("BELLJAR_POLICY").filter(|path| !path.is_empty()) {
        return Ok(Some(PathBuf::from(path)));
    }
    // The system's file is ignored only if it certainly does not exist.
    match rustix::fs::statat(CWD, SYSTEM_POLICY, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        _ => Ok(Some(PathBuf::from(SYSTEM_POLICY))),
    }
}

/// Returns the network setup of the policy file; without a file there are no exceptions.
pub(crate) fn network(named: Option<&Path>) -> Result<NetworkSetup, Quit> {
    let Some(path) = policy_file(named)? else { return Ok(NetworkSetup::default()) };
    let text = read_text("policy", &path, MAX_POLICY_BYTES)?;
    let file: PolicyFile = toml::from_str(&text).map_err(|error| in_file(&path, error.into()))?;
    Ok(file.network)
}

fn read_policy(path: &Path, policy: &mut MountPolicy) -> Result<(), Quit> {
    let text = read_text("policy", path, MAX_POLICY_BYTES)?;
    apply(&text, policy).map_err(|error| in_file(path, error))
}

/// Adds the name of the policy file to an error.
fn in_file(path: &Path, error: Quit) -> Quit {
    match error {
        Quit::Error(error) => error.context(format!("policy: {path:?} cannot be used")).into(),
        other => other,
    }
}

/// Applies the text of a policy file to `policy`.
pub(crate) fn apply(text: &str, policy: &mut MountPolicy) -> Result<(), Quit> {
    let file: PolicyFile = toml::from_str(text)?;
    for path in file.read {
        policy.allow_read(resolved(path))?;
    }
    for path in file.write {
        policy.allow_write(resolved(path))?;
    }
    for path in file.forbidden {
        policy.forbid(path)?;
    }
    Ok(())
}

/// Allows exactly one mount. A missing source is an error already here; one that leads to `/` is not allowed, which the
/// policy's own check reports.
fn grant(mount: &Mount, policy: &mut MountPolicy) -> Result<(), Quit> {
    let canonical = std::fs::canonicalize(&mount.source).map_err(|error| {
        anyhow::Error::new(error).context(format!("mount: cannot use {:?}", mount.source))
    })?;
    if canonical.parent().is_none() {
        return Ok(());
    }
    match mount.mode {
        MountMode::ReadOnly => policy.allow_read(canonical)?,
        MountMode::ReadWrite => policy.allow_write(canonical)?,
    }
    Ok(())
}

/// Forbids the targets of forbidden paths that are symbolic links.
fn forbid_link_targets(policy: &mut MountPolicy) -> Result<(), Quit> {
    let targets: Vec<PathBuf> = policy
        .forbidden()
        .iter()
        .filter_map(|path| std::fs::canonicalize(path).ok().filter(|canonical| canonical != path))
        .filter(|canonical| canonical.parent().is_some())
        .collect();
    for path in targets {
        policy.forbid(path)?;
    }
    Ok(())
}

pub(crate) fn resolved(path: PathBuf) -> PathBuf {
    std::fs::canonicalize(&path).unwrap_or(path)
}

/// Returns the home directories of the user at the command line, from the environment and the user database.
pub(crate) fn homes() -> Vec<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let by_id = home_of(&users, rustix::process::getuid().as_raw());
    let by_environment = std::env::var_os("HOME").filter(|home: &OsString| !home.is_empty());
    let homes = by_environment.map(PathBuf::from).into_iter().chain(by_id);
    // If a home is itself a link, both paths count.
    homes.flat_map(|home| [resolved(home.clone()), home]).collect()
}

/// Forbids existing keys and tokens of the machine's other users, which an administrator's mount would expose.
fn forbid_other_homes(policy: &mut MountPolicy) -> Result<(), Quit> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = users.lines().filter_map(|line| line.split(':').nth(5)).map(PathBuf::from);
    let listed = std::fs::read_dir("/home").into_iter().flatten().flatten().map(|entry| entry.path());
    for home in named.chain(listed).filter(|home| home.components().count() > 1) {
        for path in belljar_model::FORBIDDEN_IN_HOME.iter().map(|name| home.join(name)) {
            if path.symlink_metadata().is_ok() {
                policy.forbid(path)?;
            }
        }
    }
    Ok(())
}

/// Returns a user's home directory from the text of `/etc/passwd`.
pub(crate) fn home_of(users: &str, uid: u32) -> Option<PathBuf> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_match = fields.next()?.parse() == Ok(uid);
        fields.nth(2).filter(|_| is_match).map(PathBuf::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_parsed_from_passwd() {
        let users = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:Ann,,:/home/ann:/bin/sh\nbad\n";
        for (uid, expected) in [(0, Some("/root")), (1000, Some("/home/ann")), (5, None)] {
            assert_eq!(home_of(users, uid), expected.map(PathBuf::from));
        }
    }

    #[test]
    fn forbidden_link_forbids_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().canonicalize().unwrap().join("keys");
        std::fs::create_dir(&keys).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&keys, &link).unwrap();
        let mut policy = MountPolicy::new(&[]);
        policy.forbid(link).unwrap();
        forbid_link_targets(&mut policy).unwrap();
        let mount = Mount::new(&keys, "/keys", MountMode::ReadOnly).unwrap();
        grant(&mount, &mut policy).unwrap();
        let refusal = policy.check(&mount, &keys).unwrap_err().to_string();
        assert!(refusal.ends_with("is forbidden"), "{refusal}");
    }
}
