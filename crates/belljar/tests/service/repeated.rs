//! Repeated requests across a crash of the server.

use serde_json::json;

use crate::run;
use crate::server::Home;

/// As a server leaves it that ends between a sandbox and its answer: the claim of the request is open.
#[test]
fn sandbox_of_an_unanswered_request_is_its_answer_after_a_crash() {
    if crate::skipped("repeated requests") {
        return;
    }
    run(async {
        let mut home = Home::new(&["store.durability=process"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let create = async |client: &crate::client::Client| {
            let request = client.request("POST", "/v1/sandboxes").header("content-type", "application/json");
            client
                .send(request.header("idempotency-key", "once"), json!({ "timeout": 3600 }).to_string())
                .await
        };
        let first = create(&client).await;
        assert_eq!(first.status, 201, "{}", first.text());
        drop(client);
        server.kill();
        let opened = std::process::Command::new("sqlite3")
            .arg(home.path().join("belljar.db"))
            .arg("UPDATE idempotency SET response = NULL WHERE scope LIKE '%/create'; SELECT changes();")
            .output()
            .expect("sqlite3 runs");
        assert_eq!(String::from_utf8_lossy(&opened.stdout).trim(), "1", "{opened:?}");
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let again = create(&client).await;
        assert_eq!(
            (again.status.as_u16(), &again.json()["id"]),
            (200, &first.json()["id"]),
            "{}",
            again.text()
        );
        let all = client.get("/v1/sandboxes").await.json();
        assert_eq!(all["sandboxes"].as_array().map(Vec::len), Some(1), "{all}");
        drop(client);
        crate::crash::shut_down(server, &home).await;
    });
}
