//! `runsc` on this machine, and what sandboxes leave there.

use std::path::{Path, PathBuf};

use belljar_engine::conformance::{Setup, guest_program};
use belljar_engine::{EngineKind as _, EngineSetup};
use belljar_gvisor::{GvisorConfig, GvisorKind};
use belljar_model::{
    DockerSettings, EngineName, GvisorPlatform, GvisorSettings, LimitsGrade, MountPolicy, NetworkSetup,
};

/// A machine on which the engine can be used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine;

impl Machine {
    /// Returns the configuration of an engine.
    pub(crate) fn config(self, platform: GvisorPlatform) -> GvisorConfig {
        let settings = GvisorSettings { platform, ..GvisorSettings::default() };
        GvisorConfig { settings, guest: guest_program(), ..GvisorConfig::default() }
    }
}

impl Setup for Machine {
    const ENGINE: EngineName = EngineName::known("gvisor");

    fn find() -> Result<Self, String> {
        let setup = EngineSetup {
            mount_policy: MountPolicy::new(&[]),
            network: NetworkSetup::default(),
            cgroup_base: None,
            run_dir: None,
            docker: DockerSettings::default(),
            gvisor: GvisorSettings::default(),
        };
        match GvisorKind.obstacles(setup, LimitsGrade::Cgroup).into_iter().next() {
            Some(obstacle) => Err(obstacle.detail),
            None => Ok(Self),
        }
    }

    fn leftovers(&self, id: &str) -> Vec<String> {
        leftovers(id)
    }
}

/// Lists what is left of a sandbox: processes, control groups, its directory.
fn leftovers(id: &str) -> Vec<String> {
    let mut found = Vec::new();
    for process in entries(Path::new("/proc")) {
        let text = std::fs::read(process.join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&text).contains(id) {
            found.push(format!("the process {}", process.display()));
        }
    }
    let groups = entries(Path::new("/sys/fs/cgroup")).into_iter().flat_map(|dir| {
        let below = entries(&dir.join("belljar"));
        entries(&dir).into_iter().chain(below)
    });
    let dirs = entries(Path::new("/run/belljar-gvisor"));
    let named = groups.chain(dirs).filter(|path| path.to_string_lossy().contains(id));
    found.extend(named.map(|path| path.display().to_string()));
    found
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}
