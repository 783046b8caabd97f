//! TLS with the operator's certificate, which can be reloaded while connections are open.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// Error of loading a certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or has the wrong format.
    #[error("cannot read the {what} in {path}; give a file in PEM form")]
    Read {
        /// `certificate` or `private key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The file contains no certificate.
    #[error("no certificate in {path}; give a file in PEM form, the server's own certificate first")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not match, or are of an unsupported kind.
    #[error("the certificate in {certificate} cannot be used with the key in {key}")]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error.
        #[source]
        source: rustls::Error,
    },
}

/// A certificate with its key, for all new connections. Clones share it.
#[derive(Clone)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    current: Arc<CurrentCertificate>,
    config: Arc<ServerConfig>,
}

struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl Tls {
    /// Loads a certificate chain, the server's own certificate first, and its private key, both in PEM form.
    ///
    /// # Errors
    /// Returns [`TlsError`] if the files cannot be used.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = Arc::new(CurrentCertificate(RwLock::new(read(certificate, key)?)));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let unusable =
            |source| TlsError::Unusable { certificate: certificate.into(), key: key.into(), source };
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(&current) as _;
        let mut config = config.map_err(unusable)?.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { certificate: certificate.into(), key: key.into(), current, config: Arc::new(config) })
    }

    /// Reloads the files. New connections use the new certificate.
    ///
    /// # Errors
    /// Returns [`TlsError`] if the files cannot be used; the old certificate stays then.
    pub fn reload(&self) -> Result<(), TlsError> {
        let fresh = read(&self.certificate, &self.key)?;
        *self.current.0.write() = fresh;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config).into()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tls").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CurrentCertificate")
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let wrong = |what, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Read { what, path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(wrong("certificate", certificate))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: certificate.to_owned() });
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(wrong("private key", key))?;
    let made = CertifiedKey::from_der(chain, private, &aws_lc_rs::default_provider());
    made.map(Arc::new).map_err(|source| TlsError::Unusable {
        certificate: certificate.into(),
        key: key.into(),
        source,
    })
}
