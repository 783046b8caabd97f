//! The posture of a running sandbox: everything that `/proc` shows of every thread of `belljar` itself, the supervisor, the
//! guest and the code, and what the code sees of its root, compared with golden files. A new right, descriptor, mount or
//! variable shows up in the diff.
//!
//! Only root may inspect the guest, so the sandboxes of an ordinary user are inspected as root as well.
//! `BELLJAR_BLESS=1` rewrites `tests/golden/posture*.txt`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot continue has failed, and one that cannot start prints why"
)]

mod golden;
mod process;
mod sandbox;

use std::fmt::Write as _;

use process::{Place, inspect};
use sandbox::{Sandbox, Who, children, threads};

/// Starts three threads; then two more, and one child each by three methods, all of which wait. Then lists what it sees.
const PROGRAM: &str = r#"
import os, stat, sys, threading, time
def wait(): time.sleep(1000)
def thread(): threading.Thread(target=wait, daemon=True).start()
for _ in range(3): thread()
print("ready")
sys.stdin.readline()
for _ in range(2): thread()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b"x"); wait()
os.read(reader, 1)
os.close(reader); os.close(writer)
spawned = os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ)
terminal = os.forkpty()
if terminal[0] == 0:
    os.write(1, b"x"); wait()
os.read(terminal[1], 1)
while open("/proc/%d/comm" % spawned).read() != "sleep\n": pass
print("done")
sys.stdin.readline()

KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFCHR: "device", stat.S_IFSOCK: "socket"}
# What every machine's kernel and /etc has; the rest is looked at for being closed only.
PROC = "cmdline cpuinfo filesystems interrupts loadavg meminfo mounts net self stat sys thread-self uptime version".split()
LINKS = "lib32 libx32".split()
def show(dir, name):
    path = os.path.join(dir, name)
    s = os.lstat(path)
    link = " -> " + os.readlink(path) if stat.S_ISLNK(s.st_mode) and not path.startswith("/proc") else ""
    kind = KINDS.get(stat.S_IFMT(s.st_mode), "other")
    print("%s %04o %d:%d %s%s" % (kind, stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, path, link))
for dir in ["/", "/dev", "/etc", "/home", "/home/user", "/tmp", "/run", "/var", "/var/lib", "/dev/shm", "/dev/pts", "/proc"]:
    for name in sorted(os.listdir(dir)):
        path = os.path.join(dir, name)
        s = os.lstat(path)
        if dir == "/" and name in LINKS: continue
        if dir == "/dev/pts" and name != "ptmx": continue
        # Of the host's directories and copied files there are those that the machine has.
        if dir == "/etc" and (s.st_uid != os.getuid() or name in ("localtime", "ssl", "ld.so.cache", "matplotlibrc", "protocols", "services")):
            if os.access(path, os.W_OK): print("writable:", path)
            continue
        if dir == "/proc" and not name.isdigit() and name not in PROC:
            if not os.path.islink(path) and os.access(path, os.W_OK): print("writable:", path)
            continue
        if dir == "/proc" and name.isdigit():
            continue
        show(dir, name)
print("processes in sight:", sum(name.isdigit() for name in os.listdir("/proc")))
print("process 1 in sight:", os.path.exists("/proc/1"))
print("ids:", os.getresuid(), os.getresgid(), os.getgroups())
for name in ["/proc/keys", "/proc/key-users", "/proc/cmdline", "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern"]:
    for mode, flags in ("read", os.O_RDONLY), ("written", os.O_WRONLY):
        try: os.open(name, flags); print(name, "can be", mode)
        except OSError: print(name, "cannot be", mode)
print("done")
sys.stdin.readline()
"#;

/// Text of the posture.
#[derive(Default)]
struct Report(String);

impl Report {
    fn line(&mut self, text: &str) {
        writeln!(self.0, "{text}").unwrap();
    }

    /// Adds a process. All its threads must be alike except for their names.
    fn process(&mut self, sandbox: &Sandbox, title: &str, place: Place, pid: i32) -> Vec<String> {
        let lines = uniform(sandbox, place, pid);
        self.line(&format!("\n## {title}\n"));
        for line in &lines {
            self.line(line);
        }
        lines
    }

    /// Adds the differences of a process from another.
    fn difference(&mut self, title: &str, lines: &[String], from: &[String]) {
        self.line(&format!("\n## {title}\n"));
        for line in from.iter().filter(|line| !lines.contains(line)) {
            self.line(&format!("- {line}"));
        }
        for line in lines.iter().filter(|line| !from.contains(line)) {
            self.line(&format!("+ {line}"));
        }
    }
}

/// Returns the lines about a process, whose threads must all be alike.
fn uniform(sandbox: &Sandbox, place: Place, pid: i32) -> Vec<String> {
    let first = inspect(sandbox, place, pid);
    let unnamed = |lines: &[String]| {
        lines.iter().filter(|line| !line.starts_with("Name:")).cloned().collect::<Vec<_>>()
    };
    for tid in threads(pid) {
        let lines = inspect(sandbox, place, tid);
        assert_eq!(unnamed(&lines), unnamed(&first), "the thread {tid} of {pid} is not like the others");
    }
    first
}

fn posture(who: Who) -> String {
    let mut report = Report::default();
    let mut sandbox = Sandbox::run(who, "", PROGRAM);
    let starter = if who == Who::Root { "root" } else { "an ordinary user" };
    report.line(&format!("# The posture of a sandbox of the engine `local`, started by {starter}"));
    report.line(
        "#\n# Written by crates/belljar/tests/posture with BELLJAR_BLESS=1; CONTRIBUTING.md says when.",
    );
    report.line("# SANDBOX is the user number that the sandbox leased, USER that of the ordinary user, BELLJAR the program.");
    report.line(
        "# The caller is a process that was started as `belljar` was. All threads of each process are alike.",
    );
    report.process(&sandbox, "belljar itself", Place::Outside, sandbox.launcher());
    report.process(&sandbox, "The supervisor", Place::Outside, sandbox.supervisor);
    let guest = report.process(&sandbox, "The guest", Place::Inside, sandbox.guest);
    let title = format!("The code, with {} threads", threads(sandbox.workload).len());
    let code = report.process(&sandbox, &title, Place::Inside, sandbox.workload);

    assert!(sandbox.resume().is_empty());
    report.line(
        "\n# When the code has started more threads and children, each as it differs from the code before",
    );
    let again = uniform(&sandbox, Place::Inside, sandbox.workload);
    let title = format!("The code, with {} threads", threads(sandbox.workload).len());
    report.difference(&title, &again, &code);
    let born = children(sandbox.workload);
    assert_eq!(born.len(), 3, "a child by fork, one by posix_spawn, one on a terminal");
    for (title, pid) in
        ["Its child by fork", "Its child by posix_spawn", "Its child on a terminal"].iter().zip(born)
    {
        let lines = uniform(&sandbox, Place::Inside, pid);
        report.difference(title, &lines, &code);
    }
    assert_eq!(children(sandbox.guest), [sandbox.workload], "the guest has another child");

    report.line("\n# What the code sees\n");
    for line in sandbox.resume() {
        report.line(&line);
    }
    drop(sandbox);

    let shell = Sandbox::shell(who);
    report.line("\n# With `belljar shell`, as it differs from the code of `belljar run`");
    let lines = uniform(&shell, Place::Inside, shell.workload);
    report.difference("The program on the terminal", &lines, &code);
    // That of root's run starts one program alone, and that of a shell whatever it is asked for.
    report.difference("The guest", &uniform(&shell, Place::Inside, shell.guest), &guest);
    report.0
}

/// Reports whether the posture can be inspected here, and prints the reason if not.
fn can_inspect(who: Who) -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "needs root, to look at the guest"
    } else if who.ids().is_none() {
        "needs the account belljar-test (scripts/install-deps.sh test)"
    } else if !who.command("/usr/bin/unshare".as_ref()).args(["-U", "true"]).status().unwrap().success() {
        "this machine does not let ordinary users make namespaces"
    } else {
        return true;
    };
    eprintln!("SKIPPED: {reason}");
    false
}

#[test]
fn posture_of_a_sandbox_of_root() {
    if can_inspect(Who::Root) {
        golden::check("posture.txt", &posture(Who::Root));
    }
}

#[test]
fn posture_of_a_sandbox_of_an_ordinary_user() {
    if can_inspect(Who::User) {
        golden::check("posture-user.txt", &posture(Who::User));
    }
}

/// Each removed wall shows in the code's posture.
#[cfg(feature = "mutation")]
#[test]
fn missing_wall_shows_in_the_posture() {
    if !can_inspect(Who::Root) {
        return;
    }
    let lines = |walls: &str, about: &str| -> Vec<String> {
        let sandbox = Sandbox::run(Who::Root, walls, PROGRAM);
        let lines = inspect(&sandbox, Place::Inside, sandbox.workload);
        lines.into_iter().filter(|line| line.starts_with(about)).collect()
    };
    for (walls, about) in [
        ("descriptors", "descriptor "),
        ("capabilities", "CapBnd:"),
        // Landlock and seccomp need it.
        ("no-new-privileges,landlock,seccomp", "NoNewPrivs:"),
        ("seccomp", "Seccomp_filters:"),
        ("rlimits", "Max core file size:"),
        ("network", "namespaces"),
        ("ipc", "namespaces"),
        ("uts", "namespaces"),
        ("cgroup-namespace", "namespaces"),
        ("proc-masks", "covered below /proc"),
    ] {
        assert_ne!(lines("", about), lines(walls, about), "without {walls} nothing changes about {about}");
    }
}
