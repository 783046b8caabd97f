//! Kinds of this engine and their capabilities.

use std::sync::Arc;
use std::time::Duration;

use belljar_engine::{Capabilities, Engine, EngineKind, EngineSetup, Finding, IsolationLevel};
use belljar_model::{EngineName, LimitsGrade, NetworkMode, Timeout};
use serde::{Deserialize, Serialize};

use crate::engine::{LocalConfig, LocalEngine};
use crate::launcher::{LauncherConfig, LauncherEngine};

/// Kind of isolation that the engine provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalKind {
    /// Namespaces and every other isolation that the kernel has. The default.
    #[default]
    Local,
    /// No namespaces: resource limits, Landlock and seccomp around a plain process.
    Process,
    /// No isolation, for development only.
    None,
}

impl LocalKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Local, Self::Process, Self::None];

    /// Returns the kind's name as an engine: `local`, `process` or `none`.
    #[must_use]
    pub const fn name(self) -> EngineName {
        match self {
            Self::Local => EngineName::LOCAL,
            Self::Process => EngineName::known("process"),
            Self::None => EngineName::known("none"),
        }
    }

    /// Returns the kind with this name, if there is one.
    #[must_use]
    pub fn from_name(name: EngineName) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    fn config(self, setup: EngineSetup) -> LocalConfig {
        let EngineSetup { mount_policy, network, cgroup_base, .. } = setup;
        LocalConfig { mount_policy, network, cgroup_base, ..LocalConfig::new(self) }
    }

    /// Returns the capabilities of an engine of this kind, depending on whether control groups can be created.
    pub(crate) fn capabilities(self, has_groups: bool, held_by: Option<&'static str>) -> Capabilities {
        self.capabilities_as(has_groups, held_by, rustix::process::geteuid().is_root())
    }

    fn capabilities_as(self, has_groups: bool, held_by: Option<&'static str>, is_root: bool) -> Capabilities {
        let has_groups = has_groups && self != Self::None;
        Capabilities {
            network: match self {
                Self::Local => NetworkMode::ALL.map(|mode| mode.as_str().into()).into(),
                Self::Process => vec![NetworkMode::Disabled.as_str().into()],
                Self::None => Vec::new(),
            },
            pause: has_groups,
            live_limits: has_groups,
            snapshot: true,
            fork: true,
            own_tree: self == Self::Local,
            machines: self == Self::Local && has_groups && is_root,
            mounts: self == Self::Local,
            // Only a file system of its own, which root mounts, limits what is written to the machine's disk.
            volumes: self == Self::Local && is_root,
            warm_interpreters: self == Self::Local && held_by.is_some(),
            held_by: held_by.map(Into::into),
            ..Capabilities::none(self.isolation(), self.default_timeout())
        }
    }
}

impl EngineKind for LocalKind {
    fn name(&self) -> EngineName {
        Self::name(*self)
    }

    fn isolation(&self) -> IsolationLevel {
        match self {
            Self::Local => IsolationLevel::Full,
            Self::Process => IsolationLevel::Partial,
            Self::None => IsolationLevel::None,
        }
    }

    fn default_timeout(&self) -> Timeout {
        match self {
            Self::Process => Timeout::new(Duration::from_secs(10)).unwrap_or_default(),
            Self::Local | Self::None => Timeout::default(),
        }
    }

    fn open(&self, setup: EngineSetup) -> Arc<dyn Engine> {
        match setup.run_dir.clone() {
            None => Arc::new(LocalEngine::new(self.config(setup))),
            Some(dir) => Arc::new(LauncherEngine::new(LauncherConfig::new(dir, self.config(setup)))),
        }
    }

    fn examine(&self, setup: EngineSetup) -> Vec<Finding> {
        match self {
            Self::Local => LocalEngine::examine(self.config(setup)),
            Self::Process | Self::None => Vec::new(),
        }
    }

    fn obstacles(&self, setup: EngineSetup, grade: LimitsGrade) -> Vec<Finding> {
        match self {
            Self::Local => LocalEngine::obstacles(self.config(setup), grade),
            Self::Process | Self::None => Vec::new(),
        }
    }
}

impl std::fmt::Display for LocalKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name().fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_engines() {
        for kind in LocalKind::ALL {
            assert_eq!(LocalKind::from_name(kind.to_string().parse().unwrap()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.to_string());
        }
        assert_eq!(LocalKind::from_name("docker".parse().unwrap()), None);
    }

    /// The capabilities of a server's engines if control groups can be created.
    #[test]
    fn documentation_lists_capabilities() {
        for kind in LocalKind::ALL {
            let can = kind.capabilities_as(true, Some("launcher"), true);
            belljar_engine::conformance::check_documented(kind.name().as_str(), &can);
        }
    }
}
