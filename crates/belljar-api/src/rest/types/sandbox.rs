//! Sandboxes.

use std::time::Duration;

use belljar_keeper::{
    CreateSandbox, DiskUse, ForkRequest, Idempotency, Labels, Lifetime, LogEntry, NewFile, PortSettings,
    SandboxInfo, SandboxMetrics, SandboxUpdate, SnapshotRequest, TimeoutAction,
};
use belljar_model::{Cpus, Limits, LimitsFile, Memory, NetworkFile, Pids, Scalar, SpecFile, VolumeFile};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bytes::{check_path, decode_base64};
use super::file::Mode;
use super::{NetworkBody, Span, UniqueMap, object, objects, parse_env, time};
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
    /// Template to start from, by id or name. The operator's default if not given, which is `default` unless set otherwise.
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
    on_timeout: Option<TimeoutAction>,
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
    limits: Option<LimitsFile>,
    /// Network policy, as a mode or in full. `disabled`, the default, allows only connections within the sandbox.
    network: Option<NetworkBody>,
    /// `Host` header that programs on its ports get, instead of the host that the client used; `{port}` is the port. For servers
    /// that refuse unknown hosts, as development servers do.
    #[schema(max_length = 255, example = "localhost:{port}")]
    port_host: Option<String>,
    /// Isolation engine, such as `local`.
    #[schema(example = "local")]
    engine: Option<String>,
    /// Enforcement of limits: `cgroup` or `watched`.
    #[schema(example = "cgroup")]
    grade: Option<String>,
    /// Whether it is a machine: root inside, and a tree that is writable. Needs a template with a tree of its own. For keys with the role
    /// admin.
    machine: Option<bool>,
    /// User as whom programs run that name none, such as `root`, in a machine. The sandbox's own user, `user`, if not given.
    user: Option<String>,
    /// Its host name.
    #[schema(example = "box")]
    hostname: Option<String>,
    /// Directories of the host, each as `SOURCE:TARGET[:ro|rw]`. For keys with the role admin.
    mounts: Option<Vec<String>>,
    /// Volumes of its tenant, at most 16.
    #[serde(default, deserialize_with = "objects")]
    volumes: Option<Vec<VolumeFile>>,
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
        let spec = SpecFile {
            engine: self.engine,
            limits: self.limits.unwrap_or_default(),
            grade: self.grade,
            machine: self.machine,
            user: self.user,
            network: self.network.map(NetworkBody::into_file),
            mounts: self.mounts,
            volumes: self.volumes,
            env: Some(parse_env(self.env)?).filter(|env| !env.is_empty()),
            hostname: self.hostname,
            ..SpecFile::default()
        };
        let default = Lifetime { timeout: default_timeout, ..Lifetime::default() };
        let lifetime = Lifetime {
            timeout: self.timeout.map_or(default.timeout, |timeout| timeout.0),
            idle_timeout: self.idle_timeout.map(|idle| idle.0).filter(|idle| !idle.is_zero()),
            on_timeout: self.on_timeout.unwrap_or(default.on_timeout),
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
            ports: PortSettings {
                host: self.port_host.map(|host| host.parse()).transpose()?,
                ..PortSettings::default()
            },
        })
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
    on_timeout: Option<TimeoutAction>,
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
    #[schema(value_type = Option<Scalar>)]
    memory: Option<Memory>,
    /// Processors.
    #[schema(value_type = Option<Scalar>)]
    cpus: Option<Cpus>,
    /// Maximum number of processes and threads.
    #[schema(value_type = Option<Scalar>)]
    pids: Option<Pids>,
}

impl UpdateBody {
    /// Converts the body to the keeper's request.
    pub(crate) fn into_update(self) -> Result<SandboxUpdate, Problem> {
        let limits = self.limits.unwrap_or_default();
        Ok(SandboxUpdate {
            labels: self.labels.unwrap_or_default().0,
            memory: limits.memory,
            cpus: limits.cpus,
            pids: limits.pids,
            idle_timeout: self.idle_timeout.map(|idle| Some(idle.0).filter(|idle| !idle.is_zero())),
            on_timeout: self.on_timeout,
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
    /// The template's name, such as `with-numpy` or `team/With_numpy.2:v1`.
    #[schema(
        max_length = 128,
        pattern = "^([A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9][A-Za-z0-9._-]*)?$"
    )]
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
            env: parse_env(self.env)?,
        })
    }
}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sandbox)]
pub(crate) struct SandboxBody {
    #[serde(flatten)]
    info: SandboxInfo,
    /// Network policy.
    #[schema(value_type = NetworkBody)]
    network: NetworkFile,
    /// Pattern of the host names of its ports, with `{port}` to be replaced.
    #[schema(example = "{port}-k3v9x2m4q8w1z7t5r6p0.sandbox.example.com")]
    host: Option<String>,
}

impl SandboxBody {
    /// Completes the info as its owner may see it. `domain` is that of the ports' host names.
    pub(crate) fn new(info: SandboxInfo, domain: Option<&str>) -> Self {
        Self {
            host: domain.map(|domain| format!("{{port}}-{}.{domain}", info.id)),
            network: info.spec.network.without_values(),
            info,
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
    disks: Vec<DiskUse>,
    /// Processes that were killed for lack of memory.
    oom_kills: u64,
    /// Time since its start, including pauses, in seconds.
    uptime_s: f64,
}

impl MetricsBody {
    /// Combines the current usage with the limits.
    pub(crate) fn new(metrics: SandboxMetrics, limits: &Limits) -> Self {
        Self {
            at: time(Timestamp::now()),
            cpu_s: metrics.cpu.as_ref().map(Duration::as_secs_f64),
            memory_bytes: metrics.memory_bytes,
            memory_peak_bytes: metrics.memory_peak_bytes,
            memory_limit_bytes: limits.memory.bytes(),
            cpus: limits.cpus.get(),
            pids: metrics.pids,
            pids_limit: limits.pids.get(),
            disks: metrics.disks,
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
    entries: Vec<LogEntry>,
    /// Value of `after` for the next page.
    next: u64,
}

impl LogsBody {
    /// Creates the page that began after `after`.
    pub(crate) fn new(entries: Vec<LogEntry>, after: u64) -> Self {
        Self { next: entries.last().map_or(after, |entry| entry.seq), entries }
    }
}
