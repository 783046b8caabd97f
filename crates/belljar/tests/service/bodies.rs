//! Oversized and malformed bodies (C05, C06).

use std::time::Duration;

use serde_json::json;

use crate::client::Client;
use crate::raw::{flood, memory_kib, send};
use crate::run;
use crate::server::{Home, Server};

/// Maximum time of a refusal. On an idle machine it takes 100 ms.
const MAX_REFUSAL_TIME: Duration = Duration::from_secs(10);

/// Maximum growth of the server's memory over the whole test, in KiB: less than one of the bodies.
const GROWTH_KIB: u64 = 48 * 1024;

fn head(server: &Server, path: &str, headers: &str) -> Vec<u8> {
    let (address, key) = (server.address, &server.key);
    format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n{headers}\r\n\r\n")
        .into_bytes()
}

#[test]
fn c05_oversized_bodies_are_refused_at_once_and_cost_nothing() {
    if crate::skipped("C05") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let before = memory_kib(server.pid());
        let json_type = "Content-Type: application/json";

        // A gigabyte with a declared length, and one without.
        let large = head(&server, "/v1/sandboxes", &format!("{json_type}\r\nContent-Length: 1073741824"));
        let (heard, sent) = flood(server.address, &large, &[b' '; 65536], 1 << 30).await;
        assert_eq!(heard.status(), 413, "{}", heard.text());
        assert!(heard.first < MAX_REFUSAL_TIME && sent < 64 << 20, "{:?} after {sent} bytes", heard.first);
        let chunk = [b"10000\r\n".to_vec(), vec![b' '; 65536], b"\r\n".to_vec()].concat();
        let chunked = head(&server, "/v1/sandboxes", &format!("{json_type}\r\nTransfer-Encoding: chunked"));
        let (heard, sent) = flood(server.address, &chunked, &chunk, 1 << 30).await;
        assert_eq!(heard.status(), 413, "{}", heard.text());
        assert!(heard.first < MAX_REFUSAL_TIME && sent < 64 << 20, "{:?} after {sent} bytes", heard.first);

        // Invalid JSON, and JSON at the edge of validity.
        let deep = "[".repeat(100_000);
        let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xed\xc1\x01\x01\0\0\0\x80\x90\xfe\xaf\xee\x08".to_vec();
        let cases: Vec<(&str, Vec<u8>, u16)> = vec![
            ("nested 100,000 deep", format!("{{\"env\":{deep}").into_bytes(), 400),
            ("nested objects", "{\"a\":".repeat(100_000).into_bytes(), 400),
            ("a key twice", br#"{"timeout":60,"timeout":61}"#.to_vec(), 400),
            ("NaN", br#"{"timeout":NaN}"#.to_vec(), 400),
            ("infinity", br#"{"timeout":1e999}"#.to_vec(), 400),
            ("bytes that are no UTF-8", b"{\"name\":\"\xff\xfe\"}".to_vec(), 400),
            ("half of a pair", br#"{"labels":{"a":"\ud800"}}"#.to_vec(), 400),
            ("NUL", br#"{"env":{"A":"a\u0000b"}}"#.to_vec(), 400),
            ("a list", b"[]".to_vec(), 400),
            ("more after it", b"{}{}".to_vec(), 400),
            (
                "a number with 100,000 digits",
                format!("{{\"timeout\":{}}}", "9".repeat(100_000)).into_bytes(),
                400,
            ),
            ("a name with a megabyte", format!("{{\"name\":\"{}\"}}", "a".repeat(1 << 20)).into_bytes(), 400),
            ("100,000 labels", labels(100_000).into_bytes(), 400),
            ("unknown keys", br#"{"privileged":true}"#.to_vec(), 400),
        ];
        for (what, body, status) in cases {
            let mut request =
                head(&server, "/v1/sandboxes", &format!("{json_type}\r\nContent-Length: {}", body.len()));
            request.extend_from_slice(&body);
            let heard = send(server.address, &request).await;
            assert_eq!(heard.status(), status, "{what}: {}", heard.text());
            assert!(heard.text().contains("application/problem+json"), "{what}: {}", heard.text());
            assert!(heard.first < MAX_REFUSAL_TIME, "{what}: {:?}", heard.first);
        }
        for (what, headers) in [
            ("gzip", "Content-Type: application/json\r\nContent-Encoding: gzip"),
            ("deflate", "Content-Type: application/json\r\nContent-Encoding: deflate"),
            ("another type", "Content-Type: text/plain"),
            ("UTF-16", "Content-Type: application/json; charset=utf-16"),
        ] {
            let mut request =
                head(&server, "/v1/sandboxes", &format!("{headers}\r\nContent-Length: {}", gzip.len()));
            request.extend_from_slice(&gzip);
            let heard = send(server.address, &request).await;
            assert!(matches!(heard.status(), 400 | 415), "{what}: {}", heard.text());
        }
        // Contradictory lengths.
        for headers in [
            "Content-Length: 2\r\nContent-Length: 3",
            "Content-Length: 2\r\nTransfer-Encoding: chunked",
            "Content-Length: -1",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: gzip",
            "Transfer-Encoding: chunked, identity",
        ] {
            let mut request = head(&server, &format!("/v1/sandboxes/{id}/pause"), headers);
            request.extend_from_slice(b"{}DELETE /v1/sandboxes/x HTTP/1.1\r\n\r\n");
            let heard = send(server.address, &request).await;
            assert!(matches!(heard.status(), 400 | 411 | 413 | 501), "{headers}: {}", heard.text());
        }
        let info = client.get(&format!("/v1/sandboxes/{id}")).await.json();
        assert_eq!(info["state"], "running", "an ambiguous request was executed");
        let after = memory_kib(server.pid());
        assert!(after < before + GROWTH_KIB, "memory grew from {before} to {after} KiB");
        assert_eq!(client.get("/v1/sandboxes").await.json()["sandboxes"].as_array().map(Vec::len), Some(1));
        crate::crash::shut_down(server, &home).await;
    });
}

fn labels(count: usize) -> String {
    let labels: Vec<String> = (0..count).map(|number| format!("\"k{number}\":\"v\"")).collect();
    format!("{{\"labels\":{{{}}}}}", labels.join(","))
}

async fn form(client: &Client, id: &str, kind: &str, body: Vec<u8>) -> crate::client::Answer {
    let request = client.request("POST", &format!("/v1/sandboxes/{id}/files/upload?path=in"));
    client.apart().send(request.header("content-type", kind), body).await
}

#[test]
fn c06_malformed_forms_leave_nothing() {
    if crate::skipped("C06") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        client.sh(&id, "mkdir in").await;
        let part = |name: &str, content: &str| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{content}\r\n"
            )
        };
        let kind = "multipart/form-data; boundary=b";
        let whole = part("one.txt", "whole") + "--b--\r\n";
        let many: String =
            (0..10_000).map(|number| part(&format!("f{number}"), "x")).collect::<String>() + "--b--\r\n";
        let before = memory_kib(server.pid());
        for (what, kind, body, statuses) in [
            ("no boundary", "multipart/form-data", whole.clone(), &[400, 415][..]),
            ("another boundary", "multipart/form-data; boundary=c", whole.clone(), &[400]),
            ("no form", "application/json", whole.clone(), &[400, 415]),
            ("cut off in a part", kind, part("cut.txt", "half")[..70].to_owned(), &[400]),
            ("cut off in a head", kind, part("cut.txt", "half")[..40].to_owned(), &[400]),
            ("no end", kind, part("open.txt", "x"), &[400]),
            ("10,000 parts", kind, many, &[400, 413, 200]),
            ("a name of a megabyte", kind, part(&"n".repeat(1 << 20), "x") + "--b--\r\n", &[400, 413]),
            ("a name that climbs", kind, part("../../out.txt", "x") + "--b--\r\n", &[400, 403]),
            ("an absolute name", kind, part("/tmp/out.txt", "x") + "--b--\r\n", &[400, 403]),
            ("no name", kind, part("", "x") + "--b--\r\n", &[400]),
            (
                "a field that is no file",
                kind,
                "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\ny\r\n--b--\r\n".to_owned(),
                &[400],
            ),
            (
                "100,000 headers",
                kind,
                format!("--b\r\n{}\r\nx\r\n--b--\r\n", "A: b\r\n".repeat(100_000)),
                &[400, 413],
            ),
        ] {
            let answer = form(&client, &id, kind, body.into_bytes()).await;
            assert!(
                statuses.contains(&answer.status.as_u16()),
                "{what}: {} {}",
                answer.status,
                answer.text()
            );
            let there = client
                .sh(&id, "ls -A in | grep -v '^f[0-9]*$'; ls -d out.txt /tmp/out.txt 2>/dev/null || true")
                .await;
            assert_eq!(there, "", "{what} left files");
        }
        let hidden =
            client.sh(&id, "find / -xdev -name '*out.txt' 2>/dev/null; ls -A | grep -vx in || true").await;
        assert_eq!(hidden, "", "something was left elsewhere");
        let scratch = std::fs::read_dir(home.tmp()).expect("it is there").flatten();
        let scratch: Vec<_> =
            scratch.filter(|entry| !entry.file_name().to_string_lossy().starts_with("belljar-")).collect();
        assert!(scratch.is_empty(), "{scratch:?}");
        let after = memory_kib(server.pid());
        assert!(after < before + GROWTH_KIB, "memory grew from {before} to {after} KiB");
        assert_eq!(form(&client, &id, kind, whole.into_bytes()).await.status, 200);
        assert_eq!(client.sh(&id, "cat in/one.txt").await, "whole");
        crate::crash::shut_down(server, &home).await;
    });
}
