//! No request makes the server fail.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::client::Client;
use crate::fixture::{Fixture, cases, sandbox, sh};

cases![no_request_makes_a_5xx];

const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"];

const PATHS: [&str; 34] = [
    "",
    "/timeout",
    "/pause",
    "/resume",
    "/snapshot",
    "/fork",
    "/metrics",
    "/logs",
    "/tokens",
    "/exec",
    "/processes",
    "/processes/1",
    "/processes/1/output?follow=false",
    "/processes/1/stdin",
    "/processes/1/signal",
    "/processes/1/resize",
    "/processes/1/attach",
    "/terminal",
    "/files/content",
    "/files",
    "/files/stat",
    "/files/mkdir",
    "/files/move",
    "/files/upload",
    "/files/archive",
    "/files/sign",
    "/ports",
    "/ports/80",
    "/ports/80/tokens",
    "/ports/80x/proxy/",
    "/processes/x",
    "/none",
    "/files/content?path=a",
    "/%00",
];

fn json_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>().prop_map(|value| value.to_string()),
        "[ -~]{0,12}".prop_map(|text| json!(text).to_string()),
        any::<String>().prop_map(|text| json!(text).to_string()),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let key = prop_oneof![
            Just("command"),
            Just("argv"),
            Just("path"),
            Just("timeout"),
            Just("labels"),
            Just("limits"),
            Just("memory"),
            Just("env"),
            Just("signal"),
            Just("port"),
            Just("count"),
            Just("from"),
            Just("to"),
            Just("rows"),
            Just("columns"),
            Just("name"),
            Just("files"),
            Just("content"),
            Just("expires"),
            Just("operation"),
            Just("x"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((key, inner), 0..4).prop_map(|pairs| {
                let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
                format!("{{{}}}", pairs.join(","))
            }),
        ]
    })
}

#[derive(Debug, Clone)]
struct Any {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

fn any_request(id: String) -> impl Strategy<Value = Any> {
    let path = prop_oneof![
        6 => prop::sample::select(&PATHS[..]).prop_map(move |rest| format!("/v1/sandboxes/{id}{rest}")),
        1 => prop::sample::select(&["/v1/sandboxes", "/v1/templates", "/v1/keys", "/v1/me", "/v1/audit", "/health", "/docs/x", "/v1/signed/x"][..]).prop_map(str::to_owned),
        1 => "/[a-z0-9%/._~-]{0,30}",
    ];
    let query = prop_oneof![
        2 => Just(String::new()),
        2 => "[a-z_]{1,8}=[a-zA-Z0-9%+._-]{0,12}(&[a-z_]{1,8}=[a-zA-Z0-9%+._-]{0,12}){0,2}",
        1 => "(path|depth|limit|cursor|mode|follow|stdout|rows|state|label|after)=[a-zA-Z0-9%+._-]{0,12}",
    ];
    let header = (
        "(range|if-range|if-none-match|if-modified-since|content-range|accept|idempotency-key|x-request-id|origin|content-encoding|expect|te)",
        "[ -~]{0,30}",
    );
    let kind = prop::sample::select(
        &["application/json", "multipart/form-data; boundary=B", "application/octet-stream", ""][..],
    );
    let body = prop_oneof![
        3 => json_value().prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => Just(Vec::new()),
    ];
    (prop::sample::select(&METHODS[..]), path, query, prop::collection::vec(header, 0..3), kind, body)
        .prop_map(|(method, path, query, mut headers, kind, body)| {
            headers.push(("content-type".to_owned(), kind.to_owned()));
            let mark = if path.contains('?') { '&' } else { '?' };
            let path = if query.is_empty() { path } else { format!("{path}{mark}{query}") };
            Any { method, path, headers, body }
        })
}

async fn no_request_makes_a_5xx(fixture: Fixture) {
    let user = fixture.client("default", belljar_model::Role::Admin).await;
    let id = sandbox(&user).await;
    let count =
        std::env::var("BELLJAR_PROPERTY_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let strategy = any_request(id.clone());
    let mut runner = TestRunner::new(Config { cases: count, failure_persistence: None, ..Config::default() });
    for _ in 0..count {
        let request = strategy.new_tree(&mut runner).unwrap().current();
        check(&user, &request).await;
    }
    // Other clients are not affected.
    let fresh = sandbox(&user).await;
    assert_eq!(sh(&user, &fresh, "echo fine").await["stdout"]["data"], "fine\n");
}

async fn check(user: &Client, any: &Any) {
    let Ok(uri) = any.path.parse::<http::Uri>() else { return };
    let mut request = user.request(any.method, "/");
    for (name, value) in &any.headers {
        if let Ok(value) = http::HeaderValue::from_str(value.trim()) {
            request = request.header(name, value);
        }
    }
    let mut request = request.body(axum::body::Body::from(any.body.clone())).unwrap();
    *request.uri_mut() = uri;
    let answer = user.send_request(request).await;
    let status = answer.status.as_u16();
    // A full machine is not a failure of the server.
    assert!(status < 500 || (status == 503 && answer.problem().0 == "machine_full"), "{any:?}: {answer:?}");
    if status >= 400 && any.method != "HEAD" {
        answer.problem();
    }
}
