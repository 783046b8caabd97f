//! Nothing stays behind: after many runs, and after runs whose `belljar` is killed at a random instant, there is no
//! process, mount, namespace, control group, user id lease, descriptor or scratch file that was not there before.
//! These tests look at the whole machine, so they run alone (.config/nextest.toml).

#![allow(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_hostile::{Traces, adopt_orphans};

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

fn before() -> Traces {
    adopt_orphans().expect("orphans are adopted");
    Traces::now(true)
}

fn assert_nothing_new(before: &Traces) {
    let left = Traces::left_since(before, true);
    assert!(left.is_empty(), "left behind: {left:#?}");
}

/// Flags with which a sandbox can be made here: as an ordinary user limits can only be watched.
fn flags() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &[] } else { &["--limits", "watched", "--quiet"] }
}

#[test]
fn a_thousand_runs_leave_nothing() {
    let before = before();
    for round in 0..1000 {
        let output = Command::new(BELLJAR)
            .arg("run")
            .args(flags())
            .args(["-l", "sh", "-c", "echo x > file; sleep 100 & setsid sleep 100 & exit 7"])
            .stdin(Stdio::null())
            .output()
            .expect("belljar starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "round {round}: {text}");
    }
    assert_nothing_new(&before);
}

#[test]
fn a_hundred_killed_runs_leave_nothing() {
    let before = before();
    // A fixed sequence (Knuth's MMIX generator), so that a failure can be had again.
    let mut random = 0x5eed_u64;
    for _ in 0..100 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut child = Command::new(BELLJAR)
            .arg("run")
            .args(flags())
            .args(["-l", "sh", "-c", "sleep 100 & setsid sleep 100 & sleep 100"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("belljar starts");
        let instant = Instant::now() + Duration::from_micros((random >> 33) % 40_000);
        while Instant::now() < instant {
            std::hint::spin_loop();
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }
    assert_nothing_new(&before);
}
