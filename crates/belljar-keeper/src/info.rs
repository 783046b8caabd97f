//! Descriptions of sandboxes, templates, keys and other resources, as returned to callers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use belljar_engine::{Capabilities, Finding, StoredOutput};
use belljar_image::Step;
use belljar_model::{
    Approval, EngineName, Hostname, ImageInfo, Isolation, LimitNumbers, Outcome, Role, SandboxId,
    SandboxSpec, SandboxState, StreamOutput, VolumeMount,
};
use belljar_store::{Head, TemplateKind, Verification};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::caller::Quotas;
use crate::json;
use crate::request::TimeoutAction;

/// A sandbox.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SandboxInfo {
    /// Its id.
    #[schema(value_type = String, pattern = "^[a-z][a-z0-9]{19}$", example = "k3v9x2m4q8w1z7t5r6p0")]
    pub id: SandboxId,
    /// Its name.
    pub name: Option<String>,
    /// Its lifecycle state.
    pub state: SandboxState,
    /// Template that it started from.
    pub template: String,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Time of the request.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time at which it became ready.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// Time at which it times out; none while its timeout is suspended.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Idle timeout, in seconds: how long it may be unused before it ends.
    #[serde(rename = "idle_timeout_s", serialize_with = "json::seconds")]
    #[schema(value_type = Option<f64>)]
    pub idle_timeout: Option<Duration>,
    /// Action on timeout.
    pub on_timeout: TimeoutAction,
    /// Whether using the paused sandbox resumes it.
    pub auto_resume: bool,
    /// Time at which it was paused.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub paused_at: Option<Timestamp>,
    /// Time at which it ended.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Reason for its end.
    pub reason: Option<String>,
    /// Id of the approval for which a call waits in it, or of the call of its code that waits for its caller's answer. It stays paused until
    /// then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Its specification.
    #[serde(flatten, serialize_with = "serialize_spec")]
    #[schema(value_type = SpecInfo)]
    pub spec: SandboxSpec,
    /// Isolation mechanisms in force; none once the sandbox has ended.
    pub isolation: Option<Isolation>,
    /// Home directory in the sandbox.
    pub home: String,
    /// Published ports.
    pub ports: Vec<u16>,
    /// Whether it was pre-warmed.
    pub pooled: bool,
    /// Time that its caller waited for it, in milliseconds.
    #[serde(rename = "start_ms", serialize_with = "json::milliseconds")]
    #[schema(value_type = f64)]
    pub start: Duration,
    /// Its tenant.
    pub tenant: String,
    /// Id of the key that created it.
    pub key: String,
    /// Whether it was created to build a template.
    #[serde(skip)]
    pub for_build: bool,
}

/// The part of a sandbox's specification that callers see, besides its network policy.
#[derive(Debug, Serialize, ToSchema)]
pub struct SpecInfo {
    /// Isolation engine.
    #[schema(value_type = String)]
    engine: EngineName,
    /// Resource limits.
    limits: LimitNumbers,
    /// Its host name.
    #[schema(value_type = String)]
    hostname: Hostname,
    /// User as whom programs run that name none, if that is not its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// Its volumes.
    volumes: Vec<MountedVolume>,
    /// Host directories and files that it sees, each as `SOURCE:TARGET:ro` or `SOURCE:TARGET:rw`.
    mounts: Vec<String>,
}

/// A volume that a sandbox mounts.
#[derive(Debug, Serialize, ToSchema)]
struct MountedVolume {
    /// Id.
    id: String,
    /// Name.
    name: String,
    /// Path in the sandbox.
    path: String,
    /// `rw` or `ro`.
    #[schema(pattern = "^r[ow]$")]
    mode: &'static str,
}

impl From<&VolumeMount> for MountedVolume {
    fn from(volume: &VolumeMount) -> Self {
        Self {
            id: volume.image.as_ref().map(|image| image.id.to_string()).unwrap_or_default(),
            name: volume.name.clone(),
            path: volume.path.to_string_lossy().into_owned(),
            mode: volume.mode.as_str(),
        }
    }
}

fn serialize_spec<S: Serializer>(spec: &SandboxSpec, serializer: S) -> Result<S::Ok, S::Error> {
    let info = SpecInfo {
        engine: spec.engine,
        limits: (&spec.limits).into(),
        hostname: spec.hostname.clone(),
        user: spec.user.clone(),
        volumes: spec.volumes.iter().map(Into::into).collect(),
        mounts: spec.mounts.iter().map(ToString::to_string).collect(),
    };
    info.serialize(serializer)
}

/// Result of a command, with its output as `Output`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecResult<Output = StoredOutput> {
    /// Number of the process in the sandbox.
    pub process: u64,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The outcome.
    pub outcome: Outcome,
    /// Exit code, if it exited by itself.
    pub exit_code: Option<i32>,
    /// Signal that killed it.
    pub signal: Option<i32>,
    /// Standard output, or the output of its terminal.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// Wall-clock time.
    pub wall: Duration,
    /// Processor time.
    pub cpu: Option<Duration>,
    /// Largest resident set of its processes, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Number of processes that were still running at its end and were killed.
    pub left_behind: u32,
    /// Suggested remedy.
    pub hint: Option<String>,
    /// Whether the session in which it ran still exists.
    pub session_kept: Option<bool>,
}

impl<Output> ExecResult<Output> {
    /// Converts the output.
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
    /// Cuts each stream to at most `max_bytes` bytes of head and tail. Output that cannot be read any more counts as left out.
    #[must_use]
    pub fn truncate(self, max_bytes: u64) -> ExecResult<StreamOutput> {
        self.with(|kept| {
            kept.truncate(max_bytes).unwrap_or_else(|_| StreamOutput::new(&[], &[], kept.total_bytes()))
        })
    }
}

/// A template.
#[derive(Debug, Clone)]
pub struct TemplateInfo {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Its kind.
    pub kind: TemplateKind,
    /// Base of its files: `host` for the machine's own tree, `own` for none.
    pub base: &'static str,
    /// Modules imported by its warm interpreters.
    pub warm: Vec<String>,
    /// The sandbox of which it is a snapshot.
    pub source: Option<String>,
    /// SHA-256 of its files, in hexadecimal.
    pub digest: String,
    /// Size on disk, in bytes.
    pub bytes: u64,
    /// Time of creation.
    pub created_at: Timestamp,
    /// A note.
    pub note: Option<String>,
    /// The step-by-step build that created it.
    pub build: Option<String>,
    /// Name of the template that its file is based on.
    pub parent: Option<String>,
    /// Steps of its file, in order.
    pub steps: Vec<TemplateStep>,
    /// Limits of its sandboxes, where the caller sets none: name and value, such as `memory` and `1 GiB`.
    pub limits: BTreeMap<String, String>,
    /// Environment variables of its sandboxes.
    pub env: BTreeMap<String, String>,
    /// Whether its sandboxes are machines.
    pub machine: bool,
    /// Command that is started in each sandbox, and keeps running.
    pub start: Option<String>,
    /// Command that succeeds once a sandbox is ready for use.
    pub ready: Option<String>,
    /// Directory of `start` and `ready`.
    pub workdir: Option<String>,
    /// The image that it was made of, if its file is based on one.
    pub image: Option<ImageInfo>,
}

/// A step of a built template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateStep {
    /// Its kind: `apt`, `pip`, `npm`, `run`, `copy`, `env`, `user` or `workdir`.
    pub kind: String,
    /// Its packages, or a one-line summary.
    pub summary: String,
}

impl From<&Step> for TemplateStep {
    fn from(step: &Step) -> Self {
        Self { kind: step.kind.name().to_owned(), summary: step.kind.summary() }
    }
}

/// An engine of the server, with its capabilities.
#[derive(Debug, Serialize, ToSchema)]
pub struct EngineInfo {
    /// Its name.
    #[schema(value_type = String, example = "local")]
    pub name: EngineName,
    /// Whether it is used for sandboxes whose request names no engine.
    pub is_default: bool,
    /// Its capabilities.
    #[serde(flatten)]
    pub capabilities: Capabilities,
    /// What keeps the machine from creating the sandboxes that a request gets by default, as seen when the server was started. Empty if
    /// nothing does.
    pub obstacles: Vec<Finding>,
}

/// Key metadata, without the secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KeyInfo {
    /// Its id, which is not secret.
    pub id: String,
    /// The first characters of the key.
    #[schema(example = "bj_1a2b…")]
    pub hint: String,
    /// Its purpose.
    pub name: String,
    /// Role of its holder.
    pub role: Role,
    /// Its tenant, whose sandboxes it can access.
    pub tenant: String,
    /// Quotas of all its sandboxes together.
    pub quotas: Quotas,
    /// The person to whom it belongs. Keys without an owner are a person each.
    #[serde(default)]
    pub owner: Option<String>,
    /// Whether calls with it wait for approval.
    #[serde(default)]
    #[schema(value_type = String, example = "never")]
    pub approval: Approval,
    /// What its sandboxes on this server use of them now.
    #[serde(default)]
    pub usage: KeyUsage,
    /// Time of creation.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of expiry.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Time of revocation.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
    /// Time of its last use, to the minute.
    #[serde(with = "json::time::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Timestamp>,
}

/// A newly created key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    /// Its metadata.
    #[serde(flatten)]
    pub info: KeyInfo,
    /// The key itself, which is shown only once.
    #[schema(example = "bj_00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff")]
    pub key: String,
}

/// The caller.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// Id of the key.
    pub key: String,
    /// Its tenant, whose sandboxes it can access.
    pub tenant: String,
    /// The person to whom it belongs, if it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its role.
    pub role: Role,
    /// Whether its calls wait for approval.
    #[schema(value_type = String, example = "never")]
    pub approval: Approval,
    /// Quotas of all its sandboxes together.
    pub quotas: Quotas,
    /// Current usage of its sandboxes.
    pub usage: KeyUsage,
}

/// Resource usage of a sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxMetrics {
    /// Processor time so far.
    pub cpu: Option<Duration>,
    /// Memory in use, in bytes.
    pub memory_bytes: Option<u64>,
    /// Peak memory usage, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Number of processes and threads.
    pub pids: Option<u64>,
    /// Number of processes killed because memory ran out.
    pub oom_kills: u64,
    /// Disks in the sandbox.
    pub disks: Vec<DiskUse>,
    /// Time since its start, pauses included.
    pub uptime: Duration,
}

/// Usage of a disk in a sandbox.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Disk)]
pub struct DiskUse {
    /// Mount point.
    pub path: String,
    /// Bytes in use.
    pub bytes_used: u64,
    /// Size in bytes.
    pub bytes_total: u64,
    /// Files and directories in use.
    pub inodes_used: u64,
    /// Maximum number of files and directories.
    pub inodes_total: u64,
}

/// A published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedPort {
    /// Port number.
    pub port: u16,
    /// Whether it can be used without a credential.
    pub public: bool,
}

/// Entry of a sandbox's log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LogEntry {
    /// Sequence number, from 1 in each sandbox.
    pub seq: u64,
    /// Time.
    #[serde(with = "json::time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Kind, such as `created`, `exec`, `exited`, `paused`; the last are `output` and `ended`.
    #[schema(value_type = String)]
    pub event: Cow<'static, str>,
    /// The process concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u64>,
    /// Details.
    pub detail: String,
}

/// Current usage of the sandboxes of a key.
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

/// A record of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditHead {
    /// Its number; 0 if there is none.
    pub seq: i64,
    /// Its hash in hexadecimal, which covers all earlier records.
    pub hash: String,
}

impl From<Head> for AuditHead {
    fn from(head: Head) -> Self {
        Self { seq: head.seq, hash: hex::encode(head.hash) }
    }
}

/// Result of verifying the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum AuditVerdict {
    /// The log is intact.
    Whole {
        /// `true`.
        ok: bool,
        /// Number of records that were checked.
        records: u64,
        /// The first of them. Earlier ones are archived, unless the check was to begin later.
        first: i64,
        /// The last record. Stored elsewhere, it reveals a log that is truncated later.
        head: AuditHead,
        /// Number of records with an earlier time than the one before, because a clock was set back.
        steps_back: u64,
    },
    /// The log has been tampered with.
    Broken {
        /// `false`.
        ok: bool,
        /// The first record that is wrong.
        seq: i64,
        /// The fault.
        why: String,
    },
}

impl From<Verification> for AuditVerdict {
    fn from(verification: Verification) -> Self {
        match verification {
            Verification::Verified(found) => Self::Whole {
                ok: true,
                records: found.records,
                first: found.first,
                head: found.head.into(),
                steps_back: found.steps_back,
            },
            Verification::Broken(broken) => {
                Self::Broken { ok: false, seq: broken.seq, why: broken.fault.to_string() }
            }
        }
    }
}
