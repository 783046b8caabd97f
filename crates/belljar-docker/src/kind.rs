//! The engine as programs list it.

use std::path::Path;
use std::sync::Arc;

use belljar_engine::{Engine, EngineKind, EngineSetup, Finding, FindingState, IsolationLevel};
use belljar_model::{EngineName, LimitsGrade};

use crate::daemon::DOCKER;
use crate::engine::{DockerConfig, DockerEngine};
use crate::host;

/// The engine `docker`.
#[derive(Debug, Clone, Copy)]
pub struct DockerKind;

impl EngineKind for DockerKind {
    fn name(&self) -> EngineName {
        DOCKER
    }

    fn isolation(&self) -> IsolationLevel {
        IsolationLevel::Full
    }

    fn has_images(&self) -> bool {
        true
    }

    fn open(&self, setup: EngineSetup) -> Arc<dyn Engine> {
        let EngineSetup { docker, network, run_dir, .. } = setup;
        let config = DockerConfig {
            settings: docker,
            network,
            run_dir: run_dir.map(|dir| dir.join("docker")),
            ..DockerConfig::default()
        };
        Arc::new(DockerEngine::new(config))
    }

    /// Whether there is a daemon is known only once it is asked; a socket that is not there is seen at once.
    fn obstacles(&self, setup: EngineSetup, _: LimitsGrade) -> Vec<Finding> {
        let host = setup.docker.host.unwrap_or_else(host::from_environment);
        let is_missing = host.strip_prefix("unix://").is_some_and(|path| !Path::new(path).exists());
        let finding = Finding {
            name: "docker",
            state: FindingState::Missing,
            detail: format!("there is no Docker daemon at {host}"),
            fix: Some(
                "start one, or name another by DOCKER_HOST or the setting engines.docker.host".to_owned(),
            ),
        };
        if is_missing { vec![finding] } else { Vec::new() }
    }
}
