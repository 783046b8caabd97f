//! What is asked of the keeper, checked before it gets here: none of these can hold a value that is not allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use belljar_engine::Engines;
use belljar_model::{
    Cpus, DomainPattern, Memory, NetworkFile, Pids, SandboxId, SandboxSpec, SandboxState, SpecFile,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::KeeperError;

/// The longest time that a sandbox may be given at once, unless the operator says otherwise.
pub const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The life of a sandbox for which none was asked.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);

/// The most labels of one sandbox.
pub const MAX_LABELS: usize = 64;
/// The longest key of a label, in bytes.
pub const MAX_LABEL_KEY_BYTES: usize = 128;
/// The longest value of a label, in bytes.
pub const MAX_LABEL_VALUE_BYTES: usize = 256;

/// The most bytes of files that come with the request to create a sandbox.
pub const MAX_CREATE_FILE_BYTES: usize = 1 << 20;

/// A request to make a sandbox.
#[derive(Debug, Clone)]
pub struct CreateSandbox {
    /// What it starts from; the one called `default` if none is named.
    pub template: Option<String>,
    /// Its name, unique in its tenant.
    pub name: Option<SandboxName>,
    /// Whether the sandbox of that name is the answer if there is one; otherwise that is an error.
    pub return_existing: bool,
    /// What was said about walls and limits. What was not said comes from the template.
    pub spec: SpecFile,
    /// When it ends, how, and what wakes it.
    pub lifetime: Lifetime,
    /// The caller's own notes.
    pub labels: Labels,
    /// Files to put in before anybody gets it.
    pub files: Vec<NewFile>,
    /// The same key and the same request get the same sandbox.
    pub idempotency: Option<Idempotency>,
}

/// When a sandbox ends by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifetime {
    /// How long it lives, from its start or from when the time is set anew.
    pub timeout: Duration,
    /// How long nobody may use it before its time is over as well.
    pub idle_timeout: Option<Duration>,
    /// What happens when its time is over.
    pub on_timeout: TimeoutAction,
    /// Whether a use of the paused sandbox resumes it.
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

/// What happens when a sandbox's time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutAction {
    /// It ends.
    #[default]
    Kill,
    /// It stands still until somebody resumes it.
    Pause,
}

impl TimeoutAction {
    /// The action's name: `kill` or `pause`.
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

/// A sandbox's name: 1 to 63 of a to z, 0 to 9 and hyphens, the first no hyphen, and not of the form of an id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxName(String);

impl SandboxName {
    /// The name as text.
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

/// A caller's own notes on a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Checks labels.
    ///
    /// # Errors
    /// Too many, an empty key, a key or value that is too long or holds control characters.
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

    /// The labels, by key.
    #[must_use]
    pub fn get(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// The labels, to keep.
    #[must_use]
    pub fn into_inner(self) -> BTreeMap<String, String> {
        self.0
    }
}

/// A file that comes with a request.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Absolute, or relative to the home directory.
    pub path: Bytes,
    /// Permission bits.
    pub mode: u32,
    /// Its content.
    pub content: Bytes,
}

/// Makes a request that is sent twice happen once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's own key of the request, 1 to 255 bytes.
    pub key: String,
    /// SHA-256 of the request, to tell another request with the same key.
    pub request_digest: [u8; 32],
}

/// Which sandboxes to list.
#[derive(Debug, Clone, Default)]
pub struct ListSandboxes {
    /// States to show; all but gone if empty.
    pub states: Vec<SandboxState>,
    /// Labels that all must be there.
    pub labels: BTreeMap<String, String>,
    /// The name.
    pub name: Option<String>,
    /// Whether the oldest come first.
    pub ascending: bool,
    /// At most so many, 1 to 100.
    pub limit: u32,
    /// Cursor from the previous page.
    pub cursor: Option<String>,
}

/// What is changed of a living sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxUpdate {
    /// Labels to set (`Some`) and to remove (`None`).
    pub labels: BTreeMap<String, Option<String>>,
    /// Limits that change at once.
    pub memory: Option<Memory>,
    /// See [`SandboxUpdate::memory`].
    pub cpus: Option<Cpus>,
    /// See [`SandboxUpdate::memory`].
    pub pids: Option<Pids>,
    /// A new idle time; `Some(None)` is none.
    pub idle_timeout: Option<Option<Duration>>,
    /// What happens when its time is over.
    pub on_timeout: Option<TimeoutAction>,
    /// Whether a use of the paused sandbox resumes it.
    pub auto_resume: Option<bool>,
    /// The network policy that replaces the present one.
    pub network: Option<NetworkFile>,
}

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    /// A line for the shell, or a program with its arguments.
    pub command: Command,
    /// Absolute, or relative to the home directory.
    pub cwd: Option<Bytes>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// Fed first, at most 1 MiB.
    pub stdin: Bytes,
    /// Whether more input may come later.
    pub stdin_open: bool,
    /// Rows and columns, to run on a terminal.
    pub terminal: Option<(u16, u16)>,
    /// How long it may take; the sandbox's own time of one execution if not given, zero is without end.
    pub timeout: Option<Duration>,
    /// Bytes that are kept of each stream.
    pub keep_bytes: Option<u64>,
    /// The session to run in.
    pub session: Option<u64>,
    /// The same key and the same request run once.
    pub idempotency: Option<Idempotency>,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A line for `/bin/sh -c`, or for bash where there is one.
    Shell(Bytes),
    /// A program and its arguments.
    Argv(Vec<Bytes>),
}

impl Default for Command {
    fn default() -> Self {
        Self::Argv(Vec::new())
    }
}

/// A request to copy a sandbox's files into new sandboxes.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    /// How many, 1 to 20.
    pub count: u32,
    /// Their life; the original's, from now, if not given.
    pub timeout: Option<Duration>,
    /// Labels over those of the original.
    pub labels: Labels,
    /// Environment over that of the original.
    pub env: BTreeMap<String, String>,
}

/// A request to keep a sandbox's files as a template.
#[derive(Debug, Clone, Default)]
pub struct SnapshotRequest {
    /// The template's name.
    pub name: Option<SandboxName>,
    /// A note.
    pub note: Option<String>,
}

/// The settings of a sandbox that are kept beside its spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// When it ends.
    pub(crate) lifetime: Lifetime,
    /// Whether it came from the pool.
    pub(crate) pooled: bool,
    /// How long the caller waited for it, in microseconds.
    pub(crate) start_us: u64,
    /// The idempotency key that it was asked for with. A keeper that is cut off before the answer is kept finds it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency: Option<String>,
    /// Whether a template is built in it. It ends with the server that builds.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) for_build: bool,
    /// Hosts whose requests the gateway can read since it started; also empty in records of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) read_hosts: BTreeSet<DomainPattern>,
}

/// What the template says, with what the request says laid over it, checked.
pub(crate) fn resolve(
    engines: &Engines,
    template: &SpecFile,
    asked: SpecFile,
) -> Result<SandboxSpec, KeeperError> {
    if asked.language.is_some() {
        return Err(KeeperError::field("language", "a sandbox has no language; give it with each execution"));
    }
    if asked.interactive.is_some() {
        return Err(KeeperError::field("interactive", "it is not for sandboxes of the service"));
    }
    let mut file = template.clone().merge(asked);
    let name = match &file.engine {
        Some(name) => name.parse()?,
        None => engines.default_engine().map(|engine| engine.name()).unwrap_or_default(),
    };
    let engine = engines.get(name).ok_or_else(|| {
        KeeperError::field("engine", format!("\"{name}\" is not in this server; give {}", engines.names()))
    })?;
    file.engine = Some(name.to_string());
    file.limits.timeout.get_or_insert_with(|| engine.capabilities().default_timeout.to_string());
    Ok(file.resolve()?)
}
