//! What server and launcher say to each other.

use std::time::Duration;

use belljar_engine::Usage;
use belljar_guest_config::OnHostLoss;
use belljar_linux::CgroupLayout;
use belljar_model::{FilePath, Isolation, LimitsChange, MountPolicy, NetworkSetup, SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};

use crate::launcher::wire_error::WireError;
use crate::{LocalConfig, LocalKind};

/// A request with its number, which is in the answer as well. Answers come in any order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestFrame {
    pub(crate) number: u64,
    pub(crate) request: Request,
}

/// What a server asks for. `Hello` comes first.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Who asks, and how its engine is set up.
    Hello { generation: u32, version: String, config: Box<Setup> },
    /// A new sandbox. A tied one ends with the connection that asked for it.
    Launch { id: SandboxId, spec: Box<SandboxSpec>, deadline_ms: Option<u64>, tied: bool },
    /// All sandboxes of this engine.
    List,
    /// A new connection to a guest.
    Connect { id: SandboxId },
    /// A new connection to a sandbox's gateway.
    ConnectGateway { id: SandboxId },
    /// What a sandbox uses.
    Usage { id: SandboxId },
    /// An interpreter that is warm, for the next context of Python: of this tenant's parent that has these imports.
    Interpreter { id: SandboxId, owner: String, imports: Vec<String> },
    /// Other limits.
    SetLimits { id: SandboxId, change: LimitsChange },
    /// Another deadline, from now on; `None` is none.
    SetDeadline { id: SandboxId, after_ms: Option<u64> },
    /// Everything stands still.
    Freeze { id: SandboxId },
    /// Everything goes on.
    Thaw { id: SandboxId },
    /// The end, without waiting for it.
    Kill { id: SandboxId },
    /// The end, and nothing left.
    Stop { id: SandboxId },
    /// The end of all sandboxes, and of the launcher.
    ShutDown,
}

impl Request {
    /// Its name, and the first generation that has it.
    pub(crate) fn known_since(&self) -> (&'static str, u32) {
        match self {
            Self::Hello { .. } => ("hello", 1),
            Self::Launch { .. } => ("launch", 1),
            Self::List => ("list", 1),
            Self::Connect { .. } => ("connect", 1),
            Self::ConnectGateway { .. } => ("look after a network", 5),
            Self::Usage { .. } => ("usage", 1),
            Self::Interpreter { .. } => ("offer an interpreter", 2),
            Self::SetLimits { change, .. } if change.shared_by.is_some() => ("share processors out", 5),
            Self::SetLimits { .. } => ("set limits", 1),
            Self::SetDeadline { .. } => ("set a deadline", 1),
            Self::Freeze { .. } => ("freeze", 1),
            Self::Thaw { .. } => ("thaw", 1),
            Self::Kill { .. } => ("kill", 1),
            Self::Stop { .. } => ("stop", 1),
            Self::ShutDown => ("shut down", 1),
        }
    }
}

/// What the launcher says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// A request was carried out.
    Answer { number: u64, answer: Answer },
    /// It was not.
    Refused { number: u64, error: WireError },
    /// A sandbox has ended.
    Ended { id: SandboxId, how: String },
}

/// The result of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Answer {
    /// Who answers. The instance is another one after each start.
    Hello {
        generation: u32,
        version: String,
        instance: String,
        /// Whether it can make control groups; told to servers of generation 3 and later.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        has_groups: Option<bool>,
    },
    /// A sandbox; with it comes a connection to its guest.
    Sandbox(Box<SandboxFacts>),
    /// A connection to a gateway comes with this.
    Gateway,
    /// All sandboxes.
    List { sandboxes: Vec<Listed> },
    /// What one uses.
    Usage(UsageWire),
    /// An interpreter is on its way, or is not, for this reason.
    Interpreter { why_not: Option<String> },
    /// It is done.
    Done,
}

impl Answer {
    /// Whether a descriptor comes with it.
    pub(crate) fn has_descriptor(&self) -> bool {
        matches!(self, Self::Sandbox(_) | Self::Gateway)
    }
}

/// What is known of a sandbox since its launch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SandboxFacts {
    pub(crate) isolation: Isolation,
    pub(crate) home: FilePath,
    /// How long each phase of the launch took, in nanoseconds.
    pub(crate) phases: Vec<(String, u64)>,
    /// Where its control groups are; told to servers of generation 6 and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) groups: Option<Groups>,
}

/// Where a sandbox's control groups are: of [`CgroupLayout`] what it takes to read them.
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

/// One sandbox of a list.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    pub(crate) id: SandboxId,
    pub(crate) is_frozen: bool,
    pub(crate) deadline_ms: Option<u64>,
}

/// [`Usage`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageWire {
    memory_bytes: Option<u64>,
    peak_memory_bytes: Option<u64>,
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

/// [`LocalConfig`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    kind: LocalKind,
    mount_policy: MountPolicy,
    cgroup_base: Option<FilePath>,
    when_alone: OnHostLoss,
    guest: Option<FilePath>,
    /// Told to launchers of generation 4 and later.
    #[serde(default, skip_serializing_if = "is_default")]
    network: NetworkSetup,
}

impl From<&LocalConfig> for Setup {
    fn from(config: &LocalConfig) -> Self {
        Self {
            kind: config.kind,
            mount_policy: config.mount_policy.clone(),
            cgroup_base: config.cgroup_base.as_deref().map(FilePath::from),
            when_alone: config.when_alone,
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
            when_alone: setup.when_alone,
            guest: setup.guest.as_ref().map(FilePath::to_path_buf),
            network: setup.network,
        }
    }
}

/// A time on the wire, never shorter than it is.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
