//! Rules for requests: the methods and paths of a host that code in a sandbox may request.

use std::fmt;

use crate::error::ModelError;
use crate::network::rule::MAX_RULES;

pub(super) const FIELD: &str = "network.requests";
const MAX_METHOD_BYTES: usize = 32;
const MAX_PATH_BYTES: usize = 2048;

/// Headers that override the method or path of a request on some servers.
const OTHER_REQUEST_HEADERS: [&str; 5] =
    ["x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url"];

/// A kind of request to a host, written as a method and a path: `GET /v1/*`.
///
/// `*` in place of the method matches any; a `*` at the end of the path matches every path with that prefix. Methods and paths
/// are compared verbatim, and the query is ignored.
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
        match ambiguity(path) {
            Some(what) => refuse(&format!("a path without {what}: servers read it in several ways")),
            None => {
                let method = Some(method.to_owned()).filter(|method| method != "*");
                Ok(Self { method, path: path.to_owned(), is_prefix })
            }
        }
    }

    fn matches(&self, method: &str, path: &str) -> bool {
        let is_path = if self.is_prefix { path.starts_with(&self.path) } else { path == self.path };
        is_path && self.method.as_ref().is_none_or(|own| own == method)
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
    if let Some(what) = ambiguity(path) {
        return Err(format!("its path has {what}, which servers read in several ways"));
    }
    if let Some(name) = headers.into_iter().find(|name| OTHER_REQUEST_HEADERS.contains(name)) {
        return Err(format!("its header {name} overrides the method or path on some servers"));
    }
    if rules.iter().any(|rule| rule.matches(method, path)) {
        return Ok(());
    }
    let named: Vec<String> = rules.iter().take(3).map(ToString::to_string).collect();
    Err(match (named.is_empty(), rules.len().saturating_sub(named.len())) {
        (true, _) => "no request is allowed".to_owned(),
        (_, 0) => format!("allowed are {}", named.join(", ")),
        (_, more) => format!("allowed are {} and {more} more", named.join(", ")),
    })
}

/// Returns the first ambiguous part of a path, which servers that decode or normalize it read differently.
fn ambiguity(path: &str) -> Option<&'static str> {
    let lower = path.to_ascii_lowercase();
    if lower.contains('\\') || ["%5c", "%2f"].iter().any(|code| lower.contains(code)) {
        return Some("a backslash or an encoded slash");
    }
    if lower.contains("%25") || lower.contains("%00") {
        return Some("an encoded % or NUL");
    }
    if lower.contains("//") {
        return Some("an empty segment");
    }
    // On some servers, parameters after `;` are not part of the segment's name.
    let segments =
        lower.split('/').map(|segment| segment.split(';').next().unwrap_or_default().replace("%2e", "."));
    let mut names = segments;
    names.any(|name| name == "." || name == "..").then_some("a segment . or ..")
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
            ("GET", "/v1/%2e./admin"),
            ("GET", "/v1/..;x=y/admin"),
            ("GET", "/v1/.%2E;/admin"),
            ("GET", "/v1/a%2fb"),
            ("GET", "/v1/a%5Cb"),
            ("GET", "/v1/a\\b"),
            ("GET", "/v1//b"),
            ("GET", "/v1/%252e%252e/b"),
            ("GET", "/v1/%00"),
        ] {
            assert!(!is_allowed(method, path), "{method} {path}");
        }
    }

    #[test]
    fn override_headers_are_refused() {
        let error = check(&rules(&["GET /*"]).unwrap(), "GET", "/", ["x-http-method-override"].into_iter());
        assert!(error.unwrap_err().contains("x-http-method-override"));
        assert_eq!(check(&[], "GET", "/", [].into_iter()).unwrap_err(), "no request is allowed");
    }

    #[test]
    fn rules_are_sorted_and_deduplicated() {
        let read = rules(&["POST /b", "GET /a/*", "* /", "POST /b"]).unwrap();
        let texts: Vec<String> = read.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["* /", "GET /a/*", "POST /b"]);
        for wrong in
            ["", "GET", "GET  /a", "get /a", "GET a", "GET /a*b", "GET /a?b", "GET /../a", "* *", "GET /ü"]
        {
            let error = rules(&[wrong]).unwrap_err().to_string();
            assert!(error.contains("network.requests"), "{wrong}: {error}");
        }
    }
}
