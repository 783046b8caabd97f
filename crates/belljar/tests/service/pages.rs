//! Attacks by web pages in the browser of a user who runs a server (C23).

use serde_json::json;

use crate::raw::send;
use crate::run;
use crate::server::{Home, Server};

/// Sends a request as a browser would, and returns the response's status and text.
async fn browse(server: &Server, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut request = format!("{line} HTTP/1.1\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let heard = send(server.address, request.as_bytes()).await;
    (heard.status(), heard.text())
}

#[test]
fn c23_web_pages_cannot_use_a_local_server() {
    if crate::skipped("C23") {
        return;
    }
    run(async {
        let mut home = Home::new(&["sandboxes.pool=0"]);
        let server = home.start();
        server.ready().await;
        let client = server.admin();
        let id = client.sandbox(&json!({ "timeout": 3600 })).await;
        let (own, port) = (server.address.to_string(), server.address.port());
        let bearer = format!("Bearer {}", server.key);
        let with_key = ("Authorization", bearer.as_str());

        // DNS rebinding: the attacker's name resolves to this machine. The host name is refused, with or without a key.
        let rebound = format!("evil.example:{port}");
        for host in [
            rebound.as_str(),
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "2130706433",
            "[::ffff:127.0.0.1].x",
            "",
            "a@localhost",
        ] {
            for path in ["/health", "/v1/me", "/openapi.json"] {
                let (status, text) =
                    browse(&server, &format!("GET {path}"), &[("Host", host), with_key], "").await;
                assert!(matches!(status, 400 | 403), "{host} {path}: {text}");
                assert!(!text.to_ascii_lowercase().contains("access-control-allow-origin"), "{text}");
            }
        }
        // Two Host headers, and a different host in the target.
        let (status, text) =
            browse(&server, "GET /v1/me", &[("Host", &own), ("Host", "evil.example"), with_key], "").await;
        assert!(matches!(status, 400 | 403), "{text}");
        let (status, text) =
            browse(&server, "GET http://evil.example/v1/me", &[("Host", &own), with_key], "").await;
        assert!(matches!(status, 400 | 403), "{text}");
        let (status, text) = browse(&server, "GET /v1/me", &[with_key], "").await;
        assert!(matches!(status, 400 | 403), "no host: {text}");

        // A page of another origin cannot even make a simple request, with or without a key.
        let command = json!({ "command": "touch driven" }).to_string();
        let exec = format!("POST /v1/sandboxes/{id}/exec");
        let near = format!("http://localhost:{}", port.wrapping_add(1));
        for origin in [
            "https://evil.example",
            "null",
            near.as_str(),
            "http://127.0.0.1",
            "file://",
            "https://evil.example http://localhost",
            "chrome-extension://abc",
        ] {
            for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json"] {
                let headers = [("Host", own.as_str()), ("Origin", origin), ("Content-Type", kind), with_key];
                let (status, text) = browse(&server, &exec, &headers, &command).await;
                assert_eq!(status, 403, "{origin} {kind}: {text}");
                assert!(text.contains("origin_not_allowed"), "{text}");
            }
            let preflight = [
                ("Host", own.as_str()),
                ("Origin", origin),
                ("Access-Control-Request-Method", "POST"),
                ("Access-Control-Request-Headers", "authorization"),
            ];
            let (status, text) =
                browse(&server, &format!("OPTIONS /v1/sandboxes/{id}/exec"), &preflight, "").await;
            assert_eq!(status, 403, "{origin}: {text}");
            assert!(!text.to_ascii_lowercase().contains("access-control-allow"), "{text}");
            // WebSockets are refused as well: browsers open them without a preflight request.
            let upgrade = [
                ("Host", own.as_str()),
                ("Origin", origin),
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
                with_key,
            ];
            let (status, text) = browse(
                &server,
                &format!("GET /v1/sandboxes/{id}/terminal?command=touch%20driven"),
                &upgrade,
                "",
            )
            .await;
            assert_eq!(status, 403, "{origin}: {text}");
        }
        // Images, scripts and forms send no Origin, but Sec-Fetch-Site.
        for site in ["cross-site", "same-site"] {
            let headers =
                [("Host", own.as_str()), ("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "no-cors"), with_key];
            let (status, text) = browse(&server, "GET /v1/sandboxes", &headers, "").await;
            assert_eq!(status, 403, "{site}: {text}");
        }
        // Headers that browsers add by themselves do not authenticate.
        for header in
            ["Cookie", "Proxy-Authorization", "X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Original-URL"]
        {
            let value = if header == "Cookie" {
                format!("belljar_token={}; key={}", server.key, server.key)
            } else {
                bearer.clone()
            };
            let (status, text) = browse(&server, "GET /v1/me", &[("Host", &own), (header, &value)], "").await;
            assert_eq!(status, 401, "{header}: {text}");
        }
        assert_eq!(client.sh(&id, "ls").await, "", "a page has run a command");
        // Control: the server's own page, and a program.
        let origin = format!("http://{own}");
        let (status, text) =
            browse(&server, "GET /v1/me", &[("Host", &own), ("Origin", &origin), with_key], "").await;
        assert_eq!(status, 200, "{text}");
        let (status, text) =
            browse(&server, "GET /v1/me", &[("Host", &format!("localhost:{port}")), with_key], "").await;
        assert_eq!(status, 200, "{text}");
        crate::crash::shut_down(server, &home).await;
    });
}
