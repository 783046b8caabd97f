//! What the keeper tells about sandboxes, templates and keys.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use belljar_engine::{Capabilities, StoredOutput};
use belljar_model::{
    EngineName, Isolation, Outcome, Role, SandboxId, SandboxSpec, SandboxState, StreamOutput,
};
use belljar_store::{Head, TemplateKind, Verification};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::caller::Quotas;
use crate::json;
use crate::request::Lifetime;

/// A sandbox, as its owner sees it.
#[derive(Debug, Clone)]
pub struct SandboxInfo {
    /// Its id.
    pub id: SandboxId,
    /// Its name.
    pub name: Option<String>,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it is gone.
    pub reason: Option<String>,
    /// What it started from.
    pub template: String,
    /// Its owner's notes.
    pub labels: BTreeMap<String, String>,
    /// Whose it is.
    pub tenant: String,
    /// Which key made it.
    pub key: String,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it could be used.
    pub started_at: Option<Timestamp>,
    /// When its time is over; nothing while its clock stands.
    pub expires_at: Option<Timestamp>,
    /// When it was paused.
    pub paused_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// When it ends by itself.
    pub lifetime: Lifetime,
    /// What it was made to be.
    pub spec: SandboxSpec,
    /// The walls that are really there; nothing once it is gone.
    pub isolation: Option<Isolation>,
    /// The home directory inside.
    pub home: PathBuf,
    /// Published ports.
    pub ports: Vec<u16>,
    /// Whether it was made to build a template in.
    pub for_build: bool,
    /// Whether it had been made ahead.
    pub pooled: bool,
    /// How long its caller waited for it.
    pub start: Duration,
}

/// What came of a command, with its output in one form or another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecResult<Output = StoredOutput> {
    /// The process's number in the sandbox.
    pub process: u64,
    /// Which sandbox.
    pub sandbox: SandboxId,
    /// How it ended.
    pub outcome: Outcome,
    /// Its own exit code, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its standard output; a terminal's output too.
    pub stdout: Output,
    /// Its standard error.
    pub stderr: Output,
    /// From start to end.
    pub wall: Duration,
    /// Processor time.
    pub cpu: Option<Duration>,
    /// The largest resident set of its processes, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Processes that were still running when it ended and were ended with it.
    pub left_behind: u32,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether the session that it ran in goes on.
    pub session_kept: Option<bool>,
}

impl<Output> ExecResult<Output> {
    /// The same with its output in another form.
    pub fn with<Other>(self, change: impl Fn(Output) -> Other) -> ExecResult<Other> {
        ExecResult {
            process: self.process,
            sandbox: self.sandbox,
            outcome: self.outcome,
            exit_code: self.exit_code,
            signal: self.signal,
            stdout: change(self.stdout),
            stderr: change(self.stderr),
            wall: self.wall,
            cpu: self.cpu,
            peak_memory_bytes: self.peak_memory_bytes,
            left_behind: self.left_behind,
            hint: self.hint,
            session_kept: self.session_kept,
        }
    }
}

impl ExecResult {
    /// The same with at most `most` bytes of each stream, head and tail. What cannot be read any more counts as left out.
    #[must_use]
    pub fn cut(self, most: u64) -> ExecResult<StreamOutput> {
        self.with(|kept| kept.cut(most).unwrap_or_else(|_| StreamOutput::new(&[], &[], kept.total_bytes())))
    }
}

/// A template.
#[derive(Debug, Clone)]
pub struct TemplateInfo {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Where it comes from.
    pub kind: TemplateKind,
    /// What its files lie on: `host` for the machine's own tree, `own` for nothing.
    pub base: &'static str,
    /// Modules of a warm interpreter.
    pub warm: Vec<String>,
    /// The sandbox that it was taken from.
    pub source: Option<String>,
    /// SHA-256 of its files, in hexadecimal.
    pub digest: String,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// A note.
    pub note: Option<String>,
    /// The build that has made it step by step.
    pub build: Option<String>,
}

/// An engine of the server, and what it can do here.
#[derive(Debug, Serialize, ToSchema)]
pub struct EngineInfo {
    /// Its name.
    #[schema(value_type = String, example = "local")]
    pub name: EngineName,
    /// Whether it makes the sandboxes that name no engine.
    pub is_default: bool,
    /// What it can do.
    #[serde(flatten)]
    pub capabilities: Capabilities,
}

/// Key metadata, without the secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KeyInfo {
    /// Its id; it is no secret.
    pub id: String,
    /// The first characters of the key.
    #[schema(example = "bj_1a2b…")]
    pub hint: String,
    /// What it is for.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// Whose sandboxes it sees.
    pub tenant: String,
    /// What its sandboxes may use together.
    pub quotas: Quotas,
    /// When it was made.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it stops to work.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Timestamp>,
}

/// A key that was just made.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    /// What is known of it later too.
    #[serde(flatten)]
    pub info: KeyInfo,
    /// The key itself. It is told this once.
    #[schema(example = "bj_00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff")]
    pub key: String,
}

/// Who asks.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// The id of the key.
    pub key: String,
    /// Whose sandboxes it sees.
    pub tenant: String,
    /// What it may do.
    pub role: Role,
    /// What its sandboxes may use together.
    pub quotas: Quotas,
    /// What they use now.
    pub usage: KeyUsage,
}

/// What a sandbox uses.
#[derive(Debug, Clone, Default)]
pub struct SandboxMetrics {
    /// Processor time so far.
    pub cpu: Option<Duration>,
    /// Memory in use, in bytes.
    pub memory_bytes: Option<u64>,
    /// The most memory in use at once, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Processes that were killed because memory ran out.
    pub oom_kills: u64,
    /// Disks inside.
    pub disks: Vec<DiskUse>,
    /// Time since its start, pauses included.
    pub uptime: Duration,
}

/// One disk inside a sandbox.
#[derive(Debug, Clone)]
pub struct DiskUse {
    /// Where it is mounted.
    pub path: String,
    /// Bytes in use.
    pub bytes_used: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Files and directories in use.
    pub inodes_used: u64,
    /// Files and directories in all.
    pub inodes_total: u64,
}

/// A published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedPort {
    /// Its number.
    pub port: u16,
    /// Whether it needs no credential.
    pub public: bool,
}

/// Something that happened to a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogEntry {
    /// Counts up from 1 in each sandbox.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// What, such as `created`, `exec`, `exited`, `paused`; `output` and `ended` are the last.
    pub event: Cow<'static, str>,
    /// The process it is about.
    pub process: Option<u64>,
    /// More about it.
    pub detail: String,
}

/// What the sandboxes of a key use now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Usage)]
pub struct KeyUsage {
    /// Sandboxes that are not gone.
    pub sandboxes: u32,
    /// Sum of their memory limits, in bytes.
    pub memory_bytes: u64,
    /// Sum of their disk limits, in bytes.
    pub disk_bytes: u64,
    /// Processor seconds within the last hour.
    pub cpu_seconds: u64,
}

/// The last record of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditHead {
    /// Its number; 0 if there is none.
    pub seq: i64,
    /// Its hash in hexadecimal, which covers all before it.
    pub hash: String,
}

impl From<Head> for AuditHead {
    fn from(head: Head) -> Self {
        Self { seq: head.seq, hash: hex::encode(head.hash) }
    }
}

/// Whether the audit trail is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum AuditVerdict {
    /// It is.
    Whole {
        /// `true`.
        ok: bool,
        /// How many records there are.
        records: u64,
        /// The last of them. Note it elsewhere: a trail that is cut later shows by it.
        head: AuditHead,
        /// How many records bear an earlier time than the one before them: clocks were set back.
        steps_back: u64,
    },
    /// It is not.
    Broken {
        /// `false`.
        ok: bool,
        /// The first record that is not what it was.
        seq: i64,
        /// What is wrong with it.
        why: String,
    },
}

impl From<Verification> for AuditVerdict {
    fn from(verification: Verification) -> Self {
        match verification {
            Verification::Verified(found) => Self::Whole {
                ok: true,
                records: found.records,
                head: found.head.into(),
                steps_back: found.steps_back,
            },
            Verification::Broken(broken) => {
                Self::Broken { ok: false, seq: broken.seq, why: broken.fault.to_string() }
            }
        }
    }
}
