//! `belljar` and `belljar-service`: what the first does by itself, and how it becomes the second.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::host::{Done, Host};

const GUEST: (&str, &str) = (env!("CARGO_BIN_EXE_belljar-guest"), "belljar-guest");

/// A directory with `belljar`, and these programs besides.
fn installed(others: &[(&str, &str)]) -> Host {
    let host = Host::new();
    for (program, name) in [&[(env!("CARGO_BIN_EXE_belljar"), "belljar")], others].concat() {
        fs::copy(program, host.path().join(name)).unwrap();
    }
    host
}

fn belljar(host: &Host, args: &[&str]) -> Command {
    let mut command = Command::new(host.path().join("belljar"));
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir("/").stdin(Stdio::null());
    if !rustix::process::geteuid().is_root() {
        command.env("BELLJAR_LIMITS", "watched");
    }
    command.args(args);
    command
}

#[test]
fn runs_need_no_service() {
    let host = installed(&[GUEST]);
    host.write("three.py", "import sys; print(2**64, sys.argv[1:]); sys.exit(3)");
    let script = host.path().join("three.py");
    let script = script.to_str().unwrap();
    let file = format!("{script}:in.py");
    for args in [&["run", "-q", script, "a"][..], &["run", "-q", "-f", &file, script, "a"]] {
        let done = Done::of(&mut belljar(&host, args));
        assert_eq!((done.status, done.text()), (3, "18446744073709551616 ['a']\n"), "{done:?}");
    }
    let done = Done::of(&mut belljar(&host, &["run", "--json", "-c", "print(1)"]));
    assert_eq!(done.json()["isolation"]["engine"], "local", "{done:?}");
}

#[test]
fn a_service_that_is_missing_is_named() {
    let host = installed(&[GUEST]);
    let place = fs::canonicalize(host.path()).unwrap().join("belljar-service");
    let of_the_service = [
        &["--version"][..],
        &["run", "--help"],
        &["run", "--rich", "-c", "1"],
        &["run", "--engine", "process", "-c", "1"],
        &["run", "--allow", "a.example", "-c", "1"],
        &["run", "--template", "t", "-c", "1"],
        &["run", "-"],
        &["run", "--no-such-option"],
        &["sandbox", "ls"],
        &[],
    ];
    for args in of_the_service {
        let done = Done::of(&mut belljar(&host, args));
        assert_eq!((done.status, done.text()), (125, ""), "{args:?}: {done:?}");
        let text = format!("belljar: cannot start {}: No such file", place.display());
        assert!(done.stderr.starts_with(&text), "{args:?}: {done:?}");
        assert!(done.stderr.contains("of one build into one directory"), "{args:?}: {done:?}");
    }
}

/// Who may write beside a program, as in `/tmp`, does not have others run what he puts there.
#[test]
fn a_service_that_others_may_write_is_not_started() {
    let host = installed(&[GUEST]);
    let place = fs::canonicalize(host.path()).unwrap().join("belljar-service");
    fs::copy("/bin/echo", &place).unwrap();
    let run = |mode| {
        fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        Done::of(&mut belljar(&host, &["sandbox", "ls"]))
    };
    let done = run(0o757);
    let text = format!("belljar: cannot start {}: everybody may write it; put the", place.display());
    assert!(done.status == 125 && done.text().is_empty() && done.stderr.starts_with(&text), "{done:?}");
    let done = run(0o755);
    assert_eq!((done.status, done.text()), (0, "sandbox ls\n"), "{done:?}");
}

/// A file that is no program is not a shell's script, and this program does not become itself.
#[test]
fn a_service_that_is_none_is_named() {
    let host = installed(&[GUEST]);
    let place = fs::canonicalize(host.path()).unwrap().join("belljar-service");
    let version = |name: &str| {
        let mut command = Command::new(host.path().join(name));
        Done::of(command.arg("--version").env_clear().stdin(Stdio::null()))
    };
    for content in ["", "echo no\n"] {
        fs::write(&place, content).unwrap();
        fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let done = version("belljar");
        assert_eq!((done.status, done.text()), (125, ""), "{content:?}: {done:?}");
        let text = format!("belljar: cannot start {}: Exec format error", place.display());
        assert!(done.stderr.starts_with(&text) && done.stderr.contains("one directory"), "{done:?}");
    }
    let text = format!("belljar: {} is the program belljar; put the programs", place.display());
    fs::remove_file(&place).unwrap();
    std::os::unix::fs::symlink("belljar", &place).unwrap();
    for name in ["belljar", "belljar-service"] {
        let done = version(name);
        assert_eq!((done.status, done.text()), (125, ""), "{done:?}");
        assert!(done.stderr.starts_with(&text), "{done:?}");
    }
    fs::remove_file(&place).unwrap();
    fs::copy(host.path().join("belljar"), &place).unwrap();
    let done = version("belljar");
    assert_eq!((done.status, done.text()), (125, ""), "{done:?}");
    assert!(done.stderr.starts_with(&text), "{done:?}");
}

/// Who may not give pipes to the sandbox's user leaves them to the guest.
#[test]
fn root_without_the_right_to_change_owners_runs_code() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let program = env!("CARGO_BIN_EXE_belljar");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-chown", "--inh-caps", "-chown", program]);
    command.args(["run", "-q", "-l", "sh", "-c", "echo out; echo err > /dev/stderr"]);
    let done = Done::of(command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null()));
    assert_eq!((done.status, done.text(), done.stderr.as_str()), (0, "out\n", "err\n"));
}

/// The service gets the same words, variables, streams and name, in the same process.
#[test]
fn the_service_is_the_same_process() {
    let script = ("/bin/sh", "belljar-service");
    let host = installed(&[script, GUEST]);
    let mut command = belljar(&host, &["-c", "echo $$ \"$0\" \"$1\" \"$X\"; cat; exit 3", "a b", ""]);
    command.arg0("bell").env("X", "y").stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    let done = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), format!("{pid} a b  y\n"));
    assert_eq!(done.status.code(), Some(3), "{done:?}");
}

/// Without the guest's program the service is the guest.
#[test]
fn a_run_without_the_guests_program_is_the_services() {
    let host = installed(&[(env!("CARGO_BIN_EXE_belljar-service"), "belljar-service")]);
    let done = Done::of(&mut belljar(&host, &["run", "-q", "-c", "print(2**64)"]));
    assert_eq!((done.status, done.text()), (0, "18446744073709551616\n"), "{done:?}");
    let done = Done::of(&mut belljar(&host, &["--version"]));
    assert!(done.status == 0 && done.text().starts_with("belljar "), "{done:?}");
}
