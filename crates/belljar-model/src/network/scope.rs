//! Destinations of secrets that are stored on a server.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::network::name::DomainPattern;
use crate::network::secret::header_name;

/// Maximum number of hosts of a secret. Source: docs/spec.md; held by `tests::scopes_are_checked`.
const MAX_HOSTS: usize = 32;

/// Use of a stored secret by a policy: its value is put into this header of requests to this host, or to all hosts below one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUse {
    /// Name of the secret.
    pub name: String,
    /// The hosts.
    pub host: DomainPattern,
    /// The header, in lower case.
    pub header: String,
}

/// The hosts, and optionally the one header, that a stored secret may be sent to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretScope {
    hosts: Vec<DomainPattern>,
    header: Option<String>,
}

impl SecretScope {
    /// Checks hosts and a header. Without hosts the scope is unlimited, and there is no header either.
    ///
    /// # Errors
    ///
    /// Fails for too many hosts, for one that is no name or pattern of names, and for a header that no secret may stand in or that
    /// comes without hosts.
    pub fn new(hosts: &[String], header: Option<&str>) -> Result<Self, ModelError> {
        if hosts.len() > MAX_HOSTS {
            let found = format!("{} hosts", hosts.len());
            return Err(ModelError::not_allowed("hosts", found, format!("at most {MAX_HOSTS}")));
        }
        let host = |text: &String| {
            DomainPattern::read(text).map_err(|allowed| ModelError::not_allowed("hosts", text, allowed))
        };
        let mut hosts = hosts.iter().map(host).collect::<Result<Vec<_>, _>>()?;
        hosts.sort();
        hosts.dedup();
        let header = header.map(|header| header_name("header", header)).transpose()?;
        match header {
            Some(header) if hosts.is_empty() => {
                Err(ModelError::not_allowed("header", header, "the hosts as well that the secret is for"))
            }
            header => Ok(Self { hosts, header }),
        }
    }

    /// The hosts, sorted; none if the scope is unlimited.
    #[must_use]
    pub fn hosts(&self) -> &[DomainPattern] {
        &self.hosts
    }

    /// The header, in lower case; any if absent.
    #[must_use]
    pub fn header(&self) -> Option<&str> {
        self.header.as_deref()
    }

    /// Reports whether the secret may be sent anywhere.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Reports whether a use is within the scope.
    #[must_use]
    pub fn allows(&self, wanted: &SecretUse) -> bool {
        let is_header = self.header.as_ref().is_none_or(|header| *header == wanted.header);
        self.is_unlimited() || is_header && self.hosts.iter().any(|host| host.covers(&wanted.host))
    }
}

impl fmt::Display for SecretScope {
    /// Writes the hosts and the header, as in `api.example.com, *.example.org (header authorization)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unlimited() {
            return f.write_str("any host");
        }
        let hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        f.write_str(&hosts.join(", "))?;
        self.header.iter().try_for_each(|header| write!(f, " (header {header})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(hosts: &[&str], header: Option<&str>) -> Result<SecretScope, ModelError> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        SecretScope::new(&hosts, header)
    }

    #[test]
    fn uses_outside_of_a_scope_are_refused() {
        let wanted = |host: &str, header: &str| SecretUse {
            name: "key".to_owned(),
            host: host.parse().unwrap(),
            header: header.to_owned(),
        };
        let one = scope(&["API.example.com", "*.example.org"], Some("Authorization")).unwrap();
        for (host, header, allowed) in [
            ("api.example.com", "authorization", true),
            ("api.example.com", "x-key", false),
            ("example.com", "authorization", false),
            ("www.api.example.com", "authorization", false),
            ("*.api.example.com", "authorization", false),
            ("a.example.org", "authorization", true),
            ("a.b.example.org", "authorization", true),
            ("example.org", "authorization", false),
            ("*.example.org", "authorization", true),
            ("*.a.example.org", "authorization", true),
            ("*.org", "authorization", false),
        ] {
            assert_eq!(one.allows(&wanted(host, header)), allowed, "{host} {header}");
        }
        assert_eq!(one.to_string(), "api.example.com, *.example.org (header authorization)");
        assert!(SecretScope::default().allows(&wanted("evil.example", "x-any")));
        assert!(scope(&["a.example"], None).unwrap().allows(&wanted("a.example", "x-any")));
    }

    #[test]
    fn scopes_are_checked() {
        for (hosts, header) in [
            (&["*"][..], None),
            (&["https://a.example/"], None),
            (&["10.0.0.1"], None),
            (&["a.example"], Some("host")),
            (&["a.example"], Some("a b")),
            (&[], Some("authorization")),
            (&["a.example"; MAX_HOSTS + 1], None),
        ] {
            assert!(scope(hosts, header).is_err(), "{hosts:?} {header:?}");
        }
        assert_eq!(scope(&["a.example"; MAX_HOSTS], None).unwrap().hosts().len(), 1);
    }
}
