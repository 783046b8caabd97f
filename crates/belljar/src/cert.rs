//! `belljar cert`: a certificate for a domain and the host names below it, by an authority made for it alone.
//!
//! The authority's key is used once and not stored: trusting its certificate means trusting the certificate made here and no later one. Name
//! constraints limit the authority to the domain.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_config::is_domain;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};

use crate::cli::{CertArgs, ServiceArgs};
use crate::config::Sources;
use crate::message::Quit;
use crate::output::write_failed;

/// Validity period of the certificates.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Backdating of the certificates, for clients whose clocks are behind.
const SLACK: Duration = Duration::from_secs(24 * 3600);

/// Name of the default directory in the home.
const DIRECTORY: &str = "tls";

/// File with the server's certificate, followed by the authority's.
const CERTIFICATE_FILE: &str = "certificate.pem";

/// File with the private key of the server's certificate.
const KEY_FILE: &str = "key.pem";

/// File with the authority's certificate, for programs that trust it in addition to others.
pub(crate) const AUTHORITY_FILE: &str = "ca.pem";

/// File with all authorities of the system and this one, for programs that read a single file.
pub(crate) const BUNDLE_FILE: &str = "ca-bundle.pem";

/// Error from making a certificate.
#[derive(Debug, thiserror::Error)]
enum CertError {
    /// The domain is invalid.
    #[error(
        "domain: {domain:?} is no domain name; give one such as sandboxes.localhost or sandboxes.example.com"
    )]
    NoDomain { domain: String },
    /// The domain has a single label, and clients accept no wildcard certificate for it.
    #[error(
        "domain: {domain:?} has one label, and clients accept no certificate for *.{domain}; give a domain below it, such as \
         sandboxes.{domain}"
    )]
    OneLabel { domain: String },
    /// A certificate or key could not be made.
    #[error("cannot make a certificate for {domain}")]
    Make { domain: String, source: rcgen::Error },
    /// The system's time is out of the range that certificates can represent.
    #[error("cannot make a certificate: the system's time is out of range")]
    Time(#[from] time::error::ComponentRange),
    /// A file cannot be written.
    #[error("cannot {action} {path:?}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

/// The certificates and the key, in PEM.
struct PemFiles {
    authority: String,
    certificate: String,
    key: String,
}

/// Runs `belljar cert`: writes the files, and prints how a server uses them.
pub(crate) fn cert(args: &CertArgs) -> Result<u8, Quit> {
    let domain = args.domain.to_ascii_lowercase();
    if !is_domain(&domain) || domain.parse::<std::net::IpAddr>().is_ok() {
        return Err(Quit::Usage(CertError::NoDomain { domain }.to_string()));
    }
    if !domain.contains('.') {
        return Err(Quit::Usage(CertError::OneLabel { domain }.to_string()));
    }
    let dir = match &args.dir {
        Some(dir) => std::path::absolute(dir).map_err(|source| CertError::File {
            action: "use",
            path: dir.clone(),
            source,
        })?,
        None => {
            let service = ServiceArgs { home: args.home.clone(), ..ServiceArgs::default() };
            Sources::new(&service).home()?.join(DIRECTORY)
        }
    };
    let files = make(&domain)?;
    let bundle = belljar_local::system_bundle()
        .map_or_else(|| files.authority.clone(), |all| format!("{all}\n{}", files.authority));
    create_directory(&dir)?;
    write(&dir, KEY_FILE, &files.key)?;
    write(&dir, CERTIFICATE_FILE, &files.certificate)?;
    write(&dir, AUTHORITY_FILE, &files.authority)?;
    write(&dir, BUNDLE_FILE, &bundle)?;
    let mut text = String::new();
    let at = |file| dir.join(file).display().to_string();
    let _ = writeln!(text, "made {} for {domain} and *.{domain}, good for a year", at(CERTIFICATE_FILE));
    let _ = writeln!(
        text,
        "belljar serve --domain {domain} --set server.tls_certificate={} --set server.tls_key={}",
        at(CERTIFICATE_FILE),
        at(KEY_FILE)
    );
    io::stdout().write_all(text.as_bytes()).map_err(write_failed)?;
    Ok(0)
}

fn make(domain: &str) -> Result<PemFiles, CertError> {
    let failed = |source| CertError::Make { domain: domain.to_owned(), source };
    let authority = authority(domain)?;
    let authority_key = KeyPair::generate().map_err(failed)?;
    let root = authority.self_signed(&authority_key).map_err(failed)?;
    let issuer = Issuer::new(authority, authority_key);
    let mut params = params_valid_from_now(domain)?;
    for name in [domain.to_owned(), format!("*.{domain}")] {
        params.subject_alt_names.push(SanType::DnsName(name.try_into().map_err(failed)?));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(failed)?;
    let own: Certificate = params.signed_by(&key, &issuer).map_err(failed)?;
    Ok(PemFiles { authority: root.pem(), certificate: own.pem() + &root.pem(), key: key.serialize_pem() })
}

fn authority(domain: &str) -> Result<CertificateParams, CertError> {
    let mut params = params_valid_from_now(&format!("Belljar, for {domain} alone"))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(domain.to_owned())],
        excluded_subtrees: Vec::new(),
    });
    Ok(params)
}

fn params_valid_from_now(name: &str) -> Result<CertificateParams, CertError> {
    let now = time::OffsetDateTime::from_unix_timestamp(jiff::Timestamp::now().as_second())?;
    let mut params = CertificateParams::default();
    params.not_before = now - SLACK;
    params.not_after = now + VALIDITY;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// Creates the directory for the files, if it is missing.
fn create_directory(dir: &Path) -> Result<(), CertError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| CertError::File { action: "make", path: dir.to_owned(), source })
}

/// Writes a file that only its owner can read, replacing an earlier one.
fn write(dir: &Path, name: &str, text: &str) -> Result<(), CertError> {
    let path = dir.join(name);
    let fresh = dir.join(format!("{name}.new"));
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| CertError::File { action, path, source }
    };
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("replace", &fresh)(error));
        }
        _ => {}
    }
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh);
    let mut file = file.map_err(failed("make", &fresh))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed("write", &fresh))?;
    std::fs::rename(&fresh, &path).map_err(failed("replace", &path))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    #[test]
    fn certificate_covers_the_domain_and_one_label_below_it() {
        let files = make("sandboxes.test").unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(files.authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(files.certificate.as_bytes()).map(Result::unwrap).collect();
        let good = |name: &str| {
            let name = ServerName::try_from(name.to_owned()).unwrap();
            verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now()).is_ok()
        };
        for name in ["sandboxes.test", "api.sandboxes.test", "49983-abc.sandboxes.test"] {
            assert!(good(name), "{name}");
        }
        for name in ["a.b.sandboxes.test", "test", "example.com", "evilsandboxes.test"] {
            assert!(!good(name), "{name}");
        }
        // The authority's key is not written to any file.
        assert_eq!(files.key.matches("PRIVATE KEY").count(), 2);
        assert!(!files.certificate.contains("PRIVATE"));
    }
}
