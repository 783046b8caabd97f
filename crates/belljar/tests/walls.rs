//! Tests of the individual walls: an attack on a wall fails, the same attack succeeds if only that wall is removed, and a
//! benign program works. Where several walls stop the same attack, the others are removed in both cases, so that the tested
//! one decides. Needs the feature `mutation`, which a release does not have.

#![cfg(feature = "mutation")]
#![allow(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests fail and speak like tests")]

use std::process::{Command, Output};

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

/// A wall with its attack. Programs are Python; the attack exits with 0 if it succeeded and with 1 if it was stopped.
struct Case {
    /// The wall, by the name in `belljar_linux::Wall`.
    wall: &'static str,
    /// Walls behind or before it that stop the same attack, comma-separated.
    others: &'static str,
    flags: &'static [&'static str],
    attack: &'static str,
    honest: &'static str,
}

const LIBC: &str = "import ctypes, os, sys, socket, time\nlibc = ctypes.CDLL(None, use_errno=True)\n";

fn belljar(without: &str, flags: &[&str], code: &str) -> Output {
    Command::new("/usr/bin/env")
        .arg(format!("BELLJAR_TEST_WITHOUT={without}"))
        .args([BELLJAR, "run", "--quiet", "--timeout", "20"])
        .args(flags)
        .args(["-l", "python", "-c", &format!("{LIBC}{code}")])
        .output()
        .expect("belljar starts")
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn check(case: &Case) {
    if skip_without_cgroups() {
        return;
    }
    let show = |output: &Output| {
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let held = belljar(case.others, case.flags, case.attack);
    assert_ne!(status(&held), 0, "{}: the attack got through: {}", case.wall, show(&held));
    assert_ne!(status(&held), 125, "{}: nothing ran: {}", case.wall, show(&held));
    let all: Vec<&str> = case.others.split(',').filter(|name| !name.is_empty()).chain([case.wall]).collect();
    let open = belljar(&all.join(","), case.flags, case.attack);
    assert_eq!(status(&open), 0, "{}: without it the attack still fails: {}", case.wall, show(&open));
    let honest = belljar("", case.flags, case.honest);
    assert_eq!(status(&honest), 0, "{}: an honest program fails: {}", case.wall, show(&honest));
}

fn skip_without_cgroups() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    eprintln!("SKIPPED: needs root, for control groups and user ids of their own");
    true
}

#[test]
fn seccomp_denies_user_namespaces() {
    check(&Case {
        wall: "seccomp",
        others: "",
        flags: &[],
        attack: "sys.exit(0 if libc.unshare(0x10000000) == 0 else 1)",
        honest: "import threading, subprocess\nt = threading.Thread(target=print); t.start(); t.join()\nsys.exit(subprocess.call(['/bin/true']))",
    });
}

#[test]
fn landlock_protects_the_guest_from_signals() {
    check(&Case {
        wall: "landlock",
        others: "",
        flags: &[],
        attack: "try:\n  os.kill(1, 0)\nexcept PermissionError:\n  sys.exit(1)",
        honest: "pid = os.fork()\nif pid == 0:\n  time.sleep(60)\nos.kill(pid, 9)\nsys.exit(0 if os.waitpid(pid, 0)[1] == 9 else 1)",
    });
}

#[test]
fn capabilities_are_dropped() {
    check(&Case {
        wall: "capabilities",
        others: "",
        flags: &[],
        attack: "bounding = [l for l in open('/proc/self/status') if l.startswith('CapBnd')][0].split()[1]\nsys.exit(0 if int(bounding, 16) else 1)",
        honest: "open('mine', 'w').write('x'); os.chmod('mine', 0o600)",
    });
}

#[test]
fn no_new_privileges_is_set() {
    check(&Case {
        wall: "no-new-privileges",
        // Both need it, so they cannot be active without it.
        others: "landlock,seccomp",
        flags: &[],
        attack: "line = [l for l in open('/proc/self/status') if l.startswith('NoNewPrivs')][0]\nsys.exit(int(line.split()[1]))",
        honest: "import subprocess\nsys.exit(subprocess.call(['/bin/true']))",
    });
}

#[test]
fn host_root_is_unreachable() {
    // The host's init is visible only through the host's own /proc, so the attack looks for a file of the host.
    check(&Case {
        wall: "pivot",
        others: "",
        flags: &[],
        attack: "sys.exit(0 if os.path.exists('/old-root/etc/shadow') else 1)",
        honest: "sys.exit(0 if os.path.exists('/usr/bin/env') and os.path.exists('/etc/passwd') else 1)",
    });
}

#[test]
fn proc_hides_the_machine() {
    check(&Case {
        wall: "proc-masks",
        others: "",
        flags: &[],
        attack: "try:\n  sys.exit(0 if open('/proc/interrupts').read() else 1)\nexcept OSError:\n  sys.exit(1)",
        honest: "sys.exit(0 if open('/proc/meminfo').read() and open('/proc/self/maps').read() else 1)",
    });
}

/// The descriptor of the guest's own /proc, as belljar-linux has it.
const GUEST_PROC_FD: i32 = 4;

/// The guest brings files out, and its own view of /proc is one of its descriptors.
#[test]
fn guest_reads_no_facts_about_the_machine() {
    if skip_without_cgroups() {
        return;
    }
    let is_brought_out = |without: &str| {
        let dir = tempfile::tempdir().expect("a directory");
        Command::new(BELLJAR)
            .env("BELLJAR_TEST_WITHOUT", without)
            .current_dir(dir.path())
            .args(["run", "--quiet", "-o", &format!("/proc/self/fd/{GUEST_PROC_FD}/interrupts:out")])
            .args(["-l", "python", "-c", "print(1)"])
            .output()
            .expect("belljar starts");
        std::fs::metadata(dir.path().join("out")).is_ok_and(|file| file.len() > 0)
    };
    assert!(!is_brought_out(""));
    assert!(is_brought_out("proc-masks"), "without the wall the attack still fails");
}

#[test]
fn host_loopback_is_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port of the test's own");
    let port = listener.local_addr().expect("it has an address").port();
    let attack = format!(
        "s = socket.socket(); s.settimeout(3)\nsys.exit(0 if s.connect_ex(('127.0.0.1', {port})) == 0 else 1)"
    );
    check(&Case {
        wall: "network",
        others: "",
        flags: &[],
        attack: Box::leak(attack.into_boxed_str()),
        honest: "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\nc = socket.create_connection(s.getsockname())",
    });
}

#[test]
fn host_shared_memory_is_unreachable() {
    let made =
        Command::new("ipcmk").args(["-M", "64", "-p", "0666"]).output().expect("ipcmk of util-linux runs");
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    let id = text.split(':').nth(1).expect("ipcmk prints the id").trim().to_owned();
    let attack =
        format!("libc.shmat.restype = ctypes.c_long\nsys.exit(0 if libc.shmat({id}, None, 0) != -1 else 1)");
    check(&Case {
        wall: "ipc",
        others: "",
        flags: &[],
        attack: Box::leak(attack.into_boxed_str()),
        honest: "i = libc.shmget(0, 4096, 0o1600)\nlibc.shmat.restype = ctypes.c_long\nsys.exit(0 if i != -1 and libc.shmat(i, None, 0) != -1 else 1)",
    });
    Command::new("ipcrm").args(["-m", &id]).status().expect("ipcrm runs");
}

#[test]
fn host_name_is_hidden() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host has a name");
    let attack = format!("sys.exit(0 if socket.gethostname() == {:?} else 1)", host.trim());
    check(&Case {
        wall: "uts",
        others: "",
        flags: &[],
        attack: Box::leak(attack.into_boxed_str()),
        honest: "sys.exit(0 if socket.gethostname() == 'belljar' else 1)",
    });
}

#[test]
fn control_group_names_are_hidden() {
    check(&Case {
        wall: "cgroup-namespace",
        others: "",
        flags: &[],
        attack: "sys.exit(0 if 'belljar-' in open('/proc/self/cgroup').read() else 1)",
        honest: "sys.exit(0 if ':/' in open('/proc/self/cgroup').read() else 1)",
    });
}

#[test]
fn memory_is_limited() {
    check(&Case {
        wall: "memory",
        others: "",
        flags: &["--memory", "64m"],
        attack: "x = bytearray(200 << 20)",
        honest: "x = bytearray(16 << 20)",
    });
}

#[test]
fn processes_are_limited() {
    check(&Case {
        wall: "pids",
        others: "",
        flags: &["--pids", "16"],
        attack: "try:\n  for _ in range(40):\n    if os.fork() == 0:\n      time.sleep(60)\nexcept OSError:\n  sys.exit(1)",
        honest: "for _ in range(8):\n  if os.fork() == 0:\n    time.sleep(60)",
    });
}

#[test]
fn processor_time_is_limited() {
    // 0.4 s of work take 4 s with a tenth of a processor, and without the limit less than 3 s even on a busy machine.
    check(&Case {
        wall: "cpu",
        others: "",
        flags: &["--cpus", "0.1"],
        attack: "begin = time.monotonic()\nwhile time.process_time() < 0.4: pass\nsys.exit(0 if time.monotonic() - begin < 3 else 1)",
        honest: "sum(range(1000))",
    });
}

#[test]
fn disk_is_limited() {
    check(&Case {
        wall: "quota",
        others: "",
        flags: &["--disk", "1m"],
        attack: "try:\n  open('big', 'wb').write(bytes(3 << 20))\nexcept OSError:\n  sys.exit(1)",
        honest: "open('small', 'wb').write(bytes(300 << 10))",
    });
}

#[test]
fn system_is_read_only() {
    check(&Case {
        wall: "read-only",
        others: "landlock",
        flags: &[],
        attack: "try:\n  open('/etc/planted', 'w')\nexcept OSError:\n  sys.exit(1)",
        honest: "open('/tmp/mine', 'w').write('x')",
    });
}

#[test]
fn open_files_are_limited() {
    check(&Case {
        wall: "rlimits",
        others: "",
        flags: &["--open-files", "64"],
        attack: "try:\n  files = [open('/dev/null') for _ in range(200)]\nexcept OSError:\n  sys.exit(1)",
        honest: "files = [open('/dev/null') for _ in range(32)]",
    });
}

#[test]
fn descriptors_do_not_leak_in() {
    check(&Case {
        wall: "descriptors",
        others: "",
        flags: &[],
        attack: "extra = [fd for fd in range(3, 256) if os.path.exists(f'/proc/self/fd/{fd}')]\nsys.exit(0 if extra else 1)",
        honest: "sys.exit(0 if os.path.exists('/proc/self/fd/1') else 1)",
    });
}

#[test]
fn guest_cannot_be_inspected() {
    check(&Case {
        wall: "dumpable",
        others: "landlock",
        flags: &[],
        attack: "try:\n  open('/proc/1/maps').read()\nexcept OSError:\n  sys.exit(1)",
        honest: "open('/proc/self/maps').read()",
    });
}

/// Adds a key to the session keyring and executes belljar, whose session keyring the sandbox must not inherit.
const KEYED: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(250, 1, None)
if libc.syscall(248, b"user", b"belljar-canary", b"secret", 6, -3) == -1: sys.exit(77)
libc.syscall(250, 5, libc.syscall(250, 10, -3, b"user", b"belljar-canary", 0), 0x3f3f3f3f)
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn host_keyring_is_not_inherited() {
    if skip_without_cgroups() {
        return;
    }
    let attack =
        format!("{LIBC}sys.exit(0 if libc.syscall(250, 10, -3, b'user', b'belljar-canary', 0) != -1 else 1)");
    let run = |without: &str| {
        let output = Command::new("/usr/bin/python3")
            .args(["-c", KEYED, BELLJAR, "run", "--quiet", "-l", "python", "-c", &attack])
            .env("BELLJAR_TEST_WITHOUT", without)
            .output()
            .expect("python starts");
        (status(&output), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // The seccomp filter stops the call as well, so it is removed in both cases.
    let (held, text) = run("seccomp");
    if held == 77 {
        eprintln!("SKIPPED: this kernel has no keyrings");
        return;
    }
    assert_eq!(held, 1, "the key was found: {text}");
    assert_eq!(run("seccomp,keyring").0, 0, "without the wall the key is not found");
}

#[test]
fn release_has_no_mutation_hook() {
    let Some(release) = std::env::var_os("BELLJAR_RELEASE") else {
        eprintln!("SKIPPED: BELLJAR_RELEASE does not name a release binary (make long builds one)");
        return;
    };
    let hook = b"BELLJAR_TEST_WITHOUT";
    let has_hook = |path: &std::ffi::OsStr| {
        let binary = std::fs::read(path).expect("the binary can be read");
        binary.windows(hook.len()).any(|window| window == hook)
    };
    assert!(has_hook(BELLJAR.as_ref()), "the binary under test has the hook, or the search is wrong");
    assert!(!has_hook(&release), "the release has the hook");
}
