//! Access rights: a table over every procedure of the descriptor set.

use std::collections::BTreeMap;

use belljar_client::{Credential, v1};
use belljar_model::Role;
use buffa_descriptor::generated::descriptor::FileDescriptorSet;
use serde_json::json;

use crate::fixture::{Fixture, cases, code, sandbox};
use crate::wire::{call, frame, frames, http};

cases![
    every_procedure_needs_a_key,
    foreign_and_missing_sandboxes_are_indistinguishable,
    administration_is_for_administrators,
    readers_change_nothing,
    the_guest_header_must_name_one_sandbox,
];

/// A procedure, and whether it streams.
pub(crate) struct Procedure {
    pub(crate) path: String,
    pub(crate) streams: bool,
}

/// Returns every procedure of the service.
pub(crate) fn procedures() -> Vec<Procedure> {
    use belljar_proto::Message as _;
    let set = FileDescriptorSet::decode_from_slice(belljar_proto::DESCRIPTOR_SET).unwrap();
    let mut found = Vec::new();
    for file in set.file.iter().filter(|file| file.package.as_deref() == Some("belljar.v1")) {
        for service in &file.service {
            for method in &service.method {
                let (service, name) = (service.name.as_deref().unwrap(), method.name.as_deref().unwrap());
                let streams = method.client_streaming.unwrap_or_default()
                    || method.server_streaming.unwrap_or_default();
                found.push(Procedure { path: format!("/belljar.v1.{service}/{name}"), streams });
            }
        }
    }
    assert!(found.len() > 45, "{}", found.len());
    found
}

/// Calls a procedure with an empty message, and returns the code of the error, or `ok`.
async fn outcome(fixture: &Fixture, procedure: &Procedure, headers: &[(&str, &str)]) -> String {
    let kind = if procedure.streams { "application/connect+json" } else { "application/json" };
    let body = if procedure.streams { frame(0, b"{}") } else { b"{}".as_slice().into() };
    let mut all = vec![("content-type", kind)];
    all.extend_from_slice(headers);
    let answer = http(fixture, "POST", &procedure.path, &all, &body).await;
    let error = if procedure.streams {
        let end =
            frames(answer.body.clone()).pop().unwrap_or_else(|| panic!("{}: {answer:?}", procedure.path));
        assert_eq!(end.0 & 2, 2, "{}: {answer:?}", procedure.path);
        let end: serde_json::Value = serde_json::from_slice(&end.1).unwrap();
        end["error"].clone()
    } else if answer.status == 200 {
        serde_json::Value::Null
    } else {
        answer.json()
    };
    error["code"].as_str().unwrap_or("ok").to_owned()
}

async fn every_procedure_needs_a_key(fixture: Fixture) {
    let revoked = {
        let secret = fixture.key("default", Role::User).await;
        let me: belljar_keeper::Me =
            fixture.with_key(belljar_client::Credential::key(secret.clone())).fetch("/v1/me").await.unwrap();
        fixture
            .keeper
            .revoke_key(&belljar_keeper::Caller::operator("test", "request"), &me.key)
            .await
            .unwrap();
        format!("Bearer {secret}")
    };
    let wrong = format!("Bearer bj_{}", "0".repeat(64));
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    for procedure in procedures() {
        for credential in [None, Some(wrong.as_str()), Some(revoked.as_str()), Some("Basic eDp5")] {
            let mut headers = vec![("belljar-sandbox", id.as_str())];
            headers.extend(credential.map(|credential| ("authorization", credential)));
            assert_eq!(
                outcome(&fixture, &procedure, &headers).await,
                "unauthenticated",
                "{} {credential:?}",
                procedure.path
            );
        }
    }
}

async fn foreign_and_missing_sandboxes_are_indistinguishable(fixture: Fixture) {
    let owner = fixture.user().await;
    let id = sandbox(&owner).await;
    let missing = "a0000000000000000000";
    let stranger = format!("Bearer {}", fixture.key("other", Role::User).await);
    let guest = ["Process/", "Filesystem/", "Ports/", "Health/", "Session/", "Interpreter/"];
    let mut seen = 0;
    for procedure in procedures() {
        if !guest.iter().any(|service| procedure.path.contains(&format!("v1.{service}"))) {
            continue;
        }
        seen += 1;
        for sandbox in [id.as_str(), missing] {
            let headers = [("authorization", stranger.as_str()), ("belljar-sandbox", sandbox)];
            assert_eq!(
                outcome(&fixture, &procedure, &headers).await,
                "not_found",
                "{} {sandbox}",
                procedure.path
            );
        }
    }
    assert!(seen >= 20, "{seen}");
    let stranger = fixture.client("other", Role::User).await;
    let mut answers = BTreeMap::new();
    for (what, sandbox) in [("foreign", id.clone()), ("missing", missing.to_owned())] {
        let get = v1::GetSandboxRequest { sandbox: sandbox.clone(), ..Default::default() };
        let kill = v1::KillSandboxRequest { sandbox: sandbox.clone(), ..Default::default() };
        let texts = [
            stranger.get(get).await.unwrap_err().to_string(),
            stranger.kill(kill).await.unwrap_err().to_string(),
            stranger
                .exec(crate::fixture::line(&sandbox, "true"), None)
                .await
                .map(drop)
                .unwrap_err()
                .to_string(),
        ];
        answers.insert(what, texts.map(|text| text.replace(&sandbox, "ID")));
    }
    assert_eq!(answers["foreign"], answers["missing"]);
    assert_eq!(crate::fixture::sh(&owner, &id, "echo still").await.stdout.data, "still\n");
}

async fn administration_is_for_administrators(fixture: Fixture) {
    let user = format!("Bearer {}", fixture.key("default", Role::User).await);
    for procedure in procedures() {
        let service = procedure.path.split(['.', '/']).nth(3).unwrap_or_default().to_owned();
        if ["Keys", "Audit"].contains(&service.as_str()) {
            let found = outcome(&fixture, &procedure, &[("authorization", &user)]).await;
            assert_eq!(found, "permission_denied", "{}", procedure.path);
        }
    }
}

async fn readers_change_nothing(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let reader = fixture.key("default", Role::Read).await;
    for (procedure, body) in [
        ("Sandboxes/Create", json!({})),
        ("Sandboxes/Kill", json!({"sandbox": id})),
        ("Sandboxes/Pause", json!({"sandbox": id})),
        ("Sandboxes/SetTimeout", json!({"sandbox": id, "timeout": "0s"})),
        ("Sandboxes/Snapshot", json!({"sandbox": id})),
        ("Sandboxes/Update", json!({"sandbox": id})),
        ("Sandboxes/PublishPort", json!({"sandbox": id, "port": 8000})),
        ("Commands/Start", json!({"sandbox": id, "command": "dHJ1ZQ=="})),
    ] {
        let answer = call(&fixture, &reader, procedure, body).await;
        assert_eq!(answer.json()["code"], "permission_denied", "{procedure} {answer:?}");
    }
    let reader = fixture.with_key(Credential::key(reader));
    assert_eq!(reader.list(v1::ListSandboxesRequest::default()).await.unwrap().sandboxes.len(), 1);
    let guest = reader.guest(&id).unwrap();
    assert!(guest.write(std::path::Path::new("a"), 0o644, "b".into()).await.is_err());
    assert_eq!(code(user.get(v1::GetSandboxRequest { sandbox: id, ..Default::default() }).await), "ok");
}

async fn the_guest_header_must_name_one_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let bearer = format!("Bearer {}", fixture.key("default", Role::User).await);
    let procedure = Procedure { path: "/belljar.v1.Process/List".to_owned(), streams: false };
    let key = ("authorization", bearer.as_str());
    let long = "x".repeat(10_000);
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[key, ("belljar-sandbox", &id)], "ok"),
        (&[key], "invalid_argument"),
        (&[key, ("belljar-sandbox", &id), ("belljar-sandbox", &id)], "invalid_argument"),
        (&[key, ("belljar-sandbox", "")], "not_found"),
        (&[key, ("belljar-sandbox", "../../etc")], "not_found"),
        (&[key, ("belljar-sandbox", "%2e%2e")], "not_found"),
        (&[key, ("belljar-sandbox", &long)], "not_found"),
    ];
    for (headers, expected) in cases {
        assert_eq!(outcome(&fixture, &procedure, headers).await, *expected, "{headers:?}");
    }
}
