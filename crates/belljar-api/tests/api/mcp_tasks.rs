//! Calls over MCP that wait for approval longer than their request.

use belljar_model::Role;
use belljar_testing::wait::until;
use serde_json::{Value, json};

use crate::approvals::{clients, decide, waiting};
use crate::client::{Answer, Client};
use crate::fixture::{Fixture, cases};
use crate::mcp::{message, meta, request, texts};

cases![
    waiting_calls_are_tasks,
    waiting_calls_are_repeated,
    repeated_calls_are_the_same,
    waiting_calls_are_bounded,
    clients_without_either_wait,
];

const TASKS: &str = r#"{"extensions": {"io.modelcontextprotocol/tasks": {}}}"#;
const ELICITATION: &str = r#"{"elicitation": {"form": {}}}"#;

async fn send(client: &Client, can: &str, method: &str, mut params: Value) -> Answer {
    let mut meta = meta();
    meta["io.modelcontextprotocol/clientCapabilities"] = serde_json::from_str(can).unwrap();
    params["_meta"] = meta;
    let name = params["name"].as_str().or(params["taskId"].as_str()).unwrap_or_default().to_owned();
    client.send(request(client, "/mcp", method, &name), message(method, params)).await
}

fn call(code: &str) -> Value {
    json!({"name": "sh", "arguments": {"code": code}})
}

/// Begins a call whose client knows tasks, and returns the id of its task.
async fn begin(client: &Client, code: &str) -> String {
    let answer = send(client, TASKS, "tools/call", call(code)).await.json();
    let task = &answer["result"];
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{answer}");
    assert!(
        task["statusMessage"].as_str().unwrap().starts_with("waiting until another person approves apr_")
    );
    assert!(task["ttlMs"].as_u64().unwrap() > 3_600_000 && task["pollIntervalMs"] == 1000, "{task}");
    task["taskId"].as_str().unwrap().to_owned()
}

async fn task(client: &Client, id: &str) -> Value {
    let answer = send(client, TASKS, "tasks/get", json!({"taskId": id})).await.json();
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    answer["result"].clone()
}

async fn ended(client: &Client, id: &str, status: &str) -> Value {
    until("it ends", async || task(client, id).await["status"] != "working").await;
    let found = task(client, id).await;
    assert_eq!(found["status"], status, "{found}");
    found
}

async fn waiting_calls_are_tasks(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    let discovered = send(&user, "{}", "server/discover", json!({})).await.json();
    assert!(
        discovered["result"]["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(),
        "{discovered}"
    );
    let id = begin(&user, "echo yes").await;
    let asked = waiting(&approver).await;
    assert_eq!(task(&user, &id).await["status"], "working");
    // It is its key's alone.
    let other = fixture.user().await;
    for method in ["tasks/get", "tasks/cancel"] {
        let answer = send(&other, TASKS, method, json!({"taskId": id})).await.json();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let update = json!({"taskId": id, "inputResponses": {"x": {"action": "accept"}}});
    assert_eq!(send(&user, TASKS, "tasks/update", update).await.json()["result"]["resultType"], "complete");
    approver.post(&decide(&asked, "approve"), &json!({})).await;
    let done = ended(&user, &id, "completed").await;
    assert!(texts(&done["result"]).starts_with("yes"), "{done}");
    // A refusal is an answer as well.
    let id = begin(&user, "echo no").await;
    approver.post(&decide(&waiting(&approver).await, "deny"), &json!({"note": "no"})).await;
    let done = ended(&user, &id, "completed").await;
    assert!(texts(&done["result"]).ends_with(": no") && done["result"]["isError"] == true, "{done}");
    // Cancelling a task cancels its call.
    let id = begin(&user, "echo gone").await;
    let asked = waiting(&approver).await;
    send(&user, TASKS, "tasks/cancel", json!({"taskId": id})).await;
    ended(&user, &id, "cancelled").await;
    let path = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
    until("it is cancelled", async || approver.get(&path).await.json()["state"] == "cancelled").await;
    // Calls that do not wait are no tasks.
    let listing = json!({"name": "list_sandboxes", "arguments": {}});
    assert_eq!(send(&user, TASKS, "tools/call", listing).await.json()["result"]["resultType"], "complete");
    let answer = send(&user, "{}", "tasks/get", json!({"taskId": id})).await.json();
    assert_eq!(answer["error"]["code"], -32021, "{answer}");
}

async fn waiting_calls_are_repeated(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    let begin = async |code: &str| {
        let answer = send(&user, ELICITATION, "tools/call", call(code)).await.json();
        let result = answer["result"].clone();
        assert_eq!(result["resultType"], "input_required", "{answer}");
        let question = &result["inputRequests"]["approval"];
        assert_eq!(question["method"], "elicitation/create");
        assert!(
            question["params"]["message"].as_str().unwrap().contains("until another person approves apr_")
        );
        result["requestState"].as_str().unwrap().to_owned()
    };
    let again = async |code: &str, state: &str, action: &str| {
        let mut params = call(code);
        params["requestState"] = json!(state);
        params["inputResponses"] = json!({"approval": {"action": action, "content": {}}});
        send(&user, ELICITATION, "tools/call", params).await.json()
    };
    let state = begin("echo yes").await;
    let approved = async {
        let asked = waiting(&approver).await;
        approver.post(&decide(&asked, "approve"), &json!({})).await;
    };
    let (answer, ()) = futures::join!(again("echo yes", &state, "accept"), approved);
    assert!(texts(&answer["result"]).starts_with("yes"), "{answer}");
    // It is used once, and whoever does not want to wait has cancelled it.
    assert_eq!(again("echo yes", &state, "accept").await["error"]["code"], -32602);
    for action in ["decline", "cancel"] {
        let state = begin("echo no").await;
        let asked = waiting(&approver).await;
        let answer = again("echo no", &state, action).await;
        assert!(texts(&answer["result"]).starts_with("not_approved: "), "{answer}");
        let path = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
        until("it is cancelled", async || approver.get(&path).await.json()["state"] == "cancelled").await;
    }
    // One that has run by then has its result.
    let state = begin("echo done").await;
    let asked = waiting(&approver).await;
    approver.post(&decide(&asked, "approve"), &json!({})).await;
    let path = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
    until("it has run", async || approver.get(&path).await.json()["outcome"].is_string()).await;
    let answer = again("echo done", &state, "decline").await;
    assert!(texts(&answer["result"]).starts_with("done"), "{answer}");
}

async fn repeated_calls_are_the_same(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    let answer = send(&user, ELICITATION, "tools/call", call("echo yes")).await.json();
    let state = answer["result"]["requestState"].clone();
    let other = fixture.user().await;
    let with = |code: &str, state: &Value| {
        let mut params = call(code);
        params["requestState"] = state.clone();
        params
    };
    // Neither with other code, nor with another key, nor by a guess.
    for (client, params) in [
        (&user, with("echo no", &state)),
        (&other, with("echo yes", &state)),
        (&user, with("echo yes", &json!("apr_0000000000000000"))),
    ] {
        let answer = send(client, ELICITATION, "tools/call", params).await.json();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let approved = async {
        let asked = waiting(&approver).await;
        approver.post(&decide(&asked, "approve"), &json!({})).await;
    };
    let (answer, ()) =
        futures::join!(send(&user, ELICITATION, "tools/call", with("echo yes", &state)), approved);
    assert!(texts(&answer.json()["result"]).starts_with("yes"), "{answer:?}");
}

async fn waiting_calls_are_bounded(fixture: Fixture) {
    let (user, approver) = clients(&fixture, false).await;
    let mut ids = Vec::new();
    for number in 0..16 {
        ids.push(begin(&user, &format!("echo {number}")).await);
    }
    // One more waits in its request.
    let decided = async {
        let newest = async || approver.get("/v1/approvals?state=pending").await.json()["approvals"].clone();
        until("it waits", async || newest().await.as_array().unwrap().len() == 17).await;
        approver.post(&decide(&newest().await[0], "approve"), &json!({})).await;
    };
    let (answer, ()) = futures::join!(send(&user, TASKS, "tools/call", call("echo last")), decided);
    assert!(texts(&answer.json()["result"]).starts_with("last"), "{answer:?}");
    // A result that was fetched takes no place, and can be fetched again.
    let asked = approver.get("/v1/approvals?state=pending").await.json()["approvals"].clone();
    approver.post(&decide(&asked[0], "approve"), &json!({})).await;
    let newest = ids.last().unwrap().clone();
    ended(&user, &newest, "completed").await;
    let more = begin(&user, "echo more").await;
    ended(&user, &newest, "completed").await;
    // That of a call that nobody has let run does.
    let asked = approver.get("/v1/approvals?state=pending").await.json()["approvals"].clone();
    approver.post(&decide(&asked[0], "deny"), &json!({})).await;
    ended(&user, &more, "completed").await;
    let decided = async {
        let newest = async || approver.get("/v1/approvals?state=pending").await.json()["approvals"].clone();
        until("it waits", async || newest().await.as_array().unwrap().len() == 16).await;
        approver.post(&decide(&newest().await[0], "approve"), &json!({})).await;
    };
    let (answer, ()) = futures::join!(send(&user, TASKS, "tools/call", call("echo waits")), decided);
    assert!(texts(&answer.json()["result"]).starts_with("waits"), "{answer:?}");
    ids.push(more);
    for id in ids {
        send(&user, TASKS, "tasks/cancel", json!({"taskId": id})).await;
    }
}

async fn clients_without_either_wait(fixture: Fixture) {
    let (user, approver) = clients(&fixture, true).await;
    let approved = async {
        let asked = waiting(&approver).await;
        approver.post(&decide(&asked, "approve"), &json!({})).await;
    };
    let (answer, ()) = futures::join!(send(&user, "{}", "tools/call", call("echo yes")), approved);
    assert!(texts(&answer.json()["result"]).starts_with("yes"), "{answer:?}");
    // Revoking the key ends a task.
    let admin = fixture.client("default", Role::Admin).await;
    let (key_id, key) = admin.new_key("user", "default").await;
    let revoked = admin.with_key(&key);
    let id = begin(&revoked, "echo no").await;
    waiting(&approver).await;
    admin.delete(&format!("/v1/keys/{key_id}")).await;
    until("it ends", async || {
        approver.get("/v1/approvals?state=pending").await.json()["approvals"] == json!([])
    })
    .await;
    assert_eq!(send(&revoked, TASKS, "tasks/get", json!({"taskId": id})).await.status, 401);
}
