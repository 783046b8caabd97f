//! Sandboxes leave nothing behind.

use std::time::{Duration, Instant};

use super::case::{Case, Checked, cases, ensure, equal, eventually};
use super::context::Context;
use super::program::{count_processes, python, read_until, sh, shell};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    stop_leaves_nothing [],
    drop_leaves_nothing [],
    ended_sandbox_leaves_nothing [],
    stop_is_quick [],
    failed_start_leaves_nothing [],
    fifty_in_a_row_leave_nothing [],
];

/// Creates as many leftover processes and files as possible.
const BUSY: &str = "
import os, signal, time
for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
for child in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(1000)
        time.sleep(1000)
for number in range(200):
    os.makedirs(f'tree/{number}/deep', exist_ok=True)
    open(f'tree/{number}/file', 'w').close()
os.chmod('tree/1', 0)
os.chmod('tree', 0o500)
print('ready', flush=True)
while True: pass
";

async fn start_busy_processes(sandbox: &Sandbox) -> Checked {
    let mut execution = sandbox.guest().start(python(BUSY)).await?;
    read_until(&mut execution, "ready").await?;
    ensure!(count_processes(sandbox).await? >= 6, "not all of the children run");
    Ok(())
}

async fn stop_leaves_nothing(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    start_busy_processes(&sandbox).await?;
    ensure!(
        !context.find_leftovers(&sandbox.id).is_empty(),
        "the leftovers of a running sandbox are not found"
    );
    context.stop(sandbox).await
}

async fn drop_leaves_nothing(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    start_busy_processes(&sandbox).await?;
    let id = sandbox.id.clone();
    drop(sandbox);
    context.wait_for_cleanup(&id).await
}

async fn ended_sandbox_leaves_nothing(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    start_busy_processes(&sandbox).await?;
    sandbox.guest().set_deadline(Some(Duration::from_millis(1))).await?;
    super::case::within("the sandbox's end", Duration::from_secs(10), sandbox.wait_ended()).await?;
    // Without an explicit stop.
    context.wait_for_cleanup(&sandbox.id).await?;
    context.stop(sandbox).await
}

async fn stop_is_quick(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    start_busy_processes(&sandbox).await?;
    let begin = Instant::now();
    context.stop(sandbox).await?;
    // The processes inside sleep far longer.
    ensure!(
        begin.elapsed() < Duration::from_secs(20),
        "the end of a busy sandbox took {:?}",
        begin.elapsed()
    );
    Ok(())
}

async fn failed_start_leaves_nothing(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for _ in 0..50 {
        let result = sandbox.guest().start(shell("true\0")).await;
        ensure!(result.is_err(), "a NUL byte was accepted");
        let result = sandbox.guest().start(super::program::argv(["/no/such"])).await;
        ensure!(result.is_err(), "a missing program was started");
    }
    equal!(count_processes(&sandbox).await?, 0);
    let descriptors = sh(&sandbox, "ls /proc/self/fd | wc -l").await?;
    equal!(descriptors.text(), "4");
    context.stop(sandbox).await
}

async fn fifty_in_a_row_leave_nothing(context: &Context) -> Checked {
    let open = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    // The first one may open permanent descriptors, such as those of the runtime.
    let sandbox = context.sandbox().await?;
    context.stop(sandbox).await?;
    let before = open()?;
    for _ in 0..50 {
        let sandbox = context.sandbox().await?;
        sh(&sandbox, "true").await?.expect_success()?;
        context.stop(sandbox).await?;
    }
    // A supervisor's descriptors are closed a moment after it has exited.
    eventually(
        &format!("the host has only its {before} descriptors open"),
        Duration::from_secs(5),
        async || Ok(open()? <= before),
    )
    .await
}
