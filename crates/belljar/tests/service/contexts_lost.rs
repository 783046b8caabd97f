//! Executions whose guest is lost: the reported state of the variables is what can be known.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::client::Client;
use crate::contexts::{Fixture, code, printed};
use crate::{run, until};

/// Code that waits until a file exists.
const WAITS: &str = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('over')";

/// Returns the server's connections to guests: unnamed Unix sockets with another process as the peer.
fn connections_to_guests(server: u32) -> Vec<OwnedFd> {
    let pid = i32::try_from(server).ok().and_then(Pid::from_raw).expect("it is a pid");
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("the server runs");
    let entries = std::fs::read_dir(format!("/proc/{server}/fd")).expect("its descriptors are listed");
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let taken = numbers.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok());
    let is_one = |fd: &OwnedFd| {
        sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
            && sockopt::socket_acceptconn(fd) == Ok(false)
            && sockopt::socket_peercred(fd).is_ok_and(|peer| peer.pid != pid)
            && std::os::unix::net::UnixStream::from(fd.try_clone().expect("it can be had twice"))
                .peer_addr()
                .is_ok_and(|address| address.is_unnamed())
    };
    taken.filter(is_one).collect()
}

/// Runs waiting code in the background, and returns once it runs.
async fn start(client: &Client, id: &str) -> tokio::task::JoinHandle<Value> {
    printed(client, id, ("language", "python"), "mark = 7").await;
    let (runner, to) = (client.apart(), id.to_owned());
    let running = tokio::spawn(async move { code(&runner, &to, &json!({ "code": WAITS })).await });
    let busy = async || {
        let list = client.get(&format!("/v1/sandboxes/{id}/contexts")).await.json();
        list["contexts"][0]["state"] == json!("busy") && !running.is_finished()
    };
    until("the code runs", busy).await;
    running
}

/// Runs a case with a sandbox in which Python contexts work.
fn case(name: &str, case: impl AsyncFnOnce(&Fixture)) {
    if crate::skipped(name) {
        return;
    }
    run(async {
        let fixture = Fixture::new(&["sandboxes.pool=0"]).await;
        if !fixture.lacks(name, "/usr/bin/python3 -c 'import IPython'").await {
            case(&fixture).await;
        }
        fixture.shut_down().await;
    });
}

async fn wait(running: tokio::task::JoinHandle<Value>) -> Value {
    let done = tokio::time::timeout(Duration::from_secs(60), running).await;
    done.expect("the execution ends in time").expect("it is answered")
}

/// Returns the record of the execution in the audit log.
async fn record(fixture: &Fixture) -> Value {
    let page = fixture.admin.get("/v1/audit?action=code&limit=1000").await.json();
    let records = page["records"].as_array().expect("a list").clone();
    let of_it = |record: &Value| record["sandbox"] == json!(fixture.id) && record["action"] == "code";
    records.into_iter().rev().find(of_it).expect("it is in the audit log")
}

#[test]
fn broken_connection_leaves_the_state_unknown() {
    case("a connection that breaks", async |fixture| {
        let (client, id) = (&fixture.client, &fixture.id);
        // The neighbouring sandbox has another connection.
        let before = connections_to_guests(fixture.server.pid()).len();
        assert!(before >= 2, "{before} connections to guests are found");
        let running = start(client, id).await;
        for connection in connections_to_guests(fixture.server.pid()) {
            rustix::net::shutdown(connection.as_fd(), Shutdown::Both).expect("it can be broken");
        }
        let done = wait(running).await;
        assert_eq!((&done["status"], &done["state"]), (&json!("died"), &json!("unknown")), "{done}");
        let reason = done["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("the guest was lost in the middle of the execution"), "{reason}");
        assert_eq!(done["error"], Value::Null, "{done}");
        let record = record(fixture).await;
        let text = record.to_string();
        assert!(text.contains("\"died\"") && text.contains("\"unknown\""), "{text}");
        // The server keeps working, and so do new sandboxes.
        let next = client.sandbox(&json!({ "timeout": 3600 })).await;
        assert_eq!(printed(client, &next, ("language", "python"), "print(6 * 7)").await, "42\n");
    });
}

#[test]
fn stopped_guest_leaves_the_state_unknown() {
    case("a guest that stands still", async |fixture| {
        let (client, id) = (&fixture.client, &fixture.id);
        printed(client, id, ("language", "python"), "mark = 7").await;
        let (runner, to) = (client.apart(), id.clone());
        let body = json!({ "code": WAITS, "timeout": "10s" });
        let running = tokio::spawn(async move { code(&runner, &to, &body).await });
        let guest = guest_of(fixture).await;
        let busy = async || {
            let list = client.get(&format!("/v1/sandboxes/{id}/contexts")).await.json();
            list["contexts"][0]["state"] == json!("busy")
        };
        until("the code runs", busy).await;
        pidfd_send_signal(&guest, Signal::STOP).expect("the guest can be stopped");
        let done = wait(running).await;
        pidfd_send_signal(&guest, Signal::CONT).expect("the guest can go on");
        assert_eq!((&done["status"], &done["state"]), (&json!("timed_out"), &json!("unknown")), "{done}");
        let reason = done["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("the guest did not report the end of the code in time"), "{reason}");
        // The guest responds again, and reports the state of the context.
        let seen = async || {
            let body = json!({ "code": "print(globals().get('mark', 'none'))" });
            let next = client.post(&format!("/v1/sandboxes/{id}/code"), &body).await;
            next.status == 200
                && ["7\n", "none\n"].map(Some).contains(&next.json()["stdout"]["data"].as_str())
        };
        until("the sandbox works again", seen).await;
    });
}

#[test]
fn killed_guest_loses_the_state() {
    case("a guest that dies", async |fixture| {
        let (client, id) = (&fixture.client, &fixture.id);
        let guest = guest_of(fixture).await;
        let running = start(client, id).await;
        pidfd_send_signal(&guest, Signal::KILL).expect("the guest can be killed");
        let done = wait(running).await;
        assert_eq!(done["status"], json!("died"), "{done}");
        // If the server does not see the sandbox's end within 2 s, the state is unknown; that happens on a busy machine.
        let (state, reason) = (done["state"].as_str(), done["reason"].as_str().unwrap_or_default());
        let is_consistent = match state {
            Some("lost") => reason.contains("the sandbox has ended"),
            Some("unknown") => reason.contains("the guest was lost"),
            _ => false,
        };
        assert!(is_consistent, "{done}");
        let listed = async || crate::check::all_sandboxes(&fixture.admin).await.contains(id);
        until("the sandbox is listed no more", async || !listed().await).await;
        let next = client.post(&format!("/v1/sandboxes/{id}/code"), &json!({ "code": "1" })).await;
        assert!(["sandbox_gone", "sandbox_not_found"].contains(&next.code().as_str()), "{next:?}");
    });
}

/// Finds the guest of the case's sandbox on the host: the first process of its pid namespace.
async fn guest_of(fixture: &Fixture) -> OwnedFd {
    let is_guest = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        inner.split_whitespace().count() > 1
            && inner.split_whitespace().last() == Some("1")
            && groups.contains(&format!("belljar-{}", fixture.id))
    };
    let pids = std::fs::read_dir("/proc").expect("processes are listed");
    let mut pids = pids.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(is_guest).expect("the sandbox has a first process");
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("it is a pid");
    pidfd_open(pid, PidfdFlags::empty()).expect("it runs")
}
