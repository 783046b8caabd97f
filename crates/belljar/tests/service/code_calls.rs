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
