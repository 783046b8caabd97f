//! Tests of warm interpreters: they are processes of the sandbox like any other, and no tenants share them.

use std::time::Duration;

use belljar_engine::{CodeEvent, Engine as _, Sandbox, v1};
use belljar_local::{CreateRequest, LauncherEngine};

use crate::fixture::{Fixture, TestResult, eventually, id, read_until, shell, spec, within};

/// Maximum time for a parent to be ready, on a busy machine.
const WARM_TIMEOUT: Duration = Duration::from_secs(60);

/// Program that prints what a process can see of itself: its privileges, its confinement, and what it inherited.
const POSTURE: &str = r#"
import os, resource, signal
def read(path):
    with open(path) as file:
        return file.read()
status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
names = "Umask Uid Gid Groups Threads SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp CoreDumping"
seen = {name: status[name].split() for name in names.split()}
for name in "limits cgroup oom_score_adj comm timerslack_ns personality".split():
    try:
        seen[name] = read("/proc/self/" + name)
    except PermissionError as error:
        seen[name] = str(error)
first = "/proc/%d/ns/" % os.getpid()
seen["namespaces"] = sorted(os.listdir(first))
seen["mounts"] = [line.split()[3:-1] for line in read("/proc/self/mountinfo").splitlines()]
seen["streams"] = [os.readlink("/proc/self/fd/%d" % number).split(":")[0] for number in range(3)]
seen["open"] = sorted(set(os.readlink("/proc/self/fd/" + number).split(":")[0] for number in os.listdir("/proc/self/fd") if os.path.islink("/proc/self/fd/" + number)) - {"/dev/null", "anon_inode"} - {"/proc/%d/fd" % os.getpid()})
seen["place"] = [os.getcwd(), os.readlink("/proc/self/root"), os.readlink("/proc/self/exe"), os.getsid(0) == os.getpid(), os.getppid(), os.nice(0)]
seen["environment"] = sorted(name for name in os.environ if name != "BELLJAR_SANDBOX")
seen["python"] = [list(map(str, __import__("sys").flags)), __import__("sys").path, __import__("sys").argv]
import subprocess
seen["child"] = subprocess.run(["grep", "-E", "^(Cap|Seccomp:|NoNew|SigIgn|SigBlk|Umask)", "/proc/self/status"], capture_output=True, text=True).stdout
for name in sorted(seen):
    print(name, seen[name])
"#;

/// Calls that no process of a sandbox may make, and files that it may not access.
const ATTACKS: &str = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    return name, getattr(libc, name)(*arguments), ctypes.get_errno()
print(call("unshare", 0x10000000), call("setns", 0, 0), call("setuid", 0), call("sethostname", b"x", 1), call("chroot", b"/"))
print(call("mount", b"none", b"/tmp", b"tmpfs", 0, None), call("ptrace", 16, os.getppid(), 0, 0))
try:
    os.kill(1, 0)
    print("signal to the first process: sent")
except OSError as error:
    print("signal to the first process:", error.errno)
for path in ("/etc/shadow", "/proc/1/mem", "/proc/1/environ", "/dev/mem"):
    try:
        open(path, "rb").read(1)
        print(path, "was read")
    except OSError as error:
        print(path, error.errno)
for path in ("/usr/x", "/x", "/proc/self/oom_score_adj", "/etc/x"):
    try:
        open(path, "w").write("0")
        print(path, "was written")
    except OSError as error:
        print(path, error.errno)
"#;

/// Program that prints everything that must differ in each child, and Python's memory layout.
const RANDOM: &str = r#"
import os, random, secrets, ssl, tempfile, uuid
print(os.urandom(8).hex(), secrets.token_hex(8), random.random(), uuid.uuid4(), uuid.uuid1(), tempfile.mktemp(), ssl.RAND_bytes(8).hex())
print(hash("belljar"), id(os))
"#;

/// Sandbox with one warm Python context, once there is a parent.
struct Warm {
    sandbox: Sandbox,
    context: v1::ContextInfo,
}

impl Warm {
    async fn new(
        engine: &LauncherEngine,
        owner: &str,
        imports: &[&str],
    ) -> Result<Self, libtest_mimic::Failed> {
        let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
        let imports: Vec<String> = imports.iter().map(|name| (*name).to_owned()).collect();
        let begin = std::time::Instant::now();
        while let Err(why) = sandbox.offer_interpreter(owner, &imports).await {
            if begin.elapsed() > WARM_TIMEOUT || !why.contains("is being started") {
                return Err(format!("there is no warm interpreter: {why}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let context = sandbox.guest().create_context(v1::CreateContextRequest::default()).await?;
        if context.start != v1::KernelStart::KERNEL_START_WARM {
            return Err(format!("it is not warm: {}", context.start_note).into());
        }
        Ok(Self { sandbox, context })
    }

    /// Runs code and returns what it prints.
    async fn run_code(&self, code: &str) -> Result<String, libtest_mimic::Failed> {
        run_code(&self.sandbox, &self.context.id, code).await
    }
}

async fn run_code(sandbox: &Sandbox, context: &str, code: &str) -> Result<String, libtest_mimic::Failed> {
    let request = v1::ExecuteCodeRequest {
        context: context.to_owned(),
        code: code.as_bytes().to_vec().into(),
        on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
        ..Default::default()
    };
    let mut execution = sandbox.guest().execute_code(request).await?;
    let mut output = Vec::new();
    loop {
        match within("an execution", execution.next()).await?? {
            Some(CodeEvent::Output { data, .. }) => output.extend_from_slice(&data),
            Some(CodeEvent::Error(error)) => return Err(error.traceback.into()),
            Some(CodeEvent::Ended(_)) => return Ok(String::from_utf8(output)?),
            Some(_) => {}
            None => return Err("the execution did not tell its end".into()),
        }
    }
}

/// Returns what code prints in a context that was started plainly.
async fn run_plain(engine: &LauncherEngine, code: &str) -> Result<String, libtest_mimic::Failed> {
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let context = sandbox.guest().create_context(v1::CreateContextRequest::default()).await?;
    assert_eq!(context.start, v1::KernelStart::KERNEL_START_PLAIN);
    let printed = run_code(&sandbox, &context.id, code).await?;
    sandbox.stop().await?;
    Ok(printed)
}

fn differences(one: &str, other: &str) -> String {
    let pairs = one.lines().zip(other.lines()).filter(|(one, other)| one != other);
    // Lines can be long.
    pairs.map(|(one, other)| format!("{one:.200}\n{other:.200}\n")).collect()
}

pub(crate) async fn posture_matches_plain_start(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let warm = Warm::new(&engine, "a", &[]).await?;
    let without = std::env::var("BELLJAR_TEST_WITHOUT").unwrap_or_default();
    let mut all = String::new();
    for code in [POSTURE, ATTACKS] {
        let (one, other) = (warm.run_code(code).await?, run_plain(&engine, code).await?);
        // A child that moves in does no exec, which drops capabilities as well, and it has the parent's filter.
        let is_same = one == other || ["capabilities", "seccomp"].contains(&without.as_str());
        assert!(one.lines().count() > 5 && is_same, "{}", differences(&one, &other));
        assert!(!one.contains("was read") && !one.contains("was written"), "{one}");
        all.push_str(&one);
    }
    for (wall, shows) in VISIBLE_WITHOUT {
        assert_eq!(all.contains(shows), *wall == without, "without {without:?}: {shows}: {all}");
    }
    // It ends with its sandbox.
    let (pid, sandbox) = (warm.context.pid, warm.sandbox);
    assert!(pid > 1);
    sandbox.stop().await?;
    crate::fixture::wait_until_removed(&sandbox.id).await
}

pub(crate) async fn warm_context_behaves_like_plain_one(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let warm = Warm::new(&engine, "a", &[]).await?;
    let guest = warm.sandbox.guest();
    // Processes it started end with it.
    assert_eq!(
        warm.run_code("x = 41\nimport subprocess\nprint(subprocess.Popen(['sleep', '1000']).pid > 1)")
            .await?,
        "True\n"
    );
    assert_eq!(warm.run_code("print(x + 1)").await?, "42\n");
    guest.remove_context(&warm.context.id).await?;
    eventually("what it started is gone", async || Ok(count_processes(&warm.sandbox, "sleep").await? == 0))
        .await?;
    // One that exits by itself is reported like any other, with its exit code.
    let again = Warm::new(&engine, "a", &[]).await?;
    let request = v1::ExecuteCodeRequest {
        context: again.context.id.clone(),
        code: "import os; os._exit(7)".into(),
        on_disconnect: v1::OnDisconnect::ON_DISCONNECT_KILL.into(),
        ..Default::default()
    };
    let mut execution = again.sandbox.guest().execute_code(request).await?;
    let ended = loop {
        match within("the end", execution.next()).await?? {
            Some(CodeEvent::Ended(ended)) => break ended,
            Some(_) => {}
            None => return Err("no end was reported".into()),
        }
    };
    assert_eq!((ended.state, ended.exit_code), (v1::Survival::SURVIVAL_LOST.into(), 7));
    again.sandbox.stop().await?;
    warm.sandbox.stop().await?;
    Ok(())
}

async fn count_processes(sandbox: &Sandbox, name: &str) -> Result<usize, libtest_mimic::Failed> {
    let line = format!("cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^{name}$'; echo .");
    let mut run = sandbox.guest().start(crate::fixture::shell(&line)).await?;
    let text = crate::fixture::read_until(&mut run, "\n.\n").await?;
    Ok(text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

pub(crate) async fn randomness_is_not_shared(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let mut printed = Vec::new();
    for owner in ["a", "a", "b"] {
        let warm = Warm::new(&engine, owner, &["uuid", "ssl", "tempfile", "random"]).await?;
        let text = warm.run_code(RANDOM).await?;
        let (random, place) = text.trim_end().split_once('\n').ok_or("one line")?;
        printed.push((random.split(' ').map(str::to_owned).collect::<Vec<_>>(), place.to_owned()));
        warm.sandbox.stop().await?;
    }
    for (at, (random, _)) in printed.iter().enumerate() {
        for (other, _) in &printed[at + 1..] {
            let same: Vec<_> = random.iter().zip(other).filter(|(one, other)| one == other).collect();
            assert!(random.len() == 7 && same.is_empty(), "{same:?}");
        }
    }
    // Children of one parent have the same memory layout and hash seed; those of two tenants do not.
    assert_eq!(printed[0].1, printed[1].1);
    let (one, other) = (&printed[1].1, &printed[2].1);
    let parts = one.split(' ').zip(other.split(' '));
    assert!(
        parts.clone().count() == 2 && parts.into_iter().all(|(one, other)| one != other),
        "{one} {other}"
    );
    Ok(())
}

pub(crate) async fn start_time_settings_need_plain_start(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let warm = Warm::new(&engine, "a", &[]).await?;
    within("an interpreter", warm.sandbox.offer_interpreter("a", &[])).await??;
    let variable = |name: &str, value: &str| v1::EnvVar {
        name: name.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
        ..Default::default()
    };
    let request =
        v1::CreateContextRequest { env: vec![variable("PYTHONHASHSEED", "7")], ..Default::default() };
    let context = warm.sandbox.guest().create_context(request).await?;
    assert_eq!(context.start, v1::KernelStart::KERNEL_START_PLAIN);
    assert_eq!(
        context.start_note,
        "PYTHONHASHSEED is set, which takes effect only when an interpreter starts"
    );
    // As Python itself computes for that seed.
    let output = std::process::Command::new("python3")
        .env("PYTHONHASHSEED", "7")
        .args(["-c", "print(hash('belljar'))"])
        .output()?;
    let expected = String::from_utf8(output.stdout)?;
    assert_eq!(run_code(&warm.sandbox, &context.id, "print(hash('belljar'))").await?, expected);
    // Other settings, such as the directory, work with a warm interpreter.
    within("an interpreter", warm.sandbox.offer_interpreter("a", &[])).await??;
    let request = v1::CreateContextRequest {
        env: vec![variable("A", "ü=1")],
        cwd: "/tmp".into(),
        ..Default::default()
    };
    let context = warm.sandbox.guest().create_context(request).await?;
    assert_eq!(context.start, v1::KernelStart::KERNEL_START_WARM, "{}", context.start_note);
    let code = "import os; print(os.getcwd(), os.environ['A'], os.popen('pwd; echo $A').read().split())";
    assert_eq!(run_code(&warm.sandbox, &context.id, code).await?, "/tmp ü=1 ['/tmp', 'ü=1']\n");
    warm.sandbox.stop().await?;
    Ok(())
}

/// An interpreter has its settings before it has a context, but no earlier view of the packages.
pub(crate) async fn packages_installed_while_it_waits_are_noticed(fixture: &Fixture) -> TestResult {
    const INSTALL: &str = "
import os, site
place = site.getusersitepackages()
os.makedirs(place)
open(place + '/random.py', 'w')
print(1)
";
    let engine = fixture.engine();
    let warm = Warm::new(&engine, "a", &["random"]).await?;
    within("an interpreter", warm.sandbox.offer_interpreter("a", &["random".to_owned()])).await??;
    assert_eq!(warm.run_code(INSTALL).await?, "1\n");
    let context = warm.sandbox.guest().create_context(v1::CreateContextRequest::default()).await?;
    assert_eq!(context.start, v1::KernelStart::KERNEL_START_PLAIN);
    let note = "the package random that the user has installed differs from the one that is loaded already";
    assert_eq!(context.start_note, note);
    warm.sandbox.stop().await?;
    Ok(())
}

/// One that ends before it has a context, here because user code kills it, is replaced by a plain one.
pub(crate) async fn killed_spare_is_replaced(fixture: &Fixture) -> TestResult {
    const KILL: &str = "
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    if pid not in ('1', str(os.getpid())):
        try: os.kill(int(pid), 9)
        except OSError: pass
print(1)
";
    let engine = fixture.engine();
    let warm = Warm::new(&engine, "a", &[]).await?;
    within("an interpreter", warm.sandbox.offer_interpreter("a", &[])).await??;
    assert_eq!(warm.run_code(KILL).await?, "1\n");
    let context = warm.sandbox.guest().create_context(v1::CreateContextRequest::default()).await?;
    // Where Landlock keeps signals in, it cannot be killed.
    let is_warm = context.start == v1::KernelStart::KERNEL_START_WARM;
    assert!(is_warm || context.start_note.contains("before it was ready"), "{}", context.start_note);
    assert_eq!(run_code(&warm.sandbox, &context.id, "print(1)").await?, "1\n");
    warm.sandbox.stop().await?;
    Ok(())
}

pub(crate) async fn failed_parent_start_is_reported(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let imports = ["no_such_module".to_owned()];
    let mut why = String::new();
    eventually("the reason is reported", async || {
        why = sandbox.offer_interpreter("a", &imports).await.err().unwrap_or_default();
        Ok(!why.contains("is being started"))
    })
    .await?;
    assert!(why.contains("could not start: the module no_such_module cannot be imported"), "{why}");
    let context = sandbox.guest().create_context(v1::CreateContextRequest::default()).await?;
    assert_eq!(context.start, v1::KernelStart::KERNEL_START_PLAIN);
    assert_eq!(run_code(&sandbox, &context.id, "print(1)").await?, "1\n");
    sandbox.stop().await?;
    Ok(())
}

pub(crate) async fn only_root_has_warm_interpreters(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let sandbox = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    let offered = sandbox.offer_interpreter("a", &[]).await;
    if rustix::process::geteuid().is_root() {
        assert!(offered.is_err_and(|why| why.contains("is being started")));
    } else {
        let why = "only an administrator's sandboxes of the engine local have warm interpreters";
        assert_eq!(offered, Err(why.to_owned()));
    }
    sandbox.stop().await?;
    Ok(())
}

/// No process that an interpreter passes through is left in the sandbox: its pid namespace would not end.
pub(crate) async fn sandboxes_with_interpreters_end(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    for _ in 0..10 {
        let warm = Warm::new(&engine, "a", &[]).await?;
        let mut load = warm
            .sandbox
            .guest()
            .start(shell("for n in 1 2 3 4; do (while :; do :; done) & done; echo ready; wait"))
            .await?;
        read_until(&mut load, "ready").await?;
        for _ in 0..3 {
            // Those that the guest does not take end as well.
            let _ = warm.sandbox.offer_interpreter("a", &[]).await;
        }
        within("the end", warm.sandbox.stop()).await??;
        crate::fixture::wait_until_removed(&warm.sandbox.id).await?;
    }
    Ok(())
}

/// Where the host's machine code cannot be used, the interpreter forks by itself, and nothing else differs.
pub(crate) async fn interpreter_forks_itself_without_native_code(fixture: &Fixture) -> TestResult {
    if !cfg!(feature = "mutation") {
        return crate::fixture::skipped("it needs the feature mutation");
    }
    let tests =
        ["posture_matches_plain_start", "warm_context_behaves_like_plain_one", "randomness_is_not_shared"];
    for name in tests {
        let dir = fixture.dir.join(name);
        std::fs::create_dir(&dir)?;
        let without = [("BELLJAR_TEST_WITHOUT_NATIVE_ENTRY", "1")];
        crate::fixture::rerun_with_env(&format!("warm::{name}"), &dir, &without)?;
    }
    Ok(())
}

/// A parent waits for the processes by which a child enters a sandbox, and those of a frozen sandbox stop: it is replaced, and
/// other sandboxes have interpreters again.
pub(crate) async fn parent_that_waits_for_a_frozen_sandbox_is_replaced(fixture: &Fixture) -> TestResult {
    let engine = fixture.engine();
    let frozen = Warm::new(&engine, "a", &[]).await?;
    frozen.sandbox.freeze().await?;
    within("an interpreter", frozen.sandbox.offer_interpreter("a", &[])).await??;
    let begin = std::time::Instant::now();
    let other = engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?;
    // One that is on its way is not waited for, and no further one is sent.
    within("an interpreter", other.offer_interpreter("a", &[])).await??;
    let context = other.guest().create_context(v1::CreateContextRequest::default()).await?;
    assert_eq!(context.start, v1::KernelStart::KERNEL_START_PLAIN);
    assert!(context.start_note.contains("did not arrive"), "{}", context.start_note);
    let why = other.offer_interpreter("a", &[]).await;
    assert_eq!(why, Err("the warm interpreter does not answer at the moment".to_owned()));
    other.guest().remove_context(&context.id).await?;
    let start = loop {
        let offered = other.offer_interpreter("a", &[]).await;
        let context = other.guest().create_context(v1::CreateContextRequest::default()).await?;
        assert_eq!(run_code(&other, &context.id, "print(1)").await?, "1\n");
        if (offered.is_ok() && context.start == v1::KernelStart::KERNEL_START_WARM)
            || begin.elapsed() > WARM_TIMEOUT
        {
            break context.start;
        }
        other.guest().remove_context(&context.id).await?;
    };
    assert_eq!(start, v1::KernelStart::KERNEL_START_WARM);
    frozen.sandbox.thaw().await?;
    assert_eq!(frozen.run_code("print(2)").await?, "2\n");
    for sandbox in [frozen.sandbox, other] {
        sandbox.stop().await?;
        crate::fixture::wait_until_removed(&sandbox.id).await?;
    }
    Ok(())
}

/// Checks each protection that a child sets up itself: without it, the attack succeeds, as in any other process of such a
/// sandbox.
pub(crate) async fn disabled_walls_are_missing(fixture: &Fixture) -> TestResult {
    if !cfg!(feature = "mutation") {
        return crate::fixture::skipped("it needs the feature mutation");
    }
    for (wall, _) in VISIBLE_WITHOUT {
        let dir = fixture.dir.join(wall);
        std::fs::create_dir(&dir)?;
        // A launcher inherits it from the process that starts it.
        crate::fixture::rerun_with_env(
            "warm::posture_matches_plain_start",
            &dir,
            &[("BELLJAR_TEST_WITHOUT", wall)],
        )?;
    }
    Ok(())
}

/// Protections, and how their absence shows.
const VISIBLE_WITHOUT: &[(&str, &str)] = &[
    ("capabilities", "CapEff ['000001ffffffffff']"),
    ("seccomp", "('setns', -1, 22)"),
    ("landlock", "signal to the first process: sent"),
];
