//! Secrets and injected headers. Code in the sandbox has only a placeholder for a secret; its value is sent only to the secret's host,
//! in one header. Headers that the gateway sets are invisible to code.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_http_hop::{Redactor, remove_alike, remove_other_spellings};
use belljar_model::{DomainName, DomainPattern, NetworkPolicy, SecretSource, placeholder};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};

/// Replacement in answers for the value of a header that the gateway sets.
const REDACTED: &str = "[redacted]";

/// Minimum length of a set value that is redacted in answers; shorter ones could be ordinary words.
const MIN_REDACTED_BYTES: usize = 8;

/// The secrets and headers of a policy by the hosts that they are for.
#[derive(Default)]
pub(crate) struct Secrets {
    bound: BTreeMap<DomainName, Vec<Bound>>,
    set: BTreeMap<DomainPattern, Vec<Set>>,
}

/// The secrets and headers of one host.
pub(crate) struct HostSecrets<'a> {
    bound: &'a [Bound],
    set: &'a [Set],
}

/// One secret, bound to a header.
#[derive(Clone)]
struct Bound {
    /// What it is called where a policy changes.
    title: Rc<str>,
    header: HeaderName,
    placeholder: String,
    value: String,
    redactor: Rc<Redactor>,
}

/// A header that the gateway sets.
#[derive(Clone)]
struct Set {
    /// What it is called where a policy changes.
    title: Rc<str>,
    header: HeaderName,
    value: HeaderValue,
    redactor: Rc<Redactor>,
}

impl Secrets {
    /// Collects the secrets of a policy. Their values must have been read already from variables, files and the server's store. Each is
    /// for its own hosts only, unless a test disables that wall (`binds_hosts`).
    pub(crate) fn from_policy(policy: &NetworkPolicy, binds_hosts: bool) -> Self {
        let mut secrets = Self::default();
        for (name, secret) in policy.secrets() {
            // Both have been checked as they were read.
            let (SecretSource::Value(value), Ok(header)) = (secret.source(), secret.header().parse()) else {
                continue;
            };
            let placeholder = placeholder(name);
            let redactor = Rc::new(Redactor::new([value.as_bytes()], &placeholder));
            let title = format!("the secret {name} in {header}").into();
            let bound = Bound { title, header, placeholder, value: value.clone(), redactor };
            secrets.bound.entry(secret.host().clone()).or_default().push(bound);
        }
        for set in policy.headers() {
            let (SecretSource::Value(value), Ok(header)) = (set.source(), set.header().parse()) else {
                continue;
            };
            // The whole value, and what comes after the scheme of credentials.
            let parts = [Some(value.as_str()), value.split_once(' ').map(|(_, rest)| rest)];
            let parts = parts.into_iter().flatten().filter(|part| part.len() >= MIN_REDACTED_BYTES);
            let redactor = Rc::new(Redactor::new(parts.map(str::as_bytes), REDACTED));
            let Ok(mut value) = HeaderValue::from_str(value) else { continue };
            value.set_sensitive(true);
            let title = format!("the header {header} for {}", set.host()).into();
            let of_host = secrets.set.entry(set.host().clone()).or_default();
            of_host.push(Set { title, header, value, redactor });
        }
        if !binds_hosts {
            let bound: Vec<_> = secrets.bound.values().flatten().cloned().collect();
            secrets.bound.values_mut().for_each(|of_host| of_host.clone_from(&bound));
            let set: Vec<_> = secrets.set.values().flatten().cloned().collect();
            let hosts: BTreeSet<_> = policy.read_hosts();
            secrets.set = hosts.into_iter().map(|host| (host, set.clone())).collect();
        }
        secrets
    }

    /// Returns the secrets and headers of a host, if it has any. Headers for the exact host take precedence over those for a suffix,
    /// and those for a longer suffix over those for a shorter one; they are not merged.
    pub(crate) fn of_host(&self, host: &DomainName) -> Option<HostSecrets<'_>> {
        let bound = self.bound.get(host).map(Vec::as_slice).unwrap_or_default();
        let exact = || self.set.get(&DomainPattern::Exact(host.clone()));
        let below = || {
            let of_host = |(pattern, _): &(&DomainPattern, &Vec<Set>)| pattern.matches(host);
            let longest = |(pattern, _): &(&DomainPattern, &Vec<Set>)| pattern.to_string().len();
            self.set.iter().filter(of_host).max_by_key(longest).map(|(_, set)| set)
        };
        let set = exact().or_else(below).map(Vec::as_slice).unwrap_or_default();
        (!bound.is_empty() || !set.is_empty()).then_some(HostSecrets { bound, set })
    }
}

impl HostSecrets<'_> {
    /// Removes headers that are, to some servers, the same as those that [`inject`](Self::inject) changes or sets.
    pub(crate) fn remove_shadows(&self, headers: &mut HeaderMap) {
        self.bound.iter().for_each(|bound| remove_other_spellings(headers, &bound.header));
        self.set.iter().for_each(|set| remove_alike(headers, &set.header));
    }

    /// Replaces placeholders by values, each only in its own header, and sets headers. Returns the titles of those that it used.
    pub(crate) fn inject(&self, headers: &mut HeaderMap) -> Vec<Rc<str>> {
        let mut used = Vec::new();
        for bound in self.bound {
            let http::header::Entry::Occupied(mut values) = headers.entry(&bound.header) else { continue };
            for value in values.iter_mut() {
                let Some(text) = bound.inject(&bound.header, value.as_bytes()) else { continue };
                // A value that is not allowed in a header is not inserted.
                if let Ok(mut put) = HeaderValue::from_bytes(&text) {
                    put.set_sensitive(true);
                    *value = put;
                    used.push(Rc::clone(&bound.title));
                }
            }
        }
        for Set { title, header, value, .. } in self.set {
            headers.insert(header, value.clone());
            used.push(Rc::clone(title));
        }
        used
    }

    /// Reports whether there is a secret or header of this title.
    pub(crate) fn has(&self, title: &str) -> bool {
        let bound = self.bound.iter().map(|bound| &bound.title);
        bound.chain(self.set.iter().map(|set| &set.title)).any(|one| **one == *title)
    }

    /// Returns what replaces the values that the host sends back.
    pub(crate) fn redactors(&self) -> Vec<Rc<Redactor>> {
        let bound = self.bound.iter().map(|bound| &bound.redactor);
        bound.chain(self.set.iter().map(|set| &set.redactor)).map(Rc::clone).collect()
    }
}

impl Bound {
    /// Returns the header's text with the value inserted, if it contained the placeholder. Credentials of the scheme Basic (RFC 7617)
    /// are decoded for it.
    fn inject(&self, header: &HeaderName, text: &[u8]) -> Option<Vec<u8>> {
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

/// Replaces every `old` for which `is_whole` accepts the byte after it. Returns `None` if nothing was replaced.
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
        Secrets::from_policy(&serde_json::from_str(policy).unwrap(), true)
    }

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn redact(host: &HostSecrets<'_>, headers: &mut HeaderMap) {
        host.redactors().iter().for_each(|redactor| redactor.redact(headers));
    }

    #[test]
    fn other_spellings_of_added_headers_are_removed() {
        let policy = r#"{"allow": ["api.example"],
            "secrets": {"KEY": {"host": "api.example", "header": "x-api-key", "value": "s3cret"}},
            "headers": [{"host": "api.example", "header": "x-team", "value": "agents"},
                {"host": "api.example", "header": "x_team", "value": "agents"}]}"#;
        let secrets = Secrets::from_policy(&serde_json::from_str(policy).unwrap(), true);
        let key = placeholder("KEY");
        let mut sent = headers(&[
            ("x-api-key", &key),
            ("x_api_key", &key),
            ("x.team", "admins"),
            ("x-team", "admins"),
            ("x-teams", "all"),
        ]);
        let host = secrets.of_host(&"api.example".parse().unwrap()).unwrap();
        host.remove_shadows(&mut sent);
        host.inject(&mut sent);
        let expected =
            [("x-api-key", "s3cret"), ("x-team", "agents"), ("x_team", "agents"), ("x-teams", "all")];
        assert_eq!(sent, headers(&expected));
    }

    #[test]
    fn values_are_injected_only_into_their_own_headers() {
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
            host.inject(&mut headers);
            assert_eq!(headers[header], put, "{header}: {given}");
            assert_eq!(headers[header].is_sensitive(), given != put, "{header}: {given}");
        }
    }

    #[test]
    fn headers_for_the_most_specific_host_are_set() {
        let policy = r#"{"allow": ["*.example", "*.b.example"], "headers": [
            {"host": "*.example", "header": "x-far", "value": "far"},
            {"host": "*.b.example", "header": "x-near", "value": "near"},
            {"host": "a.b.example", "header": "authorization", "value": "Bearer s3cret-value"},
            {"host": "a.b.example", "header": "x-own", "value": "own"}
        ]}"#;
        let secrets = Secrets::from_policy(&serde_json::from_str(policy).unwrap(), true);
        let sent = |host: &str| {
            let mut headers =
                headers(&[("authorization", "mine"), ("authorization", "too"), ("x-other", "other")]);
            if let Some(of_host) = secrets.of_host(&host.parse().unwrap()) {
                of_host.inject(&mut headers);
            }
            let sent = headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
            sent.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
        };
        for (host, expected) in [
            ("a.b.example", "authorization=Bearer s3cret-value x-other=other x-own=own"),
            ("c.b.example", "authorization=mine authorization=too x-near=near x-other=other"),
            ("b.example", "authorization=mine authorization=too x-far=far x-other=other"),
            ("example", "authorization=mine authorization=too x-other=other"),
        ] {
            assert_eq!(sent(host), expected, "{host}");
        }
        let host = "a.b.example".parse().unwrap();
        let mut answer = headers(&[("x-echo", "it is s3cret-value, own"), ("x-all", "Bearer s3cret-value")]);
        redact(&secrets.of_host(&host).unwrap(), &mut answer);
        assert_eq!(
            (&answer["x-echo"], &answer["x-all"]),
            (&"it is [redacted], own".parse().unwrap(), &"[redacted]".parse().unwrap())
        );
    }

    #[test]
    fn echoed_values_are_redacted() {
        let secrets = secrets();
        let host = secrets.of_host(&"api.example".parse().unwrap()).unwrap();
        let mut headers =
            headers(&[("x-echo", "s3cret and other"), ("location", "/?s3cret"), ("x-echo", "s3cre t")]);
        redact(&host, &mut headers);
        let echoes: Vec<_> = headers.get_all("x-echo").iter().collect();
        assert_eq!(echoes[0], &format!("{} and {}", placeholder("KEY"), placeholder("KEY_2")));
        assert_eq!(echoes[1], "s3cre t");
        assert_eq!(headers["location"], format!("/?{}", placeholder("KEY")));
    }
}
