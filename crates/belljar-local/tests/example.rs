//! Checks the example of the library.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_local::{OutputStream, Sink};

/// Returns the path of an example. Cargo builds the examples next to the tests.
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
        // An ordinary user may have no control groups to limit a sandbox by; then it is refused with an error that says so.
        assert!(errors.contains("control groups"), "{errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "18446744073709551616 in /home/user as uid 1000");
    assert!(lines[1].starts_with("outcome: Exited { code: 0 }, "), "{text}");
    assert_eq!(lines[2..], ["HELLO!"]);
}

/// Checks that the program on the page is the example, and needs nothing that the page does not name.
#[test]
fn page_has_the_whole_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/rust-library.md")).unwrap();
    let example = include_str!("../examples/run_code.rs");
    let program = &example[example.find("use ").unwrap()..];
    assert!(
        page.contains(&format!("```rust\n{program}```\n")),
        "the program on the page differs from the example"
    );
    let dependencies = page.split("[dependencies]\n").nth(1).unwrap().split("```").next().unwrap();
    let named: Vec<&str> = dependencies.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    assert_eq!(named, ["belljar-guest", "belljar-local", "tokio"]);
    let used: Vec<&str> = program.lines().filter_map(|line| line.strip_prefix("use ")).collect();
    assert!(used.iter().all(|path| path.starts_with("belljar_local::")), "{used:?}");
}

/// Sink that uses only what `belljar_local` exports, as an embedding program does: no message of the guest's protocol.
struct Listener;

impl Sink for Listener {
    async fn phase(&mut self, _: &'static str, _: u64) {}

    async fn output(&mut self, stream: OutputStream, offset: u64, data: &[u8]) {
        assert_eq!((stream, offset, data), (OutputStream::Stdout, 0, &b"x"[..]));
    }
}

#[tokio::test]
async fn embedding_needs_no_lower_crate() {
    Listener.output(OutputStream::Stdout, 0, b"x").await;
}
