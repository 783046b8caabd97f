//! The guest's reports about itself and the sandbox.

use std::time::Duration;

use super::case::{Case, Checked, cases, ensure, equal, eventually};
use super::context::Context;
use super::program::{argv, py, python, read_until};

pub(super) const CASES: &[Case] = cases![
    health_is_reported [],
    metrics_count_processes_and_threads [],
    metrics_count_memory_and_time [],
    metrics_count_disk_usage [DiskQuota],
    usage_is_measured_outside [EnforcedMemory],
    launch_phases_are_timed [],
];

async fn health_is_reported(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let first = sandbox.guest().check().await?;
    ensure!(first.generation >= 1, "its generation is {}", first.generation);
    ensure!(!first.version.is_empty(), "it has no version");
    eventually("the guest grows older", Duration::from_secs(5), async || {
        Ok(sandbox.guest().check().await?.uptime_ms > first.uptime_ms)
    })
    .await?;
    context.stop(sandbox).await
}

async fn metrics_count_processes_and_threads(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let before = sandbox.guest().metrics().await?;
    equal!((before.processes, before.threads, before.resident_bytes), (0, 0, 0));
    for _ in 0..3 {
        let mut request = argv(["sleep", "1000"]);
        request.detach = true;
        sandbox.guest().start(request).await?;
    }
    let code = "
import threading, time
for number in range(4): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print('ready', flush=True)
time.sleep(1000)
";
    let mut execution = sandbox.guest().start(python(code)).await?;
    read_until(&mut execution, "ready").await?;
    let metrics = sandbox.guest().metrics().await?;
    equal!((metrics.processes, metrics.threads), (4, 8));
    ensure!(
        metrics.cpus >= 1 && metrics.active <= 4,
        "{} processors, {} active",
        metrics.cpus,
        metrics.active
    );
    context.stop(sandbox).await
}

async fn metrics_count_memory_and_time(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import time
held = b'x' * (64 << 20)
while time.process_time() < 0.5: pass
print('ready', flush=True)
time.sleep(1000)
";
    let mut execution = sandbox.guest().start(python(code)).await?;
    read_until(&mut execution, "ready").await?;
    let metrics = sandbox.guest().metrics().await?;
    let resident = metrics.resident_bytes;
    ensure!((64 << 20..128 << 20).contains(&resident), "{resident} bytes are resident");
    if metrics.memory_limit_bytes > 0 {
        let (used, limit) = (metrics.memory_used_bytes, metrics.memory_limit_bytes);
        let least = if context.has(super::Capability::CountedFilePages) { resident } else { 64 << 20 };
        ensure!((least..=limit).contains(&used), "{used} of {limit} bytes are reported as used");
    }
    let cpu = Duration::from_micros(metrics.user_us + metrics.system_us);
    ensure!((Duration::from_millis(400)..Duration::from_secs(10)).contains(&cpu), "{cpu:?} of CPU were used");
    sandbox.guest().signal(execution.id, 9, false).await?;
    super::program::collect_with_gaps(execution, [0; 3]).await?;
    let after = sandbox.guest().metrics().await?;
    equal!(after.resident_bytes, 0);
    let later = Duration::from_micros(after.user_us + after.system_us);
    ensure!(later >= Duration::from_millis(400), "the time of an ended process is lost: {later:?}");
    context.stop(sandbox).await
}

async fn metrics_count_disk_usage(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.disk = "16m".parse()?;
    spec.limits.tmp = "4m".parse()?;
    spec.limits.inodes = "500".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    py(
        &sandbox,
        "open('file', 'wb').write(b'x' * (3 << 20)); open('/tmp/file', 'wb').write(b'x' * (1 << 20))",
    )
    .await?;
    let disks = sandbox.guest().metrics().await?.disks;
    let home = sandbox.home.display().to_string();
    for (path, total, used) in [(home.as_str(), 16 << 20, 3 << 20), ("/tmp", 4 << 20, 1 << 20)] {
        let Some(disk) = disks.iter().find(|disk| disk.path == path.as_bytes()) else {
            return Err(super::Stop::Failed(format!("{path} is not in {disks:?}")));
        };
        equal!((disk.bytes_total, disk.bytes_used, disk.inodes_total), (total, used, 500));
        ensure!((1..10).contains(&disk.inodes_used), "{path} has {} inodes in use", disk.inodes_used);
    }
    context.stop(sandbox).await
}

async fn usage_is_measured_outside(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    py(&sandbox, "held = b'x' * (64 << 20)").await?;
    let usage = sandbox.usage().await;
    let peak = usage.peak_memory_bytes.unwrap_or(0);
    ensure!((64 << 20..256 << 20).contains(&peak), "the peak is {peak} bytes");
    equal!((usage.oom_kills, usage.pids_denied), (0, 0));
    context.stop(sandbox).await
}

async fn launch_phases_are_timed(context: &Context) -> Checked {
    let begin = std::time::Instant::now();
    let sandbox = context.sandbox().await?;
    let took = begin.elapsed();
    let sum: Duration = sandbox.timings().iter().map(|(_, time)| *time).sum();
    ensure!(!sandbox.timings().is_empty(), "no phase of the launch was timed");
    ensure!(sum <= took, "the phases took {sum:?}, the whole launch {took:?}");
    context.stop(sandbox).await
}
