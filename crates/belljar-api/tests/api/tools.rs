//! Stored tools, over REST and over MCP.

use belljar_model::Role;
use belljar_testing::wait::until;
use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture::{Fixture, cases};
use crate::mcp::{call_at, texts, tools};

cases![
    tools_have_versions,
    calls_are_within_the_tool,
    written_files_are_returned,
    sessions_are_kept,
    forbidden_calls_are_recorded,
    calls_can_be_tested,
    hints_are_for_callers,
    definitions_are_checked,
    tools_are_bounded,
    tools_belong_to_their_tenant,
    tools_are_offered_over_mcp,
    disconnect_ends_a_call,
    schemas_have_the_forms_of_vendors,
];

fn shell(name: &str) -> Value {
    json!({"name": name, "description": "Runs a script.", "languages": ["bash", "python"], "timeout": "20s"})
}

/// Stores a tool, and returns it.
async fn add(admin: &Client, tool: &Value) -> Value {
    let made = admin.post("/v1/tools", tool).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()
}

async fn run(client: &Client, tool: &str, arguments: Value) -> Value {
    let answer = client.post(&format!("/v1/tools/{tool}/call"), &arguments).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn admin(fixture: &Fixture) -> Client {
    fixture.client("default", Role::Admin).await
}

async fn tools_have_versions(fixture: Fixture) {
    let admin = admin(&fixture).await;
    let first = add(&admin, &shell("sh")).await;
    assert_eq!(
        (&first["version"], &first["current"], &first["timeout_s"]),
        (&json!(1), &json!(true), &json!(20.0))
    );
    // The policy is that of the template when the tool is stored.
    assert_eq!((&first["network"], &first["session"]), (&json!("disabled"), &json!(false)));
    admin.post("/v1/tools", &shell("sh")).await.refused(409, "name_taken", Some("name"));
    let changed = json!({"description": "New.", "languages": ["py"], "limits": {"memory": "64m"}});
    let second = admin.json("PUT", "/v1/tools/sh", &changed).await.json();
    assert_eq!((&second["version"], &second["languages"]), (&json!(2), &json!(["python"])), "{second}");
    assert_ne!(first["digest"], second["digest"]);
    // What changes nothing is no version.
    assert_eq!(admin.json("PUT", "/v1/tools/sh", &changed).await.json(), second);
    let old = admin.get("/v1/tools/sh@1").await.json();
    assert_eq!((&old["current"], &old["digest"]), (&json!(false), &first["digest"]));
    assert_eq!(admin.get("/v1/tools").await.json()["tools"], json!([second]));
    let user = fixture.user().await;
    let one = run(&user, "sh@1", json!({"code": "echo $((6*7))"})).await;
    assert_eq!(
        (&one["version"], &one["digest"], &one["stdout"]["data"]),
        (&json!(1), &first["digest"], &json!("42\n"))
    );
    // Numbers are not used again.
    assert_eq!(admin.delete("/v1/tools/sh@2").await.status, 204);
    let gone = user.post("/v1/tools/sh@2/call", &json!({"code": ""})).await;
    gone.refused(404, "tool_not_found", None);
    assert_eq!(gone.json()["detail"], "tool sh: version 2 not found; give sh@1");
    for other in ["sh@+1", "sh@01", "sh@"] {
        user.get(&format!("/v1/tools/{other}")).await.refused(404, "tool_not_found", None);
    }
    let third =
        admin.json("PUT", "/v1/tools/sh", &json!({"description": "d", "languages": ["bash"]})).await.json();
    assert_eq!(third["version"], 3);
    assert_eq!(admin.delete("/v1/tools/sh").await.status, 204);
    for (method, path) in [("GET", "/v1/tools/sh"), ("GET", "/v1/tools/sh@1"), ("DELETE", "/v1/tools/sh")] {
        admin.call(method, path).await.refused(404, "tool_not_found", None);
    }
    assert_eq!(add(&admin, &shell("sh")).await["version"], 4);
    let records = admin.get("/v1/audit?limit=100").await.json();
    for action in ["tool.create", "tool.update", "tool.remove", "tool.call"] {
        let found = records["records"].as_array().unwrap().iter().find(|record| record["action"] == action);
        assert_eq!(
            found.unwrap_or_else(|| panic!("{action}: {records}"))["details"]["tool"]
                .as_str()
                .map(|tool| &tool[..2]),
            Some("sh")
        );
    }
}

async fn calls_are_within_the_tool(fixture: Fixture) {
    let admin = admin(&fixture).await;
    add(&admin, &shell("sh")).await;
    let user = fixture.user().await;
    let result = run(&user, "sh", json!({"code": "echo out; echo err >&2; (exit 3)", "timeout": 10})).await;
    assert_eq!(
        (&result["success"], &result["outcome"], &result["session"]),
        (&json!(false), &json!("error"), &json!(false))
    );
    assert_eq!((&result["stdout"]["data"], &result["stderr"]["data"]), (&json!("out\n"), &json!("err\n")));
    // Its sandbox has ended with it.
    user.get(&format!("/v1/sandboxes/{}", result["sandbox"].as_str().unwrap())).await.refused(
        410,
        "sandbox_gone",
        None,
    );
    for (arguments, field, detail) in [
        (json!({}), "code", "missing field"),
        (json!({"code": "", "sandbox": "x"}), "sandbox", "unknown field"),
        (json!({"code": "", "network": "open"}), "network", "unknown field"),
        (
            json!({"code": "", "language": "ruby"}),
            "language",
            "\"ruby\" is not one of the tool's; give bash or python",
        ),
        (json!({"code": "", "timeout": 21}), "timeout", "21s is not allowed; the tool allows at most 20s"),
        (json!({"code": "", "timeout": 0}), "timeout", "0ns is not allowed"),
        (json!({"code": "", "files": {"../a": ""}}), "files", "\"../a\" is not allowed"),
        (json!({"code": "", "files": {"a": {"base64": "?"}}}), "files.a.base64", "it is not base64"),
        (json!({"code": "", "files": {"a": "x".repeat(1 << 20)}}), "files", "1 files of 1048577 bytes"),
        (json!({"code": "a\0"}), "code", ""),
    ] {
        let answer = user.post("/v1/tools/sh/call", &arguments).await;
        answer.refused(400, "invalid_field", Some(field));
        assert!(answer.json()["detail"].as_str().unwrap().contains(detail), "{answer:?}");
    }
    let reader = fixture.client("default", Role::Read).await;
    reader.post("/v1/tools/sh/call", &json!({"code": ""})).await.refused(403, "forbidden", None);
    assert_eq!(reader.get("/v1/tools/sh").await.status, 200);
    user.post("/v1/tools", &shell("own")).await.refused(403, "forbidden", None);
    user.json("PUT", "/v1/tools/sh", &shell("sh")).await.refused(403, "forbidden", None);
    user.delete("/v1/tools/sh").await.refused(403, "forbidden", None);
}

async fn written_files_are_returned(fixture: Fixture) {
    let admin = admin(&fixture).await;
    add(&admin, &shell("sh")).await;
    let user = fixture.user().await;
    let code =
        "cat d/in.txt > out.txt; mkdir -p a; printf '\\377' > a/b; echo x > .hidden; echo changed > same.txt";
    let files = json!({"d/in.txt": "hello", "same.txt": {"base64": "YQ=="}, "kept.txt": ""});
    let result = run(&user, "sh", json!({"code": code, "files": files})).await;
    assert_eq!(
        result["files"],
        json!([
            {"path": "a/b", "bytes": 1, "content": {"encoding": "base64", "data": "/w=="}},
            {"path": "out.txt", "bytes": 5, "content": {"encoding": "utf-8", "data": "hello"}},
            {"path": "same.txt", "bytes": 8, "content": {"encoding": "utf-8", "data": "changed\n"}},
        ])
    );
    let many = "head -c 1048577 /dev/zero > a; for i in $(seq -w 20); do echo $i > f$i; done";
    let result = run(&user, "sh", json!({ "code": many })).await;
    let files = result["files"].as_array().unwrap();
    assert_eq!((files.len(), &result["more_files"]), (16, &json!(true)));
    assert_eq!((&files[0]["bytes"], &files[0]["content"]), (&json!(1_048_577), &Value::Null));
    assert_eq!(files[15]["content"]["data"], "15\n");
}

async fn sessions_are_kept(fixture: Fixture) {
    let admin = admin(&fixture).await;
    let mut tool = shell("sh");
    tool["session"] = json!(true);
    add(&admin, &tool).await;
    let (user, other) = (fixture.user().await, fixture.user().await);
    let first = run(&user, "sh", json!({"code": "x=5; echo $x > f"})).await;
    let again = run(&user, "sh", json!({"code": "echo $x; cat f"})).await;
    assert_eq!((&again["stdout"]["data"], &again["sandbox"]), (&json!("5\n5\n"), &first["sandbox"]));
    let id = first["sandbox"].as_str().unwrap();
    let info = user.get(&format!("/v1/sandboxes/{id}")).await.json();
    assert_eq!((&info["idle_timeout_s"], &info["labels"]["tool"]), (&json!(1800.0), &json!("sh@1")));
    // Another key, and another version, have their own.
    assert_ne!(run(&other, "sh", json!({"code": ""})).await["sandbox"], id);
    tool["description"] = json!("Another version.");
    admin.json("PUT", "/v1/tools/sh", &tool).await;
    assert_ne!(run(&user, "sh", json!({"code": ""})).await["sandbox"], id);
    // A sandbox of that name which the tool has not made is not used.
    let name = info["name"].as_str().unwrap().to_owned();
    assert_eq!(user.delete(&format!("/v1/sandboxes/{id}")).await.status, 204);
    until("it has ended", async || user.get(&format!("/v1/sandboxes/{id}")).await.status == 410).await;
    other.sandbox(&json!({ "name": name })).await;
    user.post("/v1/tools/sh@1/call", &json!({"code": ""})).await.refused(
        403,
        "policy_refused",
        Some("sandbox"),
    );
    // Nor one that the caller has made itself with other limits, or whose limits were changed.
    other.delete(&format!("/v1/sandboxes/{name}")).await;
    until("it has ended", async || other.get(&format!("/v1/sandboxes/{name}")).await.status != 200).await;
    let made = user.sandbox(&json!({"name": name, "labels": {"tool": "sh@1"}, "limits": {"pids": 77}})).await;
    let refused = user.post("/v1/tools/sh@1/call", &json!({"code": ""})).await;
    refused.refused(403, "policy_refused", Some("sandbox"));
    assert_eq!(user.delete(&format!("/v1/sandboxes/{made}")).await.status, 204);
    until("it has ended", async || user.get(&format!("/v1/sandboxes/{made}")).await.status == 410).await;
    let again = run(&user, "sh@1", json!({"code": ""})).await["sandbox"].as_str().unwrap().to_owned();
    let changed =
        user.json("PATCH", &format!("/v1/sandboxes/{again}"), &json!({"limits": {"pids": 77}})).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    let refused = user.post("/v1/tools/sh@1/call", &json!({"code": ""})).await;
    refused.refused(403, "policy_refused", Some("sandbox"));
}

async fn forbidden_calls_are_recorded(fixture: Fixture) {
    let admin = admin(&fixture).await;
    add(&admin, &shell("sh")).await;
    let reader = fixture.client("default", Role::Read).await;
    reader.post("/v1/tools/sh/call", &json!({"code": ""})).await.refused(403, "forbidden", None);
    let records = admin.get("/v1/audit?limit=100").await.json();
    let mut calls =
        records["records"].as_array().unwrap().iter().filter(|record| record["action"] == "tool.call");
    let call = calls.next().unwrap();
    assert_eq!((&call["outcome"], &call["details"]["tool"]), (&json!("forbidden"), &json!("sh")), "{call}");
}

async fn calls_can_be_tested(fixture: Fixture) {
    let admin = admin(&fixture).await;
    let tool = add(&admin, &shell("sh")).await;
    let user = fixture.user().await;
    let test = async |arguments: Value| user.post("/v1/tools/sh/test", &arguments).await.json();
    let verdict = test(json!({"code": "rm -rf /"})).await;
    assert_eq!(
        (&verdict["allowed"], &verdict["rule"], &verdict["digest"]),
        (&json!(true), &json!("tool"), &tool["digest"])
    );
    assert_eq!(verdict["code_sha256"].as_str().map(str::len), Some(64));
    let verdict = test(json!({"code": "", "timeout": 60})).await;
    assert_eq!((&verdict["allowed"], &verdict["rule"]), (&json!(false), &json!("timeout")), "{verdict}");
    assert_eq!(verdict["reason"], "timeout: 60s is not allowed; the tool allows at most 20s");
    // Nothing has run.
    assert_eq!(user.get("/v1/sandboxes?state=running,gone").await.json()["sandboxes"], json!([]));
}

/// Callers can raise nothing themselves, and are told who can.
async fn hints_are_for_callers(fixture: Fixture) {
    let admin = admin(&fixture).await;
    let mut tool = shell("sh");
    tool["timeout"] = json!("1s");
    add(&admin, &tool).await;
    let user = fixture.user().await;
    let late = run(&user, "sh", json!({"code": "sleep 60"})).await;
    let hint = late["hint"].as_str().unwrap();
    let advice = "the tool allows 1 s; whoever keeps the tool can raise it: belljar tool edit sh --timeout.";
    assert!(hint.contains(advice) && !hint.contains("network.allow"), "{hint}");
    let result = call_at(&user, "/mcp", "sh", json!({"code": "sleep 60"})).await;
    assert!(texts(&result).contains(advice), "{result}");
    // The tools of a profile have arguments of their own.
    for (profile, name, arguments, advice) in [
        ("default", "run_command", json!({"command": "sleep 60", "timeout": 1}), "raise it with timeout. "),
        ("claude", "bash", json!({"command": "sleep 60", "timeout_ms": 1000}), "raise it with timeout_ms. "),
    ] {
        let result = call_at(&user, &format!("/mcp?tools={profile}"), name, arguments).await;
        let text = texts(&result);
        assert!(text.contains(advice) && !text.contains("--"), "{profile}: {text}");
        assert_eq!(text.contains("create_sandbox"), profile == "default", "{profile}: {text}");
    }
}

async fn definitions_are_checked(fixture: Fixture) {
    let admin = admin(&fixture).await;
    let with = |key: &str, value: Value| {
        let mut tool = shell("t");
        tool[key] = value;
        tool
    };
    for (tool, status, code, field) in [
        (with("name", json!("Run")), 400, "invalid_field", "name"),
        (with("name", json!("run_code")), 400, "invalid_field", "name"),
        (with("name", json!("bash")), 400, "invalid_field", "name"),
        (with("name", Value::Null), 400, "invalid_field", "name"),
        (with("description", json!("")), 400, "invalid_field", "description"),
        (with("description", json!("x".repeat(1025))), 400, "invalid_field", "description"),
        (with("languages", json!([])), 400, "invalid_field", "languages"),
        (with("languages", json!(["cobol"])), 400, "invalid_field", "languages"),
        (with("languages", json!(["python", "py"])), 400, "invalid_field", "languages"),
        (with("timeout", json!("25h")), 400, "invalid_field", "timeout"),
        (with("template", json!("nosuch")), 404, "template_not_found", ""),
        (with("limits", json!({"memory": "1x"})), 400, "invalid_field", "limits.memory"),
        (with("limits", json!({"memroy": "1g"})), 400, "invalid_field", "limits.memroy"),
        (with("network", json!({"presets": ["nosuch"]})), 400, "invalid_field", "network.presets"),
        (
            with(
                "network",
                json!({"allow": ["a.example"], "secrets": {"A": {"host": "a.example", "header": "x-a", "value": "v"}}}),
            ),
            400,
            "invalid_field",
            "network",
        ),
        (with("mounts", json!(["/:/host"])), 400, "invalid_field", "mounts"),
        (with("approval", json!("on_risk")), 400, "invalid_field", "approval"),
    ] {
        let field = Some(field).filter(|field| !field.is_empty());
        admin.post("/v1/tools", &tool).await.refused(status, code, field);
    }
    assert_eq!(admin.get("/v1/tools").await.json()["tools"], json!([]));
    add(&admin, &shell("t")).await;
    admin.json("PUT", "/v1/tools/t", &shell("other")).await.refused(400, "invalid_field", Some("name"));
    admin.json("PUT", "/v1/tools/nosuch", &shell("nosuch")).await.refused(404, "tool_not_found", None);
    for name in ["t@", "t@x", "t@99999999999999999999", "t@1@2", "T", "%20"] {
        admin.get(&format!("/v1/tools/{name}")).await.refused(404, "tool_not_found", None);
    }
}

async fn tools_are_bounded(fixture: Fixture) {
    let admin = admin(&fixture).await;
    for index in 0..belljar_keeper::MAX_TOOLS {
        add(&admin, &shell(&format!("t{index}"))).await;
    }
    admin.post("/v1/tools", &shell("more")).await.refused(429, "quota_exceeded", None);
    assert_eq!(
        admin.get("/v1/tools").await.json()["tools"].as_array().unwrap().len(),
        belljar_keeper::MAX_TOOLS
    );
    // Nor does one of several at once.
    assert_eq!(admin.delete("/v1/tools/t0").await.status, 204);
    let at_once = (0..8).map(|index| {
        let (admin, tool) = (&admin, shell(&format!("u{index}")));
        async move { admin.post("/v1/tools", &tool).await.status }
    });
    let mut statuses = futures::future::join_all(at_once).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 429, 429, 429, 429, 429, 429, 429]);
    // A new version of one that is there counts no more. Versions have numbers of their own, and an end.
    let number = std::sync::atomic::AtomicUsize::new(0);
    let change = async || {
        let mut tool = shell("t1");
        tool["description"] = json!(number.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string());
        admin.json("PUT", "/v1/tools/t1", &tool).await
    };
    let changed = futures::future::join_all((0..8).map(|_| change())).await;
    let mut versions: Vec<_> = changed.iter().map(|one| one.json()["version"].as_i64()).collect();
    versions.sort_unstable();
    assert_eq!(versions, (2..10).map(Some).collect::<Vec<_>>());
    for _ in 9..belljar_keeper::MAX_TOOL_VERSIONS {
        assert_eq!(change().await.status, 200);
    }
    change().await.refused(429, "quota_exceeded", None);
    assert_eq!(admin.delete("/v1/tools/t1@1").await.status, 204);
    assert_eq!(change().await.status, 200);
}

async fn tools_belong_to_their_tenant(fixture: Fixture) {
    let admin = admin(&fixture).await;
    add(&admin, &shell("sh")).await;
    let other = fixture.client("other", Role::Admin).await;
    assert_eq!(other.get("/v1/tools").await.json()["tools"], json!([]));
    for (method, path) in
        [("GET", "/v1/tools/sh"), ("DELETE", "/v1/tools/sh"), ("GET", "/v1/tools/sh/schema?for=mcp")]
    {
        other.call(method, path).await.refused(404, "tool_not_found", None);
    }
    other.post("/v1/tools/sh/call", &json!({"code": ""})).await.refused(404, "tool_not_found", None);
    assert_eq!(add(&other, &shell("sh")).await["version"], 1);
}

async fn tools_are_offered_over_mcp(fixture: Fixture) {
    let admin = admin(&fixture).await;
    add(&admin, &shell("sh")).await;
    let mut session = shell("with-session");
    session["session"] = json!(true);
    session["network"] = json!({"presets": ["pip"]});
    add(&admin, &session).await;
    let user = fixture.user().await;
    let all = tools(&user, "/mcp").await;
    let names: Vec<_> = all.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names[names.len() - 2..], ["sh", "with-session"]);
    let [sh, with_session] = [&all[all.len() - 2], &all[all.len() - 1]];
    assert_eq!(sh["inputSchema"]["properties"]["language"]["enum"], json!(["bash", "python"]));
    assert_eq!(sh["inputSchema"]["properties"]["timeout"]["maximum"], 20.0);
    let hints = |tool: &Value| {
        (tool["annotations"]["destructiveHint"].clone(), tool["annotations"]["openWorldHint"].clone())
    };
    assert_eq!(hints(sh), (json!(false), json!(false)));
    assert_eq!(hints(with_session), (json!(true), json!(true)));
    let done = call_at(&user, "/mcp", "sh", json!({"code": "echo $((6*7)); echo x > f"})).await;
    let structured = &done["structuredContent"];
    assert_eq!(
        (&structured["success"], &structured["stdout"], &structured["version"]),
        (&json!(true), &json!("42\n"), &json!(1))
    );
    assert_eq!(structured["files"], json!([{"path": "f", "size": 2, "encoding": "utf-8", "content": "x\n"}]));
    assert_eq!(texts(&done), "42\n[wrote f, 2 bytes]");
    let refused = call_at(&user, "/mcp", "sh", json!({"code": "", "timeout": 60})).await;
    assert_eq!(texts(&refused), "invalid_field: timeout: 60s is not allowed; the tool allows at most 20s");
    // One alone, in a version.
    admin
        .json("PUT", "/v1/tools/sh", &json!({"description": "d", "languages": ["bash"], "timeout": "20s"}))
        .await;
    assert_eq!(tools(&user, "/mcp?tool=sh@1").await.len(), 1);
    let done = call_at(&user, "/mcp?tool=sh@1", "sh", json!({"code": ""})).await;
    assert_eq!(done["structuredContent"]["version"], 1);
    let only = tools(&user, "/mcp?tool=sh&tools=default").await;
    assert_eq!(only.len(), all.len() - 1);
}

async fn disconnect_ends_a_call(fixture: Fixture) {
    let admin = admin(&fixture).await;
    add(&admin, &shell("sh")).await;
    let user = fixture.user().await;
    let body = json!({"code": "sleep 19; true"}).to_string();
    let request = user.request("POST", "/v1/tools/sh/call").header("content-type", "application/json");
    let request = request.body(body.into()).unwrap();
    let leaving = user.clone();
    let waiting = tokio::spawn(async move { leaving.open(request).await });
    let running =
        async || user.get("/v1/sandboxes?state=running").await.json()["sandboxes"].as_array().unwrap().len();
    until("it runs", async || running().await == 1).await;
    waiting.abort();
    until("its sandbox has ended", async || running().await == 0).await;
    until("the call is recorded", async || {
        let records = admin.get("/v1/audit?limit=100").await.json();
        records["records"].as_array().unwrap().iter().any(|record| record["action"] == "tool.call")
    })
    .await;
}

async fn schemas_have_the_forms_of_vendors(fixture: Fixture) {
    let admin = admin(&fixture).await;
    add(&admin, &shell("sh")).await;
    let schema = async |dialect: &str| admin.get(&format!("/v1/tools/sh/schema?for={dialect}")).await.json();
    let mcp = schema("mcp").await;
    let arguments = &mcp["inputSchema"];
    assert_eq!(arguments["required"], json!(["code"]));
    let anthropic = json!({"name": "sh", "description": "Runs a script.", "input_schema": arguments});
    assert_eq!(schema("anthropic").await, anthropic);
    let openai = json!({
        "type": "function", "name": "sh", "description": "Runs a script.", "parameters": arguments, "strict": false,
    });
    assert_eq!(schema("openai").await, openai);
    admin.get("/v1/tools/sh/schema?for=x").await.refused(400, "invalid_field", Some("for"));
    // A definition that is not stored has the description that it would have.
    let draft = json!({"description": "Runs Ruby.", "languages": ["ruby"], "timeout": "3s"});
    let drafted = admin.post("/v1/tools/draft/schema?for=anthropic", &draft).await.json();
    assert_eq!((&drafted["name"], &drafted["description"]), (&json!("draft"), &json!("Runs Ruby.")));
    assert_eq!(drafted["input_schema"]["properties"]["timeout"]["maximum"], 3.0, "{drafted}");
    admin.get("/v1/tools/draft").await.refused(404, "tool_not_found", None);
    let bad = json!({"description": "Runs Ruby.", "languages": ["rubi"]});
    admin.post("/v1/tools/draft/schema?for=mcp", &bad).await.refused(400, "invalid_field", Some("languages"));
    admin.get("/v1/tools/sh/schema").await.refused(400, "invalid_field", Some("for"));
}
