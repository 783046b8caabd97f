//! Pseudo-terminals: size, signals, input and end of input.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};

use super::case::{Case, Checked, cases, ensure, equal, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{argv, collect, finish, on_terminal, py, python, read_until, sh, shell};

pub(super) const CASES: &[Case] = cases![
    terminal_is_a_terminal [],
    terminal_has_its_size_and_is_resized [],
    terminal_sizes_are_checked [],
    terminal_echoes [],
    terminal_ctrl_c_interrupts [],
    terminal_ctrl_d_ends_input [],
    terminal_reports_the_exit_status [],
    terminal_carries_bulk [],
    terminal_times_out [],
    terminal_is_not_inherited [],
    terminal_input_cannot_be_forged [Confined],
    terminals_are_bounded [BoundedTerminals],
];

fn terminal_output(finished: &super::program::Finished) -> String {
    String::from_utf8_lossy(&finished.terminal).into_owned()
}

async fn terminal_is_a_terminal(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let line =
        "test -t 0 && test -t 1 && test -t 2 && echo all; echo term=$TERM; echo tty > /dev/tty; echo err >&2";
    let finished = finish(&sandbox, on_terminal(shell(line), 24, 80)).await?.expect_success()?;
    equal!(terminal_output(&finished), "all\r\nterm=xterm-256color\r\ntty\r\nerr\r\n");
    ensure!(finished.stdout.is_empty() && finished.stderr.is_empty(), "it wrote outside its terminal");
    equal!(finished.exited.terminal_bytes, finished.terminal.len() as u64);
    let code = "import os; print(os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpid())";
    equal!(terminal_output(&finish(&sandbox, on_terminal(python(code), 24, 80)).await?), "True True\r\n");
    context.stop(sandbox).await
}

async fn terminal_has_its_size_and_is_resized(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os, signal, time
def show(*_): os.write(1, b'size %d %d\\n' % os.get_terminal_size(0))
signal.signal(signal.SIGWINCH, show)
show()
while True: time.sleep(0.05)
";
    let mut execution = sandbox.guest().start(on_terminal(python(code), 33, 101)).await?;
    read_until(&mut execution, "size 101 33\r\n").await?;
    for (rows, columns) in [(50, 132), (1, 1), (65535, 65535)] {
        sandbox.guest().resize(execution.id, rows, columns).await?;
        read_until(&mut execution, &format!("size {columns} {rows}\r\n")).await?;
    }
    context.stop(sandbox).await
}

async fn terminal_sizes_are_checked(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for (rows, columns, word) in [(0, 80, "rows"), (24, 0, "columns"), (65536, 80, "rows")] {
        let result = sandbox.guest().start(on_terminal(shell("true"), rows, columns)).await;
        expect_refused(result, ErrorCode::InvalidArgument, &["terminal", word])?;
    }
    let without = sandbox.guest().start(argv(["sleep", "1000"])).await?;
    let resized = sandbox.guest().resize(without.id, 24, 80).await;
    expect_refused(resized, ErrorCode::FailedPrecondition, &["terminal"])?;
    let with = sandbox.guest().start(on_terminal(argv(["sleep", "1000"]), 24, 80)).await?;
    expect_refused(sandbox.guest().resize(with.id, 0, 80).await, ErrorCode::InvalidArgument, &["rows"])?;
    context.stop(sandbox).await
}

async fn terminal_echoes(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let request = on_terminal(shell("read line; echo \"got $line\""), 24, 80);
    let mut execution = sandbox.guest().start(request).await?;
    sandbox.guest().feed(execution.id, b"hello\r".as_slice(), false).await?;
    let seen = read_until(&mut execution, "got hello\r\n").await?;
    equal!(seen, "hello\r\ngot hello\r\n");
    context.stop(sandbox).await
}

async fn terminal_ctrl_c_interrupts(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let request = on_terminal(shell("echo ready; exec sleep 1000"), 24, 80);
    let mut execution = sandbox.guest().start(request).await?;
    read_until(&mut execution, "ready").await?;
    sandbox.guest().feed(execution.id, b"\x03".as_slice(), false).await?;
    let (finished, _) = super::program::collect_with_gaps(execution, [0; 3]).await?;
    equal!(finished.end(), (0, 2));
    context.stop(sandbox).await
}

async fn terminal_ctrl_d_ends_input(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for close in [false, true] {
        let mut execution = sandbox.guest().start(on_terminal(argv(["cat"]), 24, 80)).await?;
        let typed: &[u8] = if close { b"line\n" } else { b"line\n\x04" };
        sandbox.guest().feed(execution.id, typed, close).await?;
        read_until(&mut execution, "line\r\nline\r\n").await?;
        let (finished, _) = super::program::collect_with_gaps(execution, [0; 3]).await?;
        equal!(finished.end(), (0, 0));
    }
    context.stop(sandbox).await
}

async fn terminal_reports_the_exit_status(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    for (line, end) in [("exit 7", (7, 0)), ("kill -9 $$", (0, 9)), ("true", (0, 0))] {
        equal!(finish(&sandbox, on_terminal(shell(line), 24, 80)).await?.end(), end);
    }
    // A grandchild that holds the terminal does not delay the exit.
    let line = "trap '' HUP; sleep 1000 & echo done";
    let finished = finish(&sandbox, on_terminal(shell(line), 24, 80)).await?;
    equal!((terminal_output(&finished).as_str(), finished.end()), ("done\r\n", (0, 0)));
    ensure!(finished.took < Duration::from_secs(10), "it took {:?}", finished.took);
    context.stop(sandbox).await
}

async fn terminal_carries_bulk(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "import tty\ntty.setraw(1)\nprint('\\n'.join(map(str, range(100000))))";
    let finished = finish(&sandbox, on_terminal(python(code), 24, 80)).await?.expect_success()?;
    let expected: String = (0..100_000).map(|number| format!("{number}\n")).collect();
    ensure!(terminal_output(&finished) == expected, "{} bytes were changed", finished.terminal.len());
    context.stop(sandbox).await
}

async fn terminal_times_out(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let mut request = on_terminal(shell("trap '' TERM HUP INT; while :; do sleep 0.05; done"), 24, 80);
    request.timeout_ms = 300;
    request.grace_ms = 200;
    let finished =
        within("a terminal's timeout", Duration::from_secs(5), finish(&sandbox, request)).await??;
    equal!((finished.end(), finished.cause()), ((0, 9), v1::Cause::CAUSE_TIMED_OUT));
    context.stop(sandbox).await
}

async fn terminal_is_not_inherited(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let with = sandbox.guest().start(on_terminal(argv(["sleep", "1000"]), 24, 80)).await?;
    let other =
        sh(&sandbox, "(echo x > /dev/tty) 2>/dev/null && echo reached; true").await?.expect_success()?;
    equal!(other.text(), "");
    sandbox.guest().signal(with.id, 9, false).await?;
    equal!(collect(with).await?.terminal.len(), 0);
    let after =
        sh(&sandbox, "(echo x > /dev/tty) 2>/dev/null && echo reached; true").await?.expect_success()?;
    equal!(after.text(), "");
    context.stop(sandbox).await
}

async fn terminals_are_bounded(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os
opened = []
try:
    while len(opened) < 100: opened.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
except OSError: pass
print(len(opened))
";
    let opened = py(&sandbox, code).await?;
    // An engine may have a stricter limit, but common programs need a few.
    let count: usize = opened.text().trim().parse().unwrap_or_default();
    ensure!((8..=16).contains(&count), "{count} terminals were opened");
    context.stop(sandbox).await
}

async fn terminal_input_cannot_be_forged(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import fcntl, termios
for name, number in (('TIOCSTI', 0x5412), ('TIOCLINUX', 0x541c), ('TIOCSETD', 0x5423)):
    try:
        fcntl.ioctl(0, number, b'x\\0\\0\\0\\0\\0\\0\\0')
        print('allowed', name)
    except OSError: print('refused')
";
    let finished = finish(&sandbox, on_terminal(python(code), 24, 80)).await?.expect_success()?;
    equal!(terminal_output(&finished), "refused\r\nrefused\r\nrefused\r\n");
    context.stop(sandbox).await
}
