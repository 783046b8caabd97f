//! Shutdown of a server with requests in flight.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fixture::{DEADLINE, Home, Server, eventually};
use crate::http::send;

/// Runs a command in another thread, and waits until it has started.
fn begin(server: &Server, id: &str, command: &str) -> std::thread::JoinHandle<Option<crate::http::Answer>> {
    let (address, key, path) =
        (server.address.clone(), server.key.clone(), format!("/v1/sandboxes/{id}/exec"));
    let body = serde_json::json!({ "command": format!("touch begun; {command}") }).to_string();
    let running = std::thread::spawn(move || {
        std::panic::catch_unwind(|| send(&address, "POST", &path, &[("X-API-Key", &key)], &body)).ok()
    });
    eventually(|| match server.exec(id, "test -e begun && echo yes").as_str() {
        "yes\n" => Ok(()),
        _ => Err("it does not begin".to_owned()),
    });
    running
}

#[test]
fn requests_finish_before_the_server_ends() {
    let home = Home::new();
    let server = home.serve(&[]);
    let id = server.create("{}");
    let running = begin(&server, &id, "sleep 1; echo done");
    let address = server.address.clone();
    assert_eq!(server.stop(Signal::TERM), Some(0));
    let answer = running.join().unwrap().unwrap();
    assert_eq!(answer.json()["stdout"]["data"], "done\n", "{answer:?}");
    assert!(std::net::TcpStream::connect(&address).is_err());
}

#[test]
fn unfinished_requests_are_cut_off_after_the_drain_timeout() {
    let home = Home::new();
    let server = home.serve(&["--set", "server.drain=200ms"]);
    let id = server.create("{}");
    let running = begin(&server, &id, "sleep 50");
    let at = Instant::now();
    assert_eq!(server.stop(Signal::TERM), Some(0));
    assert!(at.elapsed() < Duration::from_secs(20), "{:?}", at.elapsed());
    assert!(running.join().unwrap().is_none_or(|answer| answer.status != 200));
}

#[test]
fn second_signal_ends_the_server_at_once() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let home = Home::new();
        let mut server = home.serve(&["--set", "server.drain=1h"]);
        let id = server.create("{}");
        let running = begin(&server, &id, "sleep 50");
        server.signal(signal);
        server.await_log("a second signal ends the server at once");
        let at = Instant::now();
        server.signal(signal);
        assert_eq!(server.wait(), Some(status));
        assert!(at.elapsed() < DEADLINE / 2);
        drop(running);
        // The next server ends the sandbox.
        drop(home.serve(&[]));
    }
}
