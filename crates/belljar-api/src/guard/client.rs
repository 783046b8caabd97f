//! Origin of a request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{Extensions, HeaderMap};

use crate::api::ApiConfig;

/// The remote end of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peer {
    /// Remote address; `None` for a Unix socket.
    pub(crate) remote: Option<SocketAddr>,
    /// Local address that the client connected to.
    pub(crate) local: Option<SocketAddr>,
    /// The connection came over a Unix socket, so that no browser can have been tricked into making it.
    pub(crate) unix: bool,
    /// The connection uses TLS.
    pub(crate) tls: bool,
}

/// The client that sent a request, as far as addresses show.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// Address for counting. IPv6 addresses count by their 64-bit prefix.
    pub(crate) address: IpAddr,
    /// Address for the log and the audit log.
    pub(crate) text: String,
    /// The client itself uses TLS, with this server or with a trusted proxy.
    pub(crate) tls: bool,
}

impl Client {
    /// Returns the client: the remote end of the connection, or the client that a trusted proxy names.
    pub(crate) fn from_request(config: &ApiConfig, headers: &HeaderMap, extensions: &Extensions) -> Self {
        let default = Peer::default();
        let peer = extensions.get::<Peer>().unwrap_or(&default);
        if peer.unix {
            return Self { address: Ipv4Addr::LOCALHOST.into(), text: "unix".to_owned(), tls: false };
        }
        let Some(remote) = peer.remote else {
            return Self { address: Ipv4Addr::UNSPECIFIED.into(), text: "unknown".to_owned(), tls: peer.tls };
        };
        let direct = remote.ip().to_canonical();
        if !config.trusted_proxies.contains(&direct) {
            return Self { address: counted_address(direct), text: remote.to_string(), tls: peer.tls };
        }
        let forwarded = last_untrusted(config, headers);
        let address = forwarded.unwrap_or(direct);
        let tls = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
        Self { address: counted_address(address), text: address.to_string(), tls: tls || peer.tls }
    }

    /// Returns `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// Returns the last address in `X-Forwarded-For` that is not a trusted proxy: those before it may be forged.
fn last_untrusted(config: &ApiConfig, headers: &HeaderMap) -> Option<IpAddr> {
    let values = headers.get_all("x-forwarded-for").iter().rev();
    let texts = values.filter_map(|value| value.to_str().ok());
    let addresses = texts.flat_map(|text| text.rsplit(','));
    for text in addresses {
        let address: IpAddr = text.trim().parse().ok()?;
        if !config.trusted_proxies.contains(&address.to_canonical()) {
            return Some(address.to_canonical());
        }
    }
    None
}

fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of a request.
    type Headers<'a> = &'a [(&'static str, &'a str)];

    fn client(remote: &str, headers: &[(&'static str, &str)]) -> (String, bool) {
        let config = ApiConfig { trusted_proxies: vec!["10.0.0.1".parse().unwrap()], ..ApiConfig::default() };
        let mut request = http::Request::new(());
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        let peer = Peer { remote: Some(remote.parse().unwrap()), ..Peer::default() };
        request.extensions_mut().insert(peer);
        let client = Client::from_request(&config, request.headers(), request.extensions());
        (client.address.to_string(), client.tls)
    }

    #[test]
    fn only_trusted_proxies_can_set_the_client() {
        let cases: &[(&str, Headers<'_>, &str, bool)] = &[
            (
                "192.0.2.1:1",
                &[("x-forwarded-for", "1.2.3.4"), ("x-forwarded-proto", "https")],
                "192.0.2.1",
                false,
            ),
            ("10.0.0.1:1", &[("x-forwarded-for", "1.2.3.4")], "1.2.3.4", false),
            (
                "10.0.0.1:1",
                &[("x-forwarded-for", "6.6.6.6, 1.2.3.4"), ("x-forwarded-proto", "https")],
                "1.2.3.4",
                true,
            ),
            ("10.0.0.1:1", &[("x-forwarded-for", "1.2.3.4, 10.0.0.1")], "1.2.3.4", false),
            (
                "10.0.0.1:1",
                &[("x-forwarded-for", "1.2.3.4"), ("x-forwarded-for", "5.6.7.8")],
                "5.6.7.8",
                false,
            ),
            ("10.0.0.1:1", &[("x-forwarded-for", "nonsense")], "10.0.0.1", false),
            ("10.0.0.1:1", &[], "10.0.0.1", false),
            ("[::ffff:10.0.0.1]:1", &[("x-forwarded-for", "1.2.3.4")], "1.2.3.4", false),
            ("[2001:db8:1:2:3:4:5:6]:1", &[], "2001:db8:1:2::", false),
        ];
        for (remote, headers, address, tls) in cases {
            assert_eq!(client(remote, headers), ((*address).to_owned(), *tls), "{remote} {headers:?}");
        }
    }
}
