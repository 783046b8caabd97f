//! Screening over REST.

use belljar_model::Role;
use serde_json::{Value, json};

use crate::fixture::{Fixture, cases, sandbox};

cases![reports_are_advice, requests_are_checked, screenings_are_limited];

async fn reports_are_advice(fixture: Fixture) {
    let user = fixture.user().await;
    let code = "import os\nos.system('rm -rf /')";
    let answer = user.post("/v1/screen", &json!({"language": "py", "code": code})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let report = answer.json();
    assert_eq!((&report["language"], &report["risk"]), (&json!("python"), &json!("high")));
    assert!(report["advice"].as_str().unwrap().contains("not a wall"), "{report}");
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["rule"] == "destructive-command").unwrap();
    assert_eq!((&found["line"], &found["inside"]), (&json!(2), &json!("bash")));
    // Whatever is found, the same code runs: in the walls.
    let id = sandbox(&user).await;
    let ran = user
        .post(&format!("/v1/sandboxes/{id}/code"), &json!({"code": "import os\nprint(os.system('true'))"}))
        .await;
    assert_eq!(ran.status, 200, "{ran:?}");
    let modules = json!({"language": "js", "code": "require('fs')", "modules": {"deny": ["fs"]}});
    let report = user.post("/v1/screen", &modules).await.json();
    assert_eq!(report["findings"][0]["rule"], "module-denied", "{report}");
}

async fn requests_are_checked(fixture: Fixture) {
    let user = fixture.user().await;
    for (body, field) in [
        (json!({"language": "python"}), "code"),
        (json!({"code": ""}), "language"),
        (json!({"language": "pyton", "code": ""}), "language"),
        (json!({"language": "c", "code": ""}), "language"),
        (json!({"language": "python", "code": "", "rules": []}), "rules"),
        (json!({"language": "python", "code": "a".repeat((1 << 20) + 1)}), "code"),
        (json!({"language": "python", "code": "", "modules": {"deny": [""]}}), "modules.deny"),
        (json!({"language": "python", "code": "", "modules": {"allow": ["\u{1}"]}}), "modules.allow"),
        (json!({"language": "python", "code": "", "modules": {"forbid": []}}), "modules.forbid"),
    ] {
        user.post("/v1/screen", &body).await.refused(400, "invalid_field", Some(field));
    }
    let all = json!({"language": "python", "code": "a".repeat(1 << 20)});
    assert_eq!(user.post("/v1/screen", &all).await.status, 200);
    let reader = fixture.client("default", Role::Read).await;
    let code = json!({"language": "python", "code": ""});
    reader.post("/v1/screen", &code).await.refused(403, "forbidden", None);
}

async fn screenings_are_limited(fixture: Fixture) {
    let (greedy, modest) = (fixture.user().await, fixture.client("other", Role::User).await);
    // Each takes as long as a screening may; all together are less than the half of a key's memory with which calls are refused.
    let slow: Value = json!({"language": "python", "code": "x = [f(a, 'b') for a in y]\n".repeat(13_000)});
    let many = (0..80).map(|_| {
        let (client, slow) = (greedy.apart(), slow.clone());
        tokio::spawn(async move { client.post("/v1/screen", &slow).await })
    });
    let many: Vec<_> = many.collect();
    let code = json!({"language": "python", "code": "eval(x)"});
    // The key that waits least gets its turn, and is never refused for the others.
    for _ in 0..3 {
        let answer = modest.post("/v1/screen", &code).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let (mut done, mut limited) = (0, 0);
    for one in many {
        let answer = one.await.unwrap();
        if answer.status == 200 {
            done += 1;
        } else {
            answer.assert(429, "rate_limited");
            assert!(answer.json()["retry_after_s"].as_u64() >= Some(1), "{answer:?}");
            limited += 1;
        }
    }
    assert!(done >= 60 && limited >= 1, "{done} done, {limited} limited");
}
