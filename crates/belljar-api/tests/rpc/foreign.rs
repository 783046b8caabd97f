//! Foreign clients: Python's grpcio, which uses reflection, and curl.

use std::io::Write as _;
use std::process::{Command, Stdio};

use belljar_keeper::OnShutdown;
use belljar_model::Role;
use libtest_mimic::{Completion, Failed, Trial};

use crate::fixture::Fixture;

/// Variable that names the Python interpreter with grpcio; the default is that of `scripts/install-deps.sh`.
const PYTHON: &str = "BELLJAR_GRPC_PYTHON";

/// Returns the trials.
pub(crate) fn trials(ignored: bool) -> Vec<Trial> {
    vec![
        Trial::ignorable_test("foreign::grpcio_works_by_reflection", grpcio).with_ignored_flag(ignored),
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
        return skipped("grpcio_works_by_reflection", reason);
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rpc/foreign.py");
    with_server(|address, key| {
        let mut command = Command::new(python());
        command.args([script, address, key]);
        command
    })
}

/// Runs the commands of docs/rpc.md unchanged, in one shell.
fn page() -> Result<Completion, Failed> {
    if let Some(missing) = ["curl", "jq", "bash"].into_iter().find(|program| !works(program, &["--version"]))
    {
        return skipped("the_commands_of_the_page_work", format!("there is no {missing}"));
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rpc.md"))?;
    let blocks =
        page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(block, _)| block);
    let script = format!("set -euo pipefail\n{}", blocks.collect::<String>());
    let output = with_server_output(|address, key| {
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
    let output_lines: Vec<&str> = output.lines().collect();
    if output_lines == expected {
        Ok(Completion::Completed)
    } else {
        Err(format!("the page's commands say {output_lines:#?}").into())
    }
}

fn with_server(command: impl FnOnce(&str, &str) -> Command) -> Result<Completion, Failed> {
    with_server_output(command).map(|_| Completion::Completed)
}

/// Runs a program with a server's address and a key, and returns its output.
fn with_server_output(command: impl FnOnce(&str, &str) -> Command) -> Result<String, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let fixture = Fixture::new(crate::fixture::config(), crate::fixture::engine()).await;
        let key = fixture.key("default", Role::User).await;
        let mut command = command(&fixture.address.to_string(), &key);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        fixture.keeper.close(OnShutdown::Kill).await?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(stdout);
        }
        Err(Failed::from(format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr))))
    })
}
