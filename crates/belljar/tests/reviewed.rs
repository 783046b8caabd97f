//! Regression tests for vulnerabilities that a review found, each with its attack.

#![cfg(feature = "mutation")]
#![allow(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests fail and speak like tests")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Output, Stdio};

const BELLJAR: &str = env!("CARGO_BIN_EXE_belljar");

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: needs root, for control groups");
    }
    is_root
}

fn sh(mounts: &[String], without: &str, code: &str) -> Output {
    let mut command = Command::new(BELLJAR);
    command.arg("run").env("BELLJAR_TEST_WITHOUT", without);
    for mount in mounts {
        command.args(["--mount", mount]);
    }
    command.args(["-l", "sh", "-c", code]).stdin(Stdio::null()).output().expect("belljar starts")
}

#[test]
fn link_in_a_mount_does_not_redirect_another_mount() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    for name in ["outer", "outer/real", "victim"] {
        std::fs::create_dir(path(name)).expect("it is made");
    }
    std::fs::write(path("inner"), "inner").expect("it is written");
    symlink(path("victim"), path("outer/cache")).expect("it is linked");
    let outer = format!("{}:/home/user/project:rw", path("outer"));
    let through = format!("{}:/home/user/project/cache/planted", path("inner"));
    let output = sh(&[outer.clone(), through], "", "true");
    assert_eq!(output.status.code(), Some(125), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(path("victim")).expect("it is there").count(), 0);
    // Control: the same mount without the link works.
    let beside = format!("{}:/home/user/project/real/file", path("inner"));
    let output = sh(&[outer, beside], "", "cat project/real/file");
    assert_eq!(output.stdout, b"inner", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn set_user_id_bit_cannot_be_set_on_a_mount() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mount = [format!("{}:/data:rw", dir.path().display())];
    let mode = |without: &str, name: &str| {
        sh(
            &mount,
            without,
            &format!("cp /bin/true /data/{name}; chmod 755 /data/{name}; chmod 6755 /data/{name}"),
        );
        std::fs::metadata(dir.path().join(name)).expect("it came").permissions().mode() & 0o7777
    };
    assert_eq!(mode("", "held"), 0o755);
    assert_eq!(mode("seccomp", "open"), 0o6755, "without the filter the attack goes through");
}

#[test]
fn environment_is_not_in_process_arguments() {
    if !is_root() {
        return;
    }
    let canary = format!("canary-{}", std::process::id());
    let mut child = Command::new(BELLJAR)
        .args(["run", "--env", "TOKEN", "-l", "sh", "-c", "echo \"$TOKEN\"; exec sleep 30"])
        .env("TOKEN", &canary)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("belljar starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it speaks");
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let is_exposed = processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|cmdline| String::from_utf8_lossy(&cmdline).contains(&canary));
    child.kill().expect("it can be ended");
    child.wait().expect("it ends");
    assert_eq!(line.trim(), canary);
    assert!(!is_exposed, "the value is in a process's arguments");
}

#[test]
fn raised_priority_of_the_caller_is_not_inherited() {
    if !is_root() {
        return;
    }
    let code = "import os\nprint(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))";
    let seen = |prefix: &[&str]| {
        let allowed = Command::new(prefix[0]).args(&prefix[1..]).arg("true").output();
        if !allowed.is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: {prefix:?} is not allowed here");
            return None;
        }
        let output = Command::new(prefix[0])
            .args(&prefix[1..])
            .args([BELLJAR, "run", "-c", code])
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Some(text.trim().to_owned())
    };
    // Real-time and negative nice values are reset; a positive nice value is kept.
    for (prefix, inside) in [
        (&["chrt", "-f", "10"][..], "0 0"),
        (&["nice", "-n", "-10"][..], "0 0"),
        (&["nice", "-n", "7"][..], "0 7"),
    ] {
        if let Some(seen) = seen(prefix) {
            assert_eq!(seen, inside, "{prefix:?}");
        }
    }
}
