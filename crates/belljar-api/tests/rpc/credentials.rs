//! Published ports, signed files, tokens and keys, and what a key may read of the server: its audit log and information.

use std::path::Path;

use belljar_client::{Client, ErrorCode, Method, RestBody, v1};
use belljar_keeper::{AuditVerdict, CreatedKey, Me};
use belljar_model::Role;
use belljar_testing::wait::DEADLINE;
use serde_json::json;

use crate::fixture::{DOMAIN, Fixture, cases, code, named, sandbox, sh, text};

cases![
    ports_are_published_and_unpublished,
    signed_file_needs_no_key,
    sandbox_token_opens_only_its_sandbox,
    key_lifecycle,
    audit_log_is_read_verified_and_exported,
    server_info_is_returned,
];

async fn ports_are_published_and_unpublished(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let publish =
        |port| v1::PublishPortRequest { sandbox: id.clone(), port, public: true, ..Default::default() };
    let port = user.publish_port(publish(8000)).await.unwrap();
    assert_eq!((port.port, port.public), (8000, true));
    assert_eq!(port.host, format!("8000-{id}.{DOMAIN}"));
    assert_eq!(port.path, format!("/v1/sandboxes/{id}/ports/8000/proxy/"));
    assert_eq!(code(user.publish_port(publish(0)).await), "invalid_field");
    assert_eq!(code(user.publish_port(publish(65536)).await), "invalid_field");
    let list = v1::ListPublishedPortsRequest { sandbox: id.clone(), ..Default::default() };
    assert_eq!(user.list_ports(list.clone()).await.unwrap().ports.len(), 1);
    let token = v1::IssuePortTokenRequest { sandbox: id.clone(), port: 8000, ..Default::default() };
    let token = user.issue_port_token(token).await.unwrap();
    assert!(!token.token.is_empty() && token.expires_at.seconds > 0);
    let unpublish = v1::UnpublishPortRequest { sandbox: id.clone(), port: 8000, ..Default::default() };
    user.unpublish_port(unpublish.clone()).await.unwrap();
    assert!(user.list_ports(list).await.unwrap().ports.is_empty());
    assert_eq!(code(user.unpublish_port(unpublish).await.map(drop)), "not_found");
}

async fn signed_file_needs_no_key(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    sh(&user, &id, "echo signed > a.txt").await;
    let mut request = v1::SignFileRequest { sandbox: id, path: "a.txt".into(), ..Default::default() };
    assert_eq!(code(user.sign_file(request.clone()).await), "invalid_field");
    request.operation = v1::SignedOperation::SIGNED_OPERATION_READ.into();
    let signed = user.sign_file(request).await.unwrap();
    let answer = crate::wire::http(&fixture, "GET", &signed.path, &[], &[]).await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, b"signed\n".as_ref()));
}

async fn sandbox_token_opens_only_its_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let (id, other) = (sandbox(&user).await, sandbox(&user).await);
    let issue = v1::IssueTokenRequest { sandbox: id.clone(), ..Default::default() };
    let token = user.issue_token(issue).await.unwrap().token.clone();
    let inside = fixture.with_key(belljar_client::Credential::key(token));
    assert_eq!(sh(&inside, &id, "echo in").await.stdout.data, "in\n");
    inside.guest(&id).unwrap().list_processes().await.unwrap();
    assert_eq!(code(inside.fetch::<Me>("/v1/me").await), "forbidden");
    assert_eq!(code(inside.get(named(&other)).await), "sandbox_not_found");
    let refused = inside.guest(&other).unwrap().list_processes().await.unwrap_err();
    assert!(refused.is(ErrorCode::NotFound), "{refused:?}");
    assert_eq!(code(inside.create(v1::CreateSandboxRequest::default(), None).await), "forbidden");
    assert_eq!(code(inside.list(v1::ListSandboxesRequest::default()).await), "forbidden");
    let kill = v1::KillSandboxRequest { sandbox: id, ..Default::default() };
    assert_eq!(code(inside.kill(kill).await), "forbidden");
}

async fn key_lifecycle(fixture: Fixture) {
    let (admin, user) = (fixture.admin().await, fixture.user().await);
    let request = json!({
        "name": "ci", "role": "read", "tenant": "team", "expires": "1h", "quotas": {"sandboxes": 2},
    });
    let make = |client: Client| {
        let request = request.clone();
        async move { client.send::<CreatedKey>(Method::POST, "/v1/keys", &request).await }
    };
    assert_eq!(code(make(user).await), "forbidden");
    let made = make(admin.clone()).await.unwrap();
    assert!(made.key.starts_with("bj_") && made.key.starts_with(&made.info.hint) && made.info.hint.len() > 3);
    let reader = fixture.with_key(belljar_client::Credential::key(made.key.clone()));
    let me: Me = reader.fetch("/v1/me").await.unwrap();
    assert_eq!((me.tenant.as_str(), me.role, me.quotas.sandboxes), ("team", Role::Read, Some(2)));
    assert_eq!(code(reader.create(v1::CreateSandboxRequest::default(), None).await), "forbidden");
    let keys: serde_json::Value = admin.fetch("/v1/keys").await.unwrap();
    let mut keys = keys["keys"].as_array().unwrap().iter();
    assert!(keys.any(|key| key["id"] == made.info.id && key["name"] == "ci" && key.get("key").is_none()));
    let revoke = |id: &str| {
        let (admin, path) = (admin.clone(), format!("/v1/keys/{id}"));
        async move { admin.value::<()>(Method::DELETE, &path, RestBody::Empty).await }
    };
    revoke(&made.info.id).await.unwrap();
    assert_eq!(code(reader.fetch::<Me>("/v1/me").await), "unauthenticated");
    assert_eq!(code(revoke("none").await), "key_not_found");
}

async fn audit_log_is_read_verified_and_exported(fixture: Fixture) {
    let (admin, user) = (fixture.admin().await, fixture.user().await);
    let id = sandbox(&user).await;
    let path = format!("/v1/audit/export?follow=true&sandbox={id}");
    let follow = async |client: &Client| {
        client.rest(Method::GET, &path, "application/x-ndjson", RestBody::Empty).await
    };
    assert_eq!(code(follow(&user).await.map(drop)), "forbidden");
    let mut following = follow(&admin).await.unwrap();
    // New events are streamed.
    sh(&user, &id, "true").await;
    user.guest(&id).unwrap().write(Path::new("a"), 0o644, "b".into()).await.unwrap();
    let mut seen = String::new();
    while seen.lines().count() < 3 || !seen.ends_with('\n') {
        let piece = tokio::time::timeout(DEADLINE, following.next()).await.unwrap().unwrap().unwrap();
        seen.push_str(std::str::from_utf8(&piece).unwrap());
    }
    for (line, action) in seen.lines().zip(["sandbox.create", "exec", "file.write"]) {
        assert!(line.contains(&format!("\"{action}\"")) && line.contains(&id), "{line}");
    }

    let verify = async |head: Option<String>| {
        admin.send::<AuditVerdict>(Method::POST, "/v1/audit/verify", &json!({"head": head})).await
    };
    let AuditVerdict::Whole { records, head, .. } = verify(None).await.unwrap() else {
        panic!("it is whole")
    };
    assert!(records >= 3 && head.hash.len() == 64, "{records} {head:?}");
    let exported = admin.rest(Method::GET, "/v1/audit/export", "application/x-ndjson", RestBody::Empty).await;
    let lines = text(exported.unwrap()).await;
    for (line, seq) in lines.lines().zip(1..) {
        assert_eq!(serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"], seq);
    }
    assert!(lines.lines().count() as u64 >= records);
    assert!(matches!(
        verify(Some(format!("{}:{}", head.seq, head.hash))).await,
        Ok(AuditVerdict::Whole { .. })
    ));
    let other = verify(Some(format!("{}:{}", head.seq, "07".repeat(32)))).await;
    assert!(matches!(other, Ok(AuditVerdict::Broken { ok: false, .. })), "{other:?}");
    assert_eq!(code(verify(Some("1".to_owned())).await), "invalid_field");
}

async fn server_info_is_returned(fixture: Fixture) {
    let nobody = fixture.with_key(belljar_client::Credential::None);
    let version: serde_json::Value = nobody.fetch("/version").await.unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(code(nobody.fetch::<Me>("/v1/me").await), "unauthenticated");
    let user = fixture.user().await;
    sandbox(&user).await;
    let me: Me = user.fetch("/v1/me").await.unwrap();
    assert_eq!((me.usage.sandboxes, me.role), (1, Role::User));
}
