//! The server's metrics, their documentation, and the dashboard.

use std::collections::{BTreeMap, BTreeSet};

use crate::fixture::{Home, repository};
use crate::http::send;

#[test]
fn metrics_need_an_admin_key_unless_open() {
    let home = Home::new();
    let server = home.serve(&[]);
    assert_eq!(send(&server.address, "GET", "/metrics", &[], "").status, 401);
    let id = server.create("{}");
    server.exec(&id, "true");
    let metrics = server.call("GET", "/metrics", "").body;
    for line in [
        concat!("belljar_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        "belljar_sandboxes{state=\"running\"} 1",
        "belljar_tenant_sandboxes{tenant=\"default\"} 1",
        "belljar_tenant_memory_limit_bytes{tenant=\"default\"} 536870912",
        "belljar_template_sandboxes{template=\"default\"} 1",
        "belljar_free_memory_bytes",
        "belljar_free_disk_bytes",
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

/// Returns the names of a server's metrics after some use, each with its labels.
fn metric_labels() -> BTreeMap<String, BTreeSet<String>> {
    let home = Home::new();
    let server = home.serve(&[]);
    let id = server.create("{}");
    server.exec(&id, "true");
    server.call("DELETE", &format!("/v1/sandboxes/{id}"), "");
    let idle = server.create("{}");
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let metrics = server.call("GET", "/metrics", "").body;
    server.call("DELETE", &format!("/v1/sandboxes/{idle}"), "");
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = match line.split_once('{') {
            Some((name, rest)) => (name, rest.split_once("} ").unwrap().0),
            None => (line.split(' ').next().unwrap(), ""),
        };
        let labels = labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name);
        known.entry(name.to_owned()).or_default().extend(labels.map(str::to_owned));
    }
    known
}

/// Every metric and every label in the queries of the dashboard exists.
#[test]
fn dashboard_uses_existing_metrics() {
    let known = metric_labels();
    let path = repository().join("deploy/grafana/belljar.json");
    let dashboard: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut queried = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let named: Vec<_> = names(query).collect();
            for name in &named {
                let labels = known.get(name).unwrap_or_else(|| panic!("{query}: there is no {name}"));
                let unknown: Vec<_> = labels_of(query).filter(|label| !labels.contains(label)).collect();
                assert!(unknown.is_empty(), "{query}: {name} has no label {unknown:?}, only {labels:?}");
            }
            // A legend may only use labels that the query keeps.
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            for shown in legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap().trim()) {
                assert!(labels_of(query).any(|label| label == shown), "{legend}: {query} leaves no {shown}");
            }
            queried.extend(named);
        }
    }
    assert!(queried.len() > 15, "{queried:?}");
}

/// Every metric and every label in the alerts exists.
#[test]
fn alerts_use_existing_metrics() {
    let known = metric_labels();
    let rules = std::fs::read_to_string(repository().join("deploy/prometheus/belljar.rules.yml")).unwrap();
    let mut count = 0;
    for query in rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")) {
        for name in names(query) {
            let labels = known.get(&name).unwrap_or_else(|| panic!("{query}: there is no {name}"));
            let unknown: Vec<_> = labels_of(query).filter(|label| !labels.contains(label)).collect();
            assert!(unknown.is_empty(), "{query}: {name} has no label {unknown:?}, only {labels:?}");
            count += 1;
        }
    }
    assert!(count >= 8, "{count}");
}

/// The page for operators describes exactly the existing metrics, with their labels.
#[test]
fn every_metric_is_documented() {
    let page = std::fs::read_to_string(repository().join("docs/operating/observability.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let described: BTreeMap<&str, BTreeSet<&str>> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2))
        .map(|metric| match metric.split_once('{') {
            Some((name, labels)) => (name, labels.trim_end_matches('}').split(',').collect()),
            None => (metric, BTreeSet::new()),
        })
        .collect();
    let known = metric_labels();
    for (name, labels) in &known {
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let family = if family.starts_with("process_") { "process_*" } else { family };
        let found = described.get(family).unwrap_or_else(|| panic!("the page has no {family}"));
        let labels: BTreeSet<&str> =
            labels.iter().map(String::as_str).filter(|label| *label != "le").collect();
        assert_eq!(*found, labels, "{family}");
    }
    for name in described.keys().filter(|name| **name != "process_*") {
        assert!(known.keys().any(|known| known.starts_with(name)), "there is no {name}");
    }
}

/// Returns the labels that a query groups or filters by, except those that Prometheus adds.
fn labels_of(query: &str) -> impl Iterator<Item = String> {
    let grouped = query.split(" by (").skip(1).map(|rest| rest.split(')').next().unwrap());
    let filtered = query.split('{').skip(1).map(|rest| rest.split('}').next().unwrap());
    let filtered =
        filtered.flat_map(|inside| inside.split(',')).map(|one| one.split(['=', '!']).next().unwrap());
    let all: Vec<String> = grouped
        .flat_map(|labels| labels.split(','))
        .chain(filtered)
        .map(|label| label.trim().to_owned())
        .collect();
    all.into_iter().filter(|label| label != "instance")
}

/// Returns the metrics that a query names.
fn names(query: &str) -> impl Iterator<Item = String> {
    let words = query.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let is_metric = |word: &&str| word.starts_with("belljar_") || word.starts_with("process_");
    words.filter(is_metric).map(str::to_owned).collect::<Vec<_>>().into_iter()
}
