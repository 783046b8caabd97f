//! The isolation report matches what code sees, and sandboxes do not see each other.

use belljar_model::{LayerState, SandboxSpec};

use super::case::{Capability, Case, Checked, Stop, cases, ensure, equal};
use super::context::Context;
use super::program::{py, python, read_until, sh};
use crate::engine::{CreateRequest, Sandbox};
use crate::engine_error::EngineError;

pub(super) const CASES: &[Case] = cases![
    report_names_every_layer [],
    report_matches_what_code_sees [],
    code_is_confined [Confined],
    code_has_no_network [OwnNetwork],
    code_cannot_read_the_host [HiddenHost],
    sandboxes_do_not_see_each_others_processes [OwnPids],
    sandboxes_do_not_see_each_others_files [HiddenHost],
    sandboxes_do_not_reach_each_others_sockets [OwnNetwork],
    eight_concurrent_sandboxes_work [],
    wrong_engine_is_refused [],
];

/// The layers in every report, in force or not.
const LAYERS: [&str; 11] = [
    "namespaces",
    "user",
    "tree",
    "network",
    "seccomp",
    "landlock",
    "capabilities",
    "memory",
    "pids",
    "cpu",
    "disk",
];

fn state(sandbox: &Sandbox, name: &str) -> Checked<LayerState> {
    let layer = sandbox.isolation.layers.iter().find(|layer| layer.name == name);
    layer.map(|layer| layer.state).ok_or_else(|| Stop::Failed(format!("the report lacks the layer {name}")))
}

async fn report_names_every_layer(context: &Context) -> Checked {
    let spec = context.spec();
    let sandbox = context.sandbox().await?;
    equal!(sandbox.isolation.engine, spec.engine);
    for name in LAYERS {
        state(&sandbox, name)?;
    }
    for layer in &sandbox.isolation.layers {
        ensure!(!layer.detail.is_empty(), "the layer {} has no detail", layer.name);
    }
    for (name, capability) in [
        ("memory", Capability::EnforcedMemory),
        ("pids", Capability::EnforcedPids),
        ("cpu", Capability::EnforcedCpu),
        ("disk", Capability::DiskQuota),
        ("seccomp", Capability::Confined),
    ] {
        equal!((name, state(&sandbox, name)? == LayerState::InForce), (name, context.has(capability)));
    }
    context.stop(sandbox).await
}

/// Prints facts as seen from inside, one per line.
const PROBE: &str = "
import ctypes, os
libc = ctypes.CDLL(None)
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
for name in ('Seccomp', 'CapEff', 'CapPrm', 'CapInh', 'CapBnd'): print(name, status.get(name, '-'))
# PR_GET_NO_NEW_PRIVS and PR_CAP_AMBIENT_IS_SET: not every kernel has their lines.
print('NoNewPrivs', libc.prctl(39, 0, 0, 0, 0))
print('CapAmb', '%016x' % sum(1 << number for number in range(64) if libc.prctl(47, 1, number, 0, 0) == 1))
try: print('interfaces', *sorted(os.listdir('/sys/class/net')))
except OSError:
    try: print('interfaces', *sorted(line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]))
    except OSError: print('interfaces')
print('parent', os.getppid())
print('uid', os.getuid() == os.geteuid() == os.getresuid()[2], os.getuid() != 0)
print('groups', *os.getgroups())
";

async fn probe(sandbox: &Sandbox) -> Checked<std::collections::BTreeMap<String, String>> {
    let text = py(sandbox, PROBE).await?.text();
    let fact = |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(text.lines().map(|line| fact(line).unwrap_or_else(|| (line.to_owned(), String::new()))).collect())
}

async fn report_matches_what_code_sees(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let facts = probe(&sandbox).await?;
    let fact = |name: &str| facts.get(name).map(String::as_str).unwrap_or_default();
    equal!(state(&sandbox, "seccomp")? == LayerState::InForce, fact("Seccomp") == "2");
    let bare =
        ["CapEff", "CapPrm", "CapInh", "CapAmb"].iter().all(|name| fact(name).trim_matches('0').is_empty());
    if state(&sandbox, "capabilities")? == LayerState::InForce {
        ensure!(bare, "capabilities are reported as dropped but are not: {facts:?}");
        equal!(fact("NoNewPrivs"), "1");
    }
    if state(&sandbox, "namespaces")? == LayerState::InForce {
        equal!((fact("interfaces"), fact("parent")), ("lo", "1"));
    }
    if state(&sandbox, "user")? == LayerState::InForce {
        equal!(fact("uid"), "True True");
    }
    context.stop(sandbox).await
}

async fn code_is_confined(context: &Context) -> Checked {
    let sandbox = context.sandbox().await?;
    let facts = probe(&sandbox).await?;
    let fact = |name: &str| facts.get(name).map(String::as_str).unwrap_or_default();
    equal!((fact("NoNewPrivs"), fact("Seccomp"), fact("uid")), ("1", "2", "True True"));
    for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        equal!((name, fact(name)), (name, "0000000000000000"));
    }
    // Applies to every thread of every process.
    let code = "
import ctypes, threading
def look():
    for line in open('/proc/thread-self/status'):
        if line.startswith(('Seccomp:', 'CapEff')): print(line.split()[1], flush=True)
    print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0), flush=True)
thread = threading.Thread(target=look)
thread.start()
thread.join()
";
    let text = py(&sandbox, code).await?.text();
    equal!(text.lines().collect::<Vec<_>>(), ["0000000000000000", "2", "1"]);
    context.stop(sandbox).await
}

async fn code_has_no_network(context: &Context) -> Checked {
    // A server on the host that code must not reach.
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let sandbox = context.sandbox().await?;
    let code = format!(
        "
import socket
for family, address in ((socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_INET, ('1.1.1.1', 443)),
                        (socket.AF_INET6, ('::1', {port})), (socket.AF_INET6, ('::ffff:127.0.0.1', {port})),
                        (socket.AF_INET6, ('2606:4700:4700::1111', 443)), (socket.AF_INET6, ('::ffff:1.1.1.1', 443))):
    try:
        with socket.socket(family) as one:
            one.settimeout(3)
            one.connect(address)
            print('reached', address)
    except OSError as error: pass
try: print('resolved', socket.getaddrinfo('example.org', 443))
except OSError: pass
"
    );
    equal!(py(&sandbox, &code).await?.text(), "");
    // Loopback works among the sandbox's own programs.
    let code = "
import socket
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b'hello')
print(client.recv(5).decode())
";
    equal!(py(&sandbox, code).await?.text(), "hello");
    let code = "
import socket
server = socket.create_server(('::1', 0), family=socket.AF_INET6)
client = socket.create_connection(('::1', server.getsockname()[1]))
server.accept()[0].sendall(b'hello')
dual = socket.create_server(('::', 0), family=socket.AF_INET6, dualstack_ipv6=True)
socket.create_connection(('127.0.0.1', dual.getsockname()[1]))
print(client.recv(5).decode(), socket.getaddrinfo('ip6-localhost', 80)[0][4][0])
";
    equal!(py(&sandbox, code).await?.text(), "hello ::1");
    // Names that programs look up without a network.
    let code = "
import socket
print(socket.getaddrinfo('localhost', 'http', socket.AF_INET, socket.SOCK_STREAM)[0][4])
print(socket.getservbyname('https'), socket.getprotobyname('tcp'))
";
    equal!(py(&sandbox, code).await?.text(), "('127.0.0.1', 80)\n443 6");
    context.stop(sandbox).await
}

async fn code_cannot_read_the_host(context: &Context) -> Checked {
    let canary = context.scratch().join("canary");
    std::fs::write(&canary, "secret of the host")?;
    let sandbox = context.sandbox().await?;
    let paths = [canary.display().to_string(), "/etc/shadow".to_owned(), "/proc/1/environ".to_owned()];
    let line = format!(
        "cat {} 2>/dev/null; ls {} 2>/dev/null; ls /var/log 2>/dev/null",
        paths.join(" "),
        context.scratch().display()
    );
    equal!(sh(&sandbox, &line).await?.text(), "");
    let line = format!("echo x 2>/dev/null > {}", canary.display());
    sh(&sandbox, &format!("({line}) 2>/dev/null")).await?;
    equal!(std::fs::read_to_string(&canary)?, "secret of the host");
    context.stop(sandbox).await
}

async fn two_sandboxes(context: &Context) -> Checked<(Sandbox, Sandbox)> {
    let one = context.sandbox().await?;
    let other = context.sandbox().await?;
    ensure!(one.id != other.id, "two sandboxes have the id {}", one.id);
    Ok((one, other))
}

async fn sandboxes_do_not_see_each_others_processes(context: &Context) -> Checked {
    let (one, other) = two_sandboxes(context).await?;
    let mark = "sleep 98765";
    let mut marked = one.guest().start(super::program::shell(&format!("echo on; exec {mark}"))).await?;
    read_until(&mut marked, "on").await?;
    let code = "
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: print(pid, repr(open(f'/proc/{pid}/cmdline').read().replace('\\0', ' ')[:40]))
    except OSError: print(pid)
";
    let seen = py(&other, code).await?.text();
    ensure!(!seen.contains(mark), "a neighbour's process is visible: {seen}");
    // Only the guest, if visible at all, and the program itself.
    ensure!(seen.lines().count() <= 2, "more than the guest and the program is visible: {seen}");
    // No other process can be signalled, but the guest through its threads' ids, which ignores signals. If it is hidden, 2 is one.
    let code = "
import os
try: guest = set(os.listdir('/proc/1/task'))
except OSError: guest = {'2'}
for pid in range(2, 70000):
    if pid == os.getpid() or str(pid) in guest: continue
    try: os.kill(pid, 9); print('reached', pid)
    except OSError: pass
";
    equal!(py(&other, code).await?.text(), "");
    equal!(one.guest().signal(marked.id, 15, false).await?, 1);
    context.stop(one).await?;
    context.stop(other).await
}

async fn sandboxes_do_not_see_each_others_files(context: &Context) -> Checked {
    let (one, other) = two_sandboxes(context).await?;
    sh(&one, "echo mine > secret; chmod 777 . secret").await?;
    sh(&one, "for dir in /tmp /dev/shm /var/tmp; do echo mine > $dir/secret; chmod 666 $dir/secret; done 2>/dev/null").await?;
    let line = format!(
        "cat {}/secret /tmp/secret /dev/shm/secret /var/tmp/secret /proc/*/root/tmp/secret /tmp/belljar-*/secret 2>/dev/null",
        if one.home == other.home { "/nowhere".into() } else { one.home.display().to_string() }
    );
    equal!(sh(&other, &line).await?.text(), "");
    let own = sh(&other, "ls -A").await?;
    equal!(own.text(), "");
    context.stop(one).await?;
    context.stop(other).await
}

async fn sandboxes_do_not_reach_each_others_sockets(context: &Context) -> Checked {
    let (one, other) = two_sandboxes(context).await?;
    let code = "
import socket, time
abstract = socket.socket(socket.AF_UNIX)
abstract.bind('\\0conformance')
abstract.listen()
tcp = socket.create_server(('127.0.0.1', 45678))
for listener in (abstract, tcp):
    with socket.socket(listener.family) as client: client.connect(listener.getsockname())
print('ready', flush=True)
time.sleep(1000)
";
    let mut server = one.guest().start(python(code)).await?;
    read_until(&mut server, "ready").await?;
    let code = "
import socket
for family, address in ((socket.AF_UNIX, '\\0conformance'), (socket.AF_INET, ('127.0.0.1', 45678))):
    try:
        with socket.socket(family) as client:
            client.connect(address)
            print('reached', address)
    except OSError: pass
";
    equal!(py(&other, code).await?.text(), "");
    context.stop(one).await?;
    context.stop(other).await
}

async fn eight_concurrent_sandboxes_work(context: &Context) -> Checked {
    let spec: SandboxSpec = context.spec();
    let whole = (0..8).map(|number| {
        let spec = &spec;
        async move {
            let sandbox = context.sandbox_with(spec).await?;
            let line = format!("echo {number} > file; sleep 0.2; cat file");
            equal!(sh(&sandbox, &line).await?.expect_success()?.text(), number.to_string());
            context.stop(sandbox).await
        }
    });
    for result in futures::future::join_all(whole).await {
        result?;
    }
    Ok(())
}

async fn wrong_engine_is_refused(context: &Context) -> Checked {
    let mut spec = context.spec();
    spec.engine = belljar_model::EngineName::known("of-another-planet");
    let result = context.engine().create(CreateRequest::run(&spec)).await;
    ensure!(matches!(result, Err(EngineError::WrongEngine { .. })), "got {result:?}");
    Ok(())
}
