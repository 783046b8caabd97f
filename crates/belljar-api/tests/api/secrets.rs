//! Secrets of a tenant.

use belljar_model::Role;
use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture::{Fixture, cases, sandbox};

cases![
    secrets_are_stored_without_being_shown,
    secrets_need_their_role,
    secrets_belong_to_a_tenant,
    secrets_are_listed_by_page,
    policies_name_existing_secrets,
];

const VALUE: &str = "s3cret-value";

fn secret(name: &str) -> Value {
    json!({"name": name, "value": VALUE, "metadata": {"owner": "ci"}})
}

/// Returns the audit records about secrets, oldest first, as action, outcome and details.
async fn audit(admin: &Client) -> Vec<(String, String, Value)> {
    let records = admin.get("/v1/audit?limit=1000").await;
    assert!(!records.text().contains("s3cret"), "{records:?}");
    let records = records.json()["records"].as_array().unwrap().clone();
    let text = |record: &Value, key: &str| record[key].as_str().unwrap().to_owned();
    let of_secret = |record: &Value| text(record, "action").starts_with("secret.");
    let mut records: Vec<Value> = records.into_iter().filter(of_secret).collect();
    records.sort_by_key(|record| record["seq"].as_u64());
    records
        .into_iter()
        .map(|record| (text(&record, "action"), text(&record, "outcome"), record["details"].clone()))
        .collect()
}

async fn secrets_are_stored_without_being_shown(fixture: Fixture) {
    let user = fixture.user().await;
    let created = user.post("/v1/secrets", &secret("key")).await;
    assert_eq!(created.status, 201, "{created:?}");
    let info = created.json();
    assert_eq!(
        (&info["name"], &info["version"], &info["metadata"]["owner"]),
        (&json!("key"), &json!(1), &json!("ci"))
    );
    let id = info["id"].as_str().unwrap();
    user.post("/v1/secrets", &secret("key")).await.refused(409, "name_taken", Some("name"));
    let shown = [user.get("/v1/secrets/key").await, user.get(&format!("/v1/secrets/{id}")).await];
    assert!(shown.iter().all(|answer| answer.json() == info), "{shown:?}");
    let changed = user.json("PUT", "/v1/secrets/key", &json!({"value": "s3cret-later"})).await;
    assert_eq!((changed.status.as_u16(), &changed.json()["version"]), (200, &json!(2)));
    assert_eq!(changed.json()["metadata"], info["metadata"]);
    let listed = user.get("/v1/secrets").await;
    assert_eq!(listed.json(), json!({"secrets": [changed.json()], "next_cursor": null}));
    assert_eq!(user.delete("/v1/secrets/key").await.status, 204);
    for answer in [
        user.delete("/v1/secrets/key").await,
        user.get(&format!("/v1/secrets/{id}")).await,
        user.json("PUT", "/v1/secrets/key", &json!({"value": VALUE})).await,
    ] {
        answer.refused(404, "secret_not_found", None);
    }
    let answers = [created, changed, listed];
    assert!(answers.iter().chain(&shown).all(|answer| !answer.text().contains("s3cret")), "{answers:?}");

    let of = |action: &str, version: &str| {
        let details = json!({"secret": id, "name": "key", "version": version});
        (format!("secret.{action}"), "ok".to_owned(), details)
    };
    let records = audit(&fixture.client("default", Role::Admin).await).await;
    let succeeded: Vec<_> = records.into_iter().filter(|(_, outcome, _)| outcome == "ok").collect();
    assert_eq!(succeeded, [of("create", "1"), of("update", "2"), of("remove", "2")]);
}

async fn secrets_need_their_role(fixture: Fixture) {
    let user = fixture.user().await;
    assert_eq!(user.post("/v1/secrets", &secret("key")).await.status, 201);
    let reader = fixture.client("default", Role::Read).await;
    assert_eq!(reader.get("/v1/secrets").await.json()["secrets"][0]["name"], "key");
    assert_eq!(reader.get("/v1/secrets/key").await.status, 200);
    let change = json!({"value": "s3cret-later"});
    for answer in [
        reader.post("/v1/secrets", &secret("other")).await,
        reader.json("PUT", "/v1/secrets/key", &change).await,
        reader.delete("/v1/secrets/key").await,
    ] {
        answer.refused(403, "forbidden", None);
    }
    // The token of a sandbox is no key.
    let id = sandbox(&user).await;
    let token = user.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await.json();
    let inside = user.with_key(token["token"].as_str().unwrap());
    for answer in [
        inside.get("/v1/secrets").await,
        inside.get("/v1/secrets/key").await,
        inside.post("/v1/secrets", &secret("other")).await,
        inside.json("PUT", "/v1/secrets/key", &change).await,
        inside.delete("/v1/secrets/key").await,
    ] {
        assert_eq!(answer.status, 403, "{answer:?}");
    }
    assert_eq!(user.get("/v1/secrets/key").await.json()["version"], 1);
}

async fn secrets_belong_to_a_tenant(fixture: Fixture) {
    let first = fixture.client("first", Role::User).await;
    let info = first.post("/v1/secrets", &secret("key")).await.json();
    let id = info["id"].as_str().unwrap();
    for role in [Role::User, Role::Admin] {
        let second = fixture.client("second", role).await;
        assert_eq!(second.get("/v1/secrets").await.json()["secrets"], json!([]));
        for path in ["/v1/secrets/key", &format!("/v1/secrets/{id}")] {
            second.get(path).await.refused(404, "secret_not_found", None);
            second.delete(path).await.refused(404, "secret_not_found", None);
            let change = second.json("PUT", path, &json!({"value": "s3cret-later"})).await;
            change.refused(404, "secret_not_found", None);
        }
    }
    // Names are per tenant.
    let second = fixture.client("second", Role::User).await;
    assert_eq!(second.post("/v1/secrets", &secret("key")).await.status, 201);
    assert_eq!(second.delete("/v1/secrets/key").await.status, 204);
    assert_eq!(first.get("/v1/secrets/key").await.json(), info);
}

async fn secrets_are_listed_by_page(fixture: Fixture) {
    let user = fixture.user().await;
    for name in ["c", "a", "b"] {
        assert_eq!(user.post("/v1/secrets", &secret(name)).await.status, 201);
    }
    let page = user.get("/v1/secrets?limit=2").await.json();
    let names = |page: &Value| -> Vec<String> {
        let secrets = page["secrets"].as_array().unwrap();
        secrets.iter().map(|secret| secret["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&page), ["a", "b"]);
    let cursor = page["next_cursor"].as_str().unwrap();
    let last = user.get(&format!("/v1/secrets?limit=2&cursor={cursor}")).await.json();
    assert_eq!((names(&last), &last["next_cursor"]), (vec!["c".to_owned()], &Value::Null));
}

async fn policies_name_existing_secrets(fixture: Fixture) {
    let user = fixture.user().await;
    let kept = json!({"host": "a.example", "header": "x", "value": "${secrets.none}"});
    for network in [
        json!({"allow": ["a.example"], "secrets": {"KEY": kept}}),
        json!({"allow": ["a.example"], "headers": [kept]}),
    ] {
        let refused = user.post("/v1/sandboxes", &json!({"network": network})).await;
        refused.refused(400, "invalid_field", Some("network.secrets"));
        assert!(refused.text().contains("none"), "{refused:?}");
    }
}
