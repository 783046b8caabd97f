//! A server with several engines, across restarts with a different selection.

use belljar_testing::wait::until;
use serde_json::json;

use crate::run;
use crate::server::Home;

#[test]
fn sandboxes_outlive_the_server_and_the_withdrawal_of_their_engine() {
    if crate::skipped("engines") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=1", "sandboxes.engines=process"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let engines = client.get("/v1/engines").await.json();
        assert_eq!(engines["engines"][0]["name"], "local", "{engines}");
        assert_eq!(engines["engines"][0]["is_default"], true, "{engines}");
        assert_eq!(engines["engines"][1]["name"], "process", "{engines}");
        assert_eq!(engines["engines"][1]["default_timeout_s"], 10.0, "{engines}");
        assert_eq!(engines["engines"][1]["held_by"], "launcher", "{engines}");
        let local = client.sandbox(&json!({ "timeout": 3600 })).await;
        let process = client.sandbox(&json!({ "timeout": 3600, "engine": "process" })).await;
        let info = client.get(&format!("/v1/sandboxes/{process}")).await.json();
        assert_eq!((&info["engine"], &info["isolation"]["engine"]), (&json!("process"), &json!("process")));
        assert_eq!(info["limits"]["timeout_s"], 10.0, "{info}");
        let unknown = client.post("/v1/sandboxes", &json!({ "engine": "none" })).await;
        assert_eq!((unknown.status.as_u16(), unknown.code()), (403, "policy_refused".to_owned()));
        let unknown = client.post("/v1/sandboxes", &json!({ "engine": "microvm" })).await;
        assert_eq!((unknown.status.as_u16(), unknown.code()), (400, "invalid_field".to_owned()));
        client.sh(&process, "echo kept > file").await;
        let path = |of: &str| format!("/v1/sandboxes/{of}/processes");
        let waiting = json!({ "command": "until test -e go; do sleep 0.05; done; exit 7" });
        let left = client.post(&path(&local), &waiting).await.json();
        let paused = client.sandbox(&json!({ "timeout": 3600 })).await;
        let frozen = client.post(&path(&paused), &waiting).await.json();
        assert_eq!(client.call("POST", &format!("/v1/sandboxes/{paused}/pause")).await.status, 200);
        drop(client);
        server.stop();

        // The next server no longer offers the engine, and keeps managing its sandboxes.
        home.flags.truncate(home.flags.len() - 2);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        assert_eq!(client.get("/v1/engines").await.json()["engines"].as_array().map(Vec::len), Some(1));
        assert_eq!(client.sh(&process, "cat file").await, "kept\n");
        assert_eq!(client.sh(&local, "echo on").await, "on\n");
        // The ends of commands that go on are events of this server.
        for (sandbox, started) in [(&local, &left), (&paused, &frozen)] {
            client.sh(sandbox, "touch go").await;
            let exited = async || {
                let events = client.get("/v1/events?follow=false&kind=process.exited").await;
                let of_it = format!("\"process\":{}", started["process"]);
                events.text().lines().any(|line| {
                    line.contains(sandbox.as_str()) && line.contains(&of_it) && line.contains("exit code 7")
                })
            };
            until("its end is an event", exited).await;
        }
        let refused = client.post("/v1/sandboxes", &json!({ "engine": "process" })).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "policy_refused".to_owned()));
        let fork = client.post(&format!("/v1/sandboxes/{process}/fork"), &json!({})).await;
        assert_eq!(
            (fork.status.as_u16(), fork.code()),
            (403, "policy_refused".to_owned()),
            "{}",
            fork.text()
        );
        assert_eq!(client.call("POST", &format!("/v1/sandboxes/{process}/pause")).await.status, 200);
        drop(client);
        crate::crash::shut_down(server, &home).await;
    });
}
