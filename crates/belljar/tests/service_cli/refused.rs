//! Invalid requests: each error says what to do.

use crate::fixture::Home;

#[test]
fn unknown_names_are_reported() {
    let home = Home::new();
    for line in [
        "info nosuch",
        "exec nosuch -- true",
        "cp nosuch:x .",
        "pause nosuch",
        "stats nosuch",
        "logs nosuch",
        "snapshot nosuch",
        "fork nosuch",
        "port nosuch 80",
        "kill nosuch",
        "ps nosuch",
        "set nosuch --timeout 1h",
    ] {
        home.run(&format!("sandbox {line}"))
            .refused(125, &["sandbox \"nosuch\" not found", "belljar sandbox ls"]);
    }
    home.write("file", "");
    home.run("sandbox cp file nosuch:x").refused(125, &["sandbox \"nosuch\" not found"]);
    home.run("template rm nosuch").refused(125, &["nosuch"]);
    home.run("sandbox create --template nosuch").refused(125, &["nosuch"]);
    home.run("sandbox create --template code-interpreter")
        .refused(125, &["its file comes with Belljar: belljar template build code-interpreter builds it"]);
    home.run("sandbox create --template python:3.12")
        .refused(125, &["an image is named as image:python:3.12"]);
    home.run("key revoke nosuch").refused(125, &["nosuch"]);
    let id = home.create("");
    home.good(&format!("sandbox kill {id}"));
    home.run(&format!("sandbox stats {id}")).refused(125, &["ended on request of the operator"]);
    home.run(&format!("sandbox kill {id} {id}")).refused(125, &[&id]);
}

#[test]
fn invalid_usage_starts_no_server() {
    let home = Home::new();
    let cases: [(&str, &[&str]); 12] = [
        ("sandbox", &["Usage: belljar sandbox"]),
        ("sandbox crate", &["unrecognized subcommand 'crate'", "create"]),
        ("sandbox create --timout 1h", &["unexpected argument '--timout'", "--timeout"]),
        ("sandbox exec x", &["required", "<CMD>"]),
        ("sandbox kill", &["required"]),
        ("sandbox kill x --all", &["cannot be used with"]),
        ("sandbox create --or-get", &["--name"]),
        ("sandbox ls --format xml", &["invalid value 'xml'", "table, json"]),
        ("sandbox port x 70000", &["70000"]),
        ("sandbox fork x -n many", &["many"]),
        ("key create --quiet=1", &["--quiet"]),
        ("completion tcsh", &["invalid value 'tcsh'", "bash"]),
    ];
    for (line, words) in cases {
        home.run(line).refused(2, words);
    }
    assert!(!home.path().join("serve.lock").exists());
}

#[test]
fn invalid_values_are_refused_with_a_hint() {
    let home = Home::new();
    let cases: [(&str, &[&str]); 16] = [
        // Values that only the server can check.
        ("sandbox create --name x!", &["name: ", "is not allowed"]),
        (
            "sandbox create --memory 1000g",
            &["limits.memory: \"1000 GiB\" is not allowed; give at most the", "machine"],
        ),
        ("sandbox create --env =x", &["env: \"\" is not allowed"]),
        ("sandbox ls --server unix:/x --home /y", &["--server and --home name two servers"]),
        ("sandbox ls --cacert x", &["--cacert: a server on a socket has no certificate"]),
        ("sandbox create --timeout soon", &["--timeout", "\"soon\" is not allowed"]),
        ("sandbox create --memory much", &["--memory", "\"much\" is not allowed"]),
        ("sandbox create --cpus none", &["--cpus"]),
        ("sandbox create --label x", &["--label", "KEY=VALUE"]),
        ("sandbox create --env NOT_SET_ANYWHERE", &["--env", "is not set here"]),
        ("sandbox create --on-timeout sleep", &["--on-timeout", "kill or pause"]),
        ("sandbox ls --state sleeping", &["--state", "running, paused"]),
        ("sandbox set x", &["nothing to change"]),
        ("sandbox shell x", &["needs a terminal", "sandbox exec"]),
        ("sandbox cp a b", &["one of the two places must be SANDBOX:PATH"]),
        ("key create --role king", &["--role", "admin, user, approver or read"]),
    ];
    for (line, words) in cases {
        home.run(line).refused(2, words);
    }
    home.run("sandbox create --file nosuch.csv").refused(125, &["nosuch.csv"]);
    home.run("secret create s")
        .refused(2, &["value: standard input is empty; give --env VARIABLE or --file PATH"]);
    home.run("secret create s --env PATH --host https://api.example.com/v1")
        .refused(2, &["a host name alone, without scheme and path, such as api.example.com"]);
    assert_eq!(home.good("sandbox ls -q"), "");
}

#[test]
fn home_flag_overrides_the_environment() {
    let home = Home::new();
    let id = home.create("");
    let home_dir = home.path();
    let with = |args: &[&str]| {
        let mut command = home.belljar(args);
        command.env_remove("BELLJAR_HOME").env("BELLJAR_API_URL", "http://127.0.0.1:1");
        // The key of that other server is not sent to this one.
        command.env("BELLJAR_API_KEY", format!("bj_{}", "0".repeat(64))).output().unwrap()
    };
    let listed = with(&["sandbox", "ls", "-q", "--home", home_dir.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), id, "{listed:?}");
    let other = with(&["sandbox", "ls", "-q"]);
    assert!(
        String::from_utf8_lossy(&other.stderr)
            .contains("cannot reach the server at http://127.0.0.1:1: Connection refused; start"),
        "{other:?}"
    );
}

/// A server of another user is not used, even if it answers.
#[test]
fn server_of_another_user_is_not_trusted() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        // Only root can create such a server.
        return;
    }
    let home = Home::new();
    for dir in [home.dir.path().to_owned(), home.path()] {
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let listener = std::os::unix::net::UnixListener::bind(home.path().join("belljar.sock")).unwrap();
    std::fs::set_permissions(home.path().join("belljar.sock"), std::fs::Permissions::from_mode(0o777))
        .unwrap();
    let program = home.file("belljar");
    // It is the whole command line, whatever its name is.
    std::fs::copy(env!("CARGO_BIN_EXE_belljar-service"), &program).unwrap();
    let as_nobody = || {
        let mut command = std::process::Command::new(&program);
        command.args(["sandbox", "ls", "--home"]).arg(home.path()).env_clear().current_dir("/");
        command.uid(65534).gid(65534).output().unwrap()
    };
    // The server is root's, in a directory of yet another user.
    chown(home.path(), Some(1234), None).unwrap();
    let refused = as_nobody();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("runs as user 0, in a directory of user 1234, and is not trusted"), "{stderr}");
    drop(listener);
    chown(home.path(), Some(0), None).unwrap();
}

#[test]
fn unreachable_server_is_named() {
    let home = Home::new();
    for line in ["sandbox ls", "sandbox create", "sandbox exec x -- true", "key ls", "audit tail"] {
        let (command, rest) = line
            .split_once(" -- ")
            .map_or((line, String::new()), |(command, rest)| (command, format!(" -- {rest}")));
        for server in ["http://127.0.0.1:1", "unix:/nowhere/belljar.sock"] {
            let refused = home.run(&format!("{command} --server {server}{rest}"));
            refused.refused(125, &["cannot reach the server at", server]);
        }
    }
    home.run("sandbox ls --server somewhere")
        .refused(125, &["\"somewhere\" is not a valid server address; give http://HOST:PORT"]);
    // No server was started instead.
    assert!(!home.path().join("serve.lock").exists());
}

#[test]
fn invalid_key_is_not_ignored() {
    let home = Home::new();
    home.create("");
    let key = format!("bj_{}", "0".repeat(64));
    for args in [["sandbox", "ls"], ["key", "ls"], ["audit", "verify"]] {
        let output = home.belljar(&args).env("BELLJAR_API_KEY", &key).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{stderr}");
        assert!(stderr.contains("--api-key or BELLJAR_API_KEY") && !stderr.contains(&key), "{stderr}");
    }
}

#[test]
fn only_the_operator_sees_the_cause_of_a_server_error() {
    let home = Home::new();
    let id = home.create("");
    let key = home.good("key create --role admin").trim().to_owned();
    home.write("home/templates", "no directory");
    let line = format!("sandbox snapshot {id}");
    home.run(&line).refused(125, &["cannot make", "templates", "File exists"]);
    let args: Vec<_> = line.split(' ').collect();
    let output = home.belljar(&args).env("BELLJAR_API_KEY", key).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("the server's log has the reason") && !stderr.contains("templates"), "{stderr}");
}
