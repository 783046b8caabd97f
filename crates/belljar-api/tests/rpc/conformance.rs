//! The conformance suite of engines through a server: sandboxes behave the same over the network.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_api::ApiConfig;
use belljar_engine::conformance::{Capability, Case, Context, HostDirs, LOCAL, Outcome, cases};
use belljar_keeper::OnShutdown;
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{EngineName, LimitsGrade, Role, SandboxSpec};
use libtest_mimic::{Completion, Failed, Trial};

use crate::fixture::Fixture;
use crate::remote::RemoteEngine;

/// What the local engine has as root and the server does not show: the contexts' processes, and the count of refused forks.
const LACKS: &[Capability] = &[Capability::Siblings, Capability::VisibleContexts, Capability::EnforcedPids];

/// Cases that test parts behind a server, each with the reason.
const NOT_OVER_THE_NETWORK: &[(&str, &str)] = &[
    ("deadline_is_enforced_by_the_guest", DEADLINE),
    ("deadline_can_be_moved", DEADLINE),
    ("run_fails_if_the_guest_is_gone", DEADLINE),
    ("ended_sandbox_leaves_nothing", DEADLINE),
    ("deadline_is_enforced_outside", ID),
    ("deadline_outside_can_be_moved", ID),
    ("launch_uses_the_chosen_id", ID),
    ("connections_are_independent", ID),
    ("broken_connections_do_no_harm", ID),
    ("connections_are_bounded", ID),
    ("freezing_needs_control_groups", ID),
    ("stop_is_shared_and_repeated", ID),
    ("kill_then_usage_then_stop", ID),
    ("mounts_that_are_not_allowed_are_refused", REFUSAL),
    ("wrong_engine_is_refused", REFUSAL),
    ("context_calls_tools", "the server calls stored tools itself, and has none of these names"),
    (
        "report_names_every_layer",
        "the layer of the process limit stands, and forks that it refused are not reported",
    ),
    (
        "rename_race_does_not_leave_the_sandbox",
        "it is many thousand calls, to code that is the same behind the server",
    ),
];

const DEADLINE: &str = "the guest's deadline is the server's own";
const ID: &str = "the server chooses the ids, and holds the sandboxes";
const REFUSAL: &str =
    "the server refuses by a code, not by the engine's own error; the cases of sandboxes look at that";

/// Returns a trial for each case.
pub(crate) fn trials(ignored: bool) -> Vec<Trial> {
    let trial = |case: Case| {
        let left_out = NOT_OVER_THE_NETWORK.iter().any(|(name, _)| *name == case.name);
        let lacks = case.missing_capability(&LOCAL.without(LACKS)).is_some();
        // The other cases are run by `make conformance` (.config/nextest.toml).
        let rest = if case.is_smoke() { "" } else { "rest::" };
        let name = format!("conformance::{rest}{}", case.name);
        Trial::ignorable_test(name, move || run(&case)).with_ignored_flag(ignored || left_out || lacks)
    };
    let mut trials: Vec<Trial> = cases().into_iter().map(trial).collect();
    trials.push(Trial::test("conformance::what_is_left_out_is_there", || {
        for (name, _) in NOT_OVER_THE_NETWORK {
            if !cases().iter().any(|case| case.name == *name) {
                return Err(format!("there is no case {name}").into());
            }
        }
        Ok(())
    }));
    trials
}

fn run(case: &Case) -> Result<Completion, Failed> {
    if let Some((name, reason)) = NOT_OVER_THE_NETWORK.iter().find(|(name, _)| *name == case.name) {
        return Ok(skipped(name, reason));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match runtime.block_on(through_a_server(case))? {
        Outcome::Passed => Ok(Completion::Completed),
        Outcome::Failed(text) => Err(text.into()),
        Outcome::Skipped(reason) => Ok(skipped(&case.name, &reason)),
    }
}

fn skipped(name: &str, reason: &str) -> Completion {
    let _ = writeln!(std::io::stdout(), "SKIPPED {name}: {reason}");
    Completion::ignored_with(reason.to_owned())
}

async fn through_a_server(case: &Case) -> Result<Outcome, Failed> {
    let dir = tempfile::tempdir()?;
    let make = |name: &str| -> std::io::Result<PathBuf> {
        let path = dir.path().canonicalize()?.join(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    };
    let dirs = HostDirs { readable: make("readable")?, writable: make("writable")?, closed: make("closed")? };
    let mut config = LocalConfig::new(LocalKind::Local);
    config.mount_policy.allow_read(dirs.readable.clone())?;
    config.mount_policy.allow_write(dirs.writable.clone())?;
    let config_of_api = ApiConfig { drain: Duration::from_secs(3), ..ApiConfig::default() };
    let fixture = Fixture::new(config_of_api, Arc::new(LocalEngine::new(config))).await;
    let engine =
        RemoteEngine { client: fixture.client("default", Role::Admin).await, kind: EngineName::LOCAL };
    let spec =
        SandboxSpec { engine: EngineName::LOCAL, grade: LimitsGrade::Cgroup, ..SandboxSpec::default() };
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let context = Context::new(Arc::new(engine), spec, &LOCAL.without(LACKS), make("scratch")?, programs)
        .with_host_dirs(dirs)
        .with_leftovers(crate::leftovers::of);
    let outcome = case.run(&context).await;
    drop(context);
    fixture.keeper.close(OnShutdown::Kill).await?;
    Ok(outcome)
}
