//! Conformance suite on the engine `gvisor`, and what only this engine has, with the `runsc` of the search path.

#[path = "conformance/own.rs"]
mod own;
#[path = "conformance/runsc.rs"]
mod runsc;

use std::process::ExitCode;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::conformance::{GVISOR, case_trial, cases};
use belljar_gvisor::GvisorEngine;
use belljar_model::GvisorPlatform;
use libtest_mimic::Arguments;

use runsc::Machine;

/// Part of the names of cases that the gate leaves to `make long` (.config/nextest.toml).
const REST: &str = "rest::";

fn main() -> ExitCode {
    // This program is also the sandboxes' guest, and their gateway.
    belljar_local::enter_gateway();
    belljar_guest::enter();
    let mut trials = Vec::new();
    for case in cases() {
        for platform in GvisorPlatform::ALL {
            let is_quick = case.is_smoke() && platform == GvisorPlatform::Systrap;
            let name = format!("{platform}::{}{}", if is_quick { "" } else { REST }, case.name);
            let open = move |machine: &Machine| -> Arc<dyn Engine> {
                Arc::new(GvisorEngine::new(machine.config(platform)))
            };
            trials.push(case_trial(name, case.clone(), &GVISOR, open));
        }
    }
    trials.extend(own::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
