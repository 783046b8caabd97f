//! Volumes: files that outlive sandboxes and that several of them share, and attacks on the host, on siblings and on other tenants
//! through files that a sandbox leaves in one (C14, F02 to F04, F08, R05, R06, X02).

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::files::{CANARY, Host, OLD_ROOT, QUICK_TIMEOUT};
use crate::run;
use crate::server::{Home, Server};

/// Returns whether the machine lacks what volumes need, and prints what.
pub(crate) fn skipped(case: &str) -> bool {
    if crate::skipped(case) {
        return true;
    }
    let lacks = ["/dev/loop-control", "/usr/sbin/mke2fs"].into_iter().find(|path| !Path::new(path).exists());
    if let Some(lacks) = lacks {
        crate::say(&format!("SKIPPED {case}: there is no {lacks}, which volumes need"));
    }
    lacks.is_some()
}

async fn start(settings: &[&str], without: Option<&'static str>) -> (Home, Server, Client) {
    let mut home = Home::new(&[&["sandboxes.pool=0"], settings].concat());
    home.without = without;
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    (home, server, client)
}

/// Creates a volume, and returns its id.
async fn volume(client: &Client, name: &str, size: &str) -> String {
    let made = client.post("/v1/volumes", &json!({ "name": name, "size": size })).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["id"].as_str().expect("it has an id").to_owned()
}

/// Creates a sandbox with a volume at `/mnt/v`, and returns its id.
async fn sandbox(client: &Client, name: &str, mode: &str) -> String {
    let volumes = json!([{ "name": name, "path": "/mnt/v", "mode": mode }]);
    client.sandbox(&json!({ "timeout": 3600, "volumes": volumes })).await
}

fn content(volume: &str, path: &str) -> String {
    format!("/v1/volumes/{volume}/files/content?path={path}")
}

async fn put(client: &Client, volume: &str, path: &str, data: impl Into<bytes::Bytes>) -> Answer {
    let data: bytes::Bytes = data.into();
    client.put(&content(volume, path), data).await
}

async fn end(client: &Client, id: &str) {
    assert_eq!(client.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status, 204);
}

/// Removes a volume, and returns the answer.
async fn remove(client: &Client, name: &str) -> Answer {
    client.call("DELETE", &format!("/v1/volumes/{name}")).await
}

/// Returns the files of volumes on the disk.
fn files(home: &Home) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(home.path().join("volumes")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns the files of this home that are attached to loop devices.
fn devices(home: &Home) -> Vec<String> {
    let all = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files =
        all.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| Path::new(file.trim()).starts_with(home.path())).collect()
}

#[test]
fn volumes_are_created_listed_and_removed() {
    if skipped("volumes") {
        return;
    }
    run(async {
        let settings = ["sandboxes.volumes.max_count=3", "sandboxes.volumes.max_bytes=100m"];
        let (home, server, client) = start(&settings, None).await;
        let made = client.post("/v1/volumes", &json!({ "name": "data", "size": "32m" })).await;
        assert_eq!(made.status, 201, "{made:?}");
        let info = made.json();
        let id = info["id"].as_str().expect("it has an id");
        assert_eq!((info["name"].as_str(), info["bytes"].as_u64()), (Some("data"), Some(32 << 20)));
        for name in ["data", id] {
            assert_eq!(client.get(&format!("/v1/volumes/{name}")).await.json(), info);
        }
        assert_eq!(client.get("/v1/volumes").await.json()["volumes"], json!([info]));
        // Its size is reserved on the disk.
        let file = std::fs::metadata(home.path().join(format!("volumes/{id}.img"))).expect("it is there");
        assert_eq!((file.len(), file.mode() & 0o777), (32 << 20, 0o600));
        assert!(file.blocks() * 512 >= 32 << 20, "{} blocks", file.blocks());
        client.post("/v1/volumes", &json!({ "name": "data" })).await.assert(409, "name_taken");
        for (body, field) in [
            (json!({ "name": "a b" }), "name"),
            (json!({ "name": "" }), "name"),
            (json!({ "name": "../a" }), "name"),
            (json!({ "name": "abcdefghij0123456789" }), "name"),
            (json!({ "name": "b", "size": "1m" }), "size"),
            (json!({ "name": "b", "size": "17t" }), "size"),
            (json!({ "name": "b", "size": "much" }), "size"),
        ] {
            let refused = client.post("/v1/volumes", &body).await;
            refused.assert(400, "invalid_field");
            assert_eq!(refused.json()["field"], field, "{refused:?}");
        }
        client
            .post("/v1/volumes", &json!({ "name": "b", "size": "69m" }))
            .await
            .assert(429, "quota_exceeded");
        volume(&client, "b", "16m").await;
        volume(&client, "c", "16m").await;
        client
            .post("/v1/volumes", &json!({ "name": "d", "size": "16m" }))
            .await
            .assert(429, "quota_exceeded");
        // The quota of a key, whose tenant has no volumes yet.
        let body =
            json!({ "name": "k", "role": "user", "tenant": "other", "quotas": { "disk_bytes": 20 << 20 } });
        let key = client.post("/v1/keys", &body).await.json();
        let other = client.with_key(key["key"].as_str().expect("it has a secret"));
        other
            .post("/v1/volumes", &json!({ "name": "data", "size": "32m" }))
            .await
            .assert(400, "invalid_field");
        volume(&other, "data", "16m").await;
        assert_eq!(remove(&client, "data").await.status, 204);
        remove(&client, "data").await.assert(404, "volume_not_found");
        assert_eq!(files(&home).len(), 3);
        let audit = client.get("/v1/audit?limit=1000").await.text().to_owned();
        for action in ["volume.create", "volume.remove"] {
            assert!(audit.contains(action), "{action} is not in the audit trail");
        }
        crate::crash::shut_down(server, &home).await;
    });
}

/// Requests a volume for which the disk has no room besides the head-room, and returns the answer.
async fn without_room(without: Option<&'static str>) -> Answer {
    // The head-room is larger than the disk.
    let mut home = Home::new(&["sandboxes.pool=0", "head_room.disk=16384g"]);
    home.without = without;
    let server = home.start();
    let client = server.admin();
    crate::until("it answers", async || client.try_call("GET", "/health").await.is_ok()).await;
    let answer = client.post("/v1/volumes", &json!({ "name": "v", "size": "16m" })).await;
    let made = usize::from(answer.status == 201);
    assert_eq!(files(&home).len(), made, "{answer:?}");
    crate::crash::shut_down(server, &home).await;
    answer
}

#[test]
fn c14_volumes_leave_the_head_room() {
    if skipped("C14, volumes") {
        return;
    }
    run(async {
        without_room(None).await.assert(503, "machine_full");
        // A volume larger than the disk is refused as well, and leaves no file.
        let (home, server, client) =
            start(&["head_room.disk=0", "sandboxes.volumes.max_bytes=16t"], None).await;
        client.post("/v1/volumes", &json!({ "name": "v", "size": "15t" })).await.assert(503, "machine_full");
        assert_eq!(files(&home), Vec::<std::path::PathBuf>::new());
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c14_without_head_room_volumes_use_it_up() {
    if skipped("C14, volumes") {
        return;
    }
    run(async { assert_eq!(without_room(Some("service:head-room")).await.status, 201) });
}

#[test]
fn files_of_a_volume_are_reached_without_a_sandbox() {
    if skipped("volumes, files") {
        return;
    }
    run(async {
        let (home, server, client) = start(&[], None).await;
        volume(&client, "v", "32m").await;
        let files = "/v1/volumes/v/files";
        let written = put(&client, "v", "/d/a.txt&mode=0640", "hello").await;
        assert_eq!(
            (written.status.as_u16(), written.json()["mode"].as_str()),
            (200, Some("0640")),
            "{written:?}"
        );
        assert_eq!(client.get(&content("v", "d/a.txt")).await.text(), "hello");
        let part = client.request("GET", &content("v", "d/a.txt")).header("range", "bytes=1-2");
        assert_eq!(client.send(part, "").await.text(), "el");
        put(&client, "v", "d/a.txt&exclusive=true", "no").await.assert(409, "path_exists");
        assert_eq!(client.post(&format!("{files}/mkdir"), &json!({ "path": "d/e" })).await.status, 201);
        let chmod =
            client.post(&format!("{files}/chmod"), &json!({ "path": "d/a.txt", "mode": "0600" })).await;
        assert_eq!(chmod.json()["mode"], "0600", "{chmod:?}");
        let moved =
            client.post(&format!("{files}/move"), &json!({ "from": "d/a.txt", "to": "d/e/b.txt" })).await;
        assert_eq!(moved.status, 200, "{moved:?}");
        let listed = client.get(&format!("{files}?path=/&depth=3")).await.json();
        let paths: Vec<&str> = listed["entries"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| entry["path"].as_str())
            .collect();
        assert_eq!(paths, ["d", "d/e", "d/e/b.txt"], "{listed}");
        assert_eq!(client.get(&format!("{files}/stat?path=d/e/b.txt")).await.json()["bytes"], 5);
        client.get(&format!("{files}/stat?path=d/a.txt")).await.assert(404, "path_not_found");
        client.call("DELETE", &format!("{files}?path=d")).await.assert(409, "failed_precondition");
        assert_eq!(client.call("DELETE", &format!("{files}?path=d&recursive=true")).await.status, 204);
        assert_eq!(client.get(&format!("{files}?path=.")).await.json()["entries"], json!([]));
        for path in ["..", "/../../etc/passwd", "a/../../b", "%2e%2e/x"] {
            let asked = [
                client.get(&content("v", path)).await,
                put(&client, "v", path, "x").await,
                client.get(&format!("{files}?path={path}")).await,
                client.get(&format!("{files}/stat?path={path}")).await,
                client.call("DELETE", &format!("{files}?path={path}&recursive=true")).await,
            ];
            for refused in asked {
                refused.assert(400, "invalid_field");
            }
        }
        let up = json!({ "from": "../a", "to": "b" });
        client.post(&format!("{files}/move"), &up).await.assert(400, "invalid_field");
        // The content sandbox is not listed.
        assert_eq!(client.get("/v1/sandboxes").await.json()["sandboxes"], json!([]));
        client.get("/v1/volumes/none/files?path=.").await.assert(404, "volume_not_found");
        let reader = client.with_key(&client.new_key("read", "default").await.1);
        reader.get(&format!("{files}?path=.")).await.assert(403, "forbidden");
        assert_eq!(reader.get("/v1/volumes/v").await.status, 200);
        assert_eq!(remove(&client, "v").await.status, 204);
        client.get(&content("v", "a")).await.assert(404, "volume_not_found");
        assert_eq!(devices(&home), Vec::<String>::new());
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn idle_content_sandboxes_are_evicted() {
    if skipped("volumes, many") {
        return;
    }
    run(async {
        // As many as one tenant may have served at once.
        const MAX: usize = 16;
        let (home, server, client) = start(&[], None).await;
        for number in 0..=MAX {
            let name = format!("v{number}");
            volume(&client, &name, "16m").await;
            assert_eq!(put(&client, &name, "a", name.clone()).await.status, 200);
        }
        crate::until("one is evicted", async || devices(&home).len() == MAX).await;
        for number in 0..=MAX {
            let name = format!("v{number}");
            assert_eq!(client.get(&content(&name, "a")).await.text(), name);
        }
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn several_sandboxes_share_a_volume_at_once() {
    if skipped("volumes, shared") {
        return;
    }
    run(async {
        let (home, server, client) = start(&[], None).await;
        let id = volume(&client, "v", "32m").await;
        let (first, second) = (sandbox(&client, "v", "rw").await, sandbox(&client, &id, "rw").await);
        let reader = sandbox(&client, "v", "ro").await;
        let audit = client.get("/v1/audit?limit=1000").await.text().to_owned();
        for (mode, times) in [("rw", 2), ("ro", 1)] {
            assert_eq!(audit.matches(&format!("\"{id}:{mode}\"")).count(), times, "{audit}");
        }
        // Each has its own user ids on the host, and each user owns the files.
        client.sh(&first, "umask 077; echo one > /mnt/v/a; mkdir /mnt/v/d; ln /mnt/v/a /mnt/v/hard").await;
        assert_eq!(
            client.sh(&second, "cat /mnt/v/a; echo two >> /mnt/v/a; stat -c '%U %a %h' /mnt/v/a").await,
            "one\nuser 600 2\n"
        );
        assert_eq!(
            client.sh(&reader, "cat /mnt/v/hard; touch /mnt/v/x 2>&1 || true").await.lines().last(),
            Some("touch: cannot touch '/mnt/v/x': Read-only file system")
        );
        assert_eq!(client.get(&content("v", "hard")).await.text(), "one\ntwo\n");
        // A lock taken in one sandbox holds in the other.
        client.sh(&first, "(flock 9; touch /mnt/v/locked; sleep 600) 9> /mnt/v/lock > /dev/null 2>&1 & while ! test -e /mnt/v/locked; do sleep 0.01; done").await;
        assert_eq!(client.sh(&second, "flock -n /mnt/v/lock echo got || echo held").await, "held\n");
        let mounts = client.sh(&first, "grep ' /mnt/v ' /proc/self/mountinfo").await;
        let options = mounts.split(' ').nth(5).expect("it has options").to_owned();
        assert!(
            ["nosuid", "nodev", "rw"].iter().all(|one| options.split(',').any(|option| option == *one)),
            "{mounts}"
        );
        assert!(!mounts.contains(&*home.path().to_string_lossy()), "{mounts}");
        assert_eq!(devices(&home).len(), 1, "one device for all");
        // It cannot be removed while others mount it.
        let info = client.get("/v1/volumes/v").await.json();
        assert_eq!(info["sandboxes"].as_array().map(Vec::len), Some(3), "{info}");
        remove(&client, "v").await.assert(409, "volume_in_use");
        for id in [&first, &second] {
            end(&client, id).await;
        }
        remove(&client, &id).await.assert(409, "volume_in_use");
        assert_eq!(client.sh(&reader, "cat /mnt/v/a").await, "one\ntwo\n");
        end(&client, &reader).await;
        // A later sandbox sees the files.
        let next = sandbox(&client, "v", "rw").await;
        assert_eq!(
            client.sh(&next, "cat /mnt/v/a; ls -A /mnt/v | grep -v lost").await,
            "one\ntwo\na\nd\nhard\nlock\nlocked\n"
        );
        end(&client, &next).await;
        assert_eq!(remove(&client, "v").await.status, 204);
        assert_eq!((files(&home).len(), devices(&home).len()), (0, 0));
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn unmountable_volumes_are_refused() {
    if skipped("volumes, refused") {
        return;
    }
    run(async {
        let (home, server, client) = start(&["sandboxes.engines=process,none"], None).await;
        volume(&client, "v", "16m").await;
        let asked = async |volumes: Value| client.post("/v1/sandboxes", &json!({ "volumes": volumes })).await;
        let at = |path: &str| json!([{ "name": "v", "path": path }]);
        asked(json!([{ "name": "none", "path": "/mnt/v" }])).await.assert(404, "volume_not_found");
        let twice = json!([{ "name": "v", "path": "/a" }, { "name": "v", "path": "/a" }]);
        let inner = json!([{ "name": "v", "path": "/a" }, { "name": "v", "path": "/a/b" }]);
        let mode = json!([{ "name": "v", "path": "/a", "mode": "rx" }]);
        for volumes in [
            twice,
            inner,
            mode,
            at("a"),
            at("/"),
            at("/a/../b"),
            at("/usr/x"),
            at("/proc"),
            at("/home"),
            at("/tmp"),
            at("/var/tmp/x"),
            at(""),
        ] {
            let refused = asked(volumes.clone()).await;
            assert_eq!(
                (refused.status.as_u16(), refused.code()),
                (400, "invalid_field".to_owned()),
                "{volumes}: {refused:?}"
            );
        }
        for engine in ["process", "none"] {
            let body = json!({ "engine": engine, "volumes": at("/mnt/v") });
            client.post("/v1/sandboxes", &body).await.assert(400, "invalid_field");
        }
        let engines = client.get("/v1/engines").await.json();
        let can: Vec<(&str, bool)> = engines["engines"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|engine| Some((engine["name"].as_str()?, engine["volumes"].as_bool()?)))
            .collect();
        assert_eq!(can, [("local", true), ("process", false), ("none", false)], "{engines}");
        // No refused request holds the volume.
        assert_eq!(remove(&client, "v").await.status, 204);
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn volume_outlives_pause_server_and_launcher() {
    if skipped("volumes, restarts") {
        return;
    }
    run(async {
        let (mut home, server, client) = start(&[], None).await;
        volume(&client, "v", "32m").await;
        let id = sandbox(&client, "v", "rw").await;
        client.sh(&id, "echo one > /mnt/v/a").await;
        let paused = client.post(&format!("/v1/sandboxes/{id}/pause"), &json!({})).await;
        assert_eq!(paused.status, 200, "{paused:?}");
        // A paused sandbox still mounts the volume, which stays usable for others.
        remove(&client, "v").await.assert(409, "volume_in_use");
        assert_eq!(client.get(&content("v", "a")).await.text(), "one\n");
        assert_eq!(put(&client, "v", "b", "two\n").await.status, 200);
        assert_eq!(client.post(&format!("/v1/sandboxes/{id}/resume"), &json!({})).await.status, 200);
        assert_eq!(client.sh(&id, "cat /mnt/v/a /mnt/v/b").await, "one\ntwo\n");

        server.kill();
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        assert_eq!(client.sh(&id, "cat /mnt/v/b; echo three > /mnt/v/c").await, "two\n");
        remove(&client, "v").await.assert(409, "volume_in_use");
        // The content sandbox of the killed server has ended, or will.
        assert_eq!(client.get(&content("v", "c")).await.text(), "three\n");

        // The sandbox ends with the launcher, the volume does not.
        client.sh(&id, "sync /mnt/v/c").await;
        home.kill_launcher();
        crate::until("the sandbox is gone", async || {
            client.get(&format!("/v1/sandboxes/{id}")).await.code() == "sandbox_gone"
        })
        .await;
        crate::until("the files can be read", async || {
            client.get(&content("v", "c")).await.text() == "three\n"
        })
        .await;
        let next = sandbox(&client, "v", "rw").await;
        assert_eq!(client.sh(&next, "cat /mnt/v/a").await, "one\n");
        end(&client, &next).await;
        crate::until("the volume is free", async || remove(&client, "v").await.status == 204).await;
        crate::until("its device is free", async || devices(&home).is_empty()).await;
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn forks_share_the_volume_and_snapshots_omit_it() {
    if skipped("volumes, copies") {
        return;
    }
    run(async {
        let (home, server, client) = start(&[], None).await;
        volume(&client, "v", "32m").await;
        let at_home = json!([{ "name": "v", "path": "/home/user/v" }, { "name": "v", "path": "/home/user/ro", "mode": "ro" }]);
        let id = client.sandbox(&json!({ "timeout": 3600, "volumes": at_home })).await;
        client.sh(&id, "echo in > v/in; echo own > own; chmod 0 v").await;
        let forked = client.post(&format!("/v1/sandboxes/{id}/fork"), &json!({ "count": 1 })).await.json();
        let fork =
            forked["sandboxes"][0]["sandbox"]["id"].as_str().unwrap_or_else(|| panic!("{forked}")).to_owned();
        assert_eq!(
            client.sh(&fork, "chmod 755 v; cat own v/in ro/in; echo fork > v/fork").await,
            "own\nin\nin\n"
        );
        assert_eq!(client.sh(&id, "cat v/fork").await, "fork\n");
        let kept = client.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({})).await;
        assert_eq!(kept.status, 201, "{kept:?}");
        let template = kept.json()["id"].as_str().expect("it has an id").to_owned();
        let plain = client.sandbox(&json!({ "timeout": 3600, "template": template })).await;
        assert_eq!(
            client.sh(&plain, "ls -A; grep -c ' /home/user/' /proc/self/mountinfo || true").await,
            "own\n0\n"
        );
        for id in [&id, &fork] {
            remove(&client, "v").await.assert(409, "volume_in_use");
            end(&client, id).await;
        }
        assert_eq!(remove(&client, "v").await.status, 204);
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn r05_r06_volume_size_is_enforced() {
    if skipped("R05, R06, volumes") {
        return;
    }
    run(async {
        let (home, server, client) = start(&[], None).await;
        let name = volume(&client, "v", "32m").await;
        let id = sandbox(&client, "v", "rw").await;
        let image = home.path().join(format!("volumes/{name}.img"));
        let blocks =
            || std::fs::metadata(&image).map(|file| (file.len(), file.blocks())).expect("it is there");
        let before = blocks();
        // Sparse files, reserved room, many bytes, many files, deep trees.
        let lines = [
            "truncate -s 1T sparse && stat -c %s sparse",
            "fallocate -l 1G reserved 2>&1 | grep -o 'No space left.*'; rm reserved",
            "head -c 64m /dev/zero > bytes; test $(stat -c %s bytes) -lt 33554432 && echo bounded; rm bytes",
            "i=0; while true > f$i; do i=$((i+1)); done 2> /dev/null; test $i -lt 4096 && test $i -gt 1000 && echo bounded; rm -f f*",
            "d=.; for i in $(seq 400); do d=$d/d; done; mkdir -p $d && echo deep",
        ];
        let expected = ["1099511627776\n", "No space left on device\n", "bounded\n", "bounded\n", "deep\n"];
        for (line, expected) in lines.into_iter().zip(expected) {
            assert_eq!(client.sh(&id, &format!("cd /mnt/v; {line}")).await, expected, "{line}");
        }
        let written =
            client.sh(&id, "cd /mnt/v; head -c 64m /dev/zero > full 2> /dev/null; wc -c < full").await;
        assert!(written.trim().parse::<u64>().is_ok_and(|bytes| bytes < 32 << 20), "{written}");
        put(&client, "v", "more", vec![b'x'; 1 << 20]).await.assert(409, "resource_exhausted");
        assert_eq!(client.get("/v1/volumes/v/files/stat?path=sparse").await.json()["bytes"], 1u64 << 40);
        assert_eq!(client.sh(&id, "sync /mnt/v/full").await, "");
        assert_eq!(blocks(), before, "the file of the volume has changed its size on the disk");
        let removed = client.call("DELETE", "/v1/volumes/v/files?path=d&recursive=true").await;
        assert_eq!(removed.status, 204, "{removed:?}");
        assert_eq!(client.call("DELETE", "/v1/volumes/v/files?path=full").await.status, 204);
        assert_eq!(put(&client, "v", "more", vec![b'x'; 1 << 20]).await.status, 200);
        end(&client, &id).await;
        crate::crash::shut_down(server, &home).await;
    });
}

/// Plants links and special files in a volume.
async fn plant(client: &Client, id: &str, host: &Host, root: &str) {
    let line = format!(
        "cd /mnt/v; ln -s {root}{0} leaf; ln -s {root}{1} through; ln -s /proc/self/root{root}{0} self; ln -s loop loop; \
         mkfifo fifo; mkdir -p d; ln -s ../through d/deep; ln -s fifo tofifo; ln -s /dev/zero zero; \
         python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"; \
         python3 -c \"open(b'\\xff\\xfe\\n;\\x1b[2J','w')\"; truncate -s 8T huge; touch -- '-rf' ' '",
        host.canary().display(),
        host.dir.path().display(),
    );
    client.sh(id, &line).await;
}

#[test]
fn f02_f03_f08_links_and_special_files_in_a_volume_are_harmless() {
    if skipped("F02, F03, F08, volumes") {
        return;
    }
    run(async {
        let host = Host::new();
        let (home, server, client) = start(&[], None).await;
        volume(&client, "v", "32m").await;
        let id = sandbox(&client, "v", "rw").await;
        plant(&client, &id, &host, "").await;
        let files = "/v1/volumes/v/files";
        for path in
            ["leaf", "through/canary", "self", "loop", "d/deep/canary", "fifo", "tofifo", "sock", "zero"]
        {
            let begin = Instant::now();
            let mut answers = vec![
                client.get(&content("v", path)).await,
                client.get(&format!("{files}/stat?path={path}")).await,
                client.get(&format!("{files}?path={path}")).await,
                put(&client, "v", &format!("{path}&append=true"), "planted").await,
                put(&client, "v", &format!("{path}/new"), "planted").await,
            ];
            let chmod = json!({ "path": path, "mode": "0777", "follow": true });
            answers.push(client.post(&format!("{files}/chmod"), &chmod).await);
            let to = json!({ "from": "leaf", "to": format!("{path}/x"), "overwrite": true });
            answers.push(client.post(&format!("{files}/move"), &to).await);
            for answer in answers {
                assert!(!answer.text().contains(CANARY), "{path}: {answer:?}");
                assert!(!answer.status.is_server_error(), "{path}: {answer:?}");
            }
            assert!(begin.elapsed() < QUICK_TIMEOUT, "{path}: {:?}", begin.elapsed());
            host.assert_untouched(path);
        }
        let listed = client.get(&format!("{files}?path=/&depth=9")).await;
        assert!(listed.status == 200 && !listed.text().contains(CANARY), "{listed:?}");
        assert_eq!(client.sh(&id, "ls /mnt/v/d/deep/ 2> /dev/null || echo nothing").await, "nothing\n");
        let first = client.request("GET", &content("v", "huge")).header("range", "bytes=0-9");
        assert_eq!(client.send(first, "").await.body, [0; 10].as_slice());
        let removed = client.call("DELETE", &format!("{files}?path=through&recursive=true")).await;
        assert_eq!(removed.status, 204, "{removed:?}");
        host.assert_untouched("all of it");
        end(&client, &id).await;
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn f02_f03_without_pivot_links_in_a_volume_lead_out() {
    if skipped("F02, F03, volumes") {
        return;
    }
    run(async {
        let host = Host::new();
        let (home, server, client) = start(&[], Some("pivot")).await;
        volume(&client, "v", "32m").await;
        let id = sandbox(&client, "v", "rw").await;
        plant(&client, &id, &host, OLD_ROOT).await;
        for path in ["leaf", "through/canary", "d/deep/canary"] {
            assert_eq!(client.get(&content("v", path)).await.text(), CANARY, "{path}");
        }
        assert_eq!(put(&client, "v", "through/new", "planted").await.status, 200);
        assert!(host.dir.path().join("new").exists(), "nothing was planted");
        end(&client, &id).await;
        crate::crash::shut_down(server, &home).await;
    });
}

/// Tries to use another tenant's volume. Returns the contents read by its id and by its name, and the status of its removal.
async fn foreign_access(without: Option<&'static str>) -> (Vec<String>, u16) {
    let (home, server, admin) = start(&[], without).await;
    let first = admin.with_key(&admin.new_key("user", "first").await.1);
    let second = admin.with_key(&admin.new_key("user", "second").await.1);
    let id = volume(&first, "mine", "16m").await;
    assert_eq!(put(&first, "mine", "a", "secret").await.status, 200);
    let mut got = Vec::new();
    for name in [id.as_str(), "mine"] {
        let read = second.get(&content(name, "a")).await;
        if read.status == 200 {
            got.push(read.text().to_owned());
        } else {
            read.assert(404, "volume_not_found");
        }
        let volumes = json!([{ "name": name, "path": "/mnt/v" }]);
        let made = second.post("/v1/sandboxes", &json!({ "volumes": volumes })).await;
        if made.status == 201 {
            let sandbox = made.json()["id"].as_str().expect("it has an id").to_owned();
            got.push(second.sh(&sandbox, "cat /mnt/v/a").await);
            end(&second, &sandbox).await;
        } else {
            made.assert(404, "volume_not_found");
        }
    }
    let listed = second.get("/v1/volumes").await.text().to_owned();
    assert!(!listed.contains(&id), "{listed}");
    // The same name is free for another tenant.
    volume(&second, "mine", "16m").await;
    let removed = remove(&second, &id).await.status.as_u16();
    crate::crash::shut_down(server, &home).await;
    (got, removed)
}

#[test]
fn x02_volumes_of_other_tenants_are_invisible() {
    if skipped("X02, volumes") {
        return;
    }
    run(async { assert_eq!(foreign_access(None).await, (Vec::new(), 404)) });
}

#[cfg(feature = "mutation")]
#[test]
fn x02_without_tenants_foreign_volumes_are_visible() {
    if skipped("X02, volumes") {
        return;
    }
    run(async {
        let (got, removed) = foreign_access(Some("service:tenants")).await;
        assert_eq!((got.as_slice(), removed), (["secret".to_owned(), "secret".to_owned()].as_slice(), 204));
    });
}

#[test]
fn x02_snapshot_contains_no_volume() {
    if skipped("X02, volumes, templates") {
        return;
    }
    run(async {
        let (home, server, client) = start(&[], None).await;
        volume(&client, "v", "16m").await;
        let id = sandbox(&client, "v", "rw").await;
        let kept = client.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({})).await.json();
        let spec = &kept["spec"];
        assert!(!kept.to_string().contains("/mnt/v"), "{spec}");
        end(&client, &id).await;
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn leftover_volume_files_are_removed() {
    if skipped("volumes, leftovers") {
        return;
    }
    run(async {
        let (mut home, server, client) = start(&[], None).await;
        let id = volume(&client, "v", "16m").await;
        assert_eq!(put(&client, "v", "a", "kept").await.status, 200);
        let dir = home.path().join("volumes");
        let leave = || {
            for name in ["aaaaaaaaaaaaaaaaaaaa.part", "bbbbbbbbbbbbbbbbbbbb.img"] {
                std::fs::write(dir.join(name), vec![0; 1 << 20]).expect("it can be written");
            }
        };
        leave();
        let info = client.post("/v1/gc", &json!({ "dry_run": true })).await;
        assert_eq!(info.status, 200, "{info:?}");
        let removed = info.json()["leftovers"].to_string();
        assert_eq!(removed.matches("\"volume\"").count(), 2, "{info:?}");
        assert_eq!(files(&home).len(), 3);
        for path in ["/v1/gc?dry_run=true", "/v1/images/gc?dry_run=true"] {
            assert_eq!(client.post(path, &json!({})).await.status, 400, "{path}: it is not in the body");
        }
        assert_eq!(client.post("/v1/gc", &json!({})).await.status, 200);
        assert_eq!(files(&home), [dir.join(format!("{id}.img"))]);
        leave();
        // An interrupted removal leaves this state.
        std::fs::rename(dir.join(format!("{id}.img")), dir.join(format!("{id}.part")))
            .expect("it can be renamed");
        server.kill();
        let server = home.start();
        server.ready().await;
        // A complete file without a record is removed by an administrator only, as the store may have been replaced.
        let left = [dir.join("bbbbbbbbbbbbbbbbbbbb.img"), dir.join(format!("{id}.img"))];
        let found = files(&home);
        assert!(found.len() == 2 && left.iter().all(|file| found.contains(file)), "{found:?}");
        assert_eq!(server.admin().get(&content("v", "a")).await.text(), "kept");
        crate::crash::shut_down(server, &home).await;
    });
}
