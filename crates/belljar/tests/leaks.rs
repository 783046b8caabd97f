//! Nothing stays behind: after many runs, and after runs whose `belljar` is killed at a random instant, there is no
//! process, mount, namespace, control group, user id lease, descriptor or scratch file that was not there before.
//! These tests look at the whole machine, so they run alone (.config/nextest.toml).

#![allow(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// How long the kernel and the supervisors may take to put everything away.
const SETTLE: Duration = Duration::from_secs(20);

/// What could leak, each thing by a name that tells what it is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Traces(BTreeSet<String>);

impl Traces {
    fn now() -> Self {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir("/proc").expect("/proc is there").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let is_sandboxed =
                owner(&entry.path()).is_some_and(|uid| (1_900_000_000..1_900_065_536).contains(&uid));
            if comm.starts_with("belljar") || is_sandboxed {
                found.insert(format!("process {name} {}", comm.trim()));
            }
            for kind in ["net", "mnt", "pid", "user", "ipc", "uts", "cgroup"] {
                if let Ok(namespace) = std::fs::read_link(entry.path().join("ns").join(kind)) {
                    found.insert(format!("namespace {}", namespace.display()));
                }
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo is there");
        found.extend(mounts.lines().map(|line| format!("mount {line}")));
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            cgroups(&hierarchy.path(), 0, &mut found);
        }
        cgroups(Path::new("/sys/fs/cgroup"), 3, &mut found);
        for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("belljar-") {
                found.insert(format!("scratch {name}"));
            }
        }
        Self(found)
    }

    /// What is there now and was not before.
    fn since(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

fn owner(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|metadata| metadata.uid())
}

/// Groups of sandboxes, which are called belljar- and an id.
fn cgroups(dir: &Path, depth: u32, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path: PathBuf = entry.path();
        if depth > 4 || !path.is_dir() || path.is_symlink() {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with("belljar-") {
            found.insert(format!("control group {}", path.display()));
        }
        cgroups(&path, depth + 1, found);
    }
}

/// Locks on the file of user ids, by the kernel's own table.
fn leases() -> usize {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = std::fs::metadata("/run/belljar/uids") else { return 0 };
    let inode = format!(":{} ", metadata.ino());
    std::fs::read_to_string("/proc/locks")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.contains(&inode))
        .count()
}

fn assert_nothing_new(before: &Traces, leases_before: usize) {
    let deadline = Instant::now() + SETTLE;
    loop {
        let left = Traces::now().since(before);
        let leases_now = leases();
        if left.is_empty() && leases_now <= leases_before {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "left behind: {left:#?}; leases before {leases_before}, now {leases_now}"
        );
        std::thread::yield_now();
    }
}

/// Flags with which a sandbox can be made here: as an ordinary user limits can only be watched.
fn flags() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() { &[] } else { &["--limits", "watched", "--quiet"] }
}

#[test]
fn a_thousand_runs_leave_nothing() {
    let (before, leases_before) = (Traces::now(), leases());
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
    assert_nothing_new(&before, leases_before);
}

#[test]
fn a_hundred_killed_runs_leave_nothing() {
    let (before, leases_before) = (Traces::now(), leases());
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
    assert_nothing_new(&before, leases_before);
}
