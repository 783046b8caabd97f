//! Secrets are stored nowhere in plain text (C17), and refused keys are audited without filling the disk (C16).

use std::path::Path;

use serde_json::{Value, json};

use crate::client::Client;
use crate::run;
use crate::server::{Home, Server};

/// Planted secrets, one for each place, so that a leak shows its origin.
const MARKERS: &[&str] = &[
    "marker-create-7b1f",
    "marker-fork-7b1f",
    "marker-exec-7b1f",
    "marker-output-7b1f",
    "marker-process-7b1f",
    "marker-session-7b1f",
    "marker-pooled-7b1f",
];

/// Returns the files below a directory that contain one of the words, with the word.
fn find_words(dir: &Path, words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        if kind.as_ref().is_ok_and(std::fs::FileType::is_dir) {
            found.append(&mut find_words(&path, words));
        } else if kind.is_ok_and(|kind| kind.is_file()) {
            found.append(&mut find_words_in_file(&path, words));
        }
    }
    found
}

fn find_words_in_file(path: &Path, words: &[String]) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let holds = |word: &&String| bytes.windows(word.len()).any(|window| window == word.as_bytes());
    words.iter().filter(holds).map(|word| format!("{}: {word}", path.display())).collect()
}

/// Returns the command lines and environments of the server and the launcher that contain one of the words.
fn find_words_in_processes(home: &Home, server: &Server, words: &[String]) -> Vec<String> {
    let mut pids = vec![server.pid()];
    pids.extend(home.launcher().map(|(_, pid)| pid));
    let of_each = |pid: u32| ["cmdline", "environ"].map(|file| format!("/proc/{pid}/{file}"));
    pids.into_iter().flat_map(of_each).flat_map(|path| find_words_in_file(Path::new(&path), words)).collect()
}

/// Creates sandboxes, templates and executions with secrets in their environment, and checks that programs get them.
async fn plant(client: &Client) -> String {
    let env = |word: &str| json!({ "SECRET": word });
    let id = client
        .sandbox(&json!({ "timeout": 3600, "env": env(MARKERS[0]), "limits": { "disk": "64m" } }))
        .await;
    let exec = format!("/v1/sandboxes/{id}/exec");
    assert_eq!(client.sh(&id, "printf %s \"$SECRET\" | tr a-z A-Z").await, MARKERS[0].to_uppercase());
    let ran = client.post(&exec, &json!({ "command": "test -n \"$SECRET\"", "env": env(MARKERS[2]) })).await;
    assert_eq!(ran.json()["exit_code"], 0, "{ran:?}");
    // A response that is kept for idempotent retries contains the program's output.
    let body = json!({ "command": "echo \"$SECRET\"", "env": env(MARKERS[3]) }).to_string();
    for _ in 0..2 {
        let request = client.request("POST", &exec).header("content-type", "application/json");
        let answer = client.send(request.header("idempotency-key", "once"), body.clone()).await;
        assert_eq!(answer.json()["stdout"]["data"], format!("{}\n", MARKERS[3]), "{answer:?}");
    }
    let started = client
        .post(
            &format!("/v1/sandboxes/{id}/processes"),
            &json!({ "argv": ["sleep", "600"], "env": env(MARKERS[4]) }),
        )
        .await;
    assert_eq!(started.status, 201, "{started:?}");
    let session =
        client.post(&format!("/v1/sandboxes/{id}/sessions"), &json!({ "env": env(MARKERS[5]) })).await;
    assert_eq!(session.status, 201, "{session:?}");

    let snapshot = client.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({ "name": "kept" })).await;
    assert_eq!(snapshot.status, 201, "{snapshot:?}");
    let copy = client.sandbox(&json!({ "timeout": 3600, "template": "kept" })).await;
    assert_eq!(client.sh(&copy, "printf %s \"$SECRET\" | wc -c").await.trim(), MARKERS[0].len().to_string());
    let forks = client
        .post(&format!("/v1/sandboxes/{id}/fork"), &json!({ "count": 1, "env": env(MARKERS[1]) }))
        .await
        .json();
    let fork = forks["sandboxes"][0]["sandbox"]["id"].as_str().expect("it was made").to_owned();
    assert_eq!(client.sh(&fork, "printf %s \"$SECRET\" | tr a-z A-Z").await, MARKERS[1].to_uppercase());
    // A sandbox of the pool, if there is one.
    let pooled = client.sandbox(&json!({ "timeout": 3600, "env": env(MARKERS[6]) })).await;
    assert_eq!(client.sh(&pooled, "printf %s \"$SECRET\" | tr a-z A-Z").await, MARKERS[6].to_uppercase());
    // An error must not repeat a refused value either.
    let refused =
        client.post("/v1/sandboxes", &json!({ "env": { "A\u{3d}": MARKERS[0] }, "timeout": 0 })).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(!refused.text().contains(MARKERS[0]), "{refused:?}");
    id
}

#[test]
fn c17_secrets_are_nowhere_in_plain_text() {
    if crate::skipped("C17") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=2", "log.level=info"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let id = plant(&client).await;
        // The server's own secrets: keys and tokens.
        let (key_id, key) = client.new_key("user", "default").await;
        let token = client.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await.json();
        let token = token["token"].as_str().expect("it is reported").to_owned();
        for credential in [&key, &token] {
            let holder = client.with_key(credential);
            assert_eq!(holder.get(&format!("/v1/sandboxes/{id}")).await.status, 200);
        }
        let url = client
            .post(&format!("/v1/sandboxes/{id}/files/sign"), &json!({ "path": "x", "operation": "write" }))
            .await
            .json();
        let url = url["url"].as_str().expect("it is reported").to_owned();
        let signed = url.rsplit('/').next().expect("it has a last part").to_owned();
        let written = server.stranger();
        let written = written.send(written.request("PUT", &format!("/v1/signed/{signed}")), "x").await;
        assert_eq!(written.status, 200, "{written:?}");
        assert_eq!(client.call("DELETE", &format!("/v1/keys/{key_id}")).await.status, 204);
        client.with_key(&key).get("/v1/me").await.assert(401, "unauthenticated");

        let mut words: Vec<String> = MARKERS.iter().map(|&word| word.to_owned()).collect();
        words.extend([server.key.clone(), key, token, signed]);
        let mut shown = find_words_in_processes(&home, &server, &words);
        for path in ["/metrics", "/v1/audit?limit=1000", "/v1/audit/export", "/v1/keys"] {
            let answer = client.get(path).await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            shown.extend(
                words
                    .iter()
                    .filter(|word| answer.text().contains(*word))
                    .map(|word| format!("{path}: {word}")),
            );
        }
        assert_eq!(shown, [] as [String; 0]);
        let everywhere = home.path().parent().expect("it has one").to_owned();
        assert_eq!(find_words(&everywhere, &words), [] as [String; 0], "while the server runs");
        // What is written on shutdown, and what the next server does with it.
        drop(client);
        server.stop();
        assert_eq!(find_words(&everywhere, &words), [] as [String; 0], "after the server's end");
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        assert_eq!(client.sh(&id, "printf %s \"$SECRET\" | tr a-z A-Z").await, MARKERS[0].to_uppercase());
        let copy = client.sandbox(&json!({ "timeout": 3600, "template": "kept" })).await;
        assert_eq!(client.sh(&copy, "printf %s \"$SECRET\" | tr a-z A-Z").await, MARKERS[0].to_uppercase());
        assert_eq!(find_words(&everywhere, &words), [] as [String; 0], "after another start");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c17_without_sealing_the_secrets_are_found() {
    if crate::skipped("C17") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        home.without = Some("service:sealing");
        let server = home.start();
        server.ready().await;
        plant(&server.admin()).await;
        let words: Vec<String> = MARKERS.iter().map(|&word| word.to_owned()).collect();
        let found = find_words(&home.path(), &words);
        // Secrets of a sandbox, of a fork, and of a kept response; the environment of a single execution is never stored.
        for word in [MARKERS[0], MARKERS[1], MARKERS[3]] {
            assert!(found.iter().any(|place| place.ends_with(word)), "{word} is not in {found:?}");
        }
        crate::crash::shut_down(server, &home).await;
    });
}

#[test]
fn c17_server_without_its_key_does_not_start() {
    if crate::skipped("C17") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        server.stop();
        home.wait_for_launcher_exit();
        let key = home.path().join("store.key");
        let kept = std::fs::read(&key).expect("it is there");
        std::fs::remove_file(&key).expect("it can be removed");
        assert!(home.try_start().is_err(), "it starts without the key");
        assert!(home.log().contains("put the key file back"), "{}", home.log());
        assert!(!key.exists(), "it made another key");
        write_private(&key, format!("{}\n", "ab".repeat(32)).as_bytes());
        assert!(home.try_start().is_err(), "it starts with another key");
        assert!(home.log().contains("sealed with another key"), "{}", home.log());
        write_private(&key, &kept);
        let server = home.start();
        server.ready().await;
        crate::crash::shut_down(server, &home).await;
    });
}

fn write_private(path: &Path, bytes: &[u8]) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.expect("it can be made").write_all(bytes).expect("it can be written");
}

/// Returns the refusals in the audit log.
async fn denials(admin: &Client) -> Vec<Value> {
    let page = admin.get("/v1/audit?action=auth.denied&limit=1000").await.json();
    page["records"].as_array().expect("a list").clone()
}

fn count(record: &Value) -> u64 {
    record["details"]["count"].as_u64().unwrap_or_default()
}

/// Sends requests with invalid keys until the audit log shows refusals, and returns the keys.
async fn send_invalid_keys(server: &Server, times: usize) -> Vec<String> {
    let keys: Vec<String> = (0..times).map(|number| format!("bj_{number:064x}")).collect();
    let stranger = server.stranger();
    for key in &keys {
        // A plain request on a kept-alive connection, which does not wait for the audit log.
        let mut asker = stranger.clone();
        asker.key = Some(key.clone());
        asker.get("/v1/me").await.assert(401, "unauthenticated");
    }
    let admin = server.admin();
    crate::until("refusals are recorded", async || !denials(&admin).await.is_empty()).await;
    keys
}

#[test]
fn c16b_flood_of_invalid_keys_is_counted_and_not_recorded() {
    if crate::skipped("C16") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        // One of each kind; a request without a key is not recorded.
        server.stranger().get("/v1/me").await.assert(401, "unauthenticated");
        let (revoked_id, revoked) = admin.new_key("user", "first").await;
        assert_eq!(admin.call("DELETE", &format!("/v1/keys/{revoked_id}")).await.status, 204);
        let (read_id, read) = admin.new_key("read", "second").await;
        admin.with_key(&revoked).get("/v1/me").await.assert(401, "unauthenticated");
        admin.with_key(&read).post("/v1/sandboxes", &json!({})).await.assert(403, "forbidden");
        let keys = send_invalid_keys(&server, 2000).await;
        // The other refusals are recorded on shutdown at the latest.
        drop(admin);
        server.stop();
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let records = denials(&admin).await;
        assert!(records.len() < 12, "{} records", records.len());
        let of = |reason: &str| {
            records.iter().filter(|one| one["details"]["reason"] == reason).cloned().collect::<Vec<_>>()
        };
        assert_eq!(of("unknown").iter().map(count).sum::<u64>(), keys.len() as u64, "{records:#?}");
        for (reason, outcome, key, tenant) in
            [("revoked", "unauthenticated", revoked_id, "first"), ("role", "forbidden", read_id, "second")]
        {
            let matching = of(reason);
            assert_eq!(matching.len(), 1, "{reason}: {records:#?}");
            assert_eq!(
                (
                    &matching[0]["outcome"],
                    &matching[0]["key_id"],
                    &matching[0]["tenant"],
                    &matching[0]["actor"],
                    count(&matching[0])
                ),
                (&json!(outcome), &json!(key), &json!(tenant), &json!("127.0.0.1"), 1),
                "{reason}"
            );
        }
        // No key is stored anywhere.
        let mut words = keys[..50].to_vec();
        words.extend([revoked, read]);
        let everywhere = home.path().parent().expect("it has one").to_owned();
        assert_eq!(find_words(&everywhere, &words), [] as [String; 0]);
        let verified = admin.call("POST", "/v1/audit/verify").await.json();
        assert_eq!(verified["ok"], true, "{verified}");
        crate::crash::shut_down(server, &home).await;
    });
}

#[cfg(feature = "mutation")]
#[test]
fn c16b_without_the_bound_each_invalid_key_is_recorded() {
    if crate::skipped("C16") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        home.without = Some("service:denial-bound");
        let server = home.start();
        server.ready().await;
        // The server is stopped while it still writes records: none of them may be lost.
        let attempts = send_invalid_keys(&server, 300).await.len();
        server.stop();
        let server = home.start();
        server.ready().await;
        let records = denials(&server.admin()).await;
        assert_eq!(records.len(), attempts, "each refusal is a record, also at the server's end");
        crate::crash::shut_down(server, &home).await;
    });
}
