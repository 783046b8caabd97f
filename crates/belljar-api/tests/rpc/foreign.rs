//! A foreign client: Python's grpcio, which learns all it needs by reflection.

use std::io::Write as _;
use std::process::Stdio;

use belljar_keeper::Leave;
use belljar_model::Role;
use libtest_mimic::{Completion, Failed, Trial};

use crate::world::World;

/// The interpreter that has grpcio: that of `scripts/install-deps.sh`, or the one that the caller names.
const PYTHON: &str = "BELLJAR_GRPC_PYTHON";

/// The one trial.
pub(crate) fn trials(ignored: bool) -> Vec<Trial> {
    vec![Trial::ignorable_test("foreign::grpcio_knows_what_to_do", run).with_ignored_flag(ignored)]
}

fn python() -> String {
    std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned())
}

fn has_grpc() -> bool {
    let probe = std::process::Command::new(python())
        .args(["-c", "import grpc, grpc_reflection"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

fn run() -> Result<Completion, Failed> {
    if !has_grpc() {
        let reason = format!("{} has no grpcio and grpcio-reflection; see {PYTHON}", python());
        writeln!(std::io::stdout(), "SKIPPED foreign::grpcio_knows_what_to_do: {reason}")?;
        return Ok(Completion::ignored_with(reason));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let world = World::new().await;
        let key = world.key("default", Role::User).await;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rpc/foreign.py");
        let output = tokio::task::spawn_blocking({
            let address = world.address.to_string();
            move || std::process::Command::new(python()).args([script, &address, &key]).output()
        })
        .await??;
        world.keeper.close(Leave::Nothing).await?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(Completion::Completed) } else { Err(Failed::from(told)) }
    })
}
