//! Transfers that are aborted, many of them, and connections to guests that break: neither may cost more than the calls in
//! flight. `BELLJAR_LONG_TRANSFERS=1` makes many more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::run;
use crate::server::{Home, Server};

/// Number of concurrent clients.
const CLIENTS: usize = 16;

/// Port of the server inside.
const PORT: u16 = 2280;

/// Length of what an aborted transfer would have been, in bytes.
const LONG_BYTES: usize = 2 << 20;

/// Returns the number of transfers of each kind: of those that are aborted, and of those that are not.
fn counts() -> (usize, usize) {
    if std::env::var_os("BELLJAR_LONG_TRANSFERS").is_some() { (5_000, 50_000) } else { (1_700, 500) }
}

/// Requests a path on a connection of its own, and closes it after the first bytes of the answer.
async fn abort(client: &Client, path: &str) {
    drop(begin(client, &format!("GET {path}"), "", "").await);
}

/// Makes a request on a connection of its own, and reads the first bytes of the answer.
async fn begin(client: &Client, what: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(client.address).await.expect("the server accepts");
    let key = client.key.as_deref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let request = format!("{what} HTTP/1.1\r\nHost: {}\r\n{key}{headers}\r\n{body}", client.address);
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut first = [0; 200];
    let count = stream.read(&mut first).await.expect("the server answers");
    let head = String::from_utf8_lossy(&first[..count]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200"), "{what}: {head}");
    stream
}

/// Makes `count` requests of a path by several clients at a time, with a number of its own for each.
async fn repeat<F, R>(client: &Client, count: usize, request: F)
where
    F: Fn(Client) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, next, request) = (client.apart(), Arc::clone(&next), request.clone());
        clients.spawn(async move {
            while next.fetch_add(1, Ordering::Relaxed) < count {
                request(client.clone()).await;
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.expect("no request fails");
    }
}

/// Aborts transfers of `long`, and reads `short` completely.
async fn transfer(client: &Client, (long, short): (String, String), expected: &'static str) {
    let (aborted, complete) = counts();
    repeat(client, aborted, move |client| {
        let long = long.clone();
        async move { abort(&client, &long).await }
    })
    .await;
    repeat(client, complete, move |client| {
        let short = short.clone();
        async move {
            let answer = client.get(&short).await;
            assert!(answer.status == 200 && answer.text().contains(expected), "{answer:?}");
        }
    })
    .await;
}

async fn start(settings: &[&str]) -> (Home, Server, Client) {
    let mut home = Home::new(&[&["sandboxes.pool=0", "head_room.disk=0"], settings].concat());
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    (home, server, client)
}

/// Creates a sandbox with a long and a short file, a server on [`PORT`] that serves both, and a process that has written much.
/// Returns its id and the number of that process.
async fn sandbox(client: &Client) -> (String, Value) {
    let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "disk": "64m" } })).await;
    let content = |path: &str| format!("/v1/sandboxes/{id}/files/content?path={path}");
    client.put(&content("long"), vec![b'x'; LONG_BYTES]).await;
    client.put(&content("short"), "short").await;
    let program = "import http.server as h\nh.ThreadingHTTPServer.daemon_threads = True\n\
         h.SimpleHTTPRequestHandler.log_message = lambda *_: None\n\
         h.ThreadingHTTPServer.request_queue_size = 64\n\
         h.ThreadingHTTPServer(('0.0.0.0', 2280), h.SimpleHTTPRequestHandler).serve_forever()";
    client.put(&content("serve.py"), program).await;
    let processes = format!("/v1/sandboxes/{id}/processes");
    let started = client.post(&processes, &json!({ "argv": ["python3", "serve.py"] })).await;
    assert_eq!(started.status, 201, "{started:?}");
    let line = "head -c 60000 /dev/zero | tr '\\0' y; echo short; sleep 3600";
    let writer = client.post(&processes, &json!({ "argv": ["sh", "-c", line] })).await;
    let published = client.post(&format!("/v1/sandboxes/{id}/ports"), &json!({ "port": PORT })).await;
    assert_eq!(published.status, 201, "{published:?}");
    crate::until("the server listens", async || {
        let ports = client.get(&format!("/v1/sandboxes/{id}/ports")).await.json();
        ports["listening"].as_array().is_some_and(|ports| ports.contains(&json!(PORT)))
    })
    .await;
    (id, writer.json()["process"].clone())
}

/// Paths of a long transfer of each kind and of a short one.
fn kinds(id: &str, process: &Value) -> [(String, String); 3] {
    let file = |name: &str| format!("/v1/sandboxes/{id}/files/content?path={name}");
    let port = |name: &str| format!("/v1/sandboxes/{id}/ports/{PORT}/proxy/{name}");
    let output = |more: &str| format!("/v1/sandboxes/{id}/processes/{process}/output{more}");
    [
        (file("long"), file("short")),
        (port("long"), port("short")),
        (output(""), output("?follow=false&stdout=60000")),
    ]
}

#[test]
fn aborted_transfers_leave_a_sandbox_usable() {
    if crate::skipped("transfers") {
        return;
    }
    run(async {
        let (_home, _server, client) = start(&[]).await;
        let (id, process) = sandbox(&client).await;
        for kind in kinds(&id, &process) {
            transfer(&client, kind, "short").await;
            assert_eq!(client.sh(&id, "echo here").await, "here\n");
        }
    });
}

#[test]
fn unread_streams_hold_up_themselves() {
    /// Time within which others are served.
    const PROMPT: Duration = Duration::from_secs(15);
    if crate::skipped("transfers") {
        return;
    }
    run(async {
        let (_home, _server, client) = start(&[]).await;
        let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "disk": "64m" } })).await;
        let base = format!("/v1/sandboxes/{id}");
        client.put(&format!("{base}/files/content?path=short"), "short").await;
        client.sh(&id, "mkdir d; head -c 30000000 /dev/zero > d/long").await;
        let json = json!({ "command": "yes" }).to_string();
        let headers = format!(
            "Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {}\r\n",
            json.len()
        );
        let mut unread = Vec::new();
        for _ in 0..12 {
            unread.push(begin(&client, &format!("GET {base}/files/content?path=d/long"), "", "").await);
            unread.push(begin(&client, &format!("GET {base}/files/archive?path=d"), "", "").await);
            unread.push(begin(&client, &format!("POST {base}/exec"), &headers, &json).await);
        }
        let served = async {
            let read = client.get(&format!("{base}/files/content?path=short")).await;
            assert_eq!((read.status.as_u16(), read.text()), (200, "short"));
            assert_eq!(client.get(&format!("{base}/files?path=d")).await.status, 200);
            assert_eq!(client.sh(&id, "echo here").await, "here\n");
        };
        tokio::time::timeout(PROMPT, served).await.expect("others are served");
        drop(unread);
    });
}

#[test]
fn aborted_transfers_leave_a_volume_usable() {
    if crate::volumes::skipped("transfers") {
        return;
    }
    run(async {
        let (_home, _server, client) = start(&[]).await;
        let made = client.post("/v1/volumes", &json!({ "name": "data", "size": "32m" })).await;
        assert_eq!(made.status, 201, "{made:?}");
        let content = |path: &str| format!("/v1/volumes/data/files/content?path={path}");
        client.put(&content("long"), vec![b'x'; LONG_BYTES]).await;
        client.put(&content("short"), "short").await;
        transfer(&client, (content("long"), content("short")), "short").await;
    });
}

/// Connections to a guest break again and again while it is used: calls fail only while that happens, and with a code that
/// says so, and commands are not even interrupted.
#[test]
fn broken_connections_cost_only_the_calls_in_flight() {
    if crate::volumes::skipped("broken connections") {
        return;
    }
    run(async {
        let (home, server, client) = start(&[]).await;
        let (id, process) = sandbox(&client).await;
        let made = client.post("/v1/volumes", &json!({ "name": "data", "size": "32m" })).await;
        assert_eq!(made.status, 201, "{made:?}");
        let volume = "/v1/volumes/data/files/content?path=short".to_owned();
        client.put(&volume, "short").await;
        let (_, launcher) = home.launcher().expect("it holds the sandboxes");
        let is_over = Arc::new(AtomicBool::new(false));
        let mut readers = JoinSet::new();
        let shorts = kinds(&id, &process).map(|(_, short)| short);
        for path in shorts.iter().chain([&volume]).cloned() {
            let (client, is_over) = (client.apart(), Arc::clone(&is_over));
            readers.spawn(async move {
                let (mut good, mut broken) = (0_usize, 0_usize);
                while !is_over.load(Ordering::Relaxed) {
                    match client.try_call("GET", &path).await {
                        Ok(answer) if answer.status == 200 => {
                            let is_whole = answer.text().contains("short");
                            // An output stream that has begun ends with an event that says so.
                            assert!(
                                is_whole || answer.text().contains("connection_lost"),
                                "{path}: {answer:?}"
                            );
                            *(if is_whole { &mut good } else { &mut broken }) += 1;
                        }
                        Ok(answer) => {
                            let code = answer.code();
                            // The proxy reports an incomplete answer of the program likewise.
                            let expected = ["connection_lost", "sandbox_failed", "sandbox_unreachable"];
                            assert!(expected.contains(&code.as_str()), "{path}: {answer:?}");
                            broken += 1;
                        }
                        Err(_) => broken += 1,
                    }
                }
                (path, good, broken)
            });
        }
        let counting = client.apart();
        let counted = {
            let id = id.clone();
            tokio::spawn(async move {
                counting.exec(&id, "for n in $(seq 1 300); do echo $n; sleep 0.01; done").await
            })
        };
        let rounds: usize = 20;
        let mut severed = 0;
        for _ in 0..rounds {
            tokio::time::sleep(Duration::from_millis(100)).await;
            severed += server.break_guest_connections(launcher);
            // The next call works.
            assert_eq!(client.sh(&id, "echo here").await, "here\n");
        }
        assert!(severed >= 2 * rounds, "{severed} connections were broken");
        let counted = counted.await.expect("it runs");
        let numbers: String = (1..=300).map(|number| format!("{number}\n")).collect();
        let output = counted["stdout"]["data"].as_str();
        assert_eq!((output, &counted["exit_code"]), (Some(numbers.as_str()), &json!(0)), "{counted}");
        is_over.store(true, Ordering::Relaxed);
        while let Some(done) = readers.join_next().await {
            let (path, good, broken) = done.expect("it reads");
            // A reader has one call in flight, which can meet two broken connections in a row.
            assert!(good > 0 && broken <= 2 * rounds, "{path}: {good} good, {broken} broken");
        }
        let info = client.get(&format!("/v1/sandboxes/{id}")).await.json();
        assert_eq!(info["state"], "running", "{info}");
    });
}
