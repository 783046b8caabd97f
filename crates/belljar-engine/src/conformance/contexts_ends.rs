//! Ends of executions and of contexts: interrupts, timeouts, deaths, restarts.

use belljar_proto::{ErrorCode, v1};

use super::case::{Case, Checked, Stop, cases, ensure, equal, eventually};
use super::context::Context;
use super::contexts::{
    DIED, ERROR, EXECUTION_TIMEOUT, INTERRUPTED, LOST, OK, PRESERVED, TIMED_OUT, code, collect, collect_rest,
    execute, run, start_until_here, value, with_timeout,
};
use super::processes::expect_refused;
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    context_survives_interrupt [VisibleContexts],
    context_survives_timeout_if_possible [],
    context_that_dies_is_restarted [],
    context_that_ends_between_executions_is_restarted [Siblings],
    context_without_memory_is_lost [EnforcedMemory],
    context_is_restarted_and_removed [],
    context_children_do_not_delay_the_end [VisibleContexts],
    context_disconnect_continues_or_kills_as_requested [],
];

async fn context_survives_interrupt(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "kept = 7\nimport time, subprocess, asyncio").await?;
    equal!(guest.interrupt_context("python").await?, false);
    for text in [
        "while True: pass",
        "time.sleep(1000)",
        "subprocess.run(['sleep', '1000'])",
        "!sleep 1000",
        "await asyncio.sleep(1000)",
        "input()",
    ] {
        let request = v1::ExecuteCodeRequest {
            allow_input: true,
            ..code(&format!("print('here', flush=True)\n{text}"))
        };
        let execution = start_until_here(guest, request).await?;
        equal!(guest.interrupt_context("python").await?, true);
        let (ended, name) = collect_rest(execution).await?;
        equal!(
            (text, ended.status.as_known(), name.as_str()),
            (text, Some(INTERRUPTED), "KeyboardInterrupt")
        );
        equal!(ended.state, PRESERVED);
        equal!(value(guest, "kept").await?, "7");
    }
    // Code may handle an interrupt and continue.
    let text = "try:\n    print('here', flush=True)\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    took = True\ntook";
    let execution = start_until_here(guest, code(text)).await?;
    guest.interrupt_context("python").await?;
    equal!(collect_rest(execution).await?.0.status, OK);
    equal!(value(guest, "took").await?, "True");
    // Interrupted processes have exited, and only wait to be reaped.
    let reap = "import os\ntry:\n    while True: os.waitpid(-1, 0)\nexcept ChildProcessError: pass";
    equal!(execute(guest, with_timeout(reap, 30_000, 0)).await?.end(), (OK, PRESERVED));
    wait_for_processes(&sandbox, 1).await?;
    context.stop(sandbox).await
}

/// Waits until exactly `count` processes of user code run.
async fn wait_for_processes(sandbox: &Sandbox, count: u32) -> Checked {
    let right = async || Ok(super::program::count_processes(sandbox).await? == count);
    match eventually("the started processes have ended", EXECUTION_TIMEOUT, right).await {
        Err(Stop::Failed(why)) => {
            let left = super::program::sh(sandbox, "ps -eo pid,ppid,stat,args").await?.text();
            Err(Stop::Failed(format!("{why}; expected {count}, running:\n{left}")))
        }
        other => other,
    }
}

async fn context_survives_timeout_if_possible(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "kept = 7\nimport time, signal, threading").await?;
    let done = execute(guest, with_timeout("time.sleep(1000)", 300, 0)).await?;
    equal!((done.end(), done.error()), ((TIMED_OUT, PRESERVED), "KeyboardInterrupt"));
    equal!(value(guest, "kept").await?, "7");
    equal!(execute(guest, with_timeout("1 + 1", 60_000, 0)).await?.end(), (OK, PRESERVED));
    let deaf = "kept = 8\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('here', flush=True)\nwhile True: time.sleep(1000)";
    let done = execute(guest, with_timeout(deaf, 300, 300)).await?;
    equal!(done.end(), (TIMED_OUT, LOST));
    equal!((done.ended.cause.as_known(), done.ended.signal), (Some(v1::Cause::CAUSE_TIMED_OUT), 9));
    ensure!(done.ended.reason.contains("timed out and did not end"), "{:?}", done.ended.reason);
    let state = guest.list_contexts().await?.first().and_then(|context| context.state.as_known());
    equal!(state, Some(v1::ContextState::CONTEXT_STATE_LOST));
    let done = run(guest, "kept").await?;
    equal!((done.error(), done.started.count), ("NameError", 1));
    equal!(done.started.rebuilt, "the code timed out and did not end when it was interrupted");
    equal!(value(guest, "2").await?, "2");
    context.stop(sandbox).await
}

async fn context_that_dies_is_restarted(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    for (text, end, exit, why) in [
        ("os._exit(3)", DIED, (3, 0), "exited with code 3"),
        ("os.kill(os.getpid(), 9)", DIED, (0, 9), "was killed (signal 9)"),
        ("import ctypes; ctypes.string_at(0)", DIED, (0, 11), "ended by signal 11"),
        ("exit(4)", ERROR, (4, 0), "the code ended the interpreter: it exited with code 4"),
        ("quit()", ERROR, (0, 0), "the code ended the interpreter: it exited with code 0"),
        ("os.execv('/bin/true', ['true'])", DIED, (0, 0), "exited with code 0"),
    ] {
        value(guest, "kept = 7\nimport os").await?;
        let done = run(guest, &format!("print('said', flush=True)\ndisplay(5)\n{text}")).await?;
        equal!((text, done.end(), (done.ended.exit_code, done.ended.signal)), (text, (end, LOST), exit));
        ensure!(done.ended.reason.contains(why), "{text}: {}", done.ended.reason);
        equal!((done.text().as_str(), done.results.len()), ("said", 1));
        let after = run(guest, "kept").await?;
        equal!((after.error(), after.started.rebuilt.as_str()), ("NameError", done.ended.reason.as_str()));
        equal!(run(guest, "1").await?.started.rebuilt, "");
    }
    value(guest, "kept = 8\nimport sys").await?;
    let done = run(guest, "sys.exit(3)").await?;
    equal!((done.end(), done.error()), ((ERROR, PRESERVED), "SystemExit"));
    equal!(value(guest, "kept").await?, "8");
    wait_for_processes(&sandbox, 1).await?;
    context.stop(sandbox).await
}

async fn context_that_ends_between_executions_is_restarted(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "import os, threading\nkept = 7").await?;
    let pid = guest.list_contexts().await?.first().map_or(0, |context| context.pid);
    super::program::sh(&sandbox, &format!("kill -9 {pid}")).await?.expect_success()?;
    let lost = async || {
        let contexts = guest.list_contexts().await?;
        Ok(contexts.iter().all(|context| context.state == v1::ContextState::CONTEXT_STATE_LOST))
    };
    eventually("the context is lost", EXECUTION_TIMEOUT, lost).await?;
    let done = run(guest, "kept").await?;
    equal!(done.error(), "NameError");
    ensure!(
        done.started.rebuilt.contains("between two executions it was killed"),
        "{}",
        done.started.rebuilt
    );
    equal!(done.started.context.as_option().map(|context| context.generation), Some(2));
    context.stop(sandbox).await
}

async fn context_without_memory_is_lost(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let before = sandbox.usage().await;
    let done = run(guest, "held = []\nwhile True: held.append(bytearray(1 << 24))").await?;
    // Python may raise its own error before the kernel kills it.
    if done.end() != (ERROR, PRESERVED) {
        equal!((done.end(), done.ended.signal), ((DIED, LOST), 9));
        ensure!(sandbox.usage().await.oom_kills > before.oom_kills, "no OOM kill was counted");
    }
    equal!(run(guest, "held = None\n1 + 1").await?.value(), "2");
    context.stop(sandbox).await
}

async fn context_is_restarted_and_removed(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "kept = 7\nimport time, subprocess").await?;
    let execution = start_until_here(
        guest,
        code("_ = subprocess.Popen(['sleep', '1000'])\nprint('here', flush=True)\ntime.sleep(1000)"),
    )
    .await?;
    let waiting = guest.execute_code(code("kept")).await?;
    let info = guest.restart_context("python").await?;
    equal!(info.generation, 2);
    let (ended, _) = collect_rest(execution).await?;
    equal!((ended.status.as_known(), ended.state.as_known()), (Some(INTERRUPTED), Some(LOST)));
    equal!(ended.reason, "the context was restarted");
    // A queued execution runs in the new interpreter; a requested restart is not reported as a loss.
    let done = collect(waiting).await?;
    equal!((done.error(), done.started.rebuilt.as_str()), ("NameError", ""));
    wait_for_processes(&sandbox, 1).await?;
    let execution =
        start_until_here(guest, code("print('here', flush=True)\nimport time; time.sleep(1000)")).await?;
    let mut waiting = guest.execute_code(code("1")).await?;
    guest.remove_context("python").await?;
    equal!(collect_rest(execution).await?.0.reason, "the context was removed");
    expect_refused(waiting.next().await, ErrorCode::NotFound, &["python", "was removed"])?;
    wait_for_processes(&sandbox, 0).await?;
    expect_refused(guest.remove_context("python").await, ErrorCode::NotFound, &["context \"python\""])?;
    expect_refused(guest.restart_context("c9").await, ErrorCode::NotFound, &["c9"])?;
    expect_refused(guest.interrupt_context("c9").await, ErrorCode::NotFound, &["c9"])?;
    equal!(run(guest, "1").await?.started.context.as_option().map(|context| context.generation), Some(1));
    context.stop(sandbox).await
}

async fn context_children_do_not_delay_the_end(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    let done = run(guest, "import subprocess, os\nchild = subprocess.Popen(['sleep', '1000'])\n5").await?;
    equal!((done.value().as_str(), done.end()), ("5", (OK, PRESERVED)));
    let forked = "pid = os.fork()\nif pid == 0:\n    print('child')\n    display(1)\nelse:\n    end = os.waitpid(pid, 0)[1]\n    display(end)";
    let done = run(guest, forked).await?;
    equal!((done.text().as_str(), done.results.len(), done.end()), ("child", 1, (OK, PRESERVED)));
    guest.remove_context("python").await?;
    wait_for_processes(&sandbox, 0).await?;
    context.stop(sandbox).await
}

async fn context_disconnect_continues_or_kills_as_requested(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let guest = sandbox.guest();
    value(guest, "import time, os\nkept = 7").await?;
    let text = "print('here', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('went', 'w').close()";
    drop(start_until_here(guest, code(text)).await?);
    super::program::sh(&sandbox, "touch go").await?.expect_success()?;
    equal!(value(guest, "os.path.exists('went')").await?, "True");
    let kill = v1::OnDisconnect::ON_DISCONNECT_KILL;
    let request =
        |text: &str| v1::ExecuteCodeRequest { on_disconnect: kill.into(), grace_ms: 500, ..code(text) };
    drop(start_until_here(guest, request("print('here', flush=True)\ntime.sleep(1000)")).await?);
    equal!(value(guest, "kept").await?, "7");
    let deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('here', flush=True)\nwhile True: time.sleep(1000)";
    drop(start_until_here(guest, request(deaf)).await?);
    let done = run(guest, "1").await?;
    equal!(done.value(), "1");
    ensure!(done.started.rebuilt.contains("its caller had gone"), "{}", done.started.rebuilt);
    context.stop(sandbox).await
}
