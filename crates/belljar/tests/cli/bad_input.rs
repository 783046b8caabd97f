//! Invalid input: refused with one clear sentence, before anything starts, with nothing left behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode};

use crate::host::{Done, Host};

/// Runs with `args` and expects a refusal. `DIR` in the texts is the directory of the test.
#[track_caller]
fn check(host: &Host, args: &[&str], message: &str) {
    check_with(host, args, &[], message);
}

#[track_caller]
fn check_with(host: &Host, args: &[&str], variables: &[(&str, &str)], message: &str) {
    let before = host.names();
    let dir = host.path().canonicalize().unwrap();
    let args: Vec<String> =
        args.iter().map(|argument| argument.replace("DIR", &dir.to_string_lossy())).collect();
    let args: Vec<&str> = ["run"].into_iter().chain(args.iter().map(String::as_str)).collect();
    let variables =
        variables.iter().map(|(name, value)| (name, value.replace("DIR", &dir.to_string_lossy())));
    let done = Done::of(host.belljar(&args).envs(variables));
    let stderr = without_list(&done.stderr.replace(&*dir.to_string_lossy(), "DIR"));
    // An invalid value is wrong usage; other input is refused.
    let status = if BAD_VALUE.iter().any(|words| message.contains(words)) { 2 } else { 125 };
    assert_eq!(
        (done.status, stderr.as_str()),
        (status, format!("belljar: {message}\n").as_str()),
        "{args:?}"
    );
    assert_eq!(done.text(), "");
    assert_eq!(host.names(), before);
}

/// Parts of the messages for invalid values.
const BAD_VALUE: [&str; 8] = [
    "are both mounted on",
    "is not allowed",
    "is not in this version",
    "is not known, did you mean",
    "is not known; known are",
    "is not set here",
    "unknown key",
    "this key is given twice",
];

/// Removes the list of languages, which may grow.
fn without_list(stderr: &str) -> String {
    match stderr.split_once("known are ") {
        Some((before, _)) => format!("{before}known are …\n"),
        None => stderr.to_owned(),
    }
}

fn fifo(host: &Host, name: &str) {
    rustix::fs::mknodat(CWD, host.path().join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn scripts() {
    let host = Host::new();
    std::fs::create_dir(host.path().join("dir.py")).unwrap();
    fifo(&host, "fifo.py");
    host.write("unknown.xyz", "1");
    host.write("plain", "1");
    host.write("latin.js", b"ab\xe9");
    File::create(host.path().join("huge.py")).unwrap().set_len(1 << 30).unwrap();
    for (args, message) in [
        (
            &["-l", "pyton", "-c", "1"][..],
            "language: \"pyton\" is not known, did you mean python?; known are …",
        ),
        (&["-l", "klingon", "-c", "1"], "language: \"klingon\" is not known; known are …"),
        (&["missing.py"], "script: cannot read \"missing.py\": No such file or directory (os error 2)"),
        (&["dir.py"], "script: \"dir.py\" is a directory; give a regular file"),
        (&["fifo.py"], "script: \"fifo.py\" is a FIFO; give a regular file"),
        (&["/dev/zero"], "script: \"/dev/zero\" is a device; give a regular file"),
        (
            &["unknown.xyz"],
            "language: \"unknown.xyz\" has no known extension and no known #! line; name it with -l; known are …",
        ),
        (
            &["plain"],
            "language: \"plain\" has no known extension and no known #! line; name it with -l; known are …",
        ),
        (&["latin.js"], "script: byte 2 of \"latin.js\" is not UTF-8; give text in UTF-8"),
        (&["huge.py"], "script: \"huge.py\" has 1073741824 bytes; at most 67108864 are allowed"),
        (
            &["--log-dir", "nowhere", "-c", "1"],
            "log-dir: cannot use \"nowhere\": No such file or directory (os error 2)",
        ),
        (&["--log-dir", "plain", "-c", "1"], "log-dir: \"plain\" is not a directory"),
    ] {
        check(&host, args, message);
    }
}

#[test]
fn non_utf8_arguments_are_refused() {
    let host = Host::new();
    let args: [&OsStr; 5] =
        [OsStr::new("run"), OsStr::new("-c"), OsStr::new("1"), OsStr::new("a"), OsStr::from_bytes(b"b\xff")];
    host.run(&args).check(
        125,
        "",
        "belljar: arguments: byte 1 of argument 2 is not UTF-8; give text in UTF-8\n",
    );
}

#[test]
fn endless_script_on_standard_input_is_refused() {
    let host = Host::new();
    let mut command = host.belljar(&["run", "-"]);
    command.stdin(File::open("/dev/zero").unwrap());
    Done::of(&mut command).check(
        125,
        "",
        "belljar: script: standard input has more than 67108864 bytes, which is the most that is allowed\n",
    );
}

#[test]
fn limits() {
    let host = Host::new();
    for (flag, value, message) in [
        ("--memory", "0", "memory: \"0\" is not allowed; give a size from 16 MiB to 1 TiB, such as 256m"),
        (
            "--memory",
            "5 parsecs",
            "memory: \"5 parsecs\" is not allowed; give a size from 16 MiB to 1 TiB, such as 256m",
        ),
        (
            "--cpus",
            "0",
            "cpus: \"0\" is not allowed; give a number from 0.01 to 1024 with at most three decimals, such as 0.5",
        ),
        (
            "--timeout",
            "0",
            "timeout: \"0\" is not allowed; give a time from 1 ms to 24 h, such as 30, 1.5, 500ms, 30s, 10m or 1h",
        ),
        (
            "--timeout",
            "25h",
            "timeout: \"25h\" is not allowed; give a time from 1 ms to 24 h, such as 30, 1.5, 500ms, 30s, 10m or 1h",
        ),
        (
            "--timeout",
            "30m5",
            "timeout: \"30m5\" is not allowed; give a time from 1 ms to 24 h, such as 30, 1.5, 500ms, 30s, 10m or 1h",
        ),
        ("--pids", "0", "pids: \"0\" is not allowed; give a whole number from 1 to 4194304, such as 64"),
        ("--pids", "64m", "pids: \"64m\" is not allowed; give a whole number from 1 to 4194304, such as 64"),
        ("--tmp", "0", "tmp: \"0\" is not allowed; give a size from 1 MiB to 1 TiB, such as 100m"),
        ("--disk", "1s", "disk: \"1s\" is not allowed; give a size from 1 MiB to 16 TiB, such as 1g"),
        (
            "--inodes",
            "0",
            "inodes: \"0\" is not allowed; give a whole number from 16 to 4294967296, such as 65536",
        ),
        ("--output", "0", "output: \"0\" is not allowed; give a size from 4 KiB to 256 MiB, such as 8m"),
        (
            "--open-files",
            "0",
            "open_files: \"0\" is not allowed; give a whole number from 16 to 1048576, such as 1024",
        ),
        ("--limits", "none", "grade: \"none\" is not allowed; give cgroup, or watched, which is weaker"),
        ("--net", "some", "network: \"some\" is not allowed; give disabled, whitelist or open"),
        (
            "--preset",
            "pipp",
            "network.presets: \"pipp\" is not allowed; give pip, if that is meant, or another of apt, brew, cargo, docker, gem, \
             go, maven, npm, nuget, pip",
        ),
        (
            "--allow",
            "a..b",
            "network.allow: \"a..b\" is not allowed; give a name without empty labels: no dot at the beginning, no two dots in a row",
        ),
        (
            "--hostname",
            "a b",
            "hostname: \"a b\" is not allowed; give 1 to 63 letters, digits and hyphens, with no hyphen at either end, such as belljar",
        ),
        (
            "--engine",
            "microvm",
            "engine: \"microvm\" is not in this version; give local, process, none, docker or gvisor",
        ),
        (
            "--engine",
            "jail",
            "engine: \"jail\" is not in this version; give local, process, none, docker or gvisor",
        ),
        (
            "--env",
            "=x",
            "env: \"\" is not allowed; give a name that is not empty and has no = and no NUL in it, such as LANG",
        ),
        ("--env", "NOT_SET_HERE", "env: \"NOT_SET_HERE\" is not set here; give NAME=VALUE"),
    ] {
        check(&host, &[flag, value, "-c", "print(1)"], message);
    }
}

#[test]
fn variables_that_choose() {
    let host = Host::new();
    for (name, value, message) in [
        (
            "BELLJAR_ENGINE",
            "microvm",
            "BELLJAR_ENGINE: \"microvm\" is not in this version; give local, process, none, docker or gvisor",
        ),
        (
            "CODE_EXEC_SANDBOX",
            "local",
            "CODE_EXEC_SANDBOX: \"local\" is not allowed; give docker, process or none",
        ),
        (
            "BELLJAR_ENGINES_DOCKER_IMAGE",
            "Not A Name",
            "BELLJAR_ENGINES_DOCKER_IMAGE: \"Not A Name\" is not allowed; give the name of an image, such as python:3.12-slim",
        ),
        (
            "BELLJAR_LIMITS",
            "weak",
            "grade: \"weak\" is not allowed; give cgroup, or watched, which is weaker",
        ),
    ] {
        check_with(&host, &["-c", "print(1)"], &[(name, value)], message);
    }
}

#[test]
fn specifications() {
    let host = Host::new();
    for (name, content, message) in [
        (
            "a.toml",
            "memroy = 1",
            "spec: \"a.toml\" cannot be used: \"memroy\": unknown key; allowed here: approval, engine, env, grade, hostname, interactive, language, limits, machine, mounts, network, screening, user, volumes",
        ),
        (
            "b.toml",
            "[limits]\nmemroy = '1g'",
            "spec: \"b.toml\" cannot be used: \"limits.memroy\": unknown key, did you mean limits.memory?; \
             allowed here: cpus, disk, inodes, log, memory, open_files, output, pids, timeout, tmp",
        ),
        (
            "c.json",
            r#"{"env": {"A": "1", "A": "2"}}"#,
            "spec: \"c.json\" cannot be used: \"env.A\": this key is given twice",
        ),
        (
            "d.json",
            r#"{"limits": {"pids": 0}}"#,
            "spec: \"d.json\" cannot be used: pids: \"0\" is not allowed; give a whole number from 1 to 4194304, such as 64",
        ),
        (
            "e.json",
            r#"{"env": {"A=B": "1"}}"#,
            "env: \"A=B\" is not allowed; give a name that is not empty and has no = and no NUL in it, such as LANG",
        ),
        (
            "f.json",
            r#"{"env": {"A": "1\u0000"}}"#,
            "env: the value of \"A\" is not allowed; give a value without a NUL in it",
        ),
        ("g.yaml", "a: 1", "spec: \"g.yaml\" is not known; give a file that ends in .toml or .json"),
        (
            "h.json",
            "[1]",
            "spec: \"h.json\" cannot be used: \"the whole text\": a list is not allowed; give a table of keys and values",
        ),
        (
            "i.json",
            r#"{"language": "pyton"}"#,
            "language: \"pyton\" is not known, did you mean python?; known are …",
        ),
    ] {
        host.write(name, content);
        check(&host, &["--spec", name, "-c", "print(1)"], message);
    }
    check(
        &host,
        &["--spec", "missing.toml", "-c", "1"],
        "spec: cannot read \"missing.toml\": No such file or directory (os error 2)",
    );
    File::create(host.path().join("huge.toml")).unwrap().set_len(1 << 30).unwrap();
    check(
        &host,
        &["--spec", "huge.toml", "-c", "1"],
        "spec: \"huge.toml\" has 1073741824 bytes; at most 1048576 are allowed",
    );
    for (name, content) in [("bad.json", "{\"a\": "), ("bad.toml", "a = = 1")] {
        host.write(name, content);
        let done = host.run(&["run", "--spec", name, "-c", "1"]);
        assert_eq!(done.status, 2);
        let kind = if name == "bad.json" { "JSON" } else { "TOML" };
        let begin = format!("belljar: spec: \"{name}\" cannot be used: the text is not valid {kind}: ");
        assert!(done.stderr.starts_with(&begin) && done.stderr.contains("line 1"), "{done:?}");
    }
}

#[test]
fn mounts() {
    let host = Host::new();
    std::fs::create_dir_all(host.path().join("home/.ssh")).unwrap();
    symlink(host.path().join("home/.ssh"), host.path().join("to-ssh")).unwrap();
    symlink("/", host.path().join("to-root")).unwrap();
    symlink("/etc/shadow", host.path().join("to-shadow")).unwrap();
    for (args, message) in [
        (
            &["--mount", "/:/x"][..],
            "mount source: \"/\" is not allowed; give a directory or a file below /, not / itself",
        ),
        (
            &["--mount", "~/.ssh:/x"],
            "mount source: \"~/.ssh\" is not allowed; give the whole path, which begins with /; ~ is not expanded here",
        ),
        (&["--mount", "DIR/home/.ssh:/x"], "cannot mount \"DIR/home/.ssh\": \"DIR/home/.ssh\" is forbidden"),
        (
            &["--mount", "DIR/home:/x"],
            "cannot mount \"DIR/home\": it contains \"DIR/home/.ssh\", which is forbidden; name a directory that does not",
        ),
        (
            &["--mount", "DIR/to-ssh:/x"],
            "cannot mount \"DIR/to-ssh\", which leads to \"DIR/home/.ssh\": \"DIR/home/.ssh\" is forbidden",
        ),
        (
            &["--mount", "DIR/to-root:/x"],
            "cannot mount \"DIR/to-root\": it is the root of the host; name a directory below it",
        ),
        (
            &["--mount", "DIR/to-shadow:/x:rw"],
            "cannot mount \"DIR/to-shadow\", which leads to \"/etc/shadow\": \"/etc/shadow\" is forbidden",
        ),
        (
            &["--mount", "/srv:/x", "--mount", "/opt:/x"],
            "mounts: \"/srv\" and \"/opt\" are both mounted on \"/x\"; give each a path of its own",
        ),
        (
            &["--mount", "DIR/none:/x"],
            "mount: cannot use \"DIR/none\": No such file or directory (os error 2)",
        ),
        (
            &["--mount", "data:/x"],
            "mount source: \"data\" is not allowed; give an absolute path, which begins with /",
        ),
        (
            &["--mount", "/srv:/etc/x"],
            "mount target: \"/etc/x\" is not allowed; give a path outside of /proc, /sys, /dev, /etc, /usr, /bin, /sbin, /lib, /lib32, /lib64, /libx32",
        ),
        (
            &["--mount", "/srv:/x:wr"],
            "mount: \"/srv:/x:wr\" is not allowed; give SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw, such as /data:/data:ro",
        ),
    ] {
        let args = [args, &["-c", "print(1)"]].concat();
        check_with(&host, &args, &[("HOME", "DIR/home")], message);
    }
}

#[test]
fn policies() {
    let host = Host::new();
    host.write("typo.toml", "raed = []");
    for (args, message) in [
        (
            &["--policy", "missing.toml", "-c", "1"],
            "policy: cannot read \"missing.toml\": No such file or directory (os error 2)",
        ),
        (&["--policy", "DIR", "-c", "1"], "policy: \"DIR\" is a directory; give a regular file"),
    ] {
        check(&host, args, message);
    }
    let done = host.run(&["run", "--policy", "typo.toml", "-c", "1"]);
    assert_eq!(done.status, 125);
    assert!(
        done.stderr.contains("unknown field `raed`, expected one of `read`, `write`, `forbidden`"),
        "{done:?}"
    );
}

#[test]
fn files_in() {
    let host = Host::new();
    host.write("a", "1");
    fifo(&host, "fifo");
    std::fs::create_dir(host.path().join("tree")).unwrap();
    fifo(&host, "tree/fifo");
    host.write("main.py", "print('another')");
    File::create(host.path().join("huge")).unwrap().set_len(600 << 20).unwrap();
    for (args, message) in [
        (
            &["-f", "huge"][..],
            "file: the files have 600 MiB, and the sandbox keeps them in its memory, whose limit is 512 MiB; raise it with \
             --memory, or show them inside with --mount",
        ),
        (&["-f", "missing"], "file: cannot read \"missing\": No such file or directory (os error 2)"),
        (&["-f", "fifo"], "file: \"DIR/fifo\" is a FIFO; give a regular file"),
        (&["-f", "tree"], "file: \"DIR/tree/fifo\" is a FIFO; give a regular file"),
        (&["-f", "/"], "file: \"/\" has no name; give it one after a colon"),
        (&["-f", "a:../x"], "invalid destination \"../x\"; give a path without .. in it"),
        (&["-f", "a", "-f", "a"], "file: \"a\" is given twice; give each file a place of its own"),
        (&["-f", "a:main.py"], "file: \"main.py\" is given twice; give each file a place of its own"),
        (&["-f", "main.py"], "file: \"main.py\" is given twice; give each file a place of its own"),
    ] {
        let args = [args, &["-c", "print(1)"]].concat();
        check(&host, &args, message);
    }
}

#[test]
fn files_out() {
    let host = Host::new();
    host.write("plain", "kept");
    symlink("plain", host.path().join("link")).unwrap();
    symlink("nowhere", host.path().join("dangling")).unwrap();
    fifo(&host, "fifo");
    std::fs::create_dir(host.path().join("dir")).unwrap();
    symlink("x", host.path().join("dir/x")).unwrap();
    for (args, message) in [
        (
            &["-o", "x:link"][..],
            "out: \"link\" is a symbolic link; give a place that is free or a regular file",
        ),
        (
            &["-o", "dangling"],
            "out: \"dangling\" is a symbolic link; give a place that is free or a regular file",
        ),
        (&["-o", "x:fifo"], "out: \"fifo\" is a FIFO; give a place that is free or a regular file"),
        (
            &["-o", "x:/dev/null"],
            "out: \"/dev/null\" is a device; give a place that is free or a regular file",
        ),
        (&["-o", "x:dir"], "out: \"dir/x\" is a symbolic link; give a place that is free or a regular file"),
        (&["-o", "x:new/"], "out: \"new/\" is not a directory"),
        (&["-o", "x/.:plain/y"], "out: \"plain\" is not a directory"),
        (&["-o", ""], "out: \"\" names no file; give SRC[:DEST]"),
        (&["-o", ".."], "invalid destination \"..\"; give a path without .. in it"),
        (&["-o", "x:new/x"], "out: cannot use \"new\": No such file or directory (os error 2)"),
        (&["-o", "x:plain/x"], "out: \"plain\" is not a directory"),
        (&["-o", "../x"], "invalid destination \"../x\"; give a path without .. in it"),
        (
            &["-o", "a/x", "-o", "b/x"],
            "out: \"a/x\" and \"b/x\" would both go to \"x\"; give each a place of its own",
        ),
    ] {
        let args = [args, &["-c", "print(1)"]].concat();
        check(&host, &args, message);
    }
    assert_eq!(host.read("plain"), b"kept");
}

#[test]
fn unreadable_script_is_reported() {
    if rustix::process::geteuid().is_root() {
        // No file is unreadable for root; a path below a regular file comes closest.
        let host = Host::new();
        host.write("file", "");
        check(&host, &["file/x.py"], "script: cannot read \"file/x.py\": Not a directory (os error 20)");
        return;
    }
    let host = Host::new();
    host.write("x.py", "1");
    rustix::fs::chmod(host.path().join("x.py"), Mode::empty()).unwrap();
    check(&host, &["x.py"], "script: cannot read \"x.py\": Permission denied (os error 13)");
}

#[test]
fn wrong_usage_exits_with_2() {
    let host = Host::new();
    for args in [
        &[][..],
        &["frobnicate"],
        &["run", "--memroy", "1g", "x.py"],
        &["run", "--json", "--events", "-c", "1"],
        &["run", "--memory"],
        &["shell"],
    ] {
        let done = host.run(args);
        assert_eq!(done.status, 2, "{done:?}");
        assert_eq!(done.text(), "");
        assert!(!done.stderr.is_empty());
    }
    host.run(&["shell"]).check(
        2,
        "",
        "belljar: shell needs a terminal on standard input; without one use belljar run -l bash\n",
    );
    let words: [OsString; 3] = ["run".into(), "--language".into(), "x".into()];
    assert_eq!(host.run(&words).status, 2);
}

#[test]
fn memory_limit_above_the_machines_is_refused() {
    let host = Host::new();
    let done = host.run(&["run", "--memory", "1000g", "-c", "print(1)"]);
    assert_eq!((done.status, done.text()), (2, ""), "{done:?}");
    let reason = "belljar: memory: \"1000 GiB\" is not allowed; give at most the ";
    assert!(done.stderr.starts_with(reason) && done.stderr.ends_with(" of this machine\n"), "{done:?}");
}
