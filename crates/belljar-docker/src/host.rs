//! Address of the daemon, as Docker's own client finds it.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// Address without any setting.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// Name of the context that is none.
const DEFAULT_CONTEXT: &str = "default";

/// Returns the address of the daemon: that of `DOCKER_HOST`, else that of the context which `DOCKER_CONTEXT` or Docker's configuration
/// names, else the usual socket.
pub(crate) fn from_environment() -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(host) = variable("DOCKER_HOST") {
        return host;
    }
    let dir = variable("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".docker")));
    dir.and_then(|dir| of_context(&dir, variable("DOCKER_CONTEXT")))
        .unwrap_or_else(|| DEFAULT_HOST.to_owned())
}

/// Returns the address of a context, by default of the current one of a configuration's directory.
fn of_context(dir: &Path, name: Option<String>) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Config {
        current_context: Option<String>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Context {
        endpoints: Endpoints,
    }
    #[derive(Deserialize)]
    struct Endpoints {
        docker: Endpoint,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Endpoint {
        host: String,
    }
    let name = match name {
        Some(name) => name,
        None => {
            serde_json::from_slice::<Config>(&std::fs::read(dir.join("config.json")).ok()?)
                .ok()?
                .current_context?
        }
    };
    if name == DEFAULT_CONTEXT {
        return None;
    }
    let id = hex::encode(Sha256::digest(name.as_bytes()));
    let file = dir.join("contexts").join("meta").join(id).join("meta.json");
    Some(serde_json::from_slice::<Context>(&std::fs::read(file).ok()?).ok()?.endpoints.docker.host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of_context(dir.path(), None), None);
        std::fs::write(dir.path().join("config.json"), r#"{"currentContext":"far","auths":{}}"#).unwrap();
        assert_eq!(of_context(dir.path(), None), None);
        let meta = dir.path().join("contexts/meta").join(hex::encode(Sha256::digest("far")));
        std::fs::create_dir_all(&meta).unwrap();
        let text =
            r#"{"Name":"far","Endpoints":{"docker":{"Host":"tcp://10.0.0.1:2375","SkipTLSVerify":false}}}"#;
        std::fs::write(meta.join("meta.json"), text).unwrap();
        assert_eq!(of_context(dir.path(), None).as_deref(), Some("tcp://10.0.0.1:2375"));
        assert_eq!(of_context(dir.path(), Some("far".to_owned())).as_deref(), Some("tcp://10.0.0.1:2375"));
        assert_eq!(of_context(dir.path(), Some("default".to_owned())), None);
    }
}
