//! Runs cases as an ordinary user, when the tests run as root: this program runs itself again as that user.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use belljar_engine::conformance::{Case, Outcome};
use libtest_mimic::Failed;

use crate::account::{find_account, install_programs};
use crate::leftovers;
use crate::variants::{EXIT_TIMEOUT, Variant, run_in};

/// Flag for running one case, whose name follows.
pub(crate) const FLAG: &str = "--belljar-case";

/// Exit statuses of that run.
const PASSED: u8 = 0;
const FAILED: u8 = 1;
const SKIPPED: u8 = 77;

/// Variable with the directory that the case may use.
const DIR_VARIABLE: &str = "BELLJAR_CASE_DIR";

/// Runs a case as that account.
pub(crate) fn run(name: &str, variant: &Variant, case: &Case) -> Result<Outcome, Failed> {
    let (uid, gid) = find_account().ok_or("the account is gone")?;
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    let program = dir.path().join("conformance");
    install_programs(&program)?;
    copy_programs(case, &dir.path().join("programs"))?;
    let own = dir.path().join("own");
    std::fs::create_dir(&own)?;
    chown(&own, Some(uid), Some(gid))?;
    let output = Command::new(&program)
        .args([FLAG, name])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env(DIR_VARIABLE, &own)
        .current_dir("/")
        .gid(gid)
        .uid(uid)
        .output()?;
    // Nobody else runs a program of this name, so any process left was left behind.
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while let Some(pid) = leftovers::find_process_running(&program) {
        if Instant::now() > deadline {
            return Err(format!("the process {pid} has outlived its sandbox").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output_text = || String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(PASSED) => Ok(Outcome::Passed),
        Some(SKIPPED) => Ok(Outcome::Skipped(output_text())),
        _ => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok(Outcome::Failed(format!("{}{errors} ({}, {})", output_text(), variant.name, output.status)))
        }
    }
}

/// Copies the programs of a language's case. Other cases need none.
fn copy_programs(case: &Case, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    let Some(language) = case.name.strip_prefix("language_").and_then(|name| name.strip_suffix("_greets"))
    else {
        return Ok(());
    };
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(language);
    std::fs::create_dir(to.join(language))?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(language).join(entry.file_name()))?;
    }
    Ok(())
}

/// Runs the case `name` in this process, and reports its outcome by status and output.
pub(crate) fn child(name: &str) -> ExitCode {
    let (status, text) = match try_child(name) {
        Ok(Outcome::Passed) => (PASSED, String::new()),
        Ok(Outcome::Skipped(reason)) => (SKIPPED, reason),
        Ok(Outcome::Failed(text)) => (FAILED, text),
        Err(failed) => (FAILED, failed.message().unwrap_or("it failed").to_owned()),
    };
    let _ = writeln!(std::io::stdout(), "{text}");
    status.into()
}

fn try_child(name: &str) -> Result<Outcome, Failed> {
    let (variant, case) =
        Variant::parse(name).ok_or("give a set-up and a case, such as local_user::run_times_out")?;
    let own = PathBuf::from(std::env::var_os(DIR_VARIABLE).ok_or("it is started by the tests, not by hand")?);
    let programs = own.join("../programs");
    run_in(variant, &case, &own, programs)
}
