//! The engine as programs list it.

use std::sync::Arc;

use belljar_engine::{Engine, EngineKind, EngineSetup, Finding, FindingState, IsolationLevel};
use belljar_linux::CgroupLayout;
use belljar_model::{EngineName, LimitsGrade};

use crate::engine::{GvisorConfig, GvisorEngine, obstacle};
use crate::runsc::{GVISOR, INSTALL, Runsc};

/// The engine `gvisor`.
#[derive(Debug, Clone, Copy)]
pub struct GvisorKind;

impl EngineKind for GvisorKind {
    fn name(&self) -> EngineName {
        GVISOR
    }

    fn isolation(&self) -> IsolationLevel {
        IsolationLevel::Full
    }

    fn open(&self, setup: EngineSetup) -> Arc<dyn Engine> {
        Arc::new(GvisorEngine::new(config(setup)))
    }

    fn obstacles(&self, setup: EngineSetup, grade: LimitsGrade) -> Vec<Finding> {
        let finding = |name, detail, fix: &str| Finding {
            name,
            state: FindingState::Missing,
            detail,
            fix: Some(fix.to_owned()),
        };
        let config = config(setup);
        let mut found = Vec::new();
        if let Err(reason) = Runsc::find(&config.settings) {
            found.push(finding("runsc", reason, INSTALL));
        }
        let layout = CgroupLayout::detect(config.cgroup_base.as_deref());
        if let Some((name, reason, fix)) = obstacle(&layout, grade) {
            found.push(finding(name, reason, fix));
        }
        found
    }
}

fn config(setup: EngineSetup) -> GvisorConfig {
    GvisorConfig {
        settings: setup.gvisor,
        network: setup.network,
        cgroup_base: setup.cgroup_base,
        run_dir: setup.run_dir.map(|dir| dir.join("gvisor")),
        ..GvisorConfig::default()
    }
}
