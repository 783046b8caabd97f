//! Code whose key is revoked while it waits between two steps: calls that wait end with their key, and no further one is made with it.

use serde_json::json;

use crate::server::Home;
use crate::{run, until};

/// Runs code that waits in a step and then calls a tool, while its key is revoked. Returns what it got from both calls.
async fn after_revocation(without: Option<&'static str>) -> (String, String) {
    let mut home = Home::new(&["sandboxes.pool=0"]);
    home.without = without;
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    let tool =
        json!({ "name": "deed", "description": "Does it.", "languages": ["bash"], "approval": "never" });
    assert_eq!(client.post("/v1/tools", &tool).await.status, 201);
    let (key_id, key) = client.new_key("user", "default").await;
    let user = client.with_key(&key);
    let id = user.sandbox(&json!({ "timeout": 3600, "limits": { "memory": "512m", "pids": 128 } })).await;
    let code = "import belljar, os\n\
        def said(name, **arguments):\n\
        \x20   try: return str(belljar.tools[name](**arguments))\n\
        \x20   except belljar.ToolError as error: return str(error)\n\
        with open('part', 'w') as file: print(said('wait'), said('deed', code='echo done'), sep='\\n', file=file)\n\
        os.rename('part', 'said')";
    // Without the wall the step ends at its time alone.
    let call_timeout = if without.is_some() { "3s" } else { "1h" };
    let body =
        json!({ "code": code, "functions": ["wait"], "tools": ["deed"], "call_timeout": call_timeout });
    let step = user.post(&format!("/v1/sandboxes/{id}/code"), &body).await;
    assert_eq!(step.json()["status"], "tool_calls", "{step:?}");
    assert_eq!(client.call("DELETE", &format!("/v1/keys/{key_id}")).await.status, 204);
    let look = json!({ "command": "cat said" });
    let said = async || {
        let done = client.post(&format!("/v1/sandboxes/{id}/exec"), &look).await;
        // While it is frozen it cannot be looked at.
        let done: serde_json::Value = serde_json::from_slice(&done.body).unwrap_or_default();
        let text = done["stdout"]["data"].as_str().filter(|_| done["exit_code"] == 0).map(str::to_owned);
        text.unwrap_or_default()
    };
    until("the code goes on", async || !said().await.is_empty()).await;
    let text = said().await;
    crate::crash::shut_down(server, &home).await;
    let (first, second) = text.trim_end().split_once('\n').expect("two lines");
    (first.to_owned(), second.to_owned())
}

/// Sends code whose key is revoked while other code has the context. Returns the answer to it, and the files that the code has made.
async fn queued_while_revoked(without: Option<&'static str>) -> (u16, String) {
    let mut home = Home::new(&["sandboxes.pool=0"]);
    home.without = without;
    let server = home.start();
    server.ready().await;
    let client = server.admin();
    let (key_id, key) = client.new_key("user", "default").await;
    let user = client.with_key(&key).apart();
    let id = client.sandbox(&json!({ "timeout": 3600, "limits": { "memory": "512m", "pids": 128 } })).await;
    let path = format!("/v1/sandboxes/{id}/code");
    let (path, first) = (&path, client.apart());
    let first = async {
        first
            .post(
                path,
                &json!({ "language": "bash", "code": "touch begun; until test -e go; do sleep 0.02; done" }),
            )
            .await
    };
    let second = async {
        until("the first runs", async || client.sh(&id, "ls").await.contains("begun")).await;
        user.post(path, &json!({ "language": "bash", "code": "touch ran" })).await
    };
    let revocation = async {
        // The key has been used, once the code waits or is about to.
        until("the second waits", async || {
            let keys = client.get("/v1/keys").await.json();
            let of_user = keys["keys"].as_array().unwrap().iter().find(|one| one["id"] == key_id.as_str());
            !of_user.unwrap()["last_used_at"].is_null()
        })
        .await;
        assert_eq!(client.call("DELETE", &format!("/v1/keys/{key_id}")).await.status, 204);
        client.sh(&id, "touch go").await;
    };
    let (first, second, ()) = futures::join!(first, second, revocation);
    assert_eq!(first.status, 200, "{first:?}");
    let files = client.sh(&id, "ls").await;
    crate::crash::shut_down(server, &home).await;
    (second.status.as_u16(), files)
}

#[test]
fn queued_code_ends_with_its_key() {
    if crate::skipped("code that waits") {
        return;
    }
    run(async {
        let (status, files) = queued_while_revoked(None).await;
        assert!(status >= 400 && !files.contains("ran"), "{status}: {files}");
    });
}

#[cfg(feature = "mutation")]
#[test]
fn without_the_wall_queued_code_outlives_its_key() {
    if crate::skipped("code that waits") {
        return;
    }
    run(async {
        let (_, files) = queued_while_revoked(Some("service:revoked-calls")).await;
        assert!(files.contains("ran"), "{files}");
    });
}

#[test]
fn calls_of_code_end_with_their_key() {
    if crate::skipped("calls of code") {
        return;
    }
    run(async {
        let (step, deed) = after_revocation(None).await;
        assert!(step.contains("its key was revoked"), "{step}");
        assert!(deed.contains("key: it was revoked"), "{deed}");
    });
}

#[cfg(feature = "mutation")]
#[test]
fn without_the_wall_calls_of_code_outlive_their_key() {
    if crate::skipped("calls of code") {
        return;
    }
    run(async {
        let (step, deed) = after_revocation(Some("service:revoked-calls")).await;
        assert!(step.contains("its time was over"), "{step}");
        assert!(deed.contains("done"), "{deed}");
    });
}
