//! The server in the background: started by the first command that needs it, shared by all, and ended when idle.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::fixture::{DEADLINE, Done, Home, eventually, stop};

const FIRST: &str = "belljar: started a background server";

#[test]
fn command_starts_a_server_that_ends_when_idle() {
    let home = Home::new();
    let first = home.run("sandbox create");
    assert_eq!(first.status, Some(0), "{first:?}");
    assert!(first.stderr.starts_with(FIRST) && first.stderr.lines().count() == 1, "{first:?}");
    let second = home.run("sandbox ls -q");
    assert_eq!((second.stdout, second.stderr.as_str()), (first.stdout.clone(), ""));
    let (pid, holder) = home.holder().unwrap();
    assert_eq!(holder["background"], true);
    assert_eq!(holder["socket"].as_str(), home.path().join("belljar.sock").to_str());
    // It listens only on its socket, and has left the session of the command.
    assert_eq!(holder["url"], serde_json::Value::Null);
    assert_eq!(rustix::process::getsid(Some(pid)).unwrap(), pid);
    // A sandbox keeps it running, for much longer than the linger time.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        assert_eq!(home.holder().unwrap().0, pid);
        assert!(home.is_held());
        std::thread::sleep(Duration::from_millis(50));
    }
    home.good(&format!("sandbox kill {}", first.stdout.trim()));
    eventually(|| if home.is_held() { Err("it does not end".to_owned()) } else { Ok(()) });
    for socket in ["belljar.sock", "handover.sock"] {
        assert!(!home.path().join(socket).exists(), "{socket}");
    }
    // The next start is not announced.
    let again = home.run("sandbox ls");
    assert_eq!((again.status, again.stderr.as_str()), (Some(0), ""));
    assert_ne!(home.holder().unwrap().0, pid);
}

/// The daemon that a user names is that of a server which a command starts, too.
#[test]
fn docker_host_reaches_the_server() {
    let home = Home::configured("[server]\nlinger = '1s'\n[sandboxes]\nengines = ['docker']\npool = 0\n");
    let mut command = home.belljar(&["sandbox", "create", "--engine", "docker", "--image", "debian:12"]);
    command.env("DOCKER_HOST", "unix:///no/such.sock").env_remove("DOCKER_CONTEXT");
    let done = Done::of(command.output().unwrap());
    done.refused(125, &["unix:///no/such.sock"]);
}

/// An ordinary user without control groups gets sandboxes by the advice as it is printed, also from a server that runs already.
#[test]
fn advice_for_an_ordinary_user_works_as_printed() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        // This user has a control group.
        return;
    }
    // The first server must not end between two commands.
    let home = Home::configured("[server]\nlinger = '1h'\n");
    std::fs::set_permissions(home.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for path in [home.path(), home.path().join("belljar.toml")] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let program = home.file("belljar");
    // It is the whole command line, whatever its name is.
    std::fs::copy(env!("CARGO_BIN_EXE_belljar-service"), &program).unwrap();
    home.write("t.toml", "name = \"t\"\nbase = \"host\"\n[[step]]\nrun = \"true\"\n");
    let run = |program: &std::path::Path, args: &[&str], limits: &str| {
        let mut command = std::process::Command::new(program);
        command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("BELLJAR_HOME", home.path());
        command.env("BELLJAR_LIMITS", limits).current_dir("/").stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
        Done::of(command.output().unwrap())
    };
    let as_nobody = |args: &[&str], limits: &str| run(&program, args, limits);
    let refused = as_nobody(&["sandbox", "create"], "");
    refused.refused(
        125,
        &[
            "cannot enforce the limits of memory, processors and processes",
            "grade watched",
            "full grade cgroup",
        ],
    );
    let begin = refused.stderr.find("BELLJAR_LIMITS=watched").unwrap();
    let line = refused.stderr[begin..].split(';').next().unwrap().trim();
    let grade_of = |id: &str| {
        let info = as_nobody(&["sandbox", "info", id, "--format", "json"], "").good();
        serde_json::from_str::<serde_json::Value>(&info).unwrap()["isolation"]["grade"].clone()
    };
    let made = run("/bin/sh".as_ref(), &["-c", line], "").good();
    assert_eq!(grade_of(made.trim()), "watched", "{line}");
    // A sandbox could not mount what is built.
    let template = home.file("t.toml");
    let build = ["template", "build", template.to_str().unwrap()];
    as_nobody(&build, "").refused(125, &["only a server that runs as root"]);
    as_nobody(&["run", "--image", "127.0.0.1:1/x:1", "-c", "1"], "")
        .refused(125, &["only a server that runs as root"]);
    let warnings = || {
        let log = std::fs::read_to_string(home.path().join("belljar.log")).unwrap();
        log.matches("no sandbox can be created here").count()
    };
    assert_eq!(warnings(), 1);
    let status = as_nobody(&["status"], "");
    assert!(status.stdout.contains("no: no sandbox can be created here: control groups: "), "{status:?}");
    assert_eq!(status.status, Some(1), "{status:?}");
    let end = || {
        as_nobody(&["sandbox", "kill", "--all"], "").good();
        rustix::process::kill_process(home.holder().unwrap().0, Signal::TERM).unwrap();
        eventually(|| if home.is_held() { Err("it does not end".to_owned()) } else { Ok(()) });
    };
    end();
    // A server that is started with the variable has it for all sandboxes.
    let made = as_nobody(&["sandbox", "create"], "watched").good();
    assert_eq!(grade_of(made.trim()), "watched");
    let made = as_nobody(&["sandbox", "create"], "").good();
    assert_eq!(grade_of(made.trim()), "watched");
    let rich = ["run", "--rich", "--limits", "watched", "-l", "sh", "-c", "echo $((6 * 7))"];
    assert_eq!(as_nobody(&rich, "").good(), "42\n");
    assert_eq!(warnings(), 1);
    end();
}

/// The watcher's reason is printed as the kernel's.
#[test]
fn watched_memory_limit_is_named() {
    let home = Home::configured("[server]\nlinger = '1s'\n[template]\ngrade = 'watched'\n");
    let id = home.create("--memory 64m");
    let code = "x = b'x' * (300 << 20); import time; time.sleep(60)";
    home.run_args(&["sandbox", "exec", &id, "--", "python3", "-c", code]).refused(
        137,
        &["exceeded its 64.0 MiB memory limit", &format!("belljar sandbox set {id} --memory SIZE")],
    );
}

#[test]
fn file_beyond_the_memory_is_refused_with_sizes() {
    let home = Home::new();
    let id = home.create("--memory 64m --disk 1g");
    std::fs::File::create(home.file("big")).unwrap().set_len(200 << 20).unwrap();
    home.run(&format!("sandbox cp big {id}:big")).refused(
        125,
        &["count against its limit memory: it has 64.0 MiB, of which", &format!("set {id} --memory SIZE")],
    );
}

#[test]
fn missing_default_template_is_reported_at_start() {
    let home = Home::configured("[server]\nlinger = '1s'\n[sandboxes]\ndefault_template = 'nosuch'\n");
    home.good("sandbox ls");
    let log = std::fs::read_to_string(home.path().join("belljar.log")).unwrap();
    assert!(log.contains("default_template=\"nosuch\"") && log.contains("not found: requests"), "{log}");
}

#[test]
fn key_is_changed_by_its_name() {
    let home = Home::new();
    let created = home.json("key create --role user --name ci");
    let id = created["id"].as_str().unwrap();
    assert_eq!(home.good("key set ci --max-sandboxes 3").trim(), id);
    let second = home.run("key create --role user --name ci");
    assert!(second.stderr.contains("other keys have its name: belljar key set"), "{second:?}");
    assert!(home.run("key create").stderr.contains("it has no name: belljar key set"), "{second:?}");
    home.run("key set ci --max-sandboxes 3").refused(2, &["\"ci\" is the name of several keys", id]);
    home.run("key set ci").refused(2, &["nothing to change; see belljar key set --help"]);
    home.run("key revoke nosuch").refused(125, &["key \"nosuch\" not found; belljar key ls lists"]);
}

#[test]
fn concurrent_commands_start_one_server() {
    let home = Home::new();
    let mut running: Vec<_> = (0..12)
        .map(|_| {
            let mut command = home.belljar(&["sandbox", "create", "-q"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in running.drain(..) {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    assert_eq!(home.good("sandbox ls -q").lines().count(), 12);
    let log = std::fs::read_to_string(home.path().join("belljar.log")).unwrap();
    assert_eq!(log.matches("serving").count(), 1, "{log}");
}

#[test]
fn commands_race_with_ending_servers() {
    // Each time, the command may race with a server that is about to end.
    let home = Home::new();
    let begin = Instant::now();
    let mut servers = std::collections::BTreeSet::new();
    let mut pause = Duration::from_millis(1000);
    while begin.elapsed() < Duration::from_secs(15) && servers.len() < 6 {
        let done = home.run("sandbox ls -q");
        assert_eq!((done.status, done.stdout.as_str()), (Some(0), ""), "{done:?}");
        servers.insert(home.holder().unwrap().0.as_raw_nonzero());
        std::thread::sleep(pause);
        pause += Duration::from_millis(37);
    }
    assert!(servers.len() > 1, "no server ended");
}

#[test]
fn deadlines_are_enforced_without_a_command() {
    let home = Home::new();
    let id = home.create("--timeout 1s");
    let socket = home.path().join("belljar.sock");
    eventually(|| if socket.exists() { Err("the server stays".to_owned()) } else { Ok(()) });
    let info = home.json(&format!("sandbox info {id}"));
    assert_eq!(
        (info["state"].as_str(), info["reason"].as_str()),
        (Some("gone"), Some("timed out")),
        "{info}"
    );
}

#[test]
fn server_started_by_hand_takes_over() {
    let home = Home::new();
    let id = home.create("");
    home.inside(&id, "echo made > note");
    home.good(&format!("sandbox exec -d {id} -- sleep 300"));
    let (background, _) = home.holder().unwrap();
    let (server, said) = home.serve(&[]);
    assert!(home.read("serve.err").contains(&format!(
        "waiting for the server in the background (process {}) to end",
        background.as_raw_nonzero()
    )));
    assert_eq!(home.holder().unwrap().0, rustix::process::Pid::from_child(&server));
    assert_eq!(home.inside(&id, "cat note"), "made\n");
    // The list also contains `cat`, so the line is searched.
    let listed = home.good(&format!("sandbox ps {id}"));
    assert!(listed.lines().any(|line| line.contains("running") && line.contains("sleep 300")), "{listed}");
    // It can also be used by its address and with its key.
    let address = said.split_once("http://").unwrap().1.lines().next().unwrap();
    let key = said.split_once("BELLJAR_API_KEY=").unwrap().1.split(' ').next().unwrap();
    let mut command = home.belljar(&["sandbox", "ls", "-q", "--server", &format!("http://{address}")]);
    let listed = command.env("BELLJAR_API_KEY", key).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), id, "{listed:?}");
    stop(server);
    // The next command starts a background server again.
    assert_eq!(home.inside(&id, "cat note"), "made\n");
    assert_eq!(home.holder().unwrap().1["background"], true);
}

#[test]
fn server_is_found_at_its_published_socket() {
    let home = Home::new();
    let socket = home.file("elsewhere.sock");
    let (server, _) = home.serve(&["--socket", socket.to_str().unwrap()]);
    let id = home.create("");
    assert_eq!(home.good("sandbox ls -q").trim(), id);
    assert!(!home.path().join("belljar.sock").exists());
    home.good(&format!("sandbox kill {id}"));
    stop(server);
    let (server, said) = home.serve(&["--socket", ""]);
    let address = said.split_once("http://").unwrap().1.lines().next().unwrap();
    let refused = home.run("sandbox ls");
    refused.refused(125, &["has no Unix socket", &format!("--server http://{address}"), "BELLJAR_API_KEY"]);
    stop(server);
}

#[test]
fn cacert_flag_names_trusted_certificates() {
    let home = Home::new();
    let (certificate, key) = (home.file("cert.pem"), home.file("key.pem"));
    let made = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(home.dir.path())
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        return;
    }
    let set = |name: &str, path: &std::path::Path| format!("server.{name}={}", path.display());
    let (server, said) =
        home.serve(&["--set", &set("tls_certificate", &certificate), "--set", &set("tls_key", &key)]);
    let address = said.split_once("https://").unwrap().1.lines().next().unwrap();
    let key = said.split_once("BELLJAR_API_KEY=").unwrap().1.split(' ').next().unwrap();
    let line = format!("sandbox ls -q --server https://{address} --api-key {key}");
    let refused = home.run(&line);
    refused.refused(125, &["cannot reach the server at https://", "certificate"]);
    assert_eq!(home.good(&format!("{line} --cacert cert.pem")), "");
    home.run(&format!("{line} --cacert nosuch.pem"))
        .refused(125, &["cannot read certificates from nosuch.pem"]);
    stop(server);
}

#[test]
fn socket_may_have_a_long_path() {
    let home = Home::new();
    let long = home.dir.path().join("a".repeat(90)).join("b".repeat(90));
    let mut command = home.belljar(&["sandbox", "ls", "-q", "--home", long.to_str().unwrap()]);
    let done = command.env("BELLJAR_SERVER_LINGER", "1s").output().unwrap();
    assert!(done.status.success(), "{done:?}");
    eventually(|| if long.join("belljar.sock").exists() { Err("it stays".to_owned()) } else { Ok(()) });
}

#[test]
fn command_reports_why_no_server_can_start() {
    let home = Home::new();
    let none = "no server is running here, and none can be started in the background: ";
    home.write("home/belljar.toml", "[server]\nlinger = 'soon'\n");
    home.run("sandbox ls").refused(125, &[none, "belljar.toml:2:10: server.linger: \"soon\" is not allowed"]);
    home.write("home/belljar.toml", "[store]\nurl = 'sqlite:/dev/null/x.db'\n");
    home.run("sandbox create").refused(125, &[none, "/dev/null", "belljar.log"]);
    home.write("file", "");
    let file = home.file("file");
    let refused = home.run_args(&["sandbox", "ls", "--home", file.to_str().unwrap()]);
    refused.refused(125, &["is not a directory; name another one with BELLJAR_HOME or --home"]);
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    home.run("sandbox ls").refused(125, &["may be written by others (mode 0777); chmod go-w it"]);
}

#[test]
fn server_inherits_nothing_from_the_command() {
    let home = Home::new();
    let mut shell = std::process::Command::new("sh");
    let belljar = home.belljar(&["sandbox", "create"]);
    shell.args(["-c", "exec 7>&1; \"$0\" sandbox create 2>/dev/null"]).arg(belljar.get_program());
    for (name, value) in belljar.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        shell.env(name, value);
    }
    shell.env("SOME_SECRET", "s3cret").env("BELLJAR_API_URL", "");
    let begin = Instant::now();
    // The output ends when the write end is closed, so only with the server if it had inherited it.
    let output = shell.output().unwrap();
    assert!(output.status.success() && begin.elapsed() < DEADLINE / 2, "{output:?}");
    assert!(home.is_held());
    let (pid, _) = home.holder().unwrap();
    let of = |what: &str| std::fs::read(format!("/proc/{}/{what}", pid.as_raw_nonzero())).unwrap();
    let environment = String::from_utf8_lossy(&of("environ")).into_owned();
    assert!(environment.contains("BELLJAR_HOME=") && !environment.contains("SECRET"), "{environment}");
    assert!(!environment.contains("BELLJAR_API"), "{environment}");
    assert_eq!(String::from_utf8_lossy(&of("comm")), "belljar\n");
    let cwd = std::fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).unwrap();
    assert_eq!(cwd, std::path::Path::new("/"));
}

#[test]
fn killed_server_is_replaced_and_its_sandboxes_adopted() {
    let home = Home::new();
    let id = home.create("");
    home.inside(&id, "echo made > note");
    let (pid, _) = home.holder().unwrap();
    let server = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&server, Signal::KILL).unwrap();
    // Its socket accepts connections until its last thread has ended; the first one may be a zombie before that.
    let mut end = [PollFd::new(&server, PollFlags::IN)];
    assert_eq!(poll(&mut end, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1), "it does not end");
    let done: Done = home.run_args(&["sandbox", "exec", &id, "--", "cat", "note"]);
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "made\n"), "{done:?}");
    assert_ne!(home.holder().unwrap().0, pid);
}
