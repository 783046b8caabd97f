//! What builds the walls.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

const IN_THIS_VERSION: &str = "local, process or none";

/// What builds the walls around a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EngineKind {
    /// Namespaces and every other wall that the kernel has. The default.
    #[default]
    Local,
    /// No namespaces: resource limits, Landlock and seccomp around a plain process.
    Process,
    /// No walls, for development only.
    None,
    /// A Docker container.
    Docker,
    /// A small virtual machine.
    Microvm,
    /// A pod in a Kubernetes cluster.
    Kubernetes,
}

impl EngineKind {
    /// Every engine.
    pub const ALL: [Self; 6] =
        [Self::Local, Self::Process, Self::None, Self::Docker, Self::Microvm, Self::Kubernetes];

    /// Whether this version can build sandboxes with it.
    pub const fn is_in_this_version(self) -> bool {
        matches!(self, Self::Local | Self::Process | Self::None)
    }

    /// The engine's name, such as `local`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Process => "process",
            Self::None => "none",
            Self::Docker => "docker",
            Self::Microvm => "microvm",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// Reads the name of an engine that this version has.
    pub(crate) fn parse_available(field: &'static str, text: &str) -> Result<Self, ModelError> {
        match Self::ALL.into_iter().find(|engine| engine.as_str() == text) {
            Some(engine) if engine.is_in_this_version() => Ok(engine),
            Some(_) => {
                Err(ModelError::NotInThisVersion { field, value: text.to_owned(), allowed: IN_THIS_VERSION })
            }
            None => Err(ModelError::not_allowed(field, text, IN_THIS_VERSION)),
        }
    }
}

impl FromStr for EngineKind {
    type Err = ModelError;

    /// Reads the name of an engine, also of one that this version does not have.
    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::ALL.into_iter().find(|engine| engine.as_str() == text).ok_or_else(|| {
            ModelError::not_allowed("engine", text, "local, process, none, docker, microvm or kubernetes")
        })
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(EngineKind);

/// Chooses the engine: the flag, else `BELLJAR_ENGINE`, else `CODE_EXEC_SANDBOX`, else [`EngineKind::Local`].
///
/// The caller reads the flag and the environment. `CODE_EXEC_SANDBOX` knows `docker`, `process` and `none` only.
/// An environment variable that is set to nothing counts as not set.
///
/// # Errors
///
/// When the first of them that is given names no engine, or one that this version does not have.
pub fn choose_engine(
    flag: Option<&str>,
    belljar_engine: Option<&str>,
    code_exec_sandbox: Option<&str>,
) -> Result<EngineKind, ModelError> {
    let set = |value: &&str| !value.is_empty();
    if let Some(text) = flag {
        return EngineKind::parse_available("engine", text);
    }
    if let Some(text) = belljar_engine.filter(set) {
        return EngineKind::parse_available("BELLJAR_ENGINE", text);
    }
    match code_exec_sandbox.filter(set) {
        None => Ok(EngineKind::default()),
        Some("process") => Ok(EngineKind::Process),
        Some("none") => Ok(EngineKind::None),
        Some("docker") => Err(ModelError::NotInThisVersion {
            field: "CODE_EXEC_SANDBOX",
            value: "docker".to_owned(),
            allowed: "process or none, or unset it for the local engine",
        }),
        Some(text) => Err(ModelError::not_allowed("CODE_EXEC_SANDBOX", text, "docker, process or none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for engine in EngineKind::ALL {
            assert_eq!(engine.to_string().parse::<EngineKind>().unwrap(), engine);
            assert_eq!(serde_json::to_value(engine).unwrap(), engine.as_str());
        }
        assert!("LOCAL".parse::<EngineKind>().is_err());
    }

    #[test]
    fn the_first_that_is_given_is_chosen() {
        type Case = (
            Option<&'static str>,
            Option<&'static str>,
            Option<&'static str>,
            Result<EngineKind, &'static str>,
        );
        let cases: &[Case] = &[
            (None, None, None, Ok(EngineKind::Local)),
            (Some("process"), Some("none"), Some("docker"), Ok(EngineKind::Process)),
            (None, Some("none"), Some("docker"), Ok(EngineKind::None)),
            (None, None, Some("process"), Ok(EngineKind::Process)),
            (None, None, Some("none"), Ok(EngineKind::None)),
            (None, Some(""), Some(""), Ok(EngineKind::Local)),
            (None, Some(""), Some("process"), Ok(EngineKind::Process)),
            (
                Some("docker"),
                None,
                None,
                Err("engine: \"docker\" is not in this version; give local, process or none"),
            ),
            (
                Some("microvm"),
                None,
                None,
                Err("engine: \"microvm\" is not in this version; give local, process or none"),
            ),
            (Some(""), None, None, Err("engine: \"\" is not allowed; give local, process or none")),
            (
                None,
                Some("kubernetes"),
                None,
                Err("BELLJAR_ENGINE: \"kubernetes\" is not in this version; give local, process or none"),
            ),
            (
                None,
                Some("jail"),
                None,
                Err("BELLJAR_ENGINE: \"jail\" is not allowed; give local, process or none"),
            ),
            (
                None,
                None,
                Some("docker"),
                Err(
                    "CODE_EXEC_SANDBOX: \"docker\" is not in this version; give process or none, or unset it for the local engine",
                ),
            ),
            (
                None,
                None,
                Some("local"),
                Err("CODE_EXEC_SANDBOX: \"local\" is not allowed; give docker, process or none"),
            ),
        ];
        for (flag, belljar, code_exec, expected) in cases {
            let chosen = choose_engine(*flag, *belljar, *code_exec).map_err(|error| error.to_string());
            assert_eq!(chosen, expected.map_err(str::to_owned));
        }
    }
}
