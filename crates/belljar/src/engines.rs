//! The engines of this version.

use belljar_docker::DockerKind;
use belljar_engine::EngineKind;
use belljar_gvisor::GvisorKind;
use belljar_local::LocalKind;
use belljar_model::EngineName;

/// All of them, one line each. The first one is the default.
pub(crate) const ALL: [&dyn EngineKind; 5] = [
    &LocalKind::Local, //
    &LocalKind::Process,
    &LocalKind::None,
    &DockerKind,
    &GvisorKind,
];

/// Returns the default engine.
pub(crate) const fn default() -> &'static dyn EngineKind {
    ALL[0]
}

/// Returns the engine with this name.
pub(crate) fn find(name: &str) -> Option<&'static dyn EngineKind> {
    ALL.into_iter().find(|kind| kind.name().as_str() == name)
}

/// Returns the names of all engines.
pub(crate) fn names() -> Vec<EngineName> {
    ALL.into_iter().map(EngineKind::name).collect()
}

/// Lists the names of all engines, as the allowed values of a setting.
pub(crate) fn list() -> String {
    belljar_config::one_of(names().iter().map(EngineName::as_str))
}
