//! The daemon: its client, what it can enforce, and its errors.

use std::io;
use std::time::Duration;

use belljar_engine::EngineError;
use belljar_model::EngineName;
use bollard::Docker;
use bollard::errors::Error;

use crate::facts::Facts;

/// Name of the engine.
pub(crate) const DOCKER: EngineName = EngineName::known("docker");

/// Time for the daemon's answer to one request. A pull sends its progress meanwhile.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Oldest version of the API that is used, which Docker has since 20.10, and Podman since 4: private control group namespaces.
const MIN_API: (usize, usize) = (1, 41);

/// A daemon.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    pub(crate) client: Docker,
    pub(crate) facts: Facts,
}

impl Daemon {
    /// Connects to the daemon at this address, and asks what it can enforce.
    pub(crate) async fn connect(host: &str) -> Result<Self, EngineError> {
        let layer = |reason: String, fix: &str| EngineError::Layer {
            layer: "the walls of a container".into(),
            reason: format!("the Docker daemon at {host} cannot be used: {reason}"),
            fix: format!("{fix} by DOCKER_HOST or the setting engines.docker.host"),
        };
        let unusable = |reason| layer(reason, "start it, let this user use it, or name another one");
        let timeout = ANSWER_TIMEOUT.as_secs();
        let client = match host.split_once("://") {
            Some(("unix", path)) if std::path::Path::new(path).exists() => {
                Docker::connect_with_unix(path, timeout, bollard::API_DEFAULT_VERSION)
            }
            Some(("unix", _)) => return Err(unusable("there is no such socket".to_owned())),
            Some(("tcp" | "http", _)) => {
                Docker::connect_with_http(host, timeout, bollard::API_DEFAULT_VERSION)
            }
            _ => {
                let reason = "the address does not begin with unix:// or tcp://".to_owned();
                let fix = "name a socket, such as unix:///var/run/docker.sock (for a daemon behind SSH one that ssh -L forwards),";
                return Err(layer(reason, fix));
            }
        };
        let client = client.map_err(|error| unusable(chain(&error)))?;
        let client = client.negotiate_version().await.map_err(|error| unusable(chain(&error)))?;
        let version = client.version().await.map_err(|error| unusable(chain(&error)))?;
        let api = client.client_version();
        if (api.major_version, api.minor_version) < MIN_API {
            return Err(unusable(format!(
                "its API has the version {api}, and 1.41 is needed (Docker 20.10, Podman 4)"
            )));
        }
        let info = client.info().await.map_err(|error| unusable(chain(&error)))?;
        let facts = Facts::new(version, info);
        if !facts.arch.is_empty() && facts.arch != std::env::consts::ARCH {
            let own = std::env::consts::ARCH;
            return Err(unusable(format!(
                "its machine is of the architecture {}, and the guest is of {own}",
                facts.arch
            )));
        }
        Ok(Self { client, facts })
    }
}

/// Turns an error of the daemon into one of a step.
pub(crate) fn failed(step: impl Into<String>) -> impl FnOnce(Error) -> EngineError {
    let step = step.into();
    move |error| EngineError::Launch { step, source: io::Error::other(chain(&error)) }
}

/// Returns the status of the daemon's answer, if that is the error.
pub(crate) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Returns an error with its causes. The daemon's own text is shown without the client's words around it.
fn chain(error: &Error) -> String {
    if let Error::DockerResponseServerError { message, .. } = error {
        return message.trim().to_owned();
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

pub(crate) fn unsupported(
    what: &'static str,
    reason: impl Into<std::borrow::Cow<'static, str>>,
) -> EngineError {
    EngineError::Unsupported { what: what.into(), engine: DOCKER, reason: reason.into() }
}
