//! Isolation of contexts in different sandboxes: no planted code, no residue and no repeated random number (X05, X08, X12).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::client::Client;
use crate::contexts::{Fixture, code, printed};
use crate::run;

const IPYTHON: &str = "/usr/bin/python3 -c 'import IPython'";

/// Returns the languages whose contexts work in these sandboxes.
async fn languages(fixture: &Fixture, case: &str) -> Vec<&'static str> {
    let mut there = vec!["bash"];
    if !fixture.lacks(&format!("{case} in contexts of python"), IPYTHON).await {
        there.push("python");
    }
    let node = "test \"$(node -p 'parseInt(process.versions.node) >= 18')\" = true";
    if !fixture.lacks(&format!("{case} in contexts of javascript"), node).await {
        there.push("javascript");
    }
    there
}

/// Plants code in every file that an interpreter or its packages might read at the next start.
const PLANT_PYTHON: &str = r#"
import os, site, sys
def plant(path, text):
    global planted
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file: file.write(text)
        planted += 1
    except OSError: pass
planted = 0
home = os.path.expanduser("~")
shout = "import os; os.system('touch /tmp/poison-51c3-ran'); print('poison-51c3')\n"
for place in {*sys.path, *site.getsitepackages(), site.getusersitepackages(), "/opt/template/lib/python3/site-packages", "/usr/local/lib/python3/dist-packages"}:
    for name in ["sitecustomize.py", "usercustomize.py", "poison_51c3.py", "numpy.py", "IPython.py"]:
        plant(os.path.join(place or home, name), shout)
    plant(os.path.join(place or home, "poison-51c3.pth"), shout)
for name in [".ipython/profile_default/startup/00-poison-51c3.py", ".ipython/profile_default/ipython_config.py", ".pythonrc.py"]:
    plant(os.path.join(home, name), shout)
for name in [".cache/pip/poison-51c3", ".npm/_cacache/poison-51c3", ".cache/matplotlib/poison-51c3", ".config/pip/pip.conf", ".npmrc"]:
    plant(os.path.join(home, name), "poison-51c3")
for place in ["/var/cache/apt/archives", "/usr/share", "/etc", "/tmp", "/var/tmp", "/dev/shm", "/run"]:
    plant(os.path.join(place, "poison-51c3"), "poison-51c3")
print(planted)
"#;

const PLANT_BASH: &str = r"
shout='touch /tmp/poison-51c3-ran; echo poison-51c3'
for file in .bashrc .bash_profile .profile .bash_login .inputrc .bash_logout; do echo $shout > ~/$file; done
export BASH_ENV=$HOME/.bashrc ENV=$HOME/.bashrc PROMPT_COMMAND=$shout
ls() { echo poison-51c3; }; export -f ls; alias cat='echo poison-51c3'
";

const PLANT_JAVASCRIPT: &str = r#"
const fs = require('fs'), os = require('os'), path = require('path');
const shout = "require('fs').writeFileSync('/tmp/poison-51c3-ran', ''); console.log('poison-51c3');";
for (const place of ['.node_modules', '.node_libraries', 'node_modules', '.npm/_npx'])
  for (const name of ['fs', 'poison-51c3', 'esbuild']) {
    const dir = path.join(os.homedir(), place, name);
    try { fs.mkdirSync(dir, { recursive: true }); fs.writeFileSync(path.join(dir, 'index.js'), shout); } catch {}
  }
process.env.NODE_OPTIONS = '--require ' + path.join(os.homedir(), 'node_modules/poison-51c3');
Object.prototype.poison = 'poison-51c3'; Array.prototype.map = () => ['poison-51c3'];
"#;

/// Prints what a context sees, in each language.
const SHOW: [(&str, &str); 3] = [
    (
        "python",
        "import json, os, sys\ntry:\n    import numpy\nexcept ImportError: pass\nprint(os.listdir('/tmp'), sorted(os.environ.items()), sorted(globals()), [str(getattr(sys.modules.get(name), '__file__', '')) for name in ('numpy', 'sitecustomize', 'usercustomize')])",
    ),
    ("bash", "ls -a ~ /tmp; cat /etc/hostname; declare -F; alias; env"),
    (
        "javascript",
        "console.log(require('fs').readdirSync('/tmp'), process.env, ({}).poison, [1].map(one => one + 1), Object.keys(globalThis))",
    ),
];

#[test]
fn x05_planted_code_reaches_no_other_sandbox() {
    if crate::skipped("X05") {
        return;
    }
    run(async {
        let fixture = Fixture::new(&["sandboxes.pool=2"]).await;
        let there = languages(&fixture, "X05").await;
        for (language, text) in
            [("python", PLANT_PYTHON), ("bash", PLANT_BASH), ("javascript", PLANT_JAVASCRIPT)]
        {
            if !there.contains(&language) {
                continue;
            }
            let planted = printed(&fixture.client, &fixture.id, ("language", language), text).await;
            if language == "python" {
                let planted: u32 = planted.trim().parse().expect("a number");
                assert!(planted >= 8, "it could plant {planted} files only");
            }
        }
        // The planted files exist in their own sandbox.
        let found = "find / -name '*poison*51c3*' 2>/dev/null; true";
        assert_ne!(fixture.client.sh(&fixture.id, found).await, "");
        let other = fixture.admin.with_key(&fixture.admin.new_key("user", "second").await.1);
        for (client, whose) in [(&other, "another tenant"), (&fixture.client, "the same tenant")] {
            let id = client.sandbox(&json!({ "timeout": 3600 })).await;
            for (language, text) in SHOW {
                if there.contains(&language) {
                    let shown = code(client, &id, &json!({ "code": text, "language": language })).await;
                    assert_eq!((&shown["status"], &shown["state"]), (&json!("ok"), &json!("preserved")));
                    assert!(!shown.to_string().contains("poison"), "{whose}, {language}: {shown}");
                }
            }
            assert_eq!(client.sh(&id, found).await, "", "{whose}");
        }
        fixture.shut_down().await;
    });
}

/// Prints everything that could distinguish a context, except times and the sandbox's own names.
const POSTURE: &str = r#"
def posture():
    import ctypes, os, resource, signal, stat, sys, threading
    lines = []
    def line(*words): lines.append(" ".join(str(word) for word in words))
    for name, value in sorted(os.environ.items()):
        if name != "BELLJAR_SANDBOX": line("environment", name, value)
    for top in ["/home", "/tmp", "/dev", "/run", "/var/tmp"]:
        for directory, names, files in os.walk(top):
            names.sort()
            for name in sorted(names + files):
                path = os.path.join(directory, name)
                try: status = os.lstat(path)
                except OSError as error:
                    line("file", path, error.errno)
                    continue
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                line("file", path, oct(status.st_mode), status.st_uid, status.st_gid, size)
    names = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: names.append(open(f"/proc/{pid}/comm").read().strip())
        except OSError: pass
    line("processes", sorted(names))
    for fd in sorted(os.listdir("/proc/self/fd"), key=int):
        try: line("descriptor", fd, os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
        except OSError: pass
    for kind in ["tcp", "udp", "unix", "raw"]:
        try: line("sockets", kind, len(open(f"/proc/net/{kind}").readlines()))
        except OSError as error: line("sockets", kind, error.errno)
    for kind in ["shm", "sem", "msg"]:
        try: line("sysv", kind, open(f"/proc/sysvipc/{kind}").read())
        except OSError as error: line("sysv", kind, error.errno)
    libc = ctypes.CDLL(None, use_errno=True)
    for ring in (-1, -2, -3, -4, -5): line("keyring", ring, libc.syscall(250, 6, ring, 0, 0), ctypes.get_errno())
    for limit in range(16): line("limit", limit, resource.getrlimit(limit))
    line("mask", os.umask(0o22), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)))
    line("signals", [signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN) for number in (1, 2, 10, 15)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
    for entry in open("/proc/self/status"):
        if entry.startswith(("SigBlk", "SigIgn", "SigCgt", "Cap", "Seccomp:", "NoNewPrivs", "Groups", "Uid", "Gid", "Threads")): line(entry.strip())
    line("directory", os.getcwd(), "path", sys.path, "arguments", sys.argv, "threads", threading.active_count())
    line("modules", sorted(sys.modules))
    line("names", sorted(globals()))
    line("history", [str(one) for one in globals().get("In", [])][:-1])
    return "\n".join(lines)
print(posture())
"#;

/// Leaves as much residue as possible.
const LEAVE: [(&str, &str); 3] = [
    (
        "python",
        r#"
import ctypes, mmap, os, random, socket, subprocess, sys, threading, time, builtins, resource, signal
left = "residue-77aa"
os.environ["RESIDUE"] = left
for place in [os.path.expanduser("~"), "/tmp", "/dev/shm", "/var/tmp"]:
    try: open(os.path.join(place, left), "w").write(left)
    except OSError: pass
listener = socket.create_server(("127.0.0.1", 0))
child = subprocess.Popen(["sleep", "60000"], start_new_session=True)
libc = ctypes.CDLL(None)
libc.shmget(0x77aa, 4096, 0o1666)
libc.semget(0x77aa, 1, 0o1666)
libc.syscall(248, b"user", b"residue", b"x", 1, -3)
os.umask(0o777); os.nice(5); resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
signal.signal(signal.SIGUSR1, lambda *_: None)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
builtins.residue = left; sys.path.insert(0, "/tmp"); sys.modules["residue"] = sys; random.seed(1)
threading.Thread(target=time.sleep, args=(60000,), daemon=True).start()
print("left")
"#,
    ),
    (
        "bash",
        "echo residue-77aa > ~/residue-bash; export RESIDUE=1; cd /tmp; umask 777; ulimit -n 50; sleep 60000 & echo left",
    ),
    (
        "javascript",
        "globalThis.residue = 1; process.chdir('/tmp'); require('net').createServer().listen(0, '127.0.0.1'); require('fs').writeFileSync(require('os').homedir() + '/residue-node', 'x'); console.log('left')",
    ),
];

#[test]
fn x08_pooled_sandbox_shows_no_residue() {
    if crate::skipped("X08") {
        return;
    }
    run(async {
        let fixture = Fixture::new(&["sandboxes.pool=2"]).await;
        let there = languages(&fixture, "X08").await;
        if there.contains(&"python") {
            let client = &fixture.client;
            let made = || json!({ "timeout": 3600 });
            let shown = async |id: &str| {
                let text = printed(client, id, ("language", "python"), POSTURE).await;
                let contexts = client.get(&format!("/v1/sandboxes/{id}/contexts")).await.json();
                (contexts["contexts"][0]["start"].to_string(), text)
            };
            // The first interpreters of a tenant are started cold, until there is one to clone.
            let mut expected = shown(&client.sandbox(&made()).await).await;
            for _ in 0..4 {
                let before = expected.0;
                expected = shown(&client.sandbox(&made()).await).await;
                if expected.0 == before {
                    break;
                }
            }
            assert!(expected.1.lines().count() > 60, "{}", expected.1);
            let used = client.sandbox(&made()).await;
            for (language, text) in LEAVE {
                if there.contains(&language) {
                    let left = printed(client, &used, ("language", language), text).await;
                    assert_eq!(left, "left\n", "{language}");
                }
            }
            assert_ne!(shown(&used).await.1, expected.1, "what is left shows");
            // While the previous sandbox exists, and after it is gone.
            let beside = client.sandbox(&made()).await;
            assert_same(&expected, &shown(&beside).await);
            assert_eq!(client.call("DELETE", &format!("/v1/sandboxes/{used}")).await.status, 204);
            let after = client.sandbox(&made()).await;
            assert_same(&expected, &shown(&after).await);
            // A second context in the same sandbox has its own variables, too.
            let second = context(client, &after, "python").await;
            let names = "print('posture' in globals(), len(globals()['In']))";
            assert_eq!(printed(client, &after, ("context", &second), names).await, "False 2\n");
        }
        fixture.shut_down().await;
    });
}

/// Lines that differ between a cold and a pre-warmed interpreter.
const START_DEPENDENT: [&str; 7] =
    ["descriptor", "modules", "names", "processes", "sockets unix", "SigCgt", "Threads"];

/// Compares the postures of two contexts, each with the kind of start of its interpreter.
#[track_caller]
fn assert_same(expected: &(String, String), shown: &(String, String)) {
    let alike = expected.0 == shown.0;
    let kept = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::to_owned);
        lines.filter(|line| alike || !START_DEPENDENT.iter().any(|start| line.starts_with(start))).collect()
    };
    let (one, other) = (kept(&expected.1), kept(&shown.1));
    let difference: Vec<_> = one.iter().filter(|line| !other.contains(line)).collect();
    let more: Vec<_> = other.iter().filter(|line| !one.contains(line)).collect();
    assert!(one == other, "missing {difference:#?}, and new {more:#?}");
}

async fn context(client: &Client, id: &str, language: &str) -> String {
    let made = client.post(&format!("/v1/sandboxes/{id}/contexts"), &json!({ "language": language })).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["id"].as_str().expect("it has an id").to_owned()
}

/// Prints random values, a name and a value per line. Hashes of strings and addresses are left out: interpreters of one tenant
/// may share them.
const DRAW: [(&str, &str); 3] = [
    (
        "python",
        r#"
import os, random, secrets, ssl, tempfile, uuid
print("urandom", os.urandom(16).hex()); print("uuid4", uuid.uuid4()); print("random", random.random())
print("secrets", secrets.token_hex(16)); print("tls", ssl.RAND_bytes(16).hex()); print("system", random.SystemRandom().random())
print("kernel", open("/proc/sys/kernel/random/uuid").read().strip()); print("file", next(tempfile._get_candidate_names()))
print("generator", random.Random().random())
try:
    import numpy
    print("numpy", numpy.random.random()); print("numpy-generator", numpy.random.default_rng().random())
except ImportError: pass
"#,
    ),
    (
        "javascript",
        "const crypto = require('crypto'); console.log('uuid ' + crypto.randomUUID()); console.log('math ' + Math.random()); console.log('bytes ' + crypto.randomBytes(16).toString('hex'))",
    ),
    (
        "bash",
        "echo kernel $(cat /proc/sys/kernel/random/uuid); echo file $(mktemp -u XXXXXXXXXXXXXXXX); echo random $RANDOM$RANDOM$RANDOM$RANDOM$RANDOM$RANDOM",
    ),
];

#[test]
fn x12_contexts_of_copies_draw_different_random_numbers() {
    if crate::skipped("X12") {
        return;
    }
    run(async {
        let fixture = Fixture::new(&["sandboxes.pool=2"]).await;
        let there = languages(&fixture, "X12").await;
        let (client, first) = (&fixture.client, &fixture.id);
        // The contexts of the copied sandbox have already drawn numbers.
        for (language, text) in DRAW {
            if there.contains(&language) {
                printed(client, first, ("language", language), text).await;
            }
        }
        let kept = client.post(&format!("/v1/sandboxes/{first}/snapshot"), &json!({ "name": "kept" })).await;
        assert_eq!(kept.status, 201, "{kept:?}");
        let mut ids = vec![first.clone()];
        let forks = client.post(&format!("/v1/sandboxes/{first}/fork"), &json!({ "count": 3 })).await.json();
        for fork in forks["sandboxes"].as_array().expect("a list") {
            ids.push(fork["sandbox"]["id"].as_str().expect("it was made").to_owned());
        }
        for body in [json!({ "timeout": 3600, "template": "kept" }), json!({ "timeout": 3600 })] {
            for _ in 0..2 {
                ids.push(client.sandbox(&body).await);
            }
        }
        for (language, text) in DRAW {
            if there.contains(&language) {
                check_unique_draws(client, &ids, language, text).await;
            }
        }
        fixture.shut_down().await;
    });
}

/// Draws twice in the default context of each sandbox and once in another, and checks that all values differ.
async fn check_unique_draws(client: &Client, ids: &[String], language: &str, text: &str) {
    let draw = ids.iter().map(async |id| {
        let client = client.apart();
        let other = context(&client, id, language).await;
        let mut rows = Vec::new();
        for place in [("language", language), ("language", language), ("context", &other)] {
            rows.push(printed(&client, id, place, text).await);
        }
        rows
    });
    let rows: Vec<String> = futures::future::join_all(draw).await.into_iter().flatten().collect();
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in rows.iter().flat_map(|row| row.lines()).filter_map(|line| line.split_once(' ')) {
        values.entry(name).or_default().push(value);
    }
    assert!(values.len() >= 3, "{language}: {values:?}");
    for (name, drawn) in &values {
        assert_eq!(drawn.len(), ids.len() * 3, "{language}, {name}");
        let different: BTreeSet<&&str> = drawn.iter().collect();
        assert_eq!(different.len(), drawn.len(), "{language}, {name}: {drawn:?}");
    }
}
