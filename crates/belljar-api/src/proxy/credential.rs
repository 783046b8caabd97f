//! Credentials for ports, and their removal before the request enters the sandbox.

use axum::extract::Request;
use belljar_http_hop::{is_alike, remove_alike};
use belljar_keeper::{E2B_KEY_PREFIX, KEY_PREFIX};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::guard;
use crate::proxy::host_of;

/// Header for a token. `Authorization` is left to programs in the sandbox.
const HEADER: HeaderName = HeaderName::from_static("x-belljar-token");

/// Header of E2B's clients with the token for ports. Programs inside have no use for it.
const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// Equivalent headers of E2B's clients.
const E2B_HEADERS: [&str; 2] = ["x-access-token", TRAFFIC_TOKEN];

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Name of the query parameter and of the cookie for a token.
const NAME: &str = "belljar_token";

/// Name of the cookie with TLS: browsers accept this prefix from the very same host only.
const HOST_NAME: &str = "__Host-belljar_token";

/// Maximum number of cookies of a request that are tried. Browsers send those of a more specific path and older ones first (RFC 6265,
/// 5.4); other hosts can set many, so that there is no number that is always enough.
const MAX_COOKIES: usize = 16;

/// Prefixes of the server's keys and tokens.
const PREFIXES: [&str; 3] = [KEY_PREFIX, E2B_KEY_PREFIX, "bjs_"];

/// Source of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    None,
    Header,
    Query,
    Cookie,
}

impl Source {
    /// Reports whether the client chose to present the credential. A browser attaches the others by itself, for any page.
    pub(super) fn is_deliberate(self) -> bool {
        self == Self::Header
    }
}

/// The credentials that a request presents, any of which may be valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortCredential {
    /// Several only if they are cookies: pages of other sandboxes can set cookies for all hosts of the domain.
    pub(super) candidates: Vec<String>,
    pub(super) source: Source,
}

/// Finds the credential. A cookie counts only by host name, and only for requests of the host's own pages.
pub(super) fn find(request: &Request, cookies: bool) -> PortCredential {
    let headers = request.headers();
    let found = |credential: String, source| PortCredential { candidates: vec![credential], source };
    if let Some(value) = headers.get(HEADER).and_then(|value| value.to_str().ok()) {
        return found(value.trim().to_owned(), Source::Header);
    }
    if let Some(token) = request.uri().query().and_then(token_in) {
        return found(token, Source::Query);
    }
    if let guard::PresentedCredential::Credential(credential) = guard::find_credential(headers)
        && is_ours(&credential)
    {
        return found(credential, Source::Header);
    }
    if cookies && is_same_host_request(request) {
        let candidates = tokens_in_cookies(headers);
        if !candidates.is_empty() {
            return PortCredential { candidates, source: Source::Cookie };
        }
    }
    PortCredential { candidates: Vec::new(), source: Source::None }
}

fn is_ours(credential: &str) -> bool {
    PREFIXES.iter().any(|prefix| credential.starts_with(prefix))
}

/// Reports whether the request comes from no page of another host. Pages of another sandbox are same-site, so that a
/// browser sends cookies along.
fn is_same_host_request(request: &Request) -> bool {
    let headers = request.headers();
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = host_of(request.uri(), headers);
    let own = value("origin").is_none_or(|origin| {
        origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(&host))
    });
    let is_cross_site = matches!(value("sec-fetch-site"), Some("cross-site" | "same-site"))
        && value("sec-fetch-mode") != Some("navigate");
    own && !is_cross_site
}

fn is_token(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default();
    percent_encoding::percent_decode_str(name).eq(NAME.bytes())
}

fn token_in(query: &str) -> Option<String> {
    let pair = query.split('&').find(|pair| is_token(pair))?;
    let value = pair.split_once('=').map_or("", |(_, value)| value);
    Some(percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// Returns the query without the token.
pub(super) fn without_token(query: &str) -> String {
    query.split('&').filter(|pair| !is_token(pair)).collect::<Vec<_>>().join("&")
}

/// Returns all cookies of a request.
fn pairs(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(';')).map(str::trim).filter(|pair| !pair.is_empty())
}

/// Reports whether a cookie of this name is the server's.
pub(super) fn is_own_cookie(name: &str) -> bool {
    let name = name.trim();
    [NAME, HOST_NAME, guard::SESSION_COOKIE].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Returns the tokens in cookies, those that only the very same host can have set first.
fn tokens_in_cookies(headers: &HeaderMap) -> Vec<String> {
    let named = |wanted: &'static str| {
        let cookies = pairs(headers).filter_map(|pair| pair.split_once('='));
        cookies.filter(move |(name, _)| *name == wanted).map(|(_, value)| value.to_owned())
    };
    named(HOST_NAME).chain(named(NAME)).take(MAX_COOKIES).collect()
}

/// Returns the cookie that stores a token for its host name.
pub(super) fn cookie(token: &str, tls: bool) -> String {
    let token: String = token
        .chars()
        .filter(|character| character.is_ascii_alphanumeric() || "-_.".contains(*character))
        .collect();
    if tls {
        format!("{HOST_NAME}={token}; Path=/; HttpOnly; SameSite=Lax; Secure")
    } else {
        format!("{NAME}={token}; Path=/; HttpOnly; SameSite=Lax")
    }
}

/// Removes every credential of the server from the headers.
pub(super) fn strip(headers: &mut HeaderMap) {
    remove_alike(headers, &HEADER);
    remove_alike(headers, &HeaderName::from_static(TRAFFIC_TOKEN));
    let e2b = E2B_HEADERS.map(HeaderName::from_static);
    for name in [header::AUTHORIZATION, API_KEY].into_iter().chain(e2b) {
        let alike = headers.iter().filter(|(other, _)| is_alike(other.as_str(), name.as_str()));
        let mut texts = alike.map(|(_, value)| String::from_utf8_lossy(value.as_bytes()));
        if texts.any(|text| text.split_ascii_whitespace().any(is_ours)) {
            remove_alike(headers, &name);
        }
    }
    let is_foreign = |pair: &&str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        !is_own_cookie(name) && !is_ours(value.trim().trim_matches('"'))
    };
    let rest: Vec<_> = pairs(headers).filter(is_foreign).collect();
    let rest = HeaderValue::from_str(&rest.join("; ")).ok();
    headers.remove(header::COOKIE);
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        headers.insert(header::COOKIE, rest);
    }
    // The referring page may have had the token in its URL.
    let has_token = headers.get(header::REFERER).is_some_and(|value| {
        let text = String::from_utf8_lossy(value.as_bytes());
        percent_encoding::percent_decode_str(&text).decode_utf8_lossy().contains(NAME)
    });
    if has_token {
        headers.remove(header::REFERER);
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    /// Headers of a request.
    type Headers<'a> = &'a [(&'static str, &'a str)];

    fn request(uri: &str, headers: &[(&'static str, &str)]) -> Request {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = uri.parse().unwrap();
        request.headers_mut().insert("host", HeaderValue::from_static("80-a.box.test"));
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request
    }

    #[test]
    fn credentials_are_found_in_order_of_precedence() {
        let cases: &[(&str, Headers<'_>, &[&str], Source)] = &[
            ("/", &[], &[], Source::None),
            ("/", &[("x-belljar-token", "t"), ("authorization", "Bearer bj_x")], &["t"], Source::Header),
            ("/?a=b&belljar_token=t%2D1", &[], &["t-1"], Source::Query),
            ("/?belljar%5Ftoken=t", &[], &["t"], Source::Query),
            ("/", &[("authorization", "Bearer bj_x")], &["bj_x"], Source::Header),
            ("/", &[("x-api-key", "bjs_x")], &["bjs_x"], Source::Header),
            ("/", &[("x-api-key", "e2b_x")], &["e2b_x"], Source::Header),
            // A credential of the program in the sandbox.
            ("/", &[("authorization", "Bearer eyJhbGciOi")], &[], Source::None),
            ("/", &[("cookie", "a=b; belljar_token=t")], &["t"], Source::Cookie),
            ("/", &[("cookie", "belljar_token=t; __Host-belljar_token=h")], &["h", "t"], Source::Cookie),
            (
                "/",
                &[("cookie", "belljar_token=evil; belljar_token=t"), ("cookie", "belljar_token=u")],
                &["evil", "t", "u"],
                Source::Cookie,
            ),
            (
                "/",
                &[("cookie", "belljar_token=t"), ("origin", "https://80-a.box.test")],
                &["t"],
                Source::Cookie,
            ),
            ("/", &[("cookie", "belljar_token=t"), ("origin", "https://80-b.box.test")], &[], Source::None),
            ("/", &[("cookie", "belljar_token=t"), ("origin", "null")], &[], Source::None),
            (
                "/",
                &[
                    ("cookie", "belljar_token=t"),
                    ("sec-fetch-site", "same-site"),
                    ("sec-fetch-mode", "no-cors"),
                ],
                &[],
                Source::None,
            ),
            (
                "/",
                &[
                    ("cookie", "belljar_token=t"),
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-mode", "navigate"),
                ],
                &["t"],
                Source::Cookie,
            ),
        ];
        for (uri, headers, candidates, source) in cases {
            let found = find(&request(uri, headers), true);
            let candidates: Vec<String> = candidates.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(found, PortCredential { candidates, source: *source }, "{uri} {headers:?}");
        }
        assert_eq!(find(&request("/", &[("cookie", "belljar_token=t")]), false).source, Source::None);
    }

    #[test]
    fn credentials_are_stripped() {
        let mut headers = request(
            "/",
            &[
                ("x-belljar-token", "t"),
                ("e2b-traffic-access-token", "t"),
                ("authorization", "Bearer bj_secret"),
                ("x-api-key", "bjs_secret"),
                ("cookie", "a=b; belljar_token=t; c=d"),
                ("cookie", "__Host-belljar_token=t"),
                ("referer", "http://80-a.box.test/?belljar%5Ftoken=t"),
            ],
        )
        .headers()
        .clone();
        strip(&mut headers);
        assert_eq!(headers.len(), 2, "{headers:?}");
        assert_eq!(headers["cookie"], "a=b; c=d");
        // As programs see them, X_Api_Key and X-Api-Key are one.
        let other_spelling = [
            ("authorization", "Bearer e2b_secret"),
            ("x_api_key", "e2b_secret"),
            ("x_access_token", "bjs_secret"),
            ("x_belljar_token", "t"),
            ("cookie", "a=bjs_secret"),
        ];
        let mut headers = request("/", &other_spelling).headers().clone();
        strip(&mut headers);
        assert_eq!(headers.keys().filter(|name| *name != "host").count(), 0, "{headers:?}");
        let mut own =
            request("/", &[("authorization", "Bearer jwt"), ("x-api-key", "k"), ("referer", "http://x/")])
                .headers()
                .clone();
        strip(&mut own);
        assert_eq!(own.len(), 4);
        assert_eq!(without_token("a=1&belljar_token=t&b=2&belljar%5Ftoken=u"), "a=1&b=2");
        assert_eq!(without_token("belljar_token"), "");
    }

    #[test]
    fn cookies_contain_only_the_token() {
        assert_eq!(
            cookie("bjs_a.b-c", true),
            "__Host-belljar_token=bjs_a.b-c; Path=/; HttpOnly; SameSite=Lax; Secure"
        );
        assert_eq!(
            cookie("a; Domain=x\r\n", false),
            "belljar_token=aDomainx; Path=/; HttpOnly; SameSite=Lax"
        );
    }
}
