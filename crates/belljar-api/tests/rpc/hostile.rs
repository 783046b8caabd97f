//! Hostile frames (C09).

use std::time::{Duration, Instant};

use belljar_model::Role;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, cases, sandbox};
use crate::wire::{call, frame, frames, http, http2, status};

cases![
    length_of_four_gigabytes_is_refused_at_once,
    messages_without_end_count_together,
    message_size_is_bounded,
    message_nesting_is_bounded,
    number_of_empty_parts_is_bounded,
    invalid_messages_are_refused,
    truncated_stream_is_refused,
    connection_with_repeated_resets_is_closed,
];

/// Returns a header that announces a message of nearly 4 GiB.
fn oversized_header() -> [u8; 5] {
    [0, 0xff, 0xff, 0xff, 0xff]
}

async fn length_of_four_gigabytes_is_refused_at_once(fixture: Fixture) {
    let key = fixture.key("default", Role::User).await;
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let bearer = format!("Bearer {key}");
    let headers =
        |kind| [("content-type", kind), ("authorization", bearer.as_str()), ("belljar-sandbox", id.as_str())];
    for path in ["/belljar.v1.Sandboxes/Get", "/belljar.v1.Sandboxes/Logs", "/belljar.v1.Filesystem/Write"] {
        let began = Instant::now();
        let answer = http2(&fixture, "POST", path, &headers("application/grpc"), &oversized_header()).await;
        assert_eq!(status(&answer), "8", "{path} {answer:?}");
        assert!(began.elapsed() < Duration::from_secs(2), "{path}");
    }
    for path in ["/belljar.v1.Sandboxes/Logs", "/belljar.v1.Process/Input"] {
        let answer =
            http(&fixture, "POST", path, &headers("application/connect+proto"), &oversized_header()).await;
        let end = frames(answer.body.clone()).pop().unwrap().1;
        assert!(String::from_utf8_lossy(&end).contains("resource_exhausted"), "{path} {answer:?}");
    }
}

/// The body of a call that has a single message is collected as a whole, also if it has many empty ones.
async fn messages_without_end_count_together(fixture: Fixture) {
    let bearer = format!("Bearer {}", fixture.key("default", Role::Read).await);
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    // Together they have 80 MB.
    let mut all: FuturesUnordered<_> = (0..20)
        .map(|_| {
            let zeros = Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![0; 4_000_000])));
            let body = futures::stream::iter([zeros]).chain(futures::stream::pending());
            let request =
                http::Request::post(format!("http://{}/belljar.v1.Sandboxes/List", fixture.address))
                    .header("content-type", "application/grpc")
                    .header("authorization", &bearer)
                    .body(StreamBody::new(body))
                    .unwrap();
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        })
        .collect();
    let answered = tokio::time::timeout(Duration::from_secs(60), all.next()).await;
    let answer = answered.unwrap().unwrap().unwrap();
    let code = answer.headers().get("grpc-status").and_then(|code| code.to_str().ok()).unwrap_or_default();
    assert!(answer.status() == 429 || code == "8", "{answer:?}");
}

async fn message_size_is_bounded(fixture: Fixture) {
    let key = fixture.key("default", Role::User).await;
    let body = vec![b' '; (4 << 20) + 100];
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    let answer = http(&fixture, "POST", "/belljar.v1.Sandboxes/Create", &headers, &body).await;
    assert_eq!(answer.json()["code"], "resource_exhausted", "{}", answer.status);
}

async fn message_nesting_is_bounded(fixture: Fixture) {
    let key = fixture.key("default", Role::User).await;
    let bearer = format!("Bearer {key}");
    // JSON, in an unknown field and in a known one.
    for body in ["[".repeat(100_000), format!("{{\"labels\":{}", "{\"a\":".repeat(100_000))] {
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let answer = http(&fixture, "POST", "/belljar.v1.Sandboxes/Create", &headers, body.as_bytes()).await;
        assert_eq!(answer.json()["code"], "invalid_argument", "{}", answer.status);
    }
    // Nested groups in an unknown field.
    let groups: Vec<u8> = std::iter::repeat_n([0x93_u8, 0x3e], 50_000).flatten().collect();
    let headers = [("content-type", "application/proto"), ("authorization", bearer.as_str())];
    let answer = http(&fixture, "POST", "/belljar.v1.Sandboxes/Create", &headers, &groups).await;
    assert_eq!(answer.json()["code"], "invalid_argument", "{}", answer.status);
}

async fn number_of_empty_parts_is_bounded(fixture: Fixture) {
    let key = fixture.key("default", Role::User).await;
    let bearer = format!("Bearer {key}");
    // `files` is field 16 of the request: three bytes for each empty file.
    let files: Vec<u8> = std::iter::repeat_n([0x82_u8, 0x01, 0x00], 1_300_000).flatten().collect();
    let headers = [("content-type", "application/proto"), ("authorization", bearer.as_str())];
    let answer = http(&fixture, "POST", "/belljar.v1.Sandboxes/Create", &headers, &files).await;
    let code = answer.json()["code"].as_str().unwrap().to_owned();
    assert!(["resource_exhausted", "invalid_argument"].contains(&code.as_str()), "{answer:?}");
}

async fn invalid_messages_are_refused(fixture: Fixture) {
    let key = fixture.key("default", Role::User).await;
    let bearer = format!("Bearer {key}");
    let bodies: [(&str, &[u8]); 7] = [
        ("application/proto", b"\x0a\xff\xff\xff\xff\x0f"),
        ("application/proto", b"\x0a\x02\xff\xfe"),
        ("application/proto", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("application/json", b"{\"name\": 3}"),
        ("application/json", b"{\"name\": \"\xff\"}"),
        ("application/json", b"{\"timeout\": \"soon\"}"),
        ("application/json", b"{}{}"),
    ];
    for (kind, body) in bodies {
        let headers = [("content-type", kind), ("authorization", bearer.as_str())];
        let answer = http(&fixture, "POST", "/belljar.v1.Sandboxes/Create", &headers, body).await;
        assert_eq!(answer.json()["code"], "invalid_argument", "{kind} {body:?} {answer:?}");
    }
    let listed = call(&fixture, &key, "Sandboxes/List", json!({})).await;
    assert_eq!(listed.json(), json!({}));
}

async fn truncated_stream_is_refused(fixture: Fixture) {
    let user = fixture.user().await;
    let id = sandbox(&user).await;
    let bearer = format!("Bearer {}", fixture.key("default", Role::User).await);
    let headers = [
        ("content-type", "application/connect+json"),
        ("authorization", bearer.as_str()),
        ("belljar-sandbox", id.as_str()),
    ];
    let whole = frame(0, json!({"open": {"path": "YQ=="}, "data": "eHg="}).to_string().as_bytes());
    let mut cut = BytesMut::from(&whole[..]);
    cut.put_slice(&whole[..whole.len() - 4]);
    let answer = http(&fixture, "POST", "/belljar.v1.Filesystem/Write", &headers, &cut).await;
    let end = frames(answer.body.clone()).pop().unwrap().1;
    assert!(String::from_utf8_lossy(&end).contains("\"error\""), "{answer:?}");
    let guest = user.guest(&id).unwrap();
    assert!(guest.stat(std::path::Path::new("a"), false).await.is_err());
    // A compressed message without negotiated compression.
    let answer = http(&fixture, "POST", "/belljar.v1.Filesystem/Write", &headers, &frame(1, b"xxx")).await;
    let end = frames(answer.body.clone()).pop().unwrap().1;
    assert!(String::from_utf8_lossy(&end).contains("\"error\""), "{answer:?}");
}

/// Opens streams and resets them at once, until the server closes the connection.
async fn connection_with_repeated_resets_is_closed(fixture: Fixture) {
    let key = fixture.key("default", Role::User).await;
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let head = {
        let mut head = BytesMut::new();
        // POST, http, then literals without indexing: path, authority, kind, key.
        head.put_slice(&[0x83, 0x86]);
        for (name, value) in [
            (":path", "/belljar.v1.Sandboxes/List"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("x-api-key", key.as_str()),
        ] {
            head.put_u8(0);
            head.put_u8(u8::try_from(name.len()).unwrap());
            head.put_slice(name.as_bytes());
            head.put_u8(u8::try_from(value.len()).unwrap());
            head.put_slice(value.as_bytes());
        }
        head.freeze()
    };
    let (mut from, mut to) = stream.into_split();
    let flood = tokio::spawn(async move {
        for number in 0..100_000_u32 {
            let id = number * 2 + 1;
            let mut both = BytesMut::new();
            both.put_uint(u64::try_from(head.len()).unwrap(), 3);
            both.put_slice(&[1, 4]);
            both.put_u32(id);
            both.put_slice(&head);
            both.put_slice(&[0, 0, 4, 3, 0]);
            both.put_u32(id);
            both.put_u32(8);
            if to.write_all(&both).await.is_err() {
                return Some(number);
            }
        }
        None
    });
    let mut sink = vec![0; 65536];
    let closed = async { while from.read(&mut sink).await.is_ok_and(|bytes| bytes > 0) {} };
    tokio::time::timeout(Duration::from_secs(15), closed).await.unwrap();
    assert!(flood.await.unwrap().is_some(), "all resets were taken");
    // Other clients are not affected.
    assert_eq!(call(&fixture, &key, "Sandboxes/List", json!({})).await.status, 200);
}
