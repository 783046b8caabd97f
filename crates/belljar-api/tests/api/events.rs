//! Events of the service: their visibility, and how a broken stream is resumed.

use axum::body::Body;
use belljar_model::Role;
use serde_json::{Value, json};

use crate::client::{Client, Events};
use crate::fixture::{Fixture, cases, sandbox, sh};

cases![
    events_are_streamed_as_they_happen,
    ends_that_nobody_waits_for_are_events,
    stream_resumes_after_an_id,
    id_of_an_earlier_start_returns_retained_events,
    events_are_visible_to_their_tenant_and_admins,
    events_are_filtered_by_kind_label_and_sandbox,
    invalid_filters_are_refused,
];

async fn follow(client: &Client, query: &str) -> Events {
    client.events(client.request("GET", &format!("/v1/events{query}")).body(Body::empty()).unwrap()).await
}

/// Returns the retained events that match a query.
pub(crate) async fn retained_events(client: &Client, query: &str) -> Vec<Value> {
    let and = if query.is_empty() { "?" } else { "&" };
    let events = follow(client, &format!("{query}{and}follow=false")).await.rest().await;
    events.into_iter().map(|(_, data)| data).collect()
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

async fn events_are_streamed_as_they_happen(fixture: Fixture) {
    let user = fixture.user().await;
    let mut events = follow(&user, "").await;
    let made = user.post("/v1/sandboxes", &json!({"labels": {"job": "42"}})).await.json();
    let id = made["id"].as_str().unwrap();
    let path = format!("/v1/sandboxes/{id}");
    let (name, created) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &created["kind"]), ("sandbox.created", &json!("sandbox.created")));
    assert_eq!(
        (&created["sandbox"], &created["tenant"], &created["labels"]),
        (&json!(id), &json!("default"), &json!({"job": "42"}))
    );

    sh(&user, id, "exit 3").await;
    let started = events.next().await.unwrap().1;
    assert_eq!((&started["kind"], &started["labels"]["job"]), (&json!("process.started"), &json!("42")));
    let exited = events.next().await.unwrap().1;
    assert_eq!((&exited["kind"], &exited["detail"]), (&json!("process.exited"), &json!("exit code 3")));
    assert_eq!(exited["process"], started["process"]);
    assert!(exited["process"].is_u64());

    let mut expected = Vec::new();
    for (what, kind) in [("pause", "sandbox.paused"), ("resume", "sandbox.resumed")] {
        assert_eq!(user.post(&format!("{path}/{what}"), &json!({})).await.status, 200);
        expected.push(kind);
    }
    assert_eq!(user.post(&format!("{path}/ports"), &json!({"port": 8000})).await.status, 201);
    expected.push("port.publish");
    assert_eq!(user.post(&format!("{path}/snapshot"), &json!({"name": "kept"})).await.status, 201);
    expected.push("sandbox.snapshot");
    assert_eq!(user.delete(&path).await.status, 204);
    expected.extend(["sandbox.stopping", "sandbox.gone"]);
    for kind in expected {
        let event = events.next().await.unwrap().1;
        assert_eq!((&event["kind"], &event["sandbox"]), (&json!(kind), &json!(id)), "{event}");
    }
}

async fn ends_that_nobody_waits_for_are_events(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let mut events = follow(&user, "?kind=process.exited").await;
    let path = format!("/v1/sandboxes/{id}/processes");
    for (line, signal, expected) in
        [("exit 3", None, "exit code 3"), ("exec sleep 1000", Some(9), "killed by signal 9")]
    {
        let started = user.post(&path, &json!({"argv": ["sh", "-c", line]})).await.json();
        if let Some(signal) = signal {
            let path = format!("{path}/{}/signal", started["process"]);
            assert!(user.post(&path, &json!({"signal": signal})).await.status.is_success());
        }
        let exited = events.next().await.unwrap().1;
        assert_eq!((&exited["process"], &exited["detail"]), (&started["process"], &json!(expected)));
    }
}

async fn stream_resumes_after_an_id(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "true").await;
    let all = retained_events(&user, "").await;
    assert_eq!(kinds(&all), ["sandbox.created", "process.started", "process.exited"]);
    let first = all[0]["id"].as_str().unwrap();
    assert_eq!(retained_events(&user, &format!("?after={first}")).await, all[1..]);
    // The header of a browser overrides the query.
    let last = all[2]["id"].as_str().unwrap();
    let request = user.request("GET", &format!("/v1/events?after={last}"));
    let mut events = user.events(request.header("last-event-id", first).body(Body::empty()).unwrap()).await;
    assert_eq!(events.next().await.unwrap().1, all[1]);
    assert_eq!(events.next().await.unwrap().1, all[2]);
    // New events follow.
    sh(&user, &id, "true").await;
    assert_eq!(events.next().await.unwrap().0, "process.started");
}

async fn id_of_an_earlier_start_returns_retained_events(fixture: Fixture) {
    let user = fixture.user().await;
    sandbox(&user).await;
    let mut events = follow(&user, "?after=00000000-7").await;
    assert_eq!(events.next().await.unwrap(), ("missed".to_owned(), json!({})));
    assert_eq!(events.next().await.unwrap().0, "sandbox.created");
}

async fn events_are_visible_to_their_tenant_and_admins(fixture: Fixture) {
    let user = fixture.user().await;
    let (reader, admin) =
        (fixture.client("default", Role::Read).await, fixture.client("ops", Role::Admin).await);
    let other = fixture.client("other", Role::User).await;
    let (mine, beside) = (sandbox(&user).await, sandbox(&user).await);
    let theirs = sandbox(&other).await;
    let expires = user.post(&format!("/v1/sandboxes/{mine}/tokens"), &json!({"expires": 60})).await.json();
    let token = user.with_key(expires["token"].as_str().unwrap());
    let made = admin.post("/v1/keys", &json!({"name": "ci", "role": "read"})).await.json();

    let sandboxes = |events: Vec<Value>| {
        let all = events.iter().map(|event| event["sandbox"].as_str().unwrap_or_default().to_owned());
        all.collect::<Vec<_>>()
    };
    assert_eq!(sandboxes(retained_events(&user, "").await), [mine.clone(), beside.clone()]);
    assert_eq!(sandboxes(retained_events(&reader, "").await), [mine.clone(), beside.clone()]);
    assert_eq!(sandboxes(retained_events(&other, "").await), std::slice::from_ref(&theirs));
    assert_eq!(retained_events(&other, &format!("?sandbox={mine}")).await, Vec::<Value>::new());
    assert_eq!(sandboxes(retained_events(&admin, "?kind=sandbox").await), [mine, beside, theirs]);
    // Only administrators see events of keys, which never contain the secret.
    let keys = retained_events(&admin, "?kind=key").await;
    assert_eq!(keys.last().unwrap()["kind"], "key.create");
    assert_eq!(keys.last().unwrap()["detail"], made["id"]);
    assert!(!json!(keys).to_string().contains(made["key"].as_str().unwrap()));
    token.get("/v1/events?follow=false").await.refused(403, "forbidden", None);
    fixture.stranger().get("/v1/events").await.refused(401, "unauthenticated", None);
}

async fn events_are_filtered_by_kind_label_and_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let labelled = json!({"labels": {"job": "1", "all": "yes"}});
    let id = user.post("/v1/sandboxes", &labelled).await.json()["id"].as_str().unwrap().to_owned();
    let other = sandbox(&user).await;
    sh(&user, &id, "true").await;
    for (query, expected) in [
        ("?kind=process".to_owned(), &["process.started", "process.exited"][..]),
        (
            "?kind=sandbox,process.exited".to_owned(),
            &["sandbox.created", "sandbox.created", "process.exited"],
        ),
        ("?kind=sandbox&label=job=1".to_owned(), &["sandbox.created"]),
        ("?kind=sandbox&label=job=1&label=all%3Dyes".to_owned(), &["sandbox.created"]),
        ("?label=job=1&label=all=no".to_owned(), &[]),
        ("?label=job=2".to_owned(), &[]),
        (format!("?sandbox={other}"), &["sandbox.created"]),
        ("?kind=proc".to_owned(), &[]),
    ] {
        assert_eq!(kinds(&retained_events(&user, &query).await), expected, "{query}");
    }
}

async fn invalid_filters_are_refused(fixture: Fixture) {
    let user = fixture.user().await;
    for (query, field) in [
        ("label=job", "label"),
        ("sandbox=a_name", "sandbox"),
        ("after=7", "after"),
        ("after=x-y", "after"),
        ("follow=perhaps", "follow"),
        ("since=7", "since"),
    ] {
        let answer = user.get(&format!("/v1/events?{query}")).await;
        answer.refused(400, "invalid_field", Some(field));
    }
}
