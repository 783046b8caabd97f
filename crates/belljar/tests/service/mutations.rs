//! Each wall of the service, disabled alone: the attack that it prevents must succeed then. The other files have the attacks with all
//! walls.

use serde_json::json;

use crate::client::Client;
use crate::raw::{flood, send};
use crate::run;
use crate::server::{Home, Server};

/// A server without one wall, and two tenants with a sandbox each.
struct Fixture {
    home: Home,
    server: Server,
    admin: Client,
    first: Client,
    second: Client,
    /// The first tenant's sandbox.
    id: String,
}

impl Fixture {
    async fn without(wall: &'static str) -> Self {
        let mut home = Home::new(&[
            "sandboxes.pool=0",
            "server.domain=sandboxes.test",
            "sandboxes.mounts.read=/usr/share",
        ]);
        home.without = Some(wall);
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let first = admin.with_key(&admin.new_key("user", "first").await.1);
        let second = admin.with_key(&admin.new_key("user", "second").await.1);
        let id = first.sandbox(&json!({ "timeout": 3600 })).await;
        first
            .send(first.request("PUT", &format!("/v1/sandboxes/{id}/files/content?path=a.txt")), "secret")
            .await;
        Self { home, server, admin, first, second, id }
    }

    fn file(&self) -> String {
        format!("/v1/sandboxes/{}/files/content?path=a.txt", self.id)
    }

    async fn shut_down(self) {
        drop((self.first, self.second, self.admin));
        crate::crash::shut_down(self.server, &self.home).await;
    }
}

/// Runs an attack on a server that lacks a wall.
fn attack(case: &str, wall: &'static str, attack: impl AsyncFnOnce(&Fixture)) {
    if crate::skipped(case) {
        return;
    }
    if !cfg!(feature = "mutation") && !wall.is_empty() {
        crate::say(&format!("SKIPPED {case}: this build has no way to take a wall away"));
        return;
    }
    run(async {
        let fixture = Fixture::without(wall).await;
        attack(&fixture).await;
        fixture.shut_down().await;
    });
}

#[test]
fn c01_without_key_checks_any_key_opens() {
    attack("C01", "service:keys", async |fixture| {
        let wrong = fixture.admin.with_key(&format!("bj_{}", "0".repeat(64)));
        assert_eq!(wrong.get(&fixture.file()).await.text(), "secret");
    });
}

#[test]
fn c01_without_roles_a_read_key_creates_keys() {
    attack("C01", "service:roles", async |fixture| {
        let read = fixture.admin.with_key(&fixture.admin.new_key("read", "first").await.1);
        let made = read.post("/v1/keys", &json!({ "name": "x", "role": "admin" })).await;
        assert_eq!(made.status, 201, "{made:?}");
        // Also in a sandbox, and with a sandbox's token.
        let exec =
            read.post(&format!("/v1/sandboxes/{}/exec", fixture.id), &json!({ "command": "true" })).await;
        assert_eq!(exec.status, 200, "{exec:?}");
        let made =
            fixture.first.post(&format!("/v1/sandboxes/{}/tokens", fixture.id), &json!({})).await.json();
        let token = fixture.admin.with_key(made["token"].as_str().expect("it is reported"));
        assert_eq!(token.get("/v1/sandboxes").await.status, 200);
    });
}

#[test]
fn c02_x02_without_tenants_a_foreign_sandbox_is_found() {
    attack("C02, X02", "service:tenants", async |fixture| {
        assert_eq!(fixture.second.get(&fixture.file()).await.text(), "secret");
        let answer = fixture.second.get("/v1/events?follow=false").await;
        let events = answer.text();
        assert!(events.contains(&fixture.id), "{events}");
    });
}

/// Returns the statuses of the second tenant reading a secret of the first, and creating a sandbox that uses it.
async fn foreign_secret(fixture: &Fixture) -> (u16, u16) {
    let secret = json!({"name": "mine", "value": "s3cret-value", "hosts": ["a.example"]});
    assert_eq!(fixture.first.post("/v1/secrets", &secret).await.status, 201);
    let found = fixture.second.get("/v1/secrets/mine").await;
    assert!(!found.text().contains("s3cret"), "{found:?}");
    let header = json!({"host": "a.example", "header": "x", "value": "${secrets.mine}"});
    let network = json!({"allow": ["a.example"], "headers": [header]});
    let made = fixture.second.post("/v1/sandboxes", &json!({"network": network})).await;
    (found.status.as_u16(), made.status.as_u16())
}

#[test]
fn x02_without_tenants_a_foreign_secret_is_found() {
    attack("X02", "service:tenants", async |fixture| assert_eq!(foreign_secret(fixture).await, (200, 201)));
    attack("X02", "", async |fixture| assert_eq!(foreign_secret(fixture).await, (404, 400)));
}

#[test]
fn x11_without_scope_a_token_opens_the_sibling() {
    attack("X11", "service:token-scope", async |fixture| {
        let sibling = fixture.first.sandbox(&json!({ "timeout": 3600 })).await;
        let made = fixture.first.post(&format!("/v1/sandboxes/{sibling}/tokens"), &json!({})).await.json();
        let token = fixture.admin.with_key(made["token"].as_str().expect("it is reported"));
        assert_eq!(token.get(&fixture.file()).await.text(), "secret");
    });
}

#[test]
fn x11_without_mac_a_token_can_be_forged() {
    attack("X11", "service:token-mac", async |fixture| {
        let made =
            fixture.first.post(&format!("/v1/sandboxes/{}/tokens", fixture.id), &json!({})).await.json();
        let token = made["token"].as_str().expect("it is reported");
        // Changes the expiry, which invalidates the MAC.
        let mut letters: Vec<char> = token.chars().collect();
        let last = letters.len() - 8;
        letters[last] = if letters[last] == 'A' { 'B' } else { 'A' };
        let forged: String = letters.into_iter().collect();
        assert_eq!(fixture.admin.with_key(&forged).get(&fixture.file()).await.text(), "secret");
    });
}

#[test]
fn c05_without_a_bound_large_bodies_are_accepted() {
    attack("C05", "service:body-bounds,service:unread-answers", async |fixture| {
        let (address, key) = (fixture.server.address, &fixture.server.key);
        let head = format!(
            "POST /v1/sandboxes HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: 134217728\r\n\r\n"
        );
        let (heard, sent) = flood(address, head.as_bytes(), &[b' '; 65536], 128 << 20).await;
        assert!(sent >= 128 << 20, "only {sent} bytes were taken: {}", heard.text());
    });
}

/// Returns the status of a request without a key whose body is far larger than a link.
async fn redeem_large(fixture: &Fixture) -> u16 {
    let stranger = fixture.server.stranger();
    let link = format!("bjl_{}", "0".repeat(100 << 10));
    stranger.post("/v1/session/redeem", &json!({ "link": link })).await.status.as_u16()
}

#[test]
fn c05_without_a_bound_anybody_sends_large_bodies() {
    attack("C05", "service:body-bounds", async |fixture| assert_eq!(redeem_large(fixture).await, 401));
    attack("C05", "", async |fixture| assert_eq!(redeem_large(fixture).await, 413));
}

/// Returns the status of another key of the tenant removing a snapshot, from which the tenant's tools may start.
async fn replace_snapshot(fixture: &Fixture) -> u16 {
    let path = format!("/v1/sandboxes/{}/snapshot", fixture.id);
    assert_eq!(fixture.first.post(&path, &json!({ "name": "shared" })).await.status, 201);
    let other = fixture.admin.with_key(&fixture.admin.new_key("user", "first").await.1);
    other.delete("/v1/templates/shared").await.status.as_u16()
}

#[test]
fn x02_without_makers_another_key_replaces_a_snapshot() {
    attack("X02", "service:template-makers", async |fixture| {
        assert_eq!(replace_snapshot(fixture).await, 204)
    });
    attack("X02", "", async |fixture| assert_eq!(replace_snapshot(fixture).await, 403));
}

#[test]
fn c19_without_the_offer_a_tenant_runs_without_walls() {
    attack("C19", "service:engines", async |fixture| {
        let id = fixture.first.sandbox(&json!({ "timeout": 60, "engine": "none" })).await;
        let (server, line) = (fixture.server.pid(), "cat /proc/{}/comm");
        assert_eq!(
            fixture.first.sh(&id, &line.replace("{}", &server.to_string())).await,
            "belljar-service\n"
        );
    });
}

#[test]
fn c19_without_the_policy_a_tenant_mounts_the_host() {
    attack("C19", "service:policy", async |fixture| {
        let body = json!({ "timeout": 3600, "mounts": ["/usr/share:/mnt"] });
        let id = fixture.first.sandbox(&body).await;
        assert_eq!(
            fixture.first.sh(&id, "test -d /mnt/doc -o -d /mnt/misc && echo mounted").await,
            "mounted\n"
        );
    });
}

/// Returns the response to a page of another origin that has the key.
async fn browse(fixture: &Fixture, host: &str, headers: &str) -> String {
    let key = &fixture.server.key;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n{headers}Connection: close\r\n\r\n",
        fixture.file()
    );
    send(fixture.server.address, request.as_bytes()).await.text()
}

#[test]
fn c23_without_host_checks_a_rebound_name_is_served() {
    attack("C23", "service:hosts", async |fixture| {
        let answer = browse(fixture, "evil.example", "").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    });
}

#[test]
fn c23_without_origin_checks_a_page_is_served() {
    attack("C23", "service:origins", async |fixture| {
        let own = fixture.server.address.to_string();
        let answer = browse(fixture, &own, "Origin: http://evil.example\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    });
}

/// Starts a server in the sandbox.
async fn listen(fixture: &Fixture) {
    let program = "import http.server\nclass H(http.server.SimpleHTTPRequestHandler): pass\n\
                   http.server.ThreadingHTTPServer(('0.0.0.0', 2280), H).serve_forever()";
    let (client, id) = (&fixture.first, &fixture.id);
    client.send(client.request("PUT", &format!("/v1/sandboxes/{id}/files/content?path=s.py")), program).await;
    let started =
        client.post(&format!("/v1/sandboxes/{id}/processes"), &json!({ "argv": ["python3", "s.py"] })).await;
    assert_eq!(started.status, 201, "{started:?}");
    crate::until("the server listens", async || {
        let ports = client.get(&format!("/v1/sandboxes/{id}/ports")).await.json();
        ports["listening"].as_array().is_some_and(|ports| ports.contains(&json!(2280)))
    })
    .await;
}

fn proxy(fixture: &Fixture, port: &str) -> String {
    format!("/v1/sandboxes/{}/ports/{port}/proxy/a.txt", fixture.id)
}

#[test]
fn n24_a_port_has_one_form_and_needs_a_key() {
    attack("N24", "", async |fixture| {
        listen(fixture).await;
        let stranger = fixture.server.stranger();
        let attempt = async |client: &Client, port: &str| {
            let answer = client.get(&proxy(fixture, port)).await;
            assert!(!answer.text().contains("secret"), "{port}: {answer:?}");
            (answer.status.as_u16(), answer.code())
        };
        let missing = (404, "port_not_found".to_owned());
        // It listens on all addresses in the sandbox, and is not published.
        assert_eq!(attempt(&fixture.first, "2280").await, missing);
        assert_eq!(attempt(&stranger, "2280").await.0, 401);
        let published = fixture
            .first
            .post(&format!("/v1/sandboxes/{}/ports", fixture.id), &json!({ "port": 2280 }))
            .await;
        assert_eq!(published.status, 201, "{published:?}");
        assert_eq!(attempt(&stranger, "2280").await.0, 401);
        assert_eq!(attempt(&fixture.second, "2280").await, missing);
        assert_eq!(fixture.first.get(&proxy(fixture, "2280")).await.text(), "secret");
        for form in [
            "02280",
            "+2280",
            "%32280",
            "-2280",
            "2280%20",
            "%202280",
            "2280%00",
            "67816",
            "0x8e8",
            "2280.0",
            "2280,80",
            "22_80",
            "2.28e3",
            "%EF%BC%92280",
            "2280%2F",
            "2280;80",
            "",
        ] {
            let response = attempt(&fixture.first, form).await;
            assert!(matches!(response.0, 400 | 404), "{form}: {response:?}");
            let request = http::Request::builder()
                .uri("/a.txt")
                .header("host", format!("{}-{}.sandboxes.test", form.replace('%', ""), fixture.id))
                .header("x-belljar-token", fixture.first.key.as_deref().unwrap_or_default());
            if form.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !form.is_empty() {
                let answer = fixture.first.send(request, "").await;
                assert!(answer.status.is_client_error(), "{form}: {answer:?}");
            }
        }
        // A token for one port opens neither another port nor the API.
        let made = fixture
            .first
            .post(&format!("/v1/sandboxes/{}/ports/2280/tokens", fixture.id), &json!({}))
            .await
            .json();
        let holder = fixture.admin.with_key(made["token"].as_str().expect("it is reported"));
        assert_eq!(holder.get(&proxy(fixture, "2280")).await.text(), "secret");
        holder.get(&fixture.file()).await.assert(401, "unauthenticated");
        let other = fixture
            .first
            .post(&format!("/v1/sandboxes/{}/ports", fixture.id), &json!({ "port": 2281 }))
            .await;
        assert_eq!(other.status, 201, "{other:?}");
        assert!(attempt(&holder, "2281").await.0 >= 401);
    });
}

#[test]
fn n24_without_publication_every_port_is_open() {
    attack("N24", "service:published-ports", async |fixture| {
        listen(fixture).await;
        assert_eq!(fixture.server.stranger().get(&proxy(fixture, "2280")).await.text(), "secret");
    });
}

#[test]
fn n24_without_the_form_check_a_port_has_other_names() {
    attack("N24", "service:port-form", async |fixture| {
        listen(fixture).await;
        fixture.first.post(&format!("/v1/sandboxes/{}/ports", fixture.id), &json!({ "port": 2280 })).await;
        for form in ["02280", "+2280"] {
            assert_eq!(fixture.first.get(&proxy(fixture, form)).await.text(), "secret", "{form}");
        }
    });
}
