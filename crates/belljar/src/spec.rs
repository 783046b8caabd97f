//! Merges flags, files and the environment into one checked specification.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_engine::{Engine, EngineKind, EngineSetup, IsolationLevel};
use belljar_model::{
    ByteSize, DockerSettings, GvisorPlatform, GvisorSettings, ImageReference, Language, LimitsFile,
    LimitsGrade, MAX_SPEC_BYTES, ModelError, MountPolicy, NetworkMode, NetworkSetup, SandboxSpec, SpecFile,
    Timeout, Tree,
};

use crate::cli::SandboxArgs;
use crate::engines;
use crate::input::read_text;
use crate::message::{Quit, say};
use crate::net::read_secrets;
use crate::policy;

/// Variable for the grade of the limits of all sandboxes.
pub(crate) const LIMITS_VARIABLE: &str = "BELLJAR_LIMITS";

/// A specification before it is checked.
#[derive(Debug)]
pub(crate) struct UncheckedSpec {
    file: SpecFile,
    /// Number of the mounts that come from a file.
    mounts_of_file: usize,
    /// Whether the sandbox has a network at its start, whatever the policy is then.
    needs_network: bool,
    /// Image of the engine's own store.
    image: Option<ImageReference>,
}

impl UncheckedSpec {
    /// Merges the flags, the file and the environment. Flags take precedence.
    pub(crate) fn from_args(args: &SandboxArgs) -> Result<Self, Quit> {
        let file = args.spec.as_deref().map(read_spec).transpose()?.unwrap_or_default();
        let mounts_of_file = file.mounts.as_ref().map_or(0, Vec::len);
        let mut flags = flags(args)?;
        let engines = (variable("BELLJAR_ENGINE"), variable("CODE_EXEC_SANDBOX"));
        if flags.engine.is_some() || engines.0.is_some() || engines.1.is_some() {
            let chosen = choose_engine(flags.engine.as_deref(), engines.0.as_deref(), engines.1.as_deref())?;
            flags.engine = Some(chosen.name().to_string());
        }
        flags.grade = flags.grade.or_else(|| variable(LIMITS_VARIABLE));
        Ok(Self { file: file.merge(flags), mounts_of_file, needs_network: false, image: None })
    }

    /// Reports whether nobody chooses an engine, so that it is the default.
    pub(crate) fn is_default_engine(args: &SandboxArgs) -> bool {
        let variables = ["BELLJAR_ENGINE", "CODE_EXEC_SANDBOX"];
        args.engine.is_none() && args.spec.is_none() && !variables.iter().any(|name| variable(name).is_some())
    }

    /// Returns the limits of the flags alone, for the host's side of a sandbox that a server creates.
    pub(crate) fn limits_only(args: &SandboxArgs) -> Result<Self, Quit> {
        let limits = args.resources.file()?;
        let file = SpecFile { limits, ..SpecFile::default() };
        Ok(Self { file, mounts_of_file: 0, needs_network: false, image: None })
    }

    /// Returns the language that the file names.
    pub(crate) fn language(&self) -> Option<&str> {
        self.file.language.as_deref()
    }

    /// Returns the mode of the network, if it is given.
    pub(crate) fn network_mode(&self) -> Option<&str> {
        self.file.network.as_ref()?.mode.as_deref()
    }

    /// Takes an image if the engine has images of its own, and returns it otherwise: then a server pulls it.
    pub(crate) fn take_image(
        &mut self,
        image: Option<&ImageReference>,
    ) -> Result<Option<ImageReference>, Quit> {
        let Some(image) = image else { return Ok(None) };
        let named = self.file.engine.as_deref().map(|name| kind("engine", name)).transpose()?;
        match named {
            Some(kind) if kind.has_images() => {
                self.image = Some(image.clone());
                Ok(None)
            }
            _ => Ok(Some(image.clone())),
        }
    }

    /// Marks the sandbox as one that has a network at its start.
    pub(crate) fn set_needs_network(&mut self) {
        self.needs_network = true;
    }

    /// Sets the timeout unless it is set already.
    pub(crate) fn default_timeout(&mut self, timeout: Timeout) {
        self.file.limits.timeout.get_or_insert(timeout);
    }

    /// Sets the timeout of the sandbox as a whole.
    pub(crate) fn set_timeout(&mut self, timeout: Timeout) {
        self.file.limits.timeout = Some(timeout);
    }

    /// Marks the sandbox as interactive.
    pub(crate) fn set_interactive(&mut self) {
        self.file.interactive = Some(true);
    }

    /// Checks the specification. Limits that are not given are raised to the minimum of `language`.
    pub(crate) fn resolve(
        mut self,
        language: Option<&Language>,
        named: Option<&Path>,
    ) -> Result<CheckedSpec, Quit> {
        let given = self.file.limits.clone();
        let kind = match &self.file.engine {
            Some(name) => kind("engine", name)?,
            None => engines::default(),
        };
        self.default_timeout(kind.default_timeout());
        if let Some(network) = &mut self.file.network {
            read_secrets(network)?;
        }
        let mut spec = self.file.resolve()?;
        if let Some(image) = self.image {
            spec.tree = Tree::Image(image);
        }
        spec.network.check_filled()?;
        let (memory, machine) = (ByteSize::new(spec.limits.memory.bytes()), machine_memory());
        if given.memory.is_some() && memory > machine && kind.isolation() != IsolationLevel::None {
            let text =
                format!("memory: \"{memory}\" is not allowed; give at most the {machine} of this machine");
            return Err(Quit::Usage(text));
        }
        if let Some(language) = language {
            raise(&mut spec, &given, language);
        }
        let policy = policy::policy(named, &spec.mounts, self.mounts_of_file)?;
        let network = match spec.network.mode() {
            NetworkMode::Disabled if !self.needs_network => NetworkSetup::default(),
            _ => policy::network(named)?,
        };
        Ok(CheckedSpec {
            spec,
            kind,
            policy,
            network,
            docker: docker_settings()?,
            gvisor: gvisor_settings()?,
        })
    }
}

/// A checked specification, with the policies for mounts and networks.
#[derive(Debug)]
pub(crate) struct CheckedSpec {
    pub(crate) spec: SandboxSpec,
    pub(crate) kind: &'static dyn EngineKind,
    policy: MountPolicy,
    network: NetworkSetup,
    docker: DockerSettings,
    gvisor: GvisorSettings,
}

impl CheckedSpec {
    /// Returns the engine. Warns if it has no isolation.
    pub(crate) fn engine(&self) -> Arc<dyn Engine> {
        if self.kind.isolation() == IsolationLevel::None {
            say(&format!(
                "warning: the engine {} has no walls: the code runs with your own rights",
                self.kind.name()
            ));
        }
        self.kind.open(self.setup())
    }

    /// Returns the engine's settings.
    pub(crate) fn setup(&self) -> EngineSetup {
        EngineSetup {
            mount_policy: self.policy.clone(),
            network: self.network.clone(),
            // A delegated control group that the operator has chosen.
            cgroup_base: std::env::var_os("BELLJAR_CGROUP").filter(|dir| !dir.is_empty()).map(PathBuf::from),
            run_dir: None,
            docker: self.docker.clone(),
            gvisor: self.gvisor.clone(),
        }
    }
}

/// Returns the settings of the engine `docker` for sandboxes without a server: the variables of a server's settings. The caller is a user
/// of the daemon, who may have it pull any image.
fn docker_settings() -> Result<DockerSettings, ModelError> {
    const IMAGE: &str = "BELLJAR_ENGINES_DOCKER_IMAGE";
    let image = variable(IMAGE).map(|value| {
        value.parse().map_err(|_| ModelError::NotAllowed {
            field: IMAGE,
            value,
            allowed: "the name of an image, such as python:3.12-slim".to_owned(),
        })
    });
    Ok(DockerSettings {
        host: variable("BELLJAR_ENGINES_DOCKER_HOST"),
        runtime: variable("BELLJAR_ENGINES_DOCKER_RUNTIME"),
        image: image.transpose()?,
        registries: None,
    })
}

/// Returns the settings of the engine `gvisor`, likewise.
fn gvisor_settings() -> Result<GvisorSettings, ModelError> {
    const PLATFORM: &str = "BELLJAR_ENGINES_GVISOR_PLATFORM";
    let platform = variable(PLATFORM).map(|value| {
        value.parse().map_err(|()| ModelError::NotAllowed {
            field: PLATFORM,
            value,
            allowed: belljar_config::one_of(GvisorPlatform::ALL.iter().map(|platform| platform.as_str())),
        })
    });
    Ok(GvisorSettings {
        runsc: variable("BELLJAR_ENGINES_GVISOR_RUNSC").map(PathBuf::from),
        platform: platform.transpose()?.unwrap_or_default(),
    })
}

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Chooses the engine: the flag, else `BELLJAR_ENGINE`, else `CODE_EXEC_SANDBOX`, else the default. `CODE_EXEC_SANDBOX` supports
/// only `docker`, `process` and `none`. An empty variable counts as not set.
fn choose_engine(
    flag: Option<&str>,
    belljar_engine: Option<&str>,
    code_exec_sandbox: Option<&str>,
) -> Result<&'static dyn EngineKind, ModelError> {
    const FIELD: &str = "CODE_EXEC_SANDBOX";
    let set = |value: &&str| !value.is_empty();
    if let Some(text) = flag {
        return kind("engine", text);
    }
    if let Some(text) = belljar_engine.filter(set) {
        return kind("BELLJAR_ENGINE", text);
    }
    match code_exec_sandbox.filter(set) {
        None => Ok(engines::default()),
        Some(text @ ("docker" | "process" | "none")) => kind(FIELD, text),
        Some(text) => Err(ModelError::NotAllowed {
            field: FIELD,
            value: text.to_owned(),
            allowed: "docker, process or none".to_owned(),
        }),
    }
}

/// Returns the engine of this name.
fn kind(field: &'static str, name: &str) -> Result<&'static dyn EngineKind, ModelError> {
    let missing = || ModelError::NotInThisVersion { field, value: name.to_owned(), allowed: engines::list() };
    engines::find(name).ok_or_else(missing)
}

/// Returns the warning for a sandbox whose limits are enforced by a weaker mechanism.
pub(crate) fn weaker_grade(grade: LimitsGrade) -> Option<&'static str> {
    match grade {
        LimitsGrade::Cgroup => None,
        LimitsGrade::Watched => Some(
            "warning: limits are watched, not enforced by control groups: \
             a burst can pass a limit before it is seen",
        ),
    }
}

/// Returns the memory of this machine.
fn machine_memory() -> ByteSize {
    let info = rustix::system::sysinfo();
    ByteSize::mib(info.totalram.saturating_mul(u64::from(info.mem_unit)) >> 20)
}

fn raise(spec: &mut SandboxSpec, given: &LimitsFile, language: &Language) {
    let needs = &language.limits;
    if given.memory.is_none() {
        spec.limits.memory = needs.memory.map_or(spec.limits.memory, |floor| floor.max(spec.limits.memory));
    }
    if given.pids.is_none() {
        spec.limits.pids = needs.pids.map_or(spec.limits.pids, |floor| floor.max(spec.limits.pids));
    }
}

pub(crate) fn read_spec(path: &Path) -> Result<SpecFile, Quit> {
    let parse = match path.extension().and_then(OsStr::to_str) {
        Some("toml") => SpecFile::from_toml,
        Some("json") => SpecFile::from_json,
        _ => {
            return Err(anyhow::anyhow!(
                "spec: {path:?} is not known; give a file that ends in .toml or .json"
            )
            .into());
        }
    };
    let text = read_text("spec", path, MAX_SPEC_BYTES as u64)?;
    parse(&text)
        .map_err(|error| anyhow::Error::new(error).context(format!("spec: {path:?} cannot be used")).into())
}

fn flags(args: &SandboxArgs) -> Result<SpecFile, Quit> {
    let mut flags = SpecFile {
        engine: args.engine.clone(),
        limits: args.resources.file()?,
        grade: args.limits.clone(),
        network: args.net.file()?,
        hostname: args.hostname.clone(),
        ..SpecFile::default()
    };
    for mount in &args.mounts {
        flags.add_mount(mount.as_str());
    }
    for variable in &args.env {
        if variable.contains('=') {
            flags.add_env(variable)?;
            continue;
        }
        let usage = |reason: &str| Quit::Usage(format!("env: {reason}"));
        let value = std::env::var_os(variable)
            .ok_or_else(|| usage(&format!("{variable:?} is not set here; give NAME=VALUE")))?
            .into_string()
            .map_err(|_| usage(&format!("the value of {variable:?} is not UTF-8; give text in UTF-8")))?;
        flags.add_env(&format!("{variable}={value}"))?;
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_given_engine_is_chosen() {
        let (local, process, bare) = ("local", "process", "none");
        let none = None;
        let chosen = [
            ((none, none, none), local),
            ((Some("process"), Some("none"), Some("docker")), process),
            ((none, Some("none"), Some("docker")), bare),
            ((none, none, Some("process")), process),
            ((none, none, Some("none")), bare),
            ((none, none, Some("docker")), "docker"),
            ((none, Some(""), Some("")), local),
            ((none, Some(""), Some("process")), process),
        ];
        for ((flag, belljar, code_exec), kind) in chosen {
            assert_eq!(choose_engine(flag, belljar, code_exec).unwrap().name().as_str(), kind);
        }
        let refused = [
            (
                (Some("microvm"), none, none),
                "engine: \"microvm\" is not in this version; give local, process, none, docker or gvisor",
            ),
            (
                (Some(""), none, none),
                "engine: \"\" is not in this version; give local, process, none, docker or gvisor",
            ),
            (
                (none, Some("jail"), none),
                "BELLJAR_ENGINE: \"jail\" is not in this version; give local, process, none, docker or gvisor",
            ),
            (
                (none, none, Some("local")),
                "CODE_EXEC_SANDBOX: \"local\" is not allowed; give docker, process or none",
            ),
        ];
        for ((flag, belljar, code_exec), text) in refused {
            assert_eq!(choose_engine(flag, belljar, code_exec).unwrap_err().to_string(), text);
        }
    }
}
