//! Timeouts, signals, leftover processes, and the deadline.

use std::time::Duration;

use belljar_proto::{ErrorCode, v1};

use super::case::{Case, Checked, cases, ensure, equal, eventually, within};
use super::context::Context;
use super::processes::expect_refused;
use super::program::{
    argv, check_usable, collect, count_processes, finish, py, python, read_until, sh, shell,
};
use crate::engine::Sandbox;

pub(super) const CASES: &[Case] = cases![
    timeout_kills_after_grace [],
    timeout_lets_a_program_clean_up [],
    timeout_reaches_the_whole_tree [],
    timeout_is_judged_by_the_tree [],
    timeout_ends_a_stopped_process [],
    signal_to_one_process [],
    signal_to_a_tree [],
    signal_from_a_sibling [Siblings],
    siblings_see_each_other [Siblings],
    bad_signals_are_refused [],
    exec_returns_when_the_command_does [],
    leftovers_are_killed_and_counted [],
    daemons_are_killed [],
    orphans_are_reaped [],
    deadline_is_enforced_by_the_guest [],
    deadline_can_be_moved [],
];

/// Tolerance for events that are due at a certain time, for a busy machine. Anything that must not be waited for takes
/// far longer.
const SLACK: Duration = Duration::from_secs(10);

/// Time within which a program has certainly installed its signal handlers.
const SETUP_TIME: Duration = Duration::from_secs(2);

fn with_timeout(mut request: v1::StartRequest, timeout: Duration, grace: Duration) -> v1::StartRequest {
    request.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    request.grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    request.kill_rest = true;
    request
}

async fn wait_for_no_processes(sandbox: &Sandbox) -> Checked {
    eventually("no process is left", SLACK, async || Ok(count_processes(sandbox).await? == 0)).await
}

async fn timeout_kills_after_grace(context: &Context) -> Checked {
    let (timeout, grace) = (SETUP_TIME, Duration::from_millis(600));
    let sandbox = context.sandbox().await?;
    let request = shell("trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done");
    let finished = finish(&sandbox, with_timeout(request, timeout, grace)).await?;
    equal!(finished.cause(), v1::Cause::CAUSE_TIMED_OUT);
    equal!(finished.end(), (0, 9));
    ensure!(finished.text().starts_with("ready"), "it wrote {:?}", finished.text());
    ensure!(finished.text().contains("term"), "it got no SIGTERM: {:?}", finished.text());
    let (earliest, latest) = (timeout + grace, timeout + grace + SLACK);
    ensure!(
        (earliest..=latest).contains(&finished.took),
        "it took {:?}, expected {earliest:?} to {latest:?}",
        finished.took
    );
    wait_for_no_processes(&sandbox).await?;
    context.stop(sandbox).await
}

async fn timeout_lets_a_program_clean_up(context: &Context) -> Checked {
    let (timeout, grace) = (SETUP_TIME, Duration::from_secs(60));
    let sandbox = context.sandbox().await?;
    let request = shell("trap 'echo bye; exit 7' TERM; while :; do sleep 0.05; done");
    let finished = finish(&sandbox, with_timeout(request, timeout, grace)).await?;
    equal!(finished.text(), "bye");
    equal!(finished.end(), (7, 0));
    equal!(finished.cause(), v1::Cause::CAUSE_TIMED_OUT);
    ensure!(finished.took < timeout + SLACK, "it took {:?}, its exit was noticed late", finished.took);
    context.stop(sandbox).await
}

async fn timeout_reaches_the_whole_tree(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for depth in range(4):
    if os.fork() == 0:
        if depth % 2: os.setsid()
    time.sleep(0.001)
print(flush=True)
time.sleep(1000)
";
    let request = with_timeout(python(code), SETUP_TIME, Duration::from_millis(300));
    let finished = finish(&sandbox, request).await?;
    equal!((finished.end(), finished.cause()), ((0, 9), v1::Cause::CAUSE_TIMED_OUT));
    wait_for_no_processes(&sandbox).await?;
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

/// The leader ends at once, and its children do not; nothing else is requested to be killed.
async fn timeout_is_judged_by_the_tree(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(1000)";
    for (line, grace, left_behind) in [
        // A child that ignores SIGTERM is killed after the grace, and counted.
        (format!("python3 -c \"{stubborn}\" & wait"), Duration::from_millis(600), 1),
        // One that leads a session of its own gets SIGTERM too, and has the grace to end.
        (
            "setsid sh -c 'trap \"sleep 0.2; echo bye; exit\" TERM; while :; do sleep 0.05; done' & wait"
                .to_owned(),
            Duration::from_secs(60),
            0,
        ),
    ] {
        let request = with_timeout(shell(&line), SETUP_TIME, grace);
        let finished = finish(&sandbox, v1::StartRequest { kill_rest: false, ..request }).await?;
        equal!((finished.cause(), finished.exited.left_behind), (v1::Cause::CAUSE_TIMED_OUT, left_behind));
        wait_for_no_processes(&sandbox).await?;
        ensure!(
            finished.took < SETUP_TIME + Duration::from_millis(600) + SLACK,
            "it took {:?}",
            finished.took
        );
    }
    context.stop(sandbox).await
}

async fn timeout_ends_a_stopped_process(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let request =
        with_timeout(shell("kill -STOP $$"), Duration::from_millis(400), Duration::from_millis(300));
    let finished = finish(&sandbox, request).await?;
    equal!(finished.cause(), v1::Cause::CAUSE_TIMED_OUT);
    ensure!(finished.took < Duration::from_millis(700) + SLACK, "it took {:?}", finished.took);
    context.stop(sandbox).await
}

/// A parent and a child that both report received signals.
const FAMILY: &str = "
import os, signal, sys, time
def got(number, frame):
    os.write(1, b'%s got %d\\n' % (name, number))
    if name == b'parent' and sys.argv[1] == 'together': os.waitpid(child, 0)
    os._exit(0)
name = b'parent'
signal.signal(signal.SIGUSR1, got)
child = os.fork()
if child == 0: name = b'child'
os.write(1, b'%s ready\\n' % name)
# Python sees a signal between two steps, so the steps are short.
while True: time.sleep(0.02)
";

async fn family(sandbox: &Sandbox, ending: &'static str) -> Checked<crate::Execution> {
    let mut request = python(FAMILY);
    request.argv.push(ending.into());
    let mut execution = sandbox.guest().start(request).await?;
    let seen = read_until(&mut execution, " ready\n").await?;
    if seen.matches("ready").count() < 2 {
        read_until(&mut execution, " ready\n").await?;
    }
    Ok(execution)
}

async fn signal_to_one_process(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let execution = family(&sandbox, "alone").await?;
    equal!(sandbox.guest().signal(execution.id, 10, false).await?, 1);
    let id = execution.id;
    let (finished, _) = super::program::collect_with_gaps(execution, [0; 3]).await?;
    ensure!(finished.text().contains("parent got 10"), "it wrote {:?}", finished.text());
    ensure!(!finished.text().contains("child got"), "the child got it as well: {:?}", finished.text());
    equal!(sandbox.guest().signal(id, 10, false).await?, 0);
    context.stop(sandbox).await
}

async fn signal_to_a_tree(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let execution = family(&sandbox, "together").await?;
    let id = execution.id;
    equal!(sandbox.guest().signal(id, 10, true).await?, 2);
    wait_for_no_processes(&sandbox).await?;
    let finished = collect(sandbox.guest().attach(id, [0; 3]).await?).await?;
    for word in ["parent got 10", "child got 10"] {
        ensure!(finished.text().contains(word), "{word:?} is not in {:?}", finished.text());
    }
    context.stop(sandbox).await
}

async fn signal_from_a_sibling(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let sleeping = sandbox.guest().start(argv(["sleep", "1000"])).await?;
    sh(&sandbox, &format!("kill -USR1 {}", sleeping.pid)).await?.expect_success()?;
    equal!(collect(sleeping).await?.end(), (0, 10));
    context.stop(sandbox).await
}

async fn siblings_see_each_other(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let sleeping = sandbox.guest().start(argv(["sleep", "1000.25"])).await?;
    let in_session = sandbox.guest().start(shell("sleep 1000.5 & wait")).await?;
    let look = "
import glob
for path in glob.glob('/proc/[0-9]*/cmdline'):
    try: words = open(path, 'rb').read().split(b'\\0')
    except OSError: continue
    if words[0] == b'sleep' and words[1].startswith(b'1000.'): print(words[1].decode())
";
    eventually("each sees both", SLACK, async || {
        let text = py(&sandbox, look).await?.text();
        let seen: std::collections::BTreeSet<&str> = text.lines().collect();
        Ok(seen == ["1000.25", "1000.5"].into())
    })
    .await?;
    drop((sleeping, in_session));
    context.stop(sandbox).await
}

async fn bad_signals_are_refused(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let execution = sandbox.guest().start(argv(["sleep", "1000"])).await?;
    for signal in [0, -1, 65, i32::MAX] {
        let result = sandbox.guest().signal(execution.id, signal, false).await;
        expect_refused(result, ErrorCode::InvalidArgument, &["signal", &signal.to_string()])?;
    }
    equal!(sandbox.guest().signal(execution.id, 64, false).await?, 1);
    equal!(collect(execution).await?.end(), (0, 64));
    context.stop(sandbox).await
}

async fn exec_returns_when_the_command_does(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    // A grandchild in a session of its own holds both pipes.
    let finished = sh(&sandbox, "echo before; setsid sleep 1000 & echo after; exit 6").await?;
    equal!((finished.text().as_str(), finished.end()), ("before\nafter", (6, 0)));
    ensure!(finished.took < SLACK, "it took {:?}", finished.took);
    // Unless requested, the guest kills no leftovers.
    equal!(count_processes(&sandbox).await?, 1);
    // A background writer does not delay the command's exit either.
    let finished = sh(&sandbox, "yes >&2 & exit 0").await?;
    ensure!(finished.took < SLACK, "it took {:?} beside a writer", finished.took);
    context.stop(sandbox).await
}

async fn leftovers_are_killed_and_counted(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let mut request = shell("sleep 1000 & sleep 1000 & setsid sleep 1000 & exit 0");
    request.kill_rest = true;
    let finished = finish(&sandbox, request).await?.expect_success()?;
    equal!(finished.exited.left_behind, 3);
    wait_for_no_processes(&sandbox).await?;
    let mut request = shell("exit 0");
    request.kill_rest = true;
    equal!(finish(&sandbox, request).await?.exited.left_behind, 0);
    context.stop(sandbox).await
}

async fn daemons_are_killed(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let code = "
import os, signal, time
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    for number in range(1, 32):
        if number not in (9, 19): signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        os.write(write, b'x')
        os.closerange(0, 64)
        os.chdir('/')
        while True: time.sleep(1000)
    os._exit(0)
os.read(read, 1)
os.wait()
";
    let mut request = python(code);
    request.kill_rest = true;
    let finished = finish(&sandbox, request).await?.expect_success()?;
    equal!(finished.exited.left_behind, 1);
    wait_for_no_processes(&sandbox).await?;
    context.stop(sandbox).await
}

async fn orphans_are_reaped(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    // Each orphan exits at once, and only the guest can reap it. Zombies count against the process limit.
    let code = "
import os, time
made, deadline = 0, time.monotonic() + 40
while made < 1000:
    try:
        child = os.fork()
        if child == 0:
            try: os.fork()
            finally: os._exit(0)
        os.waitpid(child, 0)
        made += 1
    except BlockingIOError:
        assert time.monotonic() < deadline, made
        time.sleep(0.001)
";
    py(&sandbox, code).await?;
    wait_for_no_processes(&sandbox).await?;
    let zombies = "
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: stat = open(f'/proc/{pid}/stat').read()
    except OSError: continue
    after = stat.rsplit(') ', 1)[1].split()
    if after[0] == 'Z' and after[1] == str(os.getppid()): print(stat)
";
    equal!(py(&sandbox, zombies).await?.text(), "");
    context.stop(sandbox).await
}

async fn deadline_is_enforced_by_the_guest(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let request = shell("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let mut execution = sandbox.guest().start(request).await?;
    read_until(&mut execution, "ready").await?;
    let begin = tokio::time::Instant::now();
    let after = Duration::from_millis(500);
    sandbox.guest().set_deadline(Some(after)).await?;
    let limit = after + crate::STOP_GRACE + SLACK;
    let finished = within("the deadline", limit, collect(execution)).await?;
    if let Ok(finished) = finished {
        equal!((finished.end(), finished.cause()), ((0, 9), v1::Cause::CAUSE_STOPPED));
    }
    ensure!(begin.elapsed() >= after, "it ended before its deadline");
    within("the sandbox's own end", limit, sandbox.wait_ended()).await?;
    let answer = within("a call after the deadline", SLACK, sandbox.guest().check()).await?;
    ensure!(answer.is_err(), "the guest still answers after its deadline");
    context.stop(sandbox).await
}

async fn deadline_can_be_moved(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    sandbox.guest().set_deadline(Some(Duration::from_millis(600))).await?;
    sandbox.guest().set_deadline(None).await?;
    let finished = sh(&sandbox, "sleep 1; echo alive").await?;
    equal!((finished.text().as_str(), finished.end()), ("alive", (0, 0)));
    sandbox.guest().set_deadline(Some(Duration::from_millis(100))).await?;
    within("the sandbox's own end", SLACK, sandbox.wait_ended()).await?;
    context.stop(sandbox).await
}
