//! Requests, and what of them arrives at the next hop. The tests of each intermediary send them to a server that states what it
//! received: those of this crate to [`prepare_request`](crate::prepare_request) alone.

/// A request over HTTP/1.1.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The idea, in a few words.
    pub name: &'static str,
    /// Method and path.
    pub target: &'static str,
    /// The headers that are sent besides `Host`, one a line.
    pub headers: &'static [&'static str],
    /// The bytes after the head.
    pub body: &'static str,
    /// Through the gateway, which sets [`TEAM`].
    pub gateway: Outcome,
    /// Through the proxy for ports.
    pub ports: Outcome,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is refused, and nothing arrives.
    Refused,
    /// It arrives with these headers in lower case, besides those that every request of the intermediary has.
    Arrives(&'static [&'static str]),
}

use Outcome::{Arrives, Refused};

/// The header that the gateway sets.
pub const TEAM: &str = "x-team: agents";

const fn both(
    name: &'static str,
    headers: &'static [&'static str],
    gateway: &'static [&'static str],
    ports: &'static [&'static str],
) -> Case {
    Case { name, target: "GET /", headers, body: "", gateway: Arrives(gateway), ports: Arrives(ports) }
}

const fn refused(
    name: &'static str,
    target: &'static str,
    headers: &'static [&'static str],
    body: &'static str,
) -> Case {
    Case { name, target, headers, body, gateway: Refused, ports: Refused }
}

/// All cases.
pub const CASES: &[Case] = &[
    both("plain", &["Accept: */*"], &[TEAM, "accept: */*"], &["accept: */*"]),
    both("a header that is set", &["X-Team: admins"], &[TEAM], &["x-team: admins"]),
    both("another spelling of it", &["X_Team: admins"], &[TEAM], &["x_team: admins"]),
    both(
        "one more spelling of it",
        &["x.TEAM: admins", "X_TEAM: a"],
        &[TEAM],
        &["x.team: admins", "x_team: a"],
    ),
    both(
        "a header that is set, named by Connection",
        &["Connection: close, X-Team", "X-Team: a"],
        &[TEAM],
        &[],
    ),
    both("framing, named by Connection", &["Connection: close, host, content-length"], &[TEAM], &[]),
    both(
        "credentials for a proxy",
        &["Proxy-Authorization: Basic x", "Proxy_Authorization: Basic x"],
        &[TEAM],
        &[],
    ),
    both(
        "headers of one connection",
        &["Proxy-Connection: close", "Keep-Alive: 5", "TE: trailers", "Trailer: x"],
        &[TEAM],
        &[],
    ),
    both(
        "spellings of them",
        &["Proxy_Connection: close", "Keep_Alive: 5", "Transfer_Encoding: chunked"],
        &[TEAM],
        &[],
    ),
    both("a second length", &["Content_Length: 5"], &[TEAM], &[]),
    both("a setting of CGI programs", &["Proxy: http://evil.example"], &[TEAM], &[]),
    both(
        "an upgrade to HTTP/2",
        &["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"],
        &[TEAM],
        &[],
    ),
    both("one with a parameter", &["Connection: Upgrade", "Upgrade: h2c;q=1"], &[TEAM], &[]),
    both("one to a draft", &["Connection: Upgrade", "Upgrade: h2c-14"], &[TEAM], &[]),
    both("one in quotes", &["Connection: Upgrade", "Upgrade: \"h2c\""], &[TEAM], &[]),
    both("one of two protocols", &["Connection: Upgrade", "Upgrade: websocket, h2c"], &[TEAM], &[]),
    Case {
        name: "a chunked body",
        target: "POST /",
        headers: &["Transfer-Encoding: Chunked"],
        body: "3\r\nabc\r\n0\r\n\r\n",
        gateway: Arrives(&[TEAM, "transfer-encoding: chunked"]),
        ports: Arrives(&["transfer-encoding: chunked"]),
    },
    Case {
        name: "trailers of a request",
        target: "POST /",
        headers: &["Transfer-Encoding: chunked", "Trailer: x-team"],
        body: "3\r\nabc\r\n0\r\nX-Team: admins\r\n\r\n",
        gateway: Arrives(&[TEAM, "transfer-encoding: chunked"]),
        ports: Arrives(&["transfer-encoding: chunked"]),
    },
    refused("chunked twice", "POST /", &["Transfer-Encoding: chunked, chunked"], "0\r\n\r\n"),
    refused("another coding", "POST /", &["Transfer-Encoding: gzip, chunked"], "0\r\n\r\n"),
    refused("a coding without effect", "POST /", &["Transfer-Encoding: identity, chunked"], "0\r\n\r\n"),
    refused(
        "two lengths",
        "POST /",
        &["Transfer-Encoding: chunked", "Content-Length: 1"],
        "3\r\nabc\r\n0\r\n\r\n",
    ),
    refused(
        "two lengths in the other order",
        "POST /",
        &["content-length: 5", "TRANSFER-ENCODING: chunked"],
        "0\r\n\r\n",
    ),
    refused("TRACE", "TRACE /", &[], ""),
    refused("TRACK", "TRACK /", &[], ""),
    refused("TRACE in other letters", "Trace /", &[], ""),
    Case {
        name: "OPTIONS, answered by another server",
        target: "OPTIONS /",
        headers: &["Max-Forwards: 0"],
        body: "",
        gateway: Refused,
        ports: Arrives(&["max-forwards: 0"]),
    },
    Case {
        name: "OPTIONS",
        target: "OPTIONS /",
        headers: &[],
        body: "",
        gateway: Arrives(&[TEAM]),
        ports: Arrives(&[]),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue, Version};

    #[test]
    fn requests_arrive_as_expected() {
        for case in CASES {
            let headers = case.headers.iter().map(|line| {
                let (name, value) = line.split_once(": ").unwrap();
                (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
            });
            let mut map = HeaderMap::new();
            headers.for_each(|(name, value)| {
                map.append(name, value);
            });
            let method = case.target.split(' ').next().unwrap();
            let is_refused =
                crate::is_reflecting(method) || crate::prepare_request(&mut map, Version::HTTP_11).is_err();
            let mut lines: Vec<String> =
                map.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
            lines.sort();
            match case.ports {
                Refused => assert!(is_refused, "{}", case.name),
                Arrives(expected) => {
                    let mut expected = expected.to_vec();
                    expected.sort_unstable();
                    assert!(!is_refused && lines == expected, "{}: {lines:?}", case.name);
                }
            }
        }
    }
}
