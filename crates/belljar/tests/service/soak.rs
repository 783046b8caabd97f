//! A server under mixed load for a long time: nothing fails, grows or is left behind. `BELLJAR_LONG_SOAK=1` runs it for ten
//! minutes; `BELLJAR_RELEASE` names the program that is measured; `BELLJAR_SEED` reproduces a failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belljar_hostile::{Traces, adopt_orphans};
use tokio::task::JoinSet;

use crate::check::{self, Doomed};
use crate::client::Client;
use crate::crash::{seed, shut_down};
use crate::load::Worker;
use crate::run;
use crate::server::{Home, Server};

/// Number of concurrent clients.
const WORKERS: usize = 8;

/// Number of additional clients of a tenant that takes as much as it can get.
const GREEDY_CLIENTS: usize = 2;

/// Interval between two samples of the processes.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum memory growth of a warm process in ten minutes, in KiB. It includes what a server keeps on purpose (responses for
/// idempotent retries, metrics, the last ended sandboxes).
const MAX_GROWTH_KIB: f64 = 16.0 * 1024.0;

/// Maximum memory growth in the short form, in KiB. It is too short to tell growth from warming up, and finds only runaway
/// growth.
const MAX_SHORT_GROWTH_KIB: f64 = 64.0 * 1024.0;

/// Maximum average growth of a process's open descriptors: those of sandboxes come and go.
const MAX_DESCRIPTOR_GROWTH: f64 = 48.0;

/// Maximum number of additional descriptors of the server after the test: connections of its database.
const MAX_LEFTOVER_DESCRIPTORS: usize = 8;

fn is_long() -> bool {
    std::env::var_os("BELLJAR_LONG_SOAK").is_some()
}

fn duration() -> Duration {
    Duration::from_secs(if is_long() { 600 } else { 20 })
}

#[test]
fn soak_under_load_nothing_fails_or_leaks() {
    if crate::skipped("soak") {
        return;
    }
    let seed = seed();
    crate::say(&format!("soak: BELLJAR_SEED={seed}, {:?}", duration()));
    adopt_orphans().expect("orphans are adopted");
    let before = Traces::now(true);
    run(soak(seed));
    let left = Traces::left_since(&before, true);
    assert!(left.is_empty(), "left behind, seed {seed}: {left:#?}");
}

async fn soak(seed: u64) {
    let pool = format!("sandboxes.pool={}", check::POOL);
    let mut home = Home::new(&[&pool, "sandboxes.template_pool=0", "head_room.disk=0", "head_room.memory=0"]);
    if let Some(release) = std::env::var_os("BELLJAR_RELEASE") {
        home.program = PathBuf::from(release);
    }
    let server = home.start();
    server.ready().await;
    let first = server.admin();
    first.sandbox(&serde_json::json!({ "labels": { "first": "yes" } })).await;
    let (_, launcher) = home.launcher().expect("the launcher of a sandbox runs");
    end_all(&first).await;
    drop(first);
    let idle = settled_descriptors(server.pid(), usize::MAX).await;

    let first = server.admin();
    let greedy = first.with_key(&first.new_key("user", "greedy").await.1);
    drop(first);
    // Their responses do not matter, only their effect on the workers, the process and the leftovers.
    let enough = Arc::new(AtomicBool::new(false));
    let greed: JoinSet<()> = (0..GREEDY_CLIENTS)
        .map(|_| crate::exhaustion::exhaust(greedy.apart(), Arc::clone(&enough)))
        .collect();
    drop(greedy);
    let (mut workers, samples) = load(&server, launcher, seed).await;
    enough.store(true, Ordering::Relaxed);
    greed.join_all().await;
    for (name, samples) in &samples {
        crate::say(&format!("soak: {name}: {samples}"));
    }
    let mut done: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, times) in workers.iter().flat_map(|worker| &worker.done) {
        *done.entry(what).or_default() += times;
    }
    crate::say(&format!("soak: answered {done:?}"));
    let mut faults: Vec<String> = samples.iter().flat_map(|(name, samples)| samples.faults(name)).collect();
    for worker in &mut workers {
        faults.append(&mut check::settle(worker, &server, &Doomed::default()).await);
    }
    faults.append(&mut check::whole_service(&home, &server, &workers).await);
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    assert!(done.len() >= 17, "not every kind of request was made: {done:?}");

    let templates: Vec<String> =
        workers.iter().flat_map(|one| &one.templates).map(|one| one.name.clone()).collect();
    drop(workers);
    let client = server.admin();
    for name in templates {
        let removed = client.call("DELETE", &format!("/v1/templates/{name}")).await;
        assert_eq!(removed.status, 204, "{name}: {removed:?}");
    }
    end_all(&client).await;
    drop(client);
    let now = settled_descriptors(server.pid(), idle + MAX_LEFTOVER_DESCRIPTORS).await;
    crate::say(&format!("soak: {idle} descriptors of the server before, {now} after"));
    assert!(now <= idle + MAX_LEFTOVER_DESCRIPTORS, "{:#?}", descriptors(server.pid()));
    shut_down(server, &home).await;
    let files = files_left(&home);
    assert!(files.is_empty(), "files are left: {files:?}");
}

/// Runs all clients for the test's duration, and samples the processes.
async fn load(server: &Server, launcher: u32, seed: u64) -> (Vec<Worker>, [(&'static str, Samples); 2]) {
    let (stop, disturbed) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let mut working = JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker::new(number, server.admin(), seed, &disturbed);
        working.spawn(worker.work(Arc::clone(&stop)));
    }
    let mut samples = [("server", Samples::of(server.pid())), ("launcher", Samples::of(launcher))];
    let begin = Instant::now();
    // A worker stops on a failure, which ends the test.
    while begin.elapsed() < duration() && working.len() == WORKERS {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        for (_, samples) in &mut samples {
            samples.record(begin.elapsed());
        }
        if let Some(ended) = working.try_join_next() {
            let worker = ended.expect("a worker does not panic");
            stop.store(true, Ordering::Relaxed);
            let mut workers = working.join_all().await;
            workers.push(worker);
            return (workers, samples);
        }
    }
    stop.store(true, Ordering::Relaxed);
    (working.join_all().await, samples)
}

/// Samples of a process's resource usage.
struct Samples {
    pid: u32,
    /// Time in seconds, resident memory in KiB, number of descriptors.
    seen: Vec<(f64, f64, f64)>,
}

impl Samples {
    fn of(pid: u32) -> Self {
        Self { pid, seen: Vec::new() }
    }

    fn record(&mut self, at: Duration) {
        let Some(resident) = resident_kib(self.pid) else { return };
        let descriptors = u32::try_from(descriptors(self.pid).len()).unwrap_or(u32::MAX);
        self.seen.push((at.as_secs_f64(), resident, f64::from(descriptors)));
    }

    /// Returns the samples after the first fifth of the time.
    fn warm(&self) -> &[(f64, f64, f64)] {
        let begin = duration().as_secs_f64() / 5.0;
        let from = self.seen.partition_point(|(at, ..)| *at < begin);
        &self.seen[from..]
    }

    /// Returns the growth of one value, by linear regression.
    fn growth(&self, figure: impl Fn(&(f64, f64, f64)) -> f64) -> f64 {
        let warm = self.warm();
        let (Some(first), Some(last)) = (warm.first(), warm.last()) else { return 0.0 };
        let count = warm.iter().map(|_| 1.0).sum::<f64>();
        let mean = |of: &dyn Fn(&(f64, f64, f64)) -> f64| warm.iter().map(of).sum::<f64>() / count;
        let (middle, level) = (mean(&|one| one.0), mean(&figure));
        let spread: f64 = warm.iter().map(|one| (one.0 - middle).powi(2)).sum();
        let slope =
            warm.iter().map(|one| (one.0 - middle) * (figure(one) - level)).sum::<f64>() / spread.max(1.0);
        slope * (last.0 - first.0)
    }

    fn faults(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let most = if is_long() { MAX_GROWTH_KIB } else { MAX_SHORT_GROWTH_KIB };
        if self.growth(|one| one.1) > most {
            faults.push(format!("the memory of the {name} grows: {self}; {:?}", self.seen));
        }
        if self.growth(|one| one.2) > MAX_DESCRIPTOR_GROWTH {
            faults.push(format!("the descriptors of the {name} grow: {self}; {:?}", self.seen));
        }
        if self.seen.is_empty() {
            faults.push(format!("the {name} could not be sampled"));
        }
        faults
    }
}

impl std::fmt::Display for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (memory, descriptors) = (self.growth(|one| one.1), self.growth(|one| one.2));
        let most =
            |figure: &dyn Fn(&(f64, f64, f64)) -> f64| self.seen.iter().map(figure).fold(0.0, f64::max);
        let end = self.seen.last().map_or(0.0, |one| one.1);
        write!(
            f,
            "{} samples; resident {end:.0} KiB at the end, {:.0} at most, {memory:+.0} by the fitted line; \
             {:.0} descriptors at most, {descriptors:+.1}",
            self.seen.len(),
            most(&|one| one.1),
            most(&|one| one.2),
        )
    }
}

fn resident_kib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .strip_suffix(" kB")?
        .trim()
        .parse()
        .ok()
}

/// Returns the targets of a process's descriptors.
fn descriptors(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

/// Waits until a process has at most `most` descriptors and their number is stable, or times out. Returns the number.
async fn settled_descriptors(pid: u32, most: usize) -> usize {
    let begin = Instant::now();
    let (mut before, mut same) = (usize::MAX, 0);
    loop {
        let now = descriptors(pid).len();
        same = if now == before { same + 1 } else { 0 };
        if (now <= most && same > 20) || begin.elapsed() > Duration::from_secs(15) {
            return now;
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Ends every listed sandbox.
async fn end_all(client: &Client) {
    for id in check::all_sandboxes(client).await {
        let ended = client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
        assert!(ended.status == 204 || ended.code() == "sandbox_gone", "{ended:?}");
    }
}

/// Returns the files in the home that an idle server should not have.
fn files_left(home: &Home) -> Vec<PathBuf> {
    const AT_REST: [&str; 11] = [
        "audit.jsonl",
        "belljar.db",
        "belljar.db.audit",
        "belljar.db.lock",
        "belljar.db.reserve",
        "belljar.db-shm",
        "belljar.db-wal",
        "launcher/launcher.lock",
        "launcher/launcher.log",
        "serve.lock",
        "store.key",
    ];
    let path = home.path();
    // The mirror of the audit log is rotated, and old files are kept.
    let is_trail = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("audit-").and_then(|rest| rest.strip_suffix(".jsonl")).is_some_and(|number| {
            number.bytes().all(|byte| byte.is_ascii_digit()) && file.parent() == Some(path.as_path())
        })
    };
    let mut found: Vec<PathBuf> = below(&path)
        .into_iter()
        .filter(|file| !is_trail(file) && !AT_REST.iter().any(|known| file == &path.join(known)))
        .collect();
    found.append(&mut below(&home.tmp()));
    found
}

/// Returns all files below a directory.
fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => below(&entry.path()),
            _ => vec![entry.path()],
        })
        .collect()
}
