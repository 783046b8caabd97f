//! Conformance suite on the engine `docker`, and what only this engine has, with the daemon of `tests/docker/with-daemon.sh`.
//!
//! Sandboxes are reached directly, or through the daemon as those on other machines are.

#[path = "conformance/daemon.rs"]
mod daemon;
#[path = "conformance/own.rs"]
mod own;

use std::process::ExitCode;
use std::sync::Arc;

use belljar_docker::{DockerEngine, Route};
use belljar_engine::Engine;
use belljar_engine::conformance::{DOCKER, case_trial, cases};
use libtest_mimic::Arguments;

use daemon::Daemon;

/// Cases that do not hold through the daemon: each connection is a process in the container, so the limit of processes leaves room for
/// some.
const NOT_THROUGH_DAEMON: &[&str] =
    &["pids_limit_is_exact", "threads_count_as_processes", "sandboxes_do_not_see_each_others_processes"];

/// Part of the names of cases that the gate leaves to `make long` (.config/nextest.toml).
const REST: &str = "rest::";

fn main() -> ExitCode {
    // This program is also the sandboxes' guest, and their gateway.
    belljar_local::enter_gateway();
    belljar_guest::enter();
    let mut trials = Vec::new();
    for case in cases() {
        for (variant, route) in [("direct", Route::Shortest), ("through_daemon", Route::ThroughDaemon)] {
            if route == Route::ThroughDaemon && NOT_THROUGH_DAEMON.contains(&&*case.name) {
                continue;
            }
            let rest = if case.is_smoke() && route == Route::Shortest { "" } else { REST };
            let name = format!("{variant}::{rest}{}", case.name);
            let open = move |daemon: &Daemon| -> Arc<dyn Engine> {
                Arc::new(DockerEngine::new(daemon.config(route)))
            };
            trials.push(case_trial(name, case.clone(), &DOCKER, open));
        }
    }
    trials.extend(own::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
