//! Commands and processes.

use std::time::Duration;

use axum::body::Body;
use belljar_testing::wait::until;
use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture::{Fixture, cases, sandbox, sh};

cases![
    command_returns_a_result,
    output_is_streamed_while_it_runs,
    failure_to_start_is_a_result,
    client_disconnect_ends_its_command,
    idempotent_execution_runs_once,
    processes_run_in_the_background,
    output_is_read_by_offset,
    sessions_are_opened_and_closed,
    streams_of_a_key_are_bounded,
];

async fn command_returns_a_result(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let result = sh(&user, &id, "echo out; echo err >&2; exit 3").await;
    assert_eq!(
        (&result["schema"], &result["exit_code"], &result["sandbox"]),
        (&json!(1), &json!(3), &json!(id))
    );
    assert_eq!(result["outcome"], json!({"kind": "exited", "code": 3}));
    let expected = json!({"encoding": "utf-8", "data": "out\n", "bytes": 4, "truncated": false, "omitted_bytes": 0, "head_bytes": 4, "log": null});
    assert_eq!((&result["stdout"], &result["stderr"]["data"]), (&expected, &json!("err\n")));
    assert_eq!((&result["signal"], &result["left_behind"]), (&Value::Null, &json!(0)));
    assert!(result["wall_ms"].as_f64().unwrap() > 0.0);

    let exec = format!("/v1/sandboxes/{id}/exec");
    let body = json!({"argv": ["sh", "-c", "cat; echo \"$A $PWD\""], "cwd": "/tmp", "env": {"A": "b"}, "stdin": "in\n"});
    assert_eq!(user.post(&exec, &body).await.json()["stdout"]["data"], "in\nb /tmp\n");
    let body = json!({"command": "cat", "stdin_base64": "/w=="});
    let output = user.post(&exec, &body).await.json()["stdout"].clone();
    assert_eq!((&output["encoding"], &output["data"]), (&json!("base64"), &json!("/w==")));
    let killed = sh(&user, &id, "kill -9 $$").await;
    assert_eq!((&killed["signal"], &killed["exit_code"]), (&json!("SIGKILL"), &Value::Null));
    let late = user.post(&exec, &json!({"command": "sleep 60", "timeout": "300ms"})).await.json();
    assert_eq!(late["outcome"]["kind"], "timed_out");
    let cut = user.post(&exec, &json!({"command": "yes | head -c 100000", "output": "4k"})).await.json();
    assert_eq!((&cut["stdout"]["truncated"], &cut["stdout"]["bytes"]), (&json!(true), &json!(100_000)));
    user.post(&exec, &json!({"argv": ["no-such-program"]})).await.refused(404, "program_not_found", None);
}

fn streamed(client: &Client, id: &str, body: &Value) -> http::Request<Body> {
    let request = client.request("POST", &format!("/v1/sandboxes/{id}/exec"));
    let request = request.header("content-type", "application/json").header("accept", "text/event-stream");
    request.body(Body::from(body.to_string())).unwrap()
}

async fn output_is_streamed_while_it_runs(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let body = json!({"command": "echo one; while [ ! -e go ]; do sleep 0.05; done; printf 'tw\\303'; printf '\\266' ; echo >&2 e"});
    let mut events = user.events(streamed(&user, &id, &body)).await;
    let (name, started) = events.next().await.unwrap();
    assert_eq!(name, "started");
    assert!(started["process"].as_u64().unwrap() > 0 && started["pid"].as_u64().unwrap() > 0);
    let (name, first) = events.next().await.unwrap();
    assert_eq!(
        (name.as_str(), first),
        ("stdout", json!({"offset": 0, "encoding": "utf-8", "data": "one\n"}))
    );
    user.put(&format!("/v1/sandboxes/{id}/files/content?path=go"), "").await;
    let rest = events.rest().await;
    let text: String = rest
        .iter()
        .filter(|(name, _)| name == "stdout")
        .map(|(_, data)| data["data"].as_str().unwrap())
        .collect();
    assert_eq!(text, "twö", "{rest:?}");
    let (name, result) = rest.last().unwrap();
    assert_eq!(
        (name.as_str(), &result["exit_code"], &result["stdout"]["data"]),
        ("result", &json!(0), &json!("one\ntwö"))
    );
}

async fn failure_to_start_is_a_result(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let refused = user.send_request(streamed(&user, &id, &json!({"argv": ["no-such-program"]}))).await;
    refused.refused(404, "program_not_found", None);
    let refused =
        user.send_request(streamed(&user, "abcdefghij0123456789", &json!({"command": "true"}))).await;
    refused.refused(404, "sandbox_not_found", None);
}

/// Reports whether a command with this text in its command line is running.
async fn is_running(client: &Client, id: &str, what: &str) -> bool {
    let listed = client.get(&format!("/v1/sandboxes/{id}/processes")).await.json();
    let mut processes = listed["processes"].as_array().unwrap().iter();
    processes.any(|one| one["running"] == true && one["argv"].to_string().contains(what))
}

async fn client_disconnect_ends_its_command(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    for accept in ["application/json", "text/event-stream"] {
        let mut request = streamed(&user, &id, &json!({"command": "sleep 4321; true"}));
        request.headers_mut().insert("accept", accept.parse().unwrap());
        let (leaving, user_too) = (user.clone(), user.clone());
        let waiting = tokio::spawn(async move {
            let answer = leaving.open(request).await;
            let mut body = Body::new(answer.into_body()).into_data_stream();
            while futures::StreamExt::next(&mut body).await.is_some() {}
        });
        until("the command runs", || is_running(&user_too, &id, "sleep 4321")).await;
        waiting.abort();
        until("the command is ended", || async { !is_running(&user_too, &id, "sleep 4321").await }).await;
    }
}

async fn idempotent_execution_runs_once(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let run = |key: &'static str, line: &'static str| {
        let request =
            user.request("POST", &format!("/v1/sandboxes/{id}/exec")).header("idempotency-key", key);
        let body = json!({ "command": line }).to_string();
        user.send_request(request.header("content-type", "application/json").body(body.into()).unwrap())
    };
    for _ in 0..2 {
        let done = run("once", "echo x >> runs; wc -l < runs").await;
        assert_eq!(done.json()["stdout"]["data"], "1\n", "{done:?}");
    }
    run("once", "echo other").await.refused(422, "idempotency_mismatch", None);
    // Where it would not be obeyed, it is refused.
    let of_sandbox = [
        ("processes", json!({ "command": "echo x >> runs" })),
        ("processes/1/stdin", json!("text")),
        ("fork", json!({})),
        ("files/upload?path=/tmp", json!("text")),
        ("contexts", json!({ "language": "bash" })),
        ("contexts/ctx/restart", json!({})),
        ("contexts/ctx/interrupt", json!({})),
    ]
    .map(|(path, body)| (format!("/v1/sandboxes/{id}/{path}"), body));
    let others = [
        ("/v1/screen", json!({ "language": "bash", "code": "true" })),
        ("/v1/templates/import", json!("text")),
        ("/v1/images/import", json!("text")),
    ]
    .map(|(path, body)| (path.to_owned(), body));
    for (path, body) in of_sandbox.into_iter().chain(others) {
        let request = user.request("POST", &path);
        let request = request.header("idempotency-key", "once").header("content-type", "application/json");
        let sent = user.send_request(request.body(body.to_string().into()).unwrap()).await;
        sent.refused(400, "invalid_field", Some("Idempotency-Key"));
    }
    assert_eq!(run("count", "wc -l < runs").await.json()["stdout"]["data"], "1\n");
}

async fn processes_run_in_the_background(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let base = format!("/v1/sandboxes/{id}/processes");
    let started = user.post(&base, &json!({"command": "cat; echo done", "stdin_open": true})).await;
    assert_eq!(started.status, 201, "{started:?}");
    let info = started.json();
    let number = info["process"].as_u64().unwrap();
    assert_eq!((&info["running"], &info["outcome"]), (&json!(true), &Value::Null));
    let path = format!("{base}/{number}");
    let fed =
        user.send_request(user.request("POST", &format!("{path}/stdin")).body("abc".into()).unwrap()).await;
    assert_eq!((fed.status.as_u16(), fed.json()), (200, json!({"bytes": 3})), "{fed:?}");
    let fed = user
        .send_request(user.request("POST", &format!("{path}/stdin?close=true")).body("\n".into()).unwrap())
        .await;
    assert_eq!(fed.json(), json!({"bytes": 1}));
    let ended = || async { user.get(&path).await.json()["running"] == false };
    until("the process ends", ended).await;
    let info = user.get(&path).await.json();
    assert_eq!((&info["exit_code"], &info["stdout_bytes"]), (&json!(0), &json!(9)));
    assert_eq!(info["outcome"], json!({"kind": "exited", "code": 0}));
    user.post(&format!("{path}/signal"), &json!({"signal": "SIGTERM"})).await.refused(
        404,
        "process_not_found",
        None,
    );

    let sleeping =
        user.post(&base, &json!({"argv": ["sleep", "600"]})).await.json()["process"].as_u64().unwrap();
    let path = format!("{base}/{sleeping}");
    user.post(&format!("{path}/resize"), &json!({"rows": 3, "columns": 4})).await.refused(
        409,
        "failed_precondition",
        None,
    );
    let signalled = user.post(&format!("{path}/signal"), &json!({"signal": 15, "tree": true})).await;
    assert_eq!(
        (signalled.status.as_u16(), signalled.json()),
        (200, json!({"signalled": 1})),
        "{signalled:?}"
    );
    until("the process ends", || async { user.get(&path).await.json()["signal"] == "SIGTERM" }).await;
    let listed = user.get(&base).await.json();
    let numbers: Vec<_> =
        listed["processes"].as_array().unwrap().iter().map(|one| one["process"].as_u64().unwrap()).collect();
    assert!(numbers.contains(&number) && numbers.contains(&sleeping), "{listed}");
    for missing in ["999", "0", "07", "+7", "x", "18446744073709551616", "-1"] {
        user.get(&format!("{base}/{missing}")).await.refused(404, "process_not_found", None);
    }
}

async fn output_is_read_by_offset(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let base = format!("/v1/sandboxes/{id}/processes");
    let body = json!({"command": "printf abcdef; printf xy >&2; while [ ! -e go ]; do sleep 0.05; done; printf ghi"});
    let number = user.post(&base, &body).await.json()["process"].as_u64().unwrap();
    let path = format!("{base}/{number}");
    until("there is output", || async { user.get(&path).await.json()["stderr_bytes"] == 2 }).await;
    let open = |query: &str| {
        user.events(user.request("GET", &format!("{path}/output?{query}")).body(Body::empty()).unwrap())
    };

    let now = open("follow=false&stdout=2").await.rest().await;
    let expected = [
        ("stdout".to_owned(), json!({"offset": 2, "encoding": "utf-8", "data": "cdef"})),
        ("stderr".to_owned(), json!({"offset": 0, "encoding": "utf-8", "data": "xy"})),
    ];
    assert!(now.len() == 2 && expected.iter().all(|event| now.contains(event)), "{now:?}");
    assert!(open("follow=false&stdout=6&stderr=2").await.rest().await.is_empty());

    let mut following = open("stdout=6&stderr=2").await;
    assert!(following.is_quiet(Duration::from_millis(300)).await);
    user.put(&format!("/v1/sandboxes/{id}/files/content?path=go"), "").await;
    let rest = following.rest().await;
    assert_eq!(rest[0], ("stdout".to_owned(), json!({"offset": 6, "encoding": "utf-8", "data": "ghi"})));
    assert_eq!(
        (rest[1].0.as_str(), &rest[1].1["exit_code"], &rest[1].1["stdout_bytes"]),
        ("exited", &json!(0), &json!(9))
    );
    assert_eq!(rest.len(), 2, "{rest:?}");
    let later = open("follow=false").await.rest().await;
    assert_eq!(later.last().unwrap().0, "exited");
}

async fn streams_of_a_key_are_bounded(fixture: Fixture) {
    let few =
        fixture.beside(belljar_api::ApiConfig { max_streams_per_key: 2, ..crate::fixture::config() }).await;
    let user = few.user().await;
    let id = sandbox(&user).await;
    let watch =
        || user.request("GET", &format!("/v1/sandboxes/{id}/files/watch")).body(Body::empty()).unwrap();
    let first = user.events(watch()).await;
    let _second = user.events(watch()).await;
    let refused = user.send_request(watch()).await;
    refused.refused(429, "quota_exceeded", None);
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    drop(first);
    until("a stream is free again", || async { user.open(watch()).await.status() == 200 }).await;
}

async fn sessions_are_opened_and_closed(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let sessions = format!("/v1/sandboxes/{id}/sessions");
    let opened = user.post(&sessions, &json!({"cwd": "/tmp", "env": {"A": "b"}})).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    let session = opened.json()["session"].as_u64().unwrap();
    assert!(["bash", "sh"].contains(&opened.json()["shell"].as_str().unwrap()), "{opened:?}");
    let listed = user.get(&sessions).await.json();
    assert_eq!(listed["sessions"], json!([opened.json()]));
    assert_eq!(user.delete(&format!("{sessions}/{session}")).await.status, 204);
    user.delete(&format!("{sessions}/{session}")).await.refused(404, "session_not_found", None);
    user.delete(&format!("{sessions}/x")).await.refused(404, "session_not_found", None);
    assert_eq!(user.get(&sessions).await.json()["sessions"], json!([]));
    user.post(&sessions, &json!({"cwd": ""})).await.refused(400, "invalid_field", Some("cwd"));
    user.post(&sessions, &json!({"env": {"A=B": "c"}})).await.refused(400, "invalid_field", Some("env"));
    user.post(&sessions, &json!({"shell": "zsh"})).await.refused(400, "invalid_field", Some("shell"));
}
