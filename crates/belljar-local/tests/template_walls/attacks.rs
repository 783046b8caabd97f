//! Attacks. Each prints a line for each of its probes.

use std::io::Write as _;
use std::process::ExitCode;

use belljar_engine::{CodeEvent, Engine as _, Execution, GuestError, ProcessEvent, Sandbox, v1};
use belljar_local::{CreateRequest, LocalConfig, LocalEngine, LocalKind};
use belljar_model::{
    SandboxSpec, TemplateStart, TemplateTree, Tree, TreeBase, TreeBuild, TreeLayer, VolumeMount,
};

use crate::layer::{NotRun, make, make_machine, make_volume};

/// Result of an attack, whose findings are printed.
type AttackResult = Result<(), NotRun>;

pub(crate) fn run(attack: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Err(error) => Err(error.into()),
        Ok(runtime) => runtime.block_on(async {
            match attack {
                "device" => in_layer(DEVICE).await,
                "capabilities" => in_layer(CAPABILITIES).await,
                "device of a volume" => in_volume(DEVICE).await,
                "capabilities of a volume" => in_volume(CAPABILITIES).await,
                "volume" => volume().await,
                "superblock" => superblock().await,
                "build" => build().await,
                "executions" => executions().await,
                "calls" => calls().await,
                "calls of a later execution" => later_calls().await,
                "machine" => in_machine(&[("user", BY_USER), ("root", BY_ROOT), ("other", BY_OTHER)]).await,
                "namespaces of a machine" => in_machine(&[("user", NEW_NAMESPACE)]).await,
                "mount in a machine" => in_machine(&[("root", MOUNT)]).await,
                other => Err(NotRun::Fail(format!("no attack is called {other}"))),
            }
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(NotRun::Skip(reason)) => {
            print_line(&format!("SKIPPED: {reason}"));
            ExitCode::SUCCESS
        }
        Err(NotRun::Fail(reason)) => {
            let _ = writeln!(std::io::stderr(), "{reason}");
            ExitCode::FAILURE
        }
    }
}

fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", line.trim_end());
}

fn failure(error: &dyn std::error::Error) -> NotRun {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    NotRun::Fail(format!("{error}{source}"))
}

impl From<GuestError> for NotRun {
    fn from(error: GuestError) -> Self {
        failure(&error)
    }
}

const DEVICE: &str = r#"
import errno
try:
    with open("/opt/template/zero", "rb", buffering=0) as device:
        print("read:", "ok" if device.read(1) == b"\0" else "something else")
except OSError as error:
    print("read:", errno.errorcode[error.errno])
"#;

const CAPABILITIES: &str = r#"
import subprocess
for name, program in [("a plain program", "plain"), ("a program with capabilities", "capable")]:
    status = subprocess.run(["/opt/template/" + program, "/proc/self/status"], capture_output=True, text=True).stdout
    words = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff")]
    print(f"of {name}:", {True: "none", False: "some"}[int(words[0], 16) == 0])
"#;

/// Begin of the programs in machines.
const IN_MACHINE: &str = r#"
import ctypes, errno, os, signal, socket, stat, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def tell(name, attempt):
    try:
        answer = attempt()
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(f"{name}:", "ok" if answer is None else answer)
def call(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def write(path, text="x"):
    with open(path, "w") as file:
        file.write(text)
def in_child(attempt):
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "")
"#;

const BY_USER: &str = r#"
tell("user", lambda: f"{os.getuid()} {os.getgroups()} {os.environ['USER']} {os.getcwd()}")
tell("user writes its home", lambda: write("/home/user/file"))
tell("user writes the system", lambda: write("/usr/bin/file"))
tell("user binds port 80", lambda: socket.create_server(("127.0.0.1", 80)).close())
tell("user's own capabilities", lambda: [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0].lstrip("0") or "none")
tell("user becomes root", lambda: os.setuid(0))
print("set-user-ID program:", subprocess.run(["suid", "-c", "import os; print(os.geteuid())"], capture_output=True, text=True).stdout.strip())
"#;

const BY_ROOT: &str = r#"
tell("root", lambda: f"{os.getuid()} {os.getgroups()} {os.environ['USER']} {os.getcwd()}")
tell("root writes the system", lambda: write("/usr/bin/file"))
tell("file of the user belongs to", lambda: os.stat("/home/user/file").st_uid)
tell("root gives a file away", lambda: os.chown("/usr/bin/file", 1234, 1234))
tell("root sets a bit", lambda: os.chmod("/usr/bin/file", 0o4755))
tell("root changes its root", lambda: in_child(lambda: os.chroot("/usr")))
tell("root ends a user's process", lambda: end_of_user())
tell("root's capabilities", lambda: [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapBnd")][0].lstrip("0"))
tell("an id of nobody", lambda: os.chown("/usr/bin/file", 65536, 0))
tell("device", lambda: os.mknod("/usr/device", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
tell("guest's memory", lambda: open("/proc/1/mem").close())
tell("guest's environment", lambda: open("/proc/1/environ").close())
tell("kernel's settings", lambda: write("/proc/sys/kernel/hostname"))
tell("host name", lambda: call(libc.sethostname, b"x", 1))
tell("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
os.kill(1, signal.SIGKILL)
"#;

/// Ends a process of another user, before [`BY_ROOT`].
const END_OF_USER: &str = r#"
def end_of_user():
    pid = os.fork()
    if pid == 0:
        os.setuid(1000)
        signal.pause()
    os.kill(pid, signal.SIGTERM)
    return signal.Signals(os.WTERMSIG(os.waitpid(pid, 0)[1])).name
"#;

const BY_OTHER: &str = r#"
tell("another user", lambda: f"{os.getuid()} {sorted(os.getgroups())} {os.environ['HOME']} {os.getcwd()}")
tell("another user's path", lambda: os.environ["PATH"].split(":")[0])
tell("another user reads the home", lambda: os.listdir("/home/user") and None)
tell("another user writes it", lambda: write("/home/user/other"))
"#;

const NEW_NAMESPACE: &str = r#"
tell("unshare", lambda: in_child(lambda: call(libc.unshare, 0x10000000)))
"#;

const MOUNT: &str = r#"
tell("mount", lambda: call(libc.mount, b"none", b"/run", b"tmpfs", 0, None))
"#;

/// Runs programs in one machine, each as a user.
async fn in_machine(programs: &[(&str, &str)]) -> AttackResult {
    let dir = tempfile::tempdir()?;
    let tree = TemplateTree {
        base: TreeBase::Own,
        layers: vec![make_machine(dir.path())?],
        owner: "first".to_owned(),
        warm: Vec::new(),
        start: TemplateStart::default(),
        build: None,
    };
    let spec = SandboxSpec { tree: Tree::Template(Box::new(tree)), machine: true, ..SandboxSpec::default() };
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    let sandbox = engine.create(CreateRequest::run(&spec)).await.map_err(|error| failure(&error))?;
    for (user, program) in programs {
        let code = [IN_MACHINE, END_OF_USER, program].concat();
        let argv = ["python3", "-c", &code].map(|word| word.as_bytes().to_vec().into());
        let request = v1::StartRequest { argv: argv.into(), user: (*user).to_owned(), ..Default::default() };
        read_all(sandbox.guest().start(request).await?).await?.lines().for_each(print_line);
    }
    stop(sandbox).await
}

/// Creates a sandbox on the machine's tree, with the layer at its place.
async fn sandbox(layer: Option<&TreeLayer>, owner: &str, is_built: bool) -> Result<Sandbox, NotRun> {
    let tree = TemplateTree {
        base: TreeBase::Host,
        layers: layer.cloned().into_iter().collect(),
        owner: owner.to_owned(),
        warm: Vec::new(),
        start: TemplateStart::default(),
        build: is_built.then(|| TreeBuild { shown: Vec::new() }),
    };
    let spec = SandboxSpec { tree: Tree::Template(Box::new(tree)), ..SandboxSpec::default() };
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    engine.create(CreateRequest::run(&spec)).await.map_err(|error| failure(&error))
}

async fn start(sandbox: &Sandbox, code: &str) -> Result<Execution, NotRun> {
    let argv = ["python3", "-c", code].map(|word| word.as_bytes().to_vec().into());
    let request = v1::StartRequest { argv: argv.into(), ..Default::default() };
    Ok(sandbox.guest().start(request).await?)
}

/// Returns its output until its end, which must be successful.
async fn read_all(mut execution: Execution) -> Result<String, NotRun> {
    let mut text = Vec::new();
    let mut code = None;
    while let Some(event) = execution.next().await? {
        match event {
            ProcessEvent::Output { data, .. } => text.extend_from_slice(&data),
            ProcessEvent::Exited(exited) => code = Some(exited.code),
            ProcessEvent::Started { .. } => {}
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    match code {
        Some(0) => Ok(text),
        _ => Err(NotRun::Fail(format!("the attack ended with {code:?}: {text}"))),
    }
}

/// Returns its first line of output.
async fn first_line(execution: &mut Execution) -> Result<String, NotRun> {
    let mut text = Vec::new();
    while let Some(event) = execution.next().await? {
        if let ProcessEvent::Output { data, .. } = event {
            text.extend_from_slice(&data);
            if text.contains(&b'\n') {
                return Ok(String::from_utf8_lossy(&text).trim().to_owned());
            }
        }
    }
    Err(NotRun::Fail(format!("it ended early: {}", String::from_utf8_lossy(&text))))
}

async fn stop(sandbox: Sandbox) -> AttackResult {
    sandbox.stop().await.map(drop).map_err(|error| failure(&error))
}

async fn in_layer(code: &str) -> AttackResult {
    let dir = tempfile::tempdir()?;
    let layer = make(dir.path())?;
    let sandbox = sandbox(Some(&layer), "first", false).await?;
    print_line(&read_all(start(&sandbox, code).await?).await?);
    stop(sandbox).await
}

/// Creates a sandbox on the machine's tree, with a volume at a layer's place.
async fn with_volume(volume: &VolumeMount) -> Result<Sandbox, NotRun> {
    let spec = SandboxSpec { volumes: vec![volume.clone()], ..SandboxSpec::default() };
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    engine.create(CreateRequest::run(&spec)).await.map_err(|error| failure(&error))
}

async fn in_volume(code: &str) -> AttackResult {
    let dir = tempfile::tempdir()?;
    let sandbox = with_volume(&make_volume(dir.path())?).await?;
    print_line(&read_all(start(&sandbox, code).await?).await?);
    stop(sandbox).await
}

const WRITE: &str = r#"
import os
with open("/opt/template/written", "w") as file:
    file.write("by the first")
    file.flush()
    os.fsync(file.fileno())
print(os.stat("/opt/template").st_dev)
"#;

const READ: &str = r#"
import os
print(os.stat("/opt/template").st_dev, os.path.exists("/opt/template/written"))
"#;

/// Mounts one volume in two sandboxes. The second exists before the first writes.
async fn volume() -> AttackResult {
    let dir = tempfile::tempdir()?;
    let volume = make_volume(dir.path())?;
    let (first, second) = (with_volume(&volume).await?, with_volume(&volume).await?);
    // A separate file system caches what it has looked up.
    read_all(start(&second, READ).await?).await?;
    let written = read_all(start(&first, WRITE).await?).await?;
    let read = read_all(start(&second, READ).await?).await?;
    let (device, is_there) = read.trim().split_once(' ').unwrap_or_default();
    print_line(&format!("file systems: {}", if device == written.trim() { "one" } else { "two" }));
    print_line(&format!("what the first wrote: {}", if is_there == "True" { "seen" } else { "lost" }));
    stop(first).await?;
    stop(second).await
}

/// Program that reads a page, and keeps it in memory for as long as it lives.
const VICTIM: &str = r#"
import ctypes, mmap, os, sys, time
fd = os.open("/opt/template/data", os.O_RDONLY)
size = os.fstat(fd).st_size
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
at = libc.mmap(None, size, 1, 1, fd, 0)
# Private memory that is locked is no longer the file's, so the mapping is a shared one.
if libc.mlock(at + (2 << 20), mmap.PAGESIZE) != 0: sys.exit(os.strerror(ctypes.get_errno()))
stat = os.fstat(fd)
print(stat.st_dev, stat.st_ino, flush=True)
while True: time.sleep(60)
"#;

/// Program that prints which file it sees, and whether the page was in memory: then touching it causes no major fault.
const OBSERVER: &str = r#"
import mmap, os, resource
fd = os.open("/opt/template/data", os.O_RDONLY)
data = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
data.madvise(mmap.MADV_RANDOM)
def faults(at):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    data[at]
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
# Once elsewhere, so that nothing else of this is new.
faults(0)
faults(1 << 20)
stat = os.fstat(fd)
seen = faults(2 << 20) == 0
print(stat.st_dev, stat.st_ino, "seen" if seen else "unseen")
"#;

async fn superblock() -> AttackResult {
    let dir = tempfile::tempdir()?;
    let layer = make(dir.path())?;
    let victim = sandbox(Some(&layer), "first", false).await?;
    let mut reading = start(&victim, VICTIM).await?;
    let victims = first_line(&mut reading).await?;
    let same = |line: &str| if line.starts_with(&format!("{victims} ")) { "same" } else { "other" };
    let attacker = sandbox(Some(&layer), "second", false).await?;
    let line = read_all(start(&attacker, OBSERVER).await?).await?;
    print_line(&format!("of two tenants: {}", same(&line)));
    print_line(&format!("what a neighbour has read: {}", line.split_whitespace().last().unwrap_or_default()));
    let sibling = sandbox(Some(&layer), "first", false).await?;
    let line = read_all(start(&sibling, OBSERVER).await?).await?;
    print_line(&format!("of one tenant: {}", same(&line)));
    // Pages read by the same tenant must be in the page cache, or the result above shows nothing.
    if !line.trim_end().ends_with(" seen") {
        return Err(NotRun::Fail(format!("a sibling does not see what was read: {line}")));
    }
    drop(reading);
    for sandbox in [sibling, attacker, victim] {
        stop(sandbox).await?;
    }
    Ok(())
}

/// Attempts of a build step.
const BUILD: &str = r#"
import ctypes, errno, os, platform, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"
def name(number): return errno.errorcode.get(number, str(number))
def call(number, *arguments):
    ctypes.set_errno(0)
    words = [ctypes.c_long(one) for one in arguments]
    return "ok" if libc.syscall(ctypes.c_long(number), *words) != -1 else name(ctypes.get_errno())
def tried(what):
    try:
        return what() or "ok"
    except OSError as error:
        return name(error.errno)
def in_child(what):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, what().encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    return os.read(reader, 100).decode()
def chowned():
    open("/opt/template/mine", "w").close()
    os.chown("/opt/template/mine", 5, 5)
    return "pretended" if os.stat("/opt/template/mine").st_uid == os.getuid() else "ok"
def upper():
    with socket.socket() as one: one.setsockopt(socket.IPPROTO_TCP, 31, b"no-such-protocol\0")
def set_user():
    open("/opt/template/set", "w").close()
    os.chmod("/opt/template/set", 0o4755)
    return "ok" if os.stat("/opt/template/set").st_mode & stat.S_ISUID else "not set"
print("unshare user:", in_child(lambda: call(272 if X86 else 97, 0x10000000)))
print("clone3:", call(435, 0, 0))
print("personality:", in_child(lambda: call(135 if X86 else 92, 0x0040000)))
print("TCP_ULP:", tried(upper))
print("chown:", tried(chowned))
print("set-user-ID:", tried(set_user))
"#;

async fn build() -> AttackResult {
    let sandbox = sandbox(None, "first", true).await?;
    print_line(&read_all(start(&sandbox, BUILD).await?).await?);
    stop(sandbox).await
}

/// Program whose thread waits for a later execution, and then ends that one in its interpreter's name.
const FORGER: &str = r#"
import json, os, stat, threading
begun, sent = threading.Event(), threading.Event()
def frame(message):
    data = json.dumps(message).encode()
    data = len(data).to_bytes(4, "big") + data
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, data)
        except OSError: pass
def forge():
    begun.wait()
    for number in range(64):
        frame({"op": "result", "id": number, "main": True, "data": {"text/plain": "forged"}})
        frame({"op": "done", "id": number, "status": "ok"})
    sent.set()
threading.Thread(target=forge, daemon=True).start()
"#;

async fn executions() -> AttackResult {
    let sandbox = sandbox(None, "first", false).await?;
    print_line(&format!("own execution: {}", execute(&sandbox, FORGER).await?));
    let later = "begun.set(); sent.wait(); raise ValueError('true')";
    print_line(&format!("later execution: {}", execute(&sandbox, later).await?));
    stop(sandbox).await
}

/// Program whose child makes calls in the name of the kernel, on a copy of its socket; the kernel reads the answers.
const FORGED_CALLS: &str = r#"
import belljar, json, os
kernel = belljar.tools._call.__self__
copy = os.dup(kernel.wire.fileno())
for name in ["other", "f", "f", "f"]:
    child = os.fork()
    if child == 0:
        data = json.dumps({"op": "tool", "id": kernel.current, "call": 77, "name": name, "arguments": {}}).encode()
        os.write(copy, len(data).to_bytes(4, "big") + data)
        os._exit(0)
    os.waitpid(child, 0)
    kernel.wire.receive()
"#;

/// Program that leaves a process behind, which makes calls once another execution has begun.
const LATER_CALLS: &str = r#"
import belljar, json, os, time
copy = os.dup(belljar.tools._call.__self__.wire.fileno())
if os.fork() == 0:
    while not os.path.exists("begun"): time.sleep(0.01)
    for number in range(64):
        data = json.dumps({"op": "tool", "id": number, "call": 1, "name": "f", "arguments": {}}).encode()
        os.write(copy, len(data).to_bytes(4, "big") + data)
    open("sent", "w").close()
    os._exit(0)
"#;

const LATER: &str = r#"
open("begun", "w").close()
while not os.path.exists("sent"): time.sleep(0.01)
"#;

async fn calls() -> AttackResult {
    let sandbox = sandbox(None, "first", false).await?;
    let (ended, called) = execute_calling(&sandbox, FORGED_CALLS).await?;
    let was = |condition: bool| if condition { "passed on" } else { "refused" };
    let number = called.iter().filter(|name| *name == "f").count();
    let most = usize::try_from(MAX_CALLS).unwrap_or(usize::MAX);
    print_line(&format!("of a function that was not allowed: {}", was(called.contains(&"other".to_owned()))));
    print_line(&format!("within the budget: {}", was(ended == "ok" && number >= most)));
    print_line(&format!("beyond the budget: {}", was(number > most)));
    stop(sandbox).await
}

async fn later_calls() -> AttackResult {
    let sandbox = sandbox(None, "first", false).await?;
    execute_calling(&sandbox, LATER_CALLS).await?;
    let (_, called) = execute_calling(&sandbox, LATER).await?;
    let was = if called.is_empty() { "refused" } else { "passed on" };
    print_line(&format!("by a process that was left behind: {was}"));
    stop(sandbox).await
}

/// Number of calls that code may make here.
const MAX_CALLS: u32 = 2;

/// Runs code in Python's context, and returns how it ended.
async fn execute(sandbox: &Sandbox, code: &str) -> Result<String, NotRun> {
    Ok(execute_calling(sandbox, code).await?.0)
}

/// Runs code that may call the function `f` twice, and returns how it ended, and what it has called.
async fn execute_calling(sandbox: &Sandbox, code: &str) -> Result<(String, Vec<String>), NotRun> {
    let request = v1::ExecuteCodeRequest {
        code: code.as_bytes().to_vec().into(),
        functions: vec!["f".to_owned()],
        max_tool_calls: MAX_CALLS,
        ..Default::default()
    };
    let (mut called, mut place) = (Vec::new(), v1::AnswerRequest::default());
    let mut execution = sandbox.guest().execute_code(request).await?;
    let (mut shown, mut raised, mut status) = (String::new(), String::new(), None);
    loop {
        let event = match execution.next().await {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(error) if error.to_string().contains("IPython") => {
                return Err(NotRun::Skip(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        };
        match event {
            CodeEvent::Result(result) => {
                let forms = result.data.iter().map(|form| String::from_utf8_lossy(&form.data).into_owned());
                shown.push_str(&format!(": {}", forms.collect::<Vec<_>>().join(" ")));
            }
            CodeEvent::Error(error) => raised = format!(" {}: {}", error.name, error.value),
            CodeEvent::Ended(ended) => status = ended.status.as_known(),
            CodeEvent::Started(started) => {
                place.execution = started.execution;
                place.context = "python".to_owned();
            }
            CodeEvent::ToolCalled(call) => {
                let answer = v1::AnswerRequest { call: call.call, value: "7".into(), ..place.clone() };
                called.push(call.name);
                // Code that has not made the call does not wait for the answer, and may have ended.
                let _ = sandbox.guest().answer_code(answer).await;
            }
            _ => {}
        }
    }
    let ended = match status {
        Some(v1::CodeStatus::CODE_STATUS_OK) => format!("ok{shown}"),
        Some(v1::CodeStatus::CODE_STATUS_ERROR) => format!("error{raised}{shown}"),
        other => format!("{other:?}{raised}{shown}"),
    };
    Ok((ended, called))
}
