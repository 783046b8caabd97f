//! Specification of a sandbox as given by a file or by flags, before validation.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::checks::{Approval, Screening};
use crate::env::EnvVar;
use crate::error::ModelError;
use crate::limits::LimitsFile;
use crate::mounts::Mount;
use crate::network::{NetworkFile, NetworkPolicy};
use crate::node::{Fields, Node};
use crate::spec::{Hostname, SandboxSpec, check_user};
use crate::volumes::{VolumeFile, VolumeMount, check_volumes};

/// Maximum length of a specification, in bytes: 1 MiB.
pub const MAX_SPEC_BYTES: usize = 1 << 20;

/// Specification as given: each value as text, and only those that were given.
///
/// Flags, TOML and JSON all use this type, so all have the same keys, values and messages. Unknown and duplicate keys are
/// refused. A number may be written as such or as a text; null counts as not given.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
pub struct SpecFile {
    /// Engine, such as `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Language of the code, by name or alias. Used by the caller that runs the code, not by the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Limits.
    pub limits: LimitsFile,
    /// How limits are enforced: `cgroup` or `watched`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grade: Option<String>,
    /// Whether it is a machine: root inside, and a tree that is writable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<bool>,
    /// User as whom programs run that name none, such as `root`; only in machines another than the sandbox's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Network policy: a mode such as `disabled`, or a table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkFile>,
    /// Mounts of host paths, each as `SOURCE:TARGET[:ro|rw]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounts: Option<Vec<String>>,
    /// Volumes of a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<VolumeFile>>,
    /// Environment variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Whether it is used interactively by a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<bool>,
    /// Screening of code before it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub screening: Option<Screening>,
    /// Approval of executions by a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
}

impl SpecFile {
    /// Parses TOML.
    ///
    /// # Errors
    ///
    /// Fails if the text is longer than [`MAX_SPEC_BYTES`], is not TOML, or has an unknown key or a value of the wrong type.
    /// Values themselves are validated by [`resolve`](Self::resolve).
    pub fn from_toml(text: &str) -> Result<Self, ModelError> {
        check_length(text)?;
        Self::from_node(Node::from_toml(text)?)
    }

    /// Parses JSON.
    ///
    /// # Errors
    ///
    /// Fails if the text is longer than [`MAX_SPEC_BYTES`], is not JSON, or has an unknown or duplicate key or a value of the
    /// wrong type. Values themselves are validated by [`resolve`](Self::resolve).
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        check_length(text)?;
        Self::from_node(Node::from_json(text)?)
    }

    /// Adds an environment variable, written as `NAME=value`, replacing one of that name.
    ///
    /// # Errors
    ///
    /// Fails if the text has no `=`, or if the name or value is invalid.
    pub fn add_env(&mut self, text: &str) -> Result<(), ModelError> {
        let variable: EnvVar = text.parse()?;
        let (name, value) = (variable.name().to_owned(), variable.value().to_owned());
        self.env.get_or_insert_default().insert(name, value);
        Ok(())
    }

    /// Adds a mount, written as `SOURCE:TARGET[:ro|rw]`. It is validated by [`resolve`](Self::resolve).
    pub fn add_mount(&mut self, text: impl Into<String>) {
        self.mounts.get_or_insert_default().push(text.into());
    }

    /// Merges with another one: values in `over` win. Its mounts and volumes are appended, and its environment variables are added to or
    /// replace those that are here.
    ///
    /// Its network policy replaces this one as a whole: merged lists would allow more than either of the two, which would surprise their
    /// authors. Of screening and approval, the stricter value wins.
    #[must_use]
    pub fn merge(self, over: Self) -> Self {
        let mounts = append(self.mounts, over.mounts);
        let env = match (self.env, over.env) {
            (Some(here), Some(over)) => Some(here.into_iter().chain(over).collect()),
            (here, over) => over.or(here),
        };
        Self {
            engine: over.engine.or(self.engine),
            language: over.language.or(self.language),
            limits: self.limits.merge(over.limits),
            grade: over.grade.or(self.grade),
            machine: over.machine.or(self.machine),
            user: over.user.or(self.user),
            network: over.network.or(self.network),
            mounts,
            volumes: append(self.volumes, over.volumes),
            env,
            hostname: over.hostname.or(self.hostname),
            interactive: over.interactive.or(self.interactive),
            screening: self.screening.max(over.screening),
            approval: self.approval.max(over.approval),
        }
    }

    /// Validates every value and fills in the defaults. `language` is left to the caller.
    ///
    /// # Errors
    ///
    /// Fails if a value is not allowed, or if mounts conflict.
    pub fn resolve(self) -> Result<SandboxSpec, ModelError> {
        let mounts: Vec<Mount> =
            self.mounts.unwrap_or_default().iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let volumes: Vec<VolumeMount> = self
            .volumes
            .unwrap_or_default()
            .into_iter()
            .map(VolumeFile::resolve)
            .collect::<Result<_, _>>()?;
        check_volumes(&mounts, &volumes)?;
        let screening = self.screening.unwrap_or_default();
        screening.check_available()?;
        let approval = self.approval.unwrap_or_default();
        approval.check_available()?;
        let env = self.env.unwrap_or_default().into_iter();
        Ok(SandboxSpec {
            engine: parse_or_default(self.engine)?,
            limits: self.limits.resolve(),
            grade: parse_or_default(self.grade)?,
            machine: self.machine.unwrap_or(false),
            user: self.user.map(|user| check_user(user, self.machine == Some(true))).transpose()?.flatten(),
            disk: None,
            network: self.network.map(resolve_network).transpose()?.unwrap_or_default(),
            mounts,
            volumes,
            env: env.map(|(name, value)| EnvVar::new(name, value)).collect::<Result<_, _>>()?,
            hostname: parse_or_default::<Hostname>(self.hostname)?,
            interactive: self.interactive.unwrap_or(false),
            screening,
            approval,
            tree: crate::tree::Tree::Host,
        })
    }

    fn from_node(node: Node) -> Result<Self, ModelError> {
        let mut fields = Fields::root(node)?;
        let spec = Self {
            engine: fields.text("engine")?,
            language: fields.text("language")?,
            limits: fields.table("limits")?.map(LimitsFile::from_fields).transpose()?.unwrap_or_default(),
            grade: fields.text("grade")?,
            machine: fields.flag("machine")?,
            user: fields.text("user")?,
            network: fields.take("network").map(NetworkFile::from_node).transpose()?,
            mounts: fields.texts("mounts")?,
            volumes: fields.take("volumes").map(VolumeFile::list).transpose()?,
            env: fields.text_table("env")?,
            hostname: fields.text("hostname")?,
            interactive: fields.flag("interactive")?,
            screening: fields.text("screening")?.map(|text| text.parse()).transpose()?,
            approval: fields.text("approval")?.map(|text| text.parse()).transpose()?,
        };
        fields.finish()?;
        Ok(spec)
    }
}

impl fmt::Debug for SpecFile {
    /// Formats everything but the values of environment variables, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpecFile")
            .field("engine", &self.engine)
            .field("language", &self.language)
            .field("limits", &self.limits)
            .field("grade", &self.grade)
            .field("machine", &self.machine)
            .field("user", &self.user)
            .field("network", &self.network)
            .field("mounts", &self.mounts)
            .field("volumes", &self.volumes)
            .field("env", &self.env.as_ref().map(|env| env.keys().collect::<Vec<_>>()))
            .field("hostname", &self.hostname)
            .field("interactive", &self.interactive)
            .field("screening", &self.screening)
            .field("approval", &self.approval)
            .finish()
    }
}

impl<'de> Deserialize<'de> for SpecFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_node(Node::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Appends `over` to `here`.
fn append<T>(here: Option<Vec<T>>, over: Option<Vec<T>>) -> Option<Vec<T>> {
    match (here, over) {
        (Some(here), Some(over)) => Some(here.into_iter().chain(over).collect()),
        (here, over) => over.or(here),
    }
}

fn check_length(text: &str) -> Result<(), ModelError> {
    if text.len() > MAX_SPEC_BYTES {
        return Err(ModelError::TooLong { bytes: text.len(), max_bytes: MAX_SPEC_BYTES });
    }
    Ok(())
}

/// Validates a network policy in full before refusing what this version cannot enforce, so that mistakes show at once.
fn resolve_network(network: NetworkFile) -> Result<NetworkPolicy, ModelError> {
    let policy = network.resolve()?;
    policy.check_available()?;
    Ok(policy)
}

fn parse_or_default<T>(text: Option<String>) -> Result<T, ModelError>
where
    T: std::str::FromStr<Err = ModelError> + Default,
{
    text.map_or_else(|| Ok(T::default()), |text| text.parse())
}

#[cfg(test)]
mod tests;
