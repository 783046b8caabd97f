//! Every field of every body and query: an invalid value gives a 4xx that names the field.

use serde_json::{Value, json};

use crate::fixture::{Fixture, cases, sandbox};

cases![bodies_are_checked, queries_are_checked, bodies_are_bounded];

async fn bodies_are_checked(fixture: Fixture) {
    let user = fixture.client("default", belljar_model::Role::Admin).await;
    let id = sandbox(&user).await;
    let of = |rest: &str| format!("/v1/sandboxes/{id}{rest}");
    let long = "x".repeat(70);
    let cases: Vec<(&str, String, Value, &str)> = vec![
        ("POST", "/v1/sandboxes".into(), json!({"nmae": "x"}), "nmae"),
        ("POST", "/v1/sandboxes".into(), json!({"name": 7}), "name"),
        ("POST", "/v1/sandboxes".into(), json!({"name": ""}), "name"),
        ("POST", "/v1/sandboxes".into(), json!({"name": "Upper"}), "name"),
        ("POST", "/v1/sandboxes".into(), json!({"name": "abcdefghij0123456789"}), "name"),
        ("POST", "/v1/sandboxes".into(), json!({"name": long}), "name"),
        ("POST", "/v1/sandboxes".into(), json!({"template": 1}), "template"),
        ("POST", "/v1/sandboxes".into(), json!({"template": ""}), "template"),
        ("POST", "/v1/sandboxes".into(), json!({"files": [{"path": "/", "content": "x"}]}), "files"),
        ("POST", "/v1/sandboxes".into(), json!({"if_exists": "maybe"}), "if_exists"),
        ("POST", "/v1/sandboxes".into(), json!({"timeout": 0}), "timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"timeout": "25h"}), "timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"timeout": "soon"}), "timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"timeout": -1}), "timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"timeout": [1]}), "timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"idle_timeout": "x"}), "idle_timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"on_timeout": "explode"}), "on_timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"auto_resume": "yes"}), "auto_resume"),
        ("POST", "/v1/sandboxes".into(), json!({"labels": {"a": 1}}), "labels.a"),
        ("POST", "/v1/sandboxes".into(), json!({"labels": {"": "x"}}), "labels"),
        ("POST", "/v1/sandboxes".into(), json!({"labels": {"a": "x".repeat(257)}}), "labels"),
        ("POST", "/v1/sandboxes".into(), json!({"labels": []}), "labels"),
        ("POST", "/v1/sandboxes".into(), json!({"env": {"A=B": "x"}}), "env"),
        ("POST", "/v1/sandboxes".into(), json!({"env": {"A": "\u{0}"}}), "env"),
        ("POST", "/v1/sandboxes".into(), json!({"env": {"A": null}}), "env.A"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"memory": "1k"}}), "limits.memory"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"memory": {}}}), "limits.memory"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"memroy": 1}}), "limits.memroy"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"cpus": -1}}), "limits.cpus"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"timeout": "99h"}}), "limits.timeout"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"pids": 1.5}}), "limits.pids"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"tmp": "x"}}), "limits.tmp"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"disk": "x"}}), "limits.disk"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"inodes": 0}}), "limits.inodes"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"output": "x"}}), "limits.output"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": {"open_files": -5}}), "limits.open_files"),
        ("POST", "/v1/sandboxes".into(), json!({"limits": 1}), "limits"),
        ("POST", "/v1/sandboxes".into(), json!({"network": "on"}), "network"),
        ("POST", "/v1/sandboxes".into(), json!({"engine": "magic"}), "engine"),
        ("POST", "/v1/sandboxes".into(), json!({"grade": "none"}), "grade"),
        ("POST", "/v1/sandboxes".into(), json!({"hostname": "a b"}), "hostname"),
        ("POST", "/v1/sandboxes".into(), json!({"user": "root"}), "user"),
        ("PUT", "/v1/registries/ghcr".into(), json!({"user": "a", "password": "b"}), "registry"),
        ("PUT", "/v1/registries/ghcr.io".into(), json!({"user": "a:b", "password": "b"}), "user"),
        ("PUT", "/v1/registries/ghcr.io".into(), json!({"user": "a", "password": ""}), "password"),
        ("POST", "/v1/sandboxes".into(), json!({"mounts": ["nonsense"]}), "mounts"),
        ("POST", "/v1/sandboxes".into(), json!({"mounts": "x"}), "mounts"),
        ("POST", "/v1/sandboxes".into(), json!({"files": [{"content": "x"}]}), "files[0].path"),
        ("POST", "/v1/sandboxes".into(), json!({"files": [{"path": "a"}]}), "files[0].content"),
        ("POST", "/v1/sandboxes".into(), json!({"files": [{"path": "", "content": ""}]}), "files[0].path"),
        // The guest checks the mode first: no file may have these bits, and this is a directory.
        (
            "POST",
            "/v1/sandboxes".into(),
            json!({"files": [{"path": "a", "content": "", "mode": "2010"}]}),
            "files",
        ),
        ("POST", "/v1/sandboxes".into(), json!({"files": [{"path": "/tmp", "content": ""}]}), "files"),
        (
            "POST",
            "/v1/sandboxes".into(),
            json!({"files": [{"path": "a", "content": "", "mode": "9"}]}),
            "files[0].mode",
        ),
        (
            "POST",
            "/v1/sandboxes".into(),
            json!({"files": [{"path": "a", "content_base64": "*"}]}),
            "files[0].content_base64",
        ),
        (
            "POST",
            "/v1/sandboxes".into(),
            json!({"files": [{"path": "a", "content": "x".repeat((1 << 20) + 1)}]}),
            "files",
        ),
        ("PATCH", of(""), json!({"limits": {"disk": "1g"}}), "limits.disk"),
        ("PATCH", of(""), json!({"limits": {"memory": "x"}}), "limits.memory"),
        ("PATCH", of(""), json!({"limits": {"cpus": 0}}), "limits.cpus"),
        ("PATCH", of(""), json!({"labels": {"a": 1}}), "labels.a"),
        ("PATCH", of(""), json!({"idle_timeout": "x"}), "idle_timeout"),
        ("PATCH", of(""), json!({"on_timeout": 1}), "on_timeout"),
        ("PATCH", of(""), json!({"auto_resume": 1}), "auto_resume"),
        ("PATCH", of(""), json!({"name": "x"}), "name"),
        ("POST", of("/timeout"), json!({}), "timeout"),
        ("POST", of("/timeout"), json!({"timeout": "99h"}), "timeout"),
        ("POST", of("/timeout"), json!({"timeout": null}), "timeout"),
        ("POST", of("/resume"), json!({"timeout": "x"}), "timeout"),
        ("POST", of("/pause"), json!({"x": 1}), "x"),
        ("POST", of("/snapshot"), json!({"name": "a b"}), "name"),
        ("POST", of("/snapshot"), json!({"note": 1}), "note"),
        ("POST", of("/fork"), json!({"count": 0}), "count"),
        ("POST", of("/fork"), json!({"count": 21}), "count"),
        ("POST", of("/fork"), json!({"count": "2"}), "count"),
        ("POST", of("/fork"), json!({"memory": "interpreters"}), "memory"),
        ("POST", of("/fork"), json!({"timeout": "99h"}), "timeout"),
        ("POST", of("/fork"), json!({"labels": {"": "x"}}), "labels"),
        ("POST", of("/tokens"), json!({"expires": 0}), "expires"),
        ("POST", of("/tokens"), json!({"expires": "300h"}), "expires"),
        ("POST", of("/exec"), json!({}), "command"),
        ("POST", of("/exec"), json!({"command": 1}), "command"),
        ("POST", of("/exec"), json!({"command": "true", "argv": ["true"]}), "argv"),
        ("POST", of("/exec"), json!({"argv": [1]}), "argv[0]"),
        ("POST", of("/exec"), json!({"command": "true", "cwd": 1}), "cwd"),
        ("POST", of("/exec"), json!({"command": "true", "timeout": "400days"}), "timeout"),
        ("POST", of("/exec"), json!({"command": "true", "session": "x"}), "session"),
        ("POST", of("/exec"), json!({"command": "true", "terminal": {}}), "terminal"),
        ("POST", of("/processes"), json!({"command": "true", "terminal": {"rows": 1}}), "terminal.columns"),
        (
            "POST",
            of("/processes"),
            json!({"command": "true", "terminal": {"rows": 1, "columns": 70000}}),
            "terminal.columns",
        ),
        ("POST", of("/processes"), json!({"command": "true", "stdin_open": 1}), "stdin_open"),
        ("POST", of("/processes/1/signal"), json!({}), "signal"),
        ("POST", of("/processes/1/signal"), json!({"signal": "SIGNONE"}), "signal"),
        ("POST", of("/processes/1/signal"), json!({"signal": 9, "tree": 1}), "tree"),
        ("POST", of("/processes/1/resize"), json!({"rows": 0, "columns": 1}), "rows"),
        ("POST", of("/processes/1/resize"), json!({"rows": 1}), "columns"),
        ("POST", of("/files/mkdir"), json!({}), "path"),
        ("POST", of("/files/mkdir"), json!({"path": ""}), "path"),
        ("POST", of("/files/mkdir"), json!({"path": "x", "parents": 1}), "parents"),
        ("POST", of("/files/move"), json!({"from": "a"}), "to"),
        ("POST", of("/files/move"), json!({"from": "a", "to": "\u{0}"}), "to"),
        ("POST", of("/files/move"), json!({"from": "a", "to": "b", "overwrite": 1}), "overwrite"),
        ("POST", of("/files/sign"), json!({"path": "a"}), "operation"),
        ("POST", of("/files/sign"), json!({"path": "a", "operation": "run"}), "operation"),
        ("POST", of("/files/sign"), json!({"path": "a", "operation": "read", "expires": 0}), "expires"),
        ("POST", of("/ports"), json!({}), "port"),
        ("POST", of("/ports"), json!({"port": -1}), "port"),
        ("POST", of("/ports"), json!({"port": 80, "public": "x"}), "public"),
        ("POST", "/v1/keys".into(), json!({}), "name"),
        ("POST", "/v1/keys".into(), json!({"name": "a", "role": "root"}), "role"),
        ("POST", "/v1/keys".into(), json!({"name": "a", "expires": "x"}), "expires"),
        ("POST", "/v1/keys".into(), json!({"name": "a", "quotas": {"cats": 1}}), "quotas.cats"),
        ("POST", "/v1/keys".into(), json!({"name": "a", "quotas": {"sandboxes": -1}}), "quotas.sandboxes"),
        ("POST", "/v1/secrets".into(), json!({"name": "a"}), "value"),
        ("POST", "/v1/secrets".into(), json!({"name": "a", "value": 1}), "value"),
        ("POST", "/v1/secrets".into(), json!({"name": "a", "value": "b\n"}), "value"),
        ("POST", "/v1/secrets".into(), json!({"name": "A", "value": "b"}), "name"),
        ("POST", "/v1/secrets".into(), json!({"name": "sec_a", "value": "b"}), "name"),
        (
            "POST",
            "/v1/secrets".into(),
            json!({"name": "a", "value": "b", "metadata": {"a": "\u{0}"}}),
            "metadata",
        ),
        ("POST", "/v1/secrets".into(), json!({"name": "a", "value": "b", "env": "C"}), "env"),
        ("PUT", "/v1/secrets/a".into(), json!({}), "value"),
        ("PUT", "/v1/secrets/a".into(), json!({"value": ""}), "value"),
        ("POST", "/v1/audit/verify".into(), json!({"x": 1}), "x"),
        ("POST", "/v1/audit/archive".into(), json!({"x": 1}), "x"),
        ("POST", "/v1/audit/archive".into(), json!({"through": -1}), "through"),
        ("POST", "/v1/audit/archive".into(), json!({"through": 1_u64 << 63}), "through"),
        ("POST", "/v1/audit/archive".into(), json!({"before": "soon"}), "before"),
        (
            "POST",
            "/v1/audit/archive".into(),
            json!({"before": "2026-01-01T00:00:00Z", "through": 1}),
            "through",
        ),
    ];
    for (method, path, body, field) in cases {
        let answer = user.json(method, &path, &body).await;
        let text = body.to_string().chars().take(100).collect::<String>();
        let found = (answer.status.as_u16(), answer.problem());
        assert_eq!(
            found,
            (400, ("invalid_field".to_owned(), Some(field.to_owned()))),
            "{method} {path} {text}: {answer:?}"
        );
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with(field), "{detail}");
        let last = field.rsplit('.').next().unwrap();
        assert!(!detail.contains(&format!("{last}: {last}: ")), "it is named once: {detail}");
    }
    assert!(
        user.get("/v1/sandboxes").await.json()["sandboxes"].as_array().unwrap().len() <= 1,
        "none is left"
    );
}

async fn queries_are_checked(fixture: Fixture) {
    let user = fixture.client("default", belljar_model::Role::Admin).await;
    let id = sandbox(&user).await;
    let of = |rest: &str| format!("/v1/sandboxes/{id}{rest}");
    let cases: Vec<(&str, String, &str)> = vec![
        ("GET", "/v1/sandboxes?limit=0".into(), "limit"),
        ("GET", "/v1/sandboxes?limit=101".into(), "limit"),
        ("GET", "/v1/sandboxes?limit=x".into(), "limit"),
        ("GET", "/v1/sandboxes?limit=1&limit=2".into(), "limit"),
        ("GET", "/v1/sandboxes?state=asleep".into(), "state"),
        ("GET", "/v1/sandboxes?label=x".into(), "label"),
        ("GET", "/v1/sandboxes?order=up".into(), "order"),
        ("GET", "/v1/sandboxes?page=1".into(), "page"),
        ("GET", of("/logs?limit=1001"), "limit"),
        ("GET", of("/logs?after=-1"), "after"),
        ("GET", of("/files?depth=0"), "depth"),
        ("GET", of("/files?depth=65"), "depth"),
        ("GET", of("/files?limit=10001"), "limit"),
        ("GET", of("/files?cursor=*"), "cursor"),
        ("GET", of("/files/stat"), "path"),
        ("GET", of("/files/stat?path=a&follow=x"), "follow"),
        ("GET", of("/files/content?path="), "path"),
        ("GET", of("/files/content?path_base64=*"), "path_base64"),
        ("PUT", of("/files/content?path=a&mode=9"), "mode"),
        ("PUT", of("/files/content?path=a&append=x"), "append"),
        ("DELETE", of("/files?path=a&recursive=x"), "recursive"),
        ("GET", of("/files/watch?recursive=x"), "recursive"),
        ("GET", of("/files/archive?format=zip"), "format"),
        ("PUT", of("/files/archive?strip=-1"), "strip"),
        ("GET", of("/processes/1/output?stdout=x"), "stdout"),
        ("GET", of("/processes/1/output?follow=1"), "follow"),
        ("POST", of("/processes/1/stdin?close=x"), "close"),
        ("GET", "/v1/audit?limit=1001".into(), "limit"),
        ("GET", "/v1/audit?after=x".into(), "after"),
        ("GET", "/v1/audit?sandbox=x".into(), "sandbox"),
    ];
    for (method, path, field) in cases {
        user.call(method, &path).await.refused(400, "invalid_field", Some(field));
    }
}

async fn bodies_are_bounded(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let send = |kind: &'static str, encoding: Option<&'static str>, body: Vec<u8>| {
        let mut request =
            user.request("POST", &format!("/v1/sandboxes/{id}/exec")).header("content-type", kind);
        if let Some(encoding) = encoding {
            request = request.header("content-encoding", encoding);
        }
        user.send_request(request.body(body.into()).unwrap())
    };
    let json = "application/json";
    // The refusal arrives although the client is still sending.
    for length in [(2 << 20) + 1, 32 << 20] {
        send(json, None, vec![b' '; length]).await.refused(413, "too_large", None);
    }
    let stranger = fixture.stranger().request("POST", "/v1/sandboxes").header("content-type", json);
    let refused = fixture.stranger().send_request(stranger.body(vec![b' '; 8 << 20].into()).unwrap()).await;
    refused.refused(401, "unauthenticated", None);
    send(json, Some("gzip"), vec![31, 139]).await.refused(
        415,
        "unsupported_media_type",
        Some("Content-Encoding"),
    );
    send("text/plain", None, b"{}".to_vec()).await.refused(
        415,
        "unsupported_media_type",
        Some("Content-Type"),
    );
    for bad in [&b"{"[..], b"nonsense", b"{\"command\":\"\xff\"}", b"{\"command\":NaN}", b"{} {}"] {
        send(json, None, bad.to_vec()).await.refused(400, "invalid_json", None);
    }
    let deep = [b"{\"command\":".to_vec(), vec![b'['; 100_000]].concat();
    let refused = send(json, None, deep).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    send(json, None, b"{\"command\":\"a\",\"command\":\"b\"}".to_vec()).await.refused(
        400,
        "invalid_field",
        Some("command"),
    );
    send("application/json; charset=utf-8", None, b"{\"command\":\"true\"}".to_vec()).await;
    let pieces = futures::stream::iter(
        (0..40).map(|_| Ok::<_, std::io::Error>(bytes::Bytes::from(vec![b' '; 100_000]))),
    );
    let request = user.request("POST", &format!("/v1/sandboxes/{id}/exec")).header("content-type", json);
    let refused = user.open(request.body(axum::body::Body::from_stream(pieces)).unwrap()).await;
    assert_eq!(refused.status(), 413);
}
