//! Attacks with interpreters: code in contexts that floods, forks, hangs and hides (R09 to R17). After each attack, the
//! service works, the reported state of the context's variables is true, and the next execution gets a working context.

use serde_json::{Value, json};

use crate::client::Client;
use crate::server::{Home, Server};
use crate::{run, until};

/// An attack and its expected outcome.
#[derive(Clone, Copy)]
struct Attack {
    /// Number of the case in the corpus.
    case: &'static str,
    code: &'static str,
    /// Possible outcomes: status and state.
    ends: &'static [(&'static str, &'static str)],
    /// Expected output.
    out: Out,
}

#[derive(Clone, Copy)]
enum Out {
    Text(&'static str),
    /// This many bytes, too many to keep all of them.
    Flood(u64),
    /// This many binary bytes, all of them kept.
    Bytes(u64),
}

/// A language with its attacks.
struct Language {
    name: &'static str,
    /// Command that tests whether the language is available.
    needs: &'static str,
    /// Sets a variable.
    mark: &'static str,
    /// Prints the variable, or `none`.
    look: &'static str,
    /// Attacks that end by themselves, run one after another in one context.
    quick: &'static [Attack],
    /// Attacks that do not end, each in a context of its own.
    endless: &'static [Attack],
}

const FINE: &[(&str, &str)] = &[("ok", "preserved")];
/// Outcomes of code that an interrupt ends, if the machine is fast enough.
const STOPPED: &[(&str, &str)] = &[("timed_out", "preserved"), ("timed_out", "lost")];
const KILLED: &[(&str, &str)] = &[("timed_out", "lost")];

const fn fine(case: &'static str, code: &'static str, out: Out) -> Attack {
    Attack { case, code, ends: FINE, out }
}

const fn endless(
    case: &'static str,
    code: &'static str,
    ends: &'static [(&'static str, &'static str)],
) -> Attack {
    Attack { case, code, ends, out: Out::Text("") }
}

const PYTHON: Language = Language {
    name: "python",
    needs: "/usr/bin/python3 -c 'import IPython'",
    mark: "mark = 7",
    look: "print(globals().get('mark', 'none'))",
    quick: &[
        fine("R09", "import os\nfor _ in range(2048): os.write(1, b'x' * 65536)", Out::Flood(128 << 20)),
        fine(
            "R10",
            "import os\nos.write(1, b'y' * 1048568)\nos.write(1, b'\\xff\\x00\\x1b]0;x\\x07')",
            Out::Bytes(1 << 20),
        ),
        fine(
            "R11",
            "import ctypes, socket\nlibc = ctypes.CDLL(None)\nfor _ in range(50000): libc.unshare(0x10000000)\nfor _ in range(2000):\n    with socket.socket() as one: one.connect_ex(('192.0.2.1', 9))\nprint('tried')",
            Out::Text("tried\n"),
        ),
        fine(
            "R12",
            "import os\nfor number in range(300):\n    try:\n        pid = os.fork()\n        if pid == 0:\n            try: os.fork()\n            finally: os._exit(0)\n        if number >= 30: os.waitpid(pid, 0)\n    except BlockingIOError: pass\nprint('forked')",
            Out::Text("forked\n"),
        ),
        fine(
            "R13",
            "import os\nfor what in (lambda: os.nice(-20), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)), lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)):\n    try:\n        what()\n        print('allowed')\n    except PermissionError: print('refused')",
            Out::Text("refused\nrefused\nrefused\n"),
        ),
        fine(
            "R16",
            "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execvp('sleep', ['sleep', '61816'])\n    os._exit(0)\nprint('back')",
            Out::Text("back\n"),
        ),
        fine(
            "R17",
            "import subprocess\nchild = subprocess.Popen(['sleep', '61717'])\nprint('back')",
            Out::Text("back\n"),
        ),
    ],
    endless: &[
        endless(
            "R13",
            "import threading\ndef spin():\n    while True: pass\nfor _ in range(8): threading.Thread(target=spin, daemon=True).start()\nspin()",
            STOPPED,
        ),
        endless("R14", "import time; time.sleep(600)", STOPPED),
        endless("R14", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", KILLED),
        endless(
            "R15",
            "import signal, time\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True:\n    try: time.sleep(600)\n    except BaseException: pass",
            KILLED,
        ),
    ],
};

const BASH: Language = Language {
    name: "bash",
    needs: "command -v bash",
    mark: "mark=7",
    look: "echo ${mark-none}",
    quick: &[
        fine("R09", "head -c 134217728 /dev/zero", Out::Flood(128 << 20)),
        fine(
            "R10",
            "head -c 1048568 /dev/zero | tr '\\0' y; printf '\\377\\000\\033]0;x\\007'",
            Out::Bytes(1 << 20),
        ),
        fine(
            "R11",
            "for ((i = 0; i < 2000; i++)); do echo x > /proc/sysrq-trigger; echo x > /etc/x; done 2>/dev/null; echo tried",
            Out::Text("tried\n"),
        ),
        fine(
            "R12",
            "for i in {1..300}; do (exit 0) & done; for i in {1..20}; do (setsid true &); done; echo forked",
            Out::Text("forked\n"),
        ),
        fine(
            "R13",
            "nice -n -20 true 2>&1 | grep -c 'Permission denied'; chrt -f 1 true 2>/dev/null || echo refused",
            Out::Text("1\nrefused\n"),
        ),
        fine("R16", "(setsid sleep 61816 &); echo back", Out::Text("back\n")),
        fine("R17", "sleep 61717 & echo back", Out::Text("back\n")),
    ],
    endless: &[
        endless("R13", "while :; do :; done", STOPPED),
        endless("R14", "sleep 600", STOPPED),
        endless("R14", "kill -STOP $$", KILLED),
        // Bash skips what is left, unless the code has it ignore the signal for that.
        endless("R15", "trap '' HUP INT QUIT TERM USR1 USR2 ALRM; while :; do sleep 600; done", STOPPED),
        endless("R15", "trap '' HUP INT QUIT TERM USR1 USR2 ALRM 63; while :; do sleep 600; done", KILLED),
    ],
};

const JAVASCRIPT: Language = Language {
    name: "javascript",
    needs: "test \"$(node -p 'parseInt(process.versions.node) >= 18')\" = true",
    mark: "globalThis.mark = 7; undefined",
    look: "console.log(globalThis.mark ?? 'none')",
    quick: &[
        fine(
            "R09",
            "const chunk = Buffer.alloc(65536, 'x'); for (let i = 0; i < 1024; i++) await new Promise(done => process.stdout.write(chunk, done)); undefined",
            Out::Flood(64 << 20),
        ),
        fine(
            "R10",
            "await new Promise(done => process.stdout.write(Buffer.concat([Buffer.alloc(1048568, 'y'), Buffer.from([255, 0, 27, 93, 48, 59, 120, 7])]), done)); undefined",
            Out::Bytes(1 << 20),
        ),
        fine(
            "R12",
            "const { spawn } = require('child_process'); for (let i = 0; i < 60; i++) spawn('sh', ['-c', 'true & true'], { detached: true, stdio: 'ignore' }).on('error', () => {}).unref(); console.log('forked')",
            Out::Text("forked\n"),
        ),
        fine(
            "R13",
            "try { require('os').setPriority(-20); console.log('allowed') } catch (error) { console.log(error.info.code) }",
            Out::Text("EACCES\n"),
        ),
        fine(
            "R16",
            "require('child_process').spawn('setsid', ['sleep', '61816'], { detached: true, stdio: 'inherit' }).unref(); console.log('back')",
            Out::Text("back\n"),
        ),
        fine(
            "R17",
            "require('child_process').spawn('sleep', ['61717'], { stdio: 'inherit' }); console.log('back')",
            Out::Text("back\n"),
        ),
    ],
    endless: &[
        endless("R13", "while (true) {}", STOPPED),
        endless("R14", "await new Promise(done => setTimeout(done, 600000))", STOPPED),
        endless(
            "R14",
            "process.kill(process.pid, 'SIGSTOP'); await new Promise(done => setTimeout(done, 600000))",
            KILLED,
        ),
        endless(
            "R15",
            "for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR2']) process.on(signal, () => {}); while (true) { try { while (true) {} } catch {} }",
            STOPPED,
        ),
    ],
};

/// A server, an administrator's client, and a sandbox each of two tenants.
pub(crate) struct Fixture {
    home: Home,
    pub(crate) server: Server,
    pub(crate) admin: Client,
    pub(crate) client: Client,
    pub(crate) id: String,
    neighbour: (Client, String),
}

impl Fixture {
    pub(crate) async fn new(settings: &[&str]) -> Self {
        let mut home = Home::new(settings);
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let client = admin.with_key(&admin.new_key("user", "first").await.1);
        let other = admin.with_key(&admin.new_key("user", "second").await.1);
        let body = json!({ "timeout": 3600, "limits": { "memory": "512m", "pids": 128 } });
        let id = client.sandbox(&body).await;
        let neighbour = other.sandbox(&json!({ "timeout": 3600 })).await;
        Self { home, server, admin, client, id, neighbour: (other, neighbour) }
    }

    /// Reports whether the sandboxes lack what a language needs, and prints that the case is skipped.
    pub(crate) async fn lacks(&self, case: &str, needs: &str) -> bool {
        let line = format!("({needs}) > /dev/null 2>&1 && echo there || true");
        let lacks = self.neighbour.0.sh(&self.neighbour.1, &line).await != "there\n";
        if lacks {
            crate::say(&format!("SKIPPED {case}: sandboxes lack what it needs: {needs}"));
        }
        lacks
    }

    /// Returns the peak memory of the server.
    fn peak_kib(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.server.pid())).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is reported");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    }

    /// Checks that the service and the neighbouring sandbox respond.
    async fn check_health(&self) {
        assert_eq!(self.server.stranger().call("GET", "/ready").await.status, 200);
        assert_eq!(self.neighbour.0.sh(&self.neighbour.1, "echo here").await, "here\n");
    }

    /// Ends everything, and checks that no sandbox is left.
    pub(crate) async fn shut_down(self) {
        let Self { home, server, .. } = self;
        crate::crash::shut_down(server, &home).await;
        assert_eq!(home.alive(), std::collections::BTreeSet::new());
    }
}

/// Runs code, and returns the result.
pub(crate) async fn code(client: &Client, id: &str, body: &Value) -> Value {
    let done = client.post(&format!("/v1/sandboxes/{id}/code"), body).await;
    assert_eq!(done.status, 200, "{body}: {done:?}");
    done.json()
}

/// Runs code that must succeed, and returns its output.
pub(crate) async fn printed(client: &Client, id: &str, context: (&str, &str), text: &str) -> String {
    let (key, value) = context;
    let done = code(client, id, &json!({ "code": text, key: value })).await;
    assert_eq!(done["status"], "ok", "{text}: {done}");
    done["stdout"]["data"].as_str().unwrap_or_default().to_owned()
}

/// Runs an attack in a context, and checks the outcome and the state of the context.
async fn run_attack(
    fixture: &Fixture,
    language: &Language,
    context: (&str, &str),
    attack: Attack,
    timeout: &str,
) {
    let client = fixture.client.apart();
    let Attack { case, code: text, .. } = attack;
    printed(&client, &fixture.id, context, language.mark).await;
    let (key, value) = context;
    let body = json!({ "code": text, key: value, "timeout": timeout, "output": "1m" });
    let done = code(&client, &fixture.id, &body).await;
    let end = |name: &str| done[name].as_str().unwrap_or_default().to_owned();
    let (status, state) = (end("status"), end("state"));
    assert!(attack.ends.contains(&(status.as_str(), state.as_str())), "{case}: {done}");
    let stdout = &done["stdout"];
    let kept = stdout["data"].as_str().unwrap_or_default();
    match attack.out {
        Out::Text(text) => assert_eq!(kept, text, "{case}: {done}"),
        Out::Flood(bytes) => {
            assert_eq!((&stdout["bytes"], &stdout["truncated"]), (&json!(bytes), &json!(true)), "{case}");
            assert!(kept.len() <= 1 << 20, "{case}: {} bytes are kept", kept.len());
        }
        Out::Bytes(bytes) => {
            let actual = (&stdout["bytes"], &stdout["truncated"], &stdout["encoding"]);
            assert_eq!(actual, (&json!(bytes), &json!(false), &json!("base64")), "{case}");
            assert_eq!(kept.len() as u64, bytes.div_ceil(3) * 4, "{case}");
        }
    }
    // The reported state of the variables is true, and the context works.
    let seen = printed(&client, &fixture.id, context, language.look).await;
    assert_eq!(seen, if state == "preserved" { "7\n" } else { "none\n" }, "{case}: {done}");
}

fn attacks(language: &'static Language) {
    let name = format!("R09 to R17 in contexts of {}", language.name);
    if crate::skipped(&name) {
        return;
    }
    run(async {
        let fixture = Fixture::new(&["sandboxes.pool=0"]).await;
        if !fixture.lacks(&name, language.needs).await {
            let before = fixture.peak_kib();
            for attack in language.quick {
                run_attack(&fixture, language, ("language", language.name), *attack, "10m").await;
                fixture.check_health().await;
            }
            // The server keeps no more output than requested.
            let grown = fixture.peak_kib().saturating_sub(before);
            assert!(grown < 100 << 10, "the server grew by {grown} KiB");
            check_leftovers(&fixture, language).await;
            let endless = language.endless.iter().map(async |attack| {
                let made = fixture
                    .client
                    .apart()
                    .post(
                        &format!("/v1/sandboxes/{}/contexts", fixture.id),
                        &json!({ "language": language.name }),
                    )
                    .await
                    .json();
                let context = made["id"].as_str().expect("a context is made");
                run_attack(&fixture, language, ("context", context), *attack, "1s").await;
            });
            futures::future::join_all(endless).await;
            fixture.check_health().await;
            check_audit_records(&fixture, language).await;
        }
        fixture.shut_down().await;
    });
}

/// A child process of an attack ends with its context. A daemon in a session of its own belongs to the sandbox, and ends with
/// it.
async fn check_leftovers(fixture: &Fixture, language: &Language) {
    let (client, id) = (&fixture.client, &fixture.id);
    let count = async |what: &str| {
        let line = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 61[X]' | wc -l";
        client.sh(id, &line.replace("[X]", what)).await.trim().to_owned()
    };
    // Brackets keep the search from matching itself.
    let (child, daemon) = ("[7]17", "[8]16");
    // The processes may not have executed their programs yet.
    let both = async || (count(child).await, count(daemon).await) == ("1".to_owned(), "1".to_owned());
    until("what was started runs", both).await;
    let removed = client.call("DELETE", &format!("/v1/sandboxes/{id}/contexts/{}", language.name)).await;
    assert_eq!(removed.status, 204, "{removed:?}");
    until("the child ends with its context", async || count(child).await == "0").await;
    assert_eq!(count(daemon).await, "1");
    assert_eq!(printed(client, id, ("language", language.name), language.look).await, "none\n");
}

/// A flood of refused calls does not flood the audit log: there is one record for each execution.
async fn check_audit_records(fixture: &Fixture, language: &Language) {
    let records = fixture.admin.get("/v1/audit?action=code&limit=1000").await.json();
    let records = records["records"].as_array().expect("a list").clone();
    let of_it = |record: &&Value| record["sandbox"] == json!(fixture.id) && record["action"] == "code";
    // Each attack has two executions around it, and one follows the removal of the context.
    let expected = (language.quick.len() + language.endless.len()) * 3 + 1;
    assert_eq!(records.iter().filter(of_it).count(), expected);
}

#[test]
fn r09_to_r17_in_contexts_of_python() {
    attacks(&PYTHON);
}

#[test]
fn r09_to_r17_in_contexts_of_bash() {
    attacks(&BASH);
}

#[test]
fn r09_to_r17_in_contexts_of_javascript() {
    attacks(&JAVASCRIPT);
}
