//! The OpenAPI document is current, complete and correct.

use std::collections::BTreeSet;

use belljar_api::{Code, openapi_json};
use serde_json::{Value, json};

use crate::fixture::{Fixture, cases, sandbox};

cases![
    checked_in_copy_is_current,
    document_is_complete,
    every_route_needs_a_key,
    every_code_is_documented,
    every_code_of_the_keeper_is_known,
    optional_bodies_can_be_omitted,
    archive_types_are_documented,
];

const COPY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
const KEEPER_ERRORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../belljar-keeper/src/error.rs");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rest.md");

fn document() -> Value {
    serde_json::from_str(&openapi_json()).unwrap()
}

async fn checked_in_copy_is_current(_: Fixture) {
    let fresh = openapi_json() + "\n";
    if std::env::var_os("BELLJAR_BLESS").is_some() {
        std::fs::write(COPY, &fresh).unwrap();
    }
    let copy = std::fs::read_to_string(COPY).unwrap_or_default();
    assert!(copy == fresh, "docs/openapi.json is old; write it anew with BELLJAR_BLESS=1");
}

/// Returns the operations: method, path, description.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of = |(path, item): (&String, &Value)| -> Vec<_> {
        item.as_object()
            .unwrap()
            .iter()
            .map(|(method, operation)| (method.to_uppercase(), path.clone(), operation.clone()))
            .collect()
    };
    paths.iter().flat_map(of).collect()
}

async fn document_is_complete(_: Fixture) {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    let schemes = document["components"]["securitySchemes"].as_object().unwrap();
    assert_eq!(schemes.keys().collect::<Vec<_>>(), ["api_key", "bearer"]);
    let operations = operations(&document);
    assert!(operations.len() > 45, "{}", operations.len());
    let mut ids = BTreeSet::new();
    for (method, path, operation) in &operations {
        let place = format!("{method} {path}");
        assert!(operation["summary"].is_string() || operation["description"].is_string(), "{place}");
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
            "{place}: {}",
            operation["operationId"]
        );
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2') || status == "101"), "{place}");
        if operation["security"].is_null() {
            assert!(responses.contains_key("401") && responses.contains_key("500"), "{place}");
        }
        for (status, response) in responses {
            let number: u16 = status.parse().unwrap();
            if number >= 400 {
                let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(problem, "#/components/schemas/Problem", "{place} {status}");
            }
        }
        for (kind, media) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
            let named =
                media["schema"]["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/schemas/"));
            let schema = named.map(|name| &document["components"]["schemas"][name]);
            let has_example =
                !media["example"].is_null() || schema.is_some_and(|schema| !schema["example"].is_null());
            assert!(has_example, "{place} {kind} has no example");
        }
        for name in path.split(['{', '}']).skip(1).step_by(2) {
            let parameters = operation["parameters"].as_array().unwrap();
            assert!(
                parameters.iter().any(|one| one["name"] == name && one["in"] == "path"),
                "{place} {name}"
            );
        }
    }
    // Every referenced name exists.
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

async fn every_route_needs_a_key(fixture: Fixture) {
    let document = document();
    let stranger = fixture.stranger();
    let keys = [
        None,
        Some("bj_".to_owned() + &"0".repeat(64)),
        Some("bjs_wrong".to_owned()),
        Some("nonsense".to_owned()),
    ];
    let mut checked = 0;
    for (method, path, operation) in operations(&document) {
        let place = path
            .replace("{id}", "abcdefghij0123456789")
            .replace("{process}", "1")
            .replace("{port}", "80")
            .replace("{token}", "x");
        if operation["security"].is_null() {
            for key in &keys {
                let client = belljar_client(&stranger, key.as_deref());
                let answer = client.call(&method, &place).await;
                answer.refused(401, "unauthenticated", None);
                checked += 1;
            }
        } else if path.starts_with("/v1/signed/") {
            stranger.call(&method, &place).await.refused(401, "unauthenticated", None);
        } else if path == "/v1/session/redeem" {
            stranger.post(&place, &json!({"link": "bjl_wrong"})).await.refused(401, "unauthenticated", None);
        } else {
            assert_eq!(stranger.call(&method, &place).await.status, 200, "{method} {path}");
        }
    }
    assert!(checked > 150, "{checked}");
}

fn belljar_client(stranger: &crate::client::Client, key: Option<&str>) -> crate::client::Client {
    key.map_or_else(|| stranger.clone(), |key| stranger.with_key(key))
}

async fn every_code_is_documented(_: Fixture) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let rows: BTreeSet<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    for code in Code::ALL {
        let row = format!("| `{}` | {} | {} |", code.as_str(), code.status_number(), code.title());
        assert!(rows.contains(row.as_str()), "docs/rest.md lacks: {row}");
    }
}

async fn every_code_of_the_keeper_is_known(_: Fixture) {
    let source = std::fs::read_to_string(KEEPER_ERRORS).unwrap();
    let codes = source.split_once("pub fn code(&self)").unwrap().1.split('"').skip(1).step_by(2);
    // The others are the resources of a match, and names in tests.
    let codes: BTreeSet<&str> = codes.filter(|text| text.contains('_')).collect();
    assert!(codes.contains("sandbox_moved") && codes.contains("path_not_found"));
    for code in codes {
        assert!(Code::from_name(code).is_some(), "{code} is missing from the table of codes");
    }
}

async fn optional_bodies_can_be_omitted(fixture: Fixture) {
    let user = fixture.client("default", belljar_model::Role::Admin).await;
    let id = sandbox(&user).await;
    let mut optional = BTreeSet::new();
    for (method, path, operation) in operations(&document()) {
        if operation["requestBody"]["content"]["application/json"].is_null() {
            continue;
        }
        let may_be_empty = operation["requestBody"]["required"] != true;
        let answer = user
            .call(
                &method,
                &path
                    .replace("{id}", &id)
                    .replace("{process}", "1")
                    .replace("{port}", "80")
                    .replace("{context}", "python"),
            )
            .await;
        // The request is otherwise valid, or names something that does not exist.
        let is_taken = answer.status.is_success() || answer.status == 404;
        assert_eq!(is_taken, may_be_empty, "{method} {path}: {answer:?}");
        if may_be_empty {
            optional.insert(operation["operationId"].as_str().unwrap().to_owned());
        }
    }
    assert!(optional.contains("sandboxes_fork") && !optional.contains("commands_exec"), "{optional:?}");
}

async fn archive_types_are_documented(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let document = document();
    let documented =
        &document["paths"]["/v1/sandboxes/{id}/files/archive"]["get"]["responses"]["200"]["content"];
    for query in ["", "?format=tar", "?format=tar_gz", "?format=tar.gz", "?format=tgz"] {
        let answer = user.get(&format!("/v1/sandboxes/{id}/files/archive{query}")).await;
        if answer.status == 200 {
            let kind = answer.headers["content-type"].to_str().unwrap();
            assert!(documented.get(kind).is_some(), "{query} is {kind}, which is none of {documented}");
        }
    }
}
