//! Conformance suite on the engine `gvisor`, and what only this engine has, with the `runsc` of the search path.

#[path = "conformance/own.rs"]
mod own;
#[path = "conformance/runsc.rs"]
mod runsc;

use std::process::ExitCode;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::conformance::{Capability, case_trial, cases};
use belljar_gvisor::GvisorEngine;
use belljar_model::GvisorPlatform;
use libtest_mimic::Arguments;

use Capability::{
    Confined, EnforcedCpu, HiddenHost, Loopback, MemoryLimit, OpenFilesLimit, OwnNetwork, OwnPids, OwnTree,
    PidsLimit, ProtectedGuest, Siblings, VisibleContexts,
};
use runsc::Machine;

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
    PidsLimit,
    EnforcedCpu,
    OpenFilesLimit,
];

/// Cases that do not hold, although the engine has what they need, and what of gVisor they meet.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "code_cannot_read_the_host",
        "everybody reads /proc/1/environ, which has the guest's: HOME=/nonexistent",
    ),
    (
        "guest_cannot_be_written_in_proc",
        "everybody reads environ, maps, auxv and the numbers of descriptors in /proc/PID",
    ),
    ("programs_start_with_clean_state", "/proc/self/status has no signal masks"),
    ("terminal_is_a_terminal", "/dev/tty cannot be opened"),
    ("terminal_has_its_size_and_is_resized", "programs get no SIGWINCH"),
    (
        "files_changing_while_packed_are_counted",
        "a directory that changes while it is read may show names again, without end",
    ),
    (
        "cpu_limit_is_enforced",
        "the time for which a program is throttled counts as its own: own::processor_time_is_limited",
    ),
    ("packed_trees_are_read_by_others", "holes of files are not told from their data"),
    ("wide_directories_are_packed", "the limit inodes is refused"),
    ("freezing_needs_control_groups", "limits of a running sandbox do not change"),
    ("rename_race_does_not_leave_the_sandbox", "it takes longer than a case may"),
];

/// Part of the names of cases that the gate leaves to `make long` (.config/nextest.toml).
const REST: &str = "rest::";

fn main() -> ExitCode {
    // This program is also the sandboxes' guest.
    belljar_guest::enter();
    let mut trials = Vec::new();
    for case in cases() {
        let is_exception = EXCEPTIONS.iter().any(|(name, _)| *name == case.name);
        for platform in GvisorPlatform::ALL {
            let is_quick = case.is_smoke() && platform == GvisorPlatform::Systrap;
            let name = format!("{platform}::{}{}", if is_quick { "" } else { REST }, case.name);
            let open = move |machine: &Machine| -> Arc<dyn Engine> {
                Arc::new(GvisorEngine::new(machine.config(platform)))
            };
            trials.push(case_trial(name, case.clone(), CAPABILITIES, is_exception, open));
        }
    }
    trials.extend(own::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
