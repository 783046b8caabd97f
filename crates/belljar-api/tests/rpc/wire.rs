//! The protocols on the wire: plain JSON, Connect's streams, gRPC and gRPC-Web, deadlines, pages of other origins.

use std::time::{Duration, Instant};

use belljar_client::v1;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use connectrpc::Protocol;
use connectrpc::client::{ClientConfig, Http2Connection};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, ORIGIN, cases, line, sandbox};

cases![
    plain_json_request_works,
    call_without_side_effects_works_as_get,
    plain_json_streams_work,
    protocols_return_the_same_responses,
    errors_are_encoded_in_each_protocol,
    pages_of_allowed_origins_may_call,
    deadline_ends_a_call,
    unknown_procedures_are_unimplemented,
    unknown_content_types_are_refused,
];

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn request(
    fixture: &Fixture,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::copy_from_slice(body)));
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = format!("http://{}{path}", fixture.address).parse().unwrap();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    }
    request
}

async fn answer(response: http::Response<hyper::body::Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body: collected.to_bytes(), trailers }
}

/// Sends a request over HTTP/1.1.
pub(crate) async fn http(
    fixture: &Fixture,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = request(fixture, method, path, headers, body);
    let host = HeaderValue::from_str(&fixture.address.to_string()).unwrap();
    request.headers_mut().insert(http::header::HOST, host);
    *request.uri_mut() = path.parse().unwrap();
    answer(sender.send_request(request).await.unwrap()).await
}

/// Sends a request over HTTP/2.
pub(crate) async fn http2(
    fixture: &Fixture,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    answer(sender.send_request(request(fixture, method, path, headers, body)).await.unwrap()).await
}

/// Makes a unary call in JSON.
pub(crate) async fn call(fixture: &Fixture, key: &str, procedure: &str, body: Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    http(fixture, "POST", &format!("/belljar.v1.{procedure}"), &headers, body.to_string().as_bytes()).await
}

/// Encodes one message of a stream.
pub(crate) fn frame(flags: u8, message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(flags);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    frame.freeze()
}

/// Decodes the messages of a stream, each with its flags.
pub(crate) fn frames(mut body: Bytes) -> Vec<(u8, Bytes)> {
    let mut found = Vec::new();
    while body.len() >= 5 {
        let flags = body.get_u8();
        let length = usize::try_from(body.get_u32()).unwrap();
        found.push((flags, body.split_to(length)));
    }
    assert!(body.is_empty());
    found
}

async fn plain_json_request_works(fixture: Fixture) {
    let key = fixture.key("default", belljar_model::Role::User).await;
    let made =
        call(&fixture, &key, "Sandboxes/Create", json!({"timeout": "90.5s", "labels": {"job": "42"}})).await;
    assert_eq!(made.status, 200, "{made:?}");
    let made = made.json();
    let id = made["sandbox"]["id"].as_str().unwrap().to_owned();
    assert_eq!(made["sandbox"]["state"], "SANDBOX_STATE_RUNNING");
    assert_eq!(made["sandbox"]["labels"], json!({"job": "42"}));
    assert!(made["sandbox"]["expiresAt"].as_str().unwrap().ends_with('Z'));
    let with_header = http(
        &fixture,
        "POST",
        "/belljar.v1.Process/List",
        &[("content-type", "application/json"), ("x-api-key", &key), ("belljar-sandbox", &id)],
        b"{}",
    )
    .await;
    assert_eq!((with_header.status, with_header.json()), (200, json!({})));
    assert!(with_header.headers.contains_key("x-request-id"));
    let killed = call(&fixture, &key, "Sandboxes/Kill", json!({"sandbox": id})).await;
    assert_eq!((killed.status, killed.json()), (200, json!({})));
    // The protocols require it, for clients that are newer than the server.
    let unknown = call(&fixture, &key, "Sandboxes/List", json!({"of_tomorrow": 1})).await;
    assert_eq!((unknown.status, unknown.json()), (200, json!({})), "{unknown:?}");
}

async fn call_without_side_effects_works_as_get(fixture: Fixture) {
    let key = fixture.key("default", belljar_model::Role::User).await;
    let bearer = format!("Bearer {key}");
    let path = |procedure: &str| format!("/belljar.v1.{procedure}?connect=v1&encoding=json&message=%7B%7D");
    let listed = http(&fixture, "GET", &path("Sandboxes/List"), &[("authorization", &bearer)], b"").await;
    assert_eq!((listed.status, listed.json()), (200, json!({})));
    assert_eq!(http(&fixture, "GET", &path("Sandboxes/List"), &[], b"").await.status, 401);
    // A web page could make a browser load it.
    let made = http(&fixture, "GET", &path("Sandboxes/Create"), &[("authorization", &bearer)], b"").await;
    assert!(made.status >= 400, "{made:?}");
    assert_eq!(
        http(&fixture, "GET", &path("Sandboxes/List"), &[("authorization", &bearer)], b"").await.json(),
        json!({})
    );
}

async fn plain_json_streams_work(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let key = fixture.key("default", belljar_model::Role::User).await;
    let bearer = format!("Bearer {key}");
    let message = json!({"sandbox": id, "command": "ZWNobyBoaTsgZXhpdCA0"}).to_string();
    let headers = [("content-type", "application/connect+json"), ("authorization", bearer.as_str())];
    let path = "/belljar.v1.Commands/Exec";
    let answer = http(&fixture, "POST", path, &headers, &frame(0, message.as_bytes())).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let found: Vec<(u8, Value)> = frames(answer.body.clone())
        .into_iter()
        .map(|(flags, message)| (flags, serde_json::from_slice(&message).unwrap()))
        .collect();
    assert!(found[0].1["started"]["process"].is_string(), "{found:?}");
    assert_eq!(found[1].1["output"]["data"], "aGkK");
    let result = &found[found.len() - 2].1["result"];
    assert_eq!((&result["exitCode"], &result["outcome"]), (&json!(4), &json!({"exited": {"code": 4}})));
    assert_eq!(found.last().unwrap(), &(2, json!({})));
}

/// Returns clients of one service, one for each protocol.
fn clients(
    fixture: &Fixture,
    key: &str,
) -> Vec<(Protocol, v1::SandboxesClient<connectrpc::client::SharedHttp2Connection>)> {
    let uri: http::Uri = format!("http://{}", fixture.address).parse().unwrap();
    [Protocol::Connect, Protocol::Grpc, Protocol::GrpcWeb]
        .into_iter()
        .map(|protocol| {
            let config = ClientConfig::new(uri.clone())
                .with_protocol(protocol)
                .with_default_header("authorization", format!("Bearer {key}"));
            let connection = Http2Connection::lazy_plaintext(uri.clone()).shared(8);
            (protocol, v1::SandboxesClient::new(connection, config))
        })
        .collect()
}

async fn protocols_return_the_same_responses(fixture: Fixture) {
    let key = fixture.key("default", belljar_model::Role::User).await;
    let user = fixture.with_key(belljar_client::Credential::key(key.clone()));
    let id = sandbox(&user).await;
    crate::fixture::sh(&user, &id, "true").await;
    for (protocol, client) in clients(&fixture, &key) {
        let get = v1::GetSandboxRequest { sandbox: id.clone(), ..Default::default() };
        assert_eq!(client.get(get).await.unwrap().into_owned().id, id, "{protocol:?}");
        let request = v1::SandboxLogsRequest { sandbox: id.clone(), ..Default::default() };
        let mut log = client.logs(request).await.unwrap();
        let mut events = Vec::new();
        while let Some(entry) = log.message::<v1::SandboxLogEntry>().await.unwrap() {
            events.push(entry.to_owned_message().event);
        }
        assert!(log.error().is_none(), "{protocol:?}");
        assert!(events.iter().any(|event| event == "exec"), "{protocol:?} {events:?}");
    }
}

async fn errors_are_encoded_in_each_protocol(fixture: Fixture) {
    let key = fixture.key("default", belljar_model::Role::User).await;
    for (protocol, client) in clients(&fixture, &key) {
        let request = v1::GetSandboxRequest { sandbox: "nobody".to_owned(), ..Default::default() };
        let error = client.get(request).await.unwrap_err();
        assert_eq!(error.code, belljar_client::ErrorCode::NotFound, "{protocol:?}");
        assert!(
            error.details.iter().any(|detail| detail.type_url.ends_with("belljar.v1.Problem")),
            "{protocol:?}"
        );
        let request = v1::SandboxLogsRequest { sandbox: "nobody".to_owned(), ..Default::default() };
        let failed = match client.logs(request).await {
            Err(error) => error,
            Ok(mut stream) => match stream.message::<v1::SandboxLogEntry>().await {
                Err(error) => error,
                Ok(_) => stream.error().unwrap().clone(),
            },
        };
        assert_eq!(failed.code, belljar_client::ErrorCode::NotFound, "{protocol:?}");
    }
    // Refusals of the guards have the protocol's form as well, and are sent before any message is read.
    for (protocol, client) in clients(&fixture, "bj_wrong") {
        let error = client.list(v1::ListSandboxesRequest::default()).await.unwrap_err();
        assert_eq!(error.code, belljar_client::ErrorCode::Unauthenticated, "{protocol:?}");
        assert!(
            error.details.iter().any(|detail| detail.type_url.ends_with("belljar.v1.Problem")),
            "{protocol:?}"
        );
    }
    let plain = call(&fixture, "bj_wrong", "Sandboxes/List", json!({})).await;
    assert_eq!((plain.status, plain.json()["code"].clone()), (401, json!("unauthenticated")));
    assert_eq!(plain.headers["www-authenticate"], "Bearer");
}

async fn pages_of_allowed_origins_may_call(fixture: Fixture) {
    let key = fixture.key("default", belljar_model::Role::User).await;
    let path = "/belljar.v1.Sandboxes/List";
    let asked = http(
        &fixture,
        "OPTIONS",
        path,
        &[
            ("origin", ORIGIN),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type,x-grpc-web,belljar-sandbox"),
        ],
        b"",
    )
    .await;
    assert_eq!(asked.status, 204, "{asked:?}");
    let allowed = asked.headers["access-control-allow-headers"].to_str().unwrap().to_owned();
    for name in ["authorization", "x-grpc-web", "grpc-timeout", "connect-protocol-version", "belljar-sandbox"]
    {
        assert!(allowed.contains(name), "{name} is not in {allowed}");
    }
    let bearer = format!("Bearer {key}");
    let web = |origin| {
        let headers = [
            ("content-type", "application/grpc-web+proto"),
            ("x-grpc-web", "1"),
            ("authorization", bearer.as_str()),
            ("origin", origin),
        ];
        let fixture = &fixture;
        async move { http(fixture, "POST", path, &headers, &frame(0, b"")).await }
    };
    let answer = web(ORIGIN).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.headers["access-control-allow-origin"], ORIGIN);
    assert!(answer.headers["access-control-expose-headers"].to_str().unwrap().contains("grpc-status"));
    let last = frames(answer.body).pop().unwrap();
    assert_eq!(last.0, 0x80);
    assert!(
        String::from_utf8_lossy(&last.1).contains("grpc-status: 0")
            || String::from_utf8_lossy(&last.1).contains("grpc-status:0")
    );
    let refused = web("https://evil.example").await;
    assert!(!refused.headers.contains_key("access-control-allow-origin"), "{refused:?}");
    let trailer = frames(refused.body.clone()).pop().map(|(_, trailer)| trailer).unwrap_or_default();
    assert!(
        String::from_utf8_lossy(&trailer).contains("grpc-status: 7")
            || String::from_utf8_lossy(&trailer).contains("grpc-status:7"),
        "{refused:?}"
    );
}

async fn deadline_ends_a_call(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let hasty = user.clone().with_timeout(Duration::from_millis(400)).without_retries();
    let began = Instant::now();
    let mut events = hasty.exec(line(&id, "sleep 1000"), None).await.unwrap();
    let error = loop {
        match events.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended"),
            Err(error) => break error,
        }
    };
    assert!(began.elapsed() < Duration::from_secs(5), "{error:?}");
    assert!(matches!(error, belljar_client::ClientError::Broken { .. }), "{error:?}");
    let guest = user.guest(&id).unwrap();
    belljar_testing::wait::until("the command has ended", || async {
        guest.list_processes().await.unwrap().iter().all(|process| !process.running)
    })
    .await;

    // The server enforces it too, for a client that only announces it.
    let key = fixture.key("default", belljar_model::Role::User).await;
    let bearer = format!("Bearer {key}");
    let message = json!({"sandbox": id, "command": "c2xlZXAgMTAwMA=="}).to_string();
    for (name, value, kind) in [
        ("connect-timeout-ms", "300", "application/connect+json"),
        ("grpc-timeout", "300m", "application/grpc-web+json"),
    ] {
        let headers = [("content-type", kind), ("authorization", bearer.as_str()), (name, value)];
        let began = Instant::now();
        let answer =
            http(&fixture, "POST", "/belljar.v1.Commands/Exec", &headers, &frame(0, message.as_bytes()))
                .await;
        assert!(began.elapsed() < Duration::from_secs(5), "{answer:?}");
        let last = frames(answer.body.clone()).pop().unwrap().1;
        let text = String::from_utf8_lossy(&last).into_owned();
        assert!(
            text.contains("deadline_exceeded")
                || text.contains("grpc-status: 4")
                || text.contains("grpc-status:4"),
            "{text}"
        );
    }
}

async fn unknown_procedures_are_unimplemented(fixture: Fixture) {
    let key = fixture.key("default", belljar_model::Role::User).await;
    for procedure in ["Sandboxes/Nothing", "Nothing/Get"] {
        let answer = call(&fixture, &key, procedure, json!({})).await;
        assert_eq!(answer.json()["code"], "unimplemented", "{answer:?}");
    }
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/grpc"), ("authorization", bearer.as_str())];
    let answer = http2(&fixture, "POST", "/belljar.v1.Sandboxes/Nothing", &headers, &frame(0, b"")).await;
    assert_eq!(status(&answer), "12", "{answer:?}");
    // A client without a key cannot find out which procedures exist.
    let answer =
        http2(&fixture, "POST", "/belljar.v1.Sandboxes/Nothing", &headers[..1], &frame(0, b"")).await;
    assert_eq!(status(&answer), "16", "{answer:?}");
}

/// Returns the status of a gRPC answer.
pub(crate) fn status(answer: &Answer) -> &str {
    let found = answer.trailers.get("grpc-status").or_else(|| answer.headers.get("grpc-status"));
    found.map_or("none", |value| value.to_str().unwrap())
}

async fn unknown_content_types_are_refused(fixture: Fixture) {
    let key = fixture.key("default", belljar_model::Role::User).await;
    let bearer = format!("Bearer {key}");
    let before = fixture.keeper.me(&belljar_keeper::Caller::operator("test", "r")).unwrap().usage.sandboxes;
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "",
    ] {
        let headers = [("content-type", kind), ("authorization", bearer.as_str())];
        let answer = http(&fixture, "POST", "/belljar.v1.Sandboxes/Create", &headers, b"{}").await;
        assert_eq!(
            StatusCode::from_u16(answer.status).unwrap(),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{kind}"
        );
    }
    for encoding in ["gzip", "zstd", "br"] {
        let headers = [
            ("content-type", "application/json"),
            ("content-encoding", encoding),
            ("authorization", bearer.as_str()),
        ];
        let answer = http(&fixture, "POST", "/belljar.v1.Sandboxes/Create", &headers, b"{}").await;
        assert_eq!(answer.json()["code"], "unimplemented", "{encoding}");
    }
    let after = fixture.keeper.me(&belljar_keeper::Caller::operator("test", "r")).unwrap().usage.sandboxes;
    assert_eq!(before, after);
}
