//! Headers that concern one connection, and the framing of messages.

use http::Version;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};

use crate::names::{fold, remove_all};

/// Headers that are never passed on, in folded form: those of one connection (RFC 9110, 7.6.1; RFC 9113, 8.2.2; RFC 7540, 3.2.1), those
/// for a proxy (RFC 9110, 11.7), and `Proxy`, which CGI programs take for a setting (CVE-2016-5385).
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Headers that frame or route a message. They are passed on in their own spelling only, and `Connection` cannot remove them.
const FRAMING: [HeaderName; 2] = [CONTENT_LENGTH, HOST];

/// Headers that must not be trailers, in folded form, beyond [`HOP_BY_HOP`] and [`FRAMING`]: a server or client that merges trailers
/// into headers would act on them. Source: RFC 9110, 6.5.1.
const NOT_IN_TRAILERS: [&str; 20] = [
    "age",
    "alt-svc",
    "authorization",
    "cache-control",
    "clear-site-data",
    "content-encoding",
    "content-range",
    "content-security-policy",
    "content-type",
    "cookie",
    "date",
    "expires",
    "location",
    "max-forwards",
    "retry-after",
    "set-cookie",
    "strict-transport-security",
    "trailer",
    "vary",
    "www-authenticate",
];

/// The only protocol that connections are upgraded to. Others, such as HTTP/2, may carry requests, which would pass unchecked.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Error for a message that is not passed on. Displayed as the end of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub(crate) &'static str);

/// Reports whether a message upgrades its connection to WebSocket, and to nothing else.
pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let is_websocket =
        matches!((protocols.next(), protocols.next()), (Some(one), None) if is_word(one, "websocket"));
    is_websocket && options(headers).any(|option| option == UPGRADE)
}

/// Rewrites the headers of a request for the next hop.
///
/// Removes hop-by-hop headers in every spelling, those that `Connection` names, other spellings of headers that frame the message, and
/// the announcement of trailers, which requests lose. The only `Connection` that is passed on is that of an upgrade to WebSocket over
/// HTTP/1.1, and the only `TE` is `trailers` over HTTP/2.
///
/// # Errors
/// Fails if the request has a `Transfer-Encoding` that is not exactly `chunked`, or a `Content-Length` besides.
pub fn prepare_request(headers: &mut HeaderMap, version: Version) -> Result<(), Refusal> {
    let is_chunked = is_chunked(headers)?;
    let is_upgrade = version == Version::HTTP_11 && wants_upgrade(headers);
    let takes_trailers =
        version == Version::HTTP_2 && headers.get(TE).is_some_and(|te| is_word(te, "trailers"));
    remove_hop_by_hop(headers);
    remove_all(headers, |name| *name == TRAILER || is_false_framing(name));
    if is_chunked {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if is_upgrade {
        insert_upgrade(headers);
    }
    Ok(())
}

/// Rewrites the headers of a response for the next hop: removes hop-by-hop headers and those that `Connection` names. `is_upgrade` is
/// set for the response to an upgrade, which states it.
pub fn prepare_response(headers: &mut HeaderMap, is_upgrade: bool) {
    // The body is framed again, and its length was not that of this header (RFC 9112, 6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers);
    if is_upgrade {
        insert_upgrade(headers);
    }
}

/// Removes fields from the trailers of a response that only a head may have.
pub fn prepare_trailers(trailers: &mut HeaderMap) {
    remove_all(trailers, |name| {
        let folded = fold(name.as_str());
        HOP_BY_HOP.contains(&folded.as_str())
            || NOT_IN_TRAILERS.contains(&folded.as_str())
            || FRAMING.iter().any(|framing| framing.as_str() == folded)
    });
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = options(headers).filter(|name| !FRAMING.contains(name)).collect();
    for name in named {
        headers.remove(name);
    }
    remove_all(headers, |name| HOP_BY_HOP.contains(&fold(name.as_str()).as_str()));
}

/// Returns the names in `Connection`.
fn options(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(CONNECTION).iter();
    let words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.filter_map(|word| HeaderName::from_bytes(word.trim_ascii()).ok())
}

fn is_false_framing(name: &HeaderName) -> bool {
    FRAMING.iter().any(|framing| name != framing && fold(name.as_str()) == framing.as_str())
}

fn insert_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
}

/// Reports whether a request has a chunked body.
fn is_chunked(headers: &HeaderMap) -> Result<bool, Refusal> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(false),
        (Some(_), None) if headers.contains_key(CONTENT_LENGTH) => {
            Err(Refusal("it has both transfer-encoding and content-length"))
        }
        (Some(one), None) if is_word(one, "chunked") => Ok(true),
        _ => Err(Refusal("its transfer-encoding is not exactly chunked")),
    }
}

fn is_word(value: &HeaderValue, word: &str) -> bool {
    value.as_bytes().trim_ascii().eq_ignore_ascii_case(word.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    /// Checks what arrives of the headers of a request over HTTP/1.1; `None` if it is refused.
    fn check(given: &[(&'static str, &str)], expected: Option<&[(&'static str, &str)]>) {
        let mut headers = map(given);
        let prepared = prepare_request(&mut headers, Version::HTTP_11).is_ok();
        assert_eq!(prepared.then_some(headers), expected.map(map), "{given:?}");
    }

    #[test]
    fn hop_by_hop_headers_are_removed_in_every_spelling() {
        let given = [
            ("connection", "close, X-Team, content-length"),
            ("connection", "host,upgrade"),
            ("x-team", "1"),
            ("keep-alive", "5"),
            ("proxy-connection", "close"),
            ("proxy_authorization", "Basic x"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("transfer_encoding", "chunked"),
            ("content_length", "9"),
            ("proxy", "http://evil.example"),
            ("host", "x.example"),
            ("content-length", "0"),
            ("accept", "*/*"),
        ];
        check(&given, Some(&[("host", "x.example"), ("content-length", "0"), ("accept", "*/*")]));
    }

    #[test]
    fn connections_are_upgraded_to_websocket_alone() {
        let upgraded: &[(&'static str, &str)] = &[("connection", "upgrade"), ("upgrade", "websocket")];
        for (connection, protocol, is_kept) in [
            ("Upgrade", "websocket", true),
            ("keep-alive, UPGRADE", "WebSocket", true),
            ("close", "websocket", false),
            ("upgrade", "h2c", false),
            ("upgrade", "h2c;q=1", false),
            ("upgrade", "h2c-14", false),
            ("upgrade", "\"h2c\"", false),
            ("upgrade", "websocket, h2c", false),
            ("upgrade", "tcp", false),
        ] {
            let given = [("connection", connection), ("upgrade", protocol)];
            check(&given, Some(if is_kept { upgraded } else { &[] }));
        }
        check(&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "h2c")], Some(&[]));
        let mut old = map(upgraded);
        prepare_request(&mut old, Version::HTTP_10).unwrap();
        assert!(old.is_empty(), "{old:?}");
    }

    #[test]
    fn requests_are_framed_in_one_way() {
        let chunked: &[(&'static str, &str)] = &[("transfer-encoding", "chunked")];
        check(&[("transfer-encoding", "Chunked")], Some(chunked));
        check(&[("transfer-encoding", "chunked"), ("connection", "transfer-encoding")], Some(chunked));
        for wrong in [
            "chunked, chunked",
            "identity, chunked",
            "gzip, chunked",
            "identity",
            "",
            "chunked;a=b",
            "xchunked",
        ] {
            check(&[("transfer-encoding", wrong)], None);
        }
        check(&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], None);
        check(&[("transfer-encoding", "chunked"), ("content-length", "3")], None);
    }

    #[test]
    fn trailers_are_requested_over_http_2_alone() {
        for (version, te, is_kept) in [
            (Version::HTTP_2, "trailers", true),
            (Version::HTTP_2, "trailers, gzip", false),
            (Version::HTTP_2, "gzip", false),
            (Version::HTTP_11, "trailers", false),
        ] {
            let mut headers = map(&[("te", te)]);
            prepare_request(&mut headers, version).unwrap();
            assert_eq!(headers.contains_key(TE), is_kept, "{version:?} {te}");
        }
    }

    #[test]
    fn responses_lose_what_concerns_one_connection() {
        let given = [
            ("connection", "keep-alive, x-own"),
            ("keep-alive", "5"),
            ("x-own", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("upgrade", "h2c"),
            ("proxy-authenticate", "Basic"),
            ("trailer", "x-sum"),
            ("date", "now"),
        ];
        let mut plain = map(&given);
        prepare_response(&mut plain, false);
        assert_eq!(plain, map(&[("trailer", "x-sum"), ("date", "now")]));
        let mut upgraded = map(&given);
        prepare_response(&mut upgraded, true);
        assert_eq!(
            (&upgraded["connection"], &upgraded["upgrade"]),
            (&"upgrade".parse().unwrap(), &WEBSOCKET)
        );
        let mut trailers =
            map(&[("x-sum", "1"), ("grpc-status", "0"), ("set-cookie", "a=b"), ("content_length", "3")]);
        prepare_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("x-sum", "1"), ("grpc-status", "0")]));
    }
}
