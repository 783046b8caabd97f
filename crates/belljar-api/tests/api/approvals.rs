//! Approvals over REST and MCP.

use belljar_keeper::{Caller, NewKey, Quotas};
use belljar_model::{Approval, Role};
use belljar_testing::wait::until;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::client::Client;
use crate::code::has_ipython;
use crate::events::{kinds, retained_events};
use crate::fixture::{Fixture, cases};
use crate::mcp::{call_at, message, meta, request, texts};

cases![
    calls_wait_for_a_decision,
    calls_of_code_show_it,
    streams_report_that_they_wait,
    keys_have_owners_and_rules,
    bad_requests_are_refused,
    approvals_are_listed_in_pages,
    models_wait_and_are_told,
];

fn tool(session: bool) -> Value {
    json!({
        "name": "sh", "description": "Runs a script.", "languages": ["bash"], "timeout": "20s", "session": session,
        "approval": "always",
    })
}

/// Stores a tool whose calls wait, and returns clients of a user and of an approver.
pub(crate) async fn clients(fixture: &Fixture, session: bool) -> (Client, Client) {
    let admin = fixture.client("default", Role::Admin).await;
    let made = admin.post("/v1/tools", &tool(session)).await;
    assert_eq!((made.status.as_u16(), &made.json()["approval"]), (201, &json!("always")), "{made:?}");
    (fixture.user().await, fixture.client("default", Role::Approver).await)
}

/// Waits until a call waits, and returns its approval.
pub(crate) async fn waiting(approver: &Client) -> Value {
    let list = async || approver.get("/v1/approvals?state=pending").await.json()["approvals"].clone();
    until("a call waits", async || list().await.as_array().unwrap().len() == 1).await;
    list().await[0].clone()
}

pub(crate) fn decide(approval: &Value, decision: &str) -> String {
    format!("/v1/approvals/{}/{decision}", approval["id"].as_str().unwrap())
}

async fn calls_wait_for_a_decision(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    let call = json!({"code": "echo yes; cat in", "files": {"in": "text\n"}});
    let decided = async {
        let asked = waiting(&approver).await;
        assert_eq!(asked["request"]["code"], json!({"encoding": "utf-8", "data": "echo yes; cat in"}));
        assert_eq!(asked["request"]["files"]["in"]["data"], "text\n");
        assert_eq!((&asked["request"]["tool"], &asked["state"]), (&json!("sh@1"), &json!("pending")));
        assert_eq!((asked["digest"].as_str().unwrap().len(), &asked["ended_at"]), (64, &Value::Null));
        // The caller sees it, and cannot decide.
        let path = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
        assert_eq!(user.get(&path).await.json(), asked);
        user.post(&decide(&asked, "approve"), &json!({})).await.refused(403, "forbidden", None);
        let given = approver.post(&decide(&asked, "approve"), &json!({"note": "fine"})).await;
        assert_eq!(
            (given.status.as_u16(), &given.json()["decision"]["note"]),
            (200, &json!("fine")),
            "{given:?}"
        );
        approver.post(&decide(&asked, "deny"), &json!({})).await.refused(409, "approval_decided", None);
        path
    };
    let (answer, path) = futures::join!(user.post("/v1/tools/sh/call", &call), decided);
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["stdout"]["data"]),
        (200, &json!("yes\ntext\n")),
        "{answer:?}"
    );
    let over = user.get(&path).await.json();
    assert_eq!((&over["state"], &over["outcome"]), (&json!("approved"), &json!("ok")));
    let denied = async {
        let asked = waiting(&approver).await;
        approver.post(&decide(&asked, "deny"), &json!({"note": "not now"})).await;
    };
    let (answer, ()) = futures::join!(user.post("/v1/tools/sh/call", &call), denied);
    answer.refused(403, "not_approved", None);
    assert!(answer.json()["detail"].as_str().unwrap().ends_with(": not now"), "{answer:?}");
}

/// Whoever decides about a call of code sees which code of which sandbox makes it.
async fn calls_of_code_show_it(fixture: Fixture) {
    if !has_ipython() {
        return;
    }
    let (user, approver) = clients(&fixture, false).await;
    let id = user.sandbox(&json!({"limits": {"memory": "512m", "pids": 128}})).await;
    let text = "import belljar\ntry:\n    said = belljar.tools.sh(code='echo yes')['stdout']\nexcept belljar.ToolError as error:\n    said = str(error)\nsaid";
    let (path, body) = (format!("/v1/sandboxes/{id}/code"), json!({"code": text, "tools": ["sh"]}));
    let run = user.post(&path, &body);
    let decided = async {
        let asked = waiting(&approver).await;
        let code = &asked["request"]["calling_code"];
        let digits = Sha256::digest(text).into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digest: String = digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect();
        let expected = json!({
            "sandbox": id, "context": "python", "language": "python", "execution": code["execution"],
            "code": {"encoding": "utf-8", "data": text}, "code_bytes": text.len(),
            "code_sha256": digest,
        });
        assert_eq!(code, &expected);
        assert_eq!((&asked["request"]["tool"], asked["request"].get("sandbox")), (&json!("sh@1"), None));
        let held = async || approver.get(&format!("/v1/sandboxes/{id}")).await.json()["held_by"].clone();
        until("it is frozen", async || held().await == asked["id"]).await;
        approver.post(&decide(&asked, "approve"), &json!({})).await;
        code["execution"].clone()
    };
    let (answer, execution) = futures::join!(run, decided);
    let done = answer.json();
    assert_eq!(
        (&done["results"][0]["data"]["text/plain"], &done["execution"]),
        (&json!("'yes\\n'"), &execution)
    );
    // Its events are of the sandbox that waits.
    let events = retained_events(&approver, &format!("?kind=approval&sandbox={id}")).await;
    assert_eq!(kinds(&events), ["approval.requested", "approval.approved"]);
    // A call that nobody makes for code has none.
    let direct = json!({"code": "echo yes"});
    let denied = async {
        let asked = waiting(&approver).await;
        assert!(asked["request"].get("calling_code").is_none(), "{asked}");
        approver.post(&decide(&asked, "deny"), &json!({})).await;
    };
    futures::join!(user.post("/v1/tools/sh/call", &direct), denied).0.refused(403, "not_approved", None);
    // A key that is revoked takes its waiting calls with it: the code gets the reason, and so does who asks.
    let (admin, key) = (fixture.client("default", Role::Admin).await, user.get("/v1/me").await.json());
    let run = user.post(&path, &body);
    let revoked = async {
        let asked = waiting(&approver).await;
        let revoked = admin.delete(&format!("/v1/keys/{}", key["key"].as_str().unwrap())).await;
        assert_eq!(revoked.status, 204, "{revoked:?}");
        format!("/v1/approvals/{}", asked["id"].as_str().unwrap())
    };
    let (answer, asked) = futures::join!(run, revoked);
    let over = approver.get(&asked).await.json();
    assert_eq!(over["state"], "cancelled", "{over}");
    assert!(over["outcome"].as_str().unwrap().contains("its key was revoked"), "{over}");
    let said = answer.json()["results"][0]["data"]["text/plain"].to_string();
    assert!(said.contains("its key was revoked"), "{said}");
}

async fn streams_report_that_they_wait(fixture: Fixture) {
    let (user, approver) = clients(&fixture, true).await;
    let agent = NewKey {
        name: "agent".to_owned(),
        role: Role::User,
        tenant: "default".to_owned(),
        expires: None,
        quotas: Quotas::default(),
        owner: None,
        approval: Approval::Always,
    };
    let key = fixture.keeper.create_key(&Caller::operator("test", "request"), agent).await.unwrap().key;
    let agent = user.with_key(&key);
    let id = agent.sandbox(&json!({})).await;
    for (client, path, body, last) in [
        (&user, "/v1/tools/sh/call".to_owned(), json!({"code": "echo yes"}), "event: ended"),
        (&agent, format!("/v1/sandboxes/{id}/exec"), json!({"command": "echo yes"}), "event: result"),
        (
            &agent,
            format!("/v1/sandboxes/{id}/code"),
            json!({"code": "echo yes", "language": "bash"}),
            "event: ended",
        ),
    ] {
        let approved = async {
            let asked = waiting(&approver).await;
            let sandbox = asked["request"]["sandbox"].as_str().unwrap().to_owned();
            until("it is frozen", async || {
                client.get(&format!("/v1/sandboxes/{sandbox}")).await.json()["state"] == "paused"
            })
            .await;
            client.post(&format!("/v1/sandboxes/{sandbox}/resume"), &json!({})).await.refused(
                409,
                "wrong_state",
                None,
            );
            approver.post(&decide(&asked, "approve"), &json!({})).await;
            asked["id"].as_str().unwrap().to_owned()
        };
        let request = client.request("POST", &path).header("content-type", "application/json");
        let request = request.header("accept", "text/event-stream");
        let (answer, id) = futures::join!(client.send(request, body.to_string()), approved);
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(
            text.starts_with(&format!("event: waiting\ndata: {{\"approval\":\"{id}\",\"expires_at\":\"20")),
            "{text}"
        );
        assert!(text.contains("yes\\n") && text.contains(last), "{text}");
    }
    // What becomes of calls is an event of the service.
    let events = approver.get("/v1/events?kind=approval&follow=false").await;
    let text = String::from_utf8(events.body.to_vec()).unwrap();
    let count = |kind: &str| text.matches(&format!("event: {kind}\n")).count();
    assert_eq!((count("approval.requested"), count("approval.approved")), (3, 3), "{text}");
}

async fn keys_have_owners_and_rules(fixture: Fixture) {
    let admin = fixture.client("default", Role::Admin).await;
    let key = |more: Value| {
        let mut key = json!({"name": "k", "role": "user"});
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        key
    };
    let made = admin.post("/v1/keys", &key(json!({"owner": "ann", "approval": "always"}))).await.json();
    assert_eq!((&made["owner"], &made["approval"]), (&json!("ann"), &json!("always")));
    let path = format!("/v1/keys/{}", made["id"].as_str().unwrap());
    admin.json("PATCH", &path, &json!({"owner": "Ann"})).await.refused(400, "invalid_field", Some("owner"));
    let mail = admin.json("PATCH", &path, &json!({"owner": "ann.lee+ops@example-1.com"})).await.json();
    assert_eq!(mail["owner"], json!("ann.lee+ops@example-1.com"));
    let changed = admin.json("PATCH", &path, &json!({"owner": "", "approval": "never"})).await.json();
    assert_eq!((&changed["owner"], &changed["approval"]), (&Value::Null, &json!("never")));
    for (more, field) in [
        (json!({"owner": ""}), "owner"),
        (json!({"owner": "operator"}), "owner"),
        (json!({"owner": "ann\u{200b}"}), "owner"),
        // Names that look like another one: in another case, in another script, or with an accent.
        (json!({"owner": "Ann"}), "owner"),
        (json!({"owner": "\u{430}nn"}), "owner"),
        (json!({"owner": "änn"}), "owner"),
        (json!({"owner": ".ann"}), "owner"),
        (json!({"owner": "key_0123456789abcdef"}), "owner"),
        (json!({"owner": " ann"}), "owner"),
        (json!({"owner": "a\nb"}), "owner"),
        (json!({"owner": "x".repeat(129)}), "owner"),
        (json!({"approval": "sometimes"}), "approval"),
        (json!({"approval": "on_risk"}), "approval"),
        (json!({"approval": "always", "role": "admin"}), "approval"),
        (json!({"role": "chief"}), "role"),
    ] {
        admin.post("/v1/keys", &key(more)).await.refused(400, "invalid_field", Some(field));
    }
    let approver = fixture.client("default", Role::Approver).await;
    assert_eq!(approver.get("/v1/me").await.json()["role"], "approver");
    assert_eq!(approver.get("/v1/sandboxes").await.status, 200);
    for (path, body) in [
        ("/v1/sandboxes", json!({})),
        ("/v1/tools", tool(false)),
        ("/v1/keys", key(json!({}))),
        ("/v1/volumes", json!({"name": "v"})),
    ] {
        approver.post(path, &body).await.refused(403, "forbidden", None);
    }
}

async fn bad_requests_are_refused(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    let decided = async {
        let asked = waiting(&approver).await;
        let path = decide(&asked, "approve");
        for (body, field) in [
            (json!({"uses": 2}), "within"),
            (json!({"within": "1m"}), "uses"),
            (json!({"scope": "tool"}), "uses"),
            (json!({"uses": 1, "within": "1m"}), "uses"),
            (json!({"uses": 1001, "within": "1m"}), "uses"),
            (json!({"uses": 2, "within": 0}), "within"),
            (json!({"uses": 2, "within": "25h"}), "within"),
            (json!({"uses": 2, "within": "1m", "scope": "all"}), "scope"),
            (json!({"note": "x".repeat(1025)}), "note"),
            (json!({"node": "x"}), "node"),
        ] {
            approver.post(&path, &body).await.refused(400, "invalid_field", Some(field));
        }
        let stranger = fixture.client("other", Role::Approver).await;
        stranger.post(&path, &json!({})).await.refused(404, "approval_not_found", None);
        let given = approver.post(&path, &json!({"uses": 2, "within": "1m", "scope": "tool"})).await.json();
        let budget = &given["decision"]["budget"];
        assert_eq!(
            (&budget["uses"], &budget["used"], &budget["scope"]),
            (&json!(2), &json!(1), &json!("tool"))
        );
    };
    let call = json!({"code": "echo 1"});
    let (answer, ()) = futures::join!(user.post("/v1/tools/sh/call", &call), decided);
    assert_eq!(answer.status, 200, "{answer:?}");
    // One more call is within the budget, and does not wait.
    let answer = user.post("/v1/tools/sh/call", &json!({"code": "echo 2"})).await;
    assert_eq!(answer.json()["stdout"]["data"], "2\n", "{answer:?}");
    for path in ["/v1/approvals/x", "/v1/approvals/apr_0000000000000000"] {
        approver.get(path).await.refused(404, "approval_not_found", None);
        approver.post(&format!("{path}/approve"), &json!({})).await.refused(404, "approval_not_found", None);
        approver.post(&format!("{path}/deny"), &json!({})).await.refused(404, "approval_not_found", None);
    }
    approver.get("/v1/approvals?state=done").await.refused(400, "invalid_field", Some("state"));
    approver.get("/v1/approvals?limit=0").await.refused(400, "invalid_field", Some("limit"));
    approver.get("/v1/approvals?cursor=x").await.refused(400, "invalid_field", Some("cursor"));
}

async fn approvals_are_listed_in_pages(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    for number in 0..3 {
        let denied = async {
            let asked = waiting(&approver).await;
            approver.post(&decide(&asked, "deny"), &json!({})).await;
        };
        let call = json!({"code": format!("echo {number}")});
        let (answer, ()) = futures::join!(user.post("/v1/tools/sh/call", &call), denied);
        answer.refused(403, "not_approved", None);
    }
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = approver.get(&format!("/v1/approvals?limit=2{cursor}")).await.json();
        let approvals = page["approvals"].as_array().unwrap();
        found.extend(approvals.iter().map(|one| one["request"]["code"]["data"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["echo 2", "echo 1", "echo 0"]);
    assert_eq!(
        approver.get("/v1/approvals?state=denied").await.json()["approvals"].as_array().unwrap().len(),
        3
    );
    let reader = fixture.client("default", Role::Read).await;
    assert_eq!(reader.get("/v1/approvals").await.json()["approvals"], json!([]));
}

async fn models_wait_and_are_told(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    for (decision, expected) in [("approve", "yes"), ("deny", "not_approved: ")] {
        let decided = async {
            let asked = waiting(&approver).await;
            approver.post(&decide(&asked, decision), &json!({})).await;
        };
        let (answer, ()) = futures::join!(call_at(&user, "/mcp", "sh", json!({"code": "echo yes"})), decided);
        assert!(texts(&answer).starts_with(expected), "{answer}");
        assert_eq!(answer["isError"], decision == "deny");
    }
    // With a progress token, the model's program learns at once what the call waits for.
    let mut meta = meta();
    meta["progressToken"] = json!("t1");
    let body = message("tools/call", json!({"name": "sh", "arguments": {"code": "echo yes"}, "_meta": meta}));
    let decided = async {
        let asked = waiting(&approver).await;
        approver.post(&decide(&asked, "approve"), &json!({})).await;
        asked["id"].as_str().unwrap().to_owned()
    };
    let (answer, id) = futures::join!(user.send(request(&user, "/mcp", "tools/call", "sh"), body), decided);
    let (progress, rest) = answer.text().split_once("\n\n").unwrap();
    assert!(
        progress.contains(&format!("[waiting until another person approves {id}, at most until 20")),
        "{progress}"
    );
    assert!(rest.contains("yes"), "{rest}");
}
