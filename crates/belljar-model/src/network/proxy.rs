//! The operator's proxy, through which gateways connect.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ModelError;
use crate::network::cidr::decimal;
use crate::network::name::DomainName;

/// Field name in errors.
const FIELD: &str = "network.proxy";

/// Expected form, for errors.
const ALLOWED: &str = "http://HOST:PORT or socks5://HOST:PORT, with USER:PASSWORD@ before the host where it asks for them; \
     other characters than letters, digits and -._~ in them are escaped as in %40";

/// Maximum length of a user name or a password in bytes (RFC 1929).
const MAX_CREDENTIAL_BYTES: usize = 255;

/// The operator's proxy, through which gateways connect instead of directly.
///
/// Written as a URL, `http://USER:PASSWORD@HOST:PORT` or `socks5://…`. [`fmt::Debug`] and errors do not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct UpstreamProxy {
    protocol: ProxyProtocol,
    host: ProxyHost,
    port: u16,
    credentials: Option<(String, String)>,
}

/// Protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// HTTP/1.1 with the method CONNECT (RFC 9110, 9.3.6).
    Http,
    /// SOCKS version 5 (RFC 1928).
    Socks5,
}

/// Host of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyHost {
    /// A name, which gateways resolve.
    Name(DomainName),
    /// An address.
    Address(Ipv4Addr),
}

impl UpstreamProxy {
    /// The proxy's protocol.
    pub fn protocol(&self) -> ProxyProtocol {
        self.protocol
    }

    /// The proxy's host.
    pub fn host(&self) -> &ProxyHost {
        &self.host
    }

    /// The proxy's port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The user name and password, each of 1 to 255 bytes, if the proxy requires them.
    pub fn credentials(&self) -> Option<(&str, &str)> {
        self.credentials.as_ref().map(|(user, password)| (user.as_str(), password.as_str()))
    }
}

impl FromStr for UpstreamProxy {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        // The text may contain a password, so the error does not show it.
        read(text).ok_or_else(|| ModelError::not_allowed(FIELD, "(hidden)", ALLOWED))
    }
}

fn read(text: &str) -> Option<UpstreamProxy> {
    let (protocol, rest) = match text.split_once("://")? {
        ("http", rest) => (ProxyProtocol::Http, rest),
        ("socks5", rest) => (ProxyProtocol::Socks5, rest),
        _ => return None,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (credentials, place) = match rest.split_once('@') {
        Some((credentials, place)) => {
            let (user, password) = credentials.split_once(':')?;
            // HTTP cannot express a user name with a colon.
            let user = unescape(user).filter(|user| !user.contains(':'))?;
            (Some((user, unescape(password)?)), place)
        }
        None => (None, rest),
    };
    let (host, port) = place.split_once(':')?;
    let host = match host.parse::<Ipv4Addr>() {
        Ok(address) => ProxyHost::Address(address),
        Err(_) => ProxyHost::Name(host.parse().ok()?),
    };
    let port = decimal(port).filter(|port| *port > 0)?;
    Some(UpstreamProxy { protocol, host, port, credentials })
}

/// Decodes a user name or password in the part of a URL before the `@`.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [char::from(rest.next()?), char::from(rest.next()?)];
                let [high, low] = digits.map(|digit| digit.to_digit(16));
                u8::try_from((high? << 4) | low?).ok()?
            }
            byte if is_plain(byte) => byte,
            _ => return None,
        });
    }
    let text = String::from_utf8(bytes).ok()?;
    let fits = (1..=MAX_CREDENTIAL_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    fits.then_some(text)
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn escape(text: &str) -> String {
    let escaped =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escaped).collect()
}

impl fmt::Display for UpstreamProxy {
    /// Writes the URL without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            ProxyProtocol::Http => "http",
            ProxyProtocol::Socks5 => "socks5",
        };
        match &self.host {
            ProxyHost::Name(name) => write!(f, "{protocol}://{name}:{}", self.port),
            ProxyHost::Address(address) => write!(f, "{protocol}://{address}:{}", self.port),
        }
    }
}

impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Serializes the whole URL, including the password: the gateway needs it.
impl Serialize for UpstreamProxy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place = self.to_string();
        let whole = match (&self.credentials, place.split_once("://")) {
            (Some((user, password)), Some((protocol, place))) => {
                format!("{protocol}://{}:{}@{place}", escape(user), escape(password))
            }
            _ => place,
        };
        serializer.serialize_str(&whole)
    }
}

impl<'de> Deserialize<'de> for UpstreamProxy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_url_round_trip() {
        for (text, shown, credentials) in [
            ("http://proxy.example:3128", "http://proxy.example:3128", None),
            ("http://Proxy.Example:3128/", "http://proxy.example:3128", None),
            ("socks5://10.0.0.1:1080", "socks5://10.0.0.1:1080", None),
            ("http://me:hu%40sh%3A@p.example:1", "http://p.example:1", Some(("me", "hu@sh:"))),
        ] {
            let proxy: UpstreamProxy = text.parse().unwrap();
            assert_eq!((format!("{proxy:?}").as_str(), proxy.credentials()), (shown, credentials));
            let written = serde_json::to_string(&proxy).unwrap();
            assert_eq!(serde_json::from_str::<UpstreamProxy>(&written).unwrap(), proxy, "{written}");
        }
    }

    #[test]
    fn invalid_proxy_url_is_refused_without_being_shown() {
        for text in [
            "",
            "proxy.example:3128",
            "https://proxy.example:3128",
            "http://proxy.example",
            "http://proxy.example:0",
            "http://proxy.example:03128",
            "http://[::1]:3128",
            "http://hush@proxy.example:1",
            "http://a:hush@b@proxy.example:1",
            "http://a%3Ab:hush@proxy.example:1",
            "http://a:hush%0a@proxy.example:1",
            "http://a:hush%4@proxy.example:1",
            "http://:hush@proxy.example:1",
            "http://a:@proxy.example:1",
            "http://proxy.example:1/hush",
            "http://127.1:3128",
        ] {
            let error = text.parse::<UpstreamProxy>().unwrap_err().to_string();
            assert!(error.starts_with("network.proxy: ") && !error.contains("hush"), "{text}: {error}");
        }
    }
}
