//! Long-lived sandboxes: a caller-chosen id, many connections, freezing, changing limits, a deadline enforced from outside.

use std::sync::Arc;
use std::time::Duration;

use belljar_model::{LimitsChange, SandboxId};
use belljar_proto::v1;

use super::Capability;
use super::case::{Case, Checked, Stop, cases, ensure, equal, eventually, within};
use super::context::Context;
use super::program::{check_usable, collect, finish, python, read_until, sh, shell};
use super::{contexts, sessions};
use crate::client::{GuestClient, GuestError};
use crate::engine::{CreateRequest, Sandbox};
use crate::engine_error::EngineError;

pub(super) const CASES: &[Case] = cases![
    launch_uses_the_chosen_id [],
    connections_are_independent [],
    broken_connections_do_no_harm [],
    connections_are_bounded [],
    frozen_sandbox_pauses_and_continues [EnforcedPids],
    time_limits_stop_while_frozen [EnforcedPids],
    frozen_sandbox_is_stopped_at_once [EnforcedPids],
    frozen_sandbox_is_killed_at_once [EnforcedPids],
    freezing_needs_control_groups [],
    limits_change_while_it_runs [EnforcedPids, EnforcedMemory],
    limit_changes_are_atomic [EnforcedPids, EnforcedMemory],
    current_usage_is_measured_outside [EnforcedPids, EnforcedMemory],
    deadline_is_enforced_outside [],
    deadline_outside_can_be_moved [],
    stop_is_shared_and_repeated [],
    kill_then_usage_then_stop [],
];

/// Maximum number of connections of a guest.
const MAX_CONNECTIONS: usize = 16;

/// Timeout for the end of a small sandbox.
const END_TIMEOUT: Duration = Duration::from_secs(10);

fn chosen_id() -> Checked<SandboxId> {
    let mut bytes = [0u8; 20];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(SandboxId::from_entropy(bytes))
}

async fn launch(context: &Context, deadline: Option<Duration>) -> Checked<Sandbox> {
    Ok(context.engine().create(CreateRequest::long_lived(&chosen_id()?, &context.spec(), deadline)).await?)
}

async fn launch_uses_the_chosen_id(context: &Context) -> Checked {
    let id = chosen_id()?;
    let sandbox = context.engine().create(CreateRequest::long_lived(&id, &context.spec(), None)).await?;
    equal!(sandbox.id, id);
    let output = sh(&sandbox, "echo $BELLJAR_SANDBOX").await?.expect_success()?;
    equal!(output.text(), id.as_str());
    context.stop(sandbox).await
}

/// Increments a counter in a file.
const COUNTER: &str = "
import os, time
number = 0
while True:
    number += 1
    with open('count.new', 'w') as file: file.write(str(number))
    os.rename('count.new', 'count')
    if number == 1: print('ready', flush=True)
    time.sleep(0.02)
";

async fn count(guest: &GuestClient, sandbox: &Sandbox) -> Checked<u64> {
    let text = guest.read_all(&sandbox.home.join("count"), 100).await?;
    String::from_utf8_lossy(&text).parse().map_err(|error| Stop::Failed(format!("{text:?}: {error}")))
}

async fn start_counter(sandbox: &Sandbox) -> Checked<u64> {
    let mut execution = sandbox.guest().start(python(COUNTER)).await?;
    read_until(&mut execution, "ready").await?;
    Ok(execution.id)
}

async fn connections_are_independent(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    let first = sandbox.connect().await?;
    let mut request = shell("echo begun; read word; echo got $word");
    request.stdin_open = true;
    let mut execution = first.start(request).await?;
    read_until(&mut execution, "begun\n").await?;
    let id = execution.id;
    drop(execution);
    drop(first);
    // The process continues without the connection that started it, and another connection continues reading.
    let second = sandbox.connect().await?;
    second.feed(id, b"it\n".as_slice(), true).await?;
    let finished = super::program::collect_with_gaps(second.attach(id, [6, 0, 0]).await?, [6, 0, 0])
        .await?
        .0
        .expect_success()?;
    equal!(finished.text(), "got it");
    // The connection from the launch still works.
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn broken_connections_do_no_harm(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    let id = start_counter(&sandbox).await?;
    for _ in 0..3 * MAX_CONNECTIONS {
        let guest = sandbox.connect().await?;
        guest.check().await?;
        let watching = guest.attach(id, [0; 3]).await?;
        drop((guest, watching));
    }
    let before = count(sandbox.guest(), &sandbox).await?;
    eventually("the counter continues", END_TIMEOUT, async || {
        Ok(count(sandbox.guest(), &sandbox).await? > before)
    })
    .await?;
    context.stop(sandbox).await
}

async fn connections_are_bounded(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    sandbox.guest().check().await?;
    let mut open = Vec::new();
    for _ in 1..MAX_CONNECTIONS {
        let guest = sandbox.connect().await?;
        guest.check().await?;
        open.push(guest);
    }
    let one_more = sandbox.connect().await?;
    let answer = within("a connection too many", END_TIMEOUT, one_more.check()).await?;
    ensure!(
        matches!(answer, Err(GuestError::Gone(_) | GuestError::Unreachable(_))),
        "a connection too many got {answer:?}"
    );
    check_usable(&sandbox).await?;
    open.pop();
    eventually("there is room again", END_TIMEOUT, async || {
        Ok(sandbox.connect().await?.check().await.is_ok())
    })
    .await?;
    context.stop(sandbox).await
}

async fn frozen_sandbox_pauses_and_continues(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    start_counter(&sandbox).await?;
    sandbox.freeze().await?;
    // Freezing twice is allowed.
    sandbox.freeze().await?;
    let quiet = tokio::time::timeout(Duration::from_millis(300), sandbox.guest().check()).await;
    ensure!(quiet.is_err(), "a frozen guest responds: {quiet:?}");
    let cpu = async || Checked::Ok(sandbox.usage().await.cpu);
    let (before, waited) = (cpu().await?, Duration::from_millis(200));
    tokio::time::sleep(waited).await;
    equal!(cpu().await?, before);
    sandbox.thaw().await?;
    sandbox.thaw().await?;
    let before = count(sandbox.guest(), &sandbox).await?;
    eventually("the counter continues", END_TIMEOUT, async || {
        Ok(count(sandbox.guest(), &sandbox).await? > before)
    })
    .await?;
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

/// Time limits of commands, of commands in sessions and of code, and the grace after one.
async fn time_limits_stop_while_frozen(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    let guest = sandbox.guest();
    // The start of an interpreter takes seconds on a busy machine, which would use up the limits.
    contexts::value(guest, "0").await?;
    let limit = Duration::from_secs(5);
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let wait = "while [ ! -e go ]; do sleep 0.05; done; echo finished";
    let line = |name: &str| format!("touch {name}; {wait}");
    // It sets its trap long before its time is over.
    let asked = format!("trap 'touch asked; {wait}; exit' TERM; while :; do sleep 0.05; done");
    let asked = v1::StartRequest { timeout_ms: 2000, grace_ms: limit_ms, ..shell(&asked) };
    let command = v1::StartRequest { timeout_ms: limit_ms, ..shell(&line("command")) };
    let mut in_session = sessions::command(sessions::open(guest, "").await?, &line("session"));
    in_session.timeout_ms = limit_ms;
    let code = "
import os, time
open('code', 'w').close()
while not os.path.exists('go'): time.sleep(0.05)
print('finished')
";
    let begun = async |name: &str| {
        let has_begun = async || Ok(guest.stat(name.as_ref(), false).await.is_ok());
        eventually(&format!("{name} has begun"), END_TIMEOUT, has_begun).await
    };
    let freezing = async {
        for name in ["asked", "command", "session", "code"] {
            begun(name).await?;
        }
        sandbox.freeze().await?;
        tokio::time::sleep(limit + Duration::from_secs(1)).await;
        sandbox.thaw().await?;
        sh(&sandbox, "touch go").await?.expect_success()?;
        Ok(())
    };
    let others = async {
        begun("asked").await?;
        futures::try_join!(
            finish(&sandbox, command),
            sessions::run_request(guest, in_session),
            contexts::execute(guest, contexts::with_timeout(code, limit_ms, 0)),
        )
    };
    let (asked, (command, in_session, code), ()) =
        futures::try_join!(finish(&sandbox, asked), others, freezing)?;
    equal!((asked.text().as_str(), asked.cause()), ("finished", v1::Cause::CAUSE_TIMED_OUT));
    equal!((command.text().as_str(), command.cause()), ("finished", v1::Cause::CAUSE_UNSPECIFIED));
    equal!((in_session.text().as_str(), in_session.cause()), ("finished", v1::Cause::CAUSE_UNSPECIFIED));
    equal!(
        (code.end(), code.stdout.as_slice()),
        ((contexts::OK, contexts::PRESERVED), b"finished\n".as_slice())
    );
    context.stop(sandbox).await
}

async fn frozen_sandbox_is_stopped_at_once(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    start_counter(&sandbox).await?;
    sandbox.freeze().await?;
    within("the end of a frozen sandbox", Duration::from_secs(3), context.stop(sandbox)).await?
}

async fn frozen_sandbox_is_killed_at_once(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    start_counter(&sandbox).await?;
    sandbox.freeze().await?;
    sandbox.kill();
    within("the end of a frozen sandbox", Duration::from_secs(3), sandbox.wait_ended()).await?;
    ensure!(sandbox.usage().await.memory_bytes.is_some(), "the usage of a killed sandbox is lost");
    context.stop(sandbox).await
}

async fn freezing_needs_control_groups(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    let has_groups = context.has(Capability::EnforcedPids);
    for result in [
        sandbox.freeze().await,
        sandbox.thaw().await,
        sandbox.set_limits(&LimitsChange { pids: Some("100".parse()?), ..LimitsChange::default() }).await,
    ] {
        match result {
            Ok(()) => ensure!(has_groups, "it succeeded without cgroups"),
            Err(EngineError::Unsupported { .. }) => ensure!(!has_groups, "it was refused with cgroups"),
            Err(error) => return Err(error.into()),
        }
    }
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn limits_change_while_it_runs(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.limits.pids = "8".parse()?;
    spec.limits.memory = "64m".parse()?;
    let sandbox = context.engine().create(CreateRequest::long_lived(&chosen_id()?, &spec, None)).await?;
    let forks = async |how_many: u32| -> Checked<bool> {
        let code = format!(
            "
import os, time
children = []
try:
    for number in range({how_many}):
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        children.append(child)
    print('all')
except BlockingIOError:
    print('some')
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"
        );
        Ok(super::program::py(&sandbox, &code).await?.text() == "all")
    };
    ensure!(!forks(20).await?, "20 processes in a limit of 8");
    sandbox.set_limits(&LimitsChange { pids: Some("64".parse()?), ..LimitsChange::default() }).await?;
    ensure!(forks(20).await?, "20 processes were refused in a limit of 64");
    let code = "held = b'x' * (100 << 20); print(len(held))";
    let finished = super::program::finish(&sandbox, python(code)).await?;
    ensure!(finished.end() != (0, 0), "100 MiB in a limit of 64 MiB");
    sandbox.set_limits(&LimitsChange::memory("256m".parse()?)).await?;
    super::program::py(&sandbox, code).await?;
    sandbox.set_limits(&LimitsChange { cpus: Some("0.25".parse()?), ..LimitsChange::default() }).await?;
    let busy = "
import time
begin = time.monotonic()
while time.monotonic() < begin + 1.5: pass
print(int(time.process_time() / 1.5 * 100))
";
    let share: u32 = super::program::py(&sandbox, busy).await?.text().parse()?;
    ensure!(share < 60, "it got {share} % of a processor, expected 25 %");
    sandbox.set_limits(&LimitsChange::default()).await?;
    context.stop(sandbox).await
}

async fn limit_changes_are_atomic(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    let mut holder = sandbox
        .guest()
        .start(python("import time\nheld = b'x' * (64 << 20); print('ready', flush=True); time.sleep(1000)"))
        .await?;
    read_until(&mut holder, "ready").await?;
    let change = LimitsChange {
        memory: Some("32m".parse()?),
        cpus: Some("0.5".parse()?),
        pids: Some("20".parse()?),
        shared_by: None,
    };
    match sandbox.set_limits(&change).await {
        Err(EngineError::LimitInUse { field, .. }) => equal!(field, "memory"),
        other => return Err(Stop::Failed(format!("less memory than in use got {other:?}"))),
    }
    // The process limit, which is applied first, was restored: 60 processes still fit.
    let code = "
import os, time
for number in range(60):
    if os.fork() == 0: time.sleep(1000)
print('all', flush=True)
time.sleep(1000)
";
    let mut many = sandbox.guest().start(python(code)).await?;
    read_until(&mut many, "all").await?;
    match sandbox.set_limits(&LimitsChange { pids: Some("20".parse()?), ..change }).await {
        Err(EngineError::LimitInUse { field, .. }) => equal!(field, "pids"),
        other => return Err(Stop::Failed(format!("less processes than there are got {other:?}"))),
    }
    equal!(sandbox.usage().await.oom_kills, 0);
    check_usable(&sandbox).await?;
    context.stop(sandbox).await
}

async fn current_usage_is_measured_outside(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    let code = "import time\nheld = b'x' * (64 << 20)\nwhile time.process_time() < 0.3: pass\nprint('ready', flush=True); time.sleep(1000)";
    let mut holder = sandbox.guest().start(python(code)).await?;
    read_until(&mut holder, "ready").await?;
    let usage = sandbox.usage().await;
    let memory = usage.memory_bytes.unwrap_or(0);
    ensure!((64 << 20..256 << 20).contains(&memory), "{memory} bytes are in use");
    equal!(usage.pids, Some(1));
    if let Some(cpu) = usage.cpu {
        ensure!(cpu >= Duration::from_millis(300), "{cpu:?} of processor time");
    }
    sandbox.guest().signal(holder.id, 9, false).await?;
    collect(holder).await?;
    eventually("nothing runs", END_TIMEOUT, async || Ok(sandbox.usage().await.pids == Some(0))).await?;
    context.stop(sandbox).await
}

async fn deadline_is_enforced_outside(context: &Context) -> Checked {
    let after = Duration::from_millis(700);
    let begin = tokio::time::Instant::now();
    let sandbox = launch(context, Some(after)).await?;
    let mut execution = sandbox.guest().start(shell("trap '' TERM; echo ready; sleep 1000")).await?;
    read_until(&mut execution, "ready").await?;
    let how = within("the deadline", after + END_TIMEOUT, sandbox.wait_ended()).await?;
    ensure!(begin.elapsed() >= after, "it ended before its deadline: {how}");
    ensure!(how.contains("deadline"), "the reason is missing: {how}");
    let id = sandbox.id.clone();
    context.wait_for_cleanup(&id).await?;
    sandbox.stop().await?;
    Ok(())
}

async fn deadline_outside_can_be_moved(context: &Context) -> Checked {
    let sandbox = launch(context, Some(Duration::from_millis(800))).await?;
    sandbox.set_deadline(None).await?;
    let finished = sh(&sandbox, "sleep 1; echo alive").await?;
    equal!((finished.text().as_str(), finished.end()), ("alive", (0, 0)));
    sandbox.set_deadline(Some(Duration::MAX)).await?;
    check_usable(&sandbox).await?;
    sandbox.set_deadline(Some(Duration::from_millis(100))).await?;
    within("the deadline", END_TIMEOUT, sandbox.wait_ended()).await?;
    context.stop(sandbox).await
}

async fn stop_is_shared_and_repeated(context: &Context) -> Checked {
    let sandbox = Arc::new(context.long_lived_sandbox().await?);
    let mut waiting = sandbox.guest().start(shell("echo ready; sleep 1000")).await?;
    read_until(&mut waiting, "ready").await?;
    let in_flight = async {
        loop {
            match waiting.next().await {
                Ok(Some(_)) => {}
                other => return other,
            }
        }
    };
    let others = (Arc::clone(&sandbox), Arc::clone(&sandbox));
    let stops = futures::future::join(others.0.stop(), others.1.stop());
    let (end, stopped) = within("the end", END_TIMEOUT, futures::future::join(in_flight, stops)).await?;
    ensure!(matches!(end, Err(GuestError::Gone(_))), "a call in flight ended with {end:?}");
    stopped.0?;
    stopped.1?;
    sandbox.stop().await?;
    let late = within("a call after the end", END_TIMEOUT, sandbox.guest().check()).await?;
    ensure!(
        matches!(late, Err(GuestError::Gone(_) | GuestError::Unreachable(_))),
        "a call after the end got {late:?}"
    );
    let late = within("a connection after the end", END_TIMEOUT, sandbox.connect()).await?;
    ensure!(late.is_err(), "a connection to a sandbox that is gone");
    let left = context.find_leftovers(&sandbox.id);
    ensure!(left.is_empty(), "leftovers: {}", left.join("; "));
    Ok(())
}

async fn kill_then_usage_then_stop(context: &Context) -> Checked {
    let sandbox = context.long_lived_sandbox().await?;
    let mut request = shell("sleep 1000");
    request.detach = true;
    sandbox.guest().start(request).await?;
    sandbox.kill();
    sandbox.kill();
    within("the end", END_TIMEOUT, sandbox.wait_ended()).await?;
    let usage = sandbox.usage().await;
    if context.has(Capability::EnforcedMemory) {
        ensure!(usage.peak_memory_bytes.is_some_and(|peak| peak > 0), "it has used nothing: {usage:?}");
    }
    let answer = within("a call after the end", END_TIMEOUT, sandbox.guest().check()).await?;
    ensure!(
        matches!(answer, Err(GuestError::Gone(_) | GuestError::Unreachable(_))),
        "a killed guest responds {answer:?}"
    );
    context.stop(sandbox).await
}

impl Context {
    /// Creates a long-lived sandbox with the default specification.
    async fn long_lived_sandbox(&self) -> Checked<Sandbox> {
        launch(self, None).await
    }
}
