//! Standard input, output and error.

use std::time::Duration;

use belljar_proto::ErrorCode;
use bytes::Bytes;

use super::case::{Case, Checked, cases, ensure, equal, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{argv, collect, finish, py, python, read_until, sh, shell};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    stdout_and_stderr_are_apart [],
    order_within_a_stream_is_kept [],
    output_is_binary_exact [],
    output_is_streamed [],
    flood_is_complete [],
    slow_reader_makes_the_process_wait [],
    stdin_is_empty_by_default [],
    stdin_streams_and_closes [],
    stdin_stays_open_between_feeds [],
    stdin_closed_early_by_the_program [],
    stdin_of_an_unknown_process_is_refused [],
    program_that_closes_its_output_keeps_running [],
];

/// Returns bytes that identify their offset: the byte at `offset` is `offset % 251`.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0u8..251).cycle().take(length).collect()
}

/// Returns Python code that creates `size` bytes of that pattern as `data`.
pub(super) fn pattern_code(size: usize) -> String {
    format!("size = {size}\ndata = (bytes(range(251)) * (size // 251 + 1))[:size]\n")
}

async fn stdout_and_stderr_are_apart(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let finished = sh(&sandbox, "echo out; echo err >&2; printf more").await?.expect_success()?;
    equal!(finished.stdout, b"out\nmore");
    equal!(finished.stderr, b"err\n");
    equal!((finished.exited.stdout_bytes, finished.exited.stderr_bytes), (8, 4));
    context.stop(sandbox).await
}

async fn order_within_a_stream_is_kept(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os
for i in range(3000):
    os.write(1, b'%d\\n' % i)
    os.write(2, b'%d\\n' % -i)
";
    let finished = py(&sandbox, code).await?;
    let lines = |sign: i32| (0..3000).map(|number| format!("{}\n", sign * number)).collect::<String>();
    equal!(finished.stdout, lines(1).into_bytes());
    equal!(finished.stderr, lines(-1).into_bytes());
    context.stop(sandbox).await
}

async fn output_is_binary_exact(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 3 + b'\\0\\xff\\r\\n')";
    let finished = py(&sandbox, code).await?;
    let all: Vec<u8> = (0..=255).collect();
    equal!(finished.stdout, [all.repeat(3), b"\0\xff\r\n".to_vec()].concat());
    context.stop(sandbox).await
}

async fn output_is_streamed(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let mut request = shell("echo first; read go; echo second");
    request.stdin_open = true;
    let mut execution = sandbox.guest().start(request).await?;
    read_until(&mut execution, "first\n").await?;
    sandbox.guest().feed(execution.id, b"go\n".as_slice(), true).await?;
    read_until(&mut execution, "second\n").await?;
    context.stop(sandbox).await
}

async fn flood_is_complete(context: &Context) -> Checked {
    const SIZE: usize = 20_000_000;
    let sandbox = context.sandbox().await?;
    let code = format!("import sys\n{}sys.stdout.buffer.write(data)", pattern_code(SIZE));
    let finished = py(&sandbox, &code).await?;
    equal!(finished.stdout.len(), SIZE);
    ensure!(finished.stdout == pattern(SIZE), "the output differs from what was written");
    equal!(finished.exited.stdout_bytes, SIZE as u64);
    context.stop(sandbox).await
}

/// Waits until a program's writing stalls; returns the number of bytes it has written, from its file `count`.
async fn wait_until_stalled(sandbox: &Sandbox) -> Checked<u64> {
    let read = async || -> Checked<u64> {
        let content = sandbox.guest().read_all("count".as_ref(), 64).await?;
        Ok(String::from_utf8_lossy(&content).trim().parse().unwrap_or(0))
    };
    let mut last = (read().await?, tokio::time::Instant::now());
    let deadline = last.1 + Duration::from_secs(20);
    loop {
        let now = read().await?;
        if now != last.0 {
            last = (now, tokio::time::Instant::now());
        }
        if now > 0 && last.1.elapsed() > Duration::from_millis(500) {
            return Ok(now);
        }
        ensure!(tokio::time::Instant::now() < deadline, "a program without a reader keeps writing: {now}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn slow_reader_makes_the_process_wait(context: &Context) -> Checked {
    const SIZE: u64 = 48 << 20;
    let sandbox = context.sandbox().await?;
    let code = format!(
        "
import os
count = os.open('count', os.O_WRONLY | os.O_CREAT, 0o644)
written = 0
while written < {SIZE}:
    written += os.write(1, b'x' * 65536)
    os.pwrite(count, b'%-20d' % written, 0)
"
    );
    let mut execution = sandbox.guest().start(python(&code)).await?;
    // Reads one event and then nothing more, so that all buffers between the program and this reader fill up.
    execution.next().await?;
    let ahead = wait_until_stalled(&sandbox).await?;
    ensure!(ahead <= 16 << 20, "{ahead} bytes were read from the program ahead of its reader");
    if let Some(peak) = sandbox.usage().await.peak_memory_bytes {
        ensure!(peak < 96 << 20, "the sandbox used {peak} bytes while it waited for the reader");
    }
    let mut total = 0;
    loop {
        match within("the rest of the flood", Duration::from_secs(30), execution.next()).await?? {
            Some(crate::ProcessEvent::Output { data, .. }) => total += data.len() as u64,
            Some(crate::ProcessEvent::Exited(exited)) => {
                equal!((exited.code, exited.stdout_bytes), (0, SIZE));
                break;
            }
            Some(crate::ProcessEvent::Started { .. }) => {}
            None => {
                return Err(super::Stop::Failed("the output ended without the program's exit".to_owned()));
            }
        }
    }
    // The first event above was output as well.
    ensure!(total < SIZE && SIZE - total <= 1 << 20, "{total} of {SIZE} bytes came");
    context.stop(sandbox).await
}

async fn stdin_is_empty_by_default(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let finished =
        within("cat without input", Duration::from_secs(10), sh(&sandbox, "cat; echo end")).await??;
    equal!(finished.text(), "end");
    let mut request = argv(["cat"]);
    request.stdin = Bytes::from(pattern(60_000));
    let finished = finish(&sandbox, request).await?.expect_success()?;
    ensure!(finished.stdout == pattern(60_000), "the initial input was not echoed unchanged");
    context.stop(sandbox).await
}

async fn stdin_streams_and_closes(context: &Context) -> Checked {
    const SIZE: usize = 5_000_000;
    let sandbox = context.sandbox().await?;
    let mut request = argv(["cat"]);
    request.stdin_open = true;
    let execution = sandbox.guest().start(request).await?;
    let feed = sandbox.guest().feed(execution.id, std::io::Cursor::new(pattern(SIZE)), true);
    let (fed, finished) = futures::join!(feed, collect(execution));
    equal!(fed?, SIZE as u64);
    let finished = finished?.expect_success()?;
    ensure!(finished.stdout == pattern(SIZE), "{} bytes were echoed, not unchanged", finished.stdout.len());
    context.stop(sandbox).await
}

async fn stdin_stays_open_between_feeds(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let mut request = argv(["cat"]);
    request.stdin_open = true;
    let mut execution = sandbox.guest().start(request).await?;
    for word in ["one\n", "two\n", "three\n"] {
        sandbox.guest().feed(execution.id, word.as_bytes(), false).await?;
        read_until(&mut execution, word).await?;
    }
    sandbox.guest().feed(execution.id, b"".as_slice(), true).await?;
    equal!(wait_for_exit(execution).await?, (0, 0));
    context.stop(sandbox).await
}

async fn wait_for_exit(mut execution: crate::Execution) -> Checked<(i32, i32)> {
    loop {
        match within("the end", Duration::from_secs(20), execution.next()).await?? {
            Some(crate::ProcessEvent::Exited(exited)) => return Ok((exited.code, exited.signal)),
            Some(_) => {}
            None => return Err(super::Stop::Failed("the exit event is missing".to_owned())),
        }
    }
}

async fn stdin_closed_early_by_the_program(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    // The program reads a little and exits, with much more input pending.
    let mut request = argv(["head", "-c", "3"]);
    request.stdin_open = true;
    let execution = sandbox.guest().start(request).await?;
    let feed = sandbox.guest().feed(execution.id, std::io::Cursor::new(pattern(8_000_000)), true);
    let both = async { futures::join!(feed, collect(execution)) };
    let (fed, finished) = within("a program that reads little", Duration::from_secs(20), both).await?;
    ensure!(fed? < 8_000_000, "a program that has exited took all of its input");
    equal!(finished?.expect_success()?.stdout, [0, 1, 2]);
    // The program closes its input and keeps running.
    let mut request = shell("exec 0<&-; echo closed; exec sleep 1000");
    request.stdin_open = true;
    let mut execution = sandbox.guest().start(request).await?;
    read_until(&mut execution, "closed").await?;
    let feed = sandbox.guest().feed(execution.id, std::io::Cursor::new(pattern(8_000_000)), true);
    let fed = within("feeding a closed input", Duration::from_secs(20), feed).await??;
    ensure!(fed < 8_000_000, "a closed input took everything");
    equal!(sandbox.guest().signal(execution.id, 9, false).await?, 1);
    context.stop(sandbox).await
}

async fn stdin_of_an_unknown_process_is_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let fed = sandbox.guest().feed(999, b"x".as_slice(), true).await;
    expect_refused(fed, ErrorCode::NotFound, &["id", "999"])?;
    context.stop(sandbox).await
}

async fn program_that_closes_its_output_keeps_running(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let finished = sh(&sandbox, "echo last; exec >&- 2>&-; sleep 0.1; exit 4").await?;
    equal!((finished.text().as_str(), finished.end()), ("last", (4, 0)));
    context.stop(sandbox).await
}
