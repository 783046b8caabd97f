//! Header names as servers see them.
//!
//! Gateway interfaces (CGI, WSGI, Rack, PHP) pass a header on as a variable: in capitals, and with `_` for `-`, on some servers for
//! everything but letters and digits (RFC 3875, 4.1.18). So `X_Team` and `X-Team` are one header to a program.

use http::header::{HeaderMap, HeaderName};

/// Headers that override a request on some servers, in folded form.
const OVERRIDES: [&str; 2] = ["destination", "forwarded"];

/// Beginnings of the names of such headers.
const OVERRIDE_PREFIXES: [&str; 8] = [
    "x-forwarded",
    "x-http-method",
    "x-httpmethod",
    "x-method",
    // Of a framework whose checks a client could leave out with one of them (CVE-2025-29927).
    "x-middleware-",
    "x-original",
    "x-override-",
    "x-rewrite",
];

/// Last words of the names of such headers.
const OVERRIDE_WORDS: [&str; 9] =
    ["host", "method", "override", "path", "prefix", "rewrite", "uri", "url", "verb"];

/// Ends of the names of such headers without their separators. Some are variables of a gateway interface (RFC 3875, 4.1.5 to 4.1.13).
const OVERRIDE_ENDS: [&str; 9] = [
    "destinationurl",
    "originalurl",
    "pathinfo",
    "pathtranslated",
    "querystring",
    "requesturi",
    "routematches",
    "scriptfilename",
    "scriptname",
];

/// Headers with such a last word that override nothing: the request's own host, and the question of browsers before a request (CORS).
const NO_OVERRIDES: [&str; 2] = ["access-control-request-method", "host"];

/// Parts of the names of families that override nothing: metadata of stored objects, and statistics of SDKs.
const NO_OVERRIDE_PARTS: [&str; 2] = ["-meta-", "x-stainless-"];

/// Returns a name in the form in which alike names are equal: in lower case, and with `-` for everything but letters and digits.
pub(crate) fn fold(name: &str) -> String {
    let fold = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '-' };
    name.chars().map(fold).collect()
}

/// Reports whether two names are one header to some servers.
pub fn is_alike(name: &str, other: &str) -> bool {
    fold(name) == fold(other)
}

/// Removes a header in every spelling.
pub fn remove_alike(headers: &mut HeaderMap, name: &HeaderName) {
    remove_all(headers, |other| is_alike(other.as_str(), name.as_str()));
}

/// Removes a header in every spelling but its own.
pub fn remove_other_spellings(headers: &mut HeaderMap, name: &HeaderName) {
    remove_all(headers, |other| other != name && is_alike(other.as_str(), name.as_str()));
}

pub(crate) fn remove_all(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_removed(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Reports whether a header overrides the method, the path or the host of a request on some servers or frameworks.
pub fn is_override(name: &str) -> bool {
    let name = fold(name);
    if OVERRIDE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return true;
    }
    if NO_OVERRIDES.contains(&name.as_str()) || NO_OVERRIDE_PARTS.iter().any(|part| name.contains(part)) {
        return false;
    }
    let bare = name.replace('-', "");
    let last = name.rsplit('-').find(|word| !word.is_empty()).unwrap_or_default();
    OVERRIDES.contains(&name.as_str())
        || OVERRIDE_ENDS.iter().any(|end| bare.ends_with(end))
        || OVERRIDE_WORDS.contains(&last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_name_are_alike() {
        for (name, other, expected) in [
            ("x-team", "X-Team", true),
            ("x-team", "x_team", true),
            ("x-team", "X.Team", true),
            ("x-team", "xteam", false),
            ("x-team", "x-team-", false),
        ] {
            assert_eq!(is_alike(name, other), expected, "{name} {other}");
        }
        let all = ["x-team", "x_team", "x.team", "x-teams"];
        let headers: HeaderMap =
            all.map(|name| (HeaderName::from_static(name), "1".parse().unwrap())).into_iter().collect();
        let name = HeaderName::from_static("x-team");
        let mut without = headers.clone();
        remove_alike(&mut without, &name);
        assert_eq!(without.keys().collect::<Vec<_>>(), ["x-teams"]);
        let mut own = headers;
        remove_other_spellings(&mut own, &name);
        assert_eq!(own.keys().collect::<Vec<_>>(), ["x-team", "x-teams"]);
    }

    #[test]
    fn families_of_override_headers_are_known() {
        for name in [
            "x-http-method",
            "X-HTTP-Method-Override",
            "x_http_method_override",
            "x-method",
            "x-method-override",
            "x-original-url",
            "SCRIPT_NAME",
            "X-Script-Name",
            "path_info",
            "PATH_TRANSLATED",
            "SCRIPT_FILENAME",
            "Query-String",
            "X-PathInfo",
            "X-OriginalURL",
            "X-RewriteURL",
            "X-HTTPMethodOverride",
            "X-HTTP-DestinationURL",
            "X-Forwarded",
            "X-Middleware-Subrequest",
            "X-Nextjs-Rewrite",
            "X-Now-Route-Matches",
            "X-Original-Meta-Url",
            "X-Original-URI",
            "x_original_path",
            "x-rewrite-url",
            "x-forwarded-host",
            "x-forwarded-uri",
            "X_Forwarded_Prefix",
            "x-forwarded-for",
            "forwarded",
            "x-host",
            "x-envoy-original-path",
            "x-request-uri",
            "x-url",
            "base-url",
            "x-url_",
            "destination",
        ] {
            assert!(is_override(name), "{name}");
        }
        for name in [
            "host",
            "accept",
            "authorization",
            "content-type",
            "user-agent",
            "x-api-key",
            "x-request-id",
            "x-stainless-helper-method",
            "x-amz-meta-source-url",
            "x-amz-content-sha256",
            "x-goog-api-client",
            "x-goog-upload-protocol",
            "access-control-request-method",
            "anthropic-version",
            "openai-organization",
            "dropbox-api-path-root",
            "git-protocol",
        ] {
            assert!(!is_override(name), "{name}");
        }
    }
}
