//! Authorization: every route with every kind of credential (C01, X11), other tenants' and missing resources (C02), and
//! guessed or invalid ids (C04).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::client::{Answer, Client, escaped};
use crate::run;
use crate::server::{Home, Server};

/// A route of the API, with a request that is valid except for the caller.
struct Route {
    method: String,
    path: String,
    is_open: bool,
    query: &'static str,
    kind: Option<String>,
    body: String,
    is_websocket: bool,
}

const BOUNDARY: &str = "multipart/form-data; boundary=b";
const FORM: &str =
    "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"form.txt\"\r\n\r\nx\r\n--b--\r\n";

impl Route {
    /// Returns every route of the server's OpenAPI document.
    async fn all(server: &Server) -> Vec<Self> {
        let document = server.stranger().get("/openapi.json").await.json();
        let mut routes = Vec::new();
        for (path, item) in document["paths"].as_object().expect("there are paths") {
            for (method, operation) in item.as_object().expect("there are methods") {
                routes.push(Self::new(&document, method, path, operation));
            }
        }
        assert!(routes.len() > 50, "{}", routes.len());
        routes
    }

    fn new(document: &Value, method: &str, path: &str, operation: &Value) -> Self {
        let content = operation["requestBody"]["content"].as_object();
        let (kind, media) = content.and_then(|content| content.iter().next()).unzip();
        let schema =
            media.and_then(|media| media["schema"]["$ref"].as_str()).and_then(|name| name.rsplit('/').next());
        let example = schema.map(|name| &document["components"]["schemas"][name]["example"]);
        let body = match kind.map(String::as_str) {
            Some("application/json") => example.cloned().unwrap_or_else(|| json!({})).to_string(),
            Some("multipart/form-data") => FORM.to_owned(),
            Some(_) => "hello\n".to_owned(),
            None => String::new(),
        };
        let takes_path =
            operation["parameters"].as_array().into_iter().flatten().any(|one| one["name"] == "path");
        Self {
            method: method.to_uppercase(),
            path: path.to_owned(),
            is_open: operation["security"].as_array().is_some_and(|security| !security.is_empty()),
            query: match (takes_path, path) {
                (true, "/v1/sandboxes/{id}/files" | "/v1/sandboxes/{id}/files/archive")
                | (true, "/v1/volumes/{id}/files") => "?path=d",
                (true, "/v1/sandboxes/{id}/files/watch") => "?path=.",
                (true, _) => "?path=a.txt",
                // It would wait for the end of the process.
                _ if path.ends_with("/output") => "?follow=false",
                _ if path.ends_with("/schema") => "?for=mcp",
                _ => "",
            },
            kind: kind
                .map(|kind| if kind.starts_with("multipart") { BOUNDARY.to_owned() } else { kind.clone() }),
            body,
            is_websocket: operation["responses"].get("101").is_some(),
        }
    }

    fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Reports whether the route belongs to one sandbox or one volume.
    fn is_of_one(&self) -> bool {
        ["/v1/sandboxes/{id}", "/v1/volumes/{id}"].iter().any(|begin| self.path.starts_with(begin))
    }

    /// Sends the request. Of a stream, only the head is read.
    async fn send(&self, client: &Client, sandbox: &str, others: &Others) -> Answer {
        let id = match self.path.as_str() {
            path if path.starts_with("/v1/templates/") => &others.template,
            path if path.starts_with("/v1/keys/") => &others.key,
            path if path.starts_with("/v1/volumes/") => &others.volume,
            _ => sandbox,
        };
        let path = self.path.replace("{id}", id).replace("{process}", &others.process);
        let path = path.replace("{port}", "8000").replace("{token}", "bjs_none");
        let mut request = client.request(&self.method, &(path + self.query));
        if let Some(kind) = &self.kind {
            request = request.header("content-type", kind);
        }
        if self.is_websocket {
            request = request.header("connection", "upgrade").header("upgrade", "websocket");
            request = request
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        }
        client.apart().send_for_head(request, self.body.clone()).await
    }
}

/// Resources of the first tenant besides sandboxes.
struct Others {
    template: String,
    key: String,
    volume: String,
    process: String,
}

/// A server with two tenants and all kinds of credentials.
struct Fixture {
    home: Home,
    server: Server,
    routes: Vec<Route>,
    /// The first tenant's sandbox, another one, and its other resources.
    sandbox: String,
    sibling: String,
    others: Others,
    owner: Client,
}

impl Fixture {
    async fn new(settings: &[&str]) -> Self {
        let mut home = Home::new(settings);
        home.flags.extend(["--set".to_owned(), "sandboxes.pool=0".to_owned()]);
        let server = home.start();
        server.ready().await;
        let admin = server.admin();
        let owner = admin.with_key(&admin.new_key("user", "first").await.1);
        let (key, _) = admin.new_key("read", "first").await;
        let sandbox = owner.sandbox(&json!({ "timeout": 3600, "labels": { "whose": "first" } })).await;
        let sibling = owner.sandbox(&json!({ "timeout": 3600 })).await;
        owner.sh(&sandbox, "echo one > a.txt; mkdir -p d; echo two > d/b.txt").await;
        owner.post(&format!("/v1/sandboxes/{sandbox}/ports"), &json!({ "port": 8000 })).await;
        let started = owner
            .post(&format!("/v1/sandboxes/{sandbox}/processes"), &json!({ "command": "sleep 3600" }))
            .await;
        let process = started.json()["process"].to_string();
        let kept =
            owner.post(&format!("/v1/sandboxes/{sandbox}/snapshot"), &json!({ "name": "first" })).await;
        let template = kept.json()["id"].as_str().expect("it was kept").to_owned();
        let made = owner.post("/v1/volumes", &json!({ "name": "first", "size": "16m" })).await;
        let volume = made.json()["id"].as_str().expect("it was made").to_owned();
        for path in ["a.txt", "d/b.txt"] {
            let put = owner.request("PUT", &format!("/v1/volumes/{volume}/files/content?path={path}"));
            assert_eq!(owner.send(put, "one\n").await.status, 200);
        }
        let routes = Route::all(&server).await;
        let others = Others { template, key, volume, process };
        Self { home, server, routes, sandbox, sibling, others, owner }
    }

    /// Returns all state that a request could have changed, as text.
    async fn state(&self) -> String {
        let admin = self.server.admin();
        let mut state = String::new();
        let volume = format!("/v1/volumes/{}/files?path=/&depth=2", self.others.volume);
        for path in [
            "/v1/sandboxes?state=running,paused,gone,creating,stopping&limit=100",
            "/v1/templates",
            "/v1/volumes",
            &volume,
        ] {
            let _ = writeln!(state, "{}", self.owner.get(path).await.text());
        }
        let keys = admin.get("/v1/keys").await.json();
        for key in keys["keys"].as_array().expect("a list") {
            let _ = writeln!(state, "{} {} {}", key["id"], key["role"], key["revoked_at"]);
        }
        for sandbox in [&self.sandbox, &self.sibling] {
            for what in ["ports", "processes"] {
                let _ = writeln!(
                    state,
                    "{}",
                    self.owner.get(&format!("/v1/sandboxes/{sandbox}/{what}")).await.text()
                );
            }
        }
        state
    }

    /// Returns the files of the first tenant's sandbox. This is an execution, so it adds to the audit log.
    async fn files(&self) -> String {
        self.owner.sh(&self.sandbox, "find . -printf '%p %s %m %T@\\n' | sort; cat a.txt d/b.txt").await
    }

    /// Returns the action and outcome of the audit records after `seq`.
    async fn records_after(&self, seq: i64) -> Vec<(String, String)> {
        let page = self.server.admin().get(&format!("/v1/audit?after={seq}&limit=1000")).await.json();
        let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
        let records = page["records"].as_array().expect("a list").iter();
        records.map(|one| (text(one, "action"), text(one, "outcome"))).collect()
    }

    async fn head(&self) -> i64 {
        self.server.admin().get("/v1/audit?limit=1").await.json()["head"]["seq"].as_i64().expect("a number")
    }

    async fn shut_down(self) {
        crate::crash::shut_down(self.server, &self.home).await;
    }
}

#[test]
fn c01_every_route_needs_a_valid_key() {
    if crate::skipped("C01") {
        return;
    }
    run(async {
        let fixture = Fixture::new(&[]).await;
        let admin = fixture.server.admin();
        let (revoked_id, revoked) = admin.new_key("admin", "first").await;
        assert_eq!(admin.call("DELETE", &format!("/v1/keys/{revoked_id}")).await.status, 204);
        let body = json!({ "name": "short", "role": "admin", "tenant": "first", "expires": 1 });
        let expired =
            admin.post("/v1/keys", &body).await.json()["key"].as_str().expect("it is reported").to_owned();
        let token =
            admin.post(&format!("/v1/sandboxes/{}/tokens", fixture.sandbox), &json!({ "expires": 1 })).await;
        let token = token.json()["token"].as_str().expect("it is reported").to_owned();
        let good = fixture.owner.key.clone().expect("it has one");
        let almost = format!("{}{}", &good[..good.len() - 1], if good.ends_with('0') { '1' } else { '0' });
        crate::until("keys and tokens expire", async || {
            admin.with_key(&expired).get("/v1/me").await.status == 401
                && admin.with_key(&token).get(&format!("/v1/sandboxes/{}", fixture.sandbox)).await.status
                    == 401
        })
        .await;
        let credentials = [
            ("no key", None),
            ("no word", Some(String::new())),
            ("wrong", Some(format!("bj_{}", "0".repeat(64)))),
            ("wrong in its last letter", Some(almost)),
            ("in capitals", Some(good.to_uppercase())),
            ("the id of a key", Some(fixture.others.key.clone())),
            ("revoked", Some(revoked)),
            ("expired", Some(expired)),
            ("expired token", Some(token)),
            ("nonsense", Some("bjs_AAAA".to_owned())),
        ];
        let files = fixture.files().await;
        let (state, head) = (fixture.state().await, fixture.head().await);
        let mut checked = 0;
        for route in fixture.routes.iter().filter(|route| !route.is_open) {
            for (what, key) in &credentials {
                let client = Client::new(fixture.server.address, key.as_deref());
                let answer = route.send(&client, &fixture.sandbox, &fixture.others).await;
                assert_eq!(
                    (answer.status.as_u16(), answer.code().as_str()),
                    (401, "unauthenticated"),
                    "{what}: {}",
                    route.name()
                );
                checked += 1;
            }
        }
        assert!(checked > 450, "{checked}");
        assert_eq!(fixture.state().await, state, "a caller without a key has changed something");
        let records = fixture.records_after(head).await;
        assert!(records.iter().all(|(action, _)| action == "auth.denied"), "{records:?}");
        assert_eq!(fixture.files().await, files);
        fixture.shut_down().await;
    });
}

/// Responses of each route to callers with limited rights. `TENANT` is a key of another tenant, `READ` one with the role read,
/// `TOKEN` the token of the sandbox itself, `SIBLING` that of another sandbox of the same key.
#[test]
fn c01_x11_responses_match_the_authorization_table() {
    if crate::skipped("C01, X11") {
        return;
    }
    run(async {
        let fixture = Fixture::new(&[]).await;
        let admin = fixture.server.admin();
        let other = admin.with_key(&admin.new_key("user", "second").await.1);
        let read = admin.with_key(&admin.new_key("read", "first").await.1);
        let token_of = async |id: &String| {
            let made = fixture.owner.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await;
            admin.with_key(made.json()["token"].as_str().expect("it is reported"))
        };
        let sibling = token_of(&fixture.sibling).await;
        let files = fixture.files().await;
        let mut table = format!("{:58} {:>22} {:>22} {:>22}\n", "", "TENANT", "READ", "SIBLING");
        for route in &fixture.routes {
            let state = fixture.state().await;
            let mut row = format!("{:58}", route.name());
            for (who, client) in [("TENANT", &other), ("READ", &read), ("SIBLING", &sibling)] {
                let head = fixture.head().await;
                let answer = route.send(client, &fixture.sandbox, &fixture.others).await;
                let said = format!("{} {}", answer.status.as_u16(), answer.code());
                let _ = write!(row, " {:>22}", said.trim());
                if !route.is_open && (who == "SIBLING" || who == "TENANT" && route.is_of_one()) {
                    assert!(
                        matches!(answer.status.as_u16(), 403 | 404),
                        "{who} {}: {answer:?}",
                        route.name()
                    );
                }
                assert!(
                    !answer.text().contains("\"whose\":\"first\"") || who == "READ",
                    "{who} {}: {answer:?}",
                    route.name()
                );
                // The other tenant may create resources of its own.
                let creates = ["POST /v1/sandboxes", "POST /v1/volumes", "POST /v1/secrets"];
                if who == "TENANT" && creates.contains(&route.name().as_str()) {
                    let id = answer.json()["id"].as_str().expect("it was made").to_owned();
                    assert_eq!(other.call("DELETE", &format!("{}/{id}", route.path)).await.status, 204);
                } else {
                    let records = fixture.records_after(head).await;
                    let done = records.iter().any(|(_, outcome)| outcome == "ok");
                    assert!(!done || fixture.is_own_read(route), "{who} {}: {records:?}", route.name());
                }
            }
            assert_eq!(fixture.state().await, state, "{}", route.name());
            table.push_str(row.trim_end());
            table.push('\n');
        }
        assert_eq!(fixture.files().await, files);
        insta::assert_snapshot!("routes", table);

        // The sandbox's own token works for its routes only. These calls change state, so they come last.
        let own = token_of(&fixture.sandbox).await;
        let mut table = format!("{:58} {:>22}\n", "", "TOKEN");
        for route in fixture
            .routes
            .iter()
            .filter(|route| route.method != "DELETE" || route.path != "/v1/sandboxes/{id}")
        {
            let answer = route.send(&own, &fixture.sandbox, &fixture.others).await;
            let said = format!("{} {}", answer.status.as_u16(), answer.code());
            let _ = writeln!(table, "{:58} {:>22}", route.name(), said.trim());
        }
        let kill = own.call("DELETE", &format!("/v1/sandboxes/{}", fixture.sandbox)).await;
        kill.assert(403, "forbidden");
        insta::assert_snapshot!("routes-token", table);
        fixture.shut_down().await;
    });
}

impl Fixture {
    /// Reports whether these callers may use the route for themselves, which adds to the audit log.
    fn is_own_read(&self, route: &Route) -> bool {
        matches!(
            route.name().as_str(),
            "GET /v1/audit" | "POST /v1/audit/verify" | "POST /v1/session" | "POST /v1/session/links"
        )
    }
}

#[test]
fn c02_foreign_and_missing_resources_are_indistinguishable() {
    if crate::skipped("C02") {
        return;
    }
    run(async {
        let fixture = Fixture::new(&[]).await;
        let admin = fixture.server.admin();
        let other = admin.with_key(&admin.new_key("user", "second").await.1);
        let gone = fixture.owner.sandbox(&json!({ "timeout": 3600 })).await;
        assert_eq!(fixture.owner.call("DELETE", &format!("/v1/sandboxes/{gone}")).await.status, 204);
        // Ids that never existed.
        let missing = "zzzzzzzzzzzzzzzzzzzz".to_owned();
        let none = Others {
            template: "tpl_00000000000000000000".to_owned(),
            key: "key_0000000000000000".to_owned(),
            volume: missing.clone(),
            process: "1".to_owned(),
        };
        let plain = |answer: &Answer, id: &str, others: &Others| {
            let mut problem: Value = answer.json();
            problem["request_id"] = Value::Null;
            [id, &others.template, &others.key, &others.volume]
                .iter()
                .fold(problem.to_string(), |text, id| text.replace(id, "ID"))
        };
        let mut checked = 0;
        for route in fixture.routes.iter().filter(|route| route.path.contains("{id}")) {
            let absent = route.send(&other, &missing, &none).await;
            for foreign in [&fixture.sandbox, &gone] {
                let found = route.send(&other, foreign, &fixture.others).await;
                assert_eq!(found.status, absent.status, "{}", route.name());
                let (one, two) = (plain(&found, foreign, &fixture.others), plain(&absent, &missing, &none));
                assert_eq!(one, two, "{}", route.name());
                checked += 1;
            }
        }
        assert!(checked > 60, "{checked}");
        fixture.shut_down().await;
    });
}

#[test]
fn c04_ids_are_random_and_invalid_ones_are_refused() {
    if crate::skipped("C04") {
        return;
    }
    run(async {
        let fixture = Fixture::new(&[]).await;
        let client = &fixture.owner;
        let mut made = vec![
            "..".to_owned(),
            "../".to_owned(),
            "%2e%2e".to_owned(),
            "..%2fkeys".to_owned(),
            "..%2f..%2fetc%2fpasswd".to_owned(),
            "%00".to_owned(),
            "%ff%fe".to_owned(),
            escaped("été".as_bytes()),
            escaped("ｚｚｚｚｚｚｚｚｚｚ".as_bytes()),
            escaped(b"' OR 1=1 --"),
            escaped(b"a\r\nX-Injected: 1"),
            "*".to_owned(),
            "-1".to_owned(),
            "a".repeat(10_000),
            fixture.sandbox.to_uppercase(),
            format!("{}%20", fixture.sandbox),
            format!("{}%00", fixture.sandbox),
            fixture.sandbox[..19].to_owned(),
        ];
        // Neighbours of an existing id.
        let (head, last) = fixture.sandbox.split_at(19);
        made.extend(
            ('a'..='z')
                .chain('0'..='9')
                .filter(|one| last != one.to_string())
                .map(|one| format!("{head}{one}")),
        );
        for id in &made {
            for (method, rest) in
                [("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/files/stat?path=a.txt")]
            {
                let answer = client.call(method, &format!("/v1/sandboxes/{id}{rest}")).await;
                let status = answer.status.as_u16();
                assert!(matches!(status, 400 | 404 | 405 | 414 | 431), "{method} {id}{rest}: {answer:?}");
                assert_eq!(answer.header("x-injected"), "", "{id}");
            }
        }
        assert_eq!(
            client.get(&format!("/v1/sandboxes/{}", fixture.sandbox)).await.json()["state"],
            "running"
        );
        let mut ids = BTreeSet::from([fixture.sandbox.clone(), fixture.sibling.clone()]);
        for _ in 0..4 {
            let forks = client
                .post(&format!("/v1/sandboxes/{}/fork", fixture.sibling), &json!({ "count": 5 }))
                .await
                .json();
            for fork in forks["sandboxes"].as_array().expect("a list") {
                let id = fork["sandbox"]["id"].as_str().expect("it was made").to_owned();
                assert_eq!(client.call("DELETE", &format!("/v1/sandboxes/{id}")).await.status, 204);
                ids.insert(id);
            }
        }
        assert_eq!(ids.len(), 22, "an id came twice");
        // Ids are random: no position has the same letter in all, and successive ids are not neighbours.
        for place in 0..20 {
            let letters: BTreeSet<u8> = ids.iter().map(|id| id.as_bytes()[place]).collect();
            assert!(letters.len() > 5, "place {place} has {letters:?}");
        }
        fixture.shut_down().await;
    });
}
