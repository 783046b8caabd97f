//! Secrets: code in the sandbox holds a placeholder, and the host that a secret is for gets its value, in one header.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_model::{DomainName, NetworkPolicy, SecretSource, placeholder};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};

/// The secrets of a policy by the hosts that they are for.
#[derive(Default)]
pub(crate) struct Secrets(BTreeMap<DomainName, HostSecrets>);

/// The secrets of one host.
#[derive(Default)]
pub(crate) struct HostSecrets(Vec<Bound>);

/// One secret, bound to a header.
#[derive(Clone)]
struct Bound {
    header: HeaderName,
    placeholder: String,
    value: String,
}

impl Secrets {
    /// Takes them out of a policy. Their values are there: whoever has made the policy has read variables and files.
    /// Each is for its own host; tests take that wall away.
    pub(crate) fn of(policy: &NetworkPolicy, binds_hosts: bool) -> Self {
        let mut secrets = Self::default();
        let hosts: Vec<_> = policy.secrets().values().map(|secret| secret.host().clone()).collect();
        for (name, secret) in policy.secrets() {
            // Both have been checked as they were read.
            let (SecretSource::Value(value), Ok(header)) = (secret.source(), secret.header().parse()) else {
                continue;
            };
            let bound = Bound { header, placeholder: placeholder(name), value: value.clone() };
            let of = hosts.iter().filter(|host| !binds_hosts || *host == secret.host());
            for host in of.collect::<std::collections::BTreeSet<_>>() {
                secrets.0.entry(host.clone()).or_default().0.push(bound.clone());
            }
        }
        secrets
    }

    /// The secrets of a host, if it has any.
    pub(crate) fn of_host(&self, host: &DomainName) -> Option<&HostSecrets> {
        self.0.get(host)
    }
}

impl HostSecrets {
    /// Puts values in the place of placeholders, each in its own header and in no other.
    pub(crate) fn put(&self, headers: &mut HeaderMap) {
        for bound in &self.0 {
            let http::header::Entry::Occupied(mut values) = headers.entry(&bound.header) else { continue };
            for value in values.iter_mut() {
                let Some(text) = bound.put(&bound.header, value.as_bytes()) else { continue };
                // One that does not fit stays a placeholder.
                if let Ok(mut put) = HeaderValue::from_bytes(&text) {
                    put.set_sensitive(true);
                    *value = put;
                }
            }
        }
    }

    /// Puts placeholders in the place of values that the host sends back, in every header.
    pub(crate) fn redact(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            for bound in &self.0 {
                let found = replace(value.as_bytes(), bound.value.as_bytes(), &bound.placeholder, |_| true);
                if let Some(Ok(redacted)) = found.map(|text| HeaderValue::from_bytes(&text)) {
                    *value = redacted;
                }
            }
        }
    }
}

impl Bound {
    /// What the header says with the value in it, if the placeholder was. Credentials of the scheme Basic (RFC 7617) are looked
    /// into.
    fn put(&self, header: &HeaderName, text: &[u8]) -> Option<Vec<u8>> {
        let is_end =
            |next: Option<&u8>| !next.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let put = |text: &[u8]| replace(text, self.placeholder.as_bytes(), &self.value, is_end);
        if *header == AUTHORIZATION
            && let Some((scheme, credentials)) = text.split_at_checked(6)
            && scheme.eq_ignore_ascii_case(b"basic ")
            && let Ok(credentials) = STANDARD.decode(credentials.trim_ascii())
        {
            let credentials = put(&credentials)?;
            return Some([scheme, STANDARD.encode(credentials).as_bytes()].concat());
        }
        put(text)
    }
}

/// Replaces every `old` that `is_whole` takes for the whole of it by what comes after; none if there is none.
fn replace(text: &[u8], old: &[u8], new: &str, is_whole: impl Fn(Option<&u8>) -> bool) -> Option<Vec<u8>> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut rest = text;
    let mut is_found = false;
    while !rest.is_empty() {
        if !old.is_empty() && rest.starts_with(old) && is_whole(rest.get(old.len())) {
            replaced.extend_from_slice(new.as_bytes());
            rest = &rest[old.len()..];
            is_found = true;
        } else {
            replaced.push(rest[0]);
            rest = &rest[1..];
        }
    }
    is_found.then_some(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        let policy = r#"{"allow": ["api.example"], "secrets": {
            "KEY": {"host": "api.example", "header": "authorization", "value": "s3cret"},
            "KEY_2": {"host": "api.example", "header": "x-key", "value": "other"}
        }}"#;
        Secrets::of(&serde_json::from_str(policy).unwrap(), true)
    }

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn values_stand_in_their_own_headers_alone() {
        let secrets = secrets();
        let host = secrets.of_host(&"api.example".parse().unwrap()).unwrap();
        assert!(secrets.of_host(&"sub.api.example".parse().unwrap()).is_none());
        let (key, key_2) = (placeholder("KEY"), placeholder("KEY_2"));
        let basic = STANDARD.encode(format!("me:{key}"));
        for (header, given, put) in [
            ("authorization", format!("Bearer {key}"), "Bearer s3cret".to_owned()),
            ("authorization", key.clone(), "s3cret".to_owned()),
            ("authorization", format!("{key},{key}"), "s3cret,s3cret".to_owned()),
            ("authorization", format!("basic {basic}"), format!("basic {}", STANDARD.encode("me:s3cret"))),
            ("authorization", "Basic !".to_owned(), "Basic !".to_owned()),
            ("authorization", key_2.clone(), key_2.clone()),
            ("authorization", format!("{key}x"), format!("{key}x")),
            ("x-key", key_2.clone(), "other".to_owned()),
            ("x-key", key.clone(), key.clone()),
            ("cookie", format!("{key} {key_2}"), format!("{key} {key_2}")),
        ] {
            let mut headers = headers(&[(header, &given)]);
            host.put(&mut headers);
            assert_eq!(headers[header], put, "{header}: {given}");
            assert_eq!(headers[header].is_sensitive(), given != put, "{header}: {given}");
        }
    }

    #[test]
    fn values_that_come_back_are_redacted() {
        let secrets = secrets();
        let host = secrets.of_host(&"api.example".parse().unwrap()).unwrap();
        let mut headers =
            headers(&[("x-echo", "s3cret and other"), ("location", "/?s3cret"), ("x-echo", "s3cre t")]);
        host.redact(&mut headers);
        let echoes: Vec<_> = headers.get_all("x-echo").iter().collect();
        assert_eq!(echoes[0], &format!("{} and {}", placeholder("KEY"), placeholder("KEY_2")));
        assert_eq!(echoes[1], "s3cre t");
        assert_eq!(headers["location"], format!("/?{}", placeholder("KEY")));
    }
}
