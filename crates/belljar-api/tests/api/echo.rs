//! A facade of a test: one route, with its own form of errors.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use belljar_api::{Api, ApiConfig, Claims, Facade, Form, Head};
use belljar_keeper::Caller;

use crate::client::Client;
use crate::fixture::{Fixture, cases, config};

cases![other_facades_have_the_same_guards, claims_of_another_facade_are_refused];

struct Echo {
    name: &'static str,
    claims: Claims,
}

impl Facade for Echo {
    fn name(&self) -> &'static str {
        self.name
    }

    fn claims(&self) -> Claims {
        self.claims
    }

    fn form(&self, _head: Head<'_>) -> Form {
        Box::new(|problem, id| {
            (problem.code().status(), format!("echo: {} ({id})", problem.detail())).into_response()
        })
    }

    fn router(&self) -> Router {
        Router::new().route("/echo/{word}", any(echo)).route("/v1/sandboxes", any(echo))
    }

    fn is_open(&self, head: Head<'_>) -> bool {
        head.path == "/echo/open"
    }
}

async fn echo(request: Request) -> Response {
    let key = request.extensions().get::<Caller>().map(|caller| caller.key.clone());
    format!("{} by {}", request.uri().path(), key.unwrap_or_default()).into_response()
}

const CLAIMS: Claims = Claims { labels: &[], headers: &["x-echo"], prefixes: &["/echo/"] };

async fn other_facades_have_the_same_guards(fixture: Fixture) {
    let api = Api::new(ApiConfig { e2b: true, ..config() }, fixture.keeper.clone());
    let api = api.with_facade(Arc::new(Echo { name: "echo", claims: CLAIMS })).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = belljar_api::Listener::Tcp(listener, None);
    let serving = tokio::spawn(async move { api.serve(listener, std::future::pending()).await });
    let key = fixture.user().await.key;
    let user = Client::new(address, key.as_deref());
    let stranger = Client::new(address, None);
    let me = user.get("/v1/me").await.json();
    let me = me["key"].as_str().unwrap();
    assert_eq!(user.get("/echo/place").await.text(), format!("/echo/place by {me}"));
    assert_eq!(stranger.get("/echo/open").await.text(), "/echo/open by ");
    // Its refusals have its form, and unknown paths too.
    for (client, path, status, text) in [
        (&stranger, "/echo/place", 401, "echo: missing or invalid key"),
        (&user, "/echo/a/b", 404, "echo: no such endpoint"),
    ] {
        let answer = client.get(path).await;
        assert!(answer.status == status && answer.text().starts_with(text), "{answer:?}");
    }
    stranger.get("/v1/me").await.refused(401, "unauthenticated", None);
    user.get("/echoes").await.refused(404, "not_found", None);
    // A claimed header takes a path that another facade has as well.
    let request = user.request("GET", "/v1/sandboxes").header("x-echo", "1");
    assert_eq!(user.send(request, "").await.text(), format!("/v1/sandboxes by {me}"));
    assert!(user.get("/v1/sandboxes").await.json()["sandboxes"].is_array());
    serving.abort();
}

async fn claims_of_another_facade_are_refused(fixture: Fixture) {
    for (name, claims, expected) in [
        ("rest", Claims::default(), "the facades rest and rest both claim the name rest"),
        (
            "echo",
            Claims { prefixes: &["/v1/sandboxes"], ..CLAIMS },
            "the facades echo and rest both claim the path /v1/",
        ),
        (
            "echo",
            Claims { headers: &["e2b-sandbox-id"], ..CLAIMS },
            "the facades echo and e2b both claim the header e2b-sandbox-id",
        ),
        (
            "echo",
            Claims { labels: &["api"], ..CLAIMS },
            "the facades echo and e2b both claim the host name api",
        ),
    ] {
        let api = Api::new(ApiConfig { e2b: true, ..config() }, fixture.keeper.clone());
        let refused =
            api.with_facade(Arc::new(Echo { name, claims })).err().map(|conflict| conflict.to_string());
        assert_eq!(refused.as_deref(), Some(expected));
    }
}
