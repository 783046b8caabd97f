//! The host name of a request. Protects against DNS rebinding.

use axum::extract::Request;
use belljar_keeper::ServiceWall;
use belljar_model::SandboxId;
use http::uri::Authority;
use http::{HeaderMap, Uri, header};

use super::client::Peer;
use crate::api::ApiConfig;
use crate::problem::{Code, Problem};

/// Target of a request, by its host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostName {
    /// The server itself.
    Own,
    /// A port of a sandbox.
    Port(PortHost),
}

/// A port of a sandbox, as in a host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortHost {
    /// The port inside the sandbox.
    pub port: u16,
    /// The sandbox.
    pub id: SandboxId,
}

/// Returns the target of the request. `labels` are those of facades below the domain.
///
/// # Errors
/// Fails if this is not a name of the server, or if the request names two hosts.
pub(super) fn check(config: &ApiConfig, labels: &[&str], request: &Request) -> Result<HostName, Problem> {
    let default = Peer::default();
    let peer = request.extensions().get::<Peer>().unwrap_or(&default);
    let named = authority(request.uri(), request.headers());
    let host = match named {
        Ok(Some(authority)) => host_of(&authority),
        // No browser uses a Unix socket, so rebinding is impossible here.
        Ok(None) if peer.unix => return Ok(HostName::Own),
        Ok(None) => return Err(host_not_allowed("the request names no host")),
        Err(why) => return Err(host_not_allowed(why)),
    };
    if let Some(label) =
        config.domain.as_deref().and_then(|domain| host.strip_suffix(domain)?.strip_suffix('.'))
    {
        if let Some(port) = port_host(label) {
            return Ok(HostName::Port(port));
        }
        if labels.contains(&label) {
            return Ok(HostName::Own);
        }
        // The domain may also be one of the server's own names, such as localhost.
        if !config.hosts.contains(&host) {
            return Err(Problem::new(
                Code::NotFound,
                "host not found; the name of a port is {port}-{id}.{domain}",
            ));
        }
    }
    if ServiceWall::Hosts.allows(peer.unix || is_own(config, peer, &host)) {
        return Ok(HostName::Own);
    }
    if host.split_once('.').is_some_and(|(label, _)| port_host(label).is_some()) {
        return Err(host_not_allowed(
            "host name not allowed; names of ports need the server's setting server.domain, as with belljar serve --domain NAME",
        ));
    }
    Err(host_not_allowed("host name not allowed; the operator can add it to the server's host names"))
}

/// Returns the only authority of a request, in its target or in its header `Host`.
pub(crate) fn authority(uri: &Uri, headers: &HeaderMap) -> Result<Option<Authority>, &'static str> {
    let mut values = headers.get_all(header::HOST).iter();
    let header = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| "the header Host is not ASCII")?;
            Some(text.parse::<Authority>().map_err(|_| "the header Host is not a host name")?)
        }
        (Some(_), Some(_)) => return Err("the request has more than one header Host"),
    };
    let both = match (uri.authority(), header) {
        (Some(target), Some(header)) if *target != header => return Err("target and header name two hosts"),
        (Some(target), _) => Some(target.clone()),
        (None, header) => header,
    };
    match &both {
        Some(authority) if authority.as_str().contains('@') => Err("a host name has no user"),
        Some(authority) if !is_whole(authority) => Err("the header Host is not a host name"),
        _ => Ok(both),
    }
}

/// Reports whether the authority consists of only a host and a port. The parser accepts other text after an address in brackets.
fn is_whole(authority: &Authority) -> bool {
    let text = authority.as_str();
    let port = text.strip_prefix(authority.host()).unwrap_or(text);
    port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the host without port and trailing dot, in lower case.
fn host_of(authority: &Authority) -> String {
    let host = authority.host().to_ascii_lowercase();
    host.strip_suffix('.').map_or(host.clone(), str::to_owned)
}

/// Parses `{port}-{id}`. The port has a single valid form: decimal digits, without sign or leading zeros.
fn port_host(label: &str) -> Option<PortHost> {
    let (port, id) = label.split_once('-')?;
    Some(PortHost { port: canonical_port(port)?, id: id.parse().ok()? })
}

/// Parses a port in its canonical form.
pub(crate) fn canonical_port(text: &str) -> Option<u16> {
    if ServiceWall::PortForm.is_down() {
        return text.parse().ok();
    }
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse::<u16>().ok().filter(|port| *port != 0 && digits && !text.starts_with('0'))?;
    Some(port)
}

fn is_own(config: &ApiConfig, peer: &Peer, host: &str) -> bool {
    if config.hosts.iter().any(|own| own == host)
        || config.domain.as_deref() == Some(host)
        || host == "localhost"
    {
        return true;
    }
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().ok();
    let local = peer.local.map(|local| local.ip().to_canonical());
    // After DNS rebinding the host is still the attacker's name. An IP address always means itself.
    address.is_some_and(|address| address.is_loopback() || Some(address.to_canonical()) == local)
}

fn host_not_allowed(why: &str) -> Problem {
    Problem::new(Code::HostNotAllowed, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ApiConfig {
        ApiConfig {
            domain: Some("box.test".to_owned()),
            hosts: vec!["api.example.com".to_owned()],
            ..ApiConfig::default()
        }
    }

    fn check_host(uri: &str, hosts: &[&str]) -> Result<HostName, Code> {
        let mut request = Request::new(axum::body::Body::empty());
        *request.uri_mut() = uri.parse().unwrap();
        for host in hosts {
            request.headers_mut().append(header::HOST, host.parse().unwrap());
        }
        let peer = Peer { local: Some("192.0.2.7:80".parse().unwrap()), ..Peer::default() };
        request.extensions_mut().insert(peer);
        check(&config(), &[], &request).map_err(|problem| problem.code())
    }

    #[test]
    fn only_own_host_names_are_accepted() {
        let cases = [
            ("localhost", true),
            ("localhost:8080", true),
            ("LOCALHOST.", true),
            ("127.0.0.1:1", true),
            ("127.8.8.8", true),
            ("[::1]:80", true),
            ("api.example.com", true),
            ("API.Example.COM:443", true),
            ("box.test", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("api.example.com.evil.example", false),
            ("evilbox.test", false),
            ("user@localhost", false),
            ("[::1].evil.example", false),
            ("[::1]x:80", false),
            ("[::ffff:127.0.0.1]:80", false),
            ("", false),
            ("a b", false),
        ];
        for (host, own) in cases {
            assert_eq!(
                check_host("/health", &[host]),
                own.then_some(HostName::Own).ok_or(Code::HostNotAllowed),
                "{host}"
            );
        }
        assert_eq!(check_host("/", &[]), Err(Code::HostNotAllowed));
        assert_eq!(check_host("/", &["localhost", "localhost"]), Err(Code::HostNotAllowed));
        assert_eq!(check_host("http://evil.example/", &["localhost"]), Err(Code::HostNotAllowed));
        assert_eq!(check_host("http://localhost/", &["localhost"]), Ok(HostName::Own));
        assert_eq!(check_host("http://localhost/", &[]), Ok(HostName::Own));
    }

    #[test]
    fn facades_have_host_names() {
        let mut request = Request::new(axum::body::Body::empty());
        request.headers_mut().insert(header::HOST, "API.box.test:8443".parse().unwrap());
        let served = |labels: &[&str]| check(&config(), labels, &request).map_err(|problem| problem.code());
        assert_eq!(served(&["api"]), Ok(HostName::Own));
        assert_eq!(served(&[]), Err(Code::NotFound));
    }

    #[test]
    fn each_port_has_one_host_name() {
        let id = "abcdefghij0123456789";
        let good = HostName::Port(PortHost { port: 2280, id: id.parse().unwrap() });
        assert_eq!(check_host("/", &[&format!("2280-{id}.box.test:8080")]), Ok(good.clone()));
        assert_eq!(check_host("/", &[&format!("2280-{}.BOX.test", id.to_uppercase())]), Ok(good));
        let bad =
            ["02280", "+2280", "%32280", "2280.0", "-2280", "0", "65536", "99999999", "", "２２８０", "0x50"];
        for port in bad {
            let Ok(host) = format!("{port}-{id}.box.test").parse::<http::HeaderValue>() else { continue };
            let Ok(host) = host.to_str().map(str::to_owned) else { continue };
            assert!(check_host("/", &[&host]).is_err(), "{port}");
        }
        for label in [id.to_owned(), format!("80-{id}x"), format!("80-80-{id}"), "80-name".to_owned()] {
            assert_eq!(check_host("/", &[&format!("{label}.box.test")]), Err(Code::NotFound), "{label}");
        }
        assert!(check_host("/", &[&format!("80-{id}.sub.box.test")]).is_err());
    }
}
