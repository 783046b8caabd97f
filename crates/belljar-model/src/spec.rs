//! Validated specification of a sandbox.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::checks::{Approval, Screening};
use crate::engine::EngineName;
use crate::env::EnvVar;
use crate::error::ModelError;
use crate::limits::{Limits, LimitsGrade};
use crate::mounts::Mount;
use crate::network::NetworkPolicy;
use crate::spec_file::SpecFile;
use crate::text::serde_as_text;
use crate::tree::Tree;
use crate::volumes::VolumeMount;

/// Specification of a sandbox. Created by [`SpecFile::resolve`].
///
/// Serde writes it in full, including the values of environment variables, and validates it on deserialization like
/// [`SpecFile::resolve`]. That form is for processes on the same machine; people write a [`SpecFile`].
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "crate::spec_wire::SpecWire", into = "crate::spec_wire::SpecWire")]
pub struct SandboxSpec {
    /// Engine.
    pub engine: EngineName,
    /// Limits.
    pub limits: Limits,
    /// How limits are enforced.
    pub grade: LimitsGrade,
    /// Whether it is a machine: its whole tree is writable, and root inside has some of a root's privileges within it. Needs a template with
    /// a tree of its own.
    pub machine: bool,
    /// User of a machine as whom programs run that name none, by name or number; the sandbox's own if absent.
    pub user: Option<String>,
    /// File with the disk of a machine, which a server makes. Without one, what changes is in memory.
    pub disk: Option<PathBuf>,
    /// Network policy.
    pub network: NetworkPolicy,
    /// Mounts of host paths, outer ones first.
    pub mounts: Vec<Mount>,
    /// Volumes, mounted after `mounts`.
    pub volumes: Vec<VolumeMount>,
    /// Environment variables, each name once.
    pub env: Vec<EnvVar>,
    /// Host name.
    pub hostname: Hostname,
    /// Whether it is used interactively by a person.
    pub interactive: bool,
    /// Screening of code before it runs.
    pub screening: Screening,
    /// Approval of executions by a person.
    pub approval: Approval,
    /// Root file system.
    pub tree: Tree,
}

impl SandboxSpec {
    /// Parses a specification in TOML; see [`SpecFile::from_toml`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`SpecFile::from_toml`].
    pub fn from_toml(text: &str) -> Result<SpecFile, ModelError> {
        SpecFile::from_toml(text)
    }

    /// Parses a specification in JSON; see [`SpecFile::from_json`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`SpecFile::from_json`].
    pub fn from_json(text: &str) -> Result<SpecFile, ModelError> {
        SpecFile::from_json(text)
    }
}

/// Name of the user that every sandbox has.
const OWN_USER: &str = "user";

/// Checks the user as whom programs run by default; `None` is the sandbox's own. Whether the machine has the user shows when it runs.
pub(crate) fn check_user(user: String, is_machine: bool) -> Result<Option<String>, ModelError> {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if user == OWN_USER {
        return Ok(None);
    }
    let allowed = if !(1..=32).contains(&user.len()) || !user.bytes().all(letters) || user.starts_with('-') {
        "a user's name or number of 1 to 32 letters, digits, _, . and -, such as root"
    } else if !is_machine {
        "\"user\", or make it a machine (--machine), which has root and the users of its tree"
    } else {
        return Ok(Some(user));
    };
    Err(ModelError::not_allowed("user", user, allowed))
}

/// Host name of one label according to RFC 1123: 1 to 63 letters, digits and hyphens, no hyphen at either end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hostname(String);

impl Hostname {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Hostname {
    fn default() -> Self {
        Self("belljar".to_owned())
    }
}

impl FromStr for Hostname {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !letters || !(1..=63).contains(&text.len()) || text.starts_with('-') || text.ends_with('-') {
            return Err(ModelError::not_allowed(
                "hostname",
                text,
                "1 to 63 letters, digits and hyphens, with no hyphen at either end, such as belljar",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_as_text!(Hostname);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_validated() {
        let label_63 = "a".repeat(63);
        let label_64 = "a".repeat(64);
        for good in ["belljar", "a", "A-1", "0", "a--b", &label_63] {
            assert_eq!(good.parse::<Hostname>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "a.b", "a_b", "é", "a b", "a\n", "a\0", &label_64] {
            let error = bad.parse::<Hostname>().unwrap_err().to_string();
            assert!(error.starts_with("hostname: "), "{error}");
        }
        assert_eq!(Hostname::default().to_string().parse::<Hostname>().unwrap(), Hostname::default());
    }
}
