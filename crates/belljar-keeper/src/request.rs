//! Requests to the keeper. Their types are validated on construction.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use belljar_engine::Engines;
use belljar_model::{
    Cpus, DomainPattern, HintReader, LimitsGrade, Memory, NetworkFile, Pids, SandboxId, SandboxSpec,
    SandboxState, SpecFile,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::KeeperError;
use crate::tags::is_template_id;

/// Default maximum timeout of a sandbox.
pub const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Default timeout of a sandbox.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);

/// Maximum number of labels of a sandbox.
pub const MAX_LABELS: usize = 64;
/// Maximum length of a label's key, in bytes.
pub const MAX_LABEL_KEY_BYTES: usize = 128;
/// Maximum length of a label's value, in bytes.
pub const MAX_LABEL_VALUE_BYTES: usize = 256;

/// Maximum size in bytes of the files in a request to create a sandbox.
pub const MAX_CREATE_FILE_BYTES: usize = 1 << 20;

/// A request to create a sandbox.
#[derive(Debug, Clone)]
pub struct CreateSandbox {
    /// Name or id of its template; the operator's default if absent.
    pub template: Option<String>,
    /// Name, unique in the tenant.
    pub name: Option<SandboxName>,
    /// Whether an existing sandbox of that name is returned, instead of an error.
    pub return_existing: bool,
    /// Isolation and limits; the template's where absent.
    pub spec: SpecFile,
    /// Its timeouts and what happens then.
    pub lifetime: Lifetime,
    /// Labels, chosen by the caller.
    pub labels: Labels,
    /// Files to write before it is ready.
    pub files: Vec<NewFile>,
    /// Idempotency key: the same request with the same key returns the same sandbox.
    pub idempotency: Option<Idempotency>,
    /// Its ports.
    pub ports: PortSettings,
}

/// Settings of all ports of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSettings {
    /// Access to ports that are not published.
    #[serde(default)]
    pub access: PortAccess,
    /// The host that programs on the ports see; the one that the client used if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostMask>,
}

impl PortSettings {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Access to the ports of a sandbox that are not published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortAccess {
    /// Nobody.
    #[default]
    Published,
    /// Holders of the sandbox's access token.
    Token,
    /// Everyone.
    Public,
}

/// Value of the `Host` header that programs on a sandbox's ports see, in which `{port}` is the port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostMask(String);

impl HostMask {
    /// Returns the host for a port.
    #[must_use]
    pub fn for_port(&self, port: u16) -> String {
        self.0.replace("{port}", &port.to_string())
    }

    /// Returns the mask as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostMask {
    type Err = KeeperError;

    /// Parses `HOST` or `HOST:PORT` of at most 255 bytes, in which `{port}` may occur.
    fn from_str(text: &str) -> Result<Self, KeeperError> {
        let mask = Self(text.to_owned());
        let example = mask.for_port(u16::MAX);
        let (host, port) = example.rsplit_once(':').unwrap_or((&example, "1"));
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty()
            || example.len() > 255
            || !host.bytes().all(is_host)
            || port.parse::<u16>().is_err()
            || port.starts_with('+')
        {
            let reason = "it is not allowed; give a host name, such as localhost:{port}";
            return Err(KeeperError::field("port_host", reason));
        }
        Ok(mask)
    }
}

impl TryFrom<String> for HostMask {
    type Error = KeeperError;

    fn try_from(text: String) -> Result<Self, KeeperError> {
        text.parse()
    }
}

impl From<HostMask> for String {
    fn from(mask: HostMask) -> Self {
        mask.0
    }
}

/// Timeouts of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifetime {
    /// Timeout, from its start or from when it was last set.
    pub timeout: Duration,
    /// Idle timeout, from the end of the last use.
    pub idle_timeout: Option<Duration>,
    /// Action on timeout.
    pub on_timeout: TimeoutAction,
    /// Whether a use resumes the paused sandbox.
    pub auto_resume: bool,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_LIFETIME,
            idle_timeout: None,
            on_timeout: TimeoutAction::Kill,
            auto_resume: true,
        }
    }
}

/// Action when a timeout of a sandbox expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnTimeout)]
pub enum TimeoutAction {
    /// It is stopped.
    #[default]
    Kill,
    /// It is paused until it is resumed.
    Pause,
}

impl TimeoutAction {
    /// Returns the action's name: `kill` or `pause`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
        }
    }
}

impl FromStr for TimeoutAction {
    type Err = KeeperError;

    fn from_str(text: &str) -> Result<Self, KeeperError> {
        match text {
            "kill" => Ok(Self::Kill),
            "pause" => Ok(Self::Pause),
            _ => {
                Err(KeeperError::field("on_timeout", format!("{text:?} is not allowed; give kill or pause")))
            }
        }
    }
}

/// Name of a sandbox: 1 to 63 of a to z, 0 to 9 and hyphens, the first not a hyphen, and not of the form of an id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxName(String);

impl SandboxName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxName {
    type Err = KeeperError;

    fn from_str(text: &str) -> Result<Self, KeeperError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let fits = (1..=63).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with('-')
            && text.parse::<SandboxId>().is_err();
        if !fits {
            return Err(KeeperError::field(
                "name",
                "it is not allowed; give 1 to 63 characters from a to z, 0 to 9 and -, the first one no hyphen, and not \
                 of the form of an id",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SandboxName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Name of a snapshot: 1 to 128 of A to Z, a to z, 0 to 9, `-`, `_` and `.`, with `/` after a namespace and `:` before a tag. Each part
/// begins with a letter or a digit, and the whole does not have the form of an id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotName(String);

impl SnapshotName {
    /// Maximum length of a name, in bytes.
    const MAX_BYTES: usize = 128;

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SnapshotName {
    type Err = KeeperError;

    fn from_str(text: &str) -> Result<Self, KeeperError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_part = |part: &str| {
            part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.bytes().all(allowed)
        };
        let (whole, tag) = text.split_once(':').map_or((text, None), |(name, tag)| (name, Some(tag)));
        let (namespace, name) =
            whole.split_once('/').map_or((None, whole), |(space, name)| (Some(space), name));
        let mut parts = [namespace, Some(name), tag].into_iter().flatten();
        if text.len() > Self::MAX_BYTES || !parts.all(is_part) || is_template_id(text) {
            let reason = format!(
                "it is not allowed; give 1 to {} characters from A to Z, a to z, 0 to 9, -, _ and ., or NAMESPACE/NAME:TAG of such \
                 parts, the first of each a letter or digit, and not of the form of an id",
                Self::MAX_BYTES
            );
            return Err(KeeperError::field("name", reason));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Labels of a sandbox, chosen by the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Checks labels.
    ///
    /// # Errors
    /// Fails if there are too many, or a key or value is too long or has control characters, or a key is empty.
    pub fn new(labels: BTreeMap<String, String>) -> Result<Self, KeeperError> {
        if labels.len() > MAX_LABELS {
            let reason = format!("{} are too many; at most {MAX_LABELS} are allowed", labels.len());
            return Err(KeeperError::field("labels", reason));
        }
        for (key, value) in &labels {
            let reason = if key.is_empty() || key.len() > MAX_LABEL_KEY_BYTES {
                format!("a key has {} bytes; give 1 to {MAX_LABEL_KEY_BYTES}", key.len())
            } else if value.len() > MAX_LABEL_VALUE_BYTES {
                format!(
                    "the value of {key:?} has {} bytes; at most {MAX_LABEL_VALUE_BYTES} are allowed",
                    value.len()
                )
            } else if key.contains('=') || key.chars().chain(value.chars()).any(char::is_control) {
                format!("{key:?}: control characters are not allowed, nor is = in a key")
            } else {
                continue;
            };
            return Err(KeeperError::field("labels", reason));
        }
        Ok(Self(labels))
    }

    /// Returns the labels, by key.
    #[must_use]
    pub fn get(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Converts into the labels, by key.
    #[must_use]
    pub fn into_inner(self) -> BTreeMap<String, String> {
        self.0
    }
}

/// A file in a request.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Path: absolute, or relative to the home directory.
    pub path: Bytes,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub content: Bytes,
}

/// Identifies a request that is executed once, however often it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's key for the request, 1 to 255 bytes.
    pub key: String,
    /// SHA-256 of the request, to detect another request with the same key.
    pub request_digest: [u8; 32],
}

impl Idempotency {
    /// Returns the key with that of the caller, as others of the tenant may use the same one.
    pub(crate) fn key_of(&self, caller: &crate::caller::Caller) -> String {
        format!("{}/{}", caller.key, self.key)
    }
}

/// A request to list sandboxes.
#[derive(Debug, Clone, Default)]
pub struct ListSandboxes {
    /// States to include; all but gone if empty.
    pub states: Vec<SandboxState>,
    /// Labels that a sandbox must have.
    pub labels: BTreeMap<String, String>,
    /// Name that it must have.
    pub name: Option<String>,
    /// Whether to list the oldest first.
    pub ascending: bool,
    /// Page size, 1 to 100.
    pub limit: u32,
    /// Cursor from the previous page.
    pub cursor: Option<String>,
}

/// Changes of a live sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxUpdate {
    /// Labels to set (`Some`) and to remove (`None`).
    pub labels: BTreeMap<String, Option<String>>,
    /// New limits, effective immediately.
    pub memory: Option<Memory>,
    /// See [`SandboxUpdate::memory`].
    pub cpus: Option<Cpus>,
    /// See [`SandboxUpdate::memory`].
    pub pids: Option<Pids>,
    /// New idle timeout; `Some(None)` removes it.
    pub idle_timeout: Option<Option<Duration>>,
    /// Action on timeout.
    pub on_timeout: Option<TimeoutAction>,
    /// Whether a use resumes the paused sandbox.
    pub auto_resume: Option<bool>,
    /// New network policy.
    pub network: Option<NetworkFile>,
}

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    /// The command.
    pub command: Command,
    /// Working directory: absolute, or relative to the home directory.
    pub cwd: Option<Bytes>,
    /// User as whom it runs; the sandbox's own if absent. Others are in machines alone.
    pub user: Option<String>,
    /// Environment, added to the sandbox's.
    pub env: BTreeMap<String, String>,
    /// Input, at most 1 MiB.
    pub stdin: Bytes,
    /// Whether more input may follow later.
    pub stdin_open: bool,
    /// Rows and columns of its terminal, if it runs on one.
    pub terminal: Option<(u16, u16)>,
    /// Timeout; the sandbox's timeout of an execution if not given, none if zero.
    pub timeout: Option<Duration>,
    /// Number of bytes kept of each stream.
    pub keep_bytes: Option<u64>,
    /// The session to run in.
    pub session: Option<u64>,
    /// Who reads the hint of the result.
    pub hint_reader: HintReader,
    /// Idempotency key: the same request with the same key runs once.
    pub idempotency: Option<Idempotency>,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A line for bash, or for `/bin/sh -c` where bash is missing.
    Shell(Bytes),
    /// A program and its arguments.
    Argv(Vec<Bytes>),
}

impl Default for Command {
    fn default() -> Self {
        Self::Argv(Vec::new())
    }
}

/// A request to fork a sandbox.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    /// Number of forks, 1 to 20.
    pub count: u32,
    /// Their timeout; the original's, counted from now, if not given.
    pub timeout: Option<Duration>,
    /// Labels that override those of the original.
    pub labels: Labels,
    /// Environment that overrides that of the original.
    pub env: BTreeMap<String, String>,
}

/// A request for a snapshot of a sandbox.
#[derive(Debug, Clone, Default)]
pub struct SnapshotRequest {
    /// The template's name.
    pub name: Option<SnapshotName>,
    /// A note.
    pub note: Option<String>,
}

/// Stored settings of a sandbox besides its specification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Its timeouts.
    pub(crate) lifetime: Lifetime,
    /// Whether it came from the pool.
    pub(crate) pooled: bool,
    /// Time from the request until it was ready, in microseconds.
    pub(crate) start_us: u64,
    /// Idempotency key of its creation, from which a restarted keeper restores an answer that was not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency: Option<String>,
    /// Whether a template is built in it. It ends with its server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) for_build: bool,
    /// Hosts whose requests the gateway has been able to read since its start; also empty in records of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) read_hosts: BTreeSet<DomainPattern>,
    /// Ids of the keys besides the creator's that have asked for an access token.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) token_keys: BTreeSet<String>,
    /// Settings of its ports.
    #[serde(default, skip_serializing_if = "PortSettings::is_default")]
    pub(crate) ports: PortSettings,
    /// What a call waits for in it: the id of an approval, or of a call whose answer its caller gives. While it is frozen for that nothing
    /// else resumes it, but the next server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held_by: Option<String>,
}

/// Merges the request into the template's specification, and validates the result. `grade` is the server's, which applies unless one
/// of the two names another.
pub(crate) fn resolve(
    engines: &Engines,
    grade: LimitsGrade,
    template: &SpecFile,
    requested: SpecFile,
) -> Result<SandboxSpec, KeeperError> {
    if requested.language.is_some() {
        return Err(KeeperError::field("language", "a sandbox has no language; give it with each execution"));
    }
    if requested.interactive.is_some() {
        return Err(KeeperError::field("interactive", "not allowed for sandboxes of a server"));
    }
    let mut file = template.clone().merge(requested);
    let name = match &file.engine {
        Some(name) => name.parse()?,
        None => engines.default_engine().map(|engine| engine.name()).unwrap_or_default(),
    };
    let engine = engines.get(name).ok_or_else(|| {
        KeeperError::field("engine", format!("\"{name}\" is not in this server; give {}", engines.names()))
    })?;
    file.engine = Some(name.to_string());
    file.grade.get_or_insert_with(|| grade.to_string());
    file.limits.timeout.get_or_insert(engine.capabilities().default_timeout);
    Ok(file.resolve()?)
}
