//! The daemon of the tests.

use std::process::Command;

use belljar_docker::{DockerConfig, Route};
use belljar_engine::conformance::{Setup, guest_program};
use belljar_model::{DockerSettings, EngineName};

/// The daemon of `tests/docker/with-daemon.sh`.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    pub(crate) host: String,
    image: String,
}

impl Daemon {
    /// Returns the configuration of an engine that uses it.
    pub(crate) fn config(&self, route: Route) -> DockerConfig {
        let settings = DockerSettings {
            host: Some(self.host.clone()),
            image: self.image.parse().ok(),
            registries: Some(Vec::new()),
            ..DockerSettings::default()
        };
        DockerConfig { settings, route, guest: guest_program(), ..DockerConfig::default() }
    }

    /// Runs Docker's own client, and returns its output.
    pub(crate) fn docker(&self, arguments: &[&str]) -> std::io::Result<String> {
        let done = Command::new("docker").arg("--host").arg(&self.host).args(arguments).output()?;
        if !done.status.success() {
            return Err(std::io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()));
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }
}

impl Setup for Daemon {
    const ENGINE: EngineName = EngineName::known("docker");

    fn find() -> Result<Self, String> {
        if let Ok(reason) = std::env::var("BELLJAR_TEST_DOCKER_LACKS") {
            return Err(reason);
        }
        let variable = |name: &str| {
            let missing = |_| format!("{name} is not set; run it by tests/docker/with-daemon.sh");
            std::env::var(name).map_err(missing)
        };
        Ok(Self { host: variable("BELLJAR_TEST_DOCKER")?, image: variable("BELLJAR_TEST_IMAGE")? })
    }

    fn leftovers(&self, id: &str) -> Vec<String> {
        let filter = format!("label=belljar.sandbox={id}");
        let found = self.docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]);
        match found {
            Ok(found) => found.lines().map(|container| format!("the container {container}")).collect(),
            Err(error) => vec![error.to_string()],
        }
    }
}
