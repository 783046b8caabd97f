//! Background processes and late readers.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};

use super::case::{Case, Checked, cases, ensure, equal, eventually, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{collect, collect_with_gaps, python, read_until, sh, shell};
use super::streams::{pattern, pattern_code};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    detached_process_keeps_running [],
    output_is_read_by_offset [],
    two_readers_read_everything [],
    departing_reader_does_not_stop_the_process [],
    lost_start_stream_can_be_reattached [],
    process_ends_with_its_reader_on_request [],
    evicted_process_is_reported_as_evicted [],
    unread_output_does_not_stop_a_process [],
    head_and_tail_are_kept_for_late_readers [],
    unknown_process_cannot_be_attached_to [],
];

async fn detach(sandbox: &Sandbox, mut request: v1::StartRequest) -> Checked<u64> {
    request.detach = true;
    let mut execution = sandbox.guest().start(request).await?;
    let next = within("the end of a detached stream", Duration::from_secs(10), execution.next()).await??;
    ensure!(next.is_none(), "a detached stream continued: {next:?}");
    Ok(execution.id)
}

async fn wait_ended(sandbox: &Sandbox, id: u64) -> Checked {
    eventually("the process has ended", Duration::from_secs(30), async || {
        let list = sandbox.guest().list_processes().await?;
        Ok(list.iter().any(|info| info.id == id && !info.running && info.exited.is_set()))
    })
    .await
}

async fn detached_process_keeps_running(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let mut request = shell("echo begun; read word; echo got $word; exit 9");
    request.stdin_open = true;
    let id = detach(&sandbox, request).await?;
    let mut execution = sandbox.guest().attach(id, [0; 3]).await?;
    read_until(&mut execution, "begun\n").await?;
    drop(execution);
    sandbox.guest().feed(id, b"it\n".as_slice(), true).await?;
    let finished = collect(sandbox.guest().attach(id, [0; 3]).await?).await?;
    equal!(finished.text(), "begun\ngot it");
    equal!(finished.end(), (9, 0));
    context.stop(sandbox).await
}

async fn output_is_read_by_offset(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let id = detach(&sandbox, shell("printf 0123456789; printf abcdef >&2")).await?;
    wait_ended(&sandbox, id).await?;
    let cases = [
        ([0, 0, 0], "0123456789", "abcdef"),
        ([4, 0, 0], "456789", "abcdef"),
        ([9, 5, 0], "9", "f"),
        ([10, 6, 0], "", ""),
        ([1000, 1000, 0], "", ""),
    ];
    for (offsets, stdout, stderr) in cases {
        let execution = sandbox.guest().attach(id, offsets).await?;
        let (finished, gaps) = collect_with_gaps(execution, offsets).await?;
        equal!((finished.text().as_str(), finished.errors().as_str(), gaps), (stdout, stderr, 0));
        equal!((finished.exited.stdout_bytes, finished.exited.stderr_bytes), (10, 6));
    }
    context.stop(sandbox).await
}

async fn two_readers_read_everything(context: &Context) -> Checked {
    const SIZE: usize = 4_000_000;
    let sandbox = context.sandbox().await?;
    let code = format!("import sys\nsys.stdin.read()\n{}sys.stdout.buffer.write(data)", pattern_code(SIZE));
    let mut request = python(&code);
    request.stdin_open = true;
    let id = detach(&sandbox, request).await?;
    let first = sandbox.guest().attach(id, [0; 3]).await?;
    let second = sandbox.guest().attach(id, [0; 3]).await?;
    let go = sandbox.guest().feed(id, b"".as_slice(), true);
    let (first, second, go) = futures::join!(collect(first), collect(second), go);
    go?;
    for finished in [first?.expect_success()?, second?.expect_success()?] {
        ensure!(finished.stdout == pattern(SIZE), "a reader got {} other bytes", finished.stdout.len());
    }
    context.stop(sandbox).await
}

async fn departing_reader_does_not_stop_the_process(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    // The program writes far more than the departing reader has read.
    let code =
        format!("import sys\n{}sys.stdout.buffer.write(data); open('done', 'w')", pattern_code(8 << 20));
    let mut execution = sandbox.guest().start(python(&code)).await?;
    let id = execution.id;
    execution.next().await?;
    drop(execution);
    wait_ended(&sandbox, id).await?;
    sandbox.guest().stat("done".as_ref(), true).await?;
    context.stop(sandbox).await
}

/// The stream that started a process is lost while the process is throttled: it continues, and no recent output is lost.
async fn lost_start_stream_can_be_reattached(context: &Context) -> Checked {
    const SIZE: usize = 3 << 20;
    let sandbox = context.sandbox().await?;
    let code = format!(
        "import sys\n{}sys.stdout.buffer.write(data); sys.stdout.flush(); sys.stderr.write('done')\nsys.exit(5)",
        pattern_code(SIZE)
    );
    let mut request = python(&code);
    request.on_disconnect = v1::OnDisconnect::ON_DISCONNECT_CONTINUE.into();
    let mut execution = sandbox.guest().start(request).await?;
    let id = execution.id;
    execution.next().await?;
    drop(execution);
    wait_ended(&sandbox, id).await?;
    let finished = collect(sandbox.guest().attach(id, [0; 3]).await?).await?;
    ensure!(finished.stdout == pattern(SIZE), "{} bytes are left of it", finished.stdout.len());
    equal!((finished.errors().as_str(), finished.end()), ("done", (5, 0)));
    context.stop(sandbox).await
}

async fn process_ends_with_its_reader_on_request(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let kill = |line: &str| {
        let mut request = shell(line);
        request.on_disconnect = v1::OnDisconnect::ON_DISCONNECT_KILL.into();
        request.grace_ms = 200;
        request
    };
    for line in ["echo begun; sleep 1000", "trap '' TERM; echo begun; while :; do sleep 1; done"] {
        let mut execution = sandbox.guest().start(kill(line)).await?;
        read_until(&mut execution, "begun\n").await?;
        let id = execution.id;
        drop(execution);
        wait_ended(&sandbox, id).await?;
        let (finished, _) = collect_with_gaps(sandbox.guest().attach(id, [0; 3]).await?, [0; 3]).await?;
        equal!(finished.cause(), v1::Cause::CAUSE_STOPPED);
        ensure!(finished.exited.signal != 0, "it ended by itself: {:?}", finished.exited);
    }
    // A process that exits first is not affected, and a detached one has no stream to follow.
    let finished = collect(sandbox.guest().start(kill("echo begun")).await?).await?.expect_success()?;
    equal!((finished.text().as_str(), finished.cause()), ("begun", v1::Cause::CAUSE_UNSPECIFIED));
    let mut request = kill("true");
    request.detach = true;
    expect_refused(
        sandbox.guest().start(request).await,
        ErrorCode::InvalidArgument,
        &["on_disconnect", "detach"],
    )?;
    context.stop(sandbox).await
}

async fn evicted_process_is_reported_as_evicted(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let first = sh(&sandbox, "echo first").await?.expect_success()?.id;
    let kept = collect(sandbox.guest().attach(first, [0; 3]).await?).await?;
    equal!(kept.text(), "first");
    for _ in 0..64 {
        sh(&sandbox, "true").await?.expect_success()?;
    }
    let attached = match sandbox.guest().attach(first, [0; 3]).await {
        Ok(mut execution) => execution.next().await.map(|_| ()),
        Err(error) => Err(error),
    };
    expect_refused(attached, ErrorCode::NotFound, &["id", "evicted"])?;
    context.stop(sandbox).await
}

async fn unread_output_does_not_stop_a_process(context: &Context) -> Checked {
    const SIZE: usize = 32 << 20;
    let sandbox = context.sandbox().await?;
    let code = format!("import sys\n{}sys.stdout.buffer.write(data)", pattern_code(SIZE));
    let id = detach(&sandbox, python(&code)).await?;
    wait_ended(&sandbox, id).await?;
    let (finished, gaps) = collect_with_gaps(sandbox.guest().attach(id, [0; 3]).await?, [0; 3]).await?;
    equal!(finished.exited.stdout_bytes, SIZE as u64);
    equal!(finished.stdout.len() as u64 + gaps, SIZE as u64);
    ensure!(gaps > 0, "32 MiB were kept without a reader");
    ensure!(pattern(SIZE).ends_with(&finished.stdout), "what was kept is not the end of the stream");
    context.stop(sandbox).await
}

async fn head_and_tail_are_kept_for_late_readers(context: &Context) -> Checked {
    const SIZE: usize = 24 << 20;
    const KEEP: usize = 2 << 20;
    let sandbox = context.sandbox().await?;
    let code = format!("import sys\n{}sys.stdout.buffer.write(data)", pattern_code(SIZE));
    let mut request = python(&code);
    request.keep_bytes = KEEP as u64;
    let id = detach(&sandbox, request).await?;
    wait_ended(&sandbox, id).await?;
    let (finished, gaps) = collect_with_gaps(sandbox.guest().attach(id, [0; 3]).await?, [0; 3]).await?;
    equal!(finished.stdout.len() as u64 + gaps, SIZE as u64);
    ensure!(finished.stdout.len() < SIZE / 2, "{} bytes were kept", finished.stdout.len());
    let all = pattern(SIZE);
    // Only complete chunks are kept, so the head may be one chunk shorter than requested.
    let head = KEEP / 2 - 128 * 1024;
    ensure!(finished.stdout.get(..head) == all.get(..head), "the beginning was not kept");
    let tail = KEEP / 2;
    let from = finished.stdout.len().saturating_sub(tail);
    ensure!(finished.stdout.get(from..) == all.get(SIZE - tail..), "the end was not kept");
    context.stop(sandbox).await
}

async fn unknown_process_cannot_be_attached_to(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let attached = match sandbox.guest().attach(77, [0; 3]).await {
        Ok(mut execution) => execution.next().await.map(|_| ()),
        Err(error) => Err(error),
    };
    expect_refused(attached, ErrorCode::NotFound, &["id", "77"])?;
    let signalled = sandbox.guest().signal(77, 15, false).await;
    expect_refused(signalled, ErrorCode::NotFound, &["id", "77"])?;
    equal!(sh(&sandbox, "true").await?.end(), (0, 0));
    context.stop(sandbox).await
}
