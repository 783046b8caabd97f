//! Resource exhaustion by one tenant: memory by output (C24), disk by stored answers and refusals (C25), turns in queues (C26),
//! connections (C27) and processors (C29); and a key that is revoked while in use (C28).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::raw::memory_kib;
use crate::run;
use crate::server::{Home, Server};

/// Output of each stream of a loud command, in bytes: the default maximum of a result.
const LOUD_BYTES: usize = 8 << 20;

/// Maximum growth of the server's memory, in KiB.
const MAX_GROWTH_KIB: u64 = 64 << 10;

/// Starts a server, and returns an administrator's client.
async fn start(settings: &[&str], without: Option<&'static str>) -> (Home, Server, Client) {
    let mut home = Home::new(settings);
    home.without = without;
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    (home, server, client)
}

fn loud() -> serde_json::Value {
    // JSON encodes a control character with six characters.
    json!({ "command": format!("head -c {LOUD_BYTES} /dev/zero | tr '\\0' '\\1'") })
}

/// Returns the processor weight of a sandbox's control group, and the default weight.
fn weight(id: &str) -> (u64, u64) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places =
        mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    for place in places {
        for (file, alone) in [("cpu.shares", 1024), ("cpu.weight", 100)] {
            for dir in ["", "belljar/"] {
                let file = format!("{place}/{dir}belljar-{id}/{file}");
                if let Ok(text) = std::fs::read_to_string(file) {
                    return (text.trim().parse().unwrap(), alone);
                }
            }
        }
    }
    panic!("{id} has no weight");
}

/// Creates five sandboxes of one tenant and one of another, and returns their weights relative to the default.
async fn shares(without: Option<&'static str>) -> (u64, u64) {
    let settings = ["sandboxes.pool=2", "sandboxes.share_host_tree=true"];
    let (home, server, client) = start(&settings, without).await;
    let mut crowd = Vec::new();
    for tenant in ["crowd", "crowd", "crowd", "crowd", "crowd", "alone"] {
        let made = client.post("/v1/keys", &json!({ "name": "k", "tenant": tenant })).await;
        let user = client.with_key(made.json()["key"].as_str().unwrap());
        crowd.push(user.sandbox(&json!({ "timeout": 3600 })).await);
    }
    let part = |id: &String| {
        let (weight, alone) = weight(id);
        alone / weight
    };
    if without.is_none() {
        crate::until("parts of a weight", async || crowd[..5].iter().all(|id| part(id) == 8)).await;
    }
    let parts = (part(&crowd[0]), part(&crowd[5]));
    client.call("DELETE", &format!("/v1/sandboxes/{}", crowd[1])).await;
    for id in &crowd[2..5] {
        client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
    }
    if without.is_none() {
        crate::until("a weight of its own", async || part(&crowd[0]) == 1).await;
    }
    crate::crash::shut_down(server, &home).await;
    parts
}

#[test]
fn c29_sandboxes_of_one_tenant_share_one_weight() {
    if crate::skipped("C29") {
        return;
    }
    run(async {
        assert_eq!(shares(None).await, (8, 1));
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c29_without_fair_shares_each_sandbox_has_full_weight() {
    if crate::skipped("C29") {
        return;
    }
    run(async {
        assert_eq!(shares(Some("service:fair-shares")).await, (1, 1));
    });
}

/// Uses up resources until `enough` is set: full outputs, stored answers, and refusals.
pub(crate) async fn exhaust(client: Client, enough: Arc<AtomicBool>) {
    let mut number = 0;
    while !enough.load(Ordering::Relaxed) {
        number += 1;
        let made =
            client.post("/v1/sandboxes", &json!({ "timeout": 30, "limits": { "memory": "64m" } })).await;
        let Some(id) = made.json()["id"].as_str().map(str::to_owned) else { continue };
        let path = format!("/v1/sandboxes/{id}/exec");
        let request = client.request("POST", &path).header("content-type", "application/json");
        let request = request.header("idempotency-key", format!("greedy-{id}-{number}"));
        client.send(request, loud().to_string()).await;
        client.post("/v1/sandboxes", &json!({ "template": "no-such-one" })).await;
        client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
    }
}

/// Runs loud commands of eight concurrent callers, and returns the maximum growth of the server's memory, in KiB.
async fn loud_callers(server: &Server, client: &Client) -> u64 {
    let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "memory": "512m" } })).await;
    let before = memory_kib(server.pid());
    let callers = (0..8).map(|_| {
        let (client, path) = (client.apart(), format!("/v1/sandboxes/{id}/exec"));
        async move {
            let done = client.post(&path, &loud()).await;
            assert_eq!(done.status, 200);
            let done = done.json();
            let data = done["stdout"]["data"].as_str().unwrap_or_default();
            assert!(data.len() == LOUD_BYTES && data.bytes().all(|byte| byte == 1), "{} bytes", data.len());
            assert_eq!((&done["stdout"]["truncated"], &done["stderr"]["bytes"]), (&json!(false), &json!(0)));
        }
    });
    let all = futures::future::join_all(callers);
    let mut most = before;
    let watch = async {
        loop {
            most = most.max(memory_kib(server.pid()));
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = all => {}
        () = watch => {}
    }
    most - before
}

#[test]
fn c24_outputs_use_no_server_memory() {
    if crate::skipped("C24") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0", "head_room.disk=0"], None).await;
        let grown = loud_callers(&server, &client).await;
        crate::say(&format!("C24: 8 callers with outputs of {LOUD_BYTES} bytes: {grown} KiB"));
        assert!(grown < MAX_GROWTH_KIB, "{grown} KiB");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c24_without_files_outputs_use_server_memory() {
    if crate::skipped("C24") {
        return;
    }
    run(async {
        // Answers from memory are bounded once more, when they are not read.
        let without = "service:output-files,service:unread-answers";
        let (home, server, client) = start(&["sandboxes.pool=0", "head_room.disk=0"], Some(without)).await;
        let grown = loud_callers(&server, &client).await;
        assert!(grown > MAX_GROWTH_KIB, "{grown} KiB");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Asks for pictures over MCP on connections that read the beginning of each answer alone. Returns for each whether it was refused,
/// and last whether a command was then.
async fn unread_pictures(without: Option<&'static str>) -> Vec<bool> {
    const PICTURE_BYTES: usize = 5 << 20;
    let (home, server, client) = start(&["sandboxes.pool=0"], without).await;
    let id = client.sandbox(&json!({ "timeout": 3600 })).await;
    let by_rpc = client.sandbox(&json!({ "timeout": 3600 })).await;
    let by_model = client.sandbox(&json!({ "timeout": 3600 })).await;
    let picture = [b"\x89PNG\r\n\x1a\n".as_slice(), &vec![0; PICTURE_BYTES - 8]].concat();
    let put = client.request("PUT", &format!("/v1/sandboxes/{id}/files/content?path=p.png"));
    assert!(client.send(put, picture).await.status.is_success());
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "read", "arguments": {"file_path": "p.png", "sandbox": id},
        "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}},
    }})
    .to_string();
    let head = format!(
        "POST /mcp?tools=claude HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\n\
         mcp-name: read\r\ncontent-length: {}\r\n\r\n",
        server.address,
        server.key,
        call.len()
    );
    let (mut unread, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all((head.clone() + &call).as_bytes()).await.unwrap();
        let mut begin = vec![0; 300];
        stream.read_exact(&mut begin).await.unwrap();
        let begin = String::from_utf8_lossy(&begin).into_owned();
        // Before the call, or after it.
        refused.push(begin.starts_with("HTTP/1.1 429") || begin.contains("quota_exceeded: answers: "));
        unread.push(stream);
    }
    let command = json!({ "command": "touch ran" });
    let answer = client.post(&format!("/v1/sandboxes/{id}/exec"), &command).await;
    let is_there = client.get(&format!("/v1/sandboxes/{id}/files/stat?path=ran")).await.status.is_success();
    assert_eq!(answer.status.is_success(), is_there, "what is refused does not run: {answer:?}");
    refused.push(!is_there);
    // Killing is always possible.
    let signal = json!({ "signal": "SIGKILL" });
    let signalled = client.post(&format!("/v1/sandboxes/{id}/processes/999999/signal"), &signal).await;
    assert_eq!(signalled.json()["code"], "process_not_found", "{signalled:?}");
    let killed = client.post("/belljar.v1.Sandboxes/Kill", &json!({ "sandbox": by_rpc })).await;
    assert_eq!(killed.status, 200, "{killed:?}");
    let kill = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "kill_sandbox", "arguments": {"sandbox": by_model},
        "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}},
    }});
    let request = client.request("POST", "/mcp").header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tools/call");
    let killed = client.send(request.header("mcp-name", "kill_sandbox"), kill.to_string()).await;
    for killed_id in [&by_rpc, &by_model] {
        let found = client.get(&format!("/v1/sandboxes/{killed_id}")).await;
        assert_eq!(found.json()["code"], "sandbox_gone", "{found:?} {killed:?}");
    }
    // Once they are gone, the key has all of its memory again.
    drop(unread);
    crate::until("the answers are dropped", async || {
        let request = client.request("POST", "/mcp?tools=claude").header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        let request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tools/call");
        client.send(request.header("mcp-name", "read"), call.clone()).await.body.len() > PICTURE_BYTES
    })
    .await;
    crate::crash::shut_down(server, &home).await;
    refused
}

#[test]
fn c24_unread_answers_are_bounded() {
    if crate::skipped("C24") {
        return;
    }
    run(async {
        let refused = unread_pictures(None).await;
        assert_eq!((refused[0], refused[11], refused[12]), (false, true, true), "{refused:?}");
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c24_without_a_bound_unread_answers_are_kept() {
    if crate::skipped("C24") {
        return;
    }
    run(async {
        assert_eq!(unread_pictures(Some("service:unread-answers")).await, [false; 13]);
    });
}

/// Connections with a body that does not go on, of one key.
const STALLED: usize = 250;

/// Bytes of each that arrive.
const STALLED_BYTES: usize = 512 << 10;

#[test]
fn c24_stalled_bodies_do_not_stop_other_keys() {
    if crate::skipped("C24") {
        return;
    }
    run(async {
        let settings = ["sandboxes.pool=0", "sandboxes.share_host_tree=true"];
        let (home, server, client) = start(&settings, None).await;
        let [(_, slow), (_, other)] =
            [client.new_key("read", "slow").await, client.new_key("user", "other").await];
        let other = client.with_key(&other);
        let before = memory_kib(server.pid());
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {slow}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: 9000000\r\n\r\n",
            server.address
        );
        let piece = vec![b' '; STALLED_BYTES];
        let stall = async || {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            // The rest of one that is refused is still taken.
            stream.write_all(&piece).await.unwrap();
            stream
        };
        let stalled = futures::future::join_all((0..STALLED).map(|_| stall())).await;
        let id = other.sandbox(&json!({ "timeout": 600 })).await;
        assert_eq!(other.sh(&id, "echo lives").await, "lives\n");
        assert_eq!(other.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status, 204);
        let grown = memory_kib(server.pid()).saturating_sub(before);
        // The key's share, and what the connections and the sandbox take.
        assert!(grown < 3 * MAX_GROWTH_KIB, "{grown} KiB");
        drop(stalled);
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn c24_output_limit_above_the_maximum_is_refused() {
    if crate::skipped("C24") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0"], None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        for (path, output) in [("exec", "1t"), ("exec", "17m"), ("processes", "257m"), ("code", "2m")] {
            let body = match path {
                "code" => json!({ "code": "1", "output": output }),
                _ => json!({ "command": "true", "output": output }),
            };
            let refused = client.post(&format!("/v1/sandboxes/{id}/{path}"), &body).await;
            refused.assert(400, "invalid_field");
            assert_eq!(refused.json()["field"], "output", "{path}: {refused:?}");
        }
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn c24_unread_answers_use_little_memory() {
    if crate::skipped("C24") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0", "head_room.disk=0"], None).await;
        let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "memory": "512m" } })).await;
        let before = memory_kib(server.pid());
        let mut held = Vec::new();
        for _ in 0..5 {
            let mut stream = TcpStream::connect(server.address).await.expect("the server is there");
            let body = loud().to_string();
            let head = format!(
                "POST /v1/sandboxes/{id}/exec HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                server.address,
                server.key,
                body.len()
            );
            stream.write_all(head.as_bytes()).await.expect("it takes a request");
            // Reads only the start of the answer.
            let mut first = [0; 12];
            stream.read_exact(&mut first).await.expect("it answers");
            assert_eq!(&first, b"HTTP/1.1 200");
            held.push(stream);
        }
        let grown = memory_kib(server.pid()).saturating_sub(before);
        assert!(grown < MAX_GROWTH_KIB, "{grown} KiB");
        assert_eq!(client.sh(&id, "echo lives").await, "lives\n");
        drop(held);
        crate::crash::shut_down(server, &home).await;
    });
}

/// Runs loud commands with an idempotency key each, and returns the growth of the store, in bytes.
async fn grow_by_stored_answers(home: &Home, client: &Client) -> u64 {
    let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "memory": "512m" } })).await;
    let size = || {
        let of = |name: &str| std::fs::metadata(home.path().join(name)).map_or(0, |file| file.len());
        of("belljar.db") + of("belljar.db-wal")
    };
    let before = size();
    for number in 0..4 {
        let body = json!({ "command": "head -c 6000000 /dev/urandom" }).to_string();
        let send = async || {
            let request = client.request("POST", &format!("/v1/sandboxes/{id}/exec"));
            let request = request.header("content-type", "application/json");
            client.send(request.header("idempotency-key", format!("loud-{number}")), body.clone()).await
        };
        let (first, again) = (send().await.json(), send().await.json());
        assert_eq!((&first["process"], &first["exit_code"]), (&again["process"], &again["exit_code"]));
        assert_eq!(first["stdout"]["bytes"], again["stdout"]["bytes"]);
        assert_eq!(first["stdout"]["truncated"], false);
    }
    size().saturating_sub(before)
}

#[test]
fn c25_stored_answers_use_little_disk() {
    if crate::skipped("C25") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0", "head_room.disk=0"], None).await;
        let grown = grow_by_stored_answers(&home, &client).await;
        assert!(grown < 4 << 20, "{grown} bytes");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c25_without_the_bound_answers_fill_the_disk() {
    if crate::skipped("C25") {
        return;
    }
    run(async {
        let (home, server, client) =
            start(&["sandboxes.pool=0", "head_room.disk=0"], Some("service:answer-bound")).await;
        let grown = grow_by_stored_answers(&home, &client).await;
        assert!(grown > 16 << 20, "{grown} bytes");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Sends requests that are refused, and returns the number of their audit records and the number of requests that these count.
async fn refused_requests(without: Option<&'static str>, count: usize) -> (usize, u64) {
    let (mut home, server, client) = start(&["sandboxes.pool=0"], without).await;
    let user = client.with_key(&client.new_key("user", "greedy").await.1);
    for _ in 0..count {
        let refused = user.post("/v1/sandboxes", &json!({ "template": "no-such-one" })).await;
        assert!(refused.status.is_client_error(), "{refused:?}");
    }
    // Counted refusals are recorded when the server ends, at the latest.
    drop((user, client));
    server.stop();
    let server = home.start();
    server.ready().await;
    let records = server.admin().get("/v1/audit?tenant=greedy&limit=1000").await.json();
    let records = records["records"].as_array().cloned().unwrap_or_default();
    let counted = records.iter().map(|record| record["details"]["count"].as_u64().unwrap_or(1)).sum();
    crate::crash::shut_down(server, &home).await;
    (records.len(), counted)
}

#[test]
fn c25_flood_of_refused_requests_is_counted() {
    if crate::skipped("C25") {
        return;
    }
    run(async {
        let (records, counted) = refused_requests(None, 300).await;
        assert!(records < 80, "{records} records");
        assert_eq!(counted, 300);
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c25_without_the_bound_each_refused_request_is_recorded() {
    if crate::skipped("C25") {
        return;
    }
    run(async { assert_eq!(refused_requests(Some("service:refusal-bound"), 100).await, (100, 100)) });
}

/// Returns how many creates of an honest tenant are refused while another tenant fills the queue.
async fn turns(without: Option<&'static str>) -> usize {
    let settings = ["sandboxes.pool=0", "sandboxes.max_starts=1", "sandboxes.max_waiting=8"];
    let (home, server, client) = start(&settings, without).await;
    let greedy = client.with_key(&client.new_key("user", "greedy").await.1);
    let honest = client.with_key(&client.new_key("user", "honest").await.1);
    let body = json!({ "timeout": 600, "limits": { "memory": "32m" } });
    let is_over = std::cell::Cell::new(false);
    let flood = async {
        let one = async || {
            let client = greedy.apart();
            while !is_over.get() {
                let made = client.post("/v1/sandboxes", &body).await;
                if let Some(id) = made.json()["id"].as_str() {
                    client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
                }
            }
        };
        futures::future::join_all((0..24).map(|_| one())).await;
    };
    let calm = async {
        crate::until("the queue is full", async || {
            let answer = client.get("/metrics").await;
            let waiting = answer.text().lines().find_map(|line| line.strip_prefix("belljar_starts_waiting "));
            waiting.is_some_and(|count| count.trim().parse::<f64>().is_ok_and(|count| count >= 8.0))
        })
        .await;
        let mut refused = 0;
        for _ in 0..8 {
            let made = honest.post("/v1/sandboxes", &body).await;
            match made.json()["id"].as_str() {
                Some(id) => drop(honest.call("DELETE", &format!("/v1/sandboxes/{id}")).await),
                None => refused += 1,
            }
        }
        is_over.set(true);
        refused
    };
    let (refused, ()) = tokio::join!(calm, flood);
    crate::crash::shut_down(server, &home).await;
    refused
}

#[test]
fn c26_greedy_key_does_not_block_others() {
    if crate::skipped("C26") {
        return;
    }
    run(async { assert_eq!(turns(None).await, 0) });
}

#[cfg(feature = "mutation")]
#[test]
fn c26_without_fairness_a_full_queue_blocks_others() {
    if crate::skipped("C26") {
        return;
    }
    run(async {
        let refused = turns(Some("service:fair-queue")).await;
        assert!(refused > 0, "{refused} of 8 were sent away");
    });
}

/// Reports whether a client can connect while another one holds all connections idle.
async fn idle_crowd(without: Option<&'static str>) -> bool {
    let settings =
        ["sandboxes.pool=0", "server.max_connections=64", "server.max_connections_per_client=10000"];
    let (home, server, client) = start(&settings, without).await;
    let request = format!("GET /health HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    let mut held = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(server.address).await.expect("the kernel takes it");
        // Each connection has had an answer, and stays open for more requests.
        if stream.write_all(request.as_bytes()).await.is_ok() {
            let _ = stream.read(&mut [0; 4096]).await;
        }
        held.push(stream);
    }
    // Recently used connections are not evicted.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let found = client.apart().try_call("GET", "/health").await.is_ok();
    drop(held);
    crate::until("there is room again", async || client.apart().try_call("GET", "/health").await.is_ok())
        .await;
    crate::crash::shut_down(server, &home).await;
    found
}

#[test]
fn c27_idle_connections_are_evicted() {
    if crate::skipped("C27") {
        return;
    }
    run(async { assert!(idle_crowd(None).await) });
}

#[cfg(feature = "mutation")]
#[test]
fn c27_without_eviction_idle_connections_block_others() {
    if crate::skipped("C27") {
        return;
    }
    run(async { assert!(!idle_crowd(Some("service:evict-idle")).await) });
}

/// Returns the end of a key's stream after the key is revoked; `None` if it stays open.
async fn revoked_stream(without: Option<&'static str>) -> Option<String> {
    let (home, server, client) = start(&["sandboxes.pool=0"], without).await;
    let (key_id, key) = client.new_key("user", "first").await;
    let user = client.with_key(&key);
    let id = user.sandbox(&json!({ "timeout": 3600 })).await;
    let mut stream = TcpStream::connect(server.address).await.expect("the server is there");
    let head = format!(
        "GET /v1/sandboxes/{id}/files/watch?path=. HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\n\
         connection: close\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).await.expect("it takes a request");
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("event: ready") {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await.expect("it answers");
        assert!(count > 0, "{}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&piece[..count]);
    }
    assert_eq!(client.call("DELETE", &format!("/v1/keys/{key_id}")).await.status, 204);
    let mut rest = Vec::new();
    let patience =
        if without.is_some() { std::time::Duration::from_secs(2) } else { belljar_testing::wait::DEADLINE };
    let ended = tokio::time::timeout(patience, stream.read_to_end(&mut rest)).await;
    let text = String::from_utf8_lossy(&rest).into_owned();
    drop(stream);
    crate::crash::shut_down(server, &home).await;
    ended.is_ok().then_some(text)
}

#[test]
fn c28_streams_of_a_revoked_key_are_cut() {
    if crate::skipped("C28") {
        return;
    }
    run(async {
        let text = revoked_stream(None).await.expect("the stream ends");
        assert!(text.contains("unauthenticated") && text.contains("revoked"), "{text:?}");
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c28_without_the_cut_streams_of_a_revoked_key_continue() {
    if crate::skipped("C28") {
        return;
    }
    run(async { assert_eq!(revoked_stream(Some("service:revoked-streams")).await, None) });
}
