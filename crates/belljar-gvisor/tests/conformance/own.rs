//! What only this engine has: what is left of sandboxes, and sandboxes that outlive their server.

use std::time::Duration;

use belljar_engine::conformance::{
    self, OwnTest, Setup as _, Tested, block_on, id, in_a_row_leave_nothing, nothing_is_left, own_trial, run,
    run_to_end,
};
use belljar_engine::{CreateRequest, Engine as _, EngineError, v1};
use belljar_gvisor::{GvisorConfig, GvisorEngine};
use belljar_model::{GvisorPlatform, LimitsGrade, SandboxId, SandboxSpec};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal};

use crate::runsc::Machine;

pub(crate) fn trials() -> Vec<Trial> {
    let all: [OwnTest<Machine>; 12] = [
        ("six_in_a_row_leave_nothing", |machine| in_a_row_leave_nothing(machine, &engine(machine), 6)),
        ("rest::fifty_in_a_row_leave_nothing", |machine| {
            in_a_row_leave_nothing(machine, &engine(machine), 50)
        }),
        ("killed_parts_end_the_sandbox", killed_parts_end_the_sandbox),
        ("sandbox_outlives_its_server", sandbox_outlives_its_server),
        ("interrupted_launches_are_removed", interrupted_launches_are_removed),
        ("what_is_not_enforced_is_refused", what_is_not_enforced_is_refused),
        ("programs_that_cannot_run_are_errors", programs_that_cannot_run_are_errors),
        ("processes_are_limited_exactly", processes_are_limited_exactly),
        ("memory_that_forks_share_counts_once", memory_that_forks_share_counts_once),
        ("processor_time_is_limited", processor_time_is_limited),
        ("user_code_does_not_reach_the_guest", user_code_does_not_reach_the_guest),
        ("waiting_connections_end_the_sandbox", |machine| {
            conformance::waiting_connections_end_the_sandbox::<Machine>(&engine(machine))
        }),
    ];
    all.map(own_trial).into()
}

fn spec() -> SandboxSpec {
    conformance::spec::<Machine>()
}

fn engine(machine: &Machine) -> GvisorEngine {
    GvisorEngine::new(machine.config(GvisorPlatform::Systrap))
}

/// Returns the process of a sandbox with this word in its command line.
fn process(id: &SandboxId, word: &str) -> Tested<Pid> {
    for entry in std::fs::read_dir("/proc")? {
        let text = std::fs::read(entry.as_ref().map_err(|error| error.to_string())?.path().join("cmdline"));
        let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
        let pid = entry?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        let is_it =
            text.contains(id.as_str()) && text.split('\0').next().is_some_and(|name| name.ends_with(word));
        if let (Some(pid), true) = (pid, is_it) {
            return Ok(pid);
        }
    }
    Err(format!("{id} has no process {word}").into())
}

/// Whatever part of gVisor is killed, all of it ends, and nothing is left.
fn killed_parts_end_the_sandbox(machine: &Machine) -> Tested {
    let engine = engine(machine);
    block_on(async {
        for part in ["runsc", "runsc-sandbox", "runsc-gofer"] {
            let spec = spec();
            let sandbox = engine.create(CreateRequest::run(&spec)).await?;
            rustix::process::kill_process(process(&sandbox.id, part)?, Signal::KILL)?;
            let how = tokio::time::timeout(Duration::from_secs(30), sandbox.wait_ended()).await;
            let how = how.map_err(|_| format!("the sandbox goes on without {part}"))?;
            if how.is_empty() {
                return Err(format!("the end after {part} has no reason").into());
            }
            let id = sandbox.id.clone();
            drop(sandbox);
            nothing_is_left(machine, &id).await;
        }
        Tested::Ok(())
    })?
}

fn sandbox_outlives_its_server(machine: &Machine) -> Tested {
    let open = |run_dir| {
        let config = machine.config(GvisorPlatform::Systrap);
        GvisorEngine::new(GvisorConfig { run_dir: Some(run_dir), ..config })
    };
    let kill = |id: &SandboxId| Ok(rustix::process::kill_process(process(id, "runsc")?, Signal::KILL)?);
    conformance::sandbox_outlives_its_server(machine, open, kill)
}

/// A server that was killed before it had a record, or before `runsc` was started.
fn interrupted_launches_are_removed(machine: &Machine) -> Tested {
    let dir = tempfile::tempdir()?;
    let config =
        GvisorConfig { run_dir: Some(dir.path().to_owned()), ..machine.config(GvisorPlatform::Systrap) };
    block_on(async {
        let engine = GvisorEngine::new(config.clone());
        let lost = id(3);
        let sandbox = engine.create(CreateRequest::long_lived(&lost, &spec(), None)).await?;
        let record = dir.path().join(format!("{lost}.json"));
        std::fs::remove_file(&record)?;
        assert!(GvisorEngine::new(config).survivors().await?.is_empty());
        nothing_is_left(machine, &lost).await;
        sandbox.wait_ended().await;
        Tested::Ok(())
    })??;
    assert_eq!(std::fs::read_dir(dir.path())?.count(), 0);
    Ok(())
}

fn what_is_not_enforced_is_refused(machine: &Machine) -> Tested {
    let engine = engine(machine);
    let mut inodes = spec();
    inodes.limits.inodes = "1000".parse()?;
    let watched = SandboxSpec { grade: LimitsGrade::Watched, ..spec() };
    match block_on(engine.create(CreateRequest::run(&inodes)))? {
        Err(EngineError::Unsupported { what, .. }) if what == "inodes" => {}
        other => return Err(format!("inodes: got {other:?}").into()),
    }
    match block_on(engine.create(CreateRequest::run(&watched)))? {
        Err(EngineError::Layer { reason, .. }) if reason.contains("control groups") => Ok(()),
        other => Err(format!("got {other:?}").into()),
    }
}

fn programs_that_cannot_run_are_errors(machine: &Machine) -> Tested {
    let mut config = machine.config(GvisorPlatform::Systrap);
    config.settings.runsc = Some("/bin/true".into());
    match block_on(GvisorEngine::new(config.clone()).create(CreateRequest::run(&spec())))? {
        Err(EngineError::Layer { reason, fix, .. })
            if reason.contains("/bin/true") && fix.contains("engines.gvisor.runsc") => {}
        other => return Err(format!("got {other:?}").into()),
    }
    // What is no guest ends at once, and the directory with it.
    let config = GvisorConfig { guest: Some("/bin/false".into()), ..machine.config(GvisorPlatform::Systrap) };
    let id = id(4);
    match block_on(GvisorEngine::new(config).create(CreateRequest::long_lived(&id, &spec(), None)))? {
        Err(EngineError::Launch { step, .. }) if step == "run the guest under runsc" => {}
        other => return Err(format!("got {other:?}").into()),
    }
    let left = machine.leftovers(id.as_str());
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

fn processes_are_limited_exactly(machine: &Machine) -> Tested {
    let engine = engine(machine);
    let mut spec = spec();
    spec.limits.pids = "25".parse()?;
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
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let ended = run(&sandbox, &["python3", "-c", code]).await?;
        assert_eq!(ended, ("25".to_owned(), 0));
        sandbox.stop().await?;
        Tested::Ok(())
    })?
}

/// Twelve children of a program with 60 MiB are within 256 MiB, until each changes what it has.
fn memory_that_forks_share_counts_once(machine: &Machine) -> Tested {
    let engine = engine(machine);
    let mut spec = spec();
    spec.limits.memory = "256m".parse()?;
    // The guest looks each 20 ms.
    let code = "
import os, sys, time
data = bytearray(b'x' * (60 << 20))
for number in range(12):
    if os.fork() == 0:
        if sys.argv[1:]:
            # One after the other, so that the guest sees it before the control group ends the sentry.
            time.sleep(number / 4)
            data[::4096] = b'y' * len(data[::4096])
        time.sleep(1)
        os._exit(0)
for number in range(12): os.wait()
print(len(data))
";
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        assert_eq!(run(&sandbox, &["python3", "-c", code]).await?, (format!("{}", 60 << 20), 0));
        let (output, exited) = run_to_end(&sandbox, &["python3", "-c", code, "write"]).await?;
        assert_eq!((&*output, exited.cause), ("", v1::Cause::CAUSE_MEMORY.into()));
        sandbox.stop().await?;
        Tested::Ok(())
    })?
}

fn processor_time_is_limited(machine: &Machine) -> Tested {
    let engine = engine(machine);
    let mut spec = spec();
    spec.limits.cpus = "0.5".parse()?;
    let code = "
import os, time
end = time.monotonic() + 3
child = os.fork()
while time.monotonic() < end: pass
if child: os.wait()
";
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let (before, begin) = (sandbox.usage().await.cpu.unwrap_or_default(), std::time::Instant::now());
        run(&sandbox, &["python3", "-c", code]).await?;
        let (used, took) = (sandbox.usage().await.cpu.unwrap_or_default() - before, begin.elapsed());
        assert!(!used.is_zero() && used <= took.mul_f64(0.7), "{used:?} of processor time within {took:?}");
        sandbox.stop().await?;
        Tested::Ok(())
    })?
}

/// What stands in for Landlock: the guest's socket and program, and the guest's ids.
fn user_code_does_not_reach_the_guest(machine: &Machine) -> Tested {
    let engine = engine(machine);
    let code = "
import os, socket
def attempt(name, what):
    try:
        what()
        print('could', name)
    except OSError: pass
attempt('list the socket', lambda: os.listdir('/.belljar/run'))
attempt('connect', lambda: socket.socket(socket.AF_UNIX).connect('/.belljar/run/s'))
attempt('make a file there', lambda: open('/.belljar/run/x', 'w'))
attempt('remove the socket', lambda: os.unlink('/.belljar/run/s'))
attempt('write the program', lambda: open('/.belljar/guest', 'r+'))
attempt('write the tree', lambda: os.mkdir('/etc/x'))
attempt('signal the guest', lambda: os.kill(1, 9))
attempt('become root', lambda: os.setuid(0))
attempt('open its files', lambda: [open(f'/proc/1/fd/{number}', 'rb') for number in os.listdir('/proc/1/fd')])
print(os.getuid(), sorted(os.listdir('/')))
";
    let spec = spec();
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let (seen, _) = run(&sandbox, &["python3", "-c", code]).await?;
        assert!(seen.starts_with("1000 [") && seen.lines().count() == 1, "{seen}");
        sandbox.stop().await?;
        Tested::Ok(())
    })?
}
