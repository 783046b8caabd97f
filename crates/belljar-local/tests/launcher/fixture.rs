//! Fixture of the tests: an engine with its own launcher, and this program in its other roles.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use belljar_engine::{Engine as _, Execution, GuestClient, ProcessEvent, Sandbox, v1};
use belljar_local::{CreateRequest, LauncherConfig, LauncherEngine, LocalConfig, LocalKind};
use belljar_model::{LimitsGrade, SandboxId, SandboxSpec};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Completion, Failed};

use crate::{account, crash, leftovers, life, peers, v1 as control_groups, warm};

/// Timeout of every step that should take no time.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) type TestResult = Result<(), Failed>;

/// One test.
#[derive(Clone, Copy)]
pub(crate) struct Test {
    pub(crate) name: &'static str,
    /// Whether it also runs as an ordinary user.
    pub(crate) also_as_user: bool,
    pub(crate) body: for<'a> fn(&'a Fixture) -> LocalBoxFuture<'a, TestResult>,
}

/// Lists tests from functions of the same names.
macro_rules! tests {
    ($($module:ident { $($name:ident $(+ $user:ident)?),* $(,)? })*) => {
        vec![$($($crate::fixture::Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            also_as_user: tests!(@ $($user)?),
            body: |fixture| Box::pin($module::$name(fixture)),
        }),*),*]
    };
    (@ user) => { true };
    (@) => { false };
}

pub(crate) fn tests() -> Vec<Test> {
    tests! {
        crash {
            killed_server_leaves_its_sandboxes + user,
            killed_server_ends_tied_sandboxes + user,
            killed_fork_server_is_replaced + user,
            hung_fork_server_is_replaced + user,
            killed_launcher_ends_all_sandboxes + user,
            killed_launcher_leaves_no_lease,
            terminated_launcher_cleans_up + user,
            deadline_is_kept_without_a_server + user,
        }
        life {
            one_launcher_serves_all_engines + user,
            idle_launcher_exits + user,
            id_in_use_is_refused + user,
            id_in_use_is_refused_without_a_launcher,
            dropped_launch_leaves_nothing + user,
            dropped_sandbox_keeps_running + user,
            engines_do_not_mix + user,
            ends_are_reported_once + user,
            program_can_be_replaced,
            launcher_has_one_thread_and_no_secrets + user,
            run_sandbox_has_one_connection + user,
        }
        peers {
            invalid_frames_disconnect_their_sender + user,
            descriptors_disconnect_their_sender + user,
            other_users_are_refused,
            older_launcher_is_refused_by_name + user,
        }
        control_groups {
            freeze_with_v1,
        }
        warm {
            posture_matches_plain_start,
            packages_installed_while_it_waits_are_noticed,
            killed_spare_is_replaced,
            warm_context_behaves_like_plain_one,
            randomness_is_not_shared,
            start_time_settings_need_plain_start,
            failed_parent_start_is_reported,
            only_root_has_warm_interpreters + user,
            disabled_walls_are_missing,
            sandboxes_with_interpreters_end,
            interpreter_forks_itself_without_native_code,
            parent_that_waits_for_a_frozen_sandbox_is_replaced,
        }
    }
}

/// Directory of one test.
pub(crate) struct Fixture {
    pub(crate) dir: PathBuf,
}

impl Fixture {
    pub(crate) fn new(dir: &Path) -> std::io::Result<Self> {
        Ok(Self { dir: dir.canonicalize()? })
    }

    pub(crate) fn run(&self, test: Test) -> Result<Completion, Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let done = runtime.block_on(async {
            let body = AssertUnwindSafe((test.body)(self)).catch_unwind();
            let done = tokio::time::timeout(Duration::from_secs(90), body).await;
            // Whatever the result, no launcher may stay.
            let ended = self.engine().shut_down().await;
            (done, ended)
        });
        let done = match done {
            (Ok(Ok(done)), ended) => done.and(ended.map_err(Failed::from)),
            (Ok(Err(panic)), _) => std::panic::resume_unwind(panic),
            (Err(_), _) => Err("timed out after 90 s".into()),
        };
        match done {
            Ok(()) => Ok(Completion::Completed),
            Err(failed) => match failed.message().and_then(|text| text.strip_prefix(SKIPPED)) {
                Some(reason) => Ok(Completion::ignored_with(reason.to_owned())),
                None => Err(failed),
            },
        }
    }

    pub(crate) fn config(&self, kind: LocalKind) -> LauncherConfig {
        let mut config = LauncherConfig::new(self.dir.join("run"), LocalConfig::new(kind));
        config.linger = Duration::from_secs(5);
        config.local.guest = account::guest_program().ok();
        config
    }

    pub(crate) fn engine(&self) -> LauncherEngine {
        LauncherEngine::new(self.config(LocalKind::Local))
    }

    /// Returns the launcher's process id.
    pub(crate) fn launcher(&self) -> Option<i32> {
        let run_dir = self.dir.join("run");
        find_process(|arguments| {
            arguments.get(1).is_some_and(|word| word == "launcher")
                && arguments.get(2).is_some_and(|word| Path::new(word) == run_dir)
        })
    }

    /// Waits until the launcher has no supervisor.
    pub(crate) async fn wait_until_empty(&self) -> TestResult {
        let launcher = self.launcher().ok_or("no launcher")?;
        eventually("the launcher holds nothing", async || Ok(supervisors(launcher).is_empty())).await
    }

    /// Starts this program as a server, which creates two sandboxes, starts a counter in each, and then does nothing more.
    pub(crate) fn start_server(&self, what: &str) -> Result<Server, Failed> {
        let mut child = Command::new("/proc/self/exe")
            .args([SERVER, what])
            .arg(&self.dir)
            .env("BELLJAR_TEST_SECRET", SECRET)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut lines = BufReader::new(output).lines();
        let mut made = Vec::new();
        loop {
            let line = lines.next().ok_or("the server has ended")??;
            if line == "ready" {
                return Ok(Server { child, made });
            }
            let (id, process) = line.split_once(' ').ok_or("an odd line")?;
            made.push((id.parse()?, process.parse()?));
        }
    }
}

/// Secret in the environment of a server, which must not be anywhere else.
pub(crate) const SECRET: &str = "a-secret-of-the-server";

/// Prefix of a failure that stands for a skipped test.
pub(crate) const SKIPPED: &str = "SKIPPED: ";

/// Server that can be killed.
pub(crate) struct Server {
    child: Child,
    /// Sandboxes, with the ids of their counter processes.
    pub(crate) made: Vec<(SandboxId, u64)>,
}

impl Server {
    pub(crate) fn kill(mut self) -> std::io::Result<Vec<(SandboxId, u64)>> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(std::mem::take(&mut self.made))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SERVER: &str = "--belljar-server";
const AS_USER: &str = "--belljar-as-user";

/// Runs another role than the test, if this process was started for one.
pub(crate) fn run_other_role() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [SERVER, what, dir] => Some(report(run_server(what, Path::new(dir)))),
        [AS_USER, name, dir] => Some(report(run_by_name(name, Path::new(dir)))),
        _ => None,
    }
}

fn report(done: TestResult) -> ExitCode {
    let Err(failed) = done else { return ExitCode::SUCCESS };
    let _ = writeln!(std::io::stdout(), "{}", failed.message().unwrap_or("it failed"));
    ExitCode::FAILURE
}

fn run_server(what: &str, dir: &Path) -> TestResult {
    let fixture = Fixture::new(dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let engine = fixture.engine();
        let mut made = Vec::new();
        for _ in 0..2 {
            let sandbox = match what {
                "tied" => engine.create(CreateRequest::run(&spec())).await?,
                "deadline" => {
                    engine
                        .create(CreateRequest::long_lived(&id()?, &spec(), Some(Duration::from_secs(2))))
                        .await?
                }
                _ => engine.create(CreateRequest::long_lived(&id()?, &spec(), None)).await?,
            };
            let mut counter = sandbox.guest().start(shell(COUNTER)).await?;
            read_until(&mut counter, "\n5\n").await?;
            writeln!(std::io::stdout(), "{} {}", sandbox.id, counter.id)?;
            made.push(sandbox);
        }
        writeln!(std::io::stdout(), "ready")?;
        std::io::stdout().flush()?;
        std::future::pending::<TestResult>().await
    })
}

/// Counts, on standard output and in a file.
const COUNTER: &str =
    "i=0; while :; do i=$((i+1)); echo $i > count.new; mv count.new count; echo $i; sleep 0.02; done";

fn run_by_name(name: &str, dir: &Path) -> TestResult {
    let test = tests().into_iter().find(|test| test.name == name).ok_or("no such test")?;
    Fixture::new(dir)?.run(test).map(drop)
}

/// Runs a test in another process of this program, with additional environment variables.
pub(crate) fn rerun_with_env(name: &str, dir: &Path, env: &[(&str, &str)]) -> TestResult {
    let output =
        Command::new("/proc/self/exe").args([AS_USER, name]).arg(dir).envs(env.iter().copied()).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(()),
        false => {
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            Err(format!("{name} with {env:?}: {out}{err} ({})", output.status).into())
        }
    }
}

/// Runs a test as an ordinary user: this program runs itself again.
pub(crate) fn run_as_user(test: Test) -> Result<Completion, Failed> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Completion::ignored_with("this is that user already"));
    }
    let Some((uid, gid)) = account::find_account() else {
        return Ok(Completion::ignored_with(format!("there is no account {}", account::ACCOUNT)));
    };
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    let program = dir.path().join("program");
    account::install_programs(&program)?;
    let own = dir.path().join("own");
    std::fs::create_dir(&own)?;
    chown(&own, Some(uid), Some(gid))?;
    let output = Command::new(&program)
        .args([AS_USER, test.name])
        .arg(&own)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .current_dir("/")
        .gid(gid)
        .uid(uid)
        .output()?;
    // Nobody else runs a program of this name, so any process left was left behind.
    let deadline = Instant::now() + STEP_TIMEOUT;
    while let Some(pid) = leftovers::find_process_running(&program) {
        if Instant::now() > deadline {
            return Err(format!("the process {pid} was left behind").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if output.status.success() {
        return Ok(Completion::Completed);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(format!("{}{} ({})", text(&output.stdout), text(&output.stderr), output.status).into())
}

pub(crate) fn spec() -> SandboxSpec {
    let is_root = rustix::process::geteuid().is_root();
    let grade = if is_root { LimitsGrade::Cgroup } else { LimitsGrade::Watched };
    SandboxSpec { grade, ..SandboxSpec::default() }
}

pub(crate) fn id() -> Result<SandboxId, Failed> {
    let mut bytes = [0u8; 20];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(SandboxId::from_entropy(bytes))
}

pub(crate) fn shell(line: &str) -> v1::StartRequest {
    v1::StartRequest { shell: line.as_bytes().to_vec().into(), ..Default::default() }
}

/// Reads a process's output until `expected` occurs.
pub(crate) async fn read_until(execution: &mut Execution, expected: &str) -> Result<String, Failed> {
    let mut seen = String::from("\n");
    while !seen.contains(expected) {
        match within("output", execution.next()).await?? {
            Some(ProcessEvent::Output { data, .. }) => seen.push_str(&String::from_utf8_lossy(&data)),
            Some(ProcessEvent::Started { .. }) => {}
            other => return Err(format!("{expected:?} did not come, but {other:?}").into()),
        }
    }
    Ok(seen)
}

/// Returns the current value of the counter.
pub(crate) async fn count(guest: &GuestClient, sandbox: &Sandbox) -> Result<u64, Failed> {
    let text = guest.read_all(&sandbox.home.join("count"), 100).await?;
    Ok(String::from_utf8_lossy(&text).trim().parse()?)
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Failed> {
    Ok(tokio::time::timeout(STEP_TIMEOUT, future)
        .await
        .map_err(|_| format!("{what} took longer than {STEP_TIMEOUT:?}"))?)
}

/// Waits until `check` returns true.
pub(crate) async fn eventually(
    what: &str,
    mut check: impl AsyncFnMut() -> Result<bool, Failed>,
) -> TestResult {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !check().await? {
        if Instant::now() > deadline {
            return Err(format!("timed out waiting until {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Waits until a sandbox has no leftovers.
pub(crate) async fn wait_until_removed(id: &SandboxId) -> TestResult {
    eventually("nothing is left", async || Ok(leftovers::of(id).is_empty()))
        .await
        .map_err(|_| format!("leftovers: {}", leftovers::of(id).join("; ")).into())
}

/// Returns the fork servers of a launcher.
pub(crate) fn fork_servers(launcher: i32) -> Vec<i32> {
    children(launcher, "belljar-fork")
}

/// Returns the supervisors of a launcher's fork servers.
pub(crate) fn supervisors(launcher: i32) -> Vec<i32> {
    fork_servers(launcher).into_iter().flat_map(|server| children(server, "belljar-super")).collect()
}

/// Returns the children of a process that have this name, zombies among them.
fn children(parent: i32, name: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `pid (name) state parent …` (proc_pid_stat(5)).
        stat.split_once(" (").and_then(|(_, rest)| rest.rsplit_once(") ")).is_some_and(|(named, rest)| {
            named == name && rest.split(' ').nth(1).and_then(|pid| pid.parse().ok()) == Some(parent)
        })
    };
    pids.filter(is_child).collect()
}

/// Returns a running launcher process with matching arguments.
pub(crate) fn find_process(is_it: impl Fn(&[String]) -> bool) -> Option<i32> {
    std::fs::read_dir("/proc").into_iter().flatten().flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
        let arguments: Vec<String> = arguments
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        // Its clones have the same arguments, but another name.
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        (is_it(&arguments) && name.trim() == "belljar-launch").then_some(pid)
    })
}

pub(crate) fn signal(pid: i32, signal: rustix::process::Signal) -> TestResult {
    let pid = rustix::process::Pid::from_raw(pid).ok_or("no pid")?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

pub(crate) fn skipped(reason: &str) -> TestResult {
    Err(format!("{SKIPPED}{reason}").into())
}
