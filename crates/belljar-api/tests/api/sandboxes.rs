//! Life cycle of sandboxes.

use belljar_model::Role;
use belljar_testing::wait::until;
use serde_json::{Value, json};

use crate::fixture::{Fixture, cases, sandbox, sh};

cases![
    sandbox_lifecycle,
    creates_need_not_be_waited_for,
    names_and_idempotency_keys_return_the_same_sandbox,
    lists_are_paginated_and_filtered,
    sandboxes_are_changed_paused_and_resumed,
    files_are_copied_into_templates_and_forks,
    tokens_open_their_own_sandbox_only,
    other_tenants_see_nothing,
    keys_and_audit_are_for_admins,
];

async fn sandbox_lifecycle(fixture: Fixture) {
    let user = fixture.user().await;
    let body = json!({
        "timeout": "10m", "idle_timeout": 120, "labels": {"job": "42"}, "env": {"GREETING": "hi"},
        "limits": {"memory": "256m", "cpus": 0.5, "timeout": 30, "pids": 64}, "hostname": "jar",
        "files": [{"path": "a.txt", "content": "one"}, {"path": "b.bin", "content_base64": "/w==", "mode": "0600"}],
    });
    let made = user.post("/v1/sandboxes", &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let info = made.json();
    let id = info["id"].as_str().unwrap();
    assert_eq!(info["state"], "running");
    assert_eq!(info["labels"], json!({"job": "42"}));
    assert_eq!(info["limits"]["memory_bytes"], 256 << 20);
    assert_eq!(info["limits"]["cpus"], 0.5);
    assert_eq!(info["limits"]["timeout_s"], 30.0);
    assert_eq!(info["idle_timeout_s"], 120.0);
    assert_eq!((&info["on_timeout"], &info["auto_resume"]), (&json!("kill"), &json!(true)));
    assert_eq!(
        (&info["network"], &info["engine"], &info["hostname"]),
        (&json!("disabled"), &json!("local"), &json!("jar"))
    );
    assert_eq!(info["host"], format!("{{port}}-{id}.box.test"));
    assert!(info["isolation"]["layers"].as_array().unwrap().len() > 3);
    assert!(info["created_at"].as_str().unwrap().ends_with('Z') && info["start_ms"].as_f64().unwrap() > 0.0);
    for gone in ["paused_at", "ended_at", "reason", "name"] {
        assert_eq!(info[gone], Value::Null, "{gone}");
    }
    let result = sh(&user, id, "cat a.txt; stat -c %a:%s b.bin; echo $GREETING; hostname").await;
    assert_eq!(result["stdout"]["data"], "one600:1\nhi\njar\n");

    let got = user.get(&format!("/v1/sandboxes/{id}")).await;
    assert_eq!((got.status.as_u16(), &got.json()["id"]), (200, &info["id"]));
    let metrics = user.get(&format!("/v1/sandboxes/{id}/metrics")).await.json();
    assert_eq!((&metrics["memory_limit_bytes"], &metrics["pids_limit"]), (&json!(256 << 20), &json!(64)));
    assert!(metrics["uptime_s"].as_f64().unwrap() > 0.0 && !metrics["disks"].as_array().unwrap().is_empty());
    let logs = user.get(&format!("/v1/sandboxes/{id}/logs")).await.json();
    assert_eq!(logs["entries"][0]["event"], "created", "{logs}");
    let after = logs["next"].as_u64().unwrap();
    let later = user.get(&format!("/v1/sandboxes/{id}/logs?after={after}")).await.json();
    assert_eq!(later["entries"], json!([]));

    let timed = user.post(&format!("/v1/sandboxes/{id}/timeout"), &json!({"timeout": 600})).await;
    assert_eq!(timed.status, 200, "{timed:?}");
    let ended = user.delete(&format!("/v1/sandboxes/{id}")).await;
    assert_eq!((ended.status.as_u16(), ended.body.len()), (204, 0));
    user.delete(&format!("/v1/sandboxes/{id}")).await.refused(410, "sandbox_gone", None);
    user.post(&format!("/v1/sandboxes/{id}/exec"), &json!({"command": "true"})).await.refused(
        410,
        "sandbox_gone",
        None,
    );
    user.get("/v1/sandboxes/abcdefghij0123456789").await.refused(404, "sandbox_not_found", None);
}

async fn creates_need_not_be_waited_for(fixture: Fixture) {
    let user = fixture.user().await;
    let made = user.post("/v1/sandboxes?wait=false", &json!({"name": "soon"})).await;
    assert_eq!((made.status.as_u16(), &made.json()["state"]), (202, &json!("creating")));
    // A call waits until it runs, and so does a second request for it.
    let same = json!({"name": "soon", "if_exists": "return"});
    let (again, said, metrics) = tokio::join!(
        user.post("/v1/sandboxes", &same),
        sh(&user, "soon", "echo here"),
        user.get("/v1/sandboxes/soon/metrics"),
    );
    assert_eq!(metrics.status, 200, "{metrics:?}");
    assert_eq!((again.status.as_u16(), &again.json()["state"]), (200, &json!("running")));
    assert_eq!((&again.json()["id"], &said["stdout"]["data"]), (&made.json()["id"], &json!("here\n")));

    let keyed = || {
        let request = user.request("POST", "/v1/sandboxes?wait=false").header("idempotency-key", "soon-1");
        user.send_request(request.header("content-type", "application/json").body("{}".into()).unwrap())
    };
    let first = keyed().await;
    assert_eq!(first.status, 202, "{first:?}");
    let mut second = keyed().await;
    until("the first request has ended", async || {
        if second.status == 409 {
            assert_eq!(second.json()["code"], "idempotency_running");
            second = keyed().await;
        }
        second.status != 409
    })
    .await;
    assert_eq!(second.status, 200, "{second:?}");
    assert_eq!(first.json()["id"], second.json()["id"]);

    // What does not depend on the engine is refused at once; the rest is the reason for which it is gone.
    user.post("/v1/sandboxes?wait=false", &json!({"template": "none"})).await.refused(
        404,
        "template_not_found",
        None,
    );
    user.post("/v1/sandboxes?wait=no", &json!({})).await.refused(400, "invalid_field", Some("wait"));
    let files = json!({"files": [{"path": "/proc", "content": "a directory"}]});
    let made = user.post("/v1/sandboxes?wait=false", &files).await;
    assert_eq!(made.status, 202, "{made:?}");
    let path = format!("/v1/sandboxes/{}", made.json()["id"].as_str().unwrap());
    user.post(&format!("{path}/exec"), &json!({"command": "true"})).await.refused(410, "sandbox_gone", None);
    let gone = user.get("/v1/sandboxes?state=gone").await.json();
    let reason = gone["sandboxes"].as_array().unwrap().iter().find(|one| one["id"] == made.json()["id"]);
    let reason = reason.unwrap()["reason"].as_str().unwrap();
    assert!(reason.starts_with("it could not be made: ") && reason.contains("/proc"), "{reason}");
}

async fn names_and_idempotency_keys_return_the_same_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let made = user.post("/v1/sandboxes", &json!({"name": "box"})).await;
    assert_eq!(made.status, 201);
    user.post("/v1/sandboxes", &json!({"name": "box"})).await.refused(409, "name_taken", Some("name"));
    let again = user.post("/v1/sandboxes", &json!({"name": "box", "if_exists": "return"})).await;
    assert_eq!((again.status.as_u16(), &again.json()["id"]), (200, &made.json()["id"]));
    assert_eq!(user.get("/v1/sandboxes/box").await.json()["id"], made.json()["id"]);

    let keyed = |key: &'static str, body: &'static str| {
        let request = user.request("POST", "/v1/sandboxes").header("idempotency-key", key);
        user.send_request(request.header("content-type", "application/json").body(body.into()).unwrap())
    };
    let first = keyed("k1", r#"{"labels":{"a":"1"},"timeout":60}"#).await;
    let second = keyed("k1", r#"{ "timeout": 60, "labels": {"a": "1"} }"#).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(first.json()["id"], second.json()["id"]);
    keyed("k1", r#"{"timeout":61}"#).await.refused(422, "idempotency_mismatch", None);
    keyed("k 1", "{}").await.refused(400, "invalid_field", Some("Idempotency-Key"));
}

async fn lists_are_paginated_and_filtered(fixture: Fixture) {
    let user = fixture.user().await;
    let mut ids = Vec::new();
    for number in 0..3 {
        let body = json!({"labels": {"number": number.to_string(), "all": "yes"}});
        ids.push(user.post("/v1/sandboxes", &body).await.json()["id"].clone());
    }
    let listed = |answer: &Value| -> Vec<Value> {
        answer["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect()
    };
    let all = user.get("/v1/sandboxes?order=asc").await.json();
    assert_eq!((listed(&all), &all["next_cursor"]), (ids.clone(), &Value::Null));
    let first = user.get("/v1/sandboxes?order=asc&limit=2").await.json();
    assert_eq!(listed(&first), ids[..2]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = user.get(&format!("/v1/sandboxes?order=asc&limit=2&cursor={cursor}")).await.json();
    assert_eq!((listed(&second), &second["next_cursor"]), (ids[2..].to_vec(), &Value::Null));
    let one = user.get("/v1/sandboxes?label=number=1&label=all%3Dyes&state=running,paused").await.json();
    assert_eq!(listed(&one), ids[1..2]);
    assert_eq!(
        listed(&user.get("/v1/sandboxes?label=number=1&label=all=no").await.json()),
        Vec::<Value>::new()
    );
    assert_eq!(listed(&user.get("/v1/sandboxes?state=paused&state=gone").await.json()), Vec::<Value>::new());
    user.get("/v1/sandboxes?cursor=nonsense").await.refused(400, "invalid_field", Some("cursor"));
}

async fn sandboxes_are_changed_paused_and_resumed(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let path = format!("/v1/sandboxes/{id}");
    let change = json!({"labels": {"a": "1", "b": "2"}, "limits": {"pids": 99}, "idle_timeout": "5m", "on_timeout": "pause"});
    let changed = user.json("PATCH", &path, &change).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    let changed = changed.json();
    assert_eq!((&changed["limits"]["pids"], &changed["on_timeout"]), (&json!(99), &json!("pause")));
    let changed = user.json("PATCH", &path, &json!({"labels": {"a": null}, "idle_timeout": 0})).await.json();
    assert_eq!((&changed["labels"], &changed["idle_timeout_s"]), (&json!({"b": "2"}), &Value::Null));
    // A conflicting update is refused with the reason, and changes nothing.
    let none = user.json("PATCH", &path, &json!({"network": "disabled", "labels": {"c": "3"}})).await.json();
    assert_eq!((&none["network"], &none["labels"]), (&json!("disabled"), &json!({"b": "2", "c": "3"})));
    let refused = user.json("PATCH", &path, &json!({"network": "open", "limits": {"pids": 98}})).await;
    refused.refused(409, "failed_precondition", None);
    assert!(refused.json()["detail"].as_str().unwrap().contains("created without one"), "{refused:?}");
    user.get(&format!("{path}/network/log")).await.refused(409, "failed_precondition", None);
    let many = json!({"command": "for i in $(seq 40); do sleep 1000 & done; echo ready; wait"});
    let many = user.post(&format!("{path}/processes"), &many).await.json();
    until("ready", async || {
        let all = user.get(&format!("{path}/processes")).await.json();
        all["processes"].as_array().unwrap().iter().any(|one| one["stdout_bytes"] == 6)
    })
    .await;
    let refused = user.json("PATCH", &path, &json!({"limits": {"pids": 20}})).await;
    refused.refused(409, "failed_precondition", None);
    assert!(
        refused.json()["detail"].as_str().unwrap().starts_with("pids: 20 is less than the "),
        "{refused:?}"
    );
    user.delete(&format!("{path}/processes/{}", many["process"])).await;
    assert_eq!(user.get(&path).await.json()["limits"]["pids"], 99);

    let paused = user.post(&format!("{path}/pause"), &json!({})).await;
    assert_eq!((paused.status.as_u16(), &paused.json()["state"]), (200, &json!("paused")), "{paused:?}");
    assert!(paused.json()["paused_at"].is_string());
    user.post(&format!("{path}/pause"), &json!({})).await.refused(409, "wrong_state", None);
    let resumed = user.post(&format!("{path}/resume"), &json!({"timeout": 900})).await;
    assert_eq!((resumed.status.as_u16(), &resumed.json()["state"]), (200, &json!("running")));
    let again = user.call("POST", &format!("{path}/resume")).await;
    assert_eq!(again.status, 200, "an empty body is an empty request: {again:?}");
    // Using it resumes it as well.
    user.call("POST", &format!("{path}/pause")).await;
    assert_eq!(sh(&user, &id, "echo on").await["stdout"]["data"], "on\n");
    user.json("PATCH", &path, &json!({"on_timeout": "kill"})).await;
    let ended = user.post(&format!("{path}/timeout"), &json!({"timeout": 0})).await;
    assert!(ended.status.is_success() || ended.status == 410, "{ended:?}");
}

async fn files_are_copied_into_templates_and_forks(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "echo kept > file").await;
    let kept =
        user.post(&format!("/v1/sandboxes/{id}/snapshot"), &json!({"name": "mine", "note": "n"})).await;
    assert_eq!(kept.status, 201, "{kept:?}");
    let template = kept.json();
    assert_eq!(
        (&template["kind"], &template["name"], &template["source"]),
        (&json!("snapshot"), &json!("mine"), &json!(id))
    );
    let listed = user.get("/v1/templates").await.json();
    assert!(
        listed["templates"].as_array().unwrap().iter().any(|one| one["id"] == template["id"]),
        "{listed}"
    );
    assert_eq!(user.get("/v1/templates/mine").await.json()["id"], template["id"]);
    let copy = user.post("/v1/sandboxes", &json!({"template": "mine"})).await;
    assert_eq!(copy.status, 201, "{copy:?}");
    let copy = copy.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(sh(&user, &copy, "cat file").await["stdout"]["data"], "kept\n");

    let forked = user
        .post(
            &format!("/v1/sandboxes/{id}/fork"),
            &json!({"count": 2, "labels": {"fork": "1"}, "env": {"N": "1"}}),
        )
        .await;
    assert_eq!(forked.status, 201, "{forked:?}");
    for one in forked.json()["sandboxes"].as_array().unwrap() {
        let fork = one["sandbox"]["id"].as_str().unwrap();
        assert_eq!(sh(&user, fork, "cat file; echo $N").await["stdout"]["data"], "kept\n1\n");
    }
    assert_eq!(user.delete("/v1/templates/mine").await.status, 204);
    user.get("/v1/templates/mine").await.refused(404, "template_not_found", None);
    user.post("/v1/sandboxes", &json!({"template": "mine"})).await.refused(404, "template_not_found", None);
}

async fn tokens_open_their_own_sandbox_only(fixture: Fixture) {
    let user = fixture.user().await;
    let (id, other) = (sandbox(&user).await, sandbox(&user).await);
    let made = user.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({"expires": 60})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let token = user.with_key(made["token"].as_str().unwrap());
    assert!(token.key.as_ref().unwrap().starts_with("bjs_") && made["expires_at"].is_string());
    assert_eq!(sh(&token, &id, "echo in").await["stdout"]["data"], "in\n");
    assert_eq!(token.get(&format!("/v1/sandboxes/{id}")).await.status, 200);
    token.get(&format!("/v1/sandboxes/{other}")).await.refused(404, "sandbox_not_found", None);
    for (method, path) in [
        ("POST", "/v1/sandboxes".to_owned()),
        ("GET", "/v1/sandboxes".to_owned()),
        ("GET", "/v1/keys".to_owned()),
        ("GET", "/v1/audit".to_owned()),
        ("GET", "/v1/templates".to_owned()),
        ("DELETE", format!("/v1/sandboxes/{id}")),
        ("POST", format!("/v1/sandboxes/{id}/fork")),
        ("POST", format!("/v1/sandboxes/{id}/snapshot")),
        ("POST", format!("/v1/sandboxes/{id}/tokens")),
    ] {
        token.call(method, &path).await.refused(403, "forbidden", None);
    }
}

async fn other_tenants_see_nothing(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let other = fixture.client("other", Role::User).await;
    assert_eq!(other.get("/v1/sandboxes").await.json()["sandboxes"], json!([]));
    let missing = "abcdefghij0123456789";
    for (method, rest, body) in [
        ("GET", "", None),
        ("DELETE", "", None),
        ("PATCH", "", Some(json!({"labels": {"a": "b"}}))),
        ("POST", "/exec", Some(json!({"command": "true"}))),
        ("GET", "/processes", None),
        ("GET", "/processes/1", None),
        ("GET", "/files/content?path=a", None),
        ("GET", "/files", None),
        ("GET", "/ports", None),
        ("GET", "/metrics", None),
        ("GET", "/logs", None),
        ("POST", "/pause", Some(json!({}))),
        ("POST", "/tokens", Some(json!({}))),
        ("GET", "/ports/80/proxy/", None),
    ] {
        let mut answers = Vec::new();
        for place in [id.as_str(), missing] {
            let path = format!("/v1/sandboxes/{place}{rest}");
            let answer = match &body {
                Some(body) => other.json(method, &path, body).await,
                None => other.call(method, &path).await,
            };
            answers.push((answer.status.as_u16(), answer.problem(), answer.text().replace(place, "").len()));
        }
        assert_eq!(answers[0].0, 404, "{method} {rest}: {answers:?}");
        assert_eq!((&answers[0].1, answers[0].0), (&answers[1].1, answers[1].0), "{method} {rest}");
    }
    assert_eq!(user.get(&format!("/v1/sandboxes/{id}")).await.status, 200);
}

async fn keys_and_audit_are_for_admins(fixture: Fixture) {
    let user = fixture.user().await;
    let admin = fixture.client("default", Role::Admin).await;
    for (method, path) in [
        ("GET", "/v1/keys"),
        ("GET", "/v1/audit"),
        ("GET", "/v1/audit/export"),
        ("POST", "/v1/audit/verify"),
        ("GET", "/metrics"),
    ] {
        user.call(method, path).await.refused(403, "forbidden", None);
    }
    let body =
        json!({"name": "ci", "role": "read", "tenant": "team", "expires": "1h", "quotas": {"sandboxes": 1}});
    user.post("/v1/keys", &body).await.refused(403, "forbidden", None);
    let made = admin.post("/v1/keys", &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let secret = made["key"].as_str().unwrap();
    assert!(secret.starts_with("bj_") && secret.len() == 67);
    assert_eq!(
        (&made["role"], &made["tenant"], &made["quotas"]["sandboxes"]),
        (&json!("read"), &json!("team"), &json!(1))
    );
    let reader = admin.with_key(secret);
    let me = reader.get("/v1/me").await.json();
    assert_eq!(
        (&me["key"], &me["role"], &me["usage"]["sandboxes"]),
        (&made["id"], &json!("read"), &json!(0))
    );
    reader.post("/v1/sandboxes", &json!({})).await.refused(403, "forbidden", None);
    let listed = admin.get("/v1/keys").await.text().to_owned();
    assert!(listed.contains(made["id"].as_str().unwrap()) && !listed.contains(secret));
    let id = made["id"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("/v1/keys/{id}")).await.status, 204);
    until("the key is revoked", || async { reader.get("/v1/me").await.status == 401 }).await;

    sandbox(&user).await;
    let audit = admin.get("/v1/audit?action=sandbox.create").await.json();
    assert_eq!(audit["records"][0]["action"], "sandbox.create", "{audit}");
    let head = audit["head"]["seq"].as_i64().unwrap();
    let verdict = admin.post("/v1/audit/verify", &json!({})).await.json();
    assert_eq!(
        (&verdict["ok"], verdict["records"].as_i64().unwrap() >= head),
        (&json!(true), true),
        "{verdict}"
    );
    let export = admin.get("/v1/audit/export").await;
    assert!(export.text().lines().count() >= usize::try_from(head).unwrap());
    assert!(!export.text().contains(secret));
    assert!(admin.get("/metrics").await.text().contains("belljar"));
}
