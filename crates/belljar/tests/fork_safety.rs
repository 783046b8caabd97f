//! Nothing is allocated or freed between a clone and an exec. The program under test uses an allocator that ends a
//! process which does so (`belljar_linux::ForkGuard`), so every test with the feature `mutation` checks this. The tests here
//! show that the guard works: an allocation is made in each process of a launch, and the launch fails.

#![cfg(feature = "mutation")]
#![allow(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests fail and speak like tests")]

use std::process::{Command, Output, Stdio};

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// Message of the allocator, from a process whose standard error is still that of `belljar`.
const GUARD_MESSAGE: &str = "belljar: the memory allocator was used between a clone and an exec";

fn belljar(without: &str, flags: &[&str], code: &str) -> Output {
    Command::new(BELLJAR)
        .args(["run", "--quiet"])
        .args(flags)
        .args(["-l", "sh", "-c", code])
        .env("BELLJAR_TEST_WITHOUT", without)
        .stdin(Stdio::null())
        .output()
        .expect("belljar starts")
}

/// Returns flags with which a sandbox can be created here: as an ordinary user, limits can only be watched.
fn flags() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &[] } else { &["--limits", "watched"] }
}

/// Plants an allocation, and returns the status and standard error.
fn run_with_allocation(place: &str) -> (Option<i32>, String) {
    let output = belljar(place, flags(), "echo started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("no wall"), "{text}");
    assert!(output.stdout.is_empty(), "{place}: the code has run: {text}");
    (output.status.code(), text)
}

#[test]
fn launch_does_not_allocate() {
    let engines: [&[&str]; 3] = [flags(), &["--engine", "process"], &["--engine", "none"]];
    for engine in engines {
        // Leftover processes give the supervisor work at the end.
        let code = "for i in 1 2 3; do sleep 100 & setsid sleep 100 & done; mkdir -p a/b/c; echo x > a/b/c/d; exit 7";
        let output = belljar("", engine, code);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{engine:?}: {text}");
        assert!(!text.contains(GUARD_MESSAGE), "{engine:?}: {text}");
    }
}

#[test]
fn allocation_in_the_supervisor_is_detected() {
    // The supervisor has closed its standard error, so it ends without a message, which the host detects.
    let (status, text) = run_with_allocation("fork-safe-supervisor");
    assert_eq!(status, Some(125), "{text}");
}

#[test]
fn allocation_in_the_first_process_is_detected() {
    let (status, text) = run_with_allocation("fork-safe-first");
    assert_eq!(status, Some(125), "{text}");
}

#[test]
fn allocation_in_the_network_helper_is_detected() {
    // The network is never ready, so the host times out.
    let (status, text) = run_with_allocation("fork-safe-helper");
    assert_eq!(status, Some(125), "{text}");
}

#[test]
fn allocation_before_user_code_is_detected() {
    let (status, text) = run_with_allocation("fork-safe-spawn");
    assert_eq!(status, Some(86), "{text}");
}
