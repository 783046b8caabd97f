//! Sandboxes outlive the server that created them, unless configured otherwise.

use std::io::Write as _;
use std::net::TcpStream;

use belljar_testing::wait::eventually;
use rustix::process::Signal;
use serde_json::{Value, json};

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

/// Sends a command that waits for approval, and returns the connection on which its result would come, with the approval.
fn ask(server: &Server, key: &str, id: &str, command: &str) -> (TcpStream, Value) {
    let body = json!({ "command": command }).to_string();
    let mut connection = TcpStream::connect(&server.address).unwrap();
    let head =
        format!("POST /v1/sandboxes/{id}/exec HTTP/1.1\r\nHost: {}\r\nX-API-Key: {key}", server.address);
    let length = body.len();
    write!(connection, "{head}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    let asked = eventually(|| {
        let pending = server.call("GET", "/v1/approvals?state=pending", "").json()["approvals"][0].clone();
        if pending.is_null() { Err("no call waits".to_owned()) } else { Ok(pending) }
    });
    (connection, asked)
}

#[test]
fn calls_that_wait_or_run_for_approval_are_closed_after_a_crash() {
    let home = Home::new();
    let mut server = next(&home, &KEEP, "");
    let key = server.said.split("BELLJAR_API_KEY=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    server.key.clone_from(&key);
    let made = server.call("POST", "/v1/keys", r#"{"name":"agent","owner":"agent","approval":"always"}"#);
    let agent = made.json()["key"].as_str().unwrap().to_owned();
    let id = server.create(r#"{"timeout":300}"#);
    let state =
        |server: &Server| server.call("GET", &format!("/v1/sandboxes/{id}"), "").json()["state"].clone();
    let approval = |server: &Server, asked: &Value| {
        let path = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
        server.call("GET", &path, "").json()
    };
    let (_connection, waits) = ask(&server, &agent, &id, "touch ran");
    eventually(|| if state(&server) == "paused" { Ok(()) } else { Err("it is not frozen".to_owned()) });
    server.stop(Signal::KILL);
    let server = next(&home, &KEEP, &key);
    let closed = approval(&server, &waits);
    assert_eq!(
        (&closed["state"], &closed["outcome"]),
        (&json!("cancelled"), &json!("the server ended while it waited"))
    );
    assert_eq!(state(&server), "running");
    let path = format!("/v1/approvals/{}/approve", waits["id"].as_str().unwrap());
    assert_eq!(server.call("POST", &path, "{}").json()["code"], "approval_decided");
    assert_eq!(server.exec(&id, "ls"), "");
    let (_connection, runs) = ask(&server, &agent, &id, "touch ran; exec sleep 250");
    let path = format!("/v1/approvals/{}/approve", runs["id"].as_str().unwrap());
    assert_eq!(server.call("POST", &path, "{}").status, 200);
    eventually(|| {
        let is_running = !approval(&server, &runs)["started_at"].is_null();
        if is_running { Ok(()) } else { Err("it does not run".to_owned()) }
    });
    server.stop(Signal::KILL);
    let server = next(&home, &KEEP, &key);
    let closed = approval(&server, &runs);
    assert_eq!(
        (&closed["state"], &closed["outcome"]),
        (&json!("outcome_unknown"), &json!("the server ended while it ran"))
    );
    assert_eq!(state(&server), "running");
}

/// Calls of code that wait for an answer, or for approval, in a sandbox of their own.
#[test]
fn code_whose_calls_wait_goes_on_after_a_crash() {
    let home = Home::new();
    let mut server = next(&home, &KEEP, "");
    let key = server.said.split("BELLJAR_API_KEY=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    server.key.clone_from(&key);
    let id = server.create(r#"{"timeout":300}"#);
    let path = format!("/v1/sandboxes/{id}/code");
    let has_contexts = server.call("POST", &path, r#"{"code":"import IPython"}"#).json()["status"] == "ok";
    if !has_contexts {
        let _ = writeln!(std::io::stderr(), "SKIPPED: python3-ipython is not installed here");
        return;
    }
    let state =
        |server: &Server| server.call("GET", &format!("/v1/sandboxes/{id}"), "").json()["state"].clone();
    let goes_on = |server: &Server, said: &str| {
        assert_eq!(state(server), "running");
        eventually(|| match server.exec(&id, "cat why 2>/dev/null; rm -f why") {
            why if why.contains(said) => Ok(()),
            why => Err(why),
        });
        let run = server.call("POST", &path, r#"{"code":"print(6 * 7)"}"#).json();
        assert_eq!((&run["stdout"]["data"], &run["state"]), (&json!("42\n"), &json!("preserved")), "{run}");
    };
    let code = "import belljar\ntry: belljar.tools.ask(code='echo deed')\nexcept belljar.ToolError as error: open('why', 'w').write(str(error))";
    let step = server.call("POST", &path, &json!({"code": code, "functions": ["ask"]}).to_string()).json();
    assert_eq!((&step["status"], state(&server)), (&json!("tool_calls"), json!("paused")), "{step}");
    server.stop(Signal::KILL);
    let server = next(&home, &KEEP, &key);
    goes_on(&server, "the connection of the execution's caller broke");
    let results =
        json!({"tool_results": [{"call_id": step["tool_calls"][0]["id"], "result": 1}]}).to_string();
    let late = server.call("POST", &format!("{path}/continue"), &results).json();
    assert_eq!(late["code"], "call_closed", "{late}");
    assert!(late["detail"].as_str().unwrap().contains("was restarted since"), "{late}");
    // A stored tool in a sandbox of its own, while whose call waits for approval this one is frozen.
    let approver = server.call("POST", "/v1/keys", r#"{"name":"ann","owner":"ann","role":"approver"}"#);
    assert_eq!(approver.status, 201, "{approver:?}");
    let tool = json!({"name": "ask", "description": "d", "languages": ["bash"], "approval": "always"});
    let made = server.call("POST", "/v1/tools", &tool.to_string());
    assert_eq!(made.status, 201, "{made:?}");
    let body = json!({"code": code, "tools": ["ask"]}).to_string();
    let mut connection = TcpStream::connect(&server.address).unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nX-API-Key: {key}", server.address);
    let length = body.len();
    write!(connection, "{head}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    eventually(|| if state(&server) == "paused" { Ok(()) } else { Err("it is not frozen".to_owned()) });
    server.stop(Signal::KILL);
    let server = next(&home, &KEEP, &key);
    goes_on(&server, "the connection of the execution's caller broke");
}
