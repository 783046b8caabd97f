//! Published ports.

use axum::body::Body;
use belljar_http_hop::cases::{CASES as TABLE, Outcome};
use belljar_testing::wait::until;
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;

use crate::client::{Answer, Client};
use crate::common::DOMAIN;
use crate::fixture::{Fixture, cases, sandbox, sh};

cases![
    ports_are_published_and_unpublished,
    listing_ports_does_not_resume_a_sandbox,
    pages_are_served_by_path_and_by_host,
    credentials_open_a_port_and_are_not_forwarded,
    tokens_become_cookies,
    ports_have_one_spelling,
    requests_arrive_as_the_table_says,
    websockets_pass,
    hostile_programs_are_bounded,
];

/// Server in the sandbox that returns the request, and behaves as the path selects.
const SERVER: &str = r#"
import http.server, json, os
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def go(self):
        n = int(self.headers.get('content-length') or 0)
        body = self.rfile.read(n).decode()
        if self.headers.get('transfer-encoding') == 'chunked':
            while True:
                k = int(self.rfile.readline(), 16)
                body += self.rfile.read(k).decode(); self.rfile.readline()
                if k == 0: break
        if self.path.startswith('/slow'):
            self.send_response(200); self.send_header('transfer-encoding', 'chunked'); self.end_headers()
            self.wfile.write(b'3\r\none\r\n'); self.wfile.flush()
            while not os.path.exists('go'): __import__('time').sleep(0.05)
            self.wfile.write(b'3\r\ntwo\r\n0\r\n\r\n'); return
        out = json.dumps({'method': self.command, 'path': self.path, 'headers': {k.lower(): v for k, v in self.headers.items()}, 'body': body}).encode()
        self.send_response(302 if self.path.startswith('/redirect') else 200)
        self.send_header('content-length', str(len(out)))
        self.send_header('location', '/login')
        self.send_header('set-cookie', 'a=b; Path=/; Domain=box.test')
        self.send_header('set-cookie', 'belljar_token=evil')
        self.send_header('content-security-policy', "default-src *")
        self.send_header('keep-alive', 'timeout=5')
        self.end_headers()
        if self.command != 'HEAD': self.wfile.write(out)
    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = go
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), H).serve_forever()
"#;

async fn start(client: &Client, id: &str, program: &str, port: u16) {
    client.put(&format!("/v1/sandboxes/{id}/files/content?path=server{port}.py"), program.to_owned()).await;
    let body = json!({"argv": ["python3", format!("server{port}.py")]});
    let started = client.post(&format!("/v1/sandboxes/{id}/processes"), &body).await;
    assert_eq!(started.status, 201, "{started:?}");
    let ports = format!("/v1/sandboxes/{id}/ports");
    until("the server listens", || async {
        client.get(&ports).await.json()["listening"].as_array().unwrap().contains(&json!(port))
    })
    .await;
    let published = client.post(&ports, &json!({ "port": port })).await;
    assert_eq!(published.status, 201, "{published:?}");
}

async fn listing_ports_does_not_resume_a_sandbox(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, SERVER, 8000).await;
    let (place, ports) = (format!("/v1/sandboxes/{id}"), format!("/v1/sandboxes/{id}/ports"));
    assert_eq!(user.get(&ports).await.json()["listening"], json!([8000]));
    let paused = user.post(&format!("{place}/pause"), &json!({})).await;
    assert_eq!(paused.status, 200, "{paused:?}");
    let listed = user.get(&ports).await.json();
    assert_eq!((&listed["ports"][0]["port"], &listed["listening"]), (&json!(8000), &json!([])));
    assert_eq!(user.get(&place).await.json()["state"], "paused");
    // A request to the port resumes the sandbox.
    assert_eq!(user.get(&format!("{ports}/8000/proxy/")).await.status, 200);
    assert_eq!(user.get(&place).await.json()["state"], "running");
}

async fn ports_are_published_and_unpublished(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let ports = format!("/v1/sandboxes/{id}/ports");
    let published = user.post(&ports, &json!({"port": 8000})).await.json();
    let own = fixture.address;
    assert_eq!(published["url"], format!("http://8000-{id}.{DOMAIN}:{}/", own.port()));
    assert_eq!(published["path_url"], format!("http://{own}/v1/sandboxes/{id}/ports/8000/proxy/"));
    assert_eq!((&published["port"], &published["public"]), (&json!(8000), &json!(false)));
    let public = user.post(&ports, &json!({"port": 8000, "public": true})).await.json();
    assert_eq!(public["public"], true);
    let listed = user.get(&ports).await.json();
    assert_eq!((&listed["ports"], &listed["listening"]), (&json!([public]), &json!([])));
    assert_eq!(user.get(&format!("/v1/sandboxes/{id}")).await.json()["ports"], json!([8000]));
    let proxy = format!("{ports}/8000/proxy/");
    user.get(&proxy).await.refused(502, "port_not_open", None);
    user.post(&format!("{ports}/9/tokens"), &json!({})).await.refused(404, "port_not_found", None);
    assert_eq!(user.delete(&format!("{ports}/8000")).await.status, 204);
    user.get(&proxy).await.refused(404, "port_not_found", None);
    user.post(&ports, &json!({"port": 0})).await.refused(400, "invalid_field", Some("port"));
    user.post(&ports, &json!({"port": 65536})).await.refused(400, "invalid_field", Some("port"));
}

/// Returns the request that the program in the sandbox received.
fn received(answer: &Answer) -> Value {
    answer.json()
}

async fn by_host(
    client: &Client,
    id: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> Answer {
    let mut request =
        http::Request::builder().method(method).uri(path).header("host", format!("8000-{id}.{DOMAIN}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send_request(request.body(body).unwrap()).await
}

async fn pages_are_served_by_path_and_by_host(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, SERVER, 8000).await;
    let base = format!("/v1/sandboxes/{id}/ports/8000/proxy");

    let bare = user.get(&format!("{base}?a=b")).await;
    assert_eq!((bare.status.as_u16(), bare.header("location")), (308, format!("{base}/?a=b").as_str()));
    let page = user.get(&format!("{base}/x//y%2Fz?q=1&belljar=2")).await;
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(received(&page)["path"], "/x//y%2Fz?q=1&belljar=2");
    assert_eq!(received(&page)["headers"]["x-forwarded-prefix"], base);
    let policies: Vec<_> =
        page.headers.get_all("content-security-policy").iter().map(|value| value.to_str().unwrap()).collect();
    assert!(policies.len() == 2 && policies[1].starts_with("sandbox"), "{policies:?}");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert_eq!(page.header("set-cookie"), format!("a=b; Path={base}/"));
    assert_eq!((page.headers.get_all("set-cookie").iter().count(), page.header("keep-alive")), (1, ""));
    assert_eq!(user.get(&format!("{base}/redirect")).await.header("location"), format!("{base}/login"));
    let posted =
        user.send_request(user.request("POST", &format!("{base}/p")).body("data".into()).unwrap()).await;
    assert_eq!((&received(&posted)["method"], &received(&posted)["body"]), (&json!("POST"), &json!("data")));
    let pieces = futures::stream::iter(
        ["a", "b", "c"].map(|piece| Ok::<_, std::io::Error>(bytes::Bytes::from(piece))),
    );
    let posted = user
        .send_request(user.request("POST", &format!("{base}/p")).body(Body::from_stream(pieces)).unwrap())
        .await;
    assert_eq!(received(&posted)["body"], "abc");
    let head = user.call("HEAD", &format!("{base}/")).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));

    let key = user.key.clone().unwrap();
    let page = by_host(&user, &id, "GET", "/x?y", &[("x-belljar-token", &key)], Body::empty()).await;
    assert_eq!(page.status, 200, "{page:?}");
    let headers = received(&page)["headers"].clone();
    assert_eq!(
        (&received(&page)["path"], &headers["host"]),
        (&json!("/x?y"), &json!(format!("8000-{id}.{DOMAIN}")))
    );
    assert_eq!(
        (&headers["x-forwarded-for"], &headers["x-forwarded-proto"]),
        (&json!("127.0.0.1"), &json!("http"))
    );
    assert_eq!(
        (page.header("content-security-policy"), page.header("location")),
        ("default-src *", "/login")
    );
    assert_eq!(page.header("set-cookie"), "a=b; Path=/");

    // The first part is forwarded before the rest arrives.
    let slow = user.request("GET", &format!("{base}/slow")).body(Body::empty()).unwrap();
    let mut body = Body::new(user.open(slow).await.into_body()).into_data_stream();
    assert_eq!(body.next().await.unwrap().unwrap(), "one");
    sh(&user, &id, "touch go").await;
    assert_eq!(body.next().await.unwrap().unwrap(), "two");
}

async fn credentials_open_a_port_and_are_not_forwarded(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, SERVER, 8000).await;
    let ports = format!("/v1/sandboxes/{id}/ports");
    let port_token = user.post(&format!("{ports}/8000/tokens"), &json!({})).await.json();
    assert!(port_token["url"].as_str().unwrap().starts_with(&format!("http://8000-{id}.{DOMAIN}")));
    let port_token = port_token["token"].as_str().unwrap().to_owned();
    let own_token = user.post(&format!("/v1/sandboxes/{id}/tokens"), &json!({})).await.json()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let key = user.key.clone().unwrap();
    let stranger = fixture.stranger();
    let proxy = format!("{ports}/8000/proxy/");
    for credential in [&port_token, &own_token, &key] {
        for (path, header) in [
            (proxy.clone(), Some("x-belljar-token")),
            (proxy.clone(), Some("x-api-key")),
            (format!("{proxy}?a=1&belljar_token={credential}&b=2"), None),
        ] {
            let mut request = stranger
                .request("GET", &path)
                .header("cookie", "mine=1")
                .header("authorization", "Bearer apps-own");
            if header == Some("x-api-key") {
                request = stranger.request("GET", &path).header("cookie", "mine=1");
            }
            if let Some(header) = header {
                request = request.header(header, credential);
            }
            let page = stranger.send_request(request.body(Body::empty()).unwrap()).await;
            assert_eq!(page.status, 200, "{path} {page:?}");
            assert!(!page.text().contains(credential.as_str()), "{page:?}");
            assert_eq!(received(&page)["headers"]["cookie"], "mine=1");
            if header != Some("x-api-key") {
                assert_eq!(received(&page)["headers"]["authorization"], "Bearer apps-own");
            }
        }
    }
    // A token of one port opens nothing else.
    let with_port_token = stranger.with_key(&port_token);
    with_port_token.get(&format!("/v1/sandboxes/{id}")).await.refused(401, "unauthenticated", None);
    user.post(&ports, &json!({"port": 8001})).await;
    with_port_token.get(&format!("{ports}/8001/proxy/")).await.refused(401, "unauthenticated", None);
    // Other tenants cannot find out which ports exist.
    let other = fixture.client("other", belljar_model::Role::User).await;
    let missing = "/v1/sandboxes/abcdefghij0123456789/ports/8000/proxy/";
    for path in [proxy.as_str(), &format!("{ports}/9/proxy/"), missing] {
        stranger.get(path).await.refused(401, "unauthenticated", None);
        stranger.with_key("bj_wrong").get(path).await.refused(401, "unauthenticated", None);
        other.get(path).await.refused(404, "port_not_found", None);
    }
    for headers in [vec![], vec![("x-belljar-token", "bj_wrong")], vec![("cookie", "belljar_token=wrong")]] {
        by_host(&stranger, &id, "GET", "/", &headers, Body::empty()).await.refused(
            401,
            "unauthenticated",
            None,
        );
    }
    // A public port needs no key.
    user.post(&ports, &json!({"port": 8000, "public": true})).await;
    assert_eq!(stranger.get(&proxy).await.status, 200);
    assert_eq!(by_host(&stranger, &id, "GET", "/", &[], Body::empty()).await.status, 200);
}

async fn tokens_become_cookies(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, SERVER, 8000).await;
    let stranger = fixture.stranger();
    let made =
        user.post(&format!("/v1/sandboxes/{id}/ports/8000/tokens"), &json!({"expires": 60})).await.json();
    let token = made["token"].as_str().unwrap();
    let moved =
        by_host(&stranger, &id, "GET", &format!("/a?x=1&belljar_token={token}"), &[], Body::empty()).await;
    assert_eq!((moved.status.as_u16(), moved.header("location")), (303, "/a?x=1"), "{moved:?}");
    assert_eq!((moved.header("referrer-policy"), moved.header("cache-control")), ("no-referrer", "no-store"));
    let cookie = moved.header("set-cookie").to_owned();
    assert_eq!(cookie, format!("belljar_token={token}; Path=/; HttpOnly; SameSite=Lax"));
    let cookie = cookie.split(';').next().unwrap();
    let page = by_host(&stranger, &id, "GET", "/a", &[("cookie", cookie)], Body::empty()).await;
    assert_eq!((page.status.as_u16(), received(&page)["headers"].get("cookie")), (200, None), "{page:?}");
    let own = format!("http://8000-{id}.{DOMAIN}");
    assert_eq!(
        by_host(&stranger, &id, "POST", "/a", &[("cookie", cookie), ("origin", &own)], "x".into())
            .await
            .status,
        200
    );
    // A page of another sandbox can set cookies for all hosts of the domain: any valid one is sufficient.
    let tossed = format!("belljar_token=evil; {cookie}; belljar_token=bjs_evil");
    let page = by_host(&stranger, &id, "GET", "/a", &[("cookie", &tossed)], Body::empty()).await;
    assert_eq!((page.status.as_u16(), received(&page)["headers"].get("cookie")), (200, None), "{page:?}");
    // A page of another sandbox cannot use the cookie.
    let other = format!("http://8000-abcdefghij0123456789.{DOMAIN}");
    let refused =
        by_host(&stranger, &id, "POST", "/a", &[("cookie", cookie), ("origin", &other)], "x".into()).await;
    refused.refused(401, "unauthenticated", None);
}

async fn ports_have_one_spelling(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, SERVER, 8000).await;
    let key = user.key.clone().unwrap();
    for port in ["08000", "+8000", "%38000", "8000%20", "0x1f40", "8000.", "73536", "-8000"] {
        let by_path = user.get(&format!("/v1/sandboxes/{id}/ports/{port}/proxy/")).await;
        by_path.refused(404, "port_not_found", None);
        let request = http::Request::builder()
            .uri("/")
            .header("host", format!("{port}-{id}.{DOMAIN}"))
            .header("x-belljar-token", &key);
        let by_host = user.send_request(request.body(Body::empty()).unwrap()).await;
        assert!(matches!(by_host.status.as_u16(), 403 | 404), "{port} {by_host:?}");
    }
}

async fn requests_arrive_as_the_table_says(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, SERVER, 8000).await;
    for case in TABLE {
        let head: String = case.headers.iter().map(|line| format!("{line}\r\n")).collect();
        let (method, path) = case.target.split_once(' ').unwrap();
        let request = format!(
            "{method} /v1/sandboxes/{id}/ports/8000/proxy{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             X-Belljar-Token: {}\r\n{head}\r\n{}",
            fixture.address,
            user.key.as_deref().unwrap(),
            case.body
        );
        let mut stream = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(belljar_testing::wait::DEADLINE, stream.read_to_end(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        match case.ports {
            Outcome::Refused => assert!([400, 405].contains(&status), "{}: {answer}", case.name),
            Outcome::Arrives(expected) => {
                assert_eq!(status, 200, "{}: {answer}", case.name);
                let received: Value = serde_json::from_str(body).unwrap();
                let headers = received["headers"].as_object().unwrap().iter();
                let own = |name: &str| name == "host" || name.starts_with("x-forwarded-");
                let mut headers: Vec<String> = headers
                    .filter(|(name, _)| !own(name))
                    .map(|(name, value)| format!("{name}: {}", value.as_str().unwrap()))
                    .collect();
                let mut expected = expected.to_vec();
                headers.sort();
                expected.sort_unstable();
                assert_eq!(headers, expected, "{}", case.name);
            }
        }
    }
}

/// Server in the sandbox that echoes every WebSocket message.
const ECHO: &str = r#"
import socket, hashlib, base64, threading
def serve(c):
    f = c.makefile('rb')
    head = {}
    f.readline()
    while True:
        line = f.readline().strip().decode()
        if not line: break
        k, v = line.split(':', 1); head[k.lower()] = v.strip()
    accept = base64.b64encode(hashlib.sha1((head['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').encode()).digest()).decode()
    c.sendall(f'HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: {accept}\r\n'
        'set-cookie: a=b; path=/\r\nclear-site-data: "*"\r\nstrict-transport-security: max-age=9\r\n\r\n'.encode())
    while True:
        h = f.read(2)
        if len(h) < 2: return
        n = h[1] & 127
        if n == 126: n = int.from_bytes(f.read(2), 'big')
        if n == 127: n = int.from_bytes(f.read(8), 'big')
        m = f.read(4); d = bytes(b ^ m[i % 4] for i, b in enumerate(f.read(n)))
        c.sendall(bytes([h[0]]) + (bytes([n]) if n < 126 else bytes([126]) + n.to_bytes(2, 'big')) + d)
        if h[0] & 15 == 8: return
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', 8000)); s.listen()
while True:
    c, _ = s.accept(); threading.Thread(target=serve, args=(c,)).start()
"#;

async fn websockets_pass(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, ECHO, 8000).await;
    let request = user
        .request("GET", &format!("ws://{}/v1/sandboxes/{id}/ports/8000/proxy/chat", fixture.address))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let stream = tokio::net::TcpStream::connect(fixture.address).await.unwrap();
    let (mut socket, answer) =
        tokio_tungstenite::client_async(request.body(()).unwrap(), stream).await.unwrap();
    assert_eq!(answer.status(), 101);
    // Headers that a page below a path must not set for the whole host are also removed from an upgrade response.
    assert_eq!(answer.headers()["set-cookie"], format!("a=b; Path=/v1/sandboxes/{id}/ports/8000/proxy/"));
    for name in ["clear-site-data", "strict-transport-security"] {
        assert!(!answer.headers().contains_key(name), "{name}");
    }
    for text in ["one", "two", &"x".repeat(30_000)] {
        socket.send(Message::text(text)).await.unwrap();
        let back = tokio::time::timeout(belljar_testing::wait::DEADLINE, socket.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(back, Message::text(text));
    }
    socket.close(None).await.unwrap();
}

/// Server in the sandbox that sends the content of the file `answer`, and then waits.
const LIAR: &str = r#"
import socket, threading, time
def serve(c):
    c.recv(65536)
    try:
        c.sendall(open('answer', 'rb').read()); time.sleep(0.2)
    except Exception: pass
    c.close()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', 8000)); s.listen()
while True:
    c, _ = s.accept(); threading.Thread(target=serve, args=(c,)).start()
"#;

async fn hostile_programs_are_bounded(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    start(&user, &id, LIAR, 8000).await;
    let many: String = (0..2000).map(|number| format!("h{number}: x\r\n")).collect();
    let answers = [
        "nonsense\r\n\r\n".to_owned(),
        String::new(),
        format!("HTTP/1.1 200 OK\r\n{many}\r\n"),
        format!("HTTP/1.1 200 OK\r\nlong: {}\r\n\r\n", "x".repeat(100_000)),
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello".to_owned(),
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}".to_owned(),
    ];
    for answer in answers {
        user.put(&format!("/v1/sandboxes/{id}/files/content?path=answer"), answer.clone()).await;
        let page = user.get(&format!("/v1/sandboxes/{id}/ports/8000/proxy/")).await;
        let shown: String = answer.chars().take(60).collect();
        assert_eq!(
            (page.status.as_u16(), page.problem().0.as_str()),
            (502, "sandbox_failed"),
            "{shown}: {page:?}"
        );
    }
    // Headers that only the server may set.
    let answer = "HTTP/1.1 200 OK\r\nx-request-id: evil\r\nalt-svc: h3=\":1\"\r\ncontent-length: 2\r\n\r\nok";
    user.put(&format!("/v1/sandboxes/{id}/files/content?path=answer"), answer).await;
    let page = user.get(&format!("/v1/sandboxes/{id}/ports/8000/proxy/")).await;
    assert_eq!((page.text(), page.header("alt-svc")), ("ok", ""));
    assert_ne!(page.header("x-request-id"), "evil");
}
