//! Limits on processes, memory, processors and descriptors.

use std::time::Duration;

use belljar_model::{LimitKind, Outcome};

use super::case::{Case, Checked, cases, ensure, equal, eventually};
use super::context::Context;
use super::program::{argv, check_usable, collect, count_processes, finish, py, python, sh};
use super::runs::{execute, python_language};

pub(super) const CASES: &[Case] = cases![
    fork_bomb_is_contained[PidsLimit],
    fork_bomb_is_reported[EnforcedPids],
    fork_bomb_is_hinted_at[PidsLimit],
    pids_limit_is_exact[EnforcedPids],
    threads_count_as_processes[PidsLimit],
    memory_hog_is_reported[MemoryLimit],
    memory_hog_leaves_neighbours_alone[EnforcedMemory],
    killed_child_is_hinted_at[EnforcedMemory],
    refused_processes_are_hinted_at[EnforcedPids],
    memory_within_the_limit_is_available[MemoryLimit],
    memory_of_all_processes_is_summed[MemoryLimit],
    cpu_limit_is_enforced[EnforcedCpu],
    limits_are_what_programs_find[ShownLimits],
    open_files_are_limited[OpenFilesLimit],
];

/// Forks as fast as it can, in every process.
const FORK_BOMB: &str = "
import os
while True:
    try: os.fork()
    except OSError: pass
";

async fn fork_bomb_is_contained(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "40".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let mut request = python(FORK_BOMB);
    request.timeout_ms = 1500;
    request.grace_ms = 200;
    request.kill_rest = true;
    let finished = finish(&sandbox, request).await?;
    ensure!(finished.end() != (0, 0), "a fork bomb succeeded");
    ensure!(finished.took < Duration::from_secs(30), "it continued for {:?}", finished.took);
    eventually("the fork bomb has ended", Duration::from_secs(10), async || {
        Ok(count_processes(&sandbox).await? == 0)
    })
    .await?;
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn fork_bomb_is_reported(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "40".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import os, time
while True:
    if os.fork() == 0:
        time.sleep(1000)
";
    let result = execute(&sandbox, &spec, &python_language()?, code).await?;
    equal!(result.outcome, Outcome::Limit { limit: LimitKind::Pids });
    let hint = result.hint.clone().unwrap_or_default();
    ensure!(hint.contains("limits.pids"), "the hint is {hint:?}");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn fork_bomb_is_hinted_at(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "40".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    // The hint is the same whether a watched limit refuses the fork or kills the program.
    let code = "
import os, time
while True:
    if os.fork() == 0: time.sleep(1000)
";
    let result = execute(&sandbox, &spec, &python_language()?, code).await?;
    ensure!(!result.outcome.is_success(), "a fork bomb succeeded");
    let hint = result.hint.clone().unwrap_or_default();
    let stderr = super::runs::text(&result.stderr);
    ensure!(
        hint.contains("limits.pids"),
        "the outcome is {:?}, the hint {hint:?}, stderr {stderr:?}",
        result.outcome
    );
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn pids_limit_is_exact(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "25".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import os, time
made = 1
while True:
    try:
        if os.fork() == 0: time.sleep(1000)
    except BlockingIOError: break
    made += 1
print(made)
";
    let before = sandbox.counters().await;
    let mut request = python(code);
    request.kill_rest = true;
    equal!(finish(&sandbox, request).await?.expect_success()?.text(), "25");
    let (usage, counters) = (sandbox.usage().await, sandbox.counters().await);
    let events = counters.limit_events_since(&before);
    ensure!(usage.pids_denied > 0 && events.pids_denied > 0, "the refused fork was not counted");
    ensure!(counters.cpu > before.cpu, "{:?} of processor time after {:?}", counters.cpu, before.cpu);
    context.stop(sandbox).await
}

async fn threads_count_as_processes(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "30".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import threading, time
made = 1
try:
    while made < 500:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        made += 1
except RuntimeError: pass
print(made, flush=True)
time.sleep(1)
";
    let mut request = python(code);
    request.kill_rest = true;
    request.timeout_ms = 20_000;
    let finished = finish(&sandbox, request).await?;
    // Either no thread beyond the limit is created, or the watcher has killed the program.
    let made: u32 = finished.text().parse().unwrap_or(0);
    ensure!(made <= 30, "{made} threads were made");
    ensure!(made > 0 || finished.end() == (0, 9), "it ended with {:?} and {made} threads", finished.end());
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

/// Allocates and touches memory, 4 MiB at a time.
const HOG: &str = "
held = []
while True: held.append(b'x' * (4 << 20))
";

async fn memory_hog_is_reported(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.memory = "96m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let result = execute(&sandbox, &spec, &python_language()?, HOG).await?;
    equal!(result.outcome, Outcome::OutOfMemory);
    equal!(result.exit_status, 137);
    let hint = result.hint.clone().unwrap_or_default();
    ensure!(hint.contains("limits.memory"), "the hint is {hint:?}");
    if let (Some(peak), true) = (result.peak_memory_bytes, context.has(super::Capability::EnforcedMemory)) {
        ensure!(peak <= 96 << 20, "the peak is {peak} bytes, above the limit");
    }
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn memory_hog_leaves_neighbours_alone(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.memory = "96m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let modest = sandbox.guest().start(argv(["sleep", "1000"])).await?;
    let before = sandbox.counters().await;
    let hog = finish(&sandbox, python(HOG)).await?;
    equal!(hog.end(), (0, 9));
    let (usage, counters) = (sandbox.usage().await, sandbox.counters().await);
    let events = counters.limit_events_since(&before);
    ensure!(usage.oom_kills > 0 && events.oom_kills > 0, "the kill was not counted");
    equal!(sandbox.guest().signal(modest.id, 15, false).await?, 1);
    equal!(collect(modest).await?.end(), (0, 15));
    context.stop(sandbox).await
}

/// Waits for a child that uses up the memory.
const HOGGING_CHILD: &str = "
import subprocess, sys, time
hog = 'held = []\\nwhile True: held.append(bytearray(4 << 20))'
print(subprocess.run([sys.executable, '-c', hog]).returncode, flush=True)
";

async fn killed_child_is_hinted_at(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.memory = "96m".parse()?;
    let hint = "because the sandbox exceeded its 96 MiB memory limit, against which the files in its home directory and /tmp count. \
                If it needs more, raise it with limits.memory.";
    let sandbox = context.sandbox_with(&spec).await?;
    let result = execute(&sandbox, &spec, &python_language()?, HOGGING_CHILD).await?;
    equal!((result.stdout.text.as_deref(), &result.outcome), (Some("-9\n"), &Outcome::Exited { code: 0 }));
    equal!(result.hint, Some(format!("1 process was killed, {hint}")));
    context.stop(sandbox).await?;
    spec.limits.timeout = "8s".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = format!("{HOGGING_CHILD}time.sleep(1000)");
    let result = execute(&sandbox, &spec, &python_language()?, &code).await?;
    equal!(result.outcome, Outcome::TimedOut);
    equal!(result.hint, Some(format!("The code timed out after 8 s. 1 process was killed, {hint}")));
    context.stop(sandbox).await
}

async fn refused_processes_are_hinted_at(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "20".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import threading, time
try:
    for _ in range(40): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
except RuntimeError: print('refused')
";
    let result = execute(&sandbox, &spec, &python_language()?, code).await?;
    equal!(
        (result.stdout.text.as_deref(), &result.outcome),
        (Some("refused\n"), &Outcome::Exited { code: 0 })
    );
    let hint = result.hint.unwrap_or_default();
    ensure!(hint.contains("the limit pids is 20"), "the hint is {hint:?}");
    context.stop(sandbox).await
}

async fn memory_within_the_limit_is_available(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.memory = "96m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "held = b'x' * (48 << 20)\nprint(len(held))";
    equal!(py(&sandbox, code).await?.text(), (48 << 20).to_string());
    context.stop(sandbox).await
}

async fn memory_of_all_processes_is_summed(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.memory = "96m".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import os, sys, time
for child in range(6):
    if os.fork() == 0:
        held = b'x' * (32 << 20)
        time.sleep(3)
        os._exit(0)
killed = False
for child in range(6):
    _, status = os.wait()
    killed |= os.WIFSIGNALED(status)
sys.exit(9 if killed else 0)
";
    let finished = finish(&sandbox, python(code)).await?;
    ensure!(finished.end() != (0, 0), "six times 32 MiB were given under a limit of 96 MiB");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn cpu_limit_is_enforced(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.cpus = "0.5".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import os, time
end = time.monotonic() + 3
child = os.fork()
while time.monotonic() < end: pass
if child: os.wait()
";
    let finished = py(&sandbox, code).await?;
    let wall = Duration::from_micros(finished.exited.wall_us);
    ensure!(
        finished.cpu() <= wall.mul_f64(0.7),
        "two busy loops got {:?} of CPU within {wall:?} at 0.5 CPU",
        finished.cpu()
    );
    context.stop(sandbox).await
}

async fn limits_are_what_programs_find(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.memory = "192m".parse()?;
    spec.limits.cpus = "0.5".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import os, subprocess
print(os.cpu_count(), subprocess.run(['nproc'], capture_output=True, text=True).stdout.strip())
print(open('/proc/meminfo').readline().split())
print(open('/proc/cpuinfo').read().count('processor\\t'), len([line for line in open('/proc/stat') if line.startswith('cpu')]))
print(*(open('/sys/fs/cgroup/' + name).read().strip() for name in ('memory.max', 'cpu.max', 'pids.max', 'memory/memory.limit_in_bytes')))
for path in ('/proc/meminfo', '/sys/fs/cgroup/memory.max'):
    try: open(path, 'w')
    except OSError as error: print(error.errno in (13, 30))
print(sorted(os.listdir('/sys')), [name for name in os.listdir('/') if name in ('meminfo', 'cpuinfo', 'stat')])
";
    let memory = 192 << 20;
    let expected = format!(
        "1 1\n['MemTotal:', '{}', 'kB']\n1 2\n{memory} 50000 100000 {} {memory}\nTrue\nTrue\n['devices', 'fs'] []",
        memory >> 10,
        spec.limits.pids,
    );
    equal!(py(&sandbox, code).await?.text(), expected);
    context.stop(sandbox).await
}

async fn open_files_are_limited(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.open_files = "64".parse()?;
    let sandbox = context.sandbox_with(&spec).await?;
    let code = "
import errno, os, resource
opened = 3
try:
    while True:
        os.open('/dev/null', os.O_RDONLY)
        opened += 1
except OSError as error:
    print(errno.errorcode[error.errno], opened, *resource.getrlimit(resource.RLIMIT_NOFILE))
";
    equal!(py(&sandbox, code).await?.text(), "EMFILE 64 64 64");
    equal!(sh(&sandbox, "ulimit -Hn 1000 2>/dev/null && echo raised").await?.text(), "");
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}
