//! TLS termination, for hosts with secrets or rules for requests. The gateway impersonates the host towards the program, with a
//! certificate of the sandbox's own authority, and is a client towards the host, whose certificate it verifies.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use belljar_model::{DomainName, DomainPattern};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::authority::{Authority, AuthorityError};
use crate::config::GatewayConfig;
use crate::dial;
use crate::flow::Failed;
use crate::gateway::{Flow, Gateway, Target};
use crate::relay::{Replay, Resets};
use crate::tls::{self, Hello};
use crate::web::{self, Site};

/// Paths of the file with a system's trusted authorities; the first that exists is used.
pub const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Maximum number of hosts whose certificates are cached.
const MAX_SERVERS: usize = 256;

const HTTP_2: &[u8] = b"h2";
pub(crate) const HTTP_1: &[u8] = b"http/1.1";

/// Error from setting up TLS termination.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminationError {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("cannot read the certificates in {path}: {reason}")]
    Roots { path: String, reason: String },
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// TLS termination for some hosts.
pub(crate) struct Termination {
    authority: Authority,
    provider: Arc<CryptoProvider>,
    hosts: BTreeSet<DomainPattern>,
    /// TLS configurations by host. Those of hosts that match a suffix are created on demand.
    servers: RefCell<BTreeMap<DomainName, ServerConfig>>,
    client: ClientConfig,
}

impl Termination {
    /// Sets up termination for the hosts whose requests the policy inspects. Reads files: the authorities of the system and of the operator.
    pub(crate) fn new(authority: &Authority, config: &GatewayConfig) -> Result<Self, TerminationError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = roots(config.setup.ca_file.as_deref())?;
        // Without authorities no host could be verified, and presets have to work nevertheless.
        let hosts = match roots.is_empty() {
            _ if config.is_without("gateway-terminate") => BTreeSet::new(),
            true => config.policy.required_hosts(),
            false => config.policy.read_hosts(),
        };
        #[cfg_attr(not(feature = "mutation"), expect(unused_mut, reason = "tests take its verifier away"))]
        let mut client = client(&provider, roots)?;
        #[cfg(feature = "mutation")]
        if config.is_without("gateway-verify") {
            let verifier = crate::without::AnyCertificate(Arc::clone(&provider));
            client.dangerous().set_certificate_verifier(Arc::new(verifier));
        }
        let termination =
            Self { authority: authority.clone(), provider, hosts, servers: RefCell::default(), client };
        for host in &termination.hosts {
            if let DomainPattern::Exact(host) = host {
                termination.server(host)?;
            }
        }
        Ok(termination)
    }

    /// Reports whether TLS to this host is terminated.
    pub(crate) fn ends(&self, host: &DomainName) -> bool {
        self.hosts.iter().any(|pattern| pattern.matches(host))
    }

    /// Returns the TLS configuration for this host.
    fn server(&self, host: &DomainName) -> Result<ServerConfig, AuthorityError> {
        if let Some(server) = self.servers.borrow().get(host) {
            return Ok(server.clone());
        }
        let server = self.authority.server(host, &self.provider)?;
        let mut servers = self.servers.borrow_mut();
        if servers.len() >= MAX_SERVERS {
            // Bounded, because code in the sandbox chooses the names below a pattern.
            servers.clear();
        }
        servers.insert(host.clone(), server.clone());
        Ok(server)
    }

    /// Connects to the host over TLS, verifies its certificate, and negotiates one of these protocols.
    pub(crate) async fn connect(
        &self,
        gateway: &Gateway,
        flow: &Flow,
        name: &DomainName,
        protocols: Vec<Vec<u8>>,
    ) -> Result<TlsStream<Resets>, Failed> {
        let stream = dial::dial(gateway, flow).await?.counting(flow);
        let mut config = self.client.clone();
        config.alpn_protocols = protocols;
        let server = ServerName::try_from(name.to_string()).map_err(io::Error::other)?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(server, stream);
        match tokio::time::timeout(dial::DIAL_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Failed::Upstream { name: name.clone(), reason: error.to_string() }),
            Err(_) => {
                Err(Failed::Upstream { name: name.clone(), reason: "it does not answer in time".into() })
            }
        }
    }
}

/// Reads the authorities of the system, and those in the operator's file.
fn roots(more: Option<&Path>) -> Result<RootCertStore, TerminationError> {
    let mut roots = RootCertStore::empty();
    let system = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
    for path in system.into_iter().chain(more) {
        let failed = |reason: String| TerminationError::Roots { path: path.display().to_string(), reason };
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            // Systems have certificates that do not parse; these are ignored.
            let added = roots.add(certificate);
            if Some(path) == more {
                added.map_err(|error| failed(error.to_string()))?;
            }
        }
    }
    Ok(roots)
}

fn client(provider: &Arc<CryptoProvider>, roots: RootCertStore) -> Result<ClientConfig, TerminationError> {
    let config = ClientConfig::builder_with_provider(Arc::clone(provider));
    Ok(config.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth())
}

/// Serves a connection whose ClientHello has been read. Both sides use the same version of HTTP: one that the program offers and
/// the host accepts.
pub(crate) async fn serve(
    gateway: &Rc<Gateway>,
    flow: &Rc<Flow>,
    termination: &Rc<Termination>,
    stream: Resets,
    hello: Hello,
    name: &DomainName,
) -> Result<(), Failed> {
    // Held until the connection has ended.
    let Ok(_room) = gateway.terminated.try_acquire() else {
        tls::alert(&stream).await;
        return Err(Failed::Full);
    };
    let http2_room =
        gateway.http2.try_acquire().ok().filter(|_| hello.protocols.iter().any(|one| one == HTTP_2));
    let known = |protocol: &&Vec<u8>| [HTTP_2, HTTP_1].contains(&protocol.as_slice());
    let mut offered: Vec<Vec<u8>> = hello.protocols.iter().filter(known).cloned().collect();
    if http2_room.is_none() && offered.iter().any(|one| one == HTTP_2) {
        // Without room for another connection of HTTP/2, the program gets the other version if it speaks that.
        offered.retain(|protocol| protocol != HTTP_2);
        if offered.is_empty() {
            tls::alert(&stream).await;
            return Err(Failed::Full);
        }
    }
    let connected = termination.connect(gateway, flow, name, offered).await;
    let chosen = match &connected {
        Ok(upstream) => upstream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec),
        // Without a connection to the host, the reason is sent over HTTP/1.1.
        Err(_) => Some(HTTP_1.to_vec()).filter(|protocol| hello.protocols.contains(protocol)),
    };
    let mut config = termination.server(name).map_err(io::Error::other)?;
    config.alpn_protocols = chosen.clone().into_iter().collect();
    let first = Replay::new(hello.bytes, stream);
    let accepted =
        tokio::time::timeout(dial::DIAL_TIMEOUT, TlsAcceptor::from(Arc::new(config)).accept(first));
    let accepted = accepted.await.unwrap_or_else(|late| Err(late.into()));
    let (upstream, accepted) = match connected {
        Ok(upstream) => (upstream, accepted?),
        Err(error) => {
            if let Ok(accepted) = accepted {
                web::fail(flow, accepted, &error).await;
            }
            return Err(error);
        }
    };
    let site =
        Site { host: Target::Name(name.clone()), port: flow.port, termination: Some(Rc::clone(termination)) };
    let is_http2 = chosen.as_deref() == Some(HTTP_2);
    let _http2_room = http2_room.filter(|_| is_http2);
    if is_http2 {
        web::serve_http2(gateway, flow, site, accepted, upstream).await
    } else {
        web::serve_http1(gateway, flow, site, accepted, Some(Box::new(upstream))).await
    }
}

#[cfg(test)]
mod tests {
    use rustls::client::{EchConfig, EchMode};
    use rustls::crypto::aws_lc_rs::hpke::ALL_SUPPORTED_SUITES;
    use rustls::pki_types::EchConfigListBytes;

    use super::*;

    /// A client that encrypts the server name, and shows `outer` instead (ECH, draft-ietf-tls-esni, 4).
    fn encrypting_client(authority: &Authority, outer: &str) -> ClientConfig {
        let mut content = vec![7, 0, 0x20, 0, 32];
        content.extend([9; 32]);
        content.extend([0, 4, 0, 1, 0, 1, 0, u8::try_from(outer.len()).unwrap()]);
        content.extend(outer.bytes());
        content.extend([0, 0]);
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
        let config = [&[0xfe, 0x0d], &length(&content)[..], &content].concat();
        let list = EchConfigListBytes::from([&length(&config)[..], &config].concat());
        let mode = EchMode::Enable(EchConfig::new(list, ALL_SUPPORTED_SUITES).unwrap());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        let pem = authority.certificate_pem().unwrap();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(provider).with_ech(mode).unwrap();
        config.with_root_certificates(roots).with_no_client_auth()
    }

    #[tokio::test]
    async fn encrypted_server_name_is_not_passed_on() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let outer: DomainName = "x.example".parse().unwrap();
        let authority = Authority::new(vec![DomainPattern::Exact(outer.clone())]).unwrap();
        let client = encrypting_client(&authority, outer.as_str());
        let hidden = ServerName::try_from("hidden.example").unwrap();
        // The gateway reads the visible name, and is the end of this handshake, which the client refuses to use.
        let mut bytes = Vec::new();
        let mut first = rustls::ClientConnection::new(Arc::new(client.clone()), hidden.clone()).unwrap();
        first.write_tls(&mut bytes).unwrap();
        let (asked, _) = crate::tls::Reader::default().read(&bytes).unwrap().unwrap();
        assert_eq!(asked.as_deref(), Some("x.example"));
        let server = TlsAcceptor::from(Arc::new(authority.server(&outer, &provider).unwrap()));
        let (near, far) = tokio::io::duplex(64 << 10);
        let connector = TlsConnector::from(Arc::new(client));
        let (accepted, connected) = tokio::join!(server.accept(far), connector.connect(hidden, near));
        let error = connected.unwrap_err().to_string();
        assert!(error.contains("EncryptedClientHello"), "{error}");
        drop(accepted);
    }

    #[test]
    fn certificates_made_on_demand_are_bounded() {
        let below: DomainPattern = "*.example".parse().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let termination = Termination {
            authority: Authority::new(vec![below.clone()]).unwrap(),
            client: client(&provider, RootCertStore::empty()).unwrap(),
            provider,
            hosts: BTreeSet::from([below]),
            servers: RefCell::default(),
        };
        for number in 0..=MAX_SERVERS {
            let host: DomainName = format!("h{number}.example").parse().unwrap();
            assert!(termination.ends(&host));
            termination.server(&host).unwrap();
            assert!(termination.servers.borrow().len() <= MAX_SERVERS, "{number}");
        }
        assert_eq!(termination.servers.borrow().len(), 1, "full, it begins anew");
    }
}
