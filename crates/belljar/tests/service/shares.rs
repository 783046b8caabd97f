//! What one tenant takes of the machine leaves enough for another and for administrators (C30): a row for each resource.

use std::path::Path;

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::races::SmallDisk;
use crate::run;
use crate::server::{Home, Server};

/// A server, the tenant that takes all it is allowed, another tenant, and an administrator.
struct Fixture {
    server: Server,
    home: Home,
    greedy: Client,
    modest: Client,
    admin: Client,
}

impl Fixture {
    async fn start(mut home: Home, without: Option<&'static str>) -> Self {
        home.without = without;
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let greedy = admin.with_key(&admin.new_key("user", "greedy").await.1);
        let modest = admin.with_key(&admin.new_key("user", "modest").await.1);
        Self { server, home, greedy, modest, admin }
    }

    async fn new(settings: &[&str], without: Option<&'static str>) -> Self {
        Self::start(Home::new(&[&["sandboxes.pool=0"], settings].concat()), without).await
    }

    /// Lets the other tenant and an administrator do what they must always be able to do.
    async fn others_go_on(&self) {
        for client in [&self.modest, &self.admin] {
            let id = client.sandbox(&json!({ "timeout": 600 })).await;
            assert_eq!(client.sh(&id, "echo lives").await, "lives\n");
            let kept = client.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({})).await;
            assert_eq!(kept.status, 201, "{kept:?}");
            assert_eq!(client.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status, 204);
        }
    }

    async fn shut_down(self) {
        drop((self.greedy, self.modest, self.admin));
        crate::crash::shut_down(self.server, &self.home).await;
    }
}

/// Returns whether the machine lacks what volumes need, and prints what.
fn lacks_volumes(case: &str) -> bool {
    let lacks = ["/dev/loop-control", "/usr/sbin/mke2fs"].into_iter().find(|path| !Path::new(path).exists());
    if let Some(lacks) = lacks {
        crate::say(&format!("SKIPPED {case}: there is no {lacks}, which volumes need"));
    }
    lacks.is_some()
}

/// Lets a tenant make volumes until it gets no more, on a disk of 512 MiB; then runs `then`.
async fn with_full_disk(without: Option<&'static str>, then: impl AsyncFnOnce(&Fixture, Answer)) {
    let home = Home::new(&["sandboxes.pool=0", "head_room.disk=32m", "head_room.inodes_percent=0"]);
    let disk = SmallDisk::mount(home.path(), "512m");
    let fixture = Fixture::start(home, without).await;
    let mut last = None;
    for (size, most) in [("64m", 20), ("16m", 20)] {
        for number in 0..most {
            let body = json!({ "name": format!("v-{size}-{number}"), "size": size });
            let answer = fixture.greedy.post("/v1/volumes", &body).await;
            let is_full = answer.status != 201;
            last = Some(answer);
            if is_full {
                break;
            }
        }
    }
    then(&fixture, last.expect("it has asked")).await;
    fixture.shut_down().await;
    drop(disk);
}

#[test]
fn c30_volumes_leave_disk_for_others() {
    if crate::skipped("C30") || lacks_volumes("C30") {
        return;
    }
    run(with_full_disk(None, async |fixture, last| {
        last.assert(429, "quota_exceeded");
        assert!(last.text().contains("tenant_disk_bytes"), "{last:?}");
        fixture.others_go_on().await;
        for client in [&fixture.modest, &fixture.admin] {
            let made = client.post("/v1/volumes", &json!({ "name": "own", "size": "16m" })).await;
            assert_eq!(made.status, 201, "{made:?}");
        }
    }));
}

#[cfg(feature = "mutation")]
#[test]
fn c30_without_shares_volumes_leave_no_disk_for_others() {
    if crate::skipped("C30") || lacks_volumes("C30") {
        return;
    }
    run(with_full_disk(Some("service:shares"), async |fixture, last| {
        last.assert(503, "machine_full");
        let refused = fixture.modest.post("/v1/volumes", &json!({ "name": "own", "size": "16m" })).await;
        refused.assert(503, "machine_full");
        // Sandboxes still start: what is kept stops well before that.
        fixture.modest.sandbox(&json!({ "timeout": 600 })).await;
    }));
}

/// Imports a template whose sandboxes are machines for the tenant of an administrator's key.
async fn import_machine(admin: &Client) {
    let dir = tempfile::tempdir().unwrap();
    let (tree, layer) = (dir.path().join("tree"), dir.path().join("layer"));
    for path in ["proc", "dev", "sys", "tmp", "run", "home/user", "etc", "var", "root"] {
        std::fs::create_dir_all(tree.join(path)).unwrap();
    }
    for (file, text) in [
        ("hosts", ""),
        ("hostname", ""),
        ("resolv.conf", ""),
        ("passwd", "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"),
        ("group", "root:x:0:\nuser:x:1000:\n"),
    ] {
        std::fs::write(tree.join("etc").join(file), text).unwrap();
    }
    let packed =
        std::process::Command::new("mksquashfs").arg(&tree).arg(&layer).arg("-quiet").output().unwrap();
    assert!(packed.status.success(), "{packed:?}");
    let summed = std::process::Command::new("sha256sum").arg(&layer).output().unwrap();
    let digest = String::from_utf8(summed.stdout).unwrap().split(' ').next().unwrap().to_owned();
    let layer = std::fs::read(layer).unwrap();
    let header = json!({
        "name": "box", "description": "", "base": "own", "layers": [{"digest": digest, "bytes": layer.len()}],
        "spec": {"machine": true}, "start": null, "ready": null, "warm": [],
    });
    let bundle = [format!("belljar-template 1\n{header}\n").as_bytes(), &layer].concat();
    let request =
        admin.request("POST", "/v1/templates/import").header("content-type", "application/octet-stream");
    let imported = admin.send(request, bundle).await;
    assert!(imported.status.is_success(), "{imported:?}");
}

#[test]
fn c30_disks_of_machines_leave_disk_for_others() {
    if crate::skipped("C30") || lacks_volumes("C30") {
        return;
    }
    run(async {
        let home = Home::new(&["sandboxes.pool=0", "head_room.disk=32m", "head_room.inodes_percent=0"]);
        let disk = SmallDisk::mount(home.path(), "512m");
        let fixture = Fixture::start(home, None).await;
        for tenant in ["greedy", "modest"] {
            import_machine(&fixture.admin.with_key(&fixture.admin.new_key("admin", tenant).await.1)).await;
        }
        let machine = json!({ "template": "box", "timeout": 600, "limits": { "disk": "32m" } });
        let mut made = 0;
        let last = loop {
            let answer = fixture.greedy.post("/v1/sandboxes", &machine).await;
            if answer.status != 201 {
                break answer;
            }
            made += 1;
        };
        last.assert(429, "quota_exceeded");
        assert!(last.text().contains("tenant_disk_bytes"), "{last:?}");
        assert!(made >= 4, "{made} machines");
        let own = fixture.modest.post("/v1/sandboxes", &machine).await;
        assert_eq!(own.status, 201, "{own:?}");
        // A machine says where its files are.
        let layers = own.json()["isolation"]["layers"].clone();
        let is_disk = |layer: &&Value| layer["name"] == "disk";
        let disk_layer = layers.as_array().unwrap().iter().find(is_disk).unwrap();
        let detail = disk_layer["detail"].as_str().unwrap();
        assert!(
            detail.starts_with("32 MiB and ") && detail.ends_with(" inodes, on a disk of its own"),
            "{detail}"
        );
        fixture.others_go_on().await;
        fixture.shut_down().await;
        drop(disk);
    });
}

/// Lets a tenant create sandboxes until it gets no more of eight; then runs `then`.
async fn with_all_sandboxes(without: Option<&'static str>, then: impl AsyncFnOnce(&Fixture, usize, Answer)) {
    let fixture = Fixture::new(&["sandboxes.max_sandboxes=8"], without).await;
    let mut made = 0;
    let last = loop {
        let answer = fixture.greedy.post("/v1/sandboxes", &json!({ "timeout": 600 })).await;
        if answer.status != 201 {
            break answer;
        }
        made += 1;
    };
    then(&fixture, made, last).await;
    fixture.shut_down().await;
}

#[test]
fn c30_sandboxes_of_a_tenant_leave_some_for_others() {
    if crate::skipped("C30") {
        return;
    }
    run(with_all_sandboxes(None, async |fixture, made, last| {
        last.assert(429, "quota_exceeded");
        assert_eq!(made, 6);
        fixture.others_go_on().await;
    }));
}

#[cfg(feature = "mutation")]
#[test]
fn c30_without_shares_a_tenant_takes_all_sandboxes() {
    if crate::skipped("C30") {
        return;
    }
    run(with_all_sandboxes(Some("service:shares"), async |fixture, made, last| {
        last.assert(503, "machine_full");
        assert_eq!(made, 8);
        fixture.modest.post("/v1/sandboxes", &json!({ "timeout": 600 })).await.assert(503, "machine_full");
    }));
}

/// Bytes of files in each of the greedy tenant's sandboxes.
const FILE_BYTES: u64 = 800 << 20;

/// Returns the available memory of the machine, in bytes, with what processors have in their lists of free pages.
fn available() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).expect("the kernel has it");
    let number = |text: &str| text.trim().trim_end_matches(" kB").parse::<u64>().expect("it is a number");
    let (memory, zones) = (read("/proc/meminfo"), read("/proc/zoneinfo"));
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("it is there");
    let counts = zones.lines().filter_map(|line| line.trim_start().strip_prefix("count:"));
    (number(line) << 10) + counts.map(number).sum::<u64>() * rustix::param::page_size() as u64
}

/// Lets a tenant fill memory with files of three sandboxes beyond the headroom; then runs `then` with their ids.
async fn with_full_memory(without: Option<&'static str>, then: impl AsyncFnOnce(&Fixture, Vec<String>)) {
    // Two thirds of the files are beyond the headroom, so that what other programs take or release meanwhile makes no difference.
    let head_room = format!("head_room.memory={}", available() - FILE_BYTES);
    let fixture = Fixture::new(&["head_room.disk=0", &head_room], without).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let limits = json!({ "memory": "2g", "disk": "1g" });
        ids.push(fixture.greedy.sandbox(&json!({ "timeout": 600, "limits": limits })).await);
    }
    for id in &ids {
        let line = format!("head -c {FILE_BYTES} /dev/zero > fill && echo filled");
        assert_eq!(fixture.greedy.sh(id, &line).await, "filled\n");
    }
    then(&fixture, ids).await;
    fixture.shut_down().await;
}

fn lacks_memory() -> bool {
    let lacks = available() < 8 * FILE_BYTES;
    if lacks {
        crate::say("SKIPPED C30, memory: it needs 6.4 GiB of available memory");
    }
    lacks
}

#[test]
fn c30_memory_of_a_tenant_is_taken_back_for_others() {
    if crate::skipped("C30") || lacks_memory() {
        return;
    }
    run(with_full_memory(None, async |fixture, ids| {
        let id = fixture.modest.sandbox(&json!({ "timeout": 600 })).await;
        assert_eq!(fixture.modest.sh(&id, "echo lives").await, "lives\n");
        let mut reasons = Vec::new();
        for id in &ids {
            let answer = fixture.greedy.get(&format!("/v1/sandboxes/{id}")).await.json();
            if answer["state"] != "running" {
                reasons.push(answer.to_string());
            }
        }
        assert!(!reasons.is_empty());
        assert!(
            reasons.iter().all(|text| text.contains("memory ran short while others waited")),
            "{reasons:?}"
        );
    }));
}

#[cfg(feature = "mutation")]
#[test]
fn c30_without_shares_a_tenant_keeps_all_memory() {
    if crate::skipped("C30") || lacks_memory() {
        return;
    }
    run(with_full_memory(Some("service:shares"), async |fixture, _| {
        fixture.modest.post("/v1/sandboxes", &json!({ "timeout": 600 })).await.assert(503, "machine_full");
    }));
}

/// Reads a file 2,000 times by a path of 3,000 bytes. Returns the numbers of records of it and of reads that these count, and the
/// length of the longest record.
async fn read_often(without: Option<&'static str>) -> (usize, u64, usize) {
    let fixture = Fixture::new(&[], without).await;
    let id = fixture.greedy.sandbox(&json!({ "timeout": 600 })).await;
    let path = format!("{}x", "./".repeat(1500));
    let put = fixture.greedy.put(&format!("/v1/sandboxes/{id}/files/content?path=x"), "x").await;
    assert_eq!(put.status, 200, "{put:?}");
    let content = format!("/v1/sandboxes/{id}/files/content?path={path}");
    let reads = futures::stream::iter(0..2000).map(async |_| fixture.greedy.get(&content).await.status);
    let statuses: Vec<_> = reads.buffer_unordered(16).collect().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    fixture.others_go_on().await;
    let Fixture { server, mut home, .. } = fixture;
    // What was counted is recorded when the server ends, at the latest.
    server.stop();
    let server = home.start();
    server.ready().await;
    let mut records: Vec<Value> = Vec::new();
    loop {
        let after = records.last().map_or(0, |record| record["seq"].as_i64().unwrap_or(0));
        let page =
            server.admin().get(&format!("/v1/audit?tenant=greedy&limit=1000&after={after}")).await.json();
        let page = page["records"].as_array().cloned().unwrap_or_default();
        if page.is_empty() {
            break;
        }
        records.extend(page);
    }
    crate::crash::shut_down(server, &home).await;
    let reads: Vec<_> = records.iter().filter(|record| record["action"] == "file.read").collect();
    let counted = reads.iter().map(|record| record["details"]["count"].as_u64().unwrap_or(1)).sum();
    let longest = reads.iter().map(|record| record.to_string().len()).max().unwrap_or(0);
    (reads.len(), counted, longest)
}

#[test]
fn c30_repeated_reads_are_counted_in_the_audit_log() {
    if crate::skipped("C30") {
        return;
    }
    run(async {
        let (records, counted, longest) = read_often(None).await;
        assert_eq!(counted, 2000);
        // The reads may take more than a minute, and so have the records of two.
        assert!(records <= 1300, "{records}");
        assert!(longest < 1200, "{longest}");
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c30_without_the_bound_each_read_is_recorded() {
    if crate::skipped("C30") {
        return;
    }
    run(async {
        let (records, counted, _) = read_often(Some("service:refusal-bound")).await;
        assert_eq!((records, counted), (2000, 2000));
    });
}
