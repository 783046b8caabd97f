//! Kinds of engines: what a program knows of an engine before it opens one.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_model::{
    DockerSettings, EngineName, GvisorSettings, LimitsGrade, MountPolicy, NetworkSetup, Timeout,
};

use crate::capabilities::IsolationLevel;
use crate::engine::Engine;

/// The operator's settings for engines, which code in a sandbox never determines.
#[derive(Debug, Clone)]
pub struct EngineSetup {
    /// Policy for mounts.
    pub mount_policy: MountPolicy,
    /// Networks of sandboxes.
    pub network: NetworkSetup,
    /// A delegated v2 control group in which groups are created, instead of this process's own.
    pub cgroup_base: Option<PathBuf>,
    /// Directory for what outlives this process. Without one, sandboxes end with it.
    pub run_dir: Option<PathBuf>,
    /// Settings of the engine `docker`.
    pub docker: DockerSettings,
    /// Settings of the engine `gvisor`.
    pub gvisor: GvisorSettings,
}

/// A kind of engine. A program lists those that it has.
pub trait EngineKind: Debug + Sync {
    /// Returns the name of its engine.
    fn name(&self) -> EngineName;

    /// Returns the level of its isolation.
    fn isolation(&self) -> IsolationLevel;

    /// Returns the timeout of an execution for which none was given.
    fn default_timeout(&self) -> Timeout {
        Timeout::default()
    }

    /// Reports whether its sandboxes start from images of a store of its own.
    fn has_images(&self) -> bool {
        false
    }

    /// Creates the engine. Nothing is started yet.
    fn open(&self, setup: EngineSetup) -> Arc<dyn Engine>;

    /// Examines whether this machine has what the engine needs, without changing anything.
    fn examine(&self, _setup: EngineSetup) -> Vec<Finding> {
        Vec::new()
    }

    /// Returns what keeps sandboxes with this grade of limits from being created here; empty if nothing does. Cheap enough for each
    /// start of a server.
    fn obstacles(&self, _setup: EngineSetup, _grade: LimitsGrade) -> Vec<Finding> {
        Vec::new()
    }
}

/// Result of one check of the machine.
#[derive(Debug, Clone, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Obstacle))]
pub struct Finding {
    /// Name of the check.
    pub name: &'static str,
    /// State.
    pub state: FindingState,
    /// Details.
    pub detail: String,
    /// Fix, if something is missing.
    pub fix: Option<String>,
}

/// State of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ObstacleState))]
#[serde(rename_all = "snake_case")]
pub enum FindingState {
    /// Available.
    Good,
    /// Available in a weaker way, or only on request.
    Weaker,
    /// Missing: the engine creates no sandbox without it.
    Missing,
}
