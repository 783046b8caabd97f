//! Cross-origin requests from web pages.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use belljar_keeper::ServiceWall;
use http::{HeaderValue, Method, StatusCode, header};

use super::client::Client;
use super::host::authority;
use crate::api::ApiConfig;
use crate::problem::{Code, Problem};

/// Maximum time for which a browser may cache a preflight response, in seconds.
const MAX_AGE_SECONDS: &str = "600";

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
const REQUEST_HEADERS: &str = "authorization, belljar-sandbox, connect-protocol-version, connect-timeout-ms, \
                               content-range, content-type, grpc-timeout, idempotency-key, if-match, if-none-match, \
                               if-range, range, x-api-key, x-belljar-token, x-grpc-web, x-request-id, x-user-agent";
const RESPONSE_HEADERS: &str = "content-disposition, content-range, etag, grpc-message, grpc-status, \
                                grpc-status-details-bin, last-modified, retry-after, x-request-id";

/// Verdict on a request's origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request comes from no page, or from one of the server's own.
    Own,
    /// The request comes from a page that the operator allows.
    Allowed(HeaderValue),
}

/// Checks the origin of a request.
///
/// # Errors
/// Fails if the request comes from a page of an origin that is not allowed.
pub(super) fn check(config: &ApiConfig, request: &Request) -> Result<Verdict, Problem> {
    let headers = request.headers();
    if ServiceWall::Origins.is_down() {
        return Ok(Verdict::Own);
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else {
        return if is_cross_site_subresource(request) { Err(origin_not_allowed()) } else { Ok(Verdict::Own) };
    };
    if origins.next().is_some() {
        return Err(origin_not_allowed());
    }
    let text = origin.to_str().map_err(|_| origin_not_allowed())?.to_ascii_lowercase();
    if is_own(config, request, &text) {
        return Ok(Verdict::Own);
    }
    let allowed =
        config.origins.iter().any(|allowed| allowed.trim_end_matches('/').eq_ignore_ascii_case(&text));
    if allowed { Ok(Verdict::Allowed(origin.clone())) } else { Err(origin_not_allowed()) }
}

/// Reports whether another page made the browser load this as a subresource, such as an image or a script. Such
/// requests have no `Origin`. Following a link is fine: the browser then shows the response, and no page can read it.
fn is_cross_site_subresource(request: &Request) -> bool {
    let value = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let other = matches!(value("sec-fetch-site"), Some("cross-site" | "same-site"));
    let path = request.uri().path();
    other && value("sec-fetch-mode") != Some("navigate") && !path.starts_with("/v1/signed/")
}

fn is_own(config: &ApiConfig, request: &Request, origin: &str) -> bool {
    let Ok(Some(authority)) = authority(request.uri(), request.headers()) else { return false };
    let client = Client::from_request(config, request.headers(), request.extensions());
    let authority = authority.as_str().to_ascii_lowercase();
    match origin.split_once("://") {
        Some(("https", rest)) => rest == authority.strip_suffix(":443").unwrap_or(&authority),
        // A page that was loaded without TLS may have been modified in transit.
        Some(("http", rest)) => !client.tls && rest == authority.strip_suffix(":80").unwrap_or(&authority),
        _ => false,
    }
}

/// Returns the response to a CORS preflight request.
pub(super) fn preflight(request: &Request) -> Option<Response> {
    if request.method() != Method::OPTIONS
        || !request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(REQUEST_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_SECONDS));
    Some(response)
}

/// Allows the page to read the response. Credentials such as cookies are never allowed.
pub(super) fn allow(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(RESPONSE_HEADERS));
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

fn origin_not_allowed() -> Problem {
    let detail = "a page of another origin may not use this server; the operator can allow its origin";
    Problem::new(Code::OriginNotAllowed, detail)
}

#[cfg(test)]
mod tests {
    use super::super::client::Peer;
    use super::*;

    /// Headers of a request.
    type Headers<'a> = &'a [(&'static str, &'a str)];

    fn judge(tls: bool, headers: &[(&'static str, &str)]) -> Option<Verdict> {
        let config =
            ApiConfig { origins: vec!["https://console.example.com".to_owned()], ..ApiConfig::default() };
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/v1/sandboxes".parse().unwrap();
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        let peer = Peer { remote: Some("192.0.2.1:5".parse().unwrap()), tls, ..Peer::default() };
        request.extensions_mut().insert(peer);
        check(&config, &request).ok()
    }

    #[test]
    fn origins_are_checked() {
        let host = ("host", "localhost:8080");
        let allowed = || Some(Verdict::Allowed(HeaderValue::from_static("https://console.example.com")));
        let cases: &[(bool, Headers<'_>, Option<Verdict>)] = &[
            (false, &[host], Some(Verdict::Own)),
            (false, &[host, ("origin", "http://localhost:8080")], Some(Verdict::Own)),
            (false, &[host, ("origin", "https://localhost:8080")], Some(Verdict::Own)),
            (true, &[host, ("origin", "http://localhost:8080")], None),
            (false, &[host, ("origin", "http://localhost:8081")], None),
            (false, &[host, ("origin", "http://evil.example")], None),
            (false, &[host, ("origin", "http://localhost:8080.evil.example")], None),
            (false, &[host, ("origin", "null")], None),
            (false, &[host, ("origin", "https://console.example.com")], allowed()),
            (false, &[host, ("origin", "https://console.example.com.evil.example")], None),
            (
                false,
                &[host, ("origin", "https://console.example.com"), ("origin", "http://localhost:8080")],
                None,
            ),
            (false, &[host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")], None),
            (false, &[host, ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")], None),
            (
                false,
                &[host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")],
                Some(Verdict::Own),
            ),
            (
                false,
                &[host, ("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")],
                Some(Verdict::Own),
            ),
            (false, &[("host", "localhost:80"), ("origin", "http://localhost")], Some(Verdict::Own)),
            (true, &[("host", "api.test:443"), ("origin", "https://api.test")], Some(Verdict::Own)),
        ];
        for (tls, headers, expected) in cases {
            assert_eq!(judge(*tls, headers), *expected, "{headers:?}");
        }
    }
}
