//! Requests that no tenant, tool or model may make (C19), and texts that try to forge entries of logs and the audit log (C16).

use serde_json::{Value, json};

use crate::client::escaped;
use crate::run;
use crate::server::Home;

#[test]
fn c19_only_the_operator_weakens_walls() {
    if crate::skipped("C19") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let user = admin.with_key(&admin.new_key("user", "default").await.1);
        let id = user.sandbox(&json!({ "timeout": 3600 })).await;
        let list =
            async || user.get("/v1/sandboxes").await.json()["sandboxes"].as_array().map_or(0, Vec::len);
        for (body, status, code) in [
            (json!({ "mounts": ["/etc:/mnt"] }), 403, "policy_refused"),
            (json!({ "mounts": ["/root:/mnt:rw"] }), 403, "policy_refused"),
            (json!({ "mounts": ["/:/mnt"] }), 400, "invalid_field"),
            (json!({ "engine": "none" }), 403, "policy_refused"),
            (json!({ "engine": "process" }), 403, "policy_refused"),
            (json!({ "grade": "watched" }), 403, "policy_refused"),
            (json!({ "network": "host" }), 400, "invalid_field"),
            (json!({ "privileged": true }), 400, "invalid_field"),
            (json!({ "seccomp": "off" }), 400, "invalid_field"),
            (json!({ "without": ["seccomp"] }), 400, "invalid_field"),
            (json!({ "capabilities": ["CAP_SYS_ADMIN"] }), 400, "invalid_field"),
            (json!({ "user": "root" }), 400, "invalid_field"),
            (json!({ "tenant": "other" }), 400, "invalid_field"),
            (json!({ "key": "operator" }), 400, "invalid_field"),
            (json!({ "keeper": "x" }), 400, "invalid_field"),
            (json!({ "timeout": "25h" }), 400, "invalid_field"),
            (json!({ "timeout": 0 }), 400, "invalid_field"),
            (json!({ "env": { "BELLJAR_TEST_WITHOUT\u{3d}x": "seccomp" } }), 400, "invalid_field"),
            (json!({ "template": "../../etc/passwd" }), 404, "template_not_found"),
        ] {
            let answer = user.post("/v1/sandboxes", &body).await;
            assert_eq!(
                (answer.status.as_u16(), answer.code().as_str()),
                (status, code),
                "{body}: {}",
                answer.text()
            );
            assert_eq!(list().await, 1, "{body} made a sandbox");
        }
        for (path, body) in [
            ("", json!({ "mounts": ["/etc:/mnt"] })),
            ("", json!({ "network": "host" })),
            ("", json!({ "engine": "none" })),
            ("", json!({ "state": "gone" })),
            ("", json!({ "expires_at": "2099-01-01T00:00:00Z" })),
            ("/fork", json!({ "count": 1, "mounts": ["/etc:/mnt"] })),
            ("/fork", json!({ "count": 21 })),
            ("/exec", json!({ "command": "id", "without": "seccomp" })),
            ("/timeout", json!({ "timeout": "25h" })),
        ] {
            let method = if path.is_empty() { "PATCH" } else { "POST" };
            let answer = user.json(method, &format!("/v1/sandboxes/{id}{path}"), &body).await;
            assert_eq!(
                (answer.status.as_u16(), answer.code().as_str()),
                (400, "invalid_field"),
                "{path} {body}: {}",
                answer.text()
            );
        }
        let body = json!({ "command": "id", "user": "root" });
        let answer = user.json("POST", &format!("/v1/sandboxes/{id}/exec"), &body).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "invalid_argument"));
        assert!(answer.text().contains("does not exist in this sandbox"), "{}", answer.text());
        // A user's key cannot create keys, and no role can be raised.
        for body in [
            json!({ "name": "x", "role": "admin" }),
            json!({ "name": "x", "role": "user", "tenant": "other" }),
        ] {
            user.post("/v1/keys", &body).await.assert(403, "forbidden");
        }
        let page = admin.get("/v1/audit?action=policy.refused&limit=100").await.json();
        let refused = page["records"].as_array().expect("a list");
        assert_eq!(refused.len(), 5, "{page}");
        assert!(refused.iter().all(|record| record["outcome"] == "policy_refused"), "{page}");
        // The honest neighbour.
        let other = user
            .sandbox(&json!({ "network": "disabled", "engine": "local", "limits": { "memory": "64m" } }))
            .await;
        assert_eq!(user.sh(&other, "echo fine").await, "fine\n");
        crate::crash::shut_down(server, &home).await;
    });
}

/// Text that tries to look like another line, another record, or a command to a terminal.
const NASTY: &str = "x\n{\"seq\":1,\"action\":\"forged\"}\r\n\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}\u{9b}31m\",\"outcome\":\"forged";

#[test]
fn c16_texts_stay_one_record_and_control_no_terminal() {
    if crate::skipped("C16") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let id = admin.sandbox(&json!({ "timeout": 3600, "env": { "A": NASTY } })).await;
        let head =
            async || admin.get("/v1/audit?limit=1").await.json()["head"]["seq"].as_i64().expect("a number");
        let before = head().await;
        let exec = format!("/v1/sandboxes/{id}/exec");
        assert_eq!(
            admin.post(&exec, &json!({ "argv": ["echo", NASTY], "env": { "B": NASTY } })).await.status,
            200
        );
        assert_eq!(admin.post(&exec, &json!({ "command": format!(": {NASTY}") })).await.status, 200);
        let path = escaped(NASTY.replace('/', "").as_bytes());
        let put = format!("/v1/sandboxes/{id}/files/content?path={path}");
        assert_eq!(admin.send(admin.request("PUT", &put), "x").await.status, 200);
        let down = admin.get(&put).await;
        assert_eq!((down.status.as_u16(), down.text()), (200, "x"));
        assert!(!down.header("content-disposition").contains('\u{1b}'), "{down:?}");
        let mut refused = vec![admin.get(&format!("/v1/sandboxes/{}", escaped(NASTY.as_bytes()))).await];
        refused.push(admin.get(&format!("/{}", escaped(NASTY.as_bytes()))).await);
        refused.push(admin.get(&format!("/v1/sandboxes?{}=1", escaped(NASTY.as_bytes()))).await);
        refused.push(admin.post("/v1/sandboxes", &json!({ NASTY: 1 })).await);
        refused.push(admin.post("/v1/sandboxes", &json!({ "engine": NASTY })).await);
        refused.push(admin.post("/v1/sandboxes", &json!({ "template": NASTY })).await);
        for answer in &refused {
            assert!(answer.status.is_client_error(), "{answer:?}");
            assert!(!answer.body.contains(&0x1b) && !answer.body.contains(&b'\n'), "{}", answer.text());
        }
        assert!(matches!(
            admin
                .send(admin.request("GET", "/v1/me").header("x-request-id", "a b\"},{"), "")
                .await
                .status
                .as_u16(),
            200
        ));
        assert!(matches!(
            admin
                .send(admin.request("GET", "/v1/me").header("user-agent", "\t\"forged"), "")
                .await
                .status
                .as_u16(),
            200
        ));

        let did = head().await - before;
        let trail = std::fs::read_to_string(home.path().join("audit.jsonl")).expect("there is one");
        let records: Vec<Value> =
            trail.lines().map(|line| serde_json::from_str(line).expect("each line is a record")).collect();
        let seqs: Vec<i64> = records.iter().filter_map(|record| record["seq"].as_i64()).collect();
        assert_eq!(seqs, (1..=head().await).collect::<Vec<_>>(), "a record was forged, or split");
        assert!(did >= 3 && records.iter().all(|record| record["action"] != "forged"), "{did}");
        plain("the trail", &trail);
        let log = home.log();
        plain("the log", &log);
        for line in log.lines().filter(|line| !line.contains("launcher[")) {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(line["level"].is_string(), "{line}");
        }
        let verified = admin.call("POST", "/v1/audit/verify").await.json();
        assert_eq!(verified["ok"], true, "{verified}");
        crate::crash::shut_down(server, &home).await;
    });
}

fn plain(what: &str, text: &str) {
    let bad = |one: &char| one.is_control() && *one != '\n' || matches!(*one, '\u{202e}');
    let place = text.char_indices().find(|(_, one)| bad(one));
    if let Some((at, one)) = place {
        let from = text[..at].char_indices().rev().nth(80).map_or(0, |(from, _)| from);
        panic!("{what} has {one:?} after {:?}", &text[from..at]);
    }
}
