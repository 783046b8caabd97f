//! The session of a page: a cookie, and the token of the page beside it.

use http::{Extensions, HeaderMap, HeaderValue, header};

/// Name of the cookie.
pub(crate) const SESSION_COOKIE: &str = "belljar_session";

/// Header with the token. Pages of other origins cannot send it without a preflight request, which does not allow it.
pub(crate) const SESSION_HEADER: &str = "x-belljar-session";

/// Subprotocol of a WebSocket of the page, for which browsers allow no header. The token is another one.
pub(crate) const SESSION_PROTOCOL: &str = "belljar.session";

/// Maximum number of cookies that are tried, as pages of other hosts below the server's domain can set some.
const MAX_COOKIES: usize = 16;

/// Marks a request from a page of another origin, which the operator allows: such pages need a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForeignPage;

/// What a request presents of a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PresentedSession<'r> {
    /// The cookies of that name.
    pub(super) cookies: Vec<&'r str>,
    /// The token, if there is one.
    pub(super) token: Option<&'r str>,
}

/// Returns the session that a request presents; `None` without a cookie, or from a page of another origin.
pub(super) fn find<'r>(headers: &'r HeaderMap, extensions: &Extensions) -> Option<PresentedSession<'r>> {
    let cookies: Vec<_> = cookies(headers).take(MAX_COOKIES).collect();
    let is_own = !cookies.is_empty() && extensions.get::<ForeignPage>().is_none();
    is_own.then(|| PresentedSession { cookies, token: token(headers) })
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| name.trim() == SESSION_COOKIE).map(|(_, value)| value.trim())
}

fn token(headers: &HeaderMap) -> Option<&str> {
    if let Some(token) = headers.get(SESSION_HEADER) {
        return token.to_str().ok();
    }
    let protocols = headers.get(header::SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    let mut protocols = protocols.split(',').map(str::trim);
    (protocols.next() == Some(SESSION_PROTOCOL)).then(|| protocols.next()).flatten()
}

/// Returns the cookie of a session, or with an empty value the one that removes it. Only requests of this interface have it.
pub(crate) fn set_cookie(value: &str, max_age: std::time::Duration, tls: bool) -> Option<HeaderValue> {
    let secure = if tls { "; Secure" } else { "" };
    let age = max_age.as_secs();
    let text =
        format!("{SESSION_COOKIE}={value}; Path=/v1; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_found() {
        let one =
            |cookies: &[&'static str], token| Some(PresentedSession { cookies: cookies.to_vec(), token });
        let cookie = ("cookie", "a=b; belljar_session=c1");
        let socket = "sec-websocket-protocol";
        let cases: &[(&[(&'static str, &str)], _)] = &[
            (&[], None),
            (&[("x-belljar-session", "t")], None),
            (&[("cookie", "belljar_sessions=c1; x=belljar_session")], None),
            (&[cookie], one(&["c1"], None)),
            (&[cookie, ("x-belljar-session", "t")], one(&["c1"], Some("t"))),
            (
                &[cookie, ("cookie", "belljar_session=c2"), ("x-belljar-session", "t")],
                one(&["c1", "c2"], Some("t")),
            ),
            (&[cookie, (socket, "belljar.session, t")], one(&["c1"], Some("t"))),
            (&[cookie, (socket, "t, belljar.session")], one(&["c1"], None)),
            (&[cookie, (socket, "belljar.session")], one(&["c1"], None)),
        ];
        for (headers, expected) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in *headers {
                map.append(*name, value.parse().unwrap());
            }
            assert_eq!(find(&map, &Extensions::new()), *expected, "{headers:?}");
            let mut extensions = Extensions::new();
            extensions.insert(ForeignPage);
            assert_eq!(find(&map, &extensions), None, "{headers:?}");
        }
    }
}
