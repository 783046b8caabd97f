//! The certificate authority of one sandbox: for the hosts whose TLS its gateway terminates, and for no others.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use belljar_model::{DomainName, DomainPattern};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde::{Deserialize, Serialize};

/// Validity period of certificates: longer than the maximum lifetime of a sandbox.
const VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);

/// Backdating of certificates, for sandboxes whose clocks are behind.
const SLACK: Duration = Duration::from_secs(24 * 3600);

/// Error from making a certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A certificate or key could not be made.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The system's time is out of the range that certificates can represent.
    #[error("cannot make a certificate: the system's time is out of range")]
    Time,
    /// TLS does not accept the certificate.
    #[error("cannot serve TLS with a certificate")]
    Tls(#[from] rustls::Error),
}

/// The certificate authority of one sandbox. Its key is kept in memory, of the process that creates the sandbox and of its gateway, and where
/// the gateway ends with the server, in the server's record of the sandbox, which only its user may read.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authority {
    hosts: Vec<DomainPattern>,
    /// PKCS 8.
    key: Vec<u8>,
    /// Seconds since 1970.
    made: u64,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority that is limited to these hosts.
    ///
    /// # Errors
    /// Fails if the system's time is before 1970, or no key can be generated.
    pub fn new(hosts: Vec<DomainPattern>) -> Result<Self, AuthorityError> {
        let made = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let made = made.map_err(|_| AuthorityError::Time)?.as_secs();
        Ok(Self { hosts, key: KeyPair::generate()?.serialize_der(), made })
    }

    /// Returns the authority's own certificate, which programs in the sandbox trust, in PEM.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn certificate_pem(&self) -> Result<String, AuthorityError> {
        Ok(self.params()?.self_signed(&self.key()?)?.pem())
    }

    /// Returns the TLS configuration for serving as one of the hosts.
    pub(crate) fn server(
        &self,
        host: &DomainName,
        provider: &Arc<CryptoProvider>,
    ) -> Result<ServerConfig, AuthorityError> {
        let issuer = Issuer::new(self.params()?, self.key()?);
        let mut params = self.params_valid_from_creation()?;
        params.distinguished_name = common_name(host.as_str());
        params.subject_alt_names = vec![SanType::DnsName(host.as_str().try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::clone(provider));
        let config = config.with_safe_default_protocol_versions()?.with_no_client_auth();
        Ok(config.with_single_cert(vec![certificate.der().clone()], key.into())?)
    }

    fn key(&self) -> Result<KeyPair, AuthorityError> {
        Ok(KeyPair::try_from(self.key.as_slice())?)
    }

    fn params(&self) -> Result<CertificateParams, AuthorityError> {
        let mut params = self.params_valid_from_creation()?;
        params.distinguished_name = common_name("Belljar gateway of this sandbox");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // A constraint for a name is one for those below it as well (RFC 5280, 4.2.1.10).
        let hosts = self.hosts.iter().map(|(DomainPattern::Exact(name) | DomainPattern::Below(name))| {
            GeneralSubtree::DnsName(name.to_string())
        });
        params.name_constraints =
            Some(NameConstraints { permitted_subtrees: hosts.collect(), excluded_subtrees: Vec::new() });
        Ok(params)
    }

    fn params_valid_from_creation(&self) -> Result<CertificateParams, AuthorityError> {
        let at = |seconds: u64| {
            let seconds = i64::try_from(seconds).map_err(|_| AuthorityError::Time)?;
            time::OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| AuthorityError::Time)
        };
        let mut params = CertificateParams::default();
        params.not_before = at(self.made.saturating_sub(SLACK.as_secs()))?;
        params.not_after = at(self.made.saturating_add(VALIDITY.as_secs()))?;
        Ok(params)
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}
