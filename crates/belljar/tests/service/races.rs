//! Concurrency and failures: races and repeated requests (C12), a lack of space and descriptors (C14), programs that attack the
//! sandbox's own agent (C20), a deadline while the server is down (C21), slow clients and floods (C07, C08), identities of copies
//! (X07, X12).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{Answer, Client};
use crate::load::Random;
use crate::raw::memory_kib;
use crate::run;
use crate::server::{Home, Server, groups, scratch};

async fn start(settings: &[&str], without: Option<&'static str>) -> (Home, Server, Client) {
    let mut home = Home::new(settings);
    home.without = without;
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    (home, server, client)
}

/// Allowed error codes for a request whose sandbox ends in the meantime.
const LOST: &[&str] = &[
    "",
    "sandbox_gone",
    "sandbox_not_found",
    "wrong_state",
    "name_taken",
    "idempotency_running",
    "process_not_found",
    "path_not_found",
    "path_exists",
    "execution_interrupted",
    "failed_precondition",
    "machine_full",
];

/// Runs one random step, and returns its answer; `None` for a file transfer during which the sandbox ended.
async fn any_step(client: &Client, id: &str, random: &mut Random) -> (&'static str, Option<Answer>) {
    let of = |rest: &str| format!("/v1/sandboxes/{id}{rest}");
    // A connection that was closed by an early answer to an upload must not affect the next step.
    let client = &client.apart();
    let post = async |rest: &str, body: Value| client.try_json("POST", &of(rest), &body).await;
    let (what, answered) = match random.below(12) {
        0..3 => ("exec", post("/exec", json!({ "command": "echo one; echo two" })).await),
        3..5 => {
            let request = client.request("PUT", &of("/files/content?path=f"));
            return ("upload", client.try_send(request, vec![b'x'; 100_000]).await.ok());
        }
        5 => return ("download", client.try_call("GET", &of("/files/content?path=f")).await.ok()),
        6 => ("pause", post("/pause", json!({})).await),
        7 => ("resume", post("/resume", json!({})).await),
        8 => ("snapshot", post("/snapshot", json!({})).await),
        9 => ("fork", post("/fork", json!({ "count": 1, "timeout": 60 })).await),
        10 => ("patch", client.try_json("PATCH", &of(""), &json!({ "labels": { "a": "b" } })).await),
        _ => ("delete", client.try_call("DELETE", &of("")).await),
    };
    (what, Some(answered.unwrap_or_else(|cut| panic!("{what} has no answer: {cut:?}"))))
}

#[test]
fn c12_concurrent_requests_are_consistent() {
    if crate::skipped("C12") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=1"], None).await;
        // Including pre-warmed sandboxes and forks.
        let mut ours = home.alive();
        let mut done = 0;
        for round in 0..12u64 {
            let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "memory": "64m" } })).await;
            let racers = (0..8).map(|racer| {
                let (client, id) = (client.apart(), id.clone());
                let mut random = Random(round * 100 + racer);
                async move {
                    let mut answers = Vec::new();
                    for _ in 0..6 {
                        answers.push(any_step(&client, &id, &mut random).await);
                    }
                    answers
                }
            });
            for (what, answer) in futures::future::join_all(racers).await.into_iter().flatten() {
                let Some(answer) = answer else { continue };
                let code = answer.code();
                assert!(LOST.contains(&code.as_str()), "round {round}: {what}: {answer:?}");
                done += usize::from(answer.status.is_success());
            }
            ours.extend(home.alive());
            ours.insert(id.clone());
            let answers = futures::future::join_all((0..4).map(|_| {
                let (client, path) = (client.apart(), format!("/v1/sandboxes/{id}"));
                async move { client.call("DELETE", &path).await }
            }))
            .await;
            assert!(answers.iter().all(|one| matches!(one.status.as_u16(), 204 | 404 | 410)), "{answers:?}");
        }
        crate::say(&format!("C12: {done} of {} did what was asked", 12 * 8 * 6));
        assert!(done > 50, "{done}");
        for template in client.get("/v1/templates").await.json()["templates"].as_array().into_iter().flatten()
        {
            if template["builtin"] != true {
                let id = template["id"].as_str().expect("it has one");
                client.call("DELETE", &format!("/v1/templates/{id}")).await;
            }
        }
        let left = std::fs::read_dir(home.path().join("templates")).into_iter().flatten().flatten().count();
        assert_eq!(left, 0, "archives stay");
        crate::crash::shut_down(server, &home).await;
        assert!(ours.len() > 12, "nothing was made ahead: {ours:?}");
        assert_eq!(scratch(&home), BTreeSet::new(), "scratch stays");
        let left: Vec<_> = groups().intersection(&ours).cloned().collect();
        assert!(left.is_empty(), "control groups stay: {left:?}");
    });
}

/// Sends the same request many times concurrently, and returns the sandboxes that were created.
async fn replay(client: &Client) -> BTreeSet<String> {
    let body =
        json!({ "timeout": 3600, "limits": { "memory": "64m" }, "labels": { "of": "replay" } }).to_string();
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        let asked = (0..10).map(|_| {
            let client = client.apart();
            let request = client.request("POST", "/v1/sandboxes").header("content-type", "application/json");
            let (request, body) = (request.header("idempotency-key", "replayed"), body.clone());
            async move { client.send(request, body).await }
        });
        for answer in futures::future::join_all(asked).await {
            match answer.code().as_str() {
                "" => drop(ids.insert(answer.json()["id"].as_str().expect("it has an id").to_owned())),
                code => assert_eq!(code, "idempotency_running", "{answer:?}"),
            }
        }
    }
    let there = client.get("/v1/sandboxes?label=of=replay").await.json();
    assert_eq!(
        there["sandboxes"].as_array().map(Vec::len),
        Some(ids.len()),
        "a sandbox was created that no answer names"
    );
    ids
}

#[test]
fn c12_replayed_request_is_executed_once() {
    if crate::skipped("C12") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0"], None).await;
        assert_eq!(replay(&client).await.len(), 1);
        let other = json!({ "timeout": 60 }).to_string();
        let request = client.request("POST", "/v1/sandboxes").header("content-type", "application/json");
        client
            .send(request.header("idempotency-key", "replayed"), other)
            .await
            .assert(422, "idempotency_mismatch");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c12_without_stored_answers_each_replay_is_executed() {
    if crate::skipped("C12") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0"], Some("service:idempotency")).await;
        assert!(replay(&client).await.len() > 1);
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn c14_full_machine_refuses_new_work_and_releases() {
    if crate::skipped("C14") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0"], None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        server.stop();
        // The same sandboxes, on a machine with less than the required head-room.
        let mut home = home;
        home.flags.extend(["--set".to_owned(), "head_room.disk=16384g".to_owned()]);
        let server = home.start();
        let client = server.admin();
        crate::until("it answers", async || client.try_call("GET", "/health").await.is_ok()).await;
        let refused = client.post("/v1/sandboxes", &json!({})).await;
        refused.assert(503, "machine_full");
        assert!(!refused.header("retry-after").is_empty(), "{refused:?}");
        client.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({})).await.assert(503, "machine_full");
        assert_eq!(client.sh(&id, "echo lives").await, "lives\n");
        assert_eq!(client.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status, 204);
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c14_without_head_room_the_machine_is_filled() {
    if crate::skipped("C14") {
        return;
    }
    run(async {
        let settings = ["sandboxes.pool=0", "head_room.disk=16384g"];
        let mut home = Home::new(&settings);
        home.without = Some("service:head-room");
        let server = home.start();
        let client = server.admin();
        crate::until("it answers", async || client.try_call("GET", "/health").await.is_ok()).await;
        client.sandbox(&json!({ "timeout": 3600 })).await;
        crate::crash::shut_down(server, &home).await;
    });
}

/// A small file system for a home.
pub(crate) struct SmallDisk {
    path: std::path::PathBuf,
}

impl SmallDisk {
    /// Mounts an empty disk of this size, such as `24m`.
    pub(crate) fn mount(path: std::path::PathBuf, size: &str) -> Self {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "belljar-test"]).arg(&path);
        assert!(mount.status().is_ok_and(|status| status.success()), "it cannot be mounted");
        Self { path }
    }

    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.path.join("fill")).expect("it can be made");
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.path.join("fill")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Fills the disk of a server with a sandbox, and returns the status of ending that.
async fn full_disk(without: Option<&'static str>) -> u16 {
    let mut home = Home::new(&["sandboxes.pool=0", "head_room.disk=0", "head_room.inodes_percent=0"]);
    home.without = without;
    let disk = SmallDisk::mount(home.path(), "24m");
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    let id = client.sandbox(&json!({ "timeout": 3600 })).await;
    client.post(&format!("/v1/sandboxes/{id}/processes"), &json!({ "argv": ["sleep", "600"] })).await;
    disk.fill();
    // Until the database's free pages are used up.
    crate::until("it is full", async || {
        let made = client.post("/v1/sandboxes", &json!({ "timeout": 60 })).await;
        assert!(matches!(made.status.as_u16(), 201 | 503 | 507), "{made:?}");
        made.status == 507
    })
    .await;
    for path in ["/exec", "/snapshot", "/fork"] {
        let body = if path == "/exec" { json!({ "command": "true" }) } else { json!({}) };
        let refused = client.post(&format!("/v1/sandboxes/{id}{path}"), &body).await;
        // Forks are reported one by one, including failed ones.
        let status = match refused.status.as_u16() {
            201 if path == "/fork" => {
                refused.json()["sandboxes"][0]["error"]["status"].as_u64().unwrap_or_default()
            }
            status => status.into(),
        };
        assert!(matches!(status, 500 | 503 | 507), "{path}: {refused:?}");
        assert_ne!(refused.code(), "internal", "{path}: {refused:?}");
    }
    assert_eq!(client.get(&format!("/v1/sandboxes/{id}")).await.status, 200);
    assert_eq!(client.get("/health").await.status, 200);
    let ended = client.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status;
    crate::until("its processes are gone", async || !home.alive().contains(&id)).await;
    disk.free();
    crate::until("the books agree", async || {
        let again = client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
        matches!(again.status.as_u16(), 204 | 404 | 410)
    })
    .await;
    let next = client.sandbox(&json!({ "timeout": 3600 })).await;
    assert_eq!(client.sh(&next, "echo lives").await, "lives\n");
    let verified = client.call("POST", "/v1/audit/verify").await.json();
    assert_eq!(verified["ok"], true, "{verified}");
    assert!(!home.log().contains("panicked"), "{}", home.log());
    crate::crash::shut_down(server, &home).await;
    drop(disk);
    ended.as_u16()
}

#[test]
fn c14_full_disk_blocks_new_work_and_no_endings() {
    if crate::skipped("C14") {
        return;
    }
    // It ends, and that is recorded: space was reserved for it.
    run(async { assert_eq!(full_disk(None).await, 204) });
}

#[cfg(feature = "mutation")]
#[test]
fn c25_without_the_reserve_a_full_disk_keeps_sandboxes_from_ending() {
    if crate::skipped("C25") {
        return;
    }
    run(async { assert_eq!(full_disk(Some("service:reserve")).await, 507) });
}

/// Maximum number of descriptors of a server in these tests.
const FEW: u32 = 200;

/// Uses up all connections, and returns the statuses that a sandbox's owner gets meanwhile: for another sandbox, a command, and
/// ending it.
async fn crowd(without: Option<&'static str>) -> Vec<u16> {
    let mut home = Home::new(&["sandboxes.pool=0", "server.max_connections_per_client=10000"]);
    home.descriptors = Some(FEW);
    home.without = without;
    let server = home.start();
    server.ready().await;
    // A connection from the crowd's address could be evicted for one of the crowd.
    let client = server.admin().by_socket(home.path().join("belljar.sock"));
    let id = client.sandbox(&json!({ "timeout": 3600 })).await;
    let mut held = Vec::new();
    for _ in 0..FEW * 2 {
        let mut stream = TcpStream::connect(server.address).await.expect("the kernel takes it");
        // An open connection counts until it is closed.
        let _ = stream.write_all(b"GET /health HTTP/1.1\r\n").await;
        held.push(stream);
    }
    crate::until("the crowd is there", async || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).map_or(0, Iterator::count);
        open >= FEW as usize / 2
    })
    .await;
    let made = client.post("/v1/sandboxes", &json!({ "timeout": 60 })).await;
    let ran = client.post(&format!("/v1/sandboxes/{id}/exec"), &json!({ "command": "true" })).await;
    let kept = client.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({})).await;
    let ended = client.call("DELETE", &format!("/v1/sandboxes/{id}")).await;
    let statuses = [made, ran, kept, ended].map(|answer| answer.status.as_u16()).to_vec();
    drop(held);
    crate::until("others are served again", async || {
        let other = client.apart();
        let asked = tokio::time::timeout(Duration::from_secs(5), other.try_call("GET", "/health")).await;
        matches!(asked, Ok(Ok(answer)) if answer.status == 200)
    })
    .await;
    assert!(!home.log().contains("panicked"), "{}", home.log());
    if without.is_some() {
        // The server may not know all sandboxes of its launcher; these end with the home.
        server.stop();
        return statuses;
    }
    crate::crash::shut_down(server, &home).await;
    statuses
}

#[test]
fn c14_many_connections_leave_descriptors_for_sandboxes() {
    if crate::skipped("C14") {
        return;
    }
    run(async {
        assert_eq!(crowd(None).await, [201, 200, 201, 204]);
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c14_without_their_share_sandboxes_have_no_descriptors() {
    if crate::skipped("C14") {
        return;
    }
    run(async {
        let statuses = crowd(Some("service:descriptors")).await;
        assert!(statuses.iter().any(|status| *status >= 500), "{statuses:?}");
    });
}

/// Program that attacks the process that answers the host, and clients that connect to it.
const AGENT: &str = r#"
import os, signal, socket, glob
done = []
for pid in (1, os.getppid()):
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
        if pid == 1:
            try: os.kill(pid, number)
            except OSError as error: pass
try: open('/proc/1/mem', 'wb'); done.append('mem')
except OSError: pass
for path in glob.glob('/proc/1/fd/*'):
    try: os.readlink(path); done.append(path)
    except OSError: pass
for port in range(1, 20000, 7):
    s = socket.socket()
    try: s.connect(('127.0.0.1', port)); done.append(port)
    except OSError: pass
    s.close()
print(done)
"#;

#[test]
fn c20_programs_do_not_reach_the_agent() {
    if crate::skipped("C20") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0"], None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        client
            .send(client.request("PUT", &format!("/v1/sandboxes/{id}/files/content?path=a.py")), AGENT)
            .await;
        assert_eq!(client.sh(&id, "python3 a.py").await, "[]\n");
        assert_eq!(client.sh(&id, "echo lives").await, "lives\n");
        // A flood of processes that the agent has to supervise, and a lack of processor time: other sandboxes are not affected.
        let other = client.sandbox(&json!({ "timeout": 3600 })).await;
        let flood = json!({ "command": "while :; do (:) & done", "timeout": 20 });
        client.post(&format!("/v1/sandboxes/{id}/processes"), &flood).await;
        for _ in 0..20 {
            let begin = Instant::now();
            assert_eq!(client.sh(&other, "echo on").await, "on\n");
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        }
        let begin = Instant::now();
        assert_eq!(client.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status, 204);
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn c21_deadline_is_enforced_without_the_server() {
    if crate::skipped("C21") {
        return;
    }
    run(async {
        let (mut home, server, client) = start(&["sandboxes.pool=0"], None).await;
        let short = client.sandbox(&json!({ "timeout": 2 })).await;
        let long = client.sandbox(&json!({ "timeout": 3600 })).await;
        client.post(&format!("/v1/sandboxes/{short}/processes"), &json!({ "argv": ["sleep", "600"] })).await;
        server.kill();
        crate::until("the launcher ends what is over", async || !home.alive().contains(&short)).await;
        assert!(home.alive().contains(&long), "it ended what is not over");
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        client.get(&format!("/v1/sandboxes/{short}")).await.assert(410, "sandbox_gone");
        assert_eq!(client.sh(&long, "echo lives").await, "lives\n");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Number of slow clients.
const SLOW: usize = 300;

/// Opens connections that send half a head and then nothing, and returns how many are still open after `wait`.
async fn slow_heads(server: &Server, wait: Duration) -> usize {
    let mut open = Vec::new();
    for _ in 0..SLOW {
        let mut stream = TcpStream::connect(server.address).await.expect("the server is there");
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: x").await.expect("it takes that");
        open.push(stream);
    }
    // Other clients are served meanwhile.
    let admin = server.admin();
    let begin = Instant::now();
    while begin.elapsed() < wait {
        let asked = Instant::now();
        assert_eq!(admin.get("/health").await.status, 200);
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut left = 0;
    for stream in &mut open {
        let mut buffer = [0; 256];
        let read = tokio::time::timeout(Duration::from_millis(5), stream.read(&mut buffer)).await;
        // A connection that was answered or closed is no longer held.
        left += usize::from(read.is_err());
    }
    left
}

#[test]
fn c07_slow_clients_are_dropped() {
    if crate::skipped("C07") {
        return;
    }
    run(async {
        let settings = ["sandboxes.pool=0", "server.max_connections_per_client=1000"];
        let (home, server, _) = start(&settings, None).await;
        let before = memory_kib(server.pid());
        assert_eq!(slow_heads(&server, Duration::from_secs(16)).await, 0, "slow clients are still there");
        let grown = memory_kib(server.pid()).saturating_sub(before);
        assert!(grown < 64 * 1024, "the server's memory grew by {grown} KiB");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c07_without_timeouts_slow_clients_stay() {
    if crate::skipped("C07") {
        return;
    }
    run(async {
        let settings = ["sandboxes.pool=0", "server.max_connections_per_client=1000", "server.drain=1s"];
        let (home, server, _) = start(&settings, Some("service:slow-heads")).await;
        assert_eq!(slow_heads(&server, Duration::from_secs(16)).await, SLOW);
        crate::crash::shut_down(server, &home).await;
    });
}

/// Opens a connection to a process's WebSocket, for hostile frames.
async fn socket(server: &Server, id: &str, process: u64) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.expect("the server is there");
    let head = format!(
        "GET /v1/sandboxes/{id}/processes/{process}/attach HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
         Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        server.address, server.key
    );
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    stream
}

/// Encodes a frame of a client. Its mask is zero.
fn frame(first: u8, length: u64, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![first, 0xff];
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(content);
    frame
}

/// Sends `again` repeatedly until the server closes the connection or has accepted `most` bytes. Returns how many it accepted, and what
/// it sent. Waits for the close if one is expected.
async fn feed(
    mut stream: TcpStream,
    first: &[u8],
    again: &[u8],
    most: usize,
    is_to_close: bool,
) -> (usize, Vec<u8>) {
    stream.write_all(first).await.expect("it takes the first");
    let mut sent = first.len();
    let (mut read, mut write) = stream.split();
    let mut heard = Vec::new();
    let mut hear = std::pin::pin!(async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            heard.extend_from_slice(&buffer[..count]);
            // Only the end is examined.
            heard.drain(..heard.len().saturating_sub(64 * 1024));
        }
    });
    let speak = async {
        while sent < most {
            // Continues the frame where the last write stopped.
            let mut rest = again;
            while !rest.is_empty() {
                match write.write(rest).await {
                    Ok(count) => rest = &rest[count..],
                    Err(_) => return,
                }
            }
            sent += again.len();
        }
    };
    let is_closed = tokio::select! {
        () = &mut hear => true,
        () = speak => false,
    };
    if is_to_close && !is_closed {
        tokio::time::timeout(belljar_testing::wait::DEADLINE, hear).await.expect("the server closes");
    }
    (sent, heard)
}

/// Returns the status of the server's last close frame, 0 if there is none.
fn close_status(heard: &[u8]) -> u16 {
    let at = heard.iter().rposition(|byte| *byte == 0x88);
    let status = at.and_then(|at| heard.get(at + 2..at + 4));
    status.map_or(0, |status| u16::from_be_bytes([status[0], status[1]]))
}

async fn cat(client: &Client, id: &str) -> u64 {
    let body = json!({ "command": "cat > /dev/null", "stdin_open": true });
    let started = client.post(&format!("/v1/sandboxes/{id}/processes"), &body).await;
    started.json()["process"].as_u64().expect("it has a number")
}

#[test]
fn c08_floods_of_frames_are_bounded() {
    if crate::skipped("C08") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0"], None).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let before = memory_kib(server.pid());
        let fill = vec![b'x'; 64 * 1024];
        let piece = frame(0x00, fill.len() as u64, &fill);
        let ping = frame(0x89, 100, &[b'p'; 100]);
        let resize = frame(0x81, 36, br#"{"resize":{"rows":40,"columns":120}}"#);
        for (what, first, again, most, status) in [
            ("a frame of a gigabyte", frame(0x82, 1 << 30, &fill), fill.clone(), 32 << 20, 1009),
            ("endless fragments", frame(0x02, fill.len() as u64, &fill), piece, 32 << 20, 1009),
            ("a length of 2^63", frame(0x82, 1 << 63, &fill), fill.clone(), 32 << 20, 1009),
            ("pings that nobody waits for", ping.clone(), ping.repeat(100), 8 << 20, 0),
            ("changes of the size", resize.clone(), resize.repeat(100), 4 << 20, 0),
            ("no WebSocket at all", vec![0xff; 100], vec![0xff; 4096], 8 << 20, 0),
        ] {
            let process = cat(&client, &id).await;
            let begin = Instant::now();
            let (sent, heard) =
                feed(socket(&server, &id, process).await, &first, &again, most, status != 0).await;
            let closed = close_status(&heard);
            crate::say(&format!("C08: {what}: {sent} bytes in {:?}, closed with {closed}", begin.elapsed()));
            if status != 0 {
                assert!(sent < 8 << 20, "{what}: {sent} bytes were taken");
                assert_eq!(closed, status, "{what}");
            }
            let grown = memory_kib(server.pid()).saturating_sub(before);
            assert!(grown < 64 * 1024, "{what}: the server's memory grew by {grown} KiB");
            assert_eq!(client.sh(&id, "echo lives").await, "lives\n", "{what}");
        }
        // A client that does not read, while the process keeps writing.
        let body = json!({ "command": "yes", "timeout": 60 });
        let started = client.post(&format!("/v1/sandboxes/{id}/processes"), &body).await;
        let mut deaf = Vec::new();
        for _ in 0..8 {
            deaf.push(
                socket(&server, &id, started.json()["process"].as_u64().expect("it has a number")).await,
            );
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            assert_eq!(client.get("/health").await.status, 200);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let grown = memory_kib(server.pid()).saturating_sub(before);
        assert!(grown < 64 * 1024, "the server's memory grew by {grown} KiB");
        drop(deaf);
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c08_without_a_bound_messages_grow() {
    if crate::skipped("C08") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=0"], Some("service:message-bounds")).await;
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let process = cat(&client, &id).await;
        let fill = vec![b'x'; 64 * 1024];
        let (first, again) = (frame(0x02, fill.len() as u64, &fill), frame(0x00, fill.len() as u64, &fill));
        let (sent, _) = feed(socket(&server, &id, process).await, &first, &again, 32 << 20, false).await;
        assert!(sent >= 32 << 20, "only {sent} bytes were taken");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Prints the values that must differ between two sandboxes, a line each.
const TWINS: &str = r#"
import os, random, secrets, ssl, uuid, socket
print(os.urandom(16).hex()); print(uuid.uuid4()); print(uuid.uuid1().hex[:8] + secrets.token_hex(8))
print(random.random()); print(ssl.RAND_bytes(16).hex())
print(open('/proc/sys/kernel/random/uuid').read().strip())
print(hash('text')); print(id(object()))
maps = open('/proc/self/maps').read().split('\n')
print([m.split('-')[0] for m in maps if '[stack]' in m][0])
print([m.split('-')[0] for m in maps if 'libc' in m][0])
print(open('/proc/self/stat').read().split()[21] and os.popen("cat /proc/sys/kernel/random/uuid").read().strip())
"#;

#[test]
fn x07_x12_copies_have_identities_of_their_own() {
    if crate::skipped("X07, X12") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=2"], None).await;
        let first = client.sandbox(&json!({ "timeout": 3600, "limits": { "memory": "64m" } })).await;
        client
            .send(client.request("PUT", &format!("/v1/sandboxes/{first}/files/content?path=t.py")), TWINS)
            .await;
        client.sh(&first, "python3 t.py > /dev/null").await;
        let kept = client.post(&format!("/v1/sandboxes/{first}/snapshot"), &json!({ "name": "kept" })).await;
        assert_eq!(kept.status, 201, "{kept:?}");
        let mut ids = vec![first.clone()];
        let forks = client.post(&format!("/v1/sandboxes/{first}/fork"), &json!({ "count": 4 })).await.json();
        for fork in forks["sandboxes"].as_array().expect("a list") {
            ids.push(fork["sandbox"]["id"].as_str().expect("it was made").to_owned());
        }
        for _ in 0..3 {
            ids.push(client.sandbox(&json!({ "timeout": 3600, "template": "kept" })).await);
        }
        // Sequentially and concurrently.
        let outputs = futures::future::join_all(ids.iter().map(|id| {
            let (client, id) = (client.apart(), id.clone());
            async move { client.sh(&id, "python3 t.py").await }
        }))
        .await;
        let rows: Vec<Vec<&str>> = outputs.iter().map(|text| text.lines().collect()).collect();
        assert!(rows.iter().all(|row| row.len() == rows[0].len() && row.len() == 11), "{rows:?}");
        for line in 0..rows[0].len() {
            // The address of an object has so few random bits that two may be equal.
            let values: BTreeSet<&str> = rows.iter().map(|row| row[line]).collect();
            let least = if (7..10).contains(&line) { rows.len() - 1 } else { rows.len() };
            assert!(values.len() >= least, "line {line}: {values:?}");
        }
        crate::crash::shut_down(server, &home).await;
    });
}

/// Changes of a sandbox to shared or possibly shared state are invisible to other sandboxes.
#[test]
fn x02_x05_nothing_writable_is_shared() {
    if crate::skipped("X02, X05") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.pool=2"], None).await;
        let admin = client.clone();
        let one = admin.with_key(&admin.new_key("user", "first").await.1);
        let two = admin.with_key(&admin.new_key("user", "second").await.1);
        let writer = one.sandbox(&json!({ "timeout": 3600 })).await;
        let reader = two.sandbox(&json!({ "timeout": 3600 })).await;
        let line = "n=0; for d in $(find / -xdev -type d -writable 2>/dev/null; echo /usr/lib/python3/dist-packages /usr/local/lib /usr/bin \
             /var/cache /var/lib /etc /opt \"$HOME/.cache/pip\" \"$HOME/.npm\" /tmp /var/tmp /dev/shm /run); do mkdir -p \"$d\" 2>/dev/null; \
             echo poison > \"$d/poison-81e2\" 2>/dev/null && n=$((n+1)); done; echo $n";
        let written: u32 = one.sh(&writer, line).await.trim().parse().expect("a number");
        assert!(written >= 3, "it could write to {written} directories only");
        let look = "find / -name 'poison-81e2' 2>/dev/null; true";
        assert_eq!(two.sh(&reader, look).await, "");
        let later = two.sandbox(&json!({ "timeout": 3600 })).await;
        assert_eq!(two.sh(&later, look).await, "", "one that was made later");
        assert_ne!(one.sh(&writer, look).await, "");
        assert_eq!(
            one.sh(&writer, "ls -d /usr/bin/poison-81e2 /usr/lib/python3/dist-packages/poison-81e2 /etc/poison-81e2 2>/dev/null; true").await,
            "",
            "the shared system can be written"
        );
        // By its id, with every kind of read request.
        for path in [
            "",
            "/files/content?path=x",
            "/files",
            "/files/archive?path=.",
            "/processes",
            "/ports",
            "/metrics",
            "/logs",
        ] {
            two.get(&format!("/v1/sandboxes/{writer}{path}")).await.assert(404, "sandbox_not_found");
        }
        crate::crash::shut_down(server, &home).await;
    });
}

/// With several tenants, the machine's own tree and so its page cache are shared only if the operator allows it.
#[test]
fn x06_page_cache_is_shared_by_tenants_only_on_request() {
    if crate::skipped("X06") {
        return;
    }
    run(async {
        let (home, server, admin) =
            start(&["sandboxes.pool=0", "sandboxes.share_host_tree=false"], None).await;
        let one = admin.with_key(&admin.new_key("user", "default").await.1);
        // A single tenant may use it, and is not disturbed by an attempt of a second one.
        one.sandbox(&json!({ "timeout": 3600 })).await;
        for role in ["read", "user", "admin"] {
            let key = json!({ "name": "x", "role": role, "tenant": "second" });
            let refused = admin.post("/v1/keys", &key).await;
            refused.assert(403, "policy_refused");
            assert!(refused.text().contains("sandboxes.share_host_tree = true"), "{refused:?}");
        }
        one.sandbox(&json!({ "timeout": 3600 })).await;
        let answer: Value = admin.get("/v1/audit?action=key.create&limit=10").await.json();
        let records = answer["records"].as_array().expect("a list");
        let refused = records.iter().filter(|record| record["outcome"] == "policy_refused").count();
        assert_eq!(refused, 3, "{answer}");
        crate::crash::shut_down(server, &home).await;
    });
}
