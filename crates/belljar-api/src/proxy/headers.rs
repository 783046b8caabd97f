//! Headers of forwarded requests and responses, beyond what every intermediary does (`belljar-http-hop`).

use belljar_http_hop::remove_alike;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::credential::is_own_cookie;
use crate::guard::Client;

/// Forwarding headers, which are not accepted from clients in any spelling.
const FORWARDED: [&str; 7] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-real-ip",
];

/// Response headers that browsers apply to more than the page, and longer: to the host name after the sandbox has ended, to names
/// below it, or to the data of the whole site, which other sandboxes share. `X-Request-Id` is the server's own.
const REMOVED: [&str; 10] = [
    "alt-svc",
    "clear-site-data",
    "expect-ct",
    "nel",
    "public-key-pins",
    "public-key-pins-report-only",
    "report-to",
    "set-login",
    "strict-transport-security",
    "x-request-id",
];

/// Response headers that apply to one origin, and are removed on the server's own.
const REMOVED_BY_PATH: [&str; 7] = [
    "accept-ch",
    "access-control-allow-credentials",
    "critical-ch",
    "origin-agent-cluster",
    "reporting-endpoints",
    "service-worker-allowed",
    "use-as-dictionary",
];

/// Restrictions for pages that are served by path: they have an opaque origin, so they cannot act on the server's.
const SANDBOX: &str = "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads";

/// Sets the forwarding headers: the client, and how it reached this server.
pub(super) fn set_forwarded(headers: &mut HeaderMap, client: &Client, host: &str, prefix: Option<&str>) {
    for name in FORWARDED {
        remove_alike(headers, &HeaderName::from_static(name));
    }
    let address = client.text.parse::<std::net::SocketAddr>().map(|address| address.ip().to_string());
    let address = address.unwrap_or_else(|_| client.text.clone());
    let forwarded = [
        ("x-forwarded-for", Some(address.as_str())),
        ("x-forwarded-host", Some(host)),
        ("x-forwarded-proto", Some(client.scheme())),
        ("x-forwarded-prefix", prefix),
    ];
    for (name, value) in forwarded {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
    if let Ok(host) = HeaderValue::from_str(host) {
        headers.insert(header::HOST, host);
    }
}

/// Removes or restricts response headers that could harm other pages. `prefix` is the path prefix of the sandbox, if it is
/// served on the server's own host.
pub(super) fn sanitize_response(headers: &mut HeaderMap, prefix: Option<&str>) {
    for name in REMOVED {
        headers.remove(name);
    }
    let cookies: Vec<HeaderValue> =
        headers.get_all(header::SET_COOKIE).iter().filter_map(|value| cookie(value, prefix)).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    let Some(prefix) = prefix else { return };
    for name in REMOVED_BY_PATH {
        headers.remove(name);
    }
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    // Programs in the sandbox are not aware of the path prefix.
    let location = location.filter(|location| location.starts_with('/') && !location.starts_with("//"));
    if let Some(location) = location.and_then(|path| HeaderValue::try_from(format!("{prefix}{path}")).ok()) {
        headers.insert(header::LOCATION, location);
    }
    headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// Restricts a cookie of the sandbox to this host and, by path, to this path. The server's own cookie cannot be set.
fn cookie(value: &HeaderValue, prefix: Option<&str>) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let mut parts = text.split(';').map(str::trim);
    let pair = parts.next()?;
    let name = pair.split('=').next().unwrap_or_default();
    // Servers read a cookie without a name by its value: that could be any cookie.
    if name.is_empty() || !pair.contains('=') || is_own_cookie(name) {
        return None;
    }
    let mut kept = vec![pair.to_owned()];
    let mut path = None;
    for part in parts {
        let key = part.split('=').next().unwrap_or_default().trim();
        if key.eq_ignore_ascii_case("path") {
            path = part.split_once('=').map(|(_, path)| path.trim().to_owned());
        } else if !key.eq_ignore_ascii_case("domain") {
            kept.push(part.to_owned());
        }
    }
    match (prefix, path) {
        (None, Some(path)) => kept.push(format!("Path={path}")),
        (None, None) => {}
        (Some(prefix), path) => {
            let path = path.filter(|path| path.starts_with('/')).unwrap_or_else(|| "/".to_owned());
            kept.push(format!("Path={prefix}{path}"));
        }
    }
    HeaderValue::try_from(kept.join("; ")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn clients_cannot_set_forwarding_headers() {
        let mut headers = map(&[
            ("x-forwarded-for", "6.6.6.6"),
            ("x_forwarded_for", "6.6.6.6"),
            ("x_real-ip", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("x-real-ip", "6.6.6.6"),
        ]);
        let client = Client { address: [192, 0, 2, 1].into(), text: "192.0.2.1:99".to_owned(), tls: true };
        set_forwarded(&mut headers, &client, "80-a.box.test", None);
        let expected = map(&[
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "80-a.box.test"),
            ("x-forwarded-proto", "https"),
            ("host", "80-a.box.test"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn cookies_are_restricted_to_host_and_path() {
        let cases = [
            ("a=b; Domain=box.test; Path=/; Secure", None, Some("a=b; Secure; Path=/")),
            ("a=b; domain = .box.test", None, Some("a=b")),
            ("a=b", None, Some("a=b")),
            ("belljar_token=x", None, None),
            (" BELLJAR_TOKEN =x", None, None),
            ("__Host-belljar_token=x; Path=/; Secure", None, None),
            ("=belljar_token=x", None, None),
            ("belljar_token", None, None),
            ("a=b; Path=/x; Domain=y", Some("/p"), Some("a=b; Path=/p/x")),
            ("a=b; HttpOnly", Some("/p"), Some("a=b; HttpOnly; Path=/p/")),
            ("a=b; Path=x", Some("/p"), Some("a=b; Path=/p/")),
        ];
        for (given, prefix, expected) in cases {
            let found = cookie(&HeaderValue::from_str(given).unwrap(), prefix);
            assert_eq!(found.as_ref().map(|value| value.to_str().unwrap()), expected, "{given}");
        }
    }

    #[test]
    fn responses_by_path_are_sandboxed() {
        let answer = [
            ("content-security-policy", "default-src *"),
            ("reporting-endpoints", "a=\"https://x.example\""),
            ("strict-transport-security", "max-age=9"),
            ("alt-svc", "h3=\":443\""),
            ("clear-site-data", "\"*\""),
            ("nel", "{}"),
            ("report-to", "{}"),
            ("public-key-pins", "max-age=9"),
            ("location", "/login"),
            ("content-type", "text/html"),
        ];
        let mut by_path = map(&answer);
        sanitize_response(&mut by_path, Some("/v1/p"));
        let policies: Vec<_> = by_path.get_all("content-security-policy").iter().collect();
        assert_eq!(policies.len(), 2);
        assert!(policies[1].to_str().unwrap().starts_with("sandbox") && !SANDBOX.contains("same-origin"));
        assert_eq!(
            (by_path["location"].to_str().unwrap(), by_path["x-content-type-options"].to_str().unwrap()),
            ("/v1/p/login", "nosniff")
        );
        let mut by_host = map(&answer);
        sanitize_response(&mut by_host, None);
        assert_eq!(by_host["location"], "/login");
        for removed in
            ["strict-transport-security", "alt-svc", "clear-site-data", "nel", "report-to", "public-key-pins"]
        {
            assert!(!by_path.contains_key(removed) && !by_host.contains_key(removed), "{removed}");
        }
        assert!(by_host.contains_key("reporting-endpoints") && !by_path.contains_key("reporting-endpoints"));
        let mut external = map(&[("location", "//evil.example/")]);
        sanitize_response(&mut external, Some("/v1/p"));
        assert_eq!(external["location"], "//evil.example/");
    }
}
