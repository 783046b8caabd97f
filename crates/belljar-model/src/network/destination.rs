//! Destinations of connections, as people write them to ask about one.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::error::ModelError;
use crate::network::decision::{DecidedBy, Decision};
use crate::network::matcher::Matcher;
use crate::network::name::DomainName;

/// Port of a destination that names none.
const DEFAULT_PORT: u16 = 443;

/// A host or an IPv4 address, and a port: `HOST`, which is `HOST:443`, or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A host, by its name.
    Name(DomainName, u16),
    /// An address, without a name.
    Address(Ipv4Addr, u16),
}

impl Destination {
    /// Decides about a connection to it. No name is resolved.
    pub fn decide(&self, matcher: &Matcher) -> Decision {
        match self {
            Self::Name(name, port) => matcher.name(name, *port),
            Self::Address(address, port) => matcher.address(*address, *port),
        }
    }

    /// Returns the narrowest rule that would allow it, if a rule is all that a decision about it lacks.
    pub fn missing_rule(&self, decision: &Decision) -> Option<String> {
        (decision.by == DecidedBy::NoRule).then(|| match self {
            Self::Name(name, port) => format!("{name}:{port}"),
            Self::Address(address, port) => format!("{address}/32:{port}"),
        })
    }
}

impl FromStr for Destination {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let refuse = |allowed: String| ModelError::not_allowed("hosts", text, allowed);
        let (host, port) = match text.rsplit_once(':') {
            None => (text, DEFAULT_PORT),
            Some((host, port)) => {
                // Ports are written as in rules.
                let port = port.parse::<u16>().ok().filter(|_| !port.starts_with(['+', '0']));
                let form = || refuse("HOST or HOST:PORT, with a port from 1 to 65535".to_owned());
                (host, port.ok_or_else(form)?)
            }
        };
        if let Ok(address) = host.parse() {
            return Ok(Self::Address(address, port));
        }
        DomainName::read(host).map(|name| Self::Name(name, port)).map_err(refuse)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Address(address, port) => write!(f, "{address}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::file::NetworkFile;

    #[test]
    fn the_missing_rule_allows_the_destination_alone() {
        let list = |rules: &[&str]| Some(rules.iter().map(|rule| (*rule).to_owned()).collect());
        let file = |allow: &[&str]| NetworkFile {
            allow: list(allow),
            deny: list(&["bad.example"]),
            ..NetworkFile::default()
        };
        let decide = |allow: &[&str], text: &str| {
            let destination: Destination = text.parse().unwrap();
            let decision = destination.decide(&Matcher::new(&file(allow).resolve().unwrap(), &[]));
            let missing = destination.missing_rule(&decision);
            (decision.allowed, missing)
        };
        for (text, rule) in [
            ("Files.Example", "files.example:443"),
            ("files.example:80", "files.example:80"),
            ("files.example:5432", "files.example:5432"),
            ("93.184.215.14:22", "93.184.215.14/32:22"),
        ] {
            assert_eq!(decide(&["a.example"], text), (false, Some(rule.to_owned())), "{text}");
            assert_eq!(decide(&["a.example", rule], text), (true, None), "{text}");
        }
        assert!(!decide(&["files.example:443"], "files.example:80").0);
        // A rule is not what these lack.
        for text in ["bad.example", "169.254.169.254:80", "metadata.google.internal:80"] {
            assert_eq!(decide(&["a.example"], text), (false, None), "{text}");
        }
    }

    #[test]
    fn invalid_destinations_are_refused() {
        for text in [
            "",
            ":443",
            "a b",
            "a.example:",
            "a.example:0",
            "a.example:+1",
            "a.example:65536",
            "*.example",
            "https://a.example",
            "::1",
        ] {
            assert!(text.parse::<Destination>().is_err(), "{text}");
        }
        assert_eq!("a.example".parse::<Destination>().unwrap().to_string(), "a.example:443");
    }
}
