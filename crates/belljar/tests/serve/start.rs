//! Starting a server, and reasons for it to fail.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::process::Signal;

use crate::fixture::{BELLJAR, Home, eventually};
use crate::http::{send, send_unix};

#[test]
fn first_key_is_shown_once_and_is_an_admin_key() {
    let home = Home::new();
    let server = home.serve(&[]);
    assert_eq!(server.said.lines().count(), 4, "{}", server.said);
    assert!(server.key.starts_with("bj_") && server.key.len() == 67, "{}", server.said);
    assert_eq!(server.call("GET", "/v1/me", "").json()["role"], "admin");
    assert_eq!(send(&server.address, "GET", "/v1/me", &[], "").status, 401);
    assert!(!server.log().contains(&server.key));
    let key = server.key.clone();
    assert_eq!(server.stop(Signal::TERM), Some(0));
    let mut again = home.serve(&[]);
    assert!(!again.said.contains("bj_") && again.said.lines().count() == 3, "{}", again.said);
    again.key = key;
    assert_eq!(again.call("GET", "/v1/me", "").status, 200);
    // The key is nowhere in the home.
    for entry in std::fs::read_dir(home.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(!bytes.windows(67).any(|window| window == again.key.as_bytes()), "{path:?}");
    }
}

#[test]
fn console_links_sign_in_once() {
    let home = Home::new();
    let server = home.serve(&[]);
    let printed = server.said.lines().find_map(|line| line.strip_prefix("console "));
    let printed = printed.and_then(|line| line.split("  #").next()).unwrap().to_owned();
    let url = format!("http://{}", server.address);
    let link = |key: &str| {
        let mut command = home.belljar(&["console", "--server", &url, "--quiet"]);
        let output = command.env("BELLJAR_API_KEY", key).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    let mut socket = home.belljar(&["console"]);
    let by_socket = String::from_utf8(socket.output().unwrap().stdout).unwrap().trim_end().to_owned();
    for whole in [printed, link(&server.key), by_socket] {
        let (page, secret) = whole.split_once("#link=").unwrap();
        assert_eq!(page, format!("{url}/console"));
        let redeem = || {
            let body = format!("{{\"link\":\"{secret}\"}}");
            let kind = [("content-type", "application/json")];
            send(&server.address, "POST", "/v1/session/redeem", &kind, &body)
        };
        let begun = redeem();
        assert_eq!(begun.status, 201, "{begun:?}");
        let cookie = begun.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        let token = begun.json()["token"].as_str().unwrap().to_owned();
        let headers = [("cookie", cookie.as_str()), ("x-belljar-session", &token)];
        assert_eq!(send(&server.address, "GET", "/v1/me", &headers, "").json()["role"], "admin");
        assert_eq!(redeem().status, 401);
    }
}

#[test]
fn socket_clients_are_the_operator() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mode = home.socket().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let me = send_unix(&home.socket(), "GET", "/v1/me", "").json();
    assert_eq!((me["key"].as_str(), me["role"].as_str()), (Some("operator"), Some("admin")));
    server.stop(Signal::TERM);
    assert!(!home.socket().exists());
    let closed = home.serve(&["--set", "server.operator_socket=false"]);
    assert_eq!(send_unix(&home.socket(), "GET", "/v1/me", "").status, 401);
    drop(closed);
}

#[test]
fn stale_socket_is_replaced_but_other_files_are_not() {
    let home = Home::new();
    let server = home.serve(&[]);
    server.stop(Signal::KILL);
    assert!(home.socket().exists());
    let server = home.serve(&[]);
    assert_eq!(send_unix(&home.socket(), "GET", "/health", "").status, 200);
    server.stop(Signal::TERM);
    std::fs::write(home.socket(), "mine").unwrap();
    let refused = home.start(&["serve", "--listen", "127.0.0.1:0"]).err().unwrap();
    assert!(refused.stderr.contains("exists and is not a socket"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(home.socket()).unwrap(), "mine");
}

#[test]
fn socket_may_have_a_long_path() {
    let home = Home::new();
    let long = home.dir.path().join("a".repeat(90)).join("b".repeat(90));
    std::fs::create_dir_all(&long).unwrap();
    let path = long.join("belljar.sock");
    let server = home.start(&[
        "serve",
        "--set",
        "server.listen=",
        "--socket",
        path.to_str().unwrap(),
        "--on-exit",
        "end",
    ]);
    let server = server.unwrap_or_else(|refused| panic!("{refused:?}"));
    assert!(path.exists() && server.address.is_empty(), "{}", server.said);
}

#[test]
fn home_has_one_server() {
    let home = Home::new();
    let server = home.serve(&[]);
    let refused = home.start(&["serve", "--listen", "127.0.0.1:0"]).err().unwrap();
    assert_eq!(refused.status, Some(125));
    let pid = server.pid().as_raw_nonzero();
    assert!(refused.stderr.contains(&format!("another server (process {pid}) uses")), "{refused:?}");
    assert_eq!(server.call("GET", "/v1/me", "").status, 200);
}

#[test]
fn unsafe_or_invalid_settings_are_refused() {
    let cases: [(&[&str], &str); 9] = [
        (&["--listen", "0.0.0.0:0"], "there is no API key yet, and 0.0.0.0:"),
        (&["--listen", "[::]:0"], "there is no API key yet, and [::]:"),
        (&["--listen", "127.0.0.1"], "--listen: server.listen: \"127.0.0.1\" is not allowed"),
        (&["--listen", "192.0.2.1:0"], "--listen: cannot listen on 192.0.2.1:0: "),
        (
            &["--set", "server.tls_certificate=/none.pem", "--set", "server.tls_key=/none.key"],
            "--set server.tls_certificate: TLS cannot be set up, and the server does not speak without it: ",
        ),
        (&["--set", "server.lisen=1"], "did you mean server.listen?"),
        (&["--store", "sqlite:/dev/null/x.db"], "/dev/null"),
        (
            &["--set", "sandboxes.mounts.read=/"],
            "--set sandboxes.mounts.read: sandboxes.mounts.read cannot be used: ",
        ),
        (&["--config", "/none/belljar.toml"], "config: cannot read \"/none/belljar.toml\""),
    ];
    for (args, message) in cases {
        let home = Home::new();
        // A free port, as another server may use the default one.
        let listen: &[&str] = if args.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let refused = home
            .start(&[&["serve"], listen, args].concat())
            .err()
            .unwrap_or_else(|| panic!("{args:?} was allowed"));
        assert_eq!(refused.status, Some(125), "{refused:?}");
        assert!(refused.stderr.contains(message), "{message}: {refused:?}");
        assert!(!refused.stdout.contains("bj_"), "{refused:?}");
    }
}

#[test]
fn home_writable_by_others_is_refused() {
    let home = Home::new();
    std::fs::create_dir(home.path()).unwrap();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = home.start(&["serve", "--listen", "127.0.0.1:0"]).err().unwrap();
    assert!(refused.stderr.contains("may be written by others (mode 0777); chmod go-w it"), "{refused:?}");
}

#[test]
fn all_addresses_are_served_with_a_key() {
    let home = Home::new();
    let first = home.serve(&[]);
    let key = first.key.clone();
    first.stop(Signal::TERM);
    let mut server = home.serve(&["--listen", "0.0.0.0:0"]);
    server.key = key;
    assert_eq!(server.call("GET", "/v1/me", "").status, 200);
    assert!(server.log().contains("without TLS: keys and data can be read"), "{}", server.log());
    // A loopback address with the port from the log.
    let other = server
        .log()
        .split("0.0.0.0:")
        .nth(1)
        .unwrap()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>();
    assert_eq!(send(&format!("127.0.0.1:{other}"), "GET", "/health", &[], "").status, 200);
}

#[test]
fn key_is_not_written_to_a_journal() {
    use std::os::unix::fs::MetadataExt as _;
    let home = Home::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let metadata =
        std::fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer))).unwrap();
    let mut command = home.belljar(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()));
    let stderr = home.dir.path().join("stderr");
    command.stdout(writer).stderr(std::fs::File::create(&stderr).unwrap());
    let mut child = command.spawn().unwrap();
    drop(command);
    let log = || std::fs::read_to_string(&stderr).unwrap();
    eventually(|| log().contains("serving").then_some(()).ok_or_else(log));
    assert!(log().contains("make a key with belljar key create"), "{}", log());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    let said = std::io::read_to_string(reader).unwrap();
    assert!(!said.contains("bj_"), "{said}");
}

#[test]
fn service_manager_is_notified() {
    let home = Home::new();
    let path = home.dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(crate::fixture::DEADLINE)).unwrap();
    let mut command = home.belljar(&["serve", "--listen", "127.0.0.1:0", "--on-exit", "end"]);
    let server =
        home.spawn(command.env("NOTIFY_SOCKET", &path)).unwrap_or_else(|refused| panic!("{refused:?}"));
    let next = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(next(), "READY=1\n");
    server.signal(Signal::HUP);
    assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(next(), "READY=1\n");
    server.stop(Signal::TERM);
    assert_eq!(next(), "STOPPING=1\n");
}

#[test]
fn pool_serves_on_one_processor_beside_a_fork_bomb() {
    if !rustix::process::geteuid().is_root() {
        return crate::pages::say("SKIPPED: needs root, for a limit of processes that the kernel enforces");
    }
    let home = Home::new();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    let processor = allowed.split(['-', ',']).next().unwrap();
    let mut command = home.isolated_command(Path::new("taskset"));
    command.args(["--cpu-list", processor, BELLJAR]);
    command.args(["serve", "--listen", "127.0.0.1:0", "--on-exit", "end", "--pool", "2"]);
    let server = home.spawn(&mut command).unwrap_or_else(|refused| panic!("{refused:?}"));
    let is_full = || {
        eventually(|| {
            let ready = server.metric("belljar_pool_ready");
            if ready.as_deref() == Some("2") { Ok(()) } else { Err(format!("{ready:?}: {}", server.log())) }
        });
    };
    is_full();
    let bomb = server.create("{}");
    // Forks as fast as it can, in every process.
    let program = "import os\nwhile True:\n try: os.fork()\n except OSError: pass";
    server.exec(&bomb, &format!("python3 -c '{program}' > /dev/null 2>&1 &"));
    let metrics = || server.call("GET", &format!("/v1/sandboxes/{bomb}/metrics"), "").json();
    eventually(|| {
        let now = metrics();
        if now["pids"] == now["pids_limit"] { Ok(()) } else { Err(now.to_string()) }
    });
    for round in 0..3 {
        is_full();
        let id = server.create("{}");
        assert_eq!(server.exec(&id, "env -u OMP_NUM_THREADS nproc"), "1\n", "{round}");
        assert_eq!(server.metric("belljar_pool_hits_total"), Some((round + 2).to_string()));
    }
    assert_eq!(server.metric("belljar_pool_misses_total").as_deref(), Some("0"));
}
