//! The guards of every route.

use axum::body::Body;
use belljar_api::ApiConfig;
use serde_json::json;

use crate::common::DOMAIN;
use crate::fixture::{Fixture, cases, config, sandbox};

cases![
    almost_every_route_needs_a_key,
    hosts_and_origins_are_checked,
    wrong_keys_are_counted,
    credentials_in_links_and_cookies_are_not_counted,
    requests_have_ids,
    unknown_paths_and_methods_return_problems,
    the_docs_work_offline,
];

async fn almost_every_route_needs_a_key(fixture: Fixture) {
    let stranger = fixture.stranger();
    for path in ["/health", "/ready", "/version"] {
        let answer = stranger.get(path).await;
        assert_eq!(answer.status, 200, "{path} {answer:?}");
    }
    assert_eq!(stranger.get("/health").await.json(), json!({"status": "ok"}));
    for path in ["/metrics", "/v1/me", "/v1/none", "/v1", "/none", "/", "/v1/sandboxes/x/y/z"] {
        for method in ["GET", "POST", "DELETE", "OPTIONS", "PATCH"] {
            stranger.call(method, path).await.refused(401, "unauthenticated", None);
        }
    }
    let refused = stranger.get("/v1/me").await;
    assert_eq!(refused.header("www-authenticate"), "Bearer");
    let closed = fixture.beside(ApiConfig { open_docs: false, open_metrics: true, ..config() }).await;
    closed.stranger().get("/docs/").await.refused(401, "unauthenticated", None);
    closed.stranger().get("/openapi.json").await.refused(401, "unauthenticated", None);
    assert_eq!(closed.stranger().get("/metrics").await.status, 200);
    // The body is not awaited.
    let pending = futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let request = stranger.request("POST", "/v1/sandboxes").header("content-type", "application/json");
    let answer = stranger.open(request.body(Body::from_stream(pending)).unwrap()).await;
    assert_eq!(answer.status(), 401);
}

async fn hosts_and_origins_are_checked(fixture: Fixture) {
    let user = fixture.user().await;
    let key = user.key.clone().unwrap();
    let call = |method: &'static str, headers: Vec<(&'static str, &'static str)>| {
        let mut request = http::Request::builder().method(method).uri("/v1/me").header("x-api-key", &key);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        user.send_request(request.body(Body::empty()).unwrap())
    };
    for host in ["localhost", "127.0.0.1:99", "[::1]", "box.test"] {
        assert_eq!(call("GET", vec![("host", host)]).await.status, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1"] {
        call("GET", vec![("host", host)]).await.refused(403, "host_not_allowed", None);
    }
    call("GET", vec![("host", "localhost"), ("origin", "http://evil.example")]).await.refused(
        403,
        "origin_not_allowed",
        None,
    );
    call("GET", vec![("host", "localhost"), ("origin", "null")]).await.refused(
        403,
        "origin_not_allowed",
        None,
    );
    let allowed = call("GET", vec![("host", "localhost"), ("origin", "https://console.example.com")]).await;
    assert_eq!(
        (allowed.status.as_u16(), allowed.header("access-control-allow-origin")),
        (200, "https://console.example.com")
    );
    assert_eq!(allowed.header("vary"), "Origin");
    let asked = vec![
        ("host", "localhost"),
        ("origin", "https://console.example.com"),
        ("access-control-request-method", "DELETE"),
    ];
    let preflight = call("OPTIONS", asked).await;
    assert_eq!((preflight.status.as_u16(), preflight.body.len()), (204, 0));
    assert!(preflight.header("access-control-allow-methods").contains("DELETE"));
    assert_eq!(preflight.header("access-control-allow-credentials"), "");
    // A web page can read the error, too.
    let request = http::Request::builder()
        .uri("/v1/me")
        .header("host", "localhost")
        .header("origin", "https://console.example.com");
    let refused = user.send_request(request.body(Body::empty()).unwrap()).await;
    refused.refused(401, "unauthenticated", None);
    assert_eq!(refused.header("access-control-allow-origin"), "https://console.example.com");
}

async fn wrong_keys_are_counted(fixture: Fixture) {
    let few = fixture.beside(ApiConfig { max_failed_attempts: 3, ..config() }).await;
    let user = few.user().await;
    let wrong = few.stranger().with_key(&format!("bj_{}", "0".repeat(64)));
    for _ in 0..3 {
        wrong.get("/v1/me").await.refused(401, "unauthenticated", None);
    }
    let waiting = wrong.get("/v1/me").await;
    waiting.refused(429, "too_many_attempts", None);
    assert!((1..=60).contains(&waiting.header("retry-after").parse::<u64>().unwrap()));
    // A valid key of the same address is served, and so is a token.
    assert_eq!(user.get("/v1/me").await.status, 200);
    let id = sandbox(&user).await;
    let token = user.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await.json()["token"].clone();
    let holder = few.stranger().with_key(token.as_str().unwrap());
    assert_eq!(holder.get(&format!("/v1/sandboxes/{id}")).await.status, 200);
    // A request without a key does not count as a failed attempt.
    few.stranger().get("/v1/me").await.refused(401, "unauthenticated", None);
    assert_eq!(few.stranger().get("/health").await.status, 200);
}

/// Pages of any origin can make a browser send these.
async fn credentials_in_links_and_cookies_are_not_counted(fixture: Fixture) {
    let few = fixture.beside(ApiConfig { max_failed_attempts: 3, ..config() }).await;
    let stranger = few.stranger();
    let id = "a".repeat(20);
    let host = format!("8000-{id}.{DOMAIN}");
    for _ in 0..4 {
        let (own, cookie) =
            ([("host", "localhost")], [("host", host.as_str()), ("cookie", "belljar_token=bjs_wrong")]);
        for (path, headers) in [
            ("/?belljar_token=bjs_wrong".to_owned(), &cookie[..1]),
            ("/".to_owned(), &cookie[..]),
            (format!("/v1/sandboxes/{id}/ports/80/proxy/?belljar_token=bjs_wrong"), &own[..]),
            ("/v1/signed/bjs_wrong".to_owned(), &own[..]),
        ] {
            let mut request = http::Request::builder().uri(&path);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let refused = stranger.send_request(request.body(Body::empty()).unwrap()).await;
            refused.refused(401, "unauthenticated", None);
        }
    }
    let wrong = stranger.with_key(&format!("bj_{}", "0".repeat(64)));
    wrong.get("/v1/me").await.refused(401, "unauthenticated", None);
}

async fn requests_have_ids(fixture: Fixture) {
    let user = fixture.user().await;
    let own = user
        .send_request(
            user.request("GET", "/v1/none").header("x-request-id", "my.id-1_A").body(Body::empty()).unwrap(),
        )
        .await;
    let (id, given) = own.header("x-request-id").split_once('/').unwrap();
    assert_eq!((id.len(), given), (16, "my.id-1_A"));
    assert_eq!(own.json()["request_id"], own.header("x-request-id"));
    let strange = user
        .send_request(
            user.request("GET", "/v1/me").header("x-request-id", "a b").body(Body::empty()).unwrap(),
        )
        .await;
    assert_eq!(strange.header("x-request-id").len(), 16);
    assert_ne!(
        user.get("/v1/me").await.header("x-request-id"),
        user.get("/v1/me").await.header("x-request-id")
    );
}

async fn unknown_paths_and_methods_return_problems(fixture: Fixture) {
    let user = fixture.user().await;
    user.get("/v1/none").await.refused(404, "not_found", None);
    user.get("/none").await.refused(404, "not_found", None);
    let refused = user.call("PUT", "/v1/sandboxes").await;
    refused.refused(405, "method_not_allowed", None);
    assert!(refused.header("allow").contains("POST"), "{refused:?}");
    user.call("POST", "/health").await.refused(405, "method_not_allowed", None);
    let id = sandbox(&user).await;
    user.call("BREW", &format!("/v1/sandboxes/{id}")).await.refused(405, "method_not_allowed", None);
    let long = user.get(&format!("/v1/sandboxes/{}", "x".repeat(300))).await;
    long.refused(400, "invalid_field", Some("id"));
    user.get("/v1/sandboxes/%ff").await.refused(400, "invalid_field", Some("id"));
}

async fn the_docs_work_offline(fixture: Fixture) {
    let stranger = fixture.stranger();
    let moved = stranger.get("/docs").await;
    assert_eq!((moved.status.as_u16(), moved.header("location")), (303, "/docs/"));
    let page = stranger.get("/docs/").await;
    assert_eq!(page.status, 200);
    assert!(!page.text().contains("//cdn") && !page.text().contains("https://"), "{}", page.text());
    for file in ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-initializer.js"] {
        assert_eq!(stranger.get(&format!("/docs/{file}")).await.status, 200, "{file}");
    }
    assert!(stranger.get("/docs/swagger-initializer.js").await.text().contains("/openapi.json"));
    assert_eq!(stranger.get("/openapi.json").await.json()["openapi"], "3.1.0");
}
