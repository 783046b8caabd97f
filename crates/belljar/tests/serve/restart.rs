//! Sandboxes outlive the server that made them, unless it is told otherwise.

use rustix::process::Signal;

use crate::world::{Home, Server};

const KEEP: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--pool", "0"];

/// Starts a process that lives on, and gives its id and how it answers.
fn leave_a_mark(server: &Server) -> (String, String) {
    let id = server.create(r#"{"timeout":300,"name":"kept"}"#);
    server.exec(&id, "echo made > note");
    let body = r#"{"command":"echo begun; exec sleep 250"}"#;
    let started = server.call("POST", &format!("/v1/sandboxes/{id}/processes"), body);
    assert_eq!(started.status, 201, "{started:?}");
    let pid = started.json()["pid"].to_string();
    (id, pid)
}

#[track_caller]
fn find_the_mark(server: &Server, id: &str, pid: &str) {
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
fn a_sandbox_lives_on_with_its_processes() {
    let home = Home::new();
    let mut server = next(&home, &KEEP, "");
    let key = server.said.split("BELLJAR_API_KEY=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    server.key.clone_from(&key);
    let (id, pid) = leave_a_mark(&server);
    assert_eq!(server.stop(Signal::TERM), Some(0));
    let server = next(&home, &KEEP, &key);
    find_the_mark(&server, &id, &pid);
    // A server that was killed has left no word.
    server.stop(Signal::KILL);
    let server = next(&home, &[&KEEP[..], &["--on-exit", "end"]].concat(), &key);
    find_the_mark(&server, &id, &pid);
    assert_eq!(server.stop(Signal::TERM), Some(0));
    let mut server = home.serve(&[]);
    server.key = key;
    let gone = server.call("GET", &format!("/v1/sandboxes/{id}"), "");
    assert_eq!(gone.status, 410, "{gone:?}");
    assert_eq!(gone.json()["code"], "sandbox_gone");
}
