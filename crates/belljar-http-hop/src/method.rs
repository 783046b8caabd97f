//! Methods whose answer repeats the request.

use http::header::MAX_FORWARDS;
use http::{HeaderMap, Method};

use crate::headers::Refusal;
use crate::names::is_alike;

/// Reports whether the answer to this method repeats the request with its headers: `TRACE` (RFC 9110, 9.3.8), and `TRACK` of older
/// servers. Letters of both cases count, because some servers ignore case.
pub fn is_reflecting(method: &str) -> bool {
    ["TRACE", "TRACK"].iter().any(|reflecting| method.eq_ignore_ascii_case(reflecting))
}

/// Refuses a request that would show its sender what an intermediary adds to it.
///
/// `Max-Forwards` is refused with every value: it selects the intermediary that answers instead of the host (RFC 9110, 7.6.2), and only
/// `TRACE` and `OPTIONS` have it.
///
/// # Errors
/// Fails if the method is [reflecting](is_reflecting), or the request has the header `Max-Forwards` in any spelling.
pub fn refuse_reflection(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    if is_reflecting(method.as_str()) {
        return Err(Refusal(
            "the answer to its method repeats the request, with what the gateway adds to it",
        ));
    }
    if headers.keys().any(|name| is_alike(name.as_str(), MAX_FORWARDS.as_str())) {
        return Err(Refusal("its header max-forwards selects another server that answers it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reflecting_requests_are_refused() {
        let refused = |method: &str, value: Option<&str>| {
            let headers = value.map(|value| (MAX_FORWARDS, value.parse().unwrap()));
            refuse_reflection(&method.parse().unwrap(), &HeaderMap::from_iter(headers)).is_err()
        };
        for method in ["TRACE", "TRACK", "trace", "Track"] {
            assert!(refused(method, None), "{method}");
        }
        for value in ["0", "00", "1", "x"] {
            assert!(refused("OPTIONS", Some(value)), "{value}");
        }
        let alike = HeaderMap::from_iter([("max_forwards".parse().unwrap(), "0".parse().unwrap())]);
        assert!(refuse_reflection(&Method::OPTIONS, &alike).is_err());
        for method in ["GET", "OPTIONS", "LIST", "TRACER"] {
            assert!(!refused(method, None), "{method}");
        }
    }
}
