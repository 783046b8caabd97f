//! Presets, ceilings and forecasts of network policies over REST.

use belljar_keeper::{Caller, NewKey, Quotas};
use belljar_model::{Approval, NetworkMode, Role};
use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture::{Fixture, cases, sandbox};

cases![presets_and_ceilings_are_shown, policies_are_forecast, mistakes_are_named, requests_are_checked];

/// Creates a client whose key has a ceiling.
async fn bounded(fixture: &Fixture, role: Role) -> Client {
    let key = NewKey {
        name: "bounded".to_owned(),
        role,
        tenant: "default".to_owned(),
        expires: None,
        quotas: Quotas { network: Some(NetworkMode::Whitelist.into()), ..Quotas::default() },
        owner: None,
        approval: Approval::Never,
    };
    let made = fixture.keeper.create_key(&Caller::operator("test", "request"), key).await.unwrap();
    Client::new(fixture.address, Some(&made.key))
}

async fn forecast(client: &Client, body: Value) -> Value {
    let answer = client.post("/v1/network/check", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn presets_and_ceilings_are_shown(fixture: Fixture) {
    let reader = fixture.client("default", Role::Read).await;
    let offer = reader.get("/v1/network").await.json();
    let pip = offer["presets"].as_array().unwrap().iter().find(|preset| preset["name"] == "pip").unwrap();
    let host = pip["hosts"].as_array().unwrap().iter().find(|host| host["name"] == "pypi.org").unwrap();
    assert_eq!((&host["ports"], &pip["tls"]), (&json!([443]), &json!("terminate")));
    assert!(offer["presets_version"].as_u64() > Some(0), "{offer}");
    assert_eq!(offer["most"], json!({"key": null, "server": "open"}));
    // The server's ceiling is not that of administrators, a key's own is.
    let admin = bounded(&fixture, Role::Admin).await;
    assert_eq!(admin.get("/v1/network").await.json()["most"], json!({"key": "whitelist", "server": null}));
}

async fn policies_are_forecast(fixture: Fixture) {
    let user = bounded(&fixture, Role::User).await;
    let network =
        json!({"presets": ["pip"], "allow": ["B.example", "10.1.2.0/24:443"], "deny": ["bad.example"]});
    let hosts =
        ["pypi.org", "b.example:80", "b.example:22", "93.184.215.14:22", "bad.example", "10.1.2.3:443"];
    let found = forecast(&user, json!({"network": network, "hosts": hosts})).await;
    let decided: Vec<_> = found["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| json!([one["host"], one["allowed"], one["missing"]]))
        .collect();
    let expected = [
        json!(["pypi.org:443", true, null]),
        json!(["b.example:80", true, null]),
        json!(["b.example:22", false, "b.example:22"]),
        json!(["93.184.215.14:22", false, "93.184.215.14/32:22"]),
        json!(["bad.example:443", false, null]),
        // What the policy allows is private, and the operator makes no exception.
        json!(["10.1.2.3:443", false, null]),
    ];
    assert_eq!(decided, expected, "{found}");
    assert_eq!(found["hosts"][0]["rule"], "preset pip: pypi.org:443");
    assert_eq!((&found["network"]["mode"], &found["problems"]), (&json!("whitelist"), &json!([])));
    assert_eq!(found["beyond"], Value::Null);
    let open = forecast(&user, json!({"network": "open", "hosts": ["a.example"]})).await;
    assert_eq!(open["hosts"][0]["allowed"], true);
    assert!(open["beyond"].as_str().unwrap().contains("give at most whitelist"), "{open}");
    let id = sandbox(&user).await;
    let of_sandbox = forecast(&user, json!({"sandbox": id, "hosts": ["a.example"]})).await;
    assert_eq!(of_sandbox["network"], "disabled");
    assert_eq!(
        (&of_sandbox["hosts"][0]["rule"], &of_sandbox["hosts"][0]["missing"]),
        (&json!("mode disabled"), &Value::Null)
    );
    // Another tenant's sandbox is none.
    let other = fixture.client("other", Role::User).await;
    let asked = json!({"sandbox": id, "hosts": ["a.example"]});
    other.post("/v1/network/check", &asked).await.refused(404, "sandbox_not_found", None);
}

async fn mistakes_are_named(fixture: Fixture) {
    let reader = fixture.client("default", Role::Read).await;
    let network =
        json!({"presets": ["pypi"], "allow": ["a.example", "a_b.example", "192.0.2.1"], "deny": ["c d"]});
    let found = forecast(&reader, json!({"network": network, "hosts": ["a.example"]})).await;
    let problems: Vec<_> =
        found["problems"].as_array().unwrap().iter().map(|one| json!([one["field"], one["value"]])).collect();
    let expected = [
        json!(["network.presets", "pypi"]),
        json!(["network.allow", "a_b.example"]),
        json!(["network.allow", "192.0.2.1"]),
        json!(["network.deny", "c d"]),
    ];
    assert_eq!(problems, expected, "{found}");
    assert_eq!((&found["network"], &found["hosts"]), (&Value::Null, &json!([])));
    // Parts that contradict each other.
    let found = forecast(&reader, json!({"network": {"mode": "disabled", "allow": ["a.example"]}})).await;
    assert_eq!(found["problems"].as_array().unwrap().len(), 1, "{found}");
}

async fn requests_are_checked(fixture: Fixture) {
    let user = fixture.user().await;
    let many: Vec<_> = (0..65).map(|index| format!("{index}.example")).collect();
    for (body, field) in [
        (json!({"hosts": ["a.example:0"]}), "hosts"),
        (json!({"hosts": ["*.example"]}), "hosts"),
        (json!({"hosts": many}), "hosts"),
        (json!({"network": "open", "sandbox": "a"}), "sandbox"),
        (json!({"network": {"allowed": []}}), "network.allowed"),
        (json!({"host": "a"}), "host"),
    ] {
        user.post("/v1/network/check", &body).await.refused(400, "invalid_field", Some(field));
    }
    // The token of a sandbox is no key.
    let id = sandbox(&user).await;
    let token = user.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await.json();
    let inside = user.with_key(token["token"].as_str().unwrap());
    inside.get("/v1/network").await.refused(403, "forbidden", None);
    inside.post("/v1/network/check", &json!({"hosts": []})).await.refused(403, "forbidden", None);
}
