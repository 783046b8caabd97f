//! The Model Context Protocol over HTTP.

use axum::body::Body;
use belljar_api::ApiConfig;
use belljar_keeper::{Caller, NewKey, Quotas};
use belljar_model::{Approval, Role};
use belljar_testing::wait::until;
use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::fixture::{Fixture, cases, config, sandbox};

cases![
    tools_have_schemas_and_annotations,
    both_revisions_are_served,
    every_tool_works,
    state_is_kept_in_a_default_sandbox,
    default_sandboxes_have_an_idle_timeout,
    labels_keep_default_sandboxes_apart,
    files_are_read_in_parts,
    long_output_is_cut,
    pictures_and_charts_are_content,
    functions_end_steps,
    output_is_reported_as_progress,
    closing_the_response_ends_the_call,
    bad_arguments_are_answers,
    bad_messages_are_refused,
    access_is_that_of_the_key,
];

const REVISION: &str = "2026-07-28";

pub(crate) fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// Starts a request with the headers of the newest revision.
pub(crate) fn request(client: &Client, path: &str, method: &str, name: &str) -> http::request::Builder {
    let request = client.request("POST", path).header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", REVISION).header("mcp-method", method);
    if name.is_empty() { request } else { request.header("mcp-name", name) }
}

pub(crate) fn message(method: &str, mut params: Value) -> String {
    if params["_meta"].is_null() {
        params["_meta"] = meta();
    }
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

async fn post(client: &Client, path: &str, method: &str, params: Value) -> Answer {
    let name = params["name"].as_str().unwrap_or_default().to_owned();
    client.send(request(client, path, method, &name), message(method, params)).await
}

/// Calls a tool, and returns the result.
pub(crate) async fn call_at(client: &Client, path: &str, name: &str, arguments: Value) -> Value {
    let answer = post(client, path, "tools/call", json!({"name": name, "arguments": arguments})).await;
    let message = answer.json();
    assert_eq!((answer.status.as_u16(), &message["id"]), (200, &json!(1)), "{message}");
    assert_eq!(message["result"]["resultType"], "complete", "{message}");
    message["result"].clone()
}

async fn call(client: &Client, name: &str, arguments: Value) -> Value {
    call_at(client, "/mcp", name, arguments).await
}

/// Calls a tool that succeeds, and returns its structured answer.
async fn good(client: &Client, name: &str, arguments: Value) -> Value {
    let result = call(client, name, arguments).await;
    assert_eq!(result["isError"], false, "{name}: {result}");
    result["structuredContent"].clone()
}

pub(crate) fn texts(result: &Value) -> String {
    let blocks = result["content"].as_array().unwrap().iter();
    blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

pub(crate) async fn tools(client: &Client, path: &str) -> Vec<Value> {
    let answer = post(client, path, "tools/list", json!({})).await.json();
    assert_eq!(answer["result"]["cacheScope"], "private", "{answer}");
    answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

async fn tools_have_schemas_and_annotations(fixture: Fixture) {
    let user = fixture.user().await;
    let all = tools(&user, "/mcp").await;
    let expected = [
        "run_code",
        "run_command",
        "read_file",
        "write_file",
        "list_directory",
        "create_sandbox",
        "list_sandboxes",
        "kill_sandbox",
        "publish_port",
    ];
    assert_eq!(names(&all), expected);
    for tool in &all {
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object", "{tool}");
        }
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        assert!(tool["title"].is_string() && tool["description"].is_string(), "{tool}");
    }
    let hint = |tools: &[Value], name: &str, hint: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        tool["annotations"][hint].clone()
    };
    for (name, reads, destroys, open) in [
        ("run_code", false, true, true),
        ("run_command", false, true, true),
        ("read_file", true, false, false),
        ("write_file", false, true, false),
        ("create_sandbox", false, false, false),
        ("kill_sandbox", false, true, false),
    ] {
        let found = ["readOnlyHint", "destructiveHint", "openWorldHint"].map(|one| hint(&all, name, one));
        assert_eq!(found, [reads, destroys, open].map(Value::from), "{name}");
    }
    // A key whose sandboxes reach nothing has a closed world.
    let quotas = Quotas { network: Some(belljar_model::NetworkMode::Disabled.into()), ..Quotas::default() };
    let key = NewKey {
        name: "closed".to_owned(),
        role: Role::User,
        tenant: "default".to_owned(),
        expires: None,
        quotas,
        owner: None,
        approval: Approval::Never,
    };
    let key = fixture.keeper.create_key(&Caller::operator("test", "request"), key).await.unwrap().key;
    let closed = tools(&user.with_key(&key), "/mcp").await;
    assert_eq!(hint(&closed, "run_code", "openWorldHint"), false);
}

async fn both_revisions_are_served(fixture: Fixture) {
    let user = fixture.user().await;
    let found = post(&user, "/mcp", "server/discover", json!({})).await.json();
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!(REVISION)) && versions.contains(&json!("2025-11-25")), "{found}");
    assert_eq!(found["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "belljar");
    assert!(found["result"]["instructions"].as_str().unwrap().contains("create_sandbox"), "{found}");
    let claude = post(&user, "/mcp?tools=claude", "server/discover", json!({})).await.json();
    let instructions = claude["result"]["instructions"].as_str().unwrap();
    assert!(instructions.contains("bash") && !instructions.contains("create_sandbox"), "{claude}");
    // The older one begins with a handshake, and has no metadata in its requests.
    let old = |method: &str, params: Value| {
        let request = user.request("POST", "/mcp").header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        let message = json!({"jsonrpc": "2.0", "id": "a", "method": method, "params": params});
        (request, message.to_string())
    };
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let (request, body) = old("initialize", hello);
    let answer = user.send(request, body).await;
    let result = &answer.json()["result"];
    assert_eq!(
        (&result["protocolVersion"], &result["serverInfo"]["name"]),
        (&json!("2025-11-25"), &json!("belljar"))
    );
    assert!(result["instructions"].as_str().unwrap().contains("create_sandbox"), "{result}");
    assert_eq!(answer.header("mcp-session-id"), "");
    let (request, body) = old("tools/call", json!({"name": "list_sandboxes"}));
    let answer = user.send(request.header("mcp-protocol-version", "2025-11-25"), body).await.json();
    assert_eq!(answer["result"]["structuredContent"], json!({"sandboxes": []}), "{answer}");
    assert_eq!((&answer["id"], &answer["result"]["resultType"]), (&json!("a"), &Value::Null));
}

async fn every_tool_works(fixture: Fixture) {
    let user = fixture.user().await;
    let made = good(
        &user,
        "create_sandbox",
        json!({"name": "box", "timeout": 600, "env": {"A": "b"}, "memory": "300m", "network": {"mode": "disabled"}}),
    )
    .await;
    let id = made["sandbox"].as_str().unwrap();
    assert_eq!(
        (&made["name"], &made["state"], &made["network"]),
        (&json!("box"), &json!("running"), &json!("disabled"))
    );
    let info = user.get(&format!("/v1/sandboxes/{id}")).await.json();
    assert_eq!(info["limits"]["memory_bytes"], 300 << 20, "{info}");
    let plain = good(&user, "create_sandbox", json!({"network": "disabled"})).await;
    assert_eq!(plain["network"], "disabled");
    good(&user, "kill_sandbox", json!({"sandbox": plain["sandbox"]})).await;
    let ran = good(
        &user,
        "run_command",
        json!({"sandbox": "box", "command": "echo $A; cat; pwd", "stdin": "in\n", "cwd": "/tmp"}),
    )
    .await;
    assert_eq!(
        (&ran["stdout"], &ran["exit_code"], &ran["outcome"]),
        (&json!("b\nin\n/tmp\n"), &json!(0), &json!("exited"))
    );
    let ran = call(&user, "run_command", json!({"sandbox": id, "command": "echo no >&2; exit 3"})).await;
    assert_eq!((&ran["isError"], &ran["structuredContent"]["exit_code"]), (&json!(true), &json!(3)));
    assert_eq!(texts(&ran), "no\n[exit code 3]");
    let late = call(&user, "run_command", json!({"sandbox": id, "command": "sleep 600", "timeout": 1})).await;
    assert_eq!(late["structuredContent"]["outcome"], "timed_out");
    let code =
        good(&user, "run_code", json!({"sandbox": id, "language": "bash", "code": "echo $((6*7))"})).await;
    assert_eq!(
        (&code["stdout"], &code["status"], &code["language"]),
        (&json!("42\n"), &json!("ok"), &json!("bash"))
    );
    for (code, status, exit_code) in [("(exit 3)", "error", 3), ("exit 4", "died", 4)] {
        let ran = call(&user, "run_code", json!({"sandbox": id, "language": "bash", "code": code})).await;
        let output = &ran["structuredContent"];
        assert_eq!((&output["status"], &output["exit_code"]), (&json!(status), &json!(exit_code)), "{ran}");
        assert!(texts(&ran).starts_with(&format!("[exit code {exit_code}]")), "{ran}");
    }
    let wrote = good(&user, "write_file", json!({"sandbox": id, "path": "a/b.txt", "content": "ü"})).await;
    assert_eq!(wrote["size"], 2);
    let wrote = good(
        &user,
        "write_file",
        json!({"sandbox": id, "path": "a/b.txt", "content": "/w==", "encoding": "base64", "append": true}),
    )
    .await;
    assert_eq!(wrote["size"], 3);
    let read = good(&user, "read_file", json!({"sandbox": id, "path": "a/b.txt"})).await;
    assert_eq!(
        (&read["encoding"], &read["content"], &read["bytes"]),
        (&json!("base64"), &json!("w7z/"), &json!(3))
    );
    let listed = good(&user, "list_directory", json!({"sandbox": id, "depth": 2})).await;
    let entry = |path: &str| {
        listed["entries"].as_array().unwrap().iter().find(|entry| entry["path"] == path).cloned()
    };
    assert_eq!(entry("a").unwrap()["kind"], "directory", "{listed}");
    assert_eq!(entry("a/b.txt"), Some(json!({"path": "a/b.txt", "kind": "file", "size": 3})), "{listed}");
    let port = good(&user, "publish_port", json!({"sandbox": "box", "port": 8000, "public": true})).await;
    assert_eq!(port["url"], format!("http://8000-{id}.box.test:{}/", user.address.port()));
    let listed = good(&user, "list_sandboxes", json!({"limit": 5})).await;
    assert_eq!(
        (&listed["sandboxes"][0]["sandbox"], &listed["sandboxes"][0]["ports"]),
        (&json!(id), &json!([8000]))
    );
    good(&user, "kill_sandbox", json!({"sandbox": id})).await;
    let gone = call(&user, "read_file", json!({"sandbox": id, "path": "a"})).await;
    assert!(texts(&gone).starts_with("sandbox_gone: ") && gone["isError"] == true, "{gone}");
    // The same path as REST's: the audit log has all of it.
    let admin = fixture.client("default", Role::Admin).await;
    let records = admin.get("/v1/audit?limit=100").await.json();
    for action in
        ["sandbox.create", "exec", "code", "file.write", "file.read", "port.publish", "sandbox.kill"]
    {
        let found = records["records"].as_array().unwrap().iter().any(|record| record["action"] == action);
        assert!(found, "{action}: {records}");
    }
}

async fn state_is_kept_in_a_default_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let first = call(&user, "run_code", json!({"language": "bash", "code": "x=5"})).await;
    let structured = &first["structuredContent"];
    let id = structured["sandbox"].as_str().unwrap();
    assert_eq!(structured["sandbox_created"], true);
    assert!(texts(&first).ends_with(&format!("[sandbox {id}, new and kept for further calls]")), "{first}");
    let second = call(&user, "run_code", json!({"language": "bash", "code": "echo $x"})).await;
    assert_eq!(
        (&second["structuredContent"]["stdout"], &second["structuredContent"]["sandbox_created"]),
        (&json!("5\n"), &json!(false))
    );
    assert_eq!(texts(&second), format!("5\n[sandbox {id}]"));
    // A named sandbox is not repeated in the text.
    let third = call(&user, "run_code", json!({"language": "bash", "code": "echo $x", "sandbox": id})).await;
    assert_eq!(texts(&third), "5");
    // Another key has another one.
    let other = fixture.user().await;
    let other = good(&other, "run_command", json!({"command": "true"})).await;
    assert_ne!(other["sandbox"], id);
    // The token of a sandbox is for that one.
    let token = user.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await.json();
    let holder = user.with_key(token["token"].as_str().unwrap());
    let own = good(&holder, "run_command", json!({"command": "true"})).await;
    assert_eq!(own["sandbox"], id);
}

async fn default_sandboxes_have_an_idle_timeout(fixture: Fixture) {
    let user = fixture.user().await;
    let id =
        good(&user, "run_command", json!({"command": "true"})).await["sandbox"].as_str().unwrap().to_owned();
    let info = user.get(&format!("/v1/sandboxes/{id}")).await.json();
    assert_eq!(info["idle_timeout_s"], 1800.0, "{info}");
    assert!(info["name"].as_str().unwrap().starts_with("mcp-key-"), "{info}");
}

async fn labels_keep_default_sandboxes_apart(fixture: Fixture) {
    let user = fixture.user().await;
    let mut ids = Vec::new();
    for path in ["/mcp", "/mcp?sandbox=one", "/mcp?sandbox=two", "/mcp?sandbox=one"] {
        let result = call_at(&user, path, "run_command", json!({"command": "true"})).await;
        ids.push(result["structuredContent"]["sandbox"].clone());
    }
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[1] == ids[3], "{ids:?}");
}

async fn files_are_read_in_parts(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let line = "printf 'a%.0s' $(seq 1048576) > big; printf ü >> big; printf 12345 > small; : > empty";
    good(&user, "run_command", json!({"sandbox": id, "command": line})).await;
    let read = async |path: &str, offset: u64, limit: Option<u64>| {
        good(&user, "read_file", json!({"sandbox": id, "path": path, "offset": offset, "limit": limit})).await
    };
    let first = read("big", 0, None).await;
    assert_eq!(
        (&first["size"], &first["bytes"], &first["truncated"]),
        (&json!(1_048_578), &json!(1_048_576), &json!(true))
    );
    let rest = read("big", 1_048_576, None).await;
    assert_eq!((&rest["content"], &rest["truncated"]), (&json!("ü"), &json!(false)));
    let part = read("small", 1, Some(2)).await;
    assert_eq!(
        (&part["content"], &part["offset"], &part["truncated"]),
        (&json!("23"), &json!(1), &json!(true))
    );
    assert_eq!(read("empty", 0, None).await["content"], "");
    // The system knows no length of such files.
    assert!(read("/proc/self/status", 0, None).await["content"].as_str().unwrap().contains("Name:"));
    let beyond = call(&user, "read_file", json!({"sandbox": id, "path": "small", "limit": 1_048_577})).await;
    assert_eq!(texts(&beyond), "invalid_field: limit: 1048577 is not allowed; give 1 to 1048576");
}

async fn long_output_is_cut(fixture: Fixture) {
    let user = fixture.user().await;
    let done = good(&user, "run_command", json!({"command": "echo begin; seq 100000; echo end"})).await;
    let text = done["stdout"].as_str().unwrap();
    assert!(text.len() < 66_000 && text.starts_with("begin\n") && text.ends_with("end\n"), "{}", text.len());
    let middle = text.lines().find(|line| line.starts_with('[')).unwrap();
    assert_eq!(middle, format!("[{} bytes left out]", 588_905 - 65_536));
}

/// A picture as IPython shows it, and a chart.
async fn pictures_and_charts_are_content(fixture: Fixture) {
    if !crate::code::has_ipython() {
        return;
    }
    let user = fixture.user().await;
    let code = "
from IPython.display import display
import base64
class Both:
    def _repr_mimebundle_(self, **kwargs):
        png = base64.b64encode(b'\\x89PNG\\r\\n\\x1a\\n' + b'\\0' * 8).decode()
        return {'image/png': png, 'application/vnd.belljar.chart.v1+json': {'type': 'line'}, 'text/plain': 'Both'}
print('before')
display(Both())
print('after')
6 * 7
";
    let done = call(&user, "run_code", json!({ "code": code })).await;
    let types: Vec<_> =
        done["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["text", "resource", "image", "text", "text"], "{done}");
    assert_eq!(
        (&done["content"][0]["text"], &done["content"][3]["text"]),
        (&json!("before\nBoth"), &json!("after\n42"))
    );
    let results = &done["structuredContent"]["results"];
    assert_eq!(results[0]["json"]["application/vnd.belljar.chart.v1+json"]["type"], "line");
    assert_eq!((&results[1]["main"], &results[1]["text"]), (&json!(true), &json!("42")));
    let raised = call(&user, "run_code", json!({"code": "1/0"})).await;
    assert_eq!(
        (&raised["isError"], &raised["structuredContent"]["error"]["name"]),
        (&json!(true), &json!("ZeroDivisionError"))
    );
    assert!(texts(&raised).contains("ZeroDivisionError: division by zero"), "{raised}");
}

async fn functions_end_steps(fixture: Fixture) {
    if !crate::code::has_ipython() {
        return;
    }
    let user = fixture.user().await;
    let code = "import belljar\n[belljar.tools.lookup(city=city)['people'] for city in ['Paris', 'Lyon']]";
    let step = good(&user, "run_code", json!({"code": code, "functions": ["lookup"]})).await;
    assert_eq!((&step["status"], &step["language"]), (&json!("tool_calls"), &json!("python")), "{step}");
    let results = |step: &Value, result: Value| json!({"tool_results": [{"call_id": step["tool_calls"][0]["id"], "result": result}]});
    assert_eq!(step["tool_calls"][0]["arguments"], json!({"city": "Paris"}));
    for (wrong, said) in [
        (json!({"tool_results": []}), "invalid_field: tool_results: it is empty"),
        (json!({"tool_results": [{"call_id": "x", "result": 1}]}), "call_not_found: "),
        (
            json!({"tool_results": [], "code": "1"}),
            "invalid_field: tool_results: the code goes on as it began",
        ),
        (json!({"tool_results": [{"call_id": "x"}]}), "invalid_field: tool_results: give either"),
    ] {
        let refused = call(&user, "run_code", wrong).await;
        assert!(refused["isError"] == true && texts(&refused).starts_with(said), "{refused}");
    }
    // Whoever has forgotten the results learns what to do.
    let id = step["tool_calls"][0]["id"].as_str().unwrap();
    let refused = call(&user, "run_command", json!({"command": "true"})).await;
    let said = texts(&refused);
    assert!(
        said.starts_with("wrong_state: ")
            && said.contains(&format!("the call {id} of its code with tool_results")),
        "{said}"
    );
    let other = fixture.client("default", Role::User).await;
    let refused = call(&other, "run_code", results(&step, json!(1))).await;
    assert!(texts(&refused).starts_with("call_not_found: "), "{refused}");
    let answered = call(&user, "run_code", results(&step, json!({"people": 2.1}))).await;
    assert!(texts(&answered).contains("lookup({\"city\":\"Lyon\"})"), "{answered}");
    let next = answered["structuredContent"].clone();
    let refused = call(&user, "run_code", results(&step, json!({"people": 2.1}))).await;
    assert!(texts(&refused).starts_with("call_closed: "), "{refused}");
    let done = good(&user, "run_code", results(&next, json!({"people": 0.5}))).await;
    assert_eq!(
        (&done["status"], &done["results"][0]["text"]),
        (&json!("ok"), &json!("[2.1, 0.5]")),
        "{done}"
    );
    assert_eq!(done["sandbox"], step["sandbox"]);
    for (wrong, said) in [
        (json!({"code": "1", "call_timeout": 5}), "invalid_field: call_timeout: it is the time for results"),
        (json!({"code": "1", "functions": ["f"], "call_timeout": 0}), "invalid_field: call_timeout: "),
        (json!({"code": "1", "functions": ["f"], "call_timeout": 3601}), "invalid_field: call_timeout: "),
    ] {
        let refused = call(&user, "run_code", wrong).await;
        assert!(refused["isError"] == true && texts(&refused).starts_with(said), "{refused}");
    }
    // A function that fails is an error in the code.
    let timed = json!({"code": code, "functions": ["lookup"], "call_timeout": 30});
    let step = good(&user, "run_code", timed).await;
    let expires_at: jiff::Timestamp = step["expires_at"].as_str().unwrap().parse().unwrap();
    assert!(expires_at.duration_since(jiff::Timestamp::now()).as_secs() <= 30, "{step}");
    let failed = json!({"tool_results": [{"call_id": step["tool_calls"][0]["id"], "error": "no such city"}]});
    let raised = call(&user, "run_code", failed).await;
    assert_eq!(raised["structuredContent"]["error"]["value"], "no such city", "{raised}");
}

async fn output_is_reported_as_progress(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    for (name, arguments) in [
        (
            "run_command",
            json!({"sandbox": id, "command": "echo one; until [ -e go ]; do sleep 0.05; done; echo two"}),
        ),
        (
            "run_code",
            json!({"sandbox": id, "language": "bash", "code": "echo one; until [ -e go ]; do sleep 0.05; done; echo two"}),
        ),
    ] {
        let mut meta = meta();
        meta["progressToken"] = json!("t1");
        let body = message("tools/call", json!({"name": name, "arguments": arguments, "_meta": meta}));
        let answer = user.open(request(&user, "/mcp", "tools/call", name).body(body.into()).unwrap()).await;
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["x-accel-buffering"], "no");
        let mut body = Body::new(answer.into_body()).into_data_stream();
        let mut text = String::new();
        // The first one arrives while the program waits.
        while !text.contains("one") {
            text.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
        }
        user.sh(&id, "touch go").await;
        while let Some(piece) = body.next().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        user.sh(&id, "rm go").await;
        let messages: Vec<Value> = text
            .lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .filter_map(|data| serde_json::from_str(data).ok())
            .collect();
        let (last, progress) = messages.split_last().unwrap();
        let progress: Vec<_> = progress.iter().map(|message| &message["params"]).collect();
        assert!(progress.len() >= 2, "{messages:?}");
        for (index, params) in progress.iter().enumerate() {
            assert_eq!(
                (&params["progressToken"], params["progress"].as_f64()),
                (&json!("t1"), Some(index as f64 + 1.0))
            );
        }
        assert_eq!(progress[0]["message"], "one\n");
        assert_eq!(last["result"]["structuredContent"]["stdout"], "one\ntwo\n", "{last}");
    }
}

async fn closing_the_response_ends_the_call(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let is_running = async || user.exec(&id, "pgrep -f 'sleep 432[1]'").await["exit_code"] == 0;
    for progress in [false, true] {
        for (name, arguments) in [
            ("run_command", json!({"sandbox": id, "command": "sleep 4321; true"})),
            ("run_code", json!({"sandbox": id, "language": "bash", "code": "sleep 4321; true"})),
        ] {
            let mut meta = meta();
            if progress {
                meta["progressToken"] = json!(1);
            }
            let body = message("tools/call", json!({"name": name, "arguments": arguments, "_meta": meta}));
            let request = request(&user, "/mcp", "tools/call", name).body(body.into()).unwrap();
            let leaving = user.clone();
            let waiting = tokio::spawn(async move {
                let mut body = Body::new(leaving.open(request).await.into_body()).into_data_stream();
                while body.next().await.is_some() {}
            });
            until("it runs", is_running).await;
            waiting.abort();
            until("it is ended", async || !is_running().await).await;
        }
    }
}

async fn bad_arguments_are_answers(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    for (name, arguments, expected) in [
        ("run_code", json!({}), "invalid_field: code: missing field `code`"),
        ("run_code", json!({"code": 1}), "invalid_field: code: integer `1` is not allowed; give a text"),
        ("run_code", json!({"code": "", "lang": "x"}), "invalid_field: lang: unknown field `lang`"),
        (
            "run_code",
            json!({"code": "", "timeout": -1}),
            "invalid_field: timeout: integer `-1` is not allowed; give a whole number of seconds from 0",
        ),
        ("run_code", json!({"code": "a\0b", "sandbox": id}), "invalid_field: code: "),
        ("run_code", json!({"code": "", "language": "cobol", "sandbox": id}), "invalid_field: language: "),
        (
            "run_code",
            json!({"code": "", "sandbox": "nosuch"}),
            "sandbox_not_found: sandbox \"nosuch\" not found; list_sandboxes shows those that there are",
        ),
        ("run_code", json!({"code": "", "context": "c9", "sandbox": id}), "context_not_found: "),
        ("run_command", json!({"command": ""}), "invalid_field: command: "),
        ("run_command", json!({"command": "true", "env": {"A=": "x"}}), "invalid_field: env"),
        ("read_file", json!({"path": "nosuch", "sandbox": id}), "path_not_found: "),
        ("read_file", json!({"path": "/tmp", "sandbox": id}), "not_regular: "),
        ("read_file", json!({"path": ""}), "invalid_field: path: "),
        (
            "write_file",
            json!({"path": "a", "content": "?", "encoding": "base64"}),
            "invalid_field: content: it is not base64",
        ),
        (
            "write_file",
            json!({"path": "a", "content": "", "encoding": "latin1"}),
            "invalid_field: encoding: ",
        ),
        ("list_directory", json!({"depth": 17}), "invalid_field: depth: "),
        ("create_sandbox", json!({"template": "nosuch"}), "template_not_found: "),
        (
            "create_sandbox",
            json!({"template": "python:3.12"}),
            "template_not_found: template \"python:3.12\" not found; an image is named as image:python:3.12",
        ),
        (
            "create_sandbox",
            json!({"template": "image:python:3.12"}),
            "invalid_field: template: docker.io/library/python:3.12 has not been pulled: belljar image pull \
             docker.io/library/python:3.12",
        ),
        ("create_sandbox", json!({"network": {"presets": ["nosuch"]}}), "invalid_field: network.presets: "),
        ("create_sandbox", json!({"network": "nosuch"}), "invalid_field: network: \"nosuch\" is not allowed"),
        ("create_sandbox", json!({"network": 5}), "invalid_field: network: "),
        ("create_sandbox", json!({"memory": "1x"}), "invalid_field: "),
        ("kill_sandbox", json!({"sandbox": "nosuch"}), "sandbox_not_found: "),
        ("publish_port", json!({"port": 0}), "invalid_field: port: "),
        (
            "publish_port",
            json!({"port": 70_000}),
            "invalid_field: port: integer `70000` is not allowed; give a whole number from 0 to 65535",
        ),
        (
            "run_command",
            json!({"command": "true", "timeout": "1h"}),
            "invalid_field: timeout: string \"1h\" is not allowed; give a whole number of seconds from 0, such as 30",
        ),
    ] {
        let result = call(&user, name, arguments.clone()).await;
        assert_eq!(result["isError"], true, "{name} {arguments}: {result}");
        assert!(texts(&result).starts_with(expected), "{name} {arguments}: {result}");
    }
}

async fn bad_messages_are_refused(fixture: Fixture) {
    let user = fixture.user().await;
    let error = |answer: &Answer| {
        (answer.status.as_u16(), answer.json()["error"]["code"].as_i64().unwrap_or_default())
    };
    let answer = post(&user, "/mcp", "tools/call", json!({"name": "nosuch", "arguments": {}})).await;
    assert_eq!(answer.json()["error"]["code"], -32602, "{answer:?}");
    let reason = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(reason.starts_with("unknown tool \"nosuch\"; there are run_code, run_command, "), "{reason}");
    let answer = post(&user, "/mcp", "tools/nosuch", json!({})).await;
    assert_eq!(error(&answer), (404, -32601), "{answer:?}");
    let answer = post(&user, "/mcp", "tools/list", json!({"_meta": {"x": 1}})).await;
    assert_eq!(error(&answer), (400, -32602), "{answer:?}");
    // A known method with parameters of another form is no unknown one.
    for params in
        [json!({"name": "run_code", "inputResponses": []}), json!({"name": "run_code", "requestState": 5})]
    {
        let answer = post(&user, "/mcp", "tools/call", params).await;
        assert_eq!(error(&answer).1, -32602, "{answer:?}");
    }
    let send = async |method: &str, name: &str, body: String| {
        user.send(request(&user, "/mcp", method, name), body).await
    };
    let answer = send("tools/list", "", message("tools/call", json!({"name": "run_code"}))).await;
    assert_eq!(error(&answer), (400, -32020), "{answer:?}");
    let answer = send("tools/call", "run_command", message("tools/call", json!({"name": "run_code"}))).await;
    assert_eq!(error(&answer), (400, -32020), "{answer:?}");
    let body = message("tools/list", json!({})).replace(REVISION, "2999-01-01");
    let request = user.request("POST", "/mcp").header("content-type", "application/json");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", "2999-01-01").header("mcp-method", "tools/list");
    let answer = user.send(request, body).await;
    assert_eq!(error(&answer), (400, -32022), "{answer:?}");
    assert!(
        answer.json()["error"]["data"]["supported"].as_array().is_some_and(|all| !all.is_empty()),
        "{answer:?}"
    );
    let answer = send("tools/list", "", "{".to_owned()).await;
    assert_eq!(error(&answer), (400, -32700), "{answer:?}");
    // 10 MB of code are more than a message may have.
    let code = "x".repeat(10_000_000);
    let answer =
        post(&user, "/mcp", "tools/call", json!({"name": "run_code", "arguments": {"code": code}})).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["data"]["code"]), (413, &json!("too_large")));
    // 5 MB are not, but more than code may have.
    let code = "x".repeat(5_000_000);
    let result = call(&user, "run_code", json!({"code": code})).await;
    assert!(result["isError"] == true && texts(&result).starts_with("invalid_field: code: "), "{result}");
    // Each refusal is a message of the protocol.
    for (method, path, status) in [
        ("GET", "/mcp", 405),
        ("DELETE", "/mcp", 405),
        ("POST", "/mcp", 406),
        ("POST", "/mcp/x", 404),
        ("GET", "/mcp?tools=x", 400),
    ] {
        let answer = user.call(method, path).await;
        let body = answer.json();
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert!(
            body["jsonrpc"] == "2.0" && body["error"]["message"].is_string() && body.get("id").is_none(),
            "{body}"
        );
    }
}

async fn access_is_that_of_the_key(fixture: Fixture) {
    let answer = post(&fixture.stranger(), "/mcp", "tools/list", json!({})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["data"]["code"]),
        (401, &json!("unauthenticated"))
    );
    let user = fixture.user().await;
    let foreign = request(&user, "/mcp", "tools/list", "").header("origin", "https://evil.example");
    let answer = user.send(foreign, message("tools/list", json!({}))).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["data"]["code"]),
        (403, &json!("origin_not_allowed"))
    );
    let id = sandbox(&user).await;
    let other = fixture.client("other", Role::User).await;
    let result = call(&other, "run_command", json!({"sandbox": id, "command": "true"})).await;
    assert!(texts(&result).starts_with("sandbox_not_found: "), "{result}");
    let reader = fixture.client("default", Role::Read).await;
    let result = call(&reader, "run_command", json!({"sandbox": id, "command": "true"})).await;
    assert!(texts(&result).starts_with("forbidden: "), "{result}");
    assert_eq!(good(&reader, "list_sandboxes", json!({})).await["sandboxes"][0]["sandbox"], id);
    // The suite's fixtures have sessions, which nothing bounds.
    let admin = fixture.client("default", Role::Admin).await;
    for (client, status) in [(&user, 403), (&reader, 403), (&admin, 200)] {
        let answer = post(client, "/mcp?tools=conformance", "tools/list", json!({})).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    // Calls count as streams of the key.
    let bounded = fixture.beside(ApiConfig { max_streams_per_key: 1, ..config() }).await;
    let bounded = Client::new(bounded.address, user.key.as_deref());
    let long = message(
        "tools/call",
        json!({"name": "run_command", "arguments": {"sandbox": id, "command": "sleep 99"}}),
    );
    let long = request(&bounded, "/mcp", "tools/call", "run_command").body(long.into()).unwrap();
    let first = {
        let bounded = bounded.clone();
        tokio::spawn(async move { bounded.open(long).await })
    };
    until("the first call runs", async || user.exec(&id, "pgrep -f 'sleep 9[9]'").await["exit_code"] == 0)
        .await;
    let second = call(&bounded, "list_sandboxes", json!({})).await;
    assert!(texts(&second).starts_with("quota_exceeded: streams: "), "{second}");
    first.abort();
}
