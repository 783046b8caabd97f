//! What a registry wants for a request that it has refused (RFC 9110, 11.6.1; Docker, "Token Authentication Specification").

/// A challenge of the header `WWW-Authenticate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A token from this realm.
    Bearer { realm: String, service: Option<String> },
    /// A user and a password.
    Basic,
}

impl Challenge {
    /// Parses the header. The scope is not read: what is asked for is known.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let parameters = parameters(rest)?;
        let find = |name: &str| {
            parameters
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.clone())
        };
        Some(Self::Bearer { realm: find("realm")?, service: find("service") })
    }
}

/// Parses `name=value, name="quoted value"`.
fn parameters(mut rest: &str) -> Option<Vec<(&str, String)>> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return Some(found);
        }
        let (name, after) = rest.split_once('=')?;
        let mut value = String::new();
        if let Some(quoted) = after.strip_prefix('"') {
            let mut letters = quoted.char_indices();
            loop {
                match letters.next()? {
                    (at, '"') => {
                        rest = &quoted[at + 1..];
                        break;
                    }
                    (_, '\\') => value.push(letters.next()?.1),
                    (_, letter) => value.push(letter),
                }
            }
        } else {
            let end = after.find([',', ' ']).unwrap_or(after.len());
            value.push_str(&after[..end]);
            rest = &after[end..];
        }
        found.push((name.trim(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_parsed() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        for (text, expected) in [
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/python:pull,push""#,
                bearer("https://auth.docker.io/token", Some("registry.docker.io")),
            ),
            (
                r#"bearer  Realm=https://a.example/t , error="insufficient_scope""#,
                bearer("https://a.example/t", None),
            ),
            (r#"Bearer realm="https://a.example/\"t""#, bearer(r#"https://a.example/"t"#, None)),
            (r#"Basic realm="x""#, Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            (r#"Bearer realm="open"#, None),
            ("Bearer service=a", None),
            ("Digest realm=a", None),
            ("Bearer realm", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(text), expected, "{text}");
        }
    }
}
