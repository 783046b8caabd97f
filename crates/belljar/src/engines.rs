//! The engines of this version.

use std::sync::OnceLock;

use belljar_docker::DockerKind;
use belljar_engine::EngineKind;
use belljar_gvisor::GvisorKind;
use belljar_local::LocalKind;
use belljar_model::EngineName;

/// All of them, one line each. The first one is the default.
pub(crate) static ALL: [&dyn EngineKind; 5] = [
    &LocalKind::Local, //
    &LocalKind::Process,
    &LocalKind::None,
    &DockerKind,
    &GvisorKind,
];

/// The one that `belljar` has without the service: the default.
pub(crate) static OWN: [&dyn EngineKind; 1] = [&LocalKind::Local];

/// Those of this program. A program that uses only some does not have the code of the others.
static LIST: OnceLock<&[&dyn EngineKind]> = OnceLock::new();

/// Sets the engines of this program, once.
pub(crate) fn set(list: &'static [&'static dyn EngineKind]) {
    let _ = LIST.set(list);
}

/// Returns the engines of this program.
pub(crate) fn all() -> impl Iterator<Item = &'static dyn EngineKind> {
    let of_tests = || if cfg!(test) { &ALL[..] } else { &OWN[..] };
    LIST.get_or_init(of_tests).iter().copied()
}

/// Returns the default engine.
pub(crate) fn default() -> &'static dyn EngineKind {
    &LocalKind::Local
}

/// Returns the engine with this name.
pub(crate) fn find(name: &str) -> Option<&'static dyn EngineKind> {
    all().find(|kind| kind.name().as_str() == name)
}

/// Returns the names of all engines.
pub(crate) fn names() -> Vec<EngineName> {
    all().map(EngineKind::name).collect()
}

/// Lists the names of all engines, as the allowed values of a setting.
pub(crate) fn list() -> String {
    belljar_config::one_of(names().iter().map(EngineName::as_str))
}
