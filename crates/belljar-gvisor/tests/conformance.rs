//! Conformance suite on the engine `gvisor`, and what only this engine has, with the `runsc` of the search path.

#[path = "conformance/own.rs"]
mod own;
#[path = "conformance/runsc.rs"]
mod runsc;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use belljar_engine::Engine;
use belljar_engine::conformance::{Capability, Case, Context, Outcome, cases};
use belljar_gvisor::GvisorEngine;
use belljar_model::{EngineName, GvisorPlatform, SandboxSpec};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

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
        let is_lacking = is_exception || case.missing_capability(CAPABILITIES).is_some();
        for platform in GvisorPlatform::ALL {
            let is_quick = case.is_smoke() && platform == GvisorPlatform::Systrap;
            let name = format!("{platform}::{}{}", if is_quick { "" } else { REST }, case.name);
            let case = case.clone();
            let test = move || with_runsc(|machine| run(machine, platform, &case));
            trials.push(Trial::ignorable_test(name, test).with_ignored_flag(is_lacking));
        }
    }
    trials.extend(own::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Runs a test with `runsc`, or skips it without.
fn with_runsc(test: impl FnOnce(&Machine) -> Result<Completion, Failed>) -> Result<Completion, Failed> {
    match Machine::find() {
        Ok(machine) => test(&machine),
        Err(reason) => {
            writeln!(std::io::stdout(), "SKIPPED the engine gvisor: {reason}")?;
            Ok(Completion::ignored_with(reason))
        }
    }
}

fn run(machine: &Machine, platform: GvisorPlatform, case: &Case) -> Result<Completion, Failed> {
    let dir = tempfile::tempdir()?;
    let scratch = dir.path().canonicalize()?.join("scratch");
    std::fs::create_dir(&scratch)?;
    let engine: Arc<dyn Engine> = Arc::new(GvisorEngine::new(machine.config(platform)));
    let spec = SandboxSpec { engine: EngineName::known("gvisor"), ..SandboxSpec::default() };
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let context = Context::new(engine, spec, CAPABILITIES, scratch, programs)
        .with_leftovers(|id| runsc::leftovers(id.as_str()));
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
