//! Rules for requests: the methods and paths of a host that code in a sandbox may request.

use std::fmt;

use belljar_http_hop::{find_ambiguity, is_alike, is_override, is_reflecting};

use crate::error::ModelError;
use crate::network::rule::MAX_RULES;

pub(super) const FIELD: &str = "network.requests";
const MAX_METHOD_BYTES: usize = 32;
const MAX_PATH_BYTES: usize = 2048;

/// Header that selects the server that answers, instead of the host (RFC 9110, 7.6.2).
const MAX_FORWARDS: &str = "max-forwards";

/// A kind of request to a host, written as a method and a path: `GET /v1/*`.
///
/// `*` in place of the method matches any but those whose answer repeats the request, such as `TRACE`; a `*` at the end of the path
/// matches every path with that prefix. Methods and paths are compared verbatim, and the query is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestRule {
    method: Option<String>,
    path: String,
    is_prefix: bool,
}

impl RequestRule {
    fn parse(text: &str) -> Result<Self, ModelError> {
        let refuse = |allowed: &str| Err(ModelError::not_allowed(FIELD, text, allowed.to_owned()));
        let Some((method, path)) = text.split_once(' ') else {
            return refuse("a method and a path, such as GET /v1/*; * is any method");
        };
        // Source: RFC 9110, 9.1; methods in use are in capitals.
        let is_method = (1..=MAX_METHOD_BYTES).contains(&method.len())
            && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        if method != "*" && !is_method {
            return refuse("a method in capitals, such as GET, or * for any");
        }
        let (path, is_prefix) = path.strip_suffix('*').map_or((path, false), |path| (path, true));
        let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"*?#".contains(&byte));
        if !path.starts_with('/') || path.len() > MAX_PATH_BYTES || !is_plain {
            return refuse("a path that begins with / and has * at its end alone, and no query");
        }
        match find_ambiguity(path) {
            Some(what) => refuse(&format!("a path that all servers read alike: this one has {what}")),
            None => {
                let method = Some(method.to_owned()).filter(|method| method != "*");
                Ok(Self { method, path: path.to_owned(), is_prefix })
            }
        }
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        let is_path = if self.is_prefix { path.starts_with(&self.path) } else { path == self.path };
        is_path && self.method.as_ref().map_or(!is_reflecting(method), |own| own == method)
    }
}

impl fmt::Display for RequestRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.is_prefix { "*" } else { "" };
        write!(f, "{} {}{end}", self.method.as_deref().unwrap_or("*"), self.path)
    }
}

/// Parses the rules of a host into canonical form: sorted, without duplicates.
pub(super) fn parse_all(texts: &[String]) -> Result<Vec<RequestRule>, ModelError> {
    if texts.len() > MAX_RULES {
        return Err(ModelError::not_allowed(
            FIELD,
            format!("{} rules", texts.len()),
            format!("at most {MAX_RULES}"),
        ));
    }
    let mut rules = texts.iter().map(|text| RequestRule::parse(text)).collect::<Result<Vec<_>, _>>()?;
    rules.sort();
    rules.dedup();
    Ok(rules)
}

/// Checks a request against `rules`.
///
/// # Errors
/// Fails if no rule allows the request; the error is the end of a sentence.
pub(super) fn check<'a>(
    rules: &[RequestRule],
    method: &str,
    path: &str,
    headers: impl Iterator<Item = &'a str>,
) -> Result<(), String> {
    if let Some(what) = find_ambiguity(path) {
        return Err(format!("its path has {what}, which servers read in several ways"));
    }
    let mut selects_server = false;
    for name in headers {
        if is_override(name) {
            return Err(format!("its header {name} overrides the method, path or host on some servers"));
        }
        selects_server |= is_alike(name, MAX_FORWARDS);
    }
    let is_enough = |rule: &RequestRule| !selects_server || rule.method.is_some();
    if rules.iter().any(|rule| rule.matches(method, path) && is_enough(rule)) {
        return Ok(());
    }
    if selects_server {
        return Err(format!("its header {MAX_FORWARDS} needs a rule that names the method"));
    }
    let named: Vec<String> = rules.iter().take(3).map(ToString::to_string).collect();
    Err(match (named.is_empty(), rules.len().saturating_sub(named.len())) {
        (true, _) => "no request is allowed".to_owned(),
        (_, 0) => format!("allowed are {}", named.join(", ")),
        (_, more) => format!("allowed are {} and {more} more", named.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Result<Vec<RequestRule>, ModelError> {
        parse_all(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
    }

    fn is_allowed(method: &str, path: &str) -> bool {
        let rules = rules(&["GET /v1/*", "POST /v1/chat", "* /status"]).unwrap();
        check(&rules, method, path, ["accept"].into_iter()).is_ok()
    }

    #[test]
    fn methods_and_paths_are_compared_verbatim() {
        for (method, path) in
            [("GET", "/v1/"), ("GET", "/v1/a/b"), ("POST", "/v1/chat"), ("DELETE", "/status")]
        {
            assert!(is_allowed(method, path), "{method} {path}");
        }
        for (method, path) in [
            ("get", "/v1/a"),
            ("GET", "/v1"),
            ("GET", "/V1/a"),
            ("POST", "/v1/chat/"),
            ("POST", "/v1/a"),
            ("GET", "*"),
            ("GET", "/v1/../admin"),
            ("GET", "/v1/..%3b/admin"),
            ("TRACE", "/status"),
            ("TRACK", "/status"),
            ("Trace", "/status"),
        ] {
            assert!(!is_allowed(method, path), "{method} {path}");
        }
    }

    #[test]
    fn methods_that_show_a_request_have_to_be_named() {
        let check = |texts: &[&str], method: &str, headers: &[&'static str]| {
            check(&rules(texts).unwrap(), method, "/a", headers.iter().copied())
        };
        assert!(check(&["* /*"], "TRACE", &[]).is_err());
        assert_eq!(check(&["TRACE /*"], "TRACE", &[MAX_FORWARDS]), Ok(()));
        for spelling in [MAX_FORWARDS, "max_forwards", "Max.Forwards"] {
            assert!(check(&["* /*"], "OPTIONS", &[spelling]).unwrap_err().contains(MAX_FORWARDS));
        }
        assert_eq!(check(&["* /*", "OPTIONS /a"], "OPTIONS", &[MAX_FORWARDS]), Ok(()));
        assert_eq!(check(&["* /*"], "OPTIONS", &["accept"]), Ok(()));
    }

    #[test]
    fn override_headers_are_refused() {
        for header in
            ["x-http-method-override", "x_http_method_override", "x-original-uri", "x-forwarded-host"]
        {
            let error = check(&rules(&["GET /*"]).unwrap(), "GET", "/", [header].into_iter());
            assert!(error.unwrap_err().contains(header));
        }
        assert_eq!(check(&[], "GET", "/", [].into_iter()).unwrap_err(), "no request is allowed");
    }

    #[test]
    fn rules_are_sorted_and_deduplicated() {
        let read = rules(&["POST /b", "GET /a/*", "* /", "POST /b"]).unwrap();
        let texts: Vec<String> = read.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["* /", "GET /a/*", "POST /b"]);
        for wrong in [
            "",
            "GET",
            "GET  /a",
            "get /a",
            "GET a",
            "GET /a*b",
            "GET /a?b",
            "GET /../a",
            "* *",
            "GET /ü",
            "GET /{id}",
        ] {
            let error = rules(&[wrong]).unwrap_err().to_string();
            assert!(error.contains("network.requests"), "{wrong}: {error}");
        }
    }
}
