//! Conformance suite on the engine `docker`, and what only this engine has, with the daemon of `tests/docker/with-daemon.sh`.
//!
//! Sandboxes are reached directly, or through the daemon as those on other machines are.

#[path = "conformance/daemon.rs"]
mod daemon;
#[path = "conformance/own.rs"]
mod own;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use belljar_docker::{DockerEngine, Route};
use belljar_engine::Engine;
use belljar_engine::conformance::{Capability, Case, Context, Outcome, cases};
use belljar_model::{EngineName, SandboxSpec};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use Capability::{
    Confined, DiskQuota, EnforcedCpu, EnforcedMemory, EnforcedPids, HiddenHost, Loopback, MemoryLimit,
    OpenFilesLimit, OwnNetwork, OwnPids, OwnTree, PidsLimit, ProtectedGuest, Siblings, VisibleContexts,
};
use daemon::Daemon;

const CAPABILITIES: &[Capability] = &[
    OwnTree,
    OwnPids,
    OwnNetwork,
    Loopback,
    HiddenHost,
    ProtectedGuest,
    Siblings,
    VisibleContexts,
    Confined,
    MemoryLimit,
    EnforcedMemory,
    PidsLimit,
    EnforcedPids,
    EnforcedCpu,
    OpenFilesLimit,
    DiskQuota,
];

/// Cases that do not hold through the daemon: each connection is a process in the container, so the limit of processes leaves room for
/// some.
const NOT_THROUGH_DAEMON: &[&str] =
    &["pids_limit_is_exact", "threads_count_as_processes", "sandboxes_do_not_see_each_others_processes"];

/// Part of the names of cases that the gate leaves to `make long` (.config/nextest.toml).
const REST: &str = "rest::";

fn main() -> ExitCode {
    // This program is also the sandboxes' guest.
    belljar_guest::enter();
    let mut trials = Vec::new();
    for case in cases() {
        let is_lacking = case.missing_capability(CAPABILITIES).is_some();
        for (variant, route) in [("direct", Route::Shortest), ("through_daemon", Route::ThroughDaemon)] {
            if route == Route::ThroughDaemon && NOT_THROUGH_DAEMON.contains(&&*case.name) {
                continue;
            }
            let rest = if case.is_smoke() && route == Route::Shortest { "" } else { REST };
            let name = format!("{variant}::{rest}{}", case.name);
            let case = case.clone();
            let trial = Trial::ignorable_test(name, move || with_daemon(|daemon| run(daemon, route, &case)));
            trials.push(trial.with_ignored_flag(is_lacking));
        }
    }
    trials.extend(own::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Runs a test with the daemon, or skips it without one.
fn with_daemon(test: impl FnOnce(&Daemon) -> Result<Completion, Failed>) -> Result<Completion, Failed> {
    match Daemon::from_environment() {
        Ok(daemon) => test(&daemon),
        Err(reason) => {
            writeln!(std::io::stdout(), "SKIPPED the engine docker: {reason}")?;
            Ok(Completion::ignored_with(reason))
        }
    }
}

fn run(daemon: &Daemon, route: Route, case: &Case) -> Result<Completion, Failed> {
    let dir = tempfile::tempdir()?;
    let scratch = dir.path().canonicalize()?.join("scratch");
    std::fs::create_dir(&scratch)?;
    let engine: Arc<dyn Engine> = Arc::new(DockerEngine::new(daemon.config(route)));
    let spec = SandboxSpec { engine: EngineName::known("docker"), ..SandboxSpec::default() };
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let leftovers = daemon.clone();
    let context = Context::new(engine, spec, CAPABILITIES, scratch, programs)
        .with_leftovers(move |id| leftovers.leftovers(id.as_str()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(case.run(&context)) {
        Outcome::Passed => Ok(Completion::Completed),
        Outcome::Failed(text) => Err(text.into()),
        Outcome::Skipped(reason) => {
            writeln!(std::io::stdout(), "SKIPPED {}: {reason}", case.name)?;
            Ok(Completion::ignored_with(reason))
        }
    }
}
