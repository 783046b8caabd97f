//! The server's figures, and the dashboard that is made of them.

use std::collections::BTreeSet;

use crate::http::send;
use crate::world::{Home, repository};

#[test]
fn figures_are_for_administrators_unless_they_are_open() {
    let home = Home::new();
    let server = home.serve(&[]);
    assert_eq!(send(&server.address, "GET", "/metrics", &[], "").status, 401);
    let id = server.create("{}");
    server.exec(&id, "true");
    let metrics = server.call("GET", "/metrics", "").body;
    for line in [
        "belljar_sandboxes{state=\"running\"} 1",
        "belljar_executions_total{outcome=\"exited\"} 1",
        "belljar_http_requests_total{method=\"POST\",route=\"/v1/sandboxes/{id}/exec\",status=\"200\"} 1",
        "belljar_http_requests_total{method=\"GET\",route=\"/metrics\",status=\"401\"} 1",
        "belljar_store_write_seconds_count",
        "process_open_fds",
        "process_start_time_seconds",
    ] {
        assert!(metrics.lines().any(|known| known.starts_with(line)), "{line}: {metrics}");
    }
    assert!(!metrics.contains("belljar_belljar") && !metrics.contains(&id), "{metrics}");
    drop(server);
    let open = home.serve(&["--set", "metrics.open=true"]);
    assert_eq!(send(&open.address, "GET", "/metrics", &[], "").status, 200);
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let home = Home::new();
    let server = home.serve(&[]);
    let id = server.create("{}");
    server.exec(&id, "true");
    server.call("DELETE", &format!("/v1/sandboxes/{id}"), "");
    let metrics = server.call("GET", "/metrics", "").body;
    let known: BTreeSet<&str> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let path = repository().join("deploy/grafana/belljar.json");
    let dashboard: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            asked.extend(names(target["expr"].as_str().unwrap()));
        }
    }
    let missing: Vec<_> = asked.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(missing.is_empty() && asked.len() > 15, "{missing:?} of {asked:?} in {known:?}");
}

/// The metrics that a query names.
fn names(query: &str) -> impl Iterator<Item = String> {
    let words = query.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let is_metric = |word: &&str| word.starts_with("belljar_") || word.starts_with("process_");
    words.filter(is_metric).map(str::to_owned).collect::<Vec<_>>().into_iter()
}
