//! Code in contexts, with real interpreters.

use axum::body::Body;
use belljar_model::Role;
use belljar_testing::wait::until;
use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture::{Fixture, cases, sandbox, sh};

cases![
    default_contexts_have_the_environment_of_the_sandbox,
    variables_persist_between_executions,
    output_is_streamed_while_code_runs,
    invalid_input_is_refused_with_its_field,
    contexts_are_created_and_removed,
    contexts_belong_to_their_tenant,
    contexts_run_concurrently,
    busy_code_is_interrupted,
    timeout_reports_the_state_of_the_variables,
    ended_interpreter_is_restarted,
    questions_are_answered,
    functions_are_answered,
    calls_end_steps,
    client_disconnect_is_audited,
    idempotent_code_runs_once,
    pause_preserves_variables,
    bash_has_contexts,
    missing_language_says_how_to_get_it,
];

/// Reports whether this machine has what a Python context needs.
pub(crate) fn has_ipython() -> bool {
    let found = std::process::Command::new("python3").args(["-c", "import IPython"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIPPED: python3-ipython is not installed here");
    }
    found
}

/// Interpreters read some variables at their start only.
async fn default_contexts_have_the_environment_of_the_sandbox(fixture: Fixture) {
    if !has_ipython() {
        return;
    }
    let user = fixture.user().await;
    let env = json!({"TZ": "JST-9", "PYTHONHASHSEED": "7", "OWN": "1"});
    let made = user.post("/v1/sandboxes", &json!({ "env": env })).await.json();
    let place = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let text = "import os, time; print(time.tzname[0], time.strftime('%z'), hash('a'), os.environ['OWN'])";
    let program = user.post(&format!("{place}/exec"), &json!({"argv": ["python3", "-c", text]})).await.json();
    let said = program["stdout"]["data"].as_str().unwrap();
    assert!(said.starts_with("JST +0900 "), "{program}");
    for _ in 0..2 {
        let run = user.post(&format!("{place}/code"), &json!({ "code": text })).await.json();
        assert_eq!(run["stdout"]["data"], said, "{run}");
    }
    // What an execution sets is for that one only.
    let set = user
        .post(&format!("{place}/code"), &json!({"code": "print(os.environ['OWN'])", "env": {"OWN": "2"}}))
        .await;
    assert_eq!(set.json()["stdout"]["data"], "2\n");
    let run =
        user.post(&format!("{place}/code"), &json!({ "code": "print(os.environ['OWN'])" })).await.json();
    assert_eq!(run["stdout"]["data"], "1\n");
}

async fn missing_language_says_how_to_get_it(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    // A PATH without programs simulates a sandbox without the language.
    let body = json!({"language": "perl", "code": "print 1", "env": {"PATH": "/nowhere"}});
    let missing = run(&user, &id, body).await;
    let said = "The language perl is not installed in this sandbox. Use a template with a step that installs it (apt = [\"perl\"]), or \
                run apt-get install perl on the server's machine.";
    assert_eq!(
        (&missing["status"], &missing["error"]["value"]),
        (&json!("error"), &json!(said)),
        "{missing}"
    );
    assert_eq!(missing["error"]["name"], "LanguageNotInstalled");
    assert_eq!(missing["stderr"]["data"], format!("{said}\n"));
    // Another program that is missing is another error.
    let other = run(&user, &id, json!({"language": "bash", "code": "nosuch"})).await;
    assert_eq!(other["error"]["value"], "exit status 127", "{other}");
}

/// Creates a sandbox, if it can have Python contexts.
async fn python(fixture: &Fixture) -> Option<(Client, String)> {
    if !has_ipython() {
        return None;
    }
    let user = fixture.user().await;
    let body = json!({"limits": {"memory": "512m", "pids": 128}});
    let made = user.post("/v1/sandboxes", &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    Some((user, made.json()["id"].as_str().unwrap().to_owned()))
}

async fn run(user: &Client, id: &str, body: Value) -> Value {
    let answer = user.post(&format!("/v1/sandboxes/{id}/code"), &body).await;
    assert_eq!(answer.status, 200, "{body}: {answer:?}");
    answer.json()
}

async fn code(user: &Client, id: &str, code: &str) -> Value {
    run(user, id, json!({"code": code})).await
}

fn plain(done: &Value) -> &str {
    done["results"][0]["data"]["text/plain"].as_str().unwrap_or_default()
}

fn streamed(user: &Client, id: &str, body: &Value) -> http::Request<Body> {
    let request = user.request("POST", &format!("/v1/sandboxes/{id}/code"));
    let request = request.header("content-type", "application/json").header("accept", "text/event-stream");
    request.body(Body::from(body.to_string())).unwrap()
}

/// Returns the last audit record about code in a sandbox.
async fn last_record(fixture: &Fixture, id: &str, action: &str) -> Option<Value> {
    let admin = fixture.client("default", Role::Admin).await;
    let records = admin.get("/v1/audit?limit=1000").await.json();
    let records = records["records"].as_array().unwrap().clone();
    records.into_iter().rev().find(|record| record["sandbox"] == id && record["action"] == action)
}

async fn variables_persist_between_executions(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let first = code(&user, &id, "import sys; x = 20; print('out'); print('err', file=sys.stderr)").await;
    assert_eq!((&first["status"], &first["state"]), (&json!("ok"), &json!("preserved")), "{first}");
    assert_eq!((&first["stdout"]["data"], &first["stderr"]["data"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&first["count"], &first["context"]), (&json!(1), &json!("python")));
    let second = code(&user, &id, "x * 2 + 2").await;
    assert_eq!(
        (plain(&second), &second["results"][0]["main"], &second["count"]),
        ("42", &json!(true), &json!(2))
    );
    assert!(second["execution"].as_u64() > first["execution"].as_u64());
    let failed = code(&user, &id, "1/0").await;
    assert_eq!((&failed["status"], &failed["error"]["name"]), (&json!("error"), &json!("ZeroDivisionError")));
    assert!(failed["error"]["traceback"].as_str().unwrap().contains("1/0"), "{failed}");
    let empty = code(&user, &id, "").await;
    assert_eq!((&empty["status"], &empty["results"]), (&json!("ok"), &json!([])));
    let with =
        json!({"code": "import os; print(os.environ['A'], os.getcwd())", "env": {"A": "b"}, "cwd": "/tmp"});
    assert_eq!(run(&user, &id, with).await["stdout"]["data"], "b /tmp\n");
    let cut = run(&user, &id, json!({"code": "print('x' * 100000)", "output": "4k"})).await;
    assert_eq!((&cut["stdout"]["truncated"], &cut["stdout"]["bytes"]), (&json!(true), &json!(100_001)));
    let record = last_record(&fixture, &id, "code").await.unwrap();
    assert_eq!(record["details"]["outcome"], "ok", "{record}");
    assert_eq!(
        (&record["details"]["context"], &record["details"]["language"]),
        (&json!("python"), &json!("python"))
    );
    assert!(record["code_digest"].is_string() && record["output_digest"].is_string(), "{record}");
}

async fn output_is_streamed_while_code_runs(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let text = "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('tw\\u00f6')\ndisplay(3)\n4";
    let mut events = user.events(streamed(&user, &id, &json!({"code": text}))).await;
    let (name, started) = events.next().await.unwrap();
    assert_eq!(
        (name.as_str(), &started["context"]["id"], &started["count"]),
        ("started", &json!("python"), &json!(1))
    );
    let (name, first) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &first["data"]), ("stdout", &json!("one\n")));
    user.put(&format!("/v1/sandboxes/{id}/files/content?path=go"), "").await;
    let rest = events.rest().await;
    let names: Vec<&str> = rest.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["stdout", "result", "result", "ended"], "{rest:?}");
    assert_eq!(rest[0].1["data"], "twö\n");
    assert_eq!((&rest[1].1["main"], &rest[2].1["main"]), (&json!(false), &json!(true)));
    assert_eq!((&rest[3].1["status"], &rest[3].1["state"]), (&json!("ok"), &json!("preserved")));
    let mut events = user.events(streamed(&user, &id, &json!({"code": "1/0"}))).await;
    let all = events.rest().await;
    let error = all.iter().find(|(name, _)| name == "error").unwrap();
    assert_eq!(error.1["name"], "ZeroDivisionError");
    // A large picture passes the bound on one message inside.
    let large = "from IPython.display import display\ndisplay({'image/png': 'A' * 6_000_000}, raw=True)";
    let done = code(&user, &id, large).await;
    assert_eq!(
        done["results"][0]["data"]["image/png"].as_str().map(str::len),
        Some(6_000_000),
        "{}",
        done["status"]
    );
}

async fn invalid_input_is_refused_with_its_field(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    code(&user, &id, "kept = 7").await;
    let path = format!("/v1/sandboxes/{id}/code");
    let cases = [
        (json!({"code": "a\u{0}b"}), 400, "invalid_field", Some("code")),
        (json!({"code": "#".repeat(5 << 20)}), 400, "invalid_field", Some("code")),
        (json!({"code": "1", "language": "cobol"}), 400, "invalid_field", Some("language")),
        (
            json!({"code": "1", "language": "python", "context": "python"}),
            400,
            "invalid_field",
            Some("language"),
        ),
        (json!({"code": "1", "context": "c99"}), 404, "context_not_found", None),
        (json!({"code": "1", "context": ""}), 400, "invalid_field", Some("context")),
        (json!({"code": "1", "timeout": "soon"}), 400, "invalid_field", Some("timeout")),
        (json!({"code": "1", "env": {"A": "x".repeat(200_000)}}), 400, "invalid_field", Some("env")),
    ];
    for (body, status, code, field) in cases {
        user.post(&path, &body).await.refused(status, code, field);
    }
    // It is refused before the body arrives.
    let announced = user.request("POST", &path).header("content-type", "application/json");
    let announced = announced.header("content-length", 10 << 20);
    let never = futures::stream::pending::<std::io::Result<bytes::Bytes>>();
    user.send_request(announced.body(Body::from_stream(never)).unwrap()).await.refused(
        413,
        "too_large",
        None,
    );
    let raw = user.request("POST", &path).header("content-type", "application/json");
    let raw = raw.body(Body::from(b"{\"code\":\"\xff\"}".to_vec())).unwrap();
    user.send_request(raw).await.refused(400, "invalid_json", None);
    let contexts = format!("/v1/sandboxes/{id}/contexts");
    user.post(&contexts, &json!({"language": "cobol"})).await.refused(400, "invalid_field", Some("language"));
    user.post(&format!("{contexts}/c99/restart"), &json!({})).await.refused(404, "context_not_found", None);
    user.post(&format!("{contexts}/C%2F/interrupt"), &json!({})).await.refused(
        404,
        "context_not_found",
        None,
    );
    user.delete(&format!("{contexts}/c99")).await.refused(404, "context_not_found", None);
    let answer = json!({"execution": 1, "value": "x"});
    user.post(&format!("{contexts}/python/answer"), &answer).await.refused(409, "failed_precondition", None);
    let wrong = code(&user, &id, "def f(:\n").await;
    assert_eq!((&wrong["status"], &wrong["error"]["name"]), (&json!("error"), &json!("SyntaxError")));
    let nobody = code(&user, &id, "input('name? ')").await;
    assert_eq!((&nobody["status"], &nobody["state"]), (&json!("error"), &json!("preserved")), "{nobody}");
    assert_eq!(plain(&code(&user, &id, "kept").await), "7");
}

async fn contexts_are_created_and_removed(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let contexts = format!("/v1/sandboxes/{id}/contexts");
    assert_eq!(user.get(&contexts).await.json(), json!({"contexts": []}));
    let made = user.post(&contexts, &json!({"language": "py", "cwd": "/tmp", "env": {"A": "b"}})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let context = made.json();
    assert_eq!(
        (&context["id"], &context["language"], &context["state"]),
        (&json!("c1"), &json!("python"), &json!("idle"))
    );
    assert_eq!((&context["cwd"], &context["generation"]), (&json!("/tmp"), &json!(1)));
    let result = run(
        &user,
        &id,
        json!({"code": "import os; v = 1; print(os.environ['A'], os.getcwd())", "context": "c1"}),
    )
    .await;
    assert_eq!(result["stdout"]["data"], "b /tmp\n");
    assert_eq!(code(&user, &id, "v").await["error"]["name"], "NameError");
    let listed = user.get(&contexts).await.json();
    let ids: Vec<_> =
        listed["contexts"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["c1", "python"]);
    let fresh = user.post(&format!("{contexts}/c1/restart"), &json!({})).await;
    assert_eq!((fresh.status.as_u16(), &fresh.json()["generation"]), (200, &json!(2)), "{fresh:?}");
    let lost = run(&user, &id, json!({"code": "v", "context": "c1"})).await;
    assert_eq!(lost["error"]["name"], "NameError");
    assert_eq!(user.delete(&format!("{contexts}/c1")).await.status, 204);
    user.post(&format!("/v1/sandboxes/{id}/code"), &json!({"code": "1", "context": "c1"})).await.refused(
        404,
        "context_not_found",
        None,
    );
    for action in ["context.create", "context.restart", "context.remove"] {
        let record =
            last_record(&fixture, &id, action).await.unwrap_or_else(|| panic!("no record of {action}"));
        assert_eq!(record["details"]["context"], "c1", "{record}");
    }
}

async fn contexts_belong_to_their_tenant(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    code(&user, &id, "secret = 1").await;
    let other = fixture.client("other", Role::User).await;
    let contexts = format!("/v1/sandboxes/{id}/contexts");
    let body = json!({"code": "secret", "context": "python"});
    other.post(&format!("/v1/sandboxes/{id}/code"), &body).await.refused(404, "sandbox_not_found", None);
    other.get(&contexts).await.refused(404, "sandbox_not_found", None);
    other.post(&contexts, &json!({})).await.refused(404, "sandbox_not_found", None);
    for action in ["restart", "interrupt"] {
        let answer = other.post(&format!("{contexts}/python/{action}"), &json!({})).await;
        answer.refused(404, "sandbox_not_found", None);
    }
    other.delete(&format!("{contexts}/python")).await.refused(404, "sandbox_not_found", None);
    let viewer = fixture.client("default", Role::Read).await;
    viewer.post(&format!("/v1/sandboxes/{id}/code"), &body).await.refused(403, "forbidden", None);
    assert_eq!(plain(&code(&user, &id, "secret").await), "1");
}

async fn contexts_run_concurrently(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let contexts = format!("/v1/sandboxes/{id}/contexts");
    for _ in 0..2 {
        assert_eq!(user.post(&contexts, &json!({})).await.status, 201);
    }
    // Each waits for the other: run one after the other, they would wait forever.
    let meet = |mine: &str, other: &str| {
        format!(
            "import os, time\nopen('{mine}', 'w').close()\nwhile not os.path.exists('{other}'): time.sleep(0.01)\n'{mine} met'"
        )
    };
    let (first, second) = futures::join!(
        run(&user, &id, json!({"code": meet("a", "b"), "context": "c1", "timeout": 30})),
        run(&user, &id, json!({"code": meet("b", "a"), "context": "c2", "timeout": 30}))
    );
    assert_eq!((plain(&first), plain(&second)), ("'a met'", "'b met'"));
}

async fn busy_code_is_interrupted(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    code(&user, &id, "kept = 5").await;
    let interrupt = format!("/v1/sandboxes/{id}/contexts/python/interrupt");
    assert_eq!(user.post(&interrupt, &json!({})).await.json(), json!({"interrupted": false}));
    let mut events = user
        .events(streamed(&user, &id, &json!({"code": "print('in', flush=True)\nwhile True: pass"})))
        .await;
    while events.next().await.unwrap().0 != "stdout" {}
    let listed = user.get(&format!("/v1/sandboxes/{id}/contexts")).await.json();
    assert_eq!(listed["contexts"][0]["state"], "busy");
    assert_eq!(user.post(&interrupt, &json!({})).await.json(), json!({"interrupted": true}));
    let rest = events.rest().await;
    let (name, ended) = rest.last().unwrap();
    assert_eq!(
        (name.as_str(), &ended["status"], &ended["state"]),
        ("ended", &json!("interrupted"), &json!("preserved"))
    );
    assert_eq!(plain(&code(&user, &id, "kept").await), "5");
    assert!(last_record(&fixture, &id, "context.interrupt").await.is_some());
}

async fn timeout_reports_the_state_of_the_variables(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    code(&user, &id, "kept = 5").await;
    let late = run(&user, &id, json!({"code": "while True: pass", "timeout": "300ms"})).await;
    assert_eq!((&late["status"], &late["state"]), (&json!("timed_out"), &json!("preserved")), "{late}");
    assert_eq!(plain(&code(&user, &id, "kept").await), "5");
    let deaf = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: pass";
    let late = run(&user, &id, json!({"code": deaf, "timeout": "300ms"})).await;
    assert_eq!((&late["status"], &late["state"]), (&json!("timed_out"), &json!("lost")), "{late}");
    assert!(late["reason"].is_string(), "{late}");
    let fresh = code(&user, &id, "'kept' in dir()").await;
    assert_eq!(plain(&fresh), "False");
    assert!(fresh["rebuilt"].is_string(), "{fresh}");
}

async fn ended_interpreter_is_restarted(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let left = code(&user, &id, "import os; os._exit(3)").await;
    assert_eq!(
        (&left["status"], &left["state"], &left["exit_code"]),
        (&json!("died"), &json!("lost"), &json!(3)),
        "{left}"
    );
    assert!(code(&user, &id, "1").await["rebuilt"].is_string());
    let killed = code(&user, &id, "import os; os.kill(os.getpid(), 9)").await;
    assert_eq!((&killed["state"], &killed["signal"]), (&json!("lost"), &json!("SIGKILL")), "{killed}");
    let listed = user.get(&format!("/v1/sandboxes/{id}/contexts")).await.json();
    assert_eq!(listed["contexts"][0]["state"], "lost");
    let full = code(&user, &id, "b = bytearray(2_000_000_000)\nb[::4096] = b'x' * len(b[::4096])").await;
    assert_ne!(full["status"], "ok", "{full}");
    if full["state"] == "lost" {
        assert_eq!(full["cause"], "out_of_memory", "{full}");
    }
    assert_eq!(plain(&code(&user, &id, "40 + 2").await), "42");
}

async fn questions_are_answered(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let answer = format!("/v1/sandboxes/{id}/contexts/python/answer");
    let body = json!({"code": "name = input('name? ')\nf'hello {name}'", "allow_input": true});
    let mut events = user.events(streamed(&user, &id, &body)).await;
    let execution = events.next().await.unwrap().1["execution"].as_u64().unwrap();
    let asked = loop {
        let (name, data) = events.next().await.unwrap();
        if name == "input_requested" {
            break data;
        }
    };
    assert_eq!(asked, json!({"prompt": "name? ", "password": false}));
    let wrong = json!({"execution": execution + 1, "value": "x"});
    user.post(&answer, &wrong).await.refused(409, "failed_precondition", None);
    assert_eq!(user.post(&answer, &json!({"execution": execution, "value": "Ada"})).await.status, 204);
    let rest = events.rest().await;
    let result = rest.iter().find(|(name, _)| name == "result").unwrap();
    assert_eq!(result.1["data"]["text/plain"], "'hello Ada'");
}

async fn functions_are_answered(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let answer = format!("/v1/sandboxes/{id}/contexts/python/answer");
    let text = "import belljar\nfound = belljar.tools.lookup(city='Köln')\ntry:\n    belljar.tools.lookup()\nexcept belljar.ToolError as error:\n    why = str(error)\n(found, why)";
    let body = json!({"code": text, "functions": ["lookup"], "max_tool_calls": 2});
    let path = format!("/v1/sandboxes/{id}/code");
    for (wrong, field) in [
        (json!({"code": "1", "functions": ["f"], "steps": false}), "steps"),
        (json!({"code": "1", "steps": true}), "steps"),
        (json!({"code": "1", "functions": ["f"], "call_timeout": "2h"}), "call_timeout"),
        (json!({"code": "1", "functions": ["a-b"]}), "functions"),
        (json!({"code": "1", "max_tool_calls": 5}), "max_tool_calls"),
        (json!({"code": "1", "tools": ["calc"], "max_tool_calls": 1001}), "max_tool_calls"),
    ] {
        user.post(&path, &wrong).await.refused(400, "invalid_field", Some(field));
    }
    user.post(&path, &json!({"code": "1", "tools": ["nosuch"]})).await.refused(404, "tool_not_found", None);
    let mut events = user.events(streamed(&user, &id, &body)).await;
    let execution = events.next().await.unwrap().1["execution"].as_u64().unwrap();
    let called = events.next().await.unwrap();
    assert_eq!(called.0, "tool_called");
    assert_eq!(called.1, json!({"call": 1, "name": "lookup", "arguments": {"city": "Köln"}}));
    for (wrong, field) in [
        (json!({"execution": execution, "call": 1}), "result"),
        (json!({"execution": execution, "call": 0, "result": 1}), "call"),
        (json!({"execution": execution, "call": 1, "result": 1, "error": "x"}), "error"),
        (json!({"execution": execution, "call": 1, "result": 1, "value": "x"}), "value"),
        (json!({"execution": execution, "result": 1}), "result"),
        (json!({"execution": execution, "call": 1, "result": "x".repeat(1 << 20)}), "result"),
    ] {
        user.post(&answer, &wrong).await.refused(400, "invalid_field", Some(field));
    }
    let other = json!({"execution": execution, "call": 2, "result": 1});
    user.post(&answer, &other).await.refused(409, "failed_precondition", None);
    let first = json!({"execution": execution, "call": 1, "result": {"a": 18_446_744_073_709_551_615_u64, "z": null}});
    assert_eq!(user.post(&answer, &first).await.status, 204);
    while events.next().await.unwrap().0 != "tool_called" {}
    let second = json!({"execution": execution, "call": 2, "error": "no city"});
    assert_eq!(user.post(&answer, &second).await.status, 204);
    let rest = events.rest().await;
    let result = rest.iter().find(|(name, _)| name == "result").unwrap();
    assert_eq!(result.1["data"]["text/plain"], "({'a': 18446744073709551615, 'z': None}, 'no city')");
}

/// The whole response is one step, and so is a stream that asks for it.
async fn calls_end_steps(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let text = "import belljar\nprint('one')\nfound = belljar.tools.lookup(city='Köln')\nprint('two')\n(found, belljar.tools.lookup())";
    let path = format!("/v1/sandboxes/{id}/code");
    let on = format!("{path}/continue");
    let results =
        |call: &Value, result: Value| json!({"tool_results": [{"call_id": call["id"], "result": result}]});
    let step = run(&user, &id, json!({"code": text, "functions": ["lookup"], "call_timeout": "5m"})).await;
    assert_eq!((&step["status"], &step["context"]), (&json!("tool_calls"), &json!("python")), "{step}");
    let call = &step["tool_calls"][0];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("lookup"), &json!({"city": "Köln"})));
    let info = user.get(&format!("/v1/sandboxes/{id}")).await.json();
    assert_eq!((&info["state"], &info["held_by"]), (&json!("paused"), &call["id"]));
    // What is no answer to it, or not of its key, leaves it as it is.
    for (wrong, field) in [
        (json!({}), "tool_results"),
        (json!({"tool_results": []}), "tool_results"),
        (json!({"tool_results": [{"call_id": call["id"]}]}), "tool_results"),
        (json!({"tool_results": [{"call_id": call["id"], "result": 1, "error": "x"}]}), "tool_results"),
        (json!({"tool_results": [{"call_id": call["id"], "result": "x".repeat(1 << 20)}]}), "tool_results"),
        (json!({"tool_results": [{"call_id": call["id"], "output": 1}]}), "tool_results[0].output"),
    ] {
        user.post(&on, &wrong).await.refused(400, "invalid_field", Some(field));
    }
    let other = fixture.client("default", Role::User).await;
    other.post(&on, &results(call, json!(1))).await.refused(404, "call_not_found", None);
    let unknown = json!({"id": "call_00112233445566778899aabbccddeeff_1"});
    user.post(&on, &results(&unknown, json!(1))).await.refused(409, "call_closed", None);
    user.post(&on, &results(&json!({"id": "x"}), json!(1))).await.refused(404, "call_not_found", None);
    // A result of 1 GB is refused by its announced length, before it is read.
    let huge = user.request("POST", &on).header("content-type", "application/json");
    let never = futures::stream::pending::<std::io::Result<bytes::Bytes>>();
    let huge = huge.header("content-length", 1 << 30).body(Body::from_stream(never)).unwrap();
    user.send_request(huge).await.refused(413, "too_large", None);
    // The rest as a stream, which ends with the next step.
    let request = user.request("POST", &on).header("content-type", "application/json");
    let request = request.header("accept", "text/event-stream");
    let body = Body::from(results(call, json!({"a": 18_446_744_073_709_551_615_u64})).to_string());
    let rest = user.events(request.body(body).unwrap()).await.rest().await;
    let names: Vec<_> = rest.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["stdout", "tool_calls"], "{rest:?}");
    user.post(&on, &results(call, json!(1))).await.refused(409, "call_closed", None);
    let last = &rest[1].1["tool_calls"][0];
    let done = user.post(&on, &results(last, Value::Null)).await.json();
    assert_eq!((&done["status"], &done["stdout"]["data"]), (&json!("ok"), &json!("one\ntwo\n")), "{done}");
    assert_eq!(plain(&done), "({'a': 18446744073709551615}, None)");
    // A stream from the beginning.
    let body = json!({"code": text, "functions": ["lookup"], "steps": true});
    let events = user.events(streamed(&user, &id, &body)).await.rest().await;
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["started", "stdout", "tool_calls"], "{events:?}");
    let error =
        json!({"tool_results": [{"call_id": events[2].1["tool_calls"][0]["id"], "error": "no city"}]});
    let done = user.post(&on, &error).await.json();
    assert_eq!((&done["status"], &done["error"]["value"]), (&json!("error"), &json!("no city")), "{done}");
}

async fn client_disconnect_is_audited(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    let leave = async |on_disconnect: &str| {
        let text = "import time\nprint('in', flush=True)\nfor _ in range(60): time.sleep(0.02)\nopen('done', 'w').close()";
        let body = json!({"code": text, "on_disconnect": on_disconnect});
        let mut events = user.events(streamed(&user, &id, &body)).await;
        while events.next().await.unwrap().0 != "stdout" {}
    };
    leave("kill").await;
    until("the record of what was abandoned", || async {
        last_record(&fixture, &id, "code")
            .await
            .is_some_and(|record| record["details"]["outcome"] == "abandoned")
    })
    .await;
    assert_eq!(
        code(&user, &id, "import os; os.path.exists('done')").await["results"][0]["data"]["text/plain"],
        "False"
    );
    leave("continue").await;
    until("its end", || async { sh(&user, &id, "ls").await["stdout"]["data"] == "done\n" }).await;
    until("the record of its end", || async {
        last_record(&fixture, &id, "code").await.is_some_and(|record| {
            record["details"]["outcome"] == "ok" && record["details"]["execution"] == "3"
        })
    })
    .await;
}

async fn idempotent_code_runs_once(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    code(&user, &id, "runs = 0").await;
    let body = json!({"code": "runs += 1\nprint('out')\ndisplay(1)\nprint('more')\nruns"});
    let request = |accept: &str| {
        let request =
            user.request("POST", &format!("/v1/sandboxes/{id}/code")).header("idempotency-key", "k1");
        let request = request.header("content-type", "application/json").header("accept", accept);
        request.body(Body::from(body.to_string())).unwrap()
    };
    let first = user.send_request(request("application/json")).await;
    let again = user.send_request(request("application/json")).await;
    assert_eq!((first.status.as_u16(), first.json()), (200, again.json()));
    let after = |index: usize| first.json()["results"][index]["after"].clone();
    assert_eq!((after(0), after(1)), (json!({"stdout": 4, "stderr": 0}), json!({"stdout": 9, "stderr": 0})));
    let events = user.events(request("text/event-stream")).await.rest().await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["stdout", "result", "stdout", "result", "ended"], "{events:?}");
    assert_eq!((&events[2].1["offset"], &events[2].1["data"]), (&json!(4), &json!("more\n")));
    assert_eq!(plain(&code(&user, &id, "runs").await), "1");
}

async fn pause_preserves_variables(fixture: Fixture) {
    let Some((user, id)) = python(&fixture).await else { return };
    code(&user, &id, "kept = 5").await;
    let paused = user.post(&format!("/v1/sandboxes/{id}/pause"), &json!({})).await;
    assert_eq!(paused.status, 200, "{paused:?}");
    // Using it resumes it.
    assert_eq!(plain(&code(&user, &id, "kept + 1").await), "6");
    assert_eq!(user.get(&format!("/v1/sandboxes/{id}")).await.json()["state"], "running");
}

async fn bash_has_contexts(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let done = run(&user, &id, json!({"code": "cd /tmp; N=41", "language": "bash"})).await;
    assert_eq!((&done["status"], &done["context"]), (&json!("ok"), &json!("bash")), "{done}");
    let done = run(&user, &id, json!({"code": "echo $PWD $((N + 1))", "context": "bash"})).await;
    assert_eq!(done["stdout"]["data"], "/tmp 42\n");
    let failed = run(&user, &id, json!({"code": "false", "language": "bash"})).await;
    assert_eq!((&failed["status"], &failed["exit_code"]), (&json!("error"), &json!(1)), "{failed}");
}
