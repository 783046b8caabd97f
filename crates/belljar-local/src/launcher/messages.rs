//! Messages between server and launcher.

use std::time::Duration;

use belljar_engine::Usage;
use belljar_guest_config::OnHostLoss;
use belljar_linux::CgroupLayout;
use belljar_model::{
    FilePath, Isolation, LimitsChange, MountPolicy, NetworkPolicy, NetworkSetup, SandboxId, SandboxSpec,
};
use serde::{Deserialize, Serialize};

use crate::launcher::wire_error::WireError;
use crate::{LocalConfig, LocalKind};

/// Request with its number, which is repeated in the answer. Answers come in any order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestFrame {
    pub(crate) number: u64,
    pub(crate) request: Request,
}

/// Request of a server. `Hello` comes first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Introduces the client and the settings of its engine.
    Hello { generation: u32, version: String, config: Box<Setup> },
    /// Launches a sandbox. A tied one ends with the connection that requested it.
    Launch { id: SandboxId, spec: Box<SandboxSpec>, deadline_ms: Option<u64>, tied: bool },
    /// Lists all sandboxes of this engine.
    List,
    /// Opens a connection to a guest.
    Connect { id: SandboxId },
    /// Opens a connection to a sandbox's gateway.
    ConnectGateway { id: SandboxId },
    /// Queries the usage of a sandbox.
    Usage { id: SandboxId },
    /// Provides a warm interpreter for the next Python context, from this tenant's parent with these imports.
    Interpreter { id: SandboxId, owner: String, imports: Vec<String> },
    /// Changes limits.
    SetLimits { id: SandboxId, change: LimitsChange },
    /// Replaces the network policy, also for later gateways.
    SetNetwork { id: SandboxId, policy: Box<NetworkPolicy> },
    /// Sets the deadline, relative to now; `None` removes it.
    SetDeadline { id: SandboxId, after_ms: Option<u64> },
    /// Freezes the sandbox.
    Freeze { id: SandboxId },
    /// Thaws the sandbox.
    Thaw { id: SandboxId },
    /// Ends the sandbox without waiting.
    Kill { id: SandboxId },
    /// Ends the sandbox and removes it.
    Stop { id: SandboxId },
    /// Ends all sandboxes, and the launcher.
    ShutDown,
}

impl Request {
    /// Returns its name, and the first generation that supports it.
    pub(crate) fn known_since(&self) -> (&'static str, u32) {
        match self {
            Self::Hello { .. } => ("hello", 1),
            Self::Launch { spec, .. } if !spec.volumes.is_empty() => ("mount volumes", 7),
            Self::Launch { .. } => ("launch", 1),
            Self::List => ("list", 1),
            Self::Connect { .. } => ("connect", 1),
            Self::ConnectGateway { .. } => ("look after a network", 5),
            Self::Usage { .. } => ("usage", 1),
            Self::Interpreter { .. } => ("offer an interpreter", 2),
            Self::SetLimits { change, .. } if change.shared_by.is_some() => ("share processors out", 5),
            Self::SetLimits { .. } => ("set limits", 1),
            Self::SetNetwork { .. } => ("keep a network's policy", 8),
            Self::SetDeadline { .. } => ("set a deadline", 1),
            Self::Freeze { .. } => ("freeze", 1),
            Self::Thaw { .. } => ("thaw", 1),
            Self::Kill { .. } => ("kill", 1),
            Self::Stop { .. } => ("stop", 1),
            Self::ShutDown => ("shut down", 1),
        }
    }
}

/// Message of the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// A request succeeded.
    Answer { number: u64, answer: Answer },
    /// A request failed.
    Refused { number: u64, error: WireError },
    /// A sandbox has ended.
    Ended { id: SandboxId, how: String },
}

/// Result of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Answer {
    /// Introduces the launcher. The instance differs after each start.
    Hello {
        generation: u32,
        version: String,
        instance: String,
        /// Whether it can create control groups; sent to servers of generation 3 and later.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        has_groups: Option<bool>,
    },
    /// A sandbox, sent together with a connection to its guest.
    Sandbox(Box<SandboxFacts>),
    /// Sent together with a connection to a gateway.
    Gateway,
    /// All sandboxes.
    List { sandboxes: Vec<ListedSandbox> },
    /// Usage of a sandbox.
    Usage(UsageWire),
    /// Whether an interpreter is being provided, or why not.
    Interpreter { why_not: Option<String> },
    /// The request is done.
    Done,
}

impl Answer {
    /// Reports whether a descriptor is sent with it.
    pub(crate) fn has_descriptor(&self) -> bool {
        matches!(self, Self::Sandbox(_) | Self::Gateway)
    }
}

/// Facts of a sandbox, fixed at its launch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SandboxFacts {
    pub(crate) isolation: Isolation,
    pub(crate) home: FilePath,
    /// Duration of each phase of the launch, in nanoseconds.
    pub(crate) phases: Vec<(String, u64)>,
    /// Paths of its control groups; sent to servers of generation 6 and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) groups: Option<Groups>,
}

/// Paths of a sandbox's control groups: the part of [`CgroupLayout`] that is needed to read them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Groups {
    v2: Option<FilePath>,
    v2_limits: bool,
    v1: Vec<(String, FilePath)>,
}

impl From<&CgroupLayout> for Groups {
    fn from(layout: &CgroupLayout) -> Self {
        Self {
            v2: layout.v2.as_deref().map(FilePath::from),
            v2_limits: layout.v2_limits,
            v1: layout.v1.iter().map(|(name, dir)| (name.clone(), FilePath::from(dir.as_path()))).collect(),
        }
    }
}

impl From<Groups> for CgroupLayout {
    fn from(groups: Groups) -> Self {
        Self {
            v2: groups.v2.as_ref().map(FilePath::to_path_buf),
            v2_limits: groups.v2_limits,
            v1: groups.v1.into_iter().map(|(name, dir)| (name, dir.to_path_buf())).collect(),
            ..Self::default()
        }
    }
}

/// Sandbox in a list.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListedSandbox {
    pub(crate) id: SandboxId,
    pub(crate) is_frozen: bool,
    pub(crate) deadline_ms: Option<u64>,
}

/// Wire form of [`Usage`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageWire {
    memory_bytes: Option<u64>,
    peak_memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway_memory_bytes: Option<u64>,
    pids: Option<u32>,
    cpu_us: Option<u64>,
    oom_kills: u64,
    pids_denied: u64,
}

impl From<Usage> for UsageWire {
    fn from(usage: Usage) -> Self {
        Self {
            memory_bytes: usage.memory_bytes,
            peak_memory_bytes: usage.peak_memory_bytes,
            gateway_memory_bytes: usage.gateway_memory_bytes,
            pids: usage.pids,
            cpu_us: usage.cpu.map(|cpu| u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX)),
            oom_kills: usage.oom_kills,
            pids_denied: usage.pids_denied,
        }
    }
}

impl From<UsageWire> for Usage {
    fn from(wire: UsageWire) -> Self {
        Self {
            memory_bytes: wire.memory_bytes,
            peak_memory_bytes: wire.peak_memory_bytes,
            gateway_memory_bytes: wire.gateway_memory_bytes,
            pids: wire.pids,
            cpu: wire.cpu_us.map(Duration::from_micros),
            oom_kills: wire.oom_kills,
            pids_denied: wire.pids_denied,
        }
    }
}

fn is_default(setup: &NetworkSetup) -> bool {
    *setup == NetworkSetup::default()
}

/// Wire form of [`LocalConfig`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    kind: LocalKind,
    mount_policy: MountPolicy,
    cgroup_base: Option<FilePath>,
    when_alone: OnHostLoss,
    guest: Option<FilePath>,
    /// Sent to launchers of generation 4 and later.
    #[serde(default, skip_serializing_if = "is_default")]
    network: NetworkSetup,
}

impl From<&LocalConfig> for Setup {
    fn from(config: &LocalConfig) -> Self {
        Self {
            kind: config.kind,
            mount_policy: config.mount_policy.clone(),
            cgroup_base: config.cgroup_base.as_deref().map(FilePath::from),
            when_alone: config.on_host_loss,
            guest: config.guest.as_deref().map(FilePath::from),
            network: config.network.clone(),
        }
    }
}

impl From<Setup> for LocalConfig {
    fn from(setup: Setup) -> Self {
        Self {
            kind: setup.kind,
            mount_policy: setup.mount_policy,
            cgroup_base: setup.cgroup_base.as_ref().map(FilePath::to_path_buf),
            on_host_loss: setup.when_alone,
            guest: setup.guest.as_ref().map(FilePath::to_path_buf),
            network: setup.network,
        }
    }
}

/// Converts a time for the wire, rounding up.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
