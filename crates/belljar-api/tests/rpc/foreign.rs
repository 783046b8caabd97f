//! Foreign clients: Python's grpcio, which learns all it needs by reflection, and curl.

use std::io::Write as _;
use std::process::{Command, Stdio};

use belljar_keeper::Leave;
use belljar_model::Role;
use libtest_mimic::{Completion, Failed, Trial};

use crate::fixture::Fixture;

/// The interpreter that has grpcio: that of `scripts/install-deps.sh`, or the one that the caller names.
const PYTHON: &str = "BELLJAR_GRPC_PYTHON";

/// The trials with programs of others.
pub(crate) fn trials(ignored: bool) -> Vec<Trial> {
    vec![
        Trial::ignorable_test("foreign::grpcio_knows_what_to_do", grpcio).with_ignored_flag(ignored),
        Trial::ignorable_test("foreign::the_commands_of_the_page_work", page).with_ignored_flag(ignored),
    ]
}

fn python() -> String {
    std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned())
}

fn works(program: &str, arguments: &[&str]) -> bool {
    let probe = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

fn skipped(name: &str, reason: String) -> Result<Completion, Failed> {
    writeln!(std::io::stdout(), "SKIPPED foreign::{name}: {reason}")?;
    Ok(Completion::ignored_with(reason))
}

fn grpcio() -> Result<Completion, Failed> {
    if !works(&python(), &["-c", "import grpc, grpc_reflection"]) {
        let reason = format!("{} has no grpcio and grpcio-reflection; see {PYTHON}", python());
        return skipped("grpcio_knows_what_to_do", reason);
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rpc/foreign.py");
    with_a_server(|address, key| {
        let mut command = Command::new(python());
        command.args([script, address, key]);
        command
    })
}

/// Runs what docs/rpc.md has as commands, in one shell, as it is written.
fn page() -> Result<Completion, Failed> {
    if let Some(missing) = ["curl", "jq", "bash"].into_iter().find(|program| !works(program, &["--version"]))
    {
        return skipped("the_commands_of_the_page_work", format!("there is no {missing}"));
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rpc.md"))?;
    let blocks =
        page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(block, _)| block);
    let script = format!("set -euo pipefail\n{}", blocks.collect::<String>());
    let output = with_a_server_told(|address, key| {
        let mut command = Command::new("bash");
        command
            .args(["-c", &script])
            .env("BELLJAR_API_URL", format!("http://{address}"))
            .env("BELLJAR_API_KEY", key);
        command
    })?;
    let expected = [
        "SANDBOX_STATE_RUNNING",
        "1",
        "1",
        "FILE_KIND_DIRECTORY",
        "src",
        "{}",
        "\"exited\":{}",
        "unauthenticated",
        "not_found",
        "belljar.v1.Problem",
        "{}",
    ];
    let told: Vec<&str> = output.lines().collect();
    if told == expected {
        Ok(Completion::Completed)
    } else {
        Err(format!("the page's commands say {told:#?}").into())
    }
}

fn with_a_server(command: impl FnOnce(&str, &str) -> Command) -> Result<Completion, Failed> {
    with_a_server_told(command).map(|_| Completion::Completed)
}

/// Runs a program with a server's address and a key to it, and hands back what it wrote.
fn with_a_server_told(command: impl FnOnce(&str, &str) -> Command) -> Result<String, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let fixture = Fixture::new(crate::fixture::config(), crate::fixture::engine()).await;
        let key = fixture.key("default", Role::User).await;
        let mut command = command(&fixture.address.to_string(), &key);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        fixture.keeper.close(Leave::Nothing).await?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(told);
        }
        Err(Failed::from(format!("{told}\n{}", String::from_utf8_lossy(&output.stderr))))
    })
}
