//! Sandboxes outlive the server that created them, unless configured otherwise.

use rustix::process::Signal;

use crate::fixture::{Home, Server};

const KEEP: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--pool", "0"];

/// Creates a sandbox with a file and a long-running process, and returns the sandbox's id and the process's pid.
fn create_state(server: &Server) -> (String, String) {
    let id = server.create(r#"{"timeout":300,"name":"kept"}"#);
    server.exec(&id, "echo made > note");
    let body = r#"{"command":"echo begun; exec sleep 250"}"#;
    let started = server.call("POST", &format!("/v1/sandboxes/{id}/processes"), body);
    assert_eq!(started.status, 201, "{started:?}");
    let pid = started.json()["pid"].to_string();
    (id, pid)
}

#[track_caller]
fn check_state(server: &Server, id: &str, pid: &str) {
    let info = server.call("GET", "/v1/sandboxes/kept", "").json();
    assert_eq!((info["id"].as_str(), info["state"].as_str()), (Some(id), Some("running")), "{info}");
    assert_eq!(server.exec(id, "cat note"), "made\n");
    let processes = server.call("GET", &format!("/v1/sandboxes/{id}/processes"), "").json();
    let mut listed = processes["processes"].as_array().into_iter().flatten();
    let first = listed.find(|process| process["pid"].as_u64() == pid.parse().ok()).unwrap();
    assert_eq!(
        (first["running"].as_bool(), first["stdout_bytes"].as_u64()),
        (Some(true), Some(6)),
        "{processes}"
    );
}

fn next(home: &Home, args: &[&str], key: &str) -> Server {
    let mut server = home.start(args).unwrap_or_else(|refused| panic!("{refused:?}"));
    server.key = key.to_owned();
    server
}

#[test]
fn sandbox_and_its_processes_outlive_the_server() {
    let home = Home::new();
    let mut server = next(&home, &KEEP, "");
    let key = server.said.split("BELLJAR_API_KEY=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    server.key.clone_from(&key);
    let (id, pid) = create_state(&server);
    assert_eq!(server.stop(Signal::TERM), Some(0));
    let server = next(&home, &KEEP, &key);
    check_state(&server, &id, &pid);
    // A killed server has no time to record anything.
    server.stop(Signal::KILL);
    let server = next(&home, &[&KEEP[..], &["--on-exit", "end"]].concat(), &key);
    check_state(&server, &id, &pid);
    assert_eq!(server.stop(Signal::TERM), Some(0));
    let mut server = home.serve(&[]);
    server.key = key;
    let gone = server.call("GET", &format!("/v1/sandboxes/{id}"), "");
    assert_eq!(gone.status, 410, "{gone:?}");
    assert_eq!(gone.json()["code"], "sandbox_gone");
}
