//! The server's log: formats, rotation, and no secrets.

use rustix::process::Signal;

use crate::fixture::{Home, eventually};
use crate::http::send;

#[test]
fn lines_are_json_with_request_ids_and_without_secrets() {
    let home = Home::new();
    let server = home.serve(&["--log-format", "json"]);
    let id = server.create(r#"{"env":{"TOKEN":"hush-env"}}"#);
    server.exec(&id, "echo hush-command");
    let headers = [("X-API-Key", server.key.as_str()), ("X-Request-Id", "my-request-1")];
    send(&server.address, "GET", "/v1/sandboxes?name=hush-query", &headers, "");
    send(&server.address, "GET", "/v1/me", &[("X-API-Key", "bj_hush-wrong")], "");
    let token = server.call("POST", &format!("/v1/sandboxes/{id}/tokens"), "{}").json()["token"].to_string();
    server.await_log("/v1/sandboxes/{id}/tokens");
    let log = server.log();
    for line in log.lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(
            value["timestamp"].is_string() && value["level"].is_string() && value["message"].is_string(),
            "{line}"
        );
    }
    let mine = log.lines().find(|line| line.contains("my-request-1")).unwrap_or_else(|| panic!("{log}"));
    let mine: serde_json::Value = serde_json::from_str(mine).unwrap();
    assert_eq!(
        (mine["route"].as_str(), mine["status"].as_u64()),
        (Some("/v1/sandboxes"), Some(200)),
        "{mine}"
    );
    for secret in [server.key.as_str(), token.trim_matches('"'), "hush", "bjs_"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[test]
fn rotated_file_is_reopened() {
    let home = Home::new();
    let (path, old) = (home.dir.path().join("log"), home.dir.path().join("log.1"));
    // The test waits for the server's standard error, so the file is set by a reload.
    let set = format!(
        "[server]\nlisten = ['127.0.0.1:0']\n[sandboxes]\non_exit = 'end'\npool = 0\n[log]\nfile = '{}'\n",
        path.display()
    );
    home.configure(&set.replace("[log]", "#[log]").replace("file", "#file"));
    let server = home.start(&["serve"]).unwrap_or_else(|refused| panic!("{refused:?}"));
    home.configure(&set);
    server.signal(Signal::HUP);
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    let has = |path: &std::path::Path, text: &str| {
        let path = path.to_owned();
        let text = text.to_owned();
        eventually(move || if read(&path).contains(&text) { Ok(()) } else { Err(read(&path)) });
    };
    has(&path, "the configuration was read again");
    server.call("GET", "/v1/me", "");
    has(&path, "/v1/me");
    std::fs::rename(&path, &old).unwrap();
    server.call("GET", "/v1/keys", "");
    has(&old, "/v1/keys");
    server.signal(Signal::HUP);
    has(&path, "the configuration was read again");
    server.call("GET", "/v1/templates", "");
    has(&path, "/v1/templates");
    assert!(!read(&old).contains("/v1/templates"));
}
