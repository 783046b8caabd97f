//! Sessions of pages: a cookie and a token together.

use axum::body::Body;
use belljar_model::Role;
use belljar_testing::wait::until;
use serde_json::json;

use crate::client::{Answer, Client};
use crate::common::ORIGIN;
use crate::fixture::{Fixture, cases, sandbox};

cases![
    session_acts_as_its_key,
    cookie_alone_is_refused,
    pages_of_other_origins_have_no_session,
    sessions_end_with_their_key,
    streams_end_with_what_their_key_may_do,
    uploads_end_with_their_key,
    sessions_end_when_signed_out,
    links_are_used_once,
    sessions_begin_no_others,
];

/// A page with a session.
struct Page {
    client: Client,
    cookie: String,
    token: String,
}

impl Page {
    fn of(fixture: &Fixture, begun: &Answer) -> Self {
        assert_eq!(begun.status, 201, "{begun:?}");
        let set = begun.header("set-cookie").to_owned();
        assert!(set.ends_with("; Path=/v1; Max-Age=604800; HttpOnly; SameSite=Strict"), "{set}");
        let cookie = set.split(';').next().unwrap().to_owned();
        Self { client: fixture.stranger(), cookie, token: begun.json()["token"].as_str().unwrap().to_owned() }
    }

    /// Begins a session of a key.
    async fn sign_in(fixture: &Fixture, client: &Client) -> Self {
        let page = Self::of(fixture, &client.call("POST", "/v1/session").await);
        assert_eq!(client.call("POST", "/v1/session").await.header("cache-control"), "no-store");
        page
    }

    fn request(&self, method: &str, path: &str) -> http::request::Builder {
        self.client
            .request(method, path)
            .header("cookie", &self.cookie)
            .header("x-belljar-session", &self.token)
    }

    async fn call(&self, method: &str, path: &str) -> Answer {
        self.client.send(self.request(method, path), "").await
    }
}

async fn session_acts_as_its_key(fixture: Fixture) {
    let user = fixture.user().await;
    let page = Page::sign_in(&fixture, &user).await;
    let mut me = user.get("/v1/me").await.json();
    assert_eq!(page.call("GET", "/v1/me").await.json(), me);
    page.call("GET", "/v1/keys").await.refused(403, "forbidden", None);
    let made = page.client.send(
        page.request("POST", "/v1/sandboxes").header("content-type", "application/json"),
        json!({}).to_string(),
    );
    let made = made.await.json();
    me = user.get("/v1/me").await.json();
    assert_eq!((&made["key"], &me["usage"]["sandboxes"]), (&me["key"], &json!(1)));
    // The audit log names the key, and the sign-in.
    let admin = fixture.client("default", Role::Admin).await;
    let records = admin.get("/v1/audit?action=session.create").await.json();
    assert_eq!(
        (&records["records"][0]["key_id"], &records["records"][0]["details"]["from"]),
        (&me["key"], &json!("key"))
    );
    // Several cookies of the name: that of the token counts.
    let request = page.client.request("GET", "/v1/me").header("x-belljar-session", &page.token);
    let cookies = format!("belljar_session=bjc_{}; other=1; {}", "0".repeat(64), page.cookie);
    assert_eq!(page.client.send(request.header("cookie", cookies), "").await.status, 200);
    // A WebSocket has the token as a subprotocol.
    let id = made["id"].as_str().unwrap();
    for (protocols, status) in
        [(format!("belljar.session, {}", page.token), 101), ("belljar.session".to_owned(), 401)]
    {
        let request = page
            .client
            .request("GET", &format!("/v1/sandboxes/{id}/terminal"))
            .header("cookie", &page.cookie)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", protocols);
        let head = page.client.open(request.body(Body::empty()).unwrap()).await;
        assert_eq!(head.status(), status, "{head:?}");
        let protocol = head.headers().get("sec-websocket-protocol").map(|value| value.to_str().unwrap());
        assert_eq!(protocol, (status == 101).then_some("belljar.session"));
    }
}

async fn cookie_alone_is_refused(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let (page, other) = (Page::sign_in(&fixture, &user).await, Page::sign_in(&fixture, &user).await);
    for token in [None, Some(""), Some("0"), Some(other.token.as_str()), Some(page.cookie.as_str())] {
        for (method, path) in [
            ("GET", "/v1/me".to_owned()),
            ("POST", format!("/v1/sandboxes/{id}/pause")),
            ("DELETE", "/v1/session".to_owned()),
        ] {
            let mut request = page.client.request(method, &path).header("cookie", &page.cookie);
            if let Some(token) = token {
                request = request.header("x-belljar-session", token);
            }
            page.client.send(request, "").await.refused(401, "unauthenticated", None);
        }
    }
    // Nor the token alone, nor either as a key.
    let token = page.client.request("GET", "/v1/me").header("x-belljar-session", &page.token);
    page.client.send(token, "").await.refused(401, "unauthenticated", None);
    for secret in [&page.token, page.cookie.split('=').nth(1).unwrap()] {
        fixture.stranger().with_key(secret).get("/v1/me").await.refused(401, "unauthenticated", None);
    }
    assert_eq!(user.get(&format!("/v1/sandboxes/{id}")).await.json()["state"], "running");
    // Other interfaces take no sessions.
    let request = page.request("POST", "/mcp").header("content-type", "application/json");
    let answer = page.client.send(request, "{}").await;
    assert_eq!(answer.status, 401, "{answer:?}");
}

async fn pages_of_other_origins_have_no_session(fixture: Fixture) {
    let user = fixture.user().await;
    let page = Page::sign_in(&fixture, &user).await;
    let own = format!("http://{}", fixture.address);
    for (origin, status) in [(own.as_str(), 200), ("http://127.0.0.1:1", 403), ("null", 403), (ORIGIN, 401)] {
        let answer = page.client.send(page.request("GET", "/v1/me").header("origin", origin), "").await;
        assert_eq!(answer.status, status, "{origin} {answer:?}");
    }
    // A page whose origin is allowed is told that it cannot send the token.
    let preflight = page
        .client
        .request("OPTIONS", "/v1/me")
        .header("origin", ORIGIN)
        .header("access-control-request-method", "GET");
    let answer = page.client.send(preflight, "").await;
    assert!(!answer.header("access-control-allow-headers").contains("x-belljar-session"), "{answer:?}");
    assert_eq!(answer.header("access-control-allow-credentials"), "");
}

async fn sessions_end_with_their_key(fixture: Fixture) {
    let admin = fixture.client("default", Role::Admin).await;
    let made = admin.post("/v1/keys", &json!({"name": "k", "role": "read"})).await.json();
    let key = fixture.stranger().with_key(made["key"].as_str().unwrap());
    let page = Page::sign_in(&fixture, &key).await;
    let id = made["id"].as_str().unwrap();
    // A changed role counts from the next request on.
    let changed = admin.json("PATCH", &format!("/v1/keys/{id}"), &json!({"role": "user"})).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(page.call("GET", "/v1/me").await.json()["role"], "user");
    let stream = page.request("GET", "/v1/events").body(Body::empty()).unwrap();
    let mut events = page.client.apart().events(stream).await;
    assert_eq!(admin.delete(&format!("/v1/keys/{id}")).await.status, 204);
    page.call("GET", "/v1/me").await.refused(401, "unauthenticated", None);
    let last = events.rest().await.pop().unwrap();
    assert_eq!((last.0.as_str(), &last.1["code"]), ("error", &json!("unauthenticated")));
}

async fn streams_end_with_what_their_key_may_do(fixture: Fixture) {
    let admin = fixture.client("default", Role::Admin).await;
    for (change, ends) in [
        (json!({"name": "renamed"}), false),
        (json!({"role": "admin"}), false),
        (json!({"role": "read"}), true),
        (json!({"approval": "always"}), true),
        // That is looked at now and then.
        (json!({"expires": 1}), true),
    ] {
        let made = admin.post("/v1/keys", &json!({"name": "k", "role": "user"})).await.json();
        let key = fixture.stranger().with_key(made["key"].as_str().unwrap());
        let mut events = key.events(key.request("GET", "/v1/events").body(Body::empty()).unwrap()).await;
        let id = made["id"].as_str().unwrap();
        let changed = admin.json("PATCH", &format!("/v1/keys/{id}"), &change).await;
        assert_eq!(changed.status, 200, "{changed:?}");
        if ends {
            let last = events.rest().await.pop().unwrap();
            assert_eq!((last.0.as_str(), &last.1["code"]), ("error", &json!("unauthenticated")), "{change}");
        } else {
            sandbox(&key).await;
            assert_eq!(events.next().await.unwrap().0, "sandbox.created", "{change}");
        }
    }
}

async fn uploads_end_with_their_key(fixture: Fixture) {
    let admin = fixture.client("default", Role::Admin).await;
    let id = sandbox(&admin).await;
    let changes = [None, Some(json!({"role": "read"})), Some(json!({"approval": "always"}))];
    // Also those that are short, and take their time.
    for (change, length) in changes.iter().flat_map(|change| [(change, None), (change, Some("60000"))]) {
        let made = admin.post("/v1/keys", &json!({"name": "k", "role": "user"})).await.json();
        let key = fixture.stranger().with_key(made["key"].as_str().unwrap());
        let (mut pieces, received) =
            futures::channel::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
        let path = format!("/v1/sandboxes/{id}/files/content?path=late.txt");
        let sending = tokio::spawn(async move {
            let request = key.request("PUT", &path);
            let request =
                length.into_iter().fold(request, |request, length| request.header("content-length", length));
            key.send_request(request.body(Body::from_stream(received)).unwrap()).await
        });
        // The second is taken once the first is on its way.
        for piece in ["before", "before"] {
            futures::SinkExt::send(&mut pieces, Ok(piece.into())).await.unwrap();
        }
        let path = format!("/v1/keys/{}", made["id"].as_str().unwrap());
        let changed = match change {
            None => admin.delete(&path).await,
            Some(change) => admin.json("PATCH", &path, change).await,
        };
        assert!(changed.status.is_success(), "{changed:?}");
        sending.await.unwrap().refused(401, "unauthenticated", None);
        let found = admin.get(&format!("/v1/sandboxes/{id}/files/stat?path=late.txt")).await;
        found.refused(404, "path_not_found", None);
    }
}

async fn sessions_end_when_signed_out(fixture: Fixture) {
    let user = fixture.user().await;
    let (first, second) = (Page::sign_in(&fixture, &user).await, Page::sign_in(&fixture, &user).await);
    let stream = first.request("GET", "/v1/events").body(Body::empty()).unwrap();
    let mut events = first.client.apart().events(stream).await;
    let ended = first.call("DELETE", "/v1/session").await;
    assert_eq!(ended.status, 204, "{ended:?}");
    assert!(ended.header("set-cookie").starts_with("belljar_session=; Path=/v1; Max-Age=0;"), "{ended:?}");
    first.call("GET", "/v1/me").await.refused(401, "unauthenticated", None);
    let last = events.rest().await.pop().unwrap();
    assert_eq!(last.1["detail"], "the session has ended");
    // The other one stays, until all of the key end.
    assert_eq!(second.call("GET", "/v1/me").await.status, 200);
    let link = user.call("POST", "/v1/session/links").await.json();
    user.delete("/v1/session").await.refused(400, "invalid_field", Some("everywhere"));
    assert_eq!(user.delete("/v1/session?everywhere=true").await.status, 204);
    second.call("GET", "/v1/me").await.refused(401, "unauthenticated", None);
    let redeemed = fixture.stranger().post("/v1/session/redeem", &json!({"link": link["link"]})).await;
    redeemed.refused(401, "unauthenticated", None);
    assert_eq!(user.get("/v1/me").await.status, 200);
}

async fn links_are_used_once(fixture: Fixture) {
    let user = fixture.user().await;
    let made = user.call("POST", "/v1/session/links").await.json();
    let link = made["link"].as_str().unwrap();
    assert_eq!(made["path"], format!("/console#link={link}"));
    let stranger = fixture.stranger();
    let body = json!({"link": link});
    // Of several at the same time, one gets the session.
    let all = futures::future::join_all((0..4).map(|_| stranger.post("/v1/session/redeem", &body))).await;
    let begun: Vec<_> = all.iter().filter(|answer| answer.status == 201).collect();
    let refused = all.iter().filter(|answer| answer.status == 401).count();
    assert_eq!((begun.len(), refused), (1, 3), "{all:?}");
    let page = Page::of(&fixture, begun[0]);
    assert_eq!(page.call("GET", "/v1/me").await.json()["key"], user.get("/v1/me").await.json()["key"]);
    // Whoever has no key makes the server keep little.
    let large = json!({"link": "x".repeat(2000)});
    stranger.post("/v1/session/redeem", &large).await.refused(413, "too_large", None);
    // A link is no key, and a key or a session's cookie is no link.
    let cookie = page.cookie.split('=').nth(1).unwrap();
    for secret in ["", "bjl_", cookie, &page.token] {
        let answer = stranger.post("/v1/session/redeem", &json!({"link": secret})).await;
        answer.refused(401, "unauthenticated", None);
    }
    let fresh = user.call("POST", "/v1/session/links").await.json();
    stranger.with_key(fresh["link"].as_str().unwrap()).get("/v1/me").await.refused(
        401,
        "unauthenticated",
        None,
    );
    assert_eq!(page.call("GET", "/v1/me").await.status, 200);
}

async fn sessions_begin_no_others(fixture: Fixture) {
    let user = fixture.user().await;
    let page = Page::sign_in(&fixture, &user).await;
    for path in ["/v1/session", "/v1/session/links"] {
        page.call("POST", path).await.refused(403, "policy_refused", Some("session"));
    }
    // Nor does the token of a sandbox.
    let id = sandbox(&user).await;
    let token = user.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await.json();
    let inside = fixture.stranger().with_key(token["token"].as_str().unwrap());
    inside.call("POST", "/v1/session").await.refused(403, "forbidden", None);
    // A program in the sandbox neither gets the cookie nor can set one of its name.
    let program = r#"
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Set-Cookie", "belljar_session=forged")
        self.end_headers()
        self.wfile.write(str(self.headers).encode())
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"#;
    let started = json!({"argv": ["python3", "-c", program]});
    assert_eq!(user.post(&format!("/v1/sandboxes/{id}/processes"), &started).await.status, 201);
    user.post(&format!("/v1/sandboxes/{id}/ports"), &json!({"port": 8000, "public": true})).await;
    let path = format!("/v1/sandboxes/{id}/ports/8000/proxy/");
    until("the program listens", async || page.call("GET", &path).await.status == 200).await;
    let answer = page.call("GET", &path).await;
    assert!(!answer.text().contains("belljar_session"), "{answer:?}");
    assert_eq!(answer.header("set-cookie"), "");
}
