//! Sandboxes in E2B's JSON format.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_keeper::{
    CreateSandbox, Idempotency, Lifetime, LogEntry, PortSettings, SandboxInfo, SandboxMetrics, TemplateInfo,
    TimeoutAction,
};
use belljar_model::{SandboxState, SpecFile, VolumeFile};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::not_offered;
use super::network::{self, NetworkBody};
use super::volumes::MountBody;
use super::{ENVD_VERSION, metadata, templates};
use crate::problem::Problem;

/// Id of the machine, as reported to clients.
const CLIENT_ID: &str = "belljar";

/// A request to create a sandbox, of both generations. `secure` is ignored: every sandbox has an access token.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    timeout: Option<u64>,
    #[serde(default)]
    auto_pause: bool,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<NetworkBody>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<MountBody>>,
}

#[derive(Deserialize)]
struct AutoResume {
    enabled: bool,
}

impl NewSandbox {
    /// Refuses what is not offered, before the template is looked up: the client names one of its own for `mcp`.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if is_given(&self.mcp) {
            return Err(not_offered("mcp"));
        }
        if is_given(&self.iam) {
            return Err(not_offered("iam"));
        }
        if self.auto_pause_memory == Some(false) {
            return Err(not_offered("autoPauseMemory: false (a pause keeps all of a sandbox)"));
        }
        Ok(())
    }

    /// Converts the request for the keeper. `default` is the default timeout in seconds; `internet` gives the sandbox an
    /// open network by default, and `public_ports` public ports.
    pub(super) fn into_request(
        self,
        template: &TemplateInfo,
        default: u64,
        internet: bool,
        public_ports: bool,
        idempotency: Option<Idempotency>,
    ) -> Result<CreateSandbox, Problem> {
        self.check()?;
        let network = self.network.unwrap_or_default();
        let ports = network.ports(public_ports)?;
        let network = network.into_file(self.allow_internet_access)?;
        let network = network.or_else(|| internet.then(|| "open".into()));
        let env = self.env_vars.filter(|env| !env.is_empty());
        let volumes = self.volume_mounts.filter(|mounts| !mounts.is_empty()).map(|mounts| {
            mounts.into_iter().map(|MountBody { name, path }| VolumeFile { name, path, mode: None }).collect()
        });
        Ok(CreateSandbox {
            template: Some(template.id.clone()),
            name: None,
            return_existing: false,
            spec: SpecFile { network, env, volumes, ..SpecFile::default() },
            lifetime: Lifetime {
                timeout: Duration::from_secs(self.timeout.unwrap_or(default)),
                idle_timeout: None,
                on_timeout: if self.auto_pause { TimeoutAction::Pause } else { TimeoutAction::Kill },
                auto_resume: self.auto_resume.is_some_and(|resume| resume.enabled),
            },
            labels: metadata::to_labels(&self.metadata.unwrap_or_default())?,
            files: Vec::new(),
            idempotency,
            ports,
        })
    }
}

/// A sandbox after creating it or connecting to it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    alias: String,
    envd_version: &'static str,
    envd_access_token: String,
    /// The same token. Clients send it with requests for contexts, also where ports are public.
    traffic_access_token: String,
    domain: String,
}

impl Sandbox {
    /// Describes a sandbox.
    pub(super) fn new(info: &SandboxInfo, token: String, domain: String) -> Self {
        let template = templates::public_name(&info.template).to_owned();
        Self {
            template_id: template.clone(),
            sandbox_id: info.id.to_string(),
            client_id: CLIENT_ID,
            alias: template,
            envd_version: ENVD_VERSION,
            traffic_access_token: token.clone(),
            envd_access_token: token,
            domain,
        }
    }
}

/// A sandbox in a list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    alias: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    started_at: Timestamp,
    end_at: Timestamp,
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    metadata: BTreeMap<String, String>,
    state: &'static str,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volume_mounts: Vec<MountBody>,
}

impl From<&SandboxInfo> for ListedSandbox {
    fn from(info: &SandboxInfo) -> Self {
        let template = templates::public_name(&info.template).to_owned();
        let started_at = info.started_at.unwrap_or(info.created_at);
        // The timeout of a paused sandbox is suspended.
        let end_at = info.expires_at.or(info.paused_at).unwrap_or(started_at);
        Self {
            template_id: template.clone(),
            alias: template,
            sandbox_id: info.id.to_string(),
            client_id: CLIENT_ID,
            started_at,
            end_at,
            cpu_count: cpu_count(info),
            memory_mb: info.spec.limits.memory.bytes() >> 20,
            disk_size_mb: info.spec.limits.disk.bytes() >> 20,
            metadata: metadata::from_labels(&info.labels),
            state: if info.state == SandboxState::Paused { "paused" } else { "running" },
            envd_version: ENVD_VERSION,
            volume_mounts: info.spec.volumes.iter().map(MountBody::from).collect(),
        }
    }
}

/// Returns the number of processors, rounded up, at least one.
fn cpu_count(info: &SandboxInfo) -> u64 {
    u64::from(info.spec.limits.cpus.millis().div_ceil(1000).max(1))
}

/// A sandbox in full.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxDetail {
    #[serde(flatten)]
    listed: ListedSandbox,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    domain: String,
    allow_internet_access: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Value>,
    lifecycle: Value,
}

impl SandboxDetail {
    pub(super) fn new(
        info: &SandboxInfo,
        token: Option<String>,
        ports: &PortSettings,
        domain: String,
    ) -> Self {
        Self {
            listed: info.into(),
            envd_access_token: token,
            domain,
            allow_internet_access: info.spec.network.mode() != belljar_model::NetworkMode::Disabled,
            network: network::to_json(&info.spec.network, ports),
            lifecycle: json!({"autoResume": info.auto_resume, "onTimeout": info.on_timeout.as_str()}),
        }
    }
}

/// Resource usage of a sandbox.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    timestamp: Timestamp,
    timestamp_unix: i64,
    cpu_count: u64,
    /// Average over all its processors since its start, in percent.
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    /// Always 0: page cache counts as used memory.
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl Metric {
    pub(super) fn new(info: &SandboxInfo, metrics: &SandboxMetrics) -> Self {
        let now = Timestamp::now();
        let cpus = info.spec.limits.cpus.get();
        let used = metrics.cpu.unwrap_or_default().as_secs_f64();
        let available = (metrics.uptime.as_secs_f64() * cpus).max(f64::EPSILON);
        Self {
            timestamp: now,
            timestamp_unix: now.as_second(),
            cpu_count: cpu_count(info),
            cpu_used_pct: (used / available * 100.0).clamp(0.0, 100.0),
            mem_used: metrics.memory_bytes.unwrap_or(0),
            mem_total: info.spec.limits.memory.bytes(),
            mem_cache: 0,
            disk_used: metrics.disks.iter().map(|disk| disk.bytes_used).sum(),
            disk_total: metrics.disks.iter().map(|disk| disk.bytes_total).sum(),
        }
    }

    /// Converts to the format of E2B's daemon.
    pub(super) fn to_envd(&self) -> Value {
        json!({
            "ts": self.timestamp_unix, "cpu_count": self.cpu_count, "cpu_used_pct": self.cpu_used_pct,
            "mem_total": self.mem_total, "mem_used": self.mem_used, "mem_cache": self.mem_cache,
            "mem_total_mib": self.mem_total >> 20, "mem_used_mib": self.mem_used >> 20,
            "disk_used": self.disk_used, "disk_total": self.disk_total,
        })
    }
}

/// Converts an entry of a sandbox's log.
pub(super) fn log_entry(entry: &LogEntry) -> Value {
    let message = if entry.detail.is_empty() {
        entry.event.to_string()
    } else {
        format!("{}: {}", entry.event, entry.detail)
    };
    let mut fields = serde_json::Map::new();
    fields.insert("event".to_owned(), json!(entry.event));
    fields.extend(entry.process.map(|process| ("process".to_owned(), json!(process.to_string()))));
    json!({"timestamp": entry.at, "message": message, "level": "info", "fields": fields})
}
