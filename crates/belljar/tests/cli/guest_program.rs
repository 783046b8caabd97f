//! The guest's executable beside `belljar`: which file is run, and what is reported when it cannot be used.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::host::{Done, Host, send, status_of, wait_for};

/// A directory with `belljar`, and `belljar-guest` as modified by `change`.
struct Installed {
    host: Host,
    guest: PathBuf,
}

impl Installed {
    fn new(change: impl FnOnce(&Path)) -> Self {
        let host = Host::new();
        let guest = host.path().join("belljar-guest");
        fs::copy(env!("CARGO_BIN_EXE_belljar-service"), host.path().join("belljar")).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_belljar-guest"), &guest).unwrap();
        change(&guest);
        Self { host, guest }
    }

    fn belljar(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.host.path().join("belljar"));
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.args(args).current_dir("/").stdin(Stdio::null());
        command
    }

    /// Returns the state and the detail of the guest's finding of `belljar doctor`.
    fn finding(&self) -> (String, String) {
        let report = Done::of(&mut self.belljar(&["doctor", "--json"])).json();
        assert_eq!(report["failure"], serde_json::Value::Null, "{report}");
        let findings = report["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["name"] == "guest").unwrap();
        let text = |field: &str| finding[field].as_str().unwrap().to_owned();
        (text("state"), text("detail"))
    }

    /// Returns the device and inode of the executable of a run's guest.
    fn guest_executable(&self) -> (u64, u64) {
        let mut command = self.belljar(&["run", "-q", "-l", "python", "-c", "import time; time.sleep(1000)"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut file = None;
        wait_for("the guest", || {
            let first = children(child.id())
                .first()
                .and_then(|supervisor| children(*supervisor).into_iter().find(is_guest));
            file = first
                .and_then(|pid| fs::metadata(format!("/proc/{pid}/exe")).ok())
                .map(|exe| (exe.dev(), exe.ino()));
            file.is_some()
        });
        send(&child, Signal::TERM);
        status_of(&mut child);
        file.unwrap()
    }
}

/// Reports whether a process is the guest: before its exec, it still has the arguments of `belljar`.
fn is_guest(pid: &u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words == b"belljar\0guest\0")
}

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn file(path: &Path) -> (u64, u64) {
    let metadata = fs::metadata(path).unwrap();
    // The guest runs from another mount, for which the kernel shows the same numbers.
    (metadata.dev(), metadata.ino())
}

#[test]
fn guest_is_the_program_beside_belljar() {
    let installed = Installed::new(|_| {});
    let (state, detail) = installed.finding();
    assert_eq!(
        (state.as_str(), detail),
        ("good", format!("a program of its own, {}", installed.guest.display()))
    );
    if rustix::process::geteuid().is_root() {
        assert_eq!(installed.guest_executable(), file(&installed.guest));
    }
}

/// Overwrites the first occurrence of some bytes.
fn patch(path: &Path, from: &[u8], to: &[u8]) {
    let mut content = fs::read(path).unwrap();
    let at = content.windows(from.len()).position(|window| window == from).unwrap();
    content[at..at + to.len()].copy_from_slice(to);
    fs::write(path, content).unwrap();
}

/// Header of a build id's note: lengths of name and id, type, name.
const NOTE: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";

/// Modification of a guest's executable.
type Change<'a> = &'a dyn Fn(&Path);

#[test]
fn program_that_is_not_the_guest_of_this_build_is_not_used() {
    let is_root = rustix::process::geteuid().is_root();
    let cut = |guest: &Path| {
        let file = fs::OpenOptions::new().write(true).open(guest).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    };
    let other_build = |guest: &Path| patch(guest, NOTE, &[NOTE, b"another build"].concat());
    let no_id = |guest: &Path| patch(guest, NOTE, b"\x04\0\0\0\x14\0\0\0\x04");
    let writable = |guest: &Path| fs::set_permissions(guest, PermissionsExt::from_mode(0o757)).unwrap();
    let for_its_group = |guest: &Path| {
        fs::set_permissions(guest, PermissionsExt::from_mode(0o775)).unwrap();
        let belljar = guest.with_file_name("belljar");
        fs::set_permissions(belljar, PermissionsExt::from_mode(0o755)).unwrap();
    };
    let not_executable = |guest: &Path| fs::set_permissions(guest, PermissionsExt::from_mode(0o644)).unwrap();
    let missing = |guest: &Path| fs::remove_file(guest).unwrap();
    let directory = |guest: &Path| {
        fs::remove_file(guest).unwrap();
        fs::create_dir(guest).unwrap();
    };
    let script = |guest: &Path| fs::write(guest, "#!/bin/sh\n").unwrap();
    let foreign = |guest: &Path| chown(guest, Some(1234), None).unwrap();
    let changes: [(Change, &str); 10] = [
        (&other_build, "it is of the build 616e6f74686572206275696c64"),
        (&no_id, "it has no build id"),
        (&cut, "it is cut short: it has "),
        (&writable, "everybody may write it"),
        (&for_its_group, "its group may write it, and this program not"),
        (&not_executable, "it may not be executed"),
        (&missing, "No such file or directory"),
        (&directory, "it is no file"),
        (&script, "it is no program of 64 bits"),
        (&foreign, "it belongs to user 1234, and this program to user 0"),
    ];
    // Only root can change the owner of a file.
    let last = if is_root { 10 } else { 9 };
    for (change, why) in &changes[..last] {
        let installed = Installed::new(change);
        let (state, detail) = installed.finding();
        assert_eq!(state, "weaker", "{why}: {detail}");
        let expected =
            format!("this program itself, which takes longer to start: {}: {why}", installed.guest.display());
        assert!(detail.starts_with(&expected), "{detail:?} does not begin with {expected:?}");
        if is_root {
            assert_eq!(installed.guest_executable(), file(&installed.host.path().join("belljar")), "{why}");
        }
        let done = Done::of(&mut installed.belljar(&["run", "-q", "-c", "print(1)"]));
        assert_eq!((done.status, done.text()), (0, "1\n"), "{done:?}");
    }
}

#[test]
fn guest_is_started_by_belljar_only() {
    let done = Done::of(Command::new(env!("CARGO_BIN_EXE_belljar-guest")).stdin(Stdio::null()));
    done.check(2, "", "belljar-guest: it is started by belljar, not by hand\n");
}
