//! The example of the library works as it stands.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::path::PathBuf;
use std::process::Command;

/// Cargo builds the examples next to the tests.
fn example(name: &str) -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    while !dir.join("examples").is_dir() {
        assert!(dir.pop(), "no directory of examples was built");
    }
    dir.join("examples").join(name)
}

#[test]
fn run_code_runs_python() {
    let output = Command::new(example("run_code")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && !rustix::process::geteuid().is_root() {
        // An ordinary user may have no control groups to limit a sandbox by; then it is refused, and says so.
        assert!(errors.contains("control groups"), "{errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "18446744073709551616 in /home/user as uid 1000");
    assert!(lines[1].starts_with("outcome: Exited { code: 0 }, "), "{text}");
    assert_eq!(lines.len(), 2);
}
