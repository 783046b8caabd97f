//! A server's address, and the caller's credential.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Address of a server.
#[derive(Debug, Clone)]
pub enum Target {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address without TLS. Only scheme, host and port are used.
    Http(Uri),
    /// An address with TLS, and the trusted certificates.
    Https(Uri, Roots),
}

/// Error of an invalid target or credential.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The text is not an address.
    #[error("{text:?} is not a valid server address; give http://HOST:PORT, https://HOST or unix:PATH")]
    Address {
        /// The text.
        text: String,
    },
    /// Certificates are given for a server without TLS.
    #[error("{text:?} has no certificate to check; give https://HOST")]
    NoTls {
        /// The server's address.
        text: String,
    },
    /// Certificates cannot be read.
    #[error("cannot read certificates from {path}")]
    Roots {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The machine, or the file, has no trusted certificates that can be used.
    #[error("no trusted certificates found; set SSL_CERT_FILE to a file of them")]
    NoRoots,
    /// The TLS settings are inconsistent.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The credential cannot be sent in a header.
    #[error("invalid key: it contains characters that are not allowed")]
    Credential,
}

impl Target {
    /// Parses an address without TLS: `HOST:PORT`, or `http://HOST:PORT`.
    ///
    /// # Errors
    /// Fails if it is not an address.
    pub fn http(address: &str) -> Result<Self, TargetError> {
        let rest = address.strip_prefix("http://").unwrap_or(address);
        Ok(Self::Http(uri("http", rest, address)?))
    }

    /// Parses `http://HOST:PORT`, `https://HOST[:PORT]`, or `unix:PATH`. For `https` the machine's own certificates are
    /// read, or those of the file that `SSL_CERT_FILE` names.
    ///
    /// # Errors
    /// Fails if it is not an address, or no certificates are found.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        Self::parse_trusting(text, None)
    }

    /// Parses an address as [`Target::parse`] does; for `https` the certificates in a file are trusted instead of the machine's
    /// own.
    ///
    /// # Errors
    /// Fails like [`Target::parse`], and on certificates for a server without TLS.
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

    /// Returns the server name in calls.
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

/// Parses scheme, host and port. A path is refused, as calls have their own.
fn uri(scheme: &str, rest: &str, text: &str) -> Result<Uri, TargetError> {
    let refused = || TargetError::Address { text: text.to_owned() };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let is_valid = !authority.is_empty() && !authority.contains(['/', '?', '#', '@', ' ']);
    let uri: Uri = format!("{scheme}://{authority}").parse().map_err(|_| refused())?;
    if is_valid && uri.host().is_some_and(|host| !host.is_empty()) { Ok(uri) } else { Err(refused()) }
}

/// Trusted certificates.
#[derive(Debug, Clone)]
pub struct Roots(Arc<RootCertStore>);

impl From<Roots> for Arc<RootCertStore> {
    fn from(roots: Roots) -> Self {
        roots.0
    }
}

impl Roots {
    /// Trusts no certificate.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(RootCertStore::empty()))
    }

    /// Reads the machine's certificates, or those of the file that `SSL_CERT_FILE` names.
    ///
    /// # Errors
    /// Fails if the file does not exist or cannot be read.
    pub fn system() -> Result<Self, TargetError> {
        // The probe also reads the variable, but it falls back to the machine's file if the named one is missing.
        let named = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        Self::from_file(&named.or_else(|| openssl_probe::probe().cert_file).ok_or(TargetError::NoRoots)?)
    }

    /// Reads the certificates in a PEM file.
    ///
    /// # Errors
    /// Fails if it cannot be read, or has none that can be used.
    pub fn from_file(path: &Path) -> Result<Self, TargetError> {
        let failed = |source| TargetError::Roots { path: path.to_owned(), source };
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
            // A machine's bundle may contain some that this library does not accept.
            store.add_parsable_certificates([certificate.map_err(failed)?]);
        }
        if store.is_empty() { Err(TargetError::NoRoots) } else { Ok(Self(Arc::new(store))) }
    }
}

/// Credential of the caller.
#[derive(Clone, Default)]
pub enum Credential {
    /// None: for the operator's own socket, and for calls that need no key.
    #[default]
    None,
    /// An API key, or a sandbox's token.
    Key(String),
}

impl Credential {
    /// Creates a credential from an API key or a sandbox's token.
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
    fn addresses_are_parsed() {
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
    fn key_is_never_shown() {
        assert!(!format!("{:?}", Credential::key("bj_secret")).contains("secret"));
    }
}
