//! Nothing is allocated or freed between a clone and an exec. The program under test runs on an allocator that ends a
//! process which does so (`belljar_linux::ForkGuard`), so every test with the feature `mutation` is a test of this. Here
//! it is shown that the watch notices: an allocation is planted in each process of a launch, and the launch fails.

#![cfg(feature = "mutation")]
#![allow(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests fail and speak like tests")]

use std::process::{Command, Output, Stdio};

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// The words of the allocator, from a process whose standard error is still that of `belljar`.
const NOTICED: &str = "belljar: the memory allocator was used between a clone and an exec";

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

/// Flags with which a sandbox can be made here: as an ordinary user limits can only be watched.
fn flags() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &[] } else { &["--limits", "watched"] }
}

/// Plants an allocation; hands back the status and what was said.
fn planted(place: &str) -> (Option<i32>, String) {
    let output = belljar(place, flags(), "echo started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("no wall"), "{text}");
    assert!(output.stdout.is_empty(), "{place}: the code has run: {text}");
    (output.status.code(), text)
}

#[test]
fn a_launch_allocates_nothing() {
    let engines: [&[&str]; 3] = [flags(), &["--engine", "process"], &["--engine", "none"]];
    for engine in engines {
        // Processes that are left behind make the supervisor work at the end.
        let code = "for i in 1 2 3; do sleep 100 & setsid sleep 100 & done; mkdir -p a/b/c; echo x > a/b/c/d; exit 7";
        let output = belljar("", engine, code);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{engine:?}: {text}");
        assert!(!text.contains(NOTICED), "{engine:?}: {text}");
    }
}

#[test]
fn an_allocation_in_the_supervisor_is_noticed() {
    // It has closed its standard error, so it just ends, and the host sees that.
    let (status, text) = planted("fork-safe-supervisor");
    assert_eq!(status, Some(125), "{text}");
}

#[test]
fn an_allocation_in_the_first_process_is_noticed() {
    let (status, text) = planted("fork-safe-first");
    assert_eq!(status, Some(125), "{text}");
}

#[test]
fn an_allocation_beside_the_launch_is_noticed() {
    // The network never comes, so the host gives up after its time.
    let (status, text) = planted("fork-safe-helper");
    assert_eq!(status, Some(125), "{text}");
}

#[test]
fn an_allocation_in_what_becomes_user_code_is_noticed() {
    let (status, text) = planted("fork-safe-spawn");
    assert_eq!(status, Some(86), "{text}");
}
