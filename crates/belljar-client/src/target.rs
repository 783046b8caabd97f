//! Where a server is, and what it is told about the caller.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Where Linux distributions keep the certificates that the machine trusts.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where a server is.
#[derive(Debug, Clone)]
pub enum Target {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address without TLS. Only scheme, host and port count.
    Http(Uri),
    /// An address with TLS, and whom it is trusted to.
    Https(Uri, Roots),
}

/// Why a target cannot be one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It is no address.
    #[error("{text:?} is not a valid server address; give http://HOST:PORT, https://HOST or unix:PATH")]
    Address {
        /// As it was given.
        text: String,
    },
    /// Certificates are named for a server that has none.
    #[error("{text:?} has no certificate to check; give https://HOST")]
    NoTls {
        /// The server as it was given.
        text: String,
    },
    /// Certificates cannot be read.
    #[error("cannot read certificates from {path}")]
    Roots {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// None of the files is there in which a machine keeps the certificates that it trusts.
    #[error("this machine has no file of trusted certificates; set SSL_CERT_FILE")]
    NoRoots,
    /// The TLS settings do not fit together.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The credential cannot stand in a header.
    #[error("the key has characters that no key has")]
    Credential,
}

impl Target {
    /// An address without TLS: `HOST:PORT`, or `http://HOST:PORT`.
    ///
    /// # Errors
    /// It is no address.
    pub fn http(address: &str) -> Result<Self, TargetError> {
        let rest = address.strip_prefix("http://").unwrap_or(address);
        Ok(Self::Http(uri("http", rest, address)?))
    }

    /// Reads `http://HOST:PORT`, `https://HOST[:PORT]`, or `unix:PATH`. For `https` the machine's own certificates are
    /// read, or those of the file that `SSL_CERT_FILE` names.
    ///
    /// # Errors
    /// It is no address, or there are no certificates.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        Self::parse_trusting(text, None)
    }

    /// The same; for `https` the certificates in a file are trusted, in the place of the machine's own.
    ///
    /// # Errors
    /// As [`Target::parse`]; certificates for a server without TLS.
    pub fn parse_trusting(text: &str, certificates: Option<&Path>) -> Result<Self, TargetError> {
        if certificates.is_some() && !text.starts_with("https://") {
            return Err(TargetError::NoTls { text: text.to_owned() });
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        match text.split_once("://") {
            Some(("http", rest)) => Ok(Self::Http(uri("http", rest, text)?)),
            Some(("https", rest)) => {
                let uri = uri("https", rest, text)?;
                Ok(Self::Https(uri, certificates.map_or_else(Roots::system, Roots::from_file)?))
            }
            _ => Err(TargetError::Address { text: text.to_owned() }),
        }
    }

    /// What calls name as the server.
    pub(crate) fn authority(&self) -> Uri {
        match self {
            Self::Unix(_) => Uri::from_static("http://localhost"),
            Self::Http(uri) | Self::Https(uri, _) => uri.clone(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Http(uri) | Self::Https(uri, _) => {
                write!(formatter, "{}://", uri.scheme_str().unwrap_or("http"))?;
                formatter.write_str(uri.authority().map_or("", |authority| authority.as_str()))
            }
        }
    }
}

/// Scheme, host and port alone: calls have paths of their own.
fn uri(scheme: &str, rest: &str, text: &str) -> Result<Uri, TargetError> {
    let refused = || TargetError::Address { text: text.to_owned() };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let named = !authority.is_empty() && !authority.contains(['/', '?', '#', '@', ' ']);
    let uri: Uri = format!("{scheme}://{authority}").parse().map_err(|_| refused())?;
    if named && uri.host().is_some_and(|host| !host.is_empty()) { Ok(uri) } else { Err(refused()) }
}

/// Whose certificates are trusted.
#[derive(Debug, Clone)]
pub struct Roots(pub(crate) Arc<RootCertStore>);

impl Roots {
    /// Those of the machine, or of the file that `SSL_CERT_FILE` names.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub fn system() -> Result<Self, TargetError> {
        let named = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let known = SYSTEM_BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file());
        Self::from_file(&named.or(known).ok_or(TargetError::NoRoots)?)
    }

    /// Those in a file in PEM form.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn from_file(path: &Path) -> Result<Self, TargetError> {
        let failed = |source| TargetError::Roots { path: path.to_owned(), source };
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
            // A machine's bundle may hold some that this library does not take.
            store.add_parsable_certificates([certificate.map_err(failed)?]);
        }
        if store.is_empty() { Err(TargetError::NoRoots) } else { Ok(Self(Arc::new(store))) }
    }
}

/// What opens the server's door.
#[derive(Clone, Default)]
pub enum Credential {
    /// Nothing: for the operator's own socket, and for what needs no key.
    #[default]
    None,
    /// An API key, or a sandbox's token.
    Key(String),
}

impl Credential {
    /// An API key, or a sandbox's token.
    pub fn key(key: impl Into<String>) -> Self {
        Self::Key(key.into())
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::None => "None",
            Self::Key(_) => "Key(…)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let cases = [
            ("http://127.0.0.1:8787", Some("http://127.0.0.1:8787")),
            ("http://[::1]:8787/", Some("http://[::1]:8787")),
            ("unix:/run/belljar.sock", Some("unix:/run/belljar.sock")),
            ("unix:///run/belljar.sock", Some("unix:/run/belljar.sock")),
            ("http://", None),
            ("http://host/path", None),
            ("http://user@host", None),
            ("http://host?x", None),
            ("ftp://host", None),
            ("host:1", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let read = Target::parse(text).ok().map(|target| target.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
        assert_eq!(Target::http("localhost:1").unwrap().to_string(), "http://localhost:1");
    }

    #[test]
    fn a_key_is_never_shown() {
        assert!(!format!("{:?}", Credential::key("bj_secret")).contains("secret"));
    }
}
