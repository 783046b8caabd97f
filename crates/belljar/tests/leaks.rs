//! Nothing is leaked: after many runs, after runs whose `belljar` is killed at a random instant, and in a host that creates
//! sandbox after sandbox, there is no new process, mount, namespace, control group, loop device, user id lease, descriptor or
//! scratch file, and memory is unchanged. These tests inspect the whole machine, so they run alone (.config/nextest.toml).
//! `make leaks` runs ten times as many rounds.

#![allow(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests fail and speak like tests")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_engine::Engine as _;
use belljar_hostile::{Traces, Usage, adopt_orphans};
use belljar_local::{CreateRequest, LocalConfig, LocalEngine, LocalKind};
use belljar_model::SandboxSpec;

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// Maximum memory growth of a long-lived host over all rounds but the first, in KiB: less than a page per sandbox.
const HOST_GROWTH_KIB: u64 = 1024;

/// State of the machine before a test.
struct Before {
    traces: Traces,
    usage: Usage,
}

impl Before {
    fn capture() -> Self {
        adopt_orphans().expect("orphans are adopted");
        Self { traces: Traces::now(true), usage: Usage::now() }
    }

    fn assert_nothing_new(&self) {
        let left = Traces::left_since(&self.traces, true);
        assert!(left.is_empty(), "left behind: {left:#?}");
        let grown = Usage::grown_since(&self.usage);
        assert!(grown.is_empty(), "not given back: {grown:#?}");
    }
}

/// Returns the number of rounds: `short`, or ten times that with `BELLJAR_LONG_LEAKS=1`.
fn rounds(short: u32) -> u32 {
    if std::env::var_os("BELLJAR_LONG_LEAKS").is_some() { short * 10 } else { short }
}

/// Returns flags with which a sandbox can be created here: as an ordinary user, limits can only be watched.
fn flags() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &[] } else { &["--limits", "watched", "--quiet"] }
}

#[test]
fn runs_leak_nothing() {
    let before = Before::capture();
    for round in 0..rounds(1000) {
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
    before.assert_nothing_new();
}

#[test]
fn killed_runs_leak_nothing() {
    let before = Before::capture();
    // A fixed sequence (Knuth's MMIX generator), so that a failure can be reproduced.
    let mut random = 0x5eed_u64;
    for _ in 0..rounds(100) {
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
    before.assert_nothing_new();
}

#[test]
fn runs_with_background_cleanup_leak_nothing() {
    let before = Before::capture();
    for round in 0..rounds(100) {
        let output = Command::new(BELLJAR)
            .args(["run", "--cleanup", "background"])
            .args(flags())
            .args(["-l", "sh", "-c", "echo x > file; sleep 100 & setsid sleep 100 & exit 7"])
            .stdin(Stdio::null())
            .output()
            .expect("belljar starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "round {round}: {text}");
    }
    before.assert_nothing_new();
}

/// Returns the private memory of this process in KiB, and its number of open descriptors.
fn own_size() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux 4.5");
    let kib = line.trim().trim_end_matches(" kB").parse().expect("a number");
    (kib, std::fs::read_dir("/proc/self/fd").expect("/proc is there").count())
}

#[test]
fn long_lived_host_leaks_nothing() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root, for control groups and user ids of their own");
        return;
    }
    let before = Before::capture();
    let mut config = LocalConfig::new(LocalKind::Local);
    config.guest = Some(env!("CARGO_BIN_EXE_belljar-guest").into());
    let engine = LocalEngine::new(config);
    let spec = SandboxSpec::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cycle = |how_many: u32| {
        runtime.block_on(async {
            for round in 0..how_many {
                let sandbox = engine.create(CreateRequest::run(&spec)).await.expect("a sandbox");
                sandbox.guest().check().await.expect("the guest answers");
                if round % 2 == 0 {
                    sandbox.stop().await.expect("it stops");
                } // Otherwise it is dropped.
            }
            // Dropped sandboxes end by themselves; the last supervisors are reaped with the next sandbox.
            tokio::time::sleep(Duration::from_millis(300)).await;
            engine
                .create(CreateRequest::run(&spec))
                .await
                .expect("a sandbox")
                .stop()
                .await
                .expect("it stops");
        });
    };
    cycle(20);
    let (kib, descriptors) = own_size();
    cycle(rounds(200));
    let (kib_after, descriptors_after) = own_size();
    assert!(kib_after <= kib + HOST_GROWTH_KIB, "the host's memory grew from {kib} KiB to {kib_after} KiB");
    assert!(
        descriptors_after <= descriptors + 2,
        "the host has {descriptors_after} descriptors open, before {descriptors}"
    );
    drop(runtime);
    before.assert_nothing_new();
}
