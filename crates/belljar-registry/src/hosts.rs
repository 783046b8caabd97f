//! Hosts to which a pull may connect.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use belljar_model::{Cidr, DomainName, ImageReference, ImageRegistry, always_denied, always_denied_name};

use crate::error::RegistryError;

/// All hosts to which pulls may connect.
#[derive(Debug, Clone, Default)]
pub struct RegistryHosts {
    /// Registries that the operator allows.
    pub registries: Vec<ImageRegistry>,
    /// Ranges that are reachable although no policy allows them.
    pub exceptions: Vec<Cidr>,
}

/// A place to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) is_plain: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Set if the operator has named the host, so that its address is the operator's choice too.
    is_named: bool,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.authority())
    }
}

impl Origin {
    /// Returns the host with its port, unless that is the scheme's own.
    pub(crate) fn authority(&self) -> String {
        let own = if self.is_plain { 80 } else { 443 };
        if self.port == own { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl RegistryHosts {
    /// Returns where a registry is.
    pub(crate) fn registry(&self, registry: &str) -> Result<Origin, RegistryError> {
        let named = self.registries.iter().find(|one| one.host() == Some(registry));
        let all = || self.registries.iter().find(|one| one.host().is_none());
        let found = named
            .or_else(all)
            .ok_or_else(|| RegistryError::NotAllowed { host: registry.to_owned(), reason: String::new() })?;
        origin(ImageReference::host_of(registry), found.is_plain(), found.host().is_some())
    }

    /// Returns where a registry refers to: a token's realm, or the place of a blob. That needs TLS, unless the operator has named the
    /// host as one without.
    pub(crate) fn referred(&self, uri: &http::Uri) -> Result<Origin, RegistryError> {
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let refuse = |reason: &str| RegistryError::NotAllowed {
            host: crate::error::shown(authority),
            reason: format!(", to which the registry refers: {reason}"),
        };
        if !ImageReference::is_host(authority) {
            return Err(refuse("it is not a host name with an optional port"));
        }
        let is_plain = match uri.scheme_str() {
            Some("https") => false,
            Some("http") => true,
            _ => return Err(refuse("it is neither https nor http")),
        };
        let name = authority.to_ascii_lowercase();
        let is_named =
            self.registries.iter().any(|one| one.host() == Some(name.as_str()) && one.is_plain() == is_plain);
        if is_plain && !is_named {
            return Err(refuse("it has no TLS"));
        }
        origin(&name, is_plain, is_named)
    }

    /// Returns the addresses of a host to which a connection may be made.
    pub(crate) async fn addresses(&self, origin: &Origin) -> Result<Vec<SocketAddr>, RegistryError> {
        let refuse = |reason: String| RegistryError::NotAllowed { host: origin.to_string(), reason };
        let is_metadata = DomainName::lenient(&origin.host).is_some_and(|name| always_denied_name(&name));
        if is_metadata && !origin.is_named {
            return Err(refuse(": it is the name of a metadata service".to_owned()));
        }
        let looked_up = tokio::net::lookup_host((origin.host.as_str(), origin.port)).await;
        let all: Vec<SocketAddr> = looked_up
            .map_err(|source| RegistryError::Connection {
                action: "look up",
                host: origin.to_string(),
                source,
            })?
            .collect();
        if origin.is_named {
            return Ok(all);
        }
        let denied = all.iter().find_map(|address| self.denied(address.ip()).map(|why| (*address, why)));
        let allowed: Vec<_> = all.into_iter().filter(|address| self.denied(address.ip()).is_none()).collect();
        match denied {
            Some((address, why)) if allowed.is_empty() => {
                Err(refuse(format!(": it has the address {}, which is {why}", address.ip())))
            }
            _ => Ok(allowed),
        }
    }

    fn denied(&self, address: IpAddr) -> Option<&'static str> {
        let is_exception = |range: &Cidr| matches!(address, IpAddr::V4(v4) if range.contains(v4));
        if self.exceptions.iter().any(is_exception) {
            return None;
        }
        always_denied(address).map(belljar_model::DeniedRange::purpose)
    }
}

fn origin(authority: &str, is_plain: bool, is_named: bool) -> Result<Origin, RegistryError> {
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (authority, Some(if is_plain { 80 } else { 443 })),
    };
    let port = port.ok_or_else(|| RegistryError::NotAllowed {
        host: authority.to_owned(),
        reason: ": it has no valid port".to_owned(),
    })?;
    Ok(Origin { is_plain, host: host.to_owned(), port, is_named })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(registries: &[&str]) -> RegistryHosts {
        let registries = registries.iter().map(|text| text.parse().unwrap()).collect();
        RegistryHosts { registries, exceptions: vec!["10.9.0.0/16".parse().unwrap()] }
    }

    #[test]
    fn registries_are_allowed_by_name() {
        let some = hosts(&["docker.io", "http://127.0.0.1:5000", "Registry.corp.example"]);
        let to = |hosts: &RegistryHosts, name: &str| {
            let origin = hosts.registry(name.parse::<ImageReference>().unwrap().registry()).ok()?;
            Some((origin.to_string(), origin.port, origin.is_plain, origin.is_named))
        };
        let docker = ("registry-1.docker.io".to_owned(), 443, false, true);
        assert_eq!(to(&some, "python"), Some(docker));
        assert_eq!(to(&some, "127.0.0.1:5000/a"), Some(("127.0.0.1:5000".to_owned(), 5000, true, true)));
        assert_eq!(
            to(&some, "registry.corp.example/a"),
            Some(("registry.corp.example".to_owned(), 443, false, true))
        );
        assert_eq!((to(&some, "127.0.0.1:5001/a"), to(&some, "ghcr.io/a")), (None, None));
        let all = hosts(&["*"]);
        assert_eq!(to(&all, "ghcr.io/a"), Some(("ghcr.io".to_owned(), 443, false, false)));
    }

    #[test]
    fn references_of_a_registry_need_tls() {
        let some = hosts(&["docker.io", "http://127.0.0.1:5000"]);
        let to =
            |text: &str| some.referred(&text.parse().unwrap()).map(|origin| (origin.port, origin.is_named));
        assert_eq!(to("https://auth.docker.io/token").unwrap(), (443, false));
        assert_eq!(to("http://127.0.0.1:5000/token").unwrap(), (5000, true));
        for text in [
            "http://auth.docker.io/",
            "https://127.0.0.1:5000@evil.example/",
            "http://127.0.0.1:5001/",
            "/token",
        ] {
            assert!(matches!(to(text), Err(RegistryError::NotAllowed { .. })), "{text}");
        }
    }

    #[tokio::test]
    async fn addresses_are_public_unless_the_host_is_named() {
        let some = hosts(&["http://127.0.0.1:5000"]);
        let to = async |text: &str| some.addresses(&some.referred(&text.parse().unwrap()).unwrap()).await;
        assert_eq!(to("http://127.0.0.1:5000/").await.unwrap(), ["127.0.0.1:5000".parse().unwrap()]);
        assert_eq!(to("https://10.9.1.2/").await.unwrap(), ["10.9.1.2:443".parse().unwrap()]);
        assert_eq!(to("https://93.184.216.34/").await.unwrap(), ["93.184.216.34:443".parse().unwrap()]);
        for text in [
            "https://127.0.0.1:5000/",
            "https://169.254.169.254/",
            "https://10.8.0.1/",
            "https://localhost/",
            "https://metadata.google.internal/",
            "https://192.168.1.1:8443/",
        ] {
            let error = to(text).await.unwrap_err().to_string();
            assert!(error.contains("are not allowed here: it "), "{text}: {error}");
        }
    }
}
