//! Sandboxes.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_keeper::{
    CreateSandbox, DiskUse, ForkRequest, Idempotency, Labels, Lifetime, LogEntry, NewFile, SandboxInfo,
    SandboxMetrics, SandboxUpdate, SnapshotRequest,
};
use belljar_model::{EnvVar, Isolation, Limits, LimitsFile, NetworkFile, SpecFile};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bytes::{check_path, decode_base64};
use super::file::Mode;
use super::{
    MountedVolumeBody, NetworkBody, Scalar, Span, UniqueMap, VolumeMountBody, object, objects, time,
};
use crate::problem::Problem;

/// A request to create a sandbox. All fields are optional.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSandbox, example = json!({
    "template": "default",
    "timeout": "10m",
    "labels": {"job": "42"},
    "env": {"LANG": "C.UTF-8"},
    "limits": {"memory": "512m", "cpus": 1, "timeout": 60},
    "files": [{"path": "hello.py", "content": "print('hello')\n"}]
}))]
pub(crate) struct CreateSandboxBody {
    /// Template to start from, by id or name. `default` if not given.
    #[schema(example = "default")]
    template: Option<String>,
    /// Its name, unique in its tenant, and not of the form of an id.
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$", example = "my-box")]
    name: Option<String>,
    /// Response if a sandbox of this name exists: an error, or that sandbox.
    if_exists: Option<IfExists>,
    /// Timeout, from 1 s to 24 h or the operator's maximum. 300 s if not given.
    timeout: Option<Span>,
    /// Idle timeout: how long it may be unused before it ends. None, if not given.
    idle_timeout: Option<Span>,
    /// Action on timeout. `kill` if not given.
    on_timeout: Option<OnTimeout>,
    /// Whether using the paused sandbox resumes it. `true` if not given.
    auto_resume: Option<bool>,
    /// The caller's labels: at most 64, keys of 128 and values of 256 bytes.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    labels: Option<UniqueMap<String>>,
    /// Environment variables of all processes in it.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    env: Option<UniqueMap<String>>,
    /// Resource limits.
    #[serde(default, deserialize_with = "object")]
    limits: Option<LimitsBody>,
    /// Network policy, as a mode or in full. `disabled`, the default, allows only connections within the sandbox.
    network: Option<NetworkBody>,
    /// Isolation engine, such as `local`.
    #[schema(example = "local")]
    engine: Option<String>,
    /// Enforcement of limits: `cgroup` or `watched`.
    #[schema(example = "cgroup")]
    grade: Option<String>,
    /// Its host name.
    #[schema(example = "box")]
    hostname: Option<String>,
    /// Directories of the host, each as `SOURCE:TARGET[:ro|rw]`. For keys with the role admin.
    mounts: Option<Vec<String>>,
    /// Volumes of its tenant, at most 16.
    #[serde(default, deserialize_with = "objects")]
    volumes: Option<Vec<VolumeMountBody>>,
    /// Files to write before the sandbox is handed out, 1 MiB in all.
    #[serde(default, deserialize_with = "objects")]
    files: Option<Vec<NewFileBody>>,
}

/// Response if a sandbox of the name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum IfExists {
    Error,
    Return,
}

/// Action on a sandbox's timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnTimeout {
    Kill,
    Pause,
}

impl From<OnTimeout> for belljar_keeper::TimeoutAction {
    fn from(action: OnTimeout) -> Self {
        match action {
            OnTimeout::Kill => Self::Kill,
            OnTimeout::Pause => Self::Pause,
        }
    }
}

/// Resource limits of a sandbox. A size is a number of bytes or a text such as `256m`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LimitsRequest)]
struct LimitsBody {
    /// Memory of everything in it, including files in memory.
    memory: Option<Scalar>,
    /// Processors, such as 0.5.
    cpus: Option<Scalar>,
    /// Timeout of one execution, unless the execution sets its own.
    timeout: Option<Scalar>,
    /// Maximum number of processes and threads.
    pids: Option<Scalar>,
    /// Size of `/tmp`.
    tmp: Option<Scalar>,
    /// Size of the writable disk.
    disk: Option<Scalar>,
    /// Files and directories.
    inodes: Option<Scalar>,
    /// Bytes captured of each output stream.
    output: Option<Scalar>,
    /// Open file descriptors of one process.
    open_files: Option<Scalar>,
}

/// A file to write into a sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewFile)]
struct NewFileBody {
    /// Absolute, or below the home directory.
    path: String,
    /// Its content, as text. Either this or `content_base64`.
    #[serde(default)]
    content: Option<String>,
    /// Its content, in base64.
    #[serde(default)]
    content_base64: Option<String>,
    /// Permission bits in octal. `0644` if not given.
    #[serde(default)]
    mode: Option<Mode>,
}

impl CreateSandboxBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_request(
        self,
        idempotency: Option<Idempotency>,
        default_timeout: Duration,
    ) -> Result<CreateSandbox, Problem> {
        let limits = self.limits.unwrap_or_default().into_file();
        let env = self.env.map(|env| env.0);
        for (name, value) in env.iter().flatten() {
            EnvVar::new(name, value)
                .map_err(|error| Problem::from(belljar_keeper::KeeperError::from(error)))?;
        }
        let spec = SpecFile {
            engine: self.engine,
            limits,
            grade: self.grade,
            network: self.network.map(NetworkBody::into_file),
            mounts: self.mounts,
            volumes: self.volumes.map(|volumes| volumes.into_iter().map(Into::into).collect()),
            env,
            hostname: self.hostname,
            ..SpecFile::default()
        };
        let default = Lifetime { timeout: default_timeout, ..Lifetime::default() };
        let lifetime = Lifetime {
            timeout: self.timeout.map_or(default.timeout, |timeout| timeout.0),
            idle_timeout: self.idle_timeout.map(|idle| idle.0).filter(|idle| !idle.is_zero()),
            on_timeout: self.on_timeout.map_or(default.on_timeout, Into::into),
            auto_resume: self.auto_resume.unwrap_or(default.auto_resume),
        };
        let files = self.files.unwrap_or_default().into_iter().enumerate();
        Ok(CreateSandbox {
            template: self.template,
            name: self.name.map(|name| name.parse()).transpose()?,
            return_existing: self.if_exists == Some(IfExists::Return),
            spec,
            lifetime,
            labels: Labels::new(self.labels.unwrap_or_default().0)?,
            files: files.map(|(index, file)| file.into_file(index)).collect::<Result<_, _>>()?,
            idempotency,
        })
    }
}

impl LimitsBody {
    fn into_file(self) -> LimitsFile {
        let text = |value: Option<Scalar>| value.map(|value| value.0);
        LimitsFile {
            memory: text(self.memory),
            cpus: text(self.cpus),
            timeout: text(self.timeout),
            pids: text(self.pids),
            tmp: text(self.tmp),
            disk: text(self.disk),
            inodes: text(self.inodes),
            output: text(self.output),
            log: None,
            open_files: text(self.open_files),
        }
    }
}

impl NewFileBody {
    fn into_file(self, index: usize) -> Result<NewFile, Problem> {
        let field = |name: &str| format!("files[{index}].{name}");
        check_path(&field("path"), self.path.as_bytes())?;
        let content = match (self.content, self.content_base64) {
            (Some(_), Some(_)) => {
                return Err(Problem::field(field("content_base64"), "give either content or content_base64"));
            }
            (Some(text), None) => text.into(),
            (None, Some(text)) => decode_base64(&field("content_base64"), &text)?,
            (None, None) => {
                return Err(Problem::field(
                    field("content"),
                    "it is missing; give content or content_base64",
                ));
            }
        };
        Ok(NewFile { path: self.path.into(), mode: self.mode.map_or(0o644, |mode| mode.0), content })
    }
}

/// Changes to a running sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateSandbox, example = json!({
    "labels": {"job": "43", "old": null},
    "limits": {"memory": "1g"},
    "idle_timeout": "5m"
}))]
pub(crate) struct UpdateBody {
    /// Labels to set, and with `null` to remove.
    #[schema(value_type = Option<BTreeMap<String, Option<String>>>)]
    labels: Option<UniqueMap<Option<String>>>,
    /// Limits that can be changed while it runs.
    #[serde(default, deserialize_with = "object")]
    limits: Option<LiveLimitsBody>,
    /// Idle timeout: how long it may be unused before it ends; 0 removes it.
    idle_timeout: Option<Span>,
    /// Action on timeout.
    on_timeout: Option<OnTimeout>,
    /// Whether using the paused sandbox resumes it.
    auto_resume: Option<bool>,
    /// New network policy, which replaces the previous one. Connections that it does not allow are cut. A sandbox that
    /// was created with the network `disabled` cannot get another policy.
    network: Option<NetworkBody>,
}

/// Limits that can be changed while a sandbox runs.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LiveLimits)]
struct LiveLimitsBody {
    /// Memory of everything in it.
    memory: Option<Scalar>,
    /// Processors.
    cpus: Option<Scalar>,
    /// Maximum number of processes and threads.
    pids: Option<Scalar>,
}

impl UpdateBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_update(self) -> Result<SandboxUpdate, Problem> {
        fn read<T: std::str::FromStr<Err = belljar_model::ModelError>>(
            value: Option<Scalar>,
        ) -> Result<Option<T>, Problem> {
            let read = value.map(|value| value.0.parse::<T>()).transpose();
            read.map_err(|error| belljar_keeper::KeeperError::from(error).into())
        }
        let limits = self.limits.unwrap_or_default();
        Ok(SandboxUpdate {
            labels: self.labels.unwrap_or_default().0,
            memory: read(limits.memory)?,
            cpus: read(limits.cpus)?,
            pids: read(limits.pids)?,
            idle_timeout: self.idle_timeout.map(|idle| Some(idle.0).filter(|idle| !idle.is_zero())),
            on_timeout: self.on_timeout.map(Into::into),
            auto_resume: self.auto_resume,
            network: self.network.map(NetworkBody::into_file),
        })
    }
}

/// A request to save a sandbox's files as a template.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Snapshot, example = json!({"name": "with-numpy", "note": "numpy 2.4 installed"}))]
pub(crate) struct SnapshotBody {
    /// The template's name.
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    name: Option<String>,
    /// Description.
    note: Option<String>,
}

impl SnapshotBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_request(self) -> Result<SnapshotRequest, Problem> {
        Ok(SnapshotRequest { name: self.name.map(|name| name.parse()).transpose()?, note: self.note })
    }
}

/// A request to copy a sandbox's files into new sandboxes.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Fork, example = json!({"count": 3, "labels": {"try": "1"}}))]
pub(crate) struct ForkBody {
    /// Number of copies. 1 if not given.
    #[schema(minimum = 1, maximum = 20)]
    count: Option<u32>,
    /// Timeout from now on. The original's timeout, if not given.
    timeout: Option<Span>,
    /// Labels, merged over those of the original.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    labels: Option<UniqueMap<String>>,
    /// Environment, merged over that of the original.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    env: Option<UniqueMap<String>>,
    /// Which memory is copied: `none`, the only mode that this version supports.
    #[schema(value_type = Option<String>, pattern = "^none$", example = "none")]
    memory: Option<String>,
}

impl ForkBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_request(self) -> Result<ForkRequest, Problem> {
        let count = self.count.unwrap_or(1);
        if !(1..=20).contains(&count) {
            return Err(Problem::field("count", format!("{count} is not allowed; give 1 to 20")));
        }
        if self.memory.as_deref().is_some_and(|memory| memory != "none") {
            let reason = "only \"none\" is allowed: files come along, and interpreters start afresh; write what they hold to files first";
            return Err(Problem::field("memory", reason));
        }
        Ok(ForkRequest {
            count,
            timeout: self.timeout.map(|timeout| timeout.0),
            labels: Labels::new(self.labels.unwrap_or_default().0)?,
            env: self.env.unwrap_or_default().0,
        })
    }
}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxInfo)]
pub(crate) struct SandboxInfoBody {
    /// Its id.
    #[schema(pattern = "^[a-z][a-z0-9]{19}$", example = "k3v9x2m4q8w1z7t5r6p0")]
    id: String,
    /// Its name.
    name: Option<String>,
    /// Its lifecycle state.
    #[schema(value_type = State)]
    state: &'static str,
    /// Template that it started from.
    template: String,
    /// The caller's labels.
    labels: BTreeMap<String, String>,
    /// Time of the request.
    #[schema(format = DateTime)]
    created_at: String,
    /// Time at which it became ready.
    #[schema(format = DateTime)]
    started_at: Option<String>,
    /// Time at which it times out; none while its timeout is suspended.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// Idle timeout, in seconds: how long it may be unused before it ends.
    idle_timeout_s: Option<f64>,
    /// Action on timeout.
    #[schema(value_type = OnTimeout)]
    on_timeout: &'static str,
    /// Whether using the paused sandbox resumes it.
    auto_resume: bool,
    /// Time at which it was paused.
    #[schema(format = DateTime)]
    paused_at: Option<String>,
    /// Time at which it ended.
    #[schema(format = DateTime)]
    ended_at: Option<String>,
    /// Reason for its end.
    reason: Option<String>,
    /// Isolation engine.
    engine: String,
    /// Resource limits.
    limits: LimitsInfo,
    /// Network policy.
    #[schema(value_type = NetworkBody)]
    network: NetworkFile,
    /// Isolation mechanisms in force; none once the sandbox has ended.
    #[schema(value_type = Option<IsolationInfo>)]
    isolation: Option<Isolation>,
    /// Home directory in the sandbox.
    home: String,
    /// Its host name.
    hostname: String,
    /// Its volumes.
    volumes: Vec<MountedVolumeBody>,
    /// Published ports.
    ports: Vec<u16>,
    /// Pattern of the host names of its ports, with `{port}` to be replaced.
    #[schema(example = "{port}-k3v9x2m4q8w1z7t5r6p0.sandbox.example.com")]
    host: Option<String>,
    /// Whether it was pre-warmed.
    pooled: bool,
    /// Time that its caller waited for it, in milliseconds.
    start_ms: f64,
    /// Its tenant.
    tenant: String,
    /// Id of the key that created it.
    key: String,
}

/// Lifecycle state of a sandbox.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum State {
    Creating,
    Running,
    Paused,
    Stopping,
    Gone,
}

/// Resource limits of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Limits)]
struct LimitsInfo {
    memory_bytes: u64,
    cpus: f64,
    timeout_s: f64,
    pids: u32,
    tmp_bytes: u64,
    disk_bytes: u64,
    inodes: u64,
    output_bytes: u64,
    open_files: u64,
}

/// Isolation of a sandbox: the mechanisms that are in force.
#[derive(ToSchema)]
#[schema(as = Isolation)]
#[expect(dead_code, reason = "only its schema is used")]
struct IsolationInfo {
    /// Isolation engine.
    engine: String,
    /// Enforcement of limits.
    grade: String,
    /// Source of the file system.
    tree: String,
    /// All isolation mechanisms, in the order in which they were set up.
    layers: Vec<LayerInfo>,
}

/// An isolation mechanism.
#[derive(ToSchema)]
#[schema(as = Layer)]
#[expect(dead_code, reason = "only its schema is used")]
struct LayerInfo {
    /// Its name, such as `seccomp`.
    name: String,
    /// `in_force`, `weaker` or `absent`.
    state: String,
    /// Details.
    detail: String,
}

impl SandboxInfoBody {
    /// Converts the info as its owner may see it. `domain` is that of the ports' host names.
    pub(crate) fn new(info: SandboxInfo, domain: Option<&str>) -> Self {
        Self {
            host: domain.map(|domain| format!("{{port}}-{}.{domain}", info.id)),
            id: info.id.to_string(),
            name: info.name,
            state: info.state.as_str(),
            template: info.template,
            labels: info.labels,
            created_at: time(info.created_at),
            started_at: info.started_at.map(time),
            expires_at: info.expires_at.map(time),
            idle_timeout_s: info.lifetime.idle_timeout.map(|idle| idle.as_secs_f64()),
            on_timeout: info.lifetime.on_timeout.as_str(),
            auto_resume: info.lifetime.auto_resume,
            paused_at: info.paused_at.map(time),
            ended_at: info.ended_at.map(time),
            reason: info.reason,
            engine: info.spec.engine.to_string(),
            limits: LimitsInfo::new(&info.spec.limits),
            network: info.spec.network.without_values(),
            isolation: info.isolation,
            home: info.home.to_string_lossy().into_owned(),
            hostname: info.spec.hostname.as_str().to_owned(),
            volumes: info.spec.volumes.iter().map(Into::into).collect(),
            ports: info.ports,
            pooled: info.pooled,
            start_ms: belljar_model::milliseconds(info.start),
            tenant: info.tenant,
            key: info.key,
        }
    }
}

impl LimitsInfo {
    fn new(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory.bytes(),
            cpus: f64::from(limits.cpus.millis()) / 1000.0,
            timeout_s: limits.timeout.duration().as_secs_f64(),
            pids: limits.pids.get(),
            tmp_bytes: limits.tmp.bytes(),
            disk_bytes: limits.disk.bytes(),
            inodes: limits.inodes.get(),
            output_bytes: limits.output.bytes(),
            open_files: limits.open_files.get(),
        }
    }
}

/// Resource usage of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Metrics)]
pub(crate) struct MetricsBody {
    /// Time of the measurement.
    #[schema(format = DateTime)]
    at: String,
    /// Total processor time, in seconds.
    cpu_s: Option<f64>,
    /// Memory in use, in bytes.
    memory_bytes: Option<u64>,
    /// Peak memory usage, in bytes.
    memory_peak_bytes: Option<u64>,
    /// Memory limit, in bytes.
    memory_limit_bytes: u64,
    /// Processor limit.
    cpus: f64,
    /// Processes and threads.
    pids: Option<u64>,
    /// Limit on processes and threads.
    pids_limit: u32,
    /// Disks in the sandbox.
    disks: Vec<DiskBody>,
    /// Processes that were killed for lack of memory.
    oom_kills: u64,
    /// Time since its start, including pauses, in seconds.
    uptime_s: f64,
}

/// A disk of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Disk)]
struct DiskBody {
    path: String,
    bytes_used: u64,
    bytes_total: u64,
    inodes_used: u64,
    inodes_total: u64,
}

impl From<DiskUse> for DiskBody {
    fn from(disk: DiskUse) -> Self {
        Self {
            path: disk.path,
            bytes_used: disk.bytes_used,
            bytes_total: disk.bytes_total,
            inodes_used: disk.inodes_used,
            inodes_total: disk.inodes_total,
        }
    }
}

impl MetricsBody {
    /// Combines the current usage with the limits.
    pub(crate) fn new(metrics: SandboxMetrics, limits: &Limits) -> Self {
        let allowed = LimitsInfo::new(limits);
        Self {
            at: time(Timestamp::now()),
            cpu_s: metrics.cpu.as_ref().map(Duration::as_secs_f64),
            memory_bytes: metrics.memory_bytes,
            memory_peak_bytes: metrics.memory_peak_bytes,
            memory_limit_bytes: allowed.memory_bytes,
            cpus: allowed.cpus,
            pids: metrics.pids,
            pids_limit: allowed.pids,
            disks: metrics.disks.into_iter().map(Into::into).collect(),
            oom_kills: metrics.oom_kills,
            uptime_s: metrics.uptime.as_secs_f64(),
        }
    }
}

/// Log of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Logs)]
pub(crate) struct LogsBody {
    /// Entries, oldest first.
    entries: Vec<LogEntryBody>,
    /// Value of `after` for the next page.
    next: u64,
}

/// A log entry of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogEntry)]
struct LogEntryBody {
    #[schema(format = DateTime)]
    at: String,
    /// Sequence number, from 1 on.
    seq: u64,
    /// Kind of entry, such as `created`, `exec` or `paused`.
    #[schema(value_type = String)]
    event: std::borrow::Cow<'static, str>,
    /// The process concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u64>,
    /// Details.
    detail: String,
}

impl LogsBody {
    /// Creates the page that began after `after`.
    pub(crate) fn new(entries: Vec<LogEntry>, after: u64) -> Self {
        let next = entries.last().map_or(after, |entry| entry.seq);
        let entries = entries.into_iter().map(|entry| LogEntryBody {
            at: time(entry.at),
            seq: entry.seq,
            event: entry.event,
            process: entry.process,
            detail: entry.detail,
        });
        Self { entries: entries.collect(), next }
    }
}
